"""The counts of jobs and requests: one hash in Redis, which every API process shows alike.

A field is a metric's name and the values of its labels, joined by "|". Its value is a number:

    jobs_finished_total|batch|rsi|succeeded|           jobs
    job_run_seconds|rsi|gpu|114                        times in this bucket (workers.queue.buckets)
    job_run_seconds|rsi|gpu|sum                        seconds of all times
    batch_size|rsi|12                                  launches of 12 jobs
    since                                              Unix seconds: when the hash was begun

Counts of computing name the device behind a tab, by a GPU's UUID or a CPU's name. The hours keep the device. The hash
of all time has the sum, since a fleet may have any number of GPUs over time.

Jobs are counted by the script that makes the transition (workers.queue.scripts): each of them once, whatever reply is
lost and whatever process dies. These counts wait until any process adds or reads counts, about a second while a worker
lives. After an outage they fall into the hour in which the service came back.

A process adds its own counts by a Tally every second: an API process those of requests, a worker those of computing
(`note_endings`). With each job's end they would cost more than a hundredth of the job. A process that is killed loses
its last second of them, and no end of a job.
"""

import logging
import secrets
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import ceil, isnan, nan
from typing import Any, TypeVar

from warpdesk_server.workers.metrics import COUNTED
from warpdesk_server.workers.queue import buckets
from warpdesk_server.workers.queue.protocol import Succeeded, Transfers
from warpdesk_server.workers.queue.records import Ending, Follower

DEVICE = "\t"  # between a field and the device that computed

T = TypeVar("T")

log = logging.getLogger("warpdesk.queue")

# The metrics that are kept of each hour too, for `/performance-metrics` and its trend.
HOURLY = tuple(name for name, metric in COUNTED.items() if metric.hourly)

SIZE_CLASSES = ("small", "medium", "large", "huge")


def size_class(work: float) -> str:
    """The size class in which Redis counts a launch, by its elementary steps: below 10^6, 10^8, 10^10, or more.

    A core makes some 10^8 to 10^9 a second, a GPU 10^11 to 10^13.
    """
    return SIZE_CLASSES[sum(work >= bound for bound in (1e6, 1e8, 1e10))]


def named(family: str, *labels: str) -> str:
    """The field of a counter in Redis' hash of counts."""
    return "|".join((family, *labels))


class Amounts(defaultdict[tuple[str | int, ...], float]):
    """Amounts to add to the counts in Redis, by device, family and labels.

    The names of fields are made when amounts are sent: most are added to many times before.
    """

    def __init__(self) -> None:
        super().__init__(float)

    def add(self, amount: float, family: str, *labels: str | int, device: str = "") -> None:
        """Add an amount to those for Redis; of sizes the last label is the size.

        Raises ValueError where the metric has other labels.
        """
        metric = COUNTED[family]
        if len(labels) != len(metric.labels) + (metric.kind == "sizes"):
            raise ValueError(f"{family} has the labels {metric.labels}, got {labels}")
        self[(device, family, *labels)] += amount

    def times(self, some: Sequence[float], family: str, *labels: str, device: str = "") -> None:
        """Count each of these times for Redis; a negative one, as after a clock was set back, as 0."""
        COUNTED[family].checked(labels)
        for place, count in Counter(map(buckets.index, some)).items():
            self[(device, family, *labels, place)] += count
        if some:
            self[(device, family, *labels, "sum")] += sum(max(0.0, seconds) for seconds in some)

    def fields(self) -> dict[str, float]:
        found: dict[str, float] = defaultdict(float)
        for (device, *labels), amount in self.items():
            found[named(*map(str, labels)) + (f"{DEVICE}{device}" if device else "")] += amount
        return found


# Of an answer: its end, queue, submission, start, whether it is private; of its launch the operation, backend, device,
# jobs, why it was sent, seconds, and those of its kernels; its own work, bytes, joules and dollars.
_Answer = tuple[Any, ...]
_Wait = tuple[str, float, float]  # queue, seconds until the attempt started and until the end; NaN is not counted
_Own = tuple[float, float, float, float]  # of a job: work, bytes, joules, dollars
_Launch = tuple[float | None, float | None, list[_Own | None]]  # seconds, and of its kernels; jobs, None if private


