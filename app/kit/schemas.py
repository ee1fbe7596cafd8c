"""Schemas that every noun shares: the base of bodies and of replies, times, and problem details."""

from datetime import UTC, datetime
from typing import Annotated

from pydantic import Field

from warpdesk.models import Reply

WIDEST = 256  # parts of a job: each takes some milliseconds beside what it computes
WEEK = 604_800  # seconds: the longest deadline, and the longest that a result is kept


def moment(unix: float | None) -> datetime | None:
    """Unix seconds as a UTC time of a reply, which JSON carries as RFC 3339."""
    return None if unix is None else datetime.fromtimestamp(unix, UTC)


class ProblemKind(Reply):
    """What an error code means."""

    code: str
    status: int
    title: str
    retryable: Annotated[bool, Field(description="Whether the same request may succeed later")]
    meaning: Annotated[str, Field(description="What happened")]
    remedy: Annotated[str, Field(description="What helps")]
