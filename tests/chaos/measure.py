"""What a run under chaos took, from the events of its jobs: how soon work went on after each fault."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import ceil

from tests.chaos.faults import Kill, Outage
from warpdesk_server.workers.queue.jobs import JobQueue
from warpdesk_server.workers.queue.protocol import Event

NO_CHILD_STARTS_IN = 0.05  # seconds: who was answered so soon after a kill was answered before it


def redeliveries(queue: JobQueue, kills: Sequence[Kill]) -> dict[str, list[float]]:
    """Seconds from a kill until each job it interrupted ran again or was done, by what was killed.

    Of jobs that ran together only their end is told when the next child takes them up one at a time.
    """
    seconds: dict[str, list[float]] = {}
    for kill in kills:
        what = kill.what if len(kill.held) == 1 else f"{kill.what} with several jobs"
        for job, attempt in kill.held:
            if (took := _redelivered(queue.events(job), attempt, kill.at)) is not None:
                seconds.setdefault(what, []).append(took)
    return dict(sorted(seconds.items()))


def _redelivered(events: Sequence[Event], attempt: int, killed_at: float) -> float | None:
    """None for a job that was not interrupted: its attempt had ended, or was answered before."""
    for event in events:
        if event.at < killed_at:
            if event.final:
                return None
            continue
        if event.attempt > attempt and (event.event == "running" or event.final):
            return event.at - killed_at
        if event.final:  # the next child was given the same attempt, or there was nothing to interrupt
            took = event.at - killed_at
            return took if took > NO_CHILD_STARTS_IN else None
    return None


def recoveries(queue: JobQueue, outages: Sequence[Outage], jobs: Iterable[str]) -> list[float]:
    """Seconds from each end of an outage until the first job was done."""
    ends = sorted(event.at for job in jobs for event in queue.events(job) if event.final)
    return [first - outage.ended for outage in outages if (first := _next(ends, outage.ended)) is not None]


def _next(times: Sequence[float], after: float) -> float | None:
    return next((at for at in times if at > after), None)


def attempts(queue: JobQueue, jobs: Iterable[str]) -> dict[int, int]:
    """How many jobs had how many attempts."""
    counts: dict[int, int] = {}
    for job in jobs:
        record = queue.get(job)
        if record is not None:
            counts[record.attempt] = counts.get(record.attempt, 0) + 1
    return dict(sorted(counts.items()))


def computed_in_shards(queue: JobQueue, jobs: Iterable[str]) -> int:
    """How many jobs succeeded that were computed in shards."""
    records = [record for job in jobs if (record := queue.get(job)) is not None]
    return sum(record.provenance is not None and record.provenance.shards is not None for record in records)


def strikes(queue: JobQueue, jobs: Iterable[str]) -> dict[str, int]:
    """The jobs that have any, and how many."""
    found = {}
    for job in jobs:
        record = queue.get(job)
        if record is not None and record.strikes:
            found[job] = record.strikes
    return found


def quantile(seconds: Sequence[float], share: float) -> float:
    """The smallest that at least so large a share of them does not exceed."""
    return sorted(seconds)[max(0, ceil(share * len(seconds)) - 1)]


def shown(seconds: Mapping[str, Sequence[float]]) -> Iterator[tuple[str, str]]:
    """Of each kind, how many, the median and the 99th percentile."""
    for kind, each in seconds.items():
        if each:
            p50, p99 = quantile(each, 0.5), quantile(each, 0.99)
            yield kind, f"{len(each)}: p50 {p50:.3f}, p99 {p99:.3f}, longest {max(each):.3f}"
