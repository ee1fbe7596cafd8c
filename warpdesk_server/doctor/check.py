"""Data of `warpdesk doctor`: a check with its status and remedy, and the findings of a run."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

# absent: the thing is not installed here, and the service works without it.
Status = Literal["ok", "warning", "failed", "absent"]

_MARKS: Mapping[Status, str] = {"ok": "ok", "warning": "WARNING", "failed": "FAILED", "absent": "-"}


@dataclass(frozen=True)
class Check:
    """One check of the doctor. `found` is a sentence with its numbers, `remedy` a command or a setting.

    Every failed check has a remedy.
    """

    name: str
    status: Status
    found: str
    remedy: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    lines: tuple[str, ...] = ()  # what only the text shows, a table say

    def __post_init__(self) -> None:
        if self.status == "failed" and not self.remedy:
            raise ValueError(f"the failed check {self.name} has no remedy")


@dataclass(frozen=True)
class Findings:
    checks: tuple[Check, ...]

    @property
    def healthy(self) -> bool:
        """Whether no check of the doctor failed. Without a GPU, jobs run on the CPU: healthy, unless the settings ask
        for a GPU."""
        return all(check.status != "failed" for check in self.checks)

    def named(self, name: str) -> Check:
        return next(check for check in self.checks if check.name == name)

    def as_json(self) -> dict[str, object]:
        checks = [{key: value for key, value in asdict(check).items() if key != "lines"} for check in self.checks]
        return {"healthy": self.healthy, "checks": checks}

    def as_text(self) -> str:
        width = max(len(check.name) for check in self.checks)
        return "\n".join(line for check in self.checks for line in _lines(check, width))


def _lines(check: Check, width: int) -> Iterable[str]:
    yield f"{check.name:<{width}}  {_MARKS[check.status]:<7}  {check.found}"
    margin = " " * (width + 11)
    if check.remedy:
        yield f"{margin}to mend it: {check.remedy}"
    for line in check.lines:
        yield margin + line
