"""Routes of the queue as a whole, for administrators: what waits and runs, and a pause of all workers."""

from collections.abc import Callable, Sequence

from fastapi import APIRouter

from warpdesk_server.app.access.audit import Admin, Audited
from warpdesk_server.app.jobs import schemas
from warpdesk_server.app.kit import errors
from warpdesk_server.app.kit.schemas import moment
from warpdesk_server.app.services import Services, ServicesDep
from warpdesk_server.workers.queue.jobs import JobQueue
from warpdesk_server.workers.queue.records import JobRecord

router = APIRouter(tags=["administration"], route_class=Audited)

_CALLER = ("unauthorized", "missing-scope", "foreign-host", "audit-unavailable", "queue-unavailable")
_OLDEST = 5  # jobs that are told one by one


@router.get(
    "/v1/queue",
    summary="See what waits and runs, of all keys",
    response_model=schemas.QueueState,
    responses=errors.documented(*_CALLER),
)
async def get_queue(_: Admin, services: ServicesDep) -> schemas.QueueState:
    return await _state(services)


@router.post(
    "/v1/queue/pause",
    summary="Have no worker take a job",
    response_model=schemas.QueueState,
    responses=errors.documented(*_CALLER),
)
async def pause_queue(_: Admin, services: ServicesDep) -> schemas.QueueState:
    """What runs goes on to its end, and jobs are still taken and wait. So a service is drained: once `running` is 0."""
    return await _state(services, lambda jobs: jobs.suspend(suspended=True))


@router.post(
    "/v1/queue/resume",
    summary="Have workers take jobs again",
    response_model=schemas.QueueState,
    responses=errors.documented(*_CALLER),
)
async def resume_queue(_: Admin, services: ServicesDep) -> schemas.QueueState:
    return await _state(services, lambda jobs: jobs.suspend(suspended=False))


async def _state(services: Services, change: Callable[[JobQueue], None] = lambda _: None) -> schemas.QueueState:
    def read(jobs: JobQueue) -> schemas.QueueState:
        change(jobs)
        lanes, dead = jobs.queues()
        waiting = jobs.waiting_by_owner()
        return schemas.QueueState(
            paused=jobs.suspended(),
            lanes=[
                schemas.QueueLane(
                    priority=priority,
                    queued=lane.queued,
                    running=lane.running,
                    delayed=lane.delayed,
                    oldest_at=moment(lane.oldest),
                    queued_by_key=waiting.get(priority, {}),
                )
                for priority, lane in lanes.items()
            ],
            oldest=_oldest(jobs.oldest(_OLDEST)),
            paused_tasks=jobs.paused(),
            dead_letters=dead,
            workers=len(jobs.workers()),
        )

    return await services.queue(read)


def _oldest(records: Sequence[JobRecord]) -> list[schemas.WaitingJob]:
    found = []
    for record in records:
        submitted_at = moment(record.submitted_at)
        assert submitted_at is not None  # noqa: S101
        request = record.request
        found.append(
            schemas.WaitingJob(
                id=request.id,
                owner=request.owner,
                operation=request.operation,
                priority=request.priority,
                backend=request.backend,
                submitted_at=submitted_at,
            )
        )
    return found
