"""Routes of existing jobs: get and wait for one, cancel, erase and list."""

from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import urlencode

import anyio.to_thread
import pydantic_core
from fastapi import APIRouter, Query, Request, Response
from pydantic import AwareDatetime

from warpdesk import models
from warpdesk.models import State
from warpdesk_server.app.access import audit, auth
from warpdesk_server.app.access.auth import Canceler, Reader
from warpdesk_server.app.access.keys import Key
from warpdesk_server.app.http import bodies
from warpdesk_server.app.http.direct import DirectRoute
from warpdesk_server.app.http.observe import after_private
from warpdesk_server.app.jobs import results, schemas
from warpdesk_server.app.jobs.completions import Watch
from warpdesk_server.app.jobs.records import answer, own_job, pending, require_own, view
from warpdesk_server.app.kit import errors
from warpdesk_server.app.kit.errors import Refusal
from warpdesk_server.app.services import Services, ServicesDep
from warpdesk_server.workers.queue.jobs import JobQueue
from warpdesk_server.workers.queue.records import JobFilter, JobRecord

router = APIRouter(tags=["jobs"], route_class=DirectRoute)

CALLER = ("unauthorized", "missing-scope", "foreign-host", "queue-unavailable")
PREFER: dict[str, Any] = {
    "parameters": [
        {
            "name": "Prefer",
            "in": "header",
            "description": "`wait=N`: answer when the job is done or after N seconds, at most 55 (RFC 7240); "
            "an invalid value is ignored",
            "schema": {"type": "string"},
            "example": "wait=10",
        }
    ]
}
APPLIED = {"Preference-Applied": {"description": "The wait that was granted", "schema": {"type": "string"}}}
NOT_DONE: dict[str, Any] = {
    "model": models.Job,
    "description": "Accepted; not done yet",
    "headers": {
        "Location": {"description": "The job", "schema": {"type": "string"}},
        "Retry-After": {"description": "Seconds to wait", "schema": {"type": "integer"}},
        **APPLIED,
    },
}


async def until_done(
    services: Services, request: Request, caller: Key, watch: Watch, record: JobRecord, wait: int
) -> JobRecord:
    """Wait in a request for the caller's job, and return its record once it is done or the wait is over."""
    (ended,) = await services.completions.until_done([watch], wait, bodies.until_gone(request.receive))
    found = ended or record
    after_private.set(record.request.private)  # the duration of a refusal reveals the job's too
    auth.require_still(request)
    return require_own(found, caller, watch.job_id)


async def waited(
    services: Services, record: JobRecord, wait: int, headers: Mapping[str, str], *, with_request: bool = False
) -> Response:
    """The response after a wait: 200 with the job and its result if it is done, else 202."""
    applied = {"Preference-Applied": f"wait={wait}", **headers}
    after_private.set(record.request.private)
    if not record.state.final:
        return pending(services, record, None, applied, with_request=with_request)
    if record.state is not State.SUCCEEDED:
        return answer(services, record, 200, None, applied, with_request=with_request)

    def whole(result: dict[str, Any] | None) -> bytes:
        job = view(services, record, with_request=with_request)
        return pydantic_core.to_json({**job.model_dump(mode="json"), "result": result})

    try:
        content = await results.written(services, record, whole)
    except Refusal:  # erased meanwhile
        content = whole(None)
    return Response(content, 200, applied, "application/json")


@router.get(
    "/v1/jobs/{job_id}",
    summary="See where a job is",
    response_model=models.Job,
    responses={
        200: {"headers": APPLIED},
        202: {**NOT_DONE, "description": "With `Prefer: wait` only: still not done"},
        **errors.documented(*CALLER, "unknown-job", "share-used-up", "busy"),
    },
    openapi_extra=PREFER,
)
async def get_job(job_id: str, request: Request, caller: Reader, services: ServicesDep) -> Response:
    """The job with its `status`: 200 in every state, also if it failed. With `Prefer: wait=N`, 202 while not done."""
    wait = bodies.preferred_wait(request, services.settings.max_wait)
    if wait is None:
        record = await own_job(services, caller, job_id)
        position = None
        if record.state is State.QUEUED:
            position = await services.queue(lambda jobs: jobs.position(job_id))
        return answer(services, record, 200, position, {}, with_request=True)
    with services.waits.take(caller.id), services.completions.watch(job_id, auth.still(request)) as watch:
        record = await own_job(services, caller, job_id)
        if not record.state.final:
            record = await until_done(services, request, caller, watch, record, wait)
    return await waited(services, record, wait, {}, with_request=True)


