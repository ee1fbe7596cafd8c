"""The route that submits a bundle: several jobs in one request, all or none, answered with all of them."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress

import anyio.to_thread
import pydantic_core
from fastapi import APIRouter, Request, Response

from warpdesk import models
from warpdesk.arrays import as_json
from warpdesk.models import State
from warpdesk_server.app.access import auth
from warpdesk_server.app.access.auth import Submitter
from warpdesk_server.app.access.keys import LOCAL, Key
from warpdesk_server.app.http import bodies
from warpdesk_server.app.http.direct import DirectRoute
from warpdesk_server.app.jobs import idempotency, operations, results, schemas
from warpdesk_server.app.jobs.bundle_placement import place_bundle
from warpdesk_server.app.jobs.completions import Watch
from warpdesk_server.app.jobs.endpoints import APPLIED, CALLER, PREFER
from warpdesk_server.app.jobs.records import require_own, view
from warpdesk_server.app.jobs.submission import HEADERS, IDEMPOTENCY, new_job_id
from warpdesk_server.app.kit import durability, errors, limits
from warpdesk_server.app.kit.errors import Refusal, refuse_at
from warpdesk_server.app.services import Services, ServicesDep
from warpdesk_server.workers.queue.records import IdempotencyKey, JobRecord

router = APIRouter(tags=["jobs"], route_class=DirectRoute)

_PREFER = {
    **PREFER["parameters"][0],
    "description": "`wait=N`: answer when all jobs are done or after N seconds, at most 55 (RFC 7240). "
    "`arrays=base64`: outputs that are arrays come as {dtype, shape, base64} instead of lists",
    "example": "wait=10",
}


@router.post(
    "/v1/jobs/batch",
    summary="Submit several jobs, all or none",
    status_code=202,
    response_model=models.JobBundle,
    responses={
        200: {
            "model": models.JobBundle,
            "description": "All are done within `Prefer: wait`",
            "headers": {**APPLIED, **HEADERS},
        },
        202: {
            "model": models.JobBundle,
            "description": "Accepted; not all are done yet",
            "headers": {
                "Retry-After": {"description": "Seconds to wait", "schema": {"type": "integer"}},
                **APPLIED,
                **HEADERS,
            },
        },
        **errors.documented(
            *CALLER, "malformed-json", "duplicate-key", "invalid-idempotency-key", "disconnected", "unknown-job",
            "body-too-large", "unsupported-media-type", "invalid-request", "unknown-operation",
            "idempotency-key-reused", "job-too-large", "rate-limited", "share-used-up", "quota-reached",
            "storage-quota", "storage-full", "no-gpu-worker", "busy", "queue-full", "queue-memory",
            "deadline-unreachable",
        ),
    },
    openapi_extra={"parameters": [_PREFER, IDEMPOTENCY]},
)  # fmt: skip
async def submit_bundle(request: Request, caller: Submitter, services: ServicesDep) -> Response:
    """All jobs are checked before any is queued, and they are queued in one step: what is wrong with one of them is a
    422 with its place, such as `/jobs/17/params/period`, and nothing was done.

    The body is `{"jobs": [...]}` with 1 to 1,000 bodies of `POST /v1/jobs`. Quotas count all jobs. Jobs that charge a
    budget or are confidential are submitted by themselves. With an `Idempotency-Key` the bundle is queued once. With
    `Prefer: wait=N` it is answered when all are done, with their results as far as 8 MiB hold them; the `result` of
    the others is null, and is at its link.
    """
    idempotency_key = idempotency.key_of(request)
    services.submission_rate.take(caller.id)
    services.require_redis()
    wait = bodies.preferred_wait(request, services.settings.max_wait) if caller.allows("read") else None
    still = auth.still(request)
    with ExitStack() as watching:

        def watched(job_ids: Sequence[str]) -> list[Watch]:
            if wait is None:
                return []
            return [watching.enter_context(services.completions.watch(job_id, still)) for job_id in job_ids]

        records, watches, headers = await _queued(services, request, caller, idempotency_key, watched)
        if wait is not None:
            headers["Preference-Applied"] = f"wait={wait}"
            records = await _until_done(services, request, caller, watches, records, wait)
    return await _answer(services, request, caller, records, headers)


async def _queued(
    services: Services,
    request: Request,
    caller: Key,
    idempotency_key: str | None,
    watched: Callable[[Sequence[str]], list[Watch]],
) -> tuple[Sequence[JobRecord], list[Watch], dict[str, str]]:
    """The records of a bundle's jobs, which are in the queue, with their watches, begun before they were queued."""
    name = idempotency_key and idempotency.digest(services, caller.id, "idempotency-key", idempotency_key)
    headers: dict[str, str] = {durability.HEADER: services.admission.durability}
    with services.bundles.take(caller.id):
        earlier = None
        if name is None or name not in services.idempotency:  # else it waits below for a request with the same key
            earlier = None if name is None else await services.queue(lambda jobs: jobs.replay(caller.id, name))
            if earlier is None:
                services.admission.admit(caller.id)
        jobs = await _read(request, services, caller)
        key = None if name is None else IdempotencyKey(name, await _fingerprint(services, caller.id, jobs))
        if earlier is None:
            job_ids = ids_from(new_job_id(), len(jobs))
            watches = watched(job_ids)
            async with services.idempotency.take(name or job_ids[0]) as flight:
                earlier = flight.outcome
                if earlier is None:
                    more = len(jobs) - 1 + sum(map(operations.sets_in, jobs))
                    services.submission_rate.take(caller.id, min(more, services.settings.submission_burst - 1))
                    enqueued, records = await place_bundle(services, caller, job_ids, jobs, key)
                    if key is not None:
                        flight.outcome = enqueued.job_id, key.fingerprint
                    if not enqueued.replayed:
                        return records, watches, headers
                    earlier = flight.outcome
    assert key is not None  # noqa: S101
    assert earlier is not None  # noqa: S101
    first, fingerprint = earlier
    if fingerprint != key.fingerprint:
        raise idempotency.reused(first)
    services.metrics.replayed()
    job_ids = ids_from(first, len(jobs))
    watches = watched(job_ids)
    records = await _own_jobs(services, caller, job_ids)
    return records, watches, {**headers, "Idempotent-Replayed": "true"}


