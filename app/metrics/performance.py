"""The performance report: recent rates and durations of jobs, and whether they became slower.

It is made of the same counts in Redis that `/metrics` exports, so every API process reports the same, also after a
restart. A process keeps only the means of past hours, which no longer change.
"""

import statistics
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import accumulate

from warpdesk.models import Priority
from warpdesk_server.app.kit.schemas import moment
from warpdesk_server.app.metrics import schemas
from warpdesk_server.workers.metrics import COUNTED
from warpdesk_server.workers.queue import buckets
from warpdesk_server.workers.queue.counts import SIZE_CLASSES, Counts, Timed
from warpdesk_server.workers.queue.jobs import JobQueue
from warpdesk_server.workers.queue.protocol import PRIORITIES

HOUR = 3600  # seconds
BASELINE_HOURS = 7 * 24
LEAST_HOURS = 3  # hours with launches that a baseline needs
ENOUGH = 30  # launches that a mean needs; if this hour has fewer, those of the hour before count too

Labels = tuple[str, ...]
Means = Mapping[Labels, float]  # seconds of a launch, by device ("" for all), operation, backend and size class


@dataclass(frozen=True)
class Hours:
    """The counts in a performance report of one device, or of all: of the reported hours, this hour, and the last
    two for the trend."""

    device: str  # "" for all
    counts: Counts
    this_hour: Counts
    two_hours: Counts


@dataclass(frozen=True)
class Lately:
    """The input of a performance report, read at one time: all counts, those of the hours, and the means before."""

    at: float  # Unix seconds
    since: float  # Unix seconds: start of the reported hours, or of the first count
    ever: Counts
    all: Hours
    devices: Sequence[Hours]
    before: Sequence[Means]
    waiting: Mapping[Priority, int]

    @property
    def counts(self) -> Counts:
        return self.all.counts

    @property
    def seconds(self) -> float:
        return max(1.0, self.at - self.since)


