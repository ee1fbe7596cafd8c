"""Attempts that workers of other hosts speak of: whether one runs, and whose claim it is."""

from collections.abc import Iterable, Mapping

from warpdesk.models import State
from warpdesk_server.app.kit.errors import Refusal
from warpdesk_server.app.services import Services
from warpdesk_server.workers.queue.records import JobRecord
from warpdesk_server.workers.store.protocol import attempt_of


def attempt_named(name: str) -> tuple[str, int]:
    try:
        return attempt_of(name)
    except ValueError as error:
        raise Refusal("stale-attempt", str(error)) from None


async def records_of(services: Services, names: Iterable[str]) -> dict[str, JobRecord | None]:
    """The jobs of these attempts."""
    jobs_of = {name: attempt_named(name)[0] for name in names}
    records = await services.queue(lambda jobs: jobs.checked(list(jobs_of.values())))
    return dict(zip(jobs_of, records, strict=True))


def running(name: str, record: JobRecord | None, token: str) -> JobRecord | Refusal:
    """The job of an attempt, where the attempt is the one that runs, by the claim that has this token.

    Workers may write the record: that it runs is theirs to say, but not what it asks for, nor that what the API has
    ended runs again.
    """
    if record is None or record.state is not State.RUNNING or record.attempt != attempt_named(name)[1]:
        return Refusal("stale-attempt", f"{name} is not the attempt that runs")
    if record.closed:
        return Refusal("stale-attempt", f"{name} was canceled, or is past its deadline")
    if not record.is_held_by(token):
        return Refusal("stale-attempt", f"{name} was claimed by another worker")
    return record


async def claimed(services: Services, claims: Mapping[str, str]) -> dict[str, JobRecord | Refusal]:
    """The jobs of these attempts, where the attempt is the one that runs and was claimed by who asks."""
    return {name: running(name, record, claims[name]) for name, record in (await records_of(services, claims)).items()}


def may_delete(name: str, record: JobRecord | None, token: str) -> bool:
    """Whether who claimed an attempt, which the token shows, may delete its result: until it is the answer.

    The ledger may give the next attempt that of an earlier one, where a budget was charged for it.
    """
    return (
        record is not None
        and record.request.charge is None
        and record.attempt == attempt_named(name)[1]
        and record.state is not State.SUCCEEDED
        and record.is_held_by(token)
    )


def is_unwanted(name: str, record: JobRecord | None) -> bool:
    """Whether what came too late will be nobody's answer. While the attempt runs another request may have been told
    that it is kept, and its end may be under way."""
    return (
        record is not None
        and record.request.charge is None
        and record.attempt >= attempt_named(name)[1]
        and (record.attempt > attempt_named(name)[1] or record.state not in (State.RUNNING, State.SUCCEEDED))
    )