def note_endings(
    tally: "Tally",
    endings: Iterable[Ending],
    at: float,
    followers: Iterable[Follower] = (),
    transfers: Transfers | None = None,
) -> None:
    """Count for Redis the jobs that ended in one step, `at` by its clock, and their followers and launches, each once.

    The times of private jobs are in no count: a sampler's time depends on its noise, and a sum over one job is that
    job's time.
    """
    answers: list[_Answer] = []
    waits: list[_Wait] = []
    for ending in endings:
        job, request, outcome = ending.job, ending.job.request, ending.outcome
        if request.shard is not None:  # its job is counted, with the times of all its shards
            continue
        if isinstance(outcome, Succeeded):
            how = outcome.provenance
            answers.append((
                at, request.priority, job.submitted_at, job.started_at, request.private,
                request.operation, how.backend, how.device_uuid or how.device, how.batch_size, how.batch_reason,
                how.compute_seconds, how.kernel_seconds,
                request.work, outcome.bytes, how.energy_joules, how.cost_dollars,
            ))  # fmt: skip
            if ending.kept_off:
                tally.add("fallbacks_total", request.operation, ending.kept_off)
        elif not (isnan(job.submitted_at) or request.private) and (outcome is not None or ending.how == "retry"):
            waits.append((request.priority, job.started_at - job.submitted_at, nan))
    for queue, state, submitted_at, started_at in followers:
        waits.append((queue, started_at - submitted_at, at - submitted_at if state == "succeeded" else nan))
    tally.later(_answers, *answers)
    tally.later(_waits, *waits)
    if transfers is not None and (transfers.h2d_bytes or transfers.d2h_bytes):
        tally.add("transfer_bytes_total", "h2d", amount=transfers.h2d_bytes)
        tally.add("transfer_bytes_total", "d2h", amount=transfers.d2h_bytes)
        tally.add("transfer_seconds_total", "h2d", amount=transfers.h2d_seconds)
        tally.add("transfer_seconds_total", "d2h", amount=transfers.d2h_seconds)


def _waits(counted: Amounts, waits: Iterable[_Wait]) -> None:
    times: dict[tuple[str, str], list[float]] = defaultdict(list)
    for queue, wait, whole in waits:
        times["job_wait_seconds", queue].append(wait)
        times["job_seconds", queue].append(whole)
    for (family, queue), seconds in times.items():
        counted.times([time for time in seconds if not isnan(time)], family, queue)


def _answers(counted: Amounts, answers: Iterable[_Answer]) -> None:
    waits: list[_Wait] = []
    launches: dict[tuple[Any, ...], list[_Own | None]] = defaultdict(list)
    for at, queue, submitted_at, started_at, private, *launch, work, moved, joules, dollars in answers:
        if not (private or isnan(submitted_at)):
            waits.append((queue, started_at - submitted_at, at - submitted_at))
        # Jobs of one launch have its times, which no other that ended in the same step has to the nanosecond.
        launches[at, *launch].append(None if private else (work, moved, joules or 0.0, dollars or 0.0))
    _waits(counted, waits)
    alike: dict[tuple[Any, ...], list[_Launch]] = defaultdict(list)
    for (_, operation, backend, device, size, reason, compute_seconds, kernel_seconds), jobs in launches.items():
        alike[operation, backend, device, size, reason].append((compute_seconds, kernel_seconds, jobs))
    for (operation, backend, device, size, reason), some in alike.items():
        _launches(counted, some, operation, backend, device, size, reason)


