"""Job attempts named by remote workers: whether the attempt is running, and who claimed it."""

from collections.abc import Iterable, Mapping

from warpdesk.models import State
from warpdesk_server.app.kit.errors import Refusal
from warpdesk_server.app.services import Services
from warpdesk_server.workers.queue.records import JobRecord
from warpdesk_server.workers.store.protocol import attempt_of


def attempt_named(name: str) -> tuple[str, int]:
    """Parse the name of an attempt in a remote worker's request into job id and number. Refuses a malformed name."""
    try:
        return attempt_of(name)
    except ValueError as error:
        raise Refusal("stale-attempt", str(error)) from None


async def records_of(services: Services, names: Iterable[str]) -> dict[str, JobRecord | None]:
    """The job records of the attempts that a remote worker names."""
    jobs_of = {name: attempt_named(name)[0] for name in names}
    records = await services.queue(lambda jobs: jobs.checked(list(jobs_of.values())))
    return dict(zip(jobs_of, records, strict=True))


def running(name: str, record: JobRecord | None, token: str) -> JobRecord | Refusal:
    """The job record of an attempt that a remote worker runs under the claim with this token; otherwise the refusal.

    Workers may write the record. They decide that an attempt runs, but not what it asks for. They cannot run again what
    the API has ended.
    """
    if record is None or record.state is not State.RUNNING or record.attempt != attempt_named(name)[1]:
        return Refusal("stale-attempt", f"{name} is not the job's current attempt")
    if record.closed:
        return Refusal("stale-attempt", f"{name} was canceled, or is past its deadline")
    if not record.is_held_by(token):
        return Refusal("stale-attempt", f"{name} was claimed by another worker")
    return record


async def claimed(services: Services, claims: Mapping[str, str]) -> dict[str, JobRecord | Refusal]:
    """The job record of each attempt that a remote worker names, or its refusal if it is not running or another
    worker claimed it."""
    return {name: running(name, record, claims[name]) for name, record in (await records_of(services, claims)).items()}


def may_delete(name: str, record: JobRecord | None, token: str) -> bool:
    """Whether a remote worker with an attempt's claim token may delete its result: until it is the job's answer.

    A charged job's result stays: the ledger may give an earlier attempt's answer to the next one.
    """
    return (
        record is not None
        and record.request.charge is None
        and record.attempt == attempt_named(name)[1]
        and record.state is not State.SUCCEEDED
        and record.is_held_by(token)
    )


def is_unwanted(name: str, record: JobRecord | None) -> bool:
    """Whether a result that arrived too late from a remote worker will be no job's answer.

    While the attempt runs, another request may have been told that the result is kept, and the job may be about to end.
    """
    return (
        record is not None
        and record.request.charge is None
        and record.attempt >= attempt_named(name)[1]
        and (record.attempt > attempt_named(name)[1] or record.state not in (State.RUNNING, State.SUCCEEDED))
    )
