"""Schemas that every noun shares: the base of bodies and of replies, times, and problem details."""

from datetime import UTC, datetime

from warpdesk.models import Reply

WIDEST = 256  # parts of a job: each takes some milliseconds beside what it computes
WEEK = 604_800  # seconds: the longest deadline, and the longest that a result is kept


def moment(unix: float | None) -> datetime | None:
    """Unix seconds as a UTC time of a reply, which JSON carries as RFC 3339."""
    return None if unix is None else datetime.fromtimestamp(unix, UTC)


class ProblemKind(Reply):
    code: str
    status: int
    title: str
    retryable: bool
