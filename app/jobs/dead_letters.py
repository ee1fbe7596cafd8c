"""Admin routes of dead letters: jobs of all keys that were given up. An operator lists them and runs them again."""

import re
from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Query, Response

from warpdesk import models
from warpdesk_server.app.access.audit import Admin, Audited
from warpdesk_server.app.jobs import schemas
from warpdesk_server.app.jobs.records import hides_times, pending, whole_second
from warpdesk_server.app.kit import errors
from warpdesk_server.app.kit.errors import Refusal
from warpdesk_server.app.kit.schemas import moment
from warpdesk_server.app.services import Services, ServicesDep
from warpdesk_server.workers.queue.jobs import JobQueue
from warpdesk_server.workers.queue.records import InputsGone, JobRecord

router = APIRouter(tags=["dead letters"], route_class=Audited)

_CALLER = ("unauthorized", "missing-scope", "foreign-host", "audit-unavailable", "queue-unavailable")


@router.get(
    "/v1/dead-letters",
    summary="List the jobs that were given up, the latest first",
    response_model=schemas.DeadLetterPage,
    responses=errors.documented(*_CALLER, "invalid-request"),
)
async def list_dead_letters(
    _: Admin,
    services: ServicesDep,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[str | None, Query(description="From `next` of the page before", pattern=schemas.JOB_ID)] = None,
) -> Response:
    """A job is given up after it ended its worker three times, or after ten workers were lost before it was done.

    Its owner sees a failed job with the error `worker-died`. Its inputs are kept, unless they are private.
    """
    found = list(await services.queue(lambda jobs: jobs.dead_letters(limit + 1, cursor)))
    more = len(found) > limit
    page = schemas.DeadLetterPage(
        dead_letters=[_view(services, record) for record in found[:limit]],
        next=f"/v1/dead-letters?limit={limit}&cursor={found[limit - 1].request.id}" if more else None,
    )
    headers = {"Link": f'<{page.next}>; rel="next"'} if page.next else {}
    return Response(page.model_dump_json(), 200, headers, "application/json")


@router.post(
    "/v1/dead-letters/{job_id}/rerun",
    summary="Run a job again that was given up",
    status_code=202,
    response_model=models.Job,
    responses={
        202: {
            "description": "Queued again, under the same id",
            "headers": {
                "Location": {"description": "The job, for its owner", "schema": {"type": "string"}},
                "Retry-After": {"description": "Seconds to wait", "schema": {"type": "integer"}},
            },
        },
        **errors.documented(*_CALLER, "unknown-job", "not-a-dead-letter", "inputs-gone"),
    },
)
async def rerun_dead_letter(job_id: str, _: Admin, services: ServicesDep) -> Response:
    """The job is queued again, first among its owner's jobs, without strikes and without a deadline."""

    def again(jobs: JobQueue) -> JobRecord:
        record = jobs.get(job_id) if re.fullmatch(schemas.JOB_ID, job_id) else None
        if record is None:
            raise Refusal("unknown-job", f"There is no job {job_id[:80]!r}")
        _require_inputs(services, record)
        try:
            if not jobs.rerun(job_id):
                raise Refusal("not-a-dead-letter", f"The job is {record.state.value}, and was not given up")
        except InputsGone as gone:
            raise _gone(gone.arrays) from None
        return jobs.get(job_id) or record

    return pending(services, await services.queue(again), None, {})


def _require_inputs(services: Services, record: JobRecord) -> None:
    if not record.dead:
        return
    owner, inputs = record.request.owner, record.request.stored_inputs
    gone = [array_id for array_id in inputs if not services.store.path(owner, array_id).exists()]
    if gone:
        raise _gone(gone)


def _gone(arrays: Sequence[str]) -> Refusal:
    return Refusal("inputs-gone", f"Inputs of the job were deleted: {', '.join(arrays)}")


def _view(services: Services, record: JobRecord) -> schemas.DeadLetter:
    request, error, ended_at = record.request, record.error, record.ended_at
    submitted_at = moment(record.submitted_at)
    assert submitted_at is not None  # noqa: S101
    return schemas.DeadLetter(
        id=request.id,
        owner=request.owner,
        operation=request.operation,
        backend=request.backend,
        priority=request.priority,
        attempt=record.attempt,
        strikes=record.strikes,
        submitted_at=submitted_at,
        ended_at=moment(whole_second(ended_at) if hides_times(services, request.operation) else ended_at),
        error=None if error is None else models.JobError(**error.model_dump(exclude={"kind"})),
    )
