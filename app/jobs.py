"""Submit, watch, cancel, erase and list jobs."""

import secrets
import threading
import time
from typing import Annotated

import anyio.to_thread
import pydantic_core
from fastapi import APIRouter, Query, Request, Response

from app import bodies, errors, results, schemas
from app.auth import Canceler, Key, Reader, Submitter
from app.errors import Refusal
from app.operations import Checked, check, keep_inputs
from app.records import answer, own_job, pending, positioned, view
from app.shared import Desk, Shared
from workers.protocol import BackendWish, JobRequest, State
from workers.queue import JobQueue, JobRecord

router = APIRouter(tags=["jobs"])

_CALLER = ("unauthorized", "missing-scope", "foreign-host", "queue-unavailable")
_PREFER = {
    "parameters": [
        {
            "name": "Prefer",
            "in": "header",
            "description": "`wait=N`: answer when the job is done or after N seconds, at most 55 (RFC 7240); "
            "what makes no sense is ignored",
            "schema": {"type": "string"},
            "example": "wait=10",
        }
    ]
}
_APPLIED = {"Preference-Applied": {"description": "The wait that was granted", "schema": {"type": "string"}}}
_NOT_DONE = {
    "model": schemas.Job,
    "description": "Accepted; not done yet",
    "headers": {
        "Location": {"description": "The job", "schema": {"type": "string"}},
        "Retry-After": {"description": "Seconds to wait", "schema": {"type": "integer"}},
        **_APPLIED,
    },
}


@router.post(
    "/v1/jobs",
    summary="Submit a job",
    status_code=202,
    response_model=schemas.Job,
    responses={
        200: {"model": schemas.Job, "description": "Done within `Prefer: wait`", "headers": _APPLIED},
        202: _NOT_DONE,
        **errors.documented(
            *_CALLER, "malformed-json", "duplicate-key", "disconnected", "body-too-large", "unsupported-media-type",
            "invalid-request", "unknown-operation", "job-too-large", "storage-full", "no-gpu-worker", "queue-full",
            "rate-limited",
        ),
    },
    openapi_extra=_PREFER,
)  # fmt: skip
async def submit(request: Request, caller: Submitter, desk: Shared) -> Response:
    """Everything is checked before anything is queued. With `Prefer: wait=N` a quick answer comes at once."""
    desk.limits.take(caller.id)
    body = await bodies.read_json(request, desk.settings.max_body)
    wait = bodies.preferred_wait(request, desk.settings.max_wait) if caller.allows("read") else None
    checked = await anyio.to_thread.run_sync(check, desk, caller.id, body)
    inputs = checked.stored
    if checked.inline:  # looked at before anything is written, and again when it is enqueued
        await desk.queue(lambda jobs: _require_room(desk, jobs, checked.submission.backend))
        inputs = await anyio.to_thread.run_sync(keep_inputs, desk, caller.id, checked)
    job = _request(desk, caller, checked, inputs)
    with desk.completions.watch(job.id) as watch:
        record, position = await _enqueue(desk, job, positioned_too=wait is None)
        desk.metrics.submitted(job.operation)
        if wait is None:
            return pending(desk, record, position, {})
        record = await desk.completions.until_done(watch, job.id, wait) or record
    return await _waited(desk, record, wait)


def _request(desk: Desk, caller: Key, checked: Checked, inputs: dict[str, str]) -> JobRequest:
    settings, submission = desk.settings, checked.submission
    deadline_s = submission.deadline_s
    return JobRequest(
        id=new_job_id(),
        owner=caller.id,
        operation=checked.operation.name,
        params=submission.params,
        inputs=inputs,
        backend=submission.backend,
        priority=submission.priority,
        seed=checked.seed,
        deadline=None if deadline_s is None else time.time() + deadline_s,
        timeout=settings.job_timeout,
        work=checked.steps,
        result_ttl=submission.result_ttl_s or settings.result_ttl,
    )


async def _enqueue(desk: Desk, job: JobRequest, *, positioned_too: bool) -> tuple[JobRecord, int | None]:
    given_up = threading.Event()

    def enqueue(jobs: JobQueue) -> tuple[JobRecord, int | None]:
        _require_room(desk, jobs, job.backend)
        if given_up.is_set():
            return fresh, None
        jobs.enqueue(job)
        if given_up.is_set():
            jobs.cancel(job.id)  # its caller was told 503
        return positioned(jobs, jobs.get(job.id) or fresh) if positioned_too else (fresh, None)

    fresh = JobRecord(job, State.QUEUED, 0, time.time())
    try:
        return await desk.queue(enqueue)
    except BaseException:
        given_up.set()
        raise


def _require_room(desk: Desk, jobs: JobQueue, backend: BackendWish) -> None:
    length = jobs.length()
    if length >= desk.settings.max_queue:
        wait = desk.metrics.drain_seconds(length - desk.settings.max_queue + 1)
        sentence = f"{length} jobs are waiting; the limit is {desk.settings.max_queue}"
        raise Refusal("queue-full", sentence, headers={"Retry-After": str(wait)})
    if backend == "gpu":
        _require_gpu(jobs)