async def _read(request: Request, services: Services, caller: Key) -> Sequence[object]:
    """The jobs of a bundle's body, of which only the number is checked yet."""
    settings = services.settings
    body = await bodies.read_json(request, settings.max_body, bodies.parse, keys=limits.JSON_KEYS_OF_A_BUNDLE)
    jobs = bodies.fitted(schemas.Bundle, body).jobs
    in_queue = settings.max_queue if caller.id == LOCAL else settings.max_queue // 2  # `Bounds.shared`
    most = min(settings.submission_burst, settings.max_live_jobs, in_queue)
    if len(jobs) > most:  # it would be refused for ever
        sentence = f"there are {len(jobs)} jobs; by this service's limits a key may submit {most} at once"
        raise refuse_at("invalid-request", "/jobs", sentence)
    operations.require_few_sets(sum(map(operations.sets_in, jobs)), "/jobs")
    return jobs


async def _fingerprint(services: Services, owner: str, jobs: Sequence[object]) -> str:
    """The digest of a bundle's body: equal for equal jobs in the same order."""

    def digest() -> str:
        text = "\n".join(idempotency.identity(services.operations, job) for job in jobs)
        return idempotency.digest(services, owner, "bundle", text)

    return await anyio.to_thread.run_sync(digest)


async def _own_jobs(services: Services, caller: Key, job_ids: Sequence[str]) -> list[JobRecord]:
    """The records of the jobs that a bundle made before. An API key without the scope read is told that they are
    queued."""
    found = await services.queue(lambda jobs: jobs.records(job_ids))
    records = [require_own(record, caller, job_id) for record, job_id in zip(found, job_ids, strict=True)]
    if caller.allows("read"):
        return records
    return [JobRecord(record.request, State.QUEUED, 0, record.submitted_at) for record in records]


async def _until_done(
    services: Services,
    request: Request,
    caller: Key,
    watches: Sequence[Watch],
    records: Sequence[JobRecord],
    wait: int,
) -> Sequence[JobRecord]:
    """The records of a bundle's jobs once all are done, or the wait is over. It is one wait of the API key; if that
    has as many as it may, the records come at once."""
    for watch, record in zip(watches, records, strict=True):
        if record.state.final:
            watch.record = record
            watch.woken.set()
    try:
        share = services.waits.take(caller.id)
    except Refusal:
        return records
    with share:
        found = await services.completions.until_done(watches, wait, bodies.until_gone(request.receive))
    auth.require_still(request)
    return [
        require_own(now or before, caller, watch.job_id)
        for watch, now, before in zip(watches, found, records, strict=True)
    ]


async def _answer(
    services: Services, request: Request, caller: Key, records: Sequence[JobRecord], headers: dict[str, str]
) -> Response:
    """The response to a bundle: 200 with the jobs and their results if all were waited for and are done, else 202."""
    done = "Preference-Applied" in headers and all(record.state.final for record in records)
    if not done:
        headers["Retry-After"] = services.admission.retry_after(records[-1].request, queued=True)
    room = services.buffers.take(caller.id, 0)
    request.state.shares.append(room)  # until the answer is sent
    array = results.in_base64 if bodies.preference(request, "arrays") == "base64" else as_json

    def written() -> bytes:
        left = limits.RESULTS_OF_A_BUNDLE if done else 0
        jobs = list[bytes]()
        for record in records:
            result = b"null"
            if left > 0 and record.state is State.SUCCEEDED:
                with suppress(Refusal):  # erased meanwhile
                    result = pydantic_core.to_json(results.rendered(services, record, array=array))
            if len(result) > left or not room.fits(len(result)):
                result, left = b"null", 0  # those that follow too, so that it can be told where results end
            left -= len(result)
            job = view(services, record).model_dump_json(exclude={"result"}).encode()
            jobs.append(job[:-1] + b',"result":' + result + b"}")
        return b'{"jobs":[' + b",".join(jobs) + b"]}"

    content = await anyio.to_thread.run_sync(written)
    return Response(content, 200 if done else 202, headers, "application/json")


def ids_from(first: str, count: int) -> list[str]:
    """The ids of a bundle's jobs: the first one without its last ten bits, and those that follow.

    So the Idempotency-Key has to name the first alone, as that of a single job does, and a list of jobs has them in
    order. Fifty-two bits are still random.
    """
    number = int(first.removeprefix("job_"), 16) & ~1023
    return [f"job_{number + place:032x}" for place in range(count)]
