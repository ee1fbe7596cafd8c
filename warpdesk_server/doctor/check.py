"""What was looked at, how it is, and what would mend it."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

# absent: it is not here, and the service does without it.
Status = Literal["ok", "warning", "failed", "absent"]

_MARKS: Mapping[Status, str] = {"ok": "ok", "warning": "WARNING", "failed": "FAILED", "absent": "-"}


@dataclass(frozen=True)
class Check:
    """`found` is a sentence with the numbers in it, `remedy` a command or a setting: every failure has one."""

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
        """A machine without a GPU is healthy, unless the settings ask for one: jobs run on its CPU."""
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