def _launches(
    counted: Amounts,
    launches: Sequence[_Launch],
    operation: str,
    backend: str,
    device: str,
    size: int,
    reason: str | None,
) -> None:
    """Count for Redis the launches that differ only in the times, works and costs of their jobs.

    In the names of counts the device is a GPU's UUID or a CPU's name.
    """
    device = device.replace(DEVICE, " ")[:100]
    # Private jobs have no times that distinguish their launches. So this is the fewest launches that they can be.
    number = sum(ceil(len(jobs) / size) for _, _, jobs in launches)
    counted.add(number, "batch_size", operation, size)
    counted.add(number, "batches_total", operation, reason or "alone")
    counted.add(sum(len(jobs) for _, _, jobs in launches), "jobs_computed_total", operation, backend, device=device)
    runs: list[float] = []
    kernels: dict[str, list[float]] = defaultdict(list)
    kernel_work = kernel_bytes = joules = dollars = 0.0
    for compute_seconds, kernel_seconds, jobs in launches:
        public = [job for job in jobs if job is not None]
        if not public:
            continue
        work, moved, *spent = map(sum, zip(*public, strict=True))
        joules, dollars = joules + spent[0], dollars + spent[1]
        if compute_seconds is not None:
            runs += [compute_seconds] * len(public)
        seconds = kernel_seconds if backend == "gpu" else compute_seconds
        if seconds is not None and len(public) == len(jobs):
            kernels[size_class(work)].append(seconds)
            kernel_work, kernel_bytes = kernel_work + work, kernel_bytes + moved
    counted.times(runs, "job_run_seconds", operation, backend, device=device)
    for of_size, some in kernels.items():
        counted.times(some, "kernel_duration_seconds", operation, backend, of_size, device=device)
    if kernels:
        counted.add(kernel_work, "kernel_work_total", operation, backend, device=device)
        counted.add(kernel_bytes, "kernel_bytes_total", operation, backend, device=device)
    if joules:
        counted.add(joules, "job_energy_joules_total", operation, backend, device=device)
    if dollars:
        counted.add(dollars, "cost_dollars_total", operation, backend, device=device)


@dataclass(frozen=True)
class Timed:
    """Times counted in Redis: how many are in each bucket, and their sum in seconds."""

    buckets: dict[int, int] = field(default_factory=dict)
    sum: float = 0.0

    @property
    def count(self) -> int:
        return sum(self.buckets.values())

    def __add__(self, other: "Timed") -> "Timed":
        both = {place: self.buckets.get(place, 0) + count for place, count in other.buckets.items()}
        return Timed(dict(self.buckets) | both, self.sum + other.sum)


@dataclass(frozen=True)
class Counts:
    """The counts as they were read from Redis, by family, then by the values of labels.

    Buckets of sizes are the sizes.
    """

    since: float | None = None  # Unix seconds
    counters: Mapping[str, Mapping[tuple[str, ...], float]] = field(default_factory=dict)
    times: Mapping[str, Mapping[tuple[str, ...], Timed]] = field(default_factory=dict)

    @classmethod
    def of(cls, fields: Mapping[str, float]) -> "Counts":
        """The counts in Redis of all devices together. Metrics of a later release are left out."""
        counters: dict[str, dict[tuple[str, ...], float]] = defaultdict(lambda: defaultdict(float))
        by_bucket: dict[tuple[str, tuple[str, ...]], dict[int, int]] = defaultdict(lambda: defaultdict(int))
        sums: dict[tuple[str, tuple[str, ...]], float] = defaultdict(float)
        for name, amount in fields.items():
            family, *labels = name.partition(DEVICE)[0].split("|")
            kept = COUNTED.get(family)
            if kept is None:
                continue
            if len(labels) != len(kept.labels) + (kept.kind != "counter"):
                _report_misfit(name)
                continue
            if kept.kind == "counter":
                counters[family][tuple(labels)] += amount
            elif labels[-1] == "sum":
                sums[family, tuple(labels[:-1])] += amount
            elif labels[-1].isdigit():
                by_bucket[family, tuple(labels[:-1])][int(labels[-1])] += round(amount)
        times: dict[str, dict[tuple[str, ...], Timed]] = defaultdict(dict)
        for (family, values), found in by_bucket.items():
            sizes = COUNTED[family].kind == "sizes"
            total = sum(size * count for size, count in found.items()) if sizes else sums.get((family, values), 0.0)
            times[family][values] = Timed(found, total)
        return cls(fields.get("since"), counters, times)

    @classmethod
    def by_device(cls, fields: Mapping[str, float]) -> dict[str, "Counts"]:
        """The counts of computing in Redis, of each device by itself."""
        found: dict[str, dict[str, float]] = defaultdict(dict)
        for name, amount in fields.items():
            kind, of_device, device = name.partition(DEVICE)
            if of_device:
                found[device][kind] = amount
        return {device: cls.of(own) for device, own in sorted(found.items())}


