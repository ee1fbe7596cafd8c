"""Routes of tasks: pause and resume one, and what it has reported of its steps."""

from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Query, Response

from warpdesk import models
from warpdesk_server.app.access.auth import Canceler, Reader
from warpdesk_server.app.access.keys import Key
from warpdesk_server.app.http.direct import DirectRoute
from warpdesk_server.app.jobs.endpoints import CALLER
from warpdesk_server.app.jobs.records import answer, own_job
from warpdesk_server.app.kit import errors
from warpdesk_server.app.kit.errors import Refusal
from warpdesk_server.app.services import Services, ServicesDep
from warpdesk_server.workers.queue.records import JobRecord

router = APIRouter(tags=["jobs"], route_class=DirectRoute)

MOST_STEPS = 1000  # in one answer


@router.post(
    "/v1/jobs/{job_id}/pause",
    summary="Pause a task",
    response_model=models.Job,
    responses=errors.documented(*CALLER, "unknown-job", "not-a-task"),
)
async def pause_job(job_id: str, caller: Canceler, services: ServicesDep) -> Response:
    """A task that waits is `paused` at once. One that runs stops after a step, keeps its state, and is `paused` then.

    A task that is done does not change, as `status` shows.
    """
    await _own_task(services, caller, job_id)
    await services.queue(lambda jobs: jobs.pause(job_id))
    return answer(services, await own_job(services, caller, job_id), 200, None, {})


@router.post(
    "/v1/jobs/{job_id}/resume",
    summary="Resume a paused task",
    response_model=models.Job,
    responses=errors.documented(*CALLER, "unknown-job", "not-a-task"),
)
async def resume_job(job_id: str, caller: Canceler, services: ServicesDep) -> Response:
    """The task is queued again, and goes on from its latest checkpoint. One that is not paused does not change."""
    await _own_task(services, caller, job_id)
    await services.queue(lambda jobs: jobs.resume(job_id))
    return answer(services, await own_job(services, caller, job_id), 200, None, {})


@router.get(
    "/v1/jobs/{job_id}/progress",
    summary="See what a task has reported of its steps",
    response_model=models.TaskProgress,
    responses=errors.documented(*CALLER, "unknown-job", "not-a-task", "invalid-request"),
)
async def get_progress(
    job_id: str,
    caller: Reader,
    services: ServicesDep,
    after: Annotated[int, Query(ge=0, le=10**15 - 1, description="A step; those that follow are told")] = 0,
    limit: Annotated[int, Query(ge=1, le=MOST_STEPS)] = MOST_STEPS,
) -> Response:
    """The numbers that a task reported by step, oldest first: at most one a second, and later one in a thousandth of
    the time so far."""
    record = await _own_task(services, caller, job_id)
    found = await services.queue(lambda jobs: jobs.reported_steps(job_id, after, limit + 1))
    steps = [
        models.TaskStep(step=step.step, at=datetime.fromtimestamp(step.at, UTC), values=step.values)
        for step in found[:limit]
    ]
    more = len(found) > limit
    page = models.TaskProgress(
        job=job_id,
        done=record.progress,
        checkpoint=record.step,
        steps=steps,
        next=f"/v1/jobs/{job_id}/progress?after={steps[-1].step}&limit={limit}" if more else None,
    )
    return Response(page.model_dump_json(), media_type="application/json")


async def _own_task(services: Services, caller: Key, job_id: str) -> JobRecord:
    """The record of one of the caller's tasks, for a route. Refuses other jobs."""
    record = await own_job(services, caller, job_id)
    if not record.request.task:
        raise Refusal("not-a-task", f"{job_id} computes {record.request.operation}, which has no steps")
    return record
