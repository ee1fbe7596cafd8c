"""The encoding of the queue's data for its Lua scripts, and the decoding of what Redis answers."""

from collections.abc import Sequence
from typing import Any, cast

from rq.utils import now, utcformat

from warpdesk.models import State
from warpdesk_server.workers.queue.protocol import Failed, JobRequest, Provenance, Succeeded
from warpdesk_server.workers.queue.records import (
    LEASE_SECONDS,
    Batch,
    Claim,
    Ending,
    Finish,
    Finished,
    Follower,
    Held,
    JobRecord,
)


def claim_arguments(claim: Claim) -> tuple[Any, ...]:
    return (
        *(claim.worker, claim.process, claim.digest, repr(LEASE_SECONDS), " ".join(claim.kinds), utcformat(now())),
        *(int(claim.waits), claim.only, claim.items, claim.bytes, " ".join(claim.gpus)),
        "" if claim.tasks is None else f" {' '.join(claim.tasks)} ",
    )


def shard_arguments(
    claim: Claim, job: Held, patience: float, again: int | None, ended: Ending | None
) -> tuple[Any, ...]:
    own = claim.worker, claim.process, claim.digest, repr(LEASE_SECONDS)
    before: tuple[Any, ...] = ()
    if ended is not None and isinstance(ended.outcome, Succeeded):
        before = *ended.job.fence, ended.outcome.provenance.model_dump_json()
    return *own, *job.fence, job.request.shards, "" if again is None else again, repr(patience), *before


def ending_arguments(ending: Ending) -> tuple[Any, ...]:
    if isinstance(ending.outcome, Succeeded):
        how, value = "succeeded", ending.outcome.result
        provenance = ending.outcome.provenance.model_dump_json()
    elif isinstance(ending.outcome, Failed):
        how, value, provenance = "failed", ending.outcome.model_dump_json(), ""
    else:
        how, value, provenance = ending.how, ending.failure.model_dump_json(), ""
    delays = " ".join(f"{delay:g}" for delay in ending.delays)
    return *ending.job.fence, how, value, provenance, ending.reason, delays


def finished(answer: tuple[list[bytes], bytes, list[list[bytes]]], then: Batch | None) -> Finished:
    endings, at, shared = answer
    followers = [Follower(queue.decode(), state.decode(), *map(float, times)) for queue, state, *times in shared]
    return Finished([cast(Finish, ending.decode()) for ending in endings], then, float(at), followers)


def texts(values: Sequence[bytes | str]) -> list[str]:
    """Text of bytes, as Redis answers, or of the text in a batch that was handed to a worker."""
    return [value if isinstance(value, str) else value.decode(errors="replace") for value in values]


def text_fields(fields: dict[bytes, bytes]) -> dict[str, str]:
    """The fields of a job's record in Redis as text. A worker may have written other bytes: they are replaced."""
    return {name.decode(errors="replace"): value.decode(errors="replace") for name, value in fields.items()}


def job_record(request: JobRequest, fields: dict[str, str]) -> JobRecord:
    def number(name: str) -> float | None:
        return float(fields[name]) if name in fields else None

    submitted_at, started_at = float(fields["submitted_at"]), number("started_at")
    provenance = Provenance.model_validate_json(fields["provenance"]) if "provenance" in fields else None
    if provenance is not None and started_at is not None and not request.task:  # of its last attempt
        waited = max(0.0, round(started_at - submitted_at, 6))
        provenance = provenance.model_copy(update={"queue_seconds": waited, "coalesced": "coalesced" in fields})
    return JobRecord(
        request=request,
        state=State(fields["state"]),
        attempt=int(fields["attempt"]),
        submitted_at=submitted_at,
        started_at=started_at,
        ended_at=number("ended_at"),
        progress=number("progress"),
        result=fields.get("result"),
        result_expires_at=number("result_expires_at"),
        erased="erased" in fields,
        strikes=int(fields.get("strikes", 0)),
        dead="dead" in fields,
        error=Failed.model_validate_json(fields["error"]) if "error" in fields else None,
        provenance=provenance,
        step=int(fields["step"]) if "step" in fields else None,
        pausing="pausing" in fields,
        claim=fields.get("claim", ""),
    )