@cache
def _report_misfit(name: str) -> None:
    """Log a count in Redis that does not fit its metric, once for each field."""
    log.error("a count in Redis does not have its metric's labels, and is left out: %r", name)


def numbers(answer: Sequence[bytes] | Mapping[bytes, bytes]) -> dict[str, float]:
    """The fields of a hash of counts, from the answer to HGETALL of a client or of a script."""
    pairs = answer.items() if isinstance(answer, Mapping) else zip(answer[::2], answer[1::2], strict=True)
    return {name.decode(): float(amount) for name, amount in pairs}


class Tally:
    """The counts of one process that are not in Redis yet, and the totals as it read them last.

    Any thread may add; one sends. An addition has a number and stays the same until it is confirmed, so that Redis
    counts it once however often it is sent.
    """

    def __init__(self) -> None:
        self._source = secrets.token_hex(8)
        self._number = 0
        self._lock = threading.Lock()
        self._noted: dict[Callable[[Amounts, list[Any]], None], list[Any]] = defaultdict(list)
        self._fresh = Amounts()
        self._sent: Mapping[str, float] = {}  # of the addition that has the number, by field
        self._totals: dict[str, float] | None = None  # as Redis answered last, and what was added since

    def add(self, family: str, *labels: str | int, amount: float = 1, device: str = "") -> None:
        with self._lock:
            self._fresh.add(amount, family, *labels, device=device)

    def later(self, count: Callable[[Amounts, list[T]], None], *what: T) -> None:
        """Note items for the next addition to Redis' counts, in which `count` counts them.

        Those of one call go with one addition. Counted one by one between other work they would cost some tens of
        microseconds each, and counted once a second a few. That holds for tuples of numbers and names: larger objects
        that live so long, as closures or jobs, cost as much again in memory that is not reused and in garbage
        collection.
        """
        self._noted[count].extend(what)

    @property
    def empty(self) -> bool:
        return not (self._sent or self._fresh or any(self._noted.values()))

    def addition(self) -> tuple[str, int, Mapping[str, float]]:
        """The addition to send to Redis' counts now: process, number, amounts. The same until `confirm`."""
        with self._lock:
            self._count_noted()
            if not self._sent and self._fresh:
                self._sent, self._fresh = self._fresh.fields(), Amounts()
                self._number += 1
            return self._source, self._number, self._sent

    def _count_noted(self) -> None:
        for count, noted in list(self._noted.items()):
            if some := noted.copy():
                del noted[: len(some)]  # another thread may have added to it
                count(self._fresh, some)

    def confirm(self, counts: Mapping[str, float] | None) -> None:
        """Note that Redis has counted the addition, and its totals if they were read.

        A Redis that lost its last second has lower totals than before. Prometheus takes a counter that falls for one
        that began again at 0, so each stays until Redis' total is above it.
        """
        with self._lock:
            totals = self._totals
            if counts is None and totals is not None:
                for name, amount in self._sent.items():
                    totals[name] = totals.get(name, 0.0) + amount
            elif counts is not None and totals is not None and counts.get("since") == totals.get("since"):
                totals.update((name, max(amount, totals.get(name, 0.0))) for name, amount in counts.items())
            elif counts is not None:
                self._totals = dict(counts)
            self._sent = {}

    def totals(self) -> dict[str, float] | None:
        """The totals as read from Redis, with the counts of this process that may not be in them yet.

        None before they were read: the counts of this process alone would look like a service that began again.
        """
        with self._lock:
            self._count_noted()
            if self._totals is None:
                return None
            counts = self._totals.copy()
            for part in (self._sent, self._fresh.fields()):
                for name, amount in part.items():
                    counts[name] = counts.get(name, 0.0) + amount
            return counts
