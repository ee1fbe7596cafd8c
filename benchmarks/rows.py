"""The rows of benchmark results, and a run's rows as JSON, CSV and text."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from warpdesk_server.benchmarks.report import Timing


@dataclass(frozen=True)
class Row:
    """How long `by` took for a case.

    `what`: "compute" and "kernel" leave out what brings arrays in and out, "end to end" and "host to host" do not.
    `ratio` is a peer's time over Warpdesk's of the same case: above 1, Warpdesk is the quicker. `part` is of the limit
    that `of` names, measured in the same run.
    """

    operation: str
    case: str
    on: str  # "cpu" or "gpu"
    what: str
    by: str
    time: Timing
    version: str = ""
    threads: str = ""
    ratio: float | None = None
    part: float | None = None
    of: str = ""
    goal: str = ""
    reached: bool | None = None
    note: str = ""

    @property
    def key(self) -> tuple[str, ...]:
        return self.operation, self.case, self.on, self.what, self.by

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> "Row":
        return cls(**{**document, "time": Timing(**document["time"])})


def shown(row: Row) -> dict[str, Any]:
    """Format a row as a line of the results table."""
    by = f"{row.by} {row.version}".strip()
    return {
        "operation": row.operation,
        "case": row.case,
        "what": f"{row.on} {row.what}",
        "by": by if row.threads in ("", "all") else f"{by} ({row.threads} thread{'s' if row.threads != '1' else ''})",
        "time": row.time,
        "ratio": "" if row.ratio is None else row.ratio,
        "part": "" if row.part is None else f"{row.part:.0%} of {row.of}",
        "goal": row.goal and f"{row.goal}: {'reached' if row.reached else 'not reached'}",
    }


def document(
    environment: Mapping[str, Any], rows: Sequence[Row], left_out: Mapping[str, str], **more: Any
) -> dict[str, Any]:
    return {
        "benchmark": "operations",
        **more,
        "environment": dict(environment),
        "left_out": dict(sorted(left_out.items())),
        "rows": [asdict(row) for row in rows],
    }


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    text = io.StringIO()
    lines = []
    for row in rows:
        values = asdict(row)
        timing = values.pop("time")
        lines.append({**values, "median_s": timing["median"], "low_s": timing["low"], "high_s": timing["high"]})
    if lines:
        writer = csv.DictWriter(text, list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
    path.write_text(text.getvalue())
