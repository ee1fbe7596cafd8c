"""The route that submits a job: it is admitted, queued once for each Idempotency-Key, and answered."""

import secrets
import time
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request, Response

from warpdesk import models
from warpdesk.models import State
from warpdesk_server.app.access import auth
from warpdesk_server.app.access.auth import Submitter
from warpdesk_server.app.access.keys import Key
from warpdesk_server.app.http import bodies
from warpdesk_server.app.http.direct import DirectRoute
from warpdesk_server.app.jobs import idempotency, operations
from warpdesk_server.app.jobs.completions import Watch
from warpdesk_server.app.jobs.endpoints import APPLIED, CALLER, NOT_DONE, PREFER, until_done, waited
from warpdesk_server.app.jobs.placement import Envelope, place
from warpdesk_server.app.jobs.records import own_job, pending
from warpdesk_server.app.kit import durability, errors
from warpdesk_server.app.kit.errors import Refusal
from warpdesk_server.app.services import Services, ServicesDep
from warpdesk_server.workers.queue.records import IdempotencyKey, JobRecord

router = APIRouter(tags=["jobs"], route_class=DirectRoute)

HEADERS = {
    **durability.DOCUMENTED,
    "Idempotent-Replayed": {
        "description": "`true`: the Idempotency-Key was sent before, and this is the job it made then",
        "schema": {"type": "string", "enum": ["true"]},
    },
}
IDEMPOTENCY = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "Any printable text. The same request with the same key is answered with the existing job, and "
    "never runs twice. The key is kept for a day, and for ever if a budget was charged",
    "schema": {"type": "string", "minLength": 1, "maxLength": idempotency.LONGEST_KEY},
    "example": "order-7731",
}


@router.post(
    "/v1/jobs",
    summary="Submit a job",
    status_code=202,
    response_model=models.Job,
    responses={
        200: {
            "model": models.Job,
            "description": "Done within `Prefer: wait`",
            "headers": {**APPLIED, **HEADERS},
        },
        202: {**NOT_DONE, "headers": {**NOT_DONE["headers"], **HEADERS}},
        **errors.documented(
            *CALLER, "malformed-json", "duplicate-key", "invalid-idempotency-key", "disconnected", "unknown-job",
            "body-too-large", "unsupported-media-type", "invalid-request", "unknown-operation",
            "idempotency-key-reused", "idempotency-key-required", "unknown-budget", "budget-exceeded", "budget-closed",
            "charge-forbidden",
            "not-accountable", "ledger-unavailable", "result-gone", "job-too-large", "rate-limited", "quota-reached",
            "storage-quota", "storage-full", "no-gpu-worker", "busy", "queue-full", "queue-memory",
            "deadline-unreachable",
        ),
    },
    openapi_extra={"parameters": [*PREFER["parameters"], IDEMPOTENCY]},
)  # fmt: skip
async def submit_job(request: Request, caller: Submitter, services: ServicesDep) -> Response:
    """The whole submission is checked before the job is queued. With `Prefer: wait=N` a quick job is answered at once.

    With an `Idempotency-Key` the job is queued once, however often and at however many servers the request arrives. The
    first request makes the job, and all are answered with its current state. With another body the key is refused.
    """
    idempotency_key = idempotency.key_of(request)
    services.submission_rate.take(caller.id)
    services.require_redis()
    services.admission.require_turn(caller.id)
    name = idempotency_key and idempotency.digest(services, caller.id, "idempotency-key", idempotency_key)
    earlier = None
    if name is None or name not in services.idempotency:  # else it waits below for a request with the same key
        earlier = None if name is None else await services.queue(lambda jobs: jobs.replay(caller.id, name))
        if earlier is None:
            services.admission.admit(caller.id)
    body = await operations.read(request, services)
    services.submission_rate.take(caller.id, min(operations.sets_in(body), services.settings.submission_burst - 1))
    wait = bodies.preferred_wait(request, services.settings.max_wait) if caller.allows("read") else None
    key = None
    if name is not None:
        key = IdempotencyKey(name, await idempotency.fingerprint(services, caller.id, request, body))
        if earlier is not None:
            return await _replayed(services, request, caller, key, earlier, wait)
    job_id = new_job_id()
    with services.completions.watch(job_id, auth.still(request)) as watch:
        async with services.idempotency.take(name or job_id) as flight:  # released before the wait for the job's end
            earlier = flight.outcome
            if earlier is None:
                envelope = Envelope.of(services, caller, job_id, body, key, idempotency_key)
                placed = await place(services, envelope, positioned_too=wait is None and caller.allows("read"))
                if key is not None:
                    flight.outcome = placed.job_id, key.fingerprint
                    earlier = flight.outcome if placed.replayed else None
        if key is not None and earlier is not None:
            return await _replayed(services, request, caller, key, earlier, wait)
        headers = {durability.HEADER: services.admission.durability}
        if wait is None:
            return pending(services, placed.record, placed.position, headers)
        return await _waited_for(services, request, caller, watch, placed.record, wait, headers)


