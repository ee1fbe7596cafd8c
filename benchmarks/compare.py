"""Compare two runs: what has become slower by more than both runs' spreads and a bound."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.rows import Row


def compared(old: Mapping[str, Any], new: Sequence[Row], bound: float) -> list[dict[str, Any]]:
    """A line for each row of Warpdesk's in both runs, with the ratio of medians: above 1 where the new one is slower.

    "slower": the quickest of the new run is above the slowest of the old one, and the medians differ by more than the
    bound. "quicker" the other way round. Anything else is "same": the machine alone explains it.
    """
    before = {row.key: row for row in map(Row.read, old["rows"])}
    lines = []
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
    return lines


def elsewhere(old: Mapping[str, Any], environment: Mapping[str, Any]) -> str:
    """What differs between the machines of two runs, in a sentence; "" where nothing that is known does."""
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
