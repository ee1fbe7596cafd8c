"""Schemas that every noun shares: the base of bodies and of replies, times, and problem details."""

from datetime import UTC, datetime
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

WEEK = 604_800  # seconds: the longest deadline, and the longest that a result is kept


class Body(BaseModel):
    """Base of every body: no unknown field, immutable, JSON types taken as they are."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Reply(BaseModel):
    model_config = ConfigDict(frozen=True)


def moment(unix: float | None) -> datetime | None:
    """Unix seconds as a UTC time, which JSON carries as RFC 3339."""
    return None if unix is None else datetime.fromtimestamp(unix, UTC)


class ErrorDetail(Reply):
    pointer: Annotated[str, Field(description="JSON pointer into the request, e.g. /params/period")]
    detail: str


class Problem(Reply):
    """RFC 9457 problem details."""

    type: Annotated[str, Field(description="URI reference of the description of this kind of problem")]
    title: str
    status: int
    detail: Annotated[str, Field(description="A sentence with the numbers in it")]
    code: Annotated[str, Field(description="Stable word for programs")]
    retryable: Annotated[bool, Field(description="Whether the same request may succeed later")]
    errors: list[ErrorDetail] = Field(default_factory=list)
    job: Annotated[str | None, Field(description="The job that an Idempotency-Key belongs to")] = None


class ProblemKind(Reply):
    code: str
    status: int
    title: str
    retryable: bool