@router.post(
    "/v1/jobs/{job_id}/cancel",
    summary="Cancel a job",
    response_model=models.Job,
    responses=errors.documented(*CALLER, "unknown-job"),
)
async def cancel_job(job_id: str, caller: Canceler, services: ServicesDep) -> Response:
    """A queued job is removed, a running one is stopped. A job that is done does not change, as `status` shows."""
    await own_job(services, caller, job_id)
    await services.queue(lambda jobs: jobs.cancel(job_id))
    return answer(services, await own_job(services, caller, job_id), 200, None, {})


@router.delete(
    "/v1/jobs/{job_id}",
    summary="Erase a job",
    status_code=204,
    response_class=Response,
    responses={204: {"description": "Erased"}, **errors.documented(*CALLER, "unknown-job")},
)
async def erase_job(job_id: str, caller: Canceler, services: ServicesDep) -> Response:
    """Cancel the job if it is live, then delete its result and the inputs that no other live job of the key reads."""
    record = await own_job(services, caller, job_id)
    outputs = await anyio.to_thread.run_sync(results.adopted, services, record)

    def forget(jobs: JobQueue) -> str | None:
        name, inputs = jobs.erase(job_id)
        for array in (*inputs, *outputs):
            services.delete_unread(caller.id, array)
        return name

    def delete() -> None:
        if name is not None and results.is_of(services, name, caller.id):
            services.store.delete_result(name)
        services.store.ended({job_id: None})

    name = await services.queue(forget)
    await anyio.to_thread.run_sync(delete)
    return Response(status_code=204)


@router.get(
    "/v1/jobs",
    summary="List jobs, newest first",
    response_model=models.JobPage,
    responses=errors.documented(*CALLER, "invalid-request", "audit-unavailable"),
)
async def list_jobs(
    request: Request,
    caller: Reader,
    services: ServicesDep,
    status: Annotated[list[State] | None, Query(description="Jobs in this state alone; may be given again")] = None,
    operation: Annotated[str | None, Query(max_length=64, description="Jobs of this operation alone")] = None,
    since: Annotated[AwareDatetime | None, Query(description="Submitted at this time or later")] = None,
    until: Annotated[AwareDatetime | None, Query(description="Submitted before this time")] = None,
    owner: Annotated[str | None, Query(max_length=40, description="Id of another API key: scope `admin`")] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[str | None, Query(description="From `next` of the page before", pattern=schemas.JOB_ID)] = None,
) -> Response:
    """Your own, or as an administrator those of another key, which the audit log notes.

    At most 2,000 jobs are looked at for one page. So a page may hold fewer than `limit`, or none, and have a `next`.
    """
    if owner is not None and owner != caller.id:
        auth.require(caller, "admin", "To list another key's jobs")
        await audit.begin(request, caller, owner)
    wanted = JobFilter(
        frozenset(status or ()), operation, *(None if at is None else at.timestamp() for at in (since, until))
    )
    found, last = await services.queue(lambda queue: queue.jobs(owner or caller.id, limit, cursor, wanted))
    query = [(name, value) for name, value in request.query_params.multi_items() if name != "cursor"]
    page = models.JobPage(
        jobs=[view(services, record) for record in found],
        next=None if last is None else f"/v1/jobs?{urlencode([*query, ('cursor', last)])}",
    )
    headers = {"Link": f'<{page.next}>; rel="next"'} if page.next else {}
    return Response(page.model_dump_json(), 200, headers, "application/json")