class History:
    """The mean durations of past hours, as one API process keeps them for performance reports."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._means: dict[int, Means] = {}

    def read(self, jobs: JobQueue, hours: int) -> Lately:
        """Read the input of a performance report from Redis. Call it in a thread."""
        at = jobs.time()
        now = int(at // HOUR)
        ever, *counts = jobs.counted([now - ago for ago in range(hours + 1)])
        counted = Counts.of(ever)
        if counted.since != self._since:  # Redis lost its counts, so the kept hours no longer match them
            self._since, self._means = counted.since, {}
        past = range(now - BASELINE_HOURS, now - 1)
        means_by_hour = self._means = {hour: means for hour, means in self._means.items() if hour in past}
        for hour in past:
            if hour not in means_by_hour:  # stored one by one: a caller that gives up still leaves some for the next
                means_by_hour[hour] = jobs.mean_launches(hour)
        waiting = jobs.waiting_by_owner()
        kept = [_sum(counts), _sum(counts[:1]), _sum(counts[:2])]
        by_device = [Counts.by_device(amounts) for amounts in kept]
        return Lately(
            at=at,
            since=max(float((now - hours) * HOUR), counted.since or at),
            ever=counted,
            all=Hours("", *map(Counts.of, kept)),
            devices=[Hours(name, *(own.get(name, Counts()) for own in by_device)) for name in by_device[0]],
            before=[means_by_hour[hour] for hour in past],
            waiting={queue: sum(waiting.get(queue, {}).values()) for queue in PRIORITIES},
        )


def _sum(hours: Iterable[Mapping[str, float]]) -> Mapping[str, float]:
    total: dict[str, float] = defaultdict(float)
    for fields in hours:
        for name, amount in fields.items():
            total[name] += amount
    return total


def report(lately: Lately) -> schemas.ServicePerformance:
    """The performance report that the API gives of queues and operations, from the counts that were read."""
    names = {operation for _, operation, _, _ in lately.ever.counters.get("jobs_finished_total", {})}
    return schemas.ServicePerformance(
        at=datetime.fromtimestamp(lately.at, UTC),
        since=datetime.fromtimestamp(lately.since, UTC),
        counted_since=moment(lately.ever.since),
        quantile_error=buckets.RELATIVE_ERROR,
        queues={queue: _queue(lately, queue) for queue in PRIORITIES},
        operations={name: _operation(lately, name) for name in sorted(names)},
    )


def _queue(lately: Lately, queue: Priority) -> schemas.QueuePerformance:
    finished = _by(lately.counts, "jobs_finished_total", "state", queue=queue)
    return schemas.QueuePerformance(
        waiting=lately.waiting[queue],
        jobs=_by(lately.ever, "jobs_finished_total", "state", queue=queue),
        jobs_per_second=sum(finished.values()) / lately.seconds,
        wait_seconds=_quantiles(_times(lately.counts, "job_wait_seconds", queue)),
        seconds=_quantiles(_times(lately.counts, "job_seconds", queue)),
    )


def _operation(lately: Lately, name: str) -> schemas.OperationPerformance:
    counts = lately.counts
    finished = _by(counts, "jobs_finished_total", "state", operation=name)
    computed = _by(counts, "jobs_computed_total", "backend", operation=name)
    return schemas.OperationPerformance(
        jobs=_by(lately.ever, "jobs_finished_total", "state", operation=name),
        jobs_per_second=sum(finished.values()) / lately.seconds,
        failures=_by(counts, "jobs_finished_total", "reason", operation=name, state="failed"),
        coalesced=round(_amount(counts, "jobs_coalesced_total", name)),
        retries=round(_amount(counts, "job_retries_total", name)),
        fallbacks=_by(counts, "fallbacks_total", "reason", operation=name),
        gpu_share=computed.get("gpu", 0) / sum(computed.values()) if computed else None,
        batches=_batches(
            _times(counts, "batch_size", name).buckets, _by(counts, "batches_total", "trigger", operation=name)
        ),
        backends={backend: _backend(lately, name, backend) for backend in computed},
    )


def _backend(lately: Lately, name: str, backend: str) -> schemas.BackendPerformance:
    return schemas.BackendPerformance(
        **dict(_computing(lately, lately.all, name, backend)),
        devices={
            hours.device: _computing(lately, hours, name, backend)
            for hours in lately.devices
            if _amount(hours.counts, "jobs_computed_total", name, backend)
        },
    )


def _computing(lately: Lately, hours: Hours, name: str, backend: str) -> schemas.Computing:
    counts = hours.counts
    computed = round(_amount(counts, "jobs_computed_total", name, backend))
    runs = _times(counts, "job_run_seconds", name, backend)
    launches = {size: _times(counts, "kernel_duration_seconds", name, backend, size) for size in SIZE_CLASSES}
    busy = sum(timed.sum for timed in launches.values())

    def a_second(family: str) -> float | None:
        return _amount(counts, family, name, backend) / busy if busy else None

    def a_thousand_jobs(family: str) -> float | None:
        amount = _amount(counts, family, name, backend)
        return amount / runs.count * 1000 if amount and runs.count else None

    return schemas.Computing(
        computed=computed,
        computed_per_second=computed / lately.seconds,
        run_seconds=_quantiles(runs),
        bytes_per_second=a_second("kernel_bytes_total"),
        work_per_second=a_second("kernel_work_total"),
        joules_per_thousand_jobs=a_thousand_jobs("job_energy_joules_total"),
        dollars_per_thousand_jobs=a_thousand_jobs("cost_dollars_total"),
        launches={
            size: schemas.Launches(seconds=quantiles, trend=_trend(lately, hours, (name, backend, size)))
            for size, timed in launches.items()
            if (quantiles := _quantiles(timed)) is not None
        },
    )


def _trend(lately: Lately, hours: Hours, kernel: Labels) -> schemas.Trend:
    """The trend of launch durations in a performance report: the mean of this hour, or of two, against the median of
    earlier hours."""
    now = _times(hours.this_hour, "kernel_duration_seconds", *kernel)
    if now.count < ENOUGH:
        now = _times(hours.two_hours, "kernel_duration_seconds", *kernel)
    own = hours.device, *kernel
    before = [means[own] for means in lately.before if own in means]
    mean = now.sum / now.count if now.count else None
    baseline = statistics.median(before) if len(before) >= LEAST_HOURS else None
    if baseline is None:
        sentence = f"a baseline needs {LEAST_HOURS} hours with launches; the last 7 days have {len(before)}"
    elif mean is None:
        sentence = f"no launch in the last hour; the median of {len(before)} hours is {baseline:.3g} s"
    else:
        sentence = f"{mean:.3g} s a launch, and the median of {len(before)} hours is {baseline:.3g} s"
    return schemas.Trend(
        launches=now.count,
        mean=mean,
        baseline=baseline,
        hours=len(before),
        ratio=mean / baseline if mean is not None and baseline else None,
        sentence=sentence,
    )


def _batches(sizes: Mapping[int, int], ended_by: Mapping[str, int]) -> schemas.Batches | None:
    if not sizes:
        return None
    launches = sum(sizes.values())
    ordered = sorted(sizes)
    ranks = list(accumulate(sizes[size] for size in ordered))
    p50, p95 = (ordered[bisect_left(ranks, share * launches)] for share in (0.5, 0.95))
    return schemas.Batches(
        launches=launches,
        mean=sum(size * count for size, count in sizes.items()) / launches,
        p50=p50,
        p95=p95,
        largest=ordered[-1],
        ended_by=dict(ended_by),
    )


def _quantiles(timed: Timed) -> schemas.Quantiles | None:
    if not timed.count:
        return None
    p50, p90, p95, p99 = (buckets.quantile(timed.buckets, share) or 0.0 for share in (0.5, 0.9, 0.95, 0.99))
    return schemas.Quantiles(count=timed.count, mean=timed.sum / timed.count, p50=p50, p90=p90, p95=p95, p99=p99)


def _by(counts: Counts, family: str, label: str, **fixed: str) -> dict[str, int]:
    """A counter's amounts in a performance report by the values of one label, summed over the series whose other
    labels match `fixed`."""
    names = COUNTED[family].labels
    found: dict[str, int] = {}
    for values, amount in sorted(counts.counters.get(family, {}).items()):
        labels = dict(zip(names, values, strict=True))
        if fixed.items() <= labels.items():
            found[labels[label]] = found.get(labels[label], 0) + round(amount)
    return found


def _amount(counts: Counts, family: str, *labels: str) -> float:
    return counts.counters.get(family, {}).get(labels, 0.0)


def _times(counts: Counts, family: str, *labels: str) -> Timed:
    return counts.times.get(family, {}).get(labels, Timed())
