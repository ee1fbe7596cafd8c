"""The chart of a benchmark run: speed relative to each peer, or on a GPU each kernel's fraction of its limit."""

from collections.abc import Sequence
from pathlib import Path

from warpdesk_server.benchmarks.rows import Row


def draw(path: Path, rows: Sequence[Row], title: str) -> None:
    """Write a picture whose format its suffix names. Raises ImportError without matplotlib (the extra `picture`)."""
    from matplotlib.figure import Figure  # not pyplot, which would look for a display

    parts = [row for row in rows if row.part is not None and row.what == "kernel"]
    peers = [row for row in rows if row.what == "peer" and row.ratio]
    chosen = parts or peers
    values = [row.part or 0.0 for row in parts] if parts else [row.ratio or 0.0 for row in peers]
    names = [f"{row.operation}, {row.case}" + ("" if parts else f": {row.by} {row.version}".rstrip()) for row in chosen]
    figure = Figure(figsize=(11, 1.5 + 0.28 * max(len(chosen), 4)), layout="constrained")
    axes = figure.subplots()
    good = "#2a7f62"
    colours = [
        "#b5482f" if row.reached is False or (not parts and value < 1) else good
        for row, value in zip(chosen, values, strict=True)
    ]
    begin = 0.0 if parts else 1.0  # a ratio grows either way from 1
    axes.barh(range(len(chosen)), [value - begin for value in values], left=begin, color=colours)
    axes.set_yticks(range(len(chosen)), names, fontsize=8)
    axes.margins(y=0.01)
    axes.invert_yaxis()
    for place, value in enumerate(values):
        axes.annotate(
            f" {value:.0%}" if parts else f" {value:.3g}", (max(value, begin), place), va="center", fontsize=8
        )
    if parts:
        axes.set_xlabel("part of the measured copy rate, of products cuBLAS's rate (red: below its goal)", fontsize=9)
        axes.set_xlim(0, max(1.05, *values) * 1.05)
        axes.axvline(1, color="black", linewidth=0.8)
    elif chosen:
        axes.set_xscale("log")
        axes.set_xlabel("times as quick as the peer (red: slower, or below its goal)", fontsize=9)
        axes.axvline(1, color="black", linewidth=0.8)
        axes.set_xlim(min(*values, 1) / 1.6, max(*values, 1) * 1.8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.set_title(title, loc="left", fontsize=10)
    figure.savefig(path, dpi=150)
