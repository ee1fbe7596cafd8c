"""Comparison of two benchmark runs: lists rows slower by more than both runs' spreads and a bound."""

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from warpdesk_server.benchmarks.rows import Row

_KINDS = ("operations", "gpu")  # whose rows are `Row`s


def read(path: Path) -> dict[str, Any]:
    """Read a saved run. Raises OSError, and ValueError for a file that holds something else."""
    try:
        old = json.loads(path.read_text())
        kind = old["benchmark"]
        if kind not in _KINDS:
            raise ValueError(f"{path} holds the benchmark {kind}; only {' and '.join(_KINDS)} can be compared")
        for row in old["rows"]:
            Row.read(row)
        if not (isinstance(old["environment"], dict) and isinstance(old["measured_at"], str)):
            raise TypeError
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError):
        raise ValueError(f"{path} is no run of the operations, as --json writes one") from None
    return dict(old)


def common(old: Mapping[str, Any], cases: Collection[tuple[str, str]]) -> bool:
    """Whether a saved run has one of these cases, each an operation and a label."""
    return any((row["operation"], row["case"]) in cases and row["by"] == "Warpdesk" for row in old["rows"])


def compared(
    old: Mapping[str, Any], new: Sequence[Row], bound: float, operations: Collection[str] = ()
) -> list[dict[str, Any]]:
    """A line for each row of Warpdesk's in the old run, of some operations if any are named, with the ratio of medians:
    above 1 where the new one is slower.

    "slower": the quickest of the new run is above the slowest of the old one, and the medians differ by more than the
    bound. "quicker" the other way round. Anything else is "same": the machine alone explains it. "gone": the new run
    has no such row.
    """
    before = {row.key: row for row in map(Row.read, old["rows"])}
    lines = []
    measured = {row.key for row in new}
    for row in new:
        was = before.get(row.key)
        if was is None or row.by != "Warpdesk":
            continue
        ratio = row.time.median / was.time.median
        verdict = "same"
        if row.time.low > was.time.high and ratio > bound:
            verdict = "slower"
        elif row.time.high < was.time.low and ratio < 1 / bound:
            verdict = "quicker"
        lines.append(
            {
                "operation": row.operation,
                "case": row.case,
                "what": f"{row.on} {row.what}",
                "before": was.time,
                "now": row.time,
                "now / before": ratio,
                "verdict": verdict,
            }
        )
    for was in before.values():
        if was.by == "Warpdesk" and was.key not in measured and (not operations or was.operation in operations):
            what = {"operation": was.operation, "case": was.case, "what": f"{was.on} {was.what}"}
            lines.append({**what, "before": was.time, "now": "", "now / before": "", "verdict": "gone"})
    return lines


def elsewhere(old: Mapping[str, Any], environment: Mapping[str, Any]) -> str:
    """A sentence about the differences between the machines of two runs; "" if no known fact differs."""
    was, now = old["environment"], environment
    different = [
        f"{name} was {was.get(name)} and is {now.get(name)}"
        for name in ("cpu", "cores")
        if was.get(name) != now.get(name)
    ]
    one, two = was.get("device", {}).get("name"), now.get("device", {}).get("name")
    if one != two:
        different.append(f"device was {one} and is {two}")
    return "; ".join(different)
