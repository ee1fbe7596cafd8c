"""Job records as their owner sees them: the JSON of a job, its provenance, and the 404 for everyone else."""

import math
import re
from collections.abc import Mapping
from typing import Any

from fastapi import Response

from warpdesk import models
from warpdesk_server.app.access.keys import LOCAL, Key
from warpdesk_server.app.jobs import schemas
from warpdesk_server.app.jobs.waiting import waiting_reason
from warpdesk_server.app.kit.errors import Refusal
from warpdesk_server.app.kit.schemas import moment
from warpdesk_server.app.services import Services
from warpdesk_server.workers.queue.jobs import JobQueue
from warpdesk_server.workers.queue.protocol import SOONER_ON_CPU, JobRequest
from warpdesk_server.workers.queue.records import JobRecord

_JOB_ID = re.compile(schemas.JOB_ID)


async def own_job(services: Services, caller: Key, job_id: str) -> JobRecord:
    """The record of one of the caller's jobs, for a route. Raises the same 404 for unknown, malformed and other
    callers' ids."""
    record = await services.queue(lambda jobs: jobs.get(job_id)) if _JOB_ID.fullmatch(job_id) else None
    return require_own(record, caller, job_id)


def require_own(record: JobRecord | None, caller: Key, job_id: str) -> JobRecord:
    if record is None or (record.request.id, record.request.owner) != (job_id, caller.id):
        raise Refusal("unknown-job", f"There is no job {job_id[:80]!r}")
    return record


def positioned(jobs: JobQueue, record: JobRecord) -> tuple[JobRecord, int | None]:
    """A job's record with its place in the queue, as the API shows it. Asks Redis: call it in a thread."""
    return record, None if record.state.final else jobs.position(record.request.id)


def view(
    services: Services, record: JobRecord, position: int | None = None, *, with_request: bool = False
) -> models.Job:
    """The `models.Job` of a record: what the API shows its owner, with parameters and inputs if they are wanted.

    The duration of a private operation reveals its noise (Jin et al., "Are We There Yet? Timing and Floating-Point
    Attacks on Differential Privacy Systems", 2022). So its start is left out, and its end is rounded to whole seconds.
    """
    request = record.request
    started_at, ended_at, expires_at = record.started_at, record.ended_at, record.result_expires_at
    if hides_times(services, request.operation):
        started_at, ended_at, expires_at = None, whole_second(ended_at), whole_second(expires_at)
    at = f"/v1/jobs/{request.id}"
    of_tasks = {name: f"{at}/{name}" for name in ("pause", "resume", "progress")} if request.task else {}
    error = record.error
    given = _given(services, record) if with_request else {}
    submitted_at = moment(record.submitted_at)
    assert submitted_at is not None  # noqa: S101
    return models.Job(
        id=request.id,
        operation=request.operation,
        status=record.state,
        backend=request.backend,
        priority=request.priority,
        seed=request.seed,
        attempt=record.attempt,
        queue_position=position,
        progress=record.progress,
        step=record.step,
        datasets=_datasets(services, record),
        shards=_shards(record),
        waiting_reason=_waiting_reason(services, record),
        submitted_at=submitted_at,
        started_at=moment(started_at),
        ended_at=moment(ended_at),
        deadline_at=moment(request.deadline),
        result_expires_at=moment(expires_at),
        erased=record.erased,
        error=None if error is None else models.JobError(**error.model_dump(exclude={"kind"})),
        provenance=provenance(record),
        request_id=request.request_id,
        links=models.Links(self=at, result=f"{at}/result", events=f"{at}/events", cancel=f"{at}/cancel", **of_tasks),
        **given,
    )


def _shows_request(services: Services, record: JobRecord) -> bool:
    """Whether the API shows what a job was sent with: not of an erased job or a confidential operation."""
    operation = services.operations.get(record.request.operation)
    return operation is not None and not operation.confidential and not record.erased


def _datasets(services: Services, record: JobRecord) -> dict[str, models.DatasetRead]:
    if not _shows_request(services, record):
        return {}
    return {name: models.DatasetRead(**source) for name, source in record.request.datasets.items()}


def _given(services: Services, record: JobRecord) -> dict[str, Any]:
    """The parameters and inputs of a job as the API shows them."""
    request = record.request
    if not _shows_request(services, record):
        return {}
    operation = services.operations[request.operation]
    shown = {each.name: each.shown for each in operation.inputs}
    return {
        "params": request.params,
        "inputs": {
            shown.get(name, name): models.InputReference(array=None, dtype=request.attached[name])
            if name in request.attached
            else models.InputReference(array=array_id)
            for name, array_id in request.inputs.items()
        },
    }