async def submit_for(services: Services, owner: Key, name: str, body: Mapping[str, Any]) -> str:
    """Submit a job that the service itself makes for an owner, once for each `name`, and return the job's id.

    `name` does not clash with the owner's own Idempotency-Keys. Raises the same refusals as a submission over HTTP.
    """
    key = IdempotencyKey(
        idempotency.digest(services, owner.id, "service-key", name),
        idempotency.digest(services, owner.id, "submission", idempotency.identity(services.operations, body)),
    )
    envelope = Envelope.of(services, owner, new_job_id(), body, key, None)
    return (await place(services, envelope, positioned_too=False)).job_id


async def _replayed(
    services: Services, request: Request, caller: Key, key: IdempotencyKey, earlier: tuple[str, str], wait: int | None
) -> Response:
    """The response to a repeated submission of a job: the one that the Idempotency-Key has already made.

    An API key without the scope read is told only that the job is queued.
    """
    job_id, fingerprint = earlier
    if fingerprint != key.fingerprint:
        raise idempotency.reused(job_id)
    services.metrics.replayed()
    headers = {durability.HEADER: services.admission.durability, "Idempotent-Replayed": "true"}
    with services.completions.watch(job_id, auth.still(request)) as watch:
        record = await own_job(services, caller, job_id)
        if not caller.allows("read"):
            record = JobRecord(record.request, State.QUEUED, 0, record.submitted_at)
        if wait is None:
            return pending(services, record, None, headers)
        return await _waited_for(services, request, caller, watch, record, wait, headers)


async def _waited_for(
    services: Services,
    request: Request,
    caller: Key,
    watch: Watch,
    record: JobRecord,
    wait: int,
    headers: Mapping[str, str],
) -> Response:
    """The response to a submission with the job, once it is done or the wait is over.

    If the API key has as many waits as it may, the response comes at once. A 429 would deny that the job is queued, and
    a preference may be ignored (RFC 7240 section 2).
    """
    if not record.state.final:
        try:
            share = services.waits.take(caller.id)
        except Refusal:
            return pending(services, record, None, headers)
        with share:
            record = await until_done(services, request, caller, watch, record, wait)
    return await waited(services, record, wait, headers)


def new_job_id() -> str:
    """An id for a newly submitted job: `job_` and a UUIDv7 (RFC 9562 section 5.7).

    The 12 bits after the millisecond are its fraction (method 3), so the ids of one process sort by submission time.
    """
    nanoseconds = time.time_ns()
    milliseconds, rest = divmod(nanoseconds, 1_000_000)
    fraction = rest * 4096 // 1_000_000
    number = (milliseconds << 80) | (0x7 << 76) | (fraction << 64) | (0b10 << 62) | secrets.randbits(62)
    return f"job_{number:032x}"