def _require_gpu(jobs: JobQueue) -> None:
    workers = jobs.workers()
    if any(worker.device is not None and worker.device.backend == "gpu" for worker in workers):
        return
    reasons = sorted({worker.device.reason for worker in workers if worker.device and worker.device.reason})
    why = f": {'; '.join(reasons)}" if reasons else ""
    sentence = f"The job asks for a GPU; of {len(workers)} live workers none has one{why}"
    raise Refusal("no-gpu-worker", sentence, headers={"Retry-After": "30"})


async def _waited(desk: Desk, record: JobRecord, wait: int) -> Response:
    """200 with the job and its result if it is done, else 202."""
    applied = {"Preference-Applied": f"wait={wait}"}
    if not record.state.final:
        return pending(desk, record, None, applied)
    if record.state is not State.SUCCEEDED:
        return answer(desk, record, 200, None, applied)

    def whole() -> bytes:
        try:
            result = results.render(desk, record)
        except Refusal:  # erased meanwhile
            result = None
        return pydantic_core.to_json({**view(desk, record).model_dump(mode="json"), "result": result})

    return Response(await anyio.to_thread.run_sync(whole), 200, applied, "application/json")


@router.get(
    "/v1/jobs/{job_id}",
    summary="See where a job is",
    response_model=schemas.Job,
    responses={
        200: {"headers": _APPLIED},
        202: {**_NOT_DONE, "description": "With `Prefer: wait` only: still not done"},
        **errors.documented(*_CALLER, "unknown-job"),
    },
    openapi_extra=_PREFER,
)
async def job(job_id: str, request: Request, caller: Reader, desk: Shared) -> Response:
    """200 in every state, a failed job's included: `status` tells. With `Prefer: wait=N`, 202 while not done."""
    wait = bodies.preferred_wait(request, desk.settings.max_wait)
    if wait is None:
        record = await own_job(desk, caller, job_id)
        position = None
        if record.state is State.QUEUED:
            position = await desk.queue(lambda jobs: jobs.position(job_id))
        return answer(desk, record, 200, position, {})
    with desk.completions.watch(job_id) as watch:
        record = await own_job(desk, caller, job_id)
        if not record.state.final:
            record = await desk.completions.until_done(watch, job_id, wait) or record
    return await _waited(desk, record, wait)


@router.post(
    "/v1/jobs/{job_id}/cancel",
    summary="Cancel a job",
    response_model=schemas.Job,
    responses=errors.documented(*_CALLER, "unknown-job"),
)
async def cancel(job_id: str, caller: Canceler, desk: Shared) -> Response:
    """A queued job never runs, a running one is stopped. A job that is done stays as it is: `status` tells."""
    await own_job(desk, caller, job_id)
    await desk.queue(lambda jobs: jobs.cancel(job_id))
    return answer(desk, await own_job(desk, caller, job_id), 200, None, {})


@router.delete(
    "/v1/jobs/{job_id}",
    summary="Erase a job",
    status_code=204,
    response_class=Response,
    responses={204: {"description": "Erased"}, **errors.documented(*_CALLER, "unknown-job")},
)
async def erase(job_id: str, caller: Canceler, desk: Shared) -> Response:
    """Cancel it if it is live, then delete its result and the inputs that no other live job of the key reads."""
    record = await own_job(desk, caller, job_id)
    outputs = await anyio.to_thread.run_sync(results.adopted, desk, record)

    def forget(jobs: JobQueue) -> tuple[str | None, list[str]]:
        name, inputs = jobs.erase(job_id)
        return name, [*inputs, *(array for array in outputs if not jobs.in_use(caller.id, array))]

    def delete() -> None:
        if name is not None:
            desk.store.delete_result(name)
        for array in unused:
            desk.store.delete(caller.id, array)

    name, unused = await desk.queue(forget)
    await anyio.to_thread.run_sync(delete)
    return Response(status_code=204)


@router.get(
    "/v1/jobs",
    summary="List your jobs, newest first",
    response_model=schemas.JobPage,
    responses=errors.documented(*_CALLER, "invalid-request"),
)
async def jobs(
    caller: Reader,
    desk: Shared,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[str | None, Query(description="From `next` of the page before", pattern=schemas.JOB_ID)] = None,
) -> Response:
    found = list(await desk.queue(lambda queue: queue.jobs(caller.id, limit + 1, cursor)))
    more = len(found) > limit
    page = schemas.JobPage(
        jobs=[view(desk, record) for record in found[:limit]],
        next=f"/v1/jobs?limit={limit}&cursor={found[limit - 1].request.id}" if more else None,
    )
    headers = {"Link": f'<{page.next}>; rel="next"'} if page.next else {}
    return Response(page.model_dump_json(), 200, headers, "application/json")


def new_job_id() -> str:
    """`job_` and a UUIDv7 (RFC 9562 section 5.7) whose 12 bits after the millisecond are its fraction (method 3), so
    that the ids of one process sort by time of submission."""
    nanoseconds = time.time_ns()
    milliseconds, rest = divmod(nanoseconds, 1_000_000)
    fraction = rest * 4096 // 1_000_000
    number = (milliseconds << 80) | (0x7 << 76) | (fraction << 64) | (0b10 << 62) | secrets.randbits(62)
    return f"job_{number:032x}"