def _shards(record: JobRecord) -> models.JobShards | None:
    """The shards of a job, as the API shows them: as asked for, and once it is done as they were computed."""
    count, how = record.request.shards, record.provenance
    if how is None:
        return models.JobShards(count=count, cpu=None, gpu=None) if count > 1 else None
    if how.shards is None:  # as a whole: by a worker of the release before, or for an identical job
        return None
    return models.JobShards(
        count=sum(how.shards.values()), **{name: how.shards.get(name, 0) for name in ("cpu", "gpu")}
    )


def _waiting_reason(services: Services, record: JobRecord) -> str | None:
    """Why the API's job waits, of a task; a second old."""
    if not record.request.task or record.state is not models.State.QUEUED:
        return None
    workers = services.admission.workers
    return (
        None
        if workers is None
        else waiting_reason(record.request.operation, workers, on_gpu=record.request.backend == "gpu")
    )


def provenance(record: JobRecord) -> models.Provenance | None:
    """The provenance that the API shows of a job, without what would reveal other owners' jobs in the same launch.

    Left out are the number of these jobs and sentences that tell the launch's size. Of the launch's times, the owner's
    jobs have their share.
    """
    how, request = record.provenance, record.request
    if how is None:
        return None
    own = how.batch_own or 1
    fields: dict[str, Any] = vars(how) | {"batch_size": own, "batch_reason": _batch_reason(request, own)}
    for name in ("copy_seconds", "kernel_seconds", "compute_seconds"):
        if fields[name] is not None:  # always rounded: more digits would reveal the divisor
            fields[name] = round(fields[name] * own / how.batch_size, 7)
    if how.cost_dollars and how.compute_seconds:
        a_second = how.cost_dollars * how.batch_size / how.compute_seconds
        fields["cost_dollars"] = a_second * fields["compute_seconds"] / own
    for name in ("energy_joules", "cost_dollars") if request.owner != LOCAL else ():
        if fields[name] is not None:  # as if nobody else had computed on the device
            fields[name] /= how.device_share
    if request.owner != LOCAL and (how.backend_reason or "").startswith(SOONER_ON_CPU):
        fields["backend_reason"] = SOONER_ON_CPU  # its numbers tell how many jobs of others wait
    elif request.together is not None and not (request.private or request.owner == LOCAL):
        if how.backend_reason is not None:
            what, numbers, _ = how.backend_reason.partition(":")
            fields["backend_reason"] = what if numbers else "predicted to be the quicker"
        if how.fallback_reason is not None and " bytes" in how.fallback_reason:
            fields["fallback_reason"] = "out of memory"
    return models.Provenance(**fields)  # it has no field `batch_own` or `device_share`


def _batch_reason(request: JobRequest, own: int) -> str | None:
    """The reason shown in a job's provenance why a launch had no more jobs, as if it had held its owner's jobs
    alone."""
    together = request.together
    if together is None:
        return None
    if own >= together.items:
        return "full"
    if (own + 1) * request.size > together.bytes:
        return "bytes"
    return "waited" if together.wait else "drained"


def hides_times(services: Services, operation: str) -> bool:
    """Whether the API hides the times of a job of this operation from its owner, since they would reveal private
    noise."""
    found = services.operations.get(operation)
    return found is None or found.randomness == "private"


def whole_second(unix: float | None) -> float | None:
    """A time of a private job as its owner is shown it: rounded up to a whole second."""
    return None if unix is None else float(math.ceil(unix))


def answer(
    services: Services,
    record: JobRecord,
    status: int,
    position: int | None,
    headers: Mapping[str, str],
    *,
    with_request: bool = False,
) -> Response:
    content = view(services, record, position, with_request=with_request).model_dump_json()
    return Response(content, status, headers, "application/json")


def pending(
    services: Services,
    record: JobRecord,
    position: int | None,
    headers: Mapping[str, str],
    *,
    with_request: bool = False,
) -> Response:
    """The 202 response of a job that is not done: its URL, and when to ask again."""
    request = record.request
    wait = services.admission.retry_after(request, queued=position is not None)
    answer_headers = {"Location": f"/v1/jobs/{request.id}", "Retry-After": wait, **headers}
    return answer(services, record, 202, position, answer_headers, with_request=with_request)
