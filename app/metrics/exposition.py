"""Everything that `/metrics` tells. Each API process tells the same of the service; only HTTP requests in progress and
whether its sources answer are its own, so over several processes one takes `max without (instance, pod)` first.

A scrape never waits for a Redis or a ledger that hangs: it tells what was known last, and that it is that.
"""

import platform
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector as Registered

from warpdesk_server.app.kit.errors import CODES
from warpdesk_server.app.metrics import gpu as gpu_metrics
from warpdesk_server.app.metrics import privacy as privacy_metrics
from warpdesk_server.app.metrics.collector import Collector
from warpdesk_server.app.metrics.redis_source import Facts, RedisCollector, Seen
from warpdesk_server.workers.queue import buckets
from warpdesk_server.workers.queue.counts import FAMILIES, Amounts, Counts, Timed
from warpdesk_server.workers.queue.protocol import FAILURES, PRIORITIES
from warpdesk_server.workers.store.spool import Store

# How long a scrape waits for Redis.
PATIENCE = 0.5

# Few bounds: each is a series for each operation or route. Quantiles with a known error are in /performance-metrics.
_WAITS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 30, 300)


class Told(NamedTuple):
    """What a counted family means, and the bounds of a histogram; a family of times without them is a sum and count."""

    words: str
    bounds: tuple[float, ...] = ()


_ONE_SECOND = "counted within a second, lost where the process is killed before"
_OF_WORKER = f"as its worker knows it, {_ONE_SECOND}"

# In the order of the page. Every family of workers.queue.counts is here.
COUNTED: Mapping[str, Told] = {
    "http_requests_total": Told(f"Requests answered, {_ONE_SECOND}. An event stream is counted when it ends"),
    "http_request_duration_seconds": Told(
        "From a request's head to the end of its answer, waiting that the caller asked for included, but for a private "
        "job",
        (0.025, 0.1, 0.5, 2.5),
    ),
    "http_failures_total": Told(f"Answers under /v1 that are a 5xx, {_ONE_SECOND}"),
    "refusals_total": Told("Requests refused, by the problem's code; 404 and 405 of the framework are not in it"),
    "jobs_replayed_total": Told("Submissions answered with the job that their Idempotency-Key had"),
    "jobs_enqueued_total": Told("Jobs taken into the queue; a dead letter that is run again is counted again"),
    "jobs_finished_total": Told(
        "Jobs that ended, each once whatever crashed; `reason` is the error's code of those that failed"
    ),
    "job_failures_total": Told("Jobs that failed, by their error's code"),
    "jobs_computed_total": Told(
        f"Answers that were computed, by where, {_OF_WORKER}; jobs that share one are not in it"
    ),
    "jobs_coalesced_total": Told("Jobs that an identical one was computed for"),
    "job_retries_total": Told("Attempts beyond the first, for whatever reason: most are of workers that were replaced"),
    "job_strikes_total": Told("Attempts that ended their worker's process while they ran alone"),
    "jobs_dead_total": Told("Jobs that were given up and kept as dead letters"),
    "workers_lost_total": Told(
        "Workers that were gone without a word, as another one noticed: killed, cut off, or their machine; no stop"
    ),
    "leases_expired_total": Told("Attempts that were taken from a worker that was gone or did not renew its claim"),
    "job_wait_seconds": Told(
        f"From submission to the start of the attempt that answered, earlier ones included, {_OF_WORKER}; "
        "no private jobs",
        _WAITS,
    ),
    "job_seconds": Told(f"From submission to the end of jobs that succeeded, {_OF_WORKER}; no private jobs", _WAITS),
    "job_run_seconds": Told(
        f"In which a job was computed, {_OF_WORKER}. Jobs of one launch have all of its time each; no private jobs",
        (0.01, 0.1, 1),
    ),
    "batch_size": Told(f"Jobs in a launch, {_OF_WORKER}", (1, 8)),
    "batches_total": Told(f"Launches, by why there were no more jobs in them, {_OF_WORKER}"),
    "kernel_duration_seconds": Told(
        "Of a launch, once however many jobs: on a GPU its kernels by CUDA's events, on a CPU the whole call; by the "
        "launch's elementary steps (below 10^6, 10^8, 10^10, and more); no private jobs"
    ),
    "kernel_bytes_total": Told(
        "Inputs and outputs of launches with a duration: the least they had to move, not what they did move"
    ),
    "kernel_work_total": Told("Elementary steps of launches with a duration, as the operation tells them: no FLOPs"),
    "transfer_bytes_total": Told("Copied between host and GPU by jobs; no private jobs"),
    "transfer_seconds_total": Told("In which that was copied; lanes that copy side by side add up; no private jobs"),
    "kernel_compilations_total": Told("Kernels that were asked for: kept (hit), compiled (miss), or not to be (error)"),
    "fallbacks_total": Told(f"Answers of the CPU that were wanted from a GPU, by what kept them off it, {_OF_WORKER}"),
    "job_energy_joules_total": Told(
        "Energy of the GPU while it computed, what else ran on it included; where it tells, and no private jobs"
    ),
    "cost_dollars_total": Told("Seconds of launches at the price of their device, not what idles; no private jobs"),
    "privacy_charges_total": Told(
        "Releases charged to the open budget of a dataset, and refused because it did not hold them"
    ),
}

# Refusals by which the service says that it is not well: an alert needs their first.
_UNWELL = [code for code, (status, _, _) in CODES.items() if status >= 429] + ["budget-exceeded"]


class Metrics(Registered):
    """What an API process counts, and what it tells."""

    def __init__(
        self,
        redis: RedisCollector,
        ledger: Collector[privacy_metrics.Seen],
        operations: Mapping[str, object],
        version: str,
        store: Store,
    ) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(self)
        self._redis = redis
        self._ledger = ledger
        self._operations = operations
        self._version = version
        self._store = store
        self._in_progress = 0
        self._turned_at = time.monotonic()

    def begun(self) -> None:
        """Called, as `request` is, in the event loop's thread alone."""
        self._in_progress += 1

    def turned(self) -> None:
        """The event loop is at it."""
        self._turned_at = time.monotonic()

    def request(self, method: str, route: str, status: int, seconds: float | None) -> None:
        """A request was answered; without its time where that is a private job's."""
        self._in_progress -= 1
        self._redis.tally.later(_requests, (method, route, status, seconds))

    def replayed(self) -> None:
        self._redis.tally.add("jobs_replayed_total")

    def refused(self, code: str) -> None:
        self._redis.tally.add("refusals_total", code)

    def charged(self, budget: str, state: str) -> None:
        """Granted or refused. By the budget's id, which is told as its dataset."""
        self._redis.tally.add("privacy_charges_total", budget, state)

    def exposition(self, *, budgets: bool) -> bytes:
        """In the Prometheus text format; what names datasets is told with `budgets` alone. It may wait for a moment:
        call it in a thread."""
        registry = CollectorRegistry()
        registry.register(self if budgets else _WithoutBudgets(self))
        return generate_latest(registry)

    def describe(self) -> Iterator[Metric]:
        return iter(())  # registering asks nobody

    def collect(self) -> Iterator[Metric]:
        yield from self.told(budgets=True)

    def told(self, *, budgets: bool) -> Iterator[Metric]:
        seen, fresh = self._redis.ask(PATIENCE)
        counts = self._redis.tally.known()
        kept, fresh_ledger = self._ledger.last(privacy_metrics.OLD_SECONDS)
        yield _gauge(
            "build_info", "1; what runs here", {(self._version, platform.python_version()): 1}, "version", "python"
        )
        up: dict[tuple[str, ...], float] = {("queue",): fresh, ("redis",): fresh, ("ledger",): fresh_ledger}
        yield _gauge("collector_up", "1 while what comes from there is of now, 0 while it is what was known last", up,
                     "collector")  # fmt: skip
        yield _gauge("queue_up", "1 while this process reaches the queue", {(): fresh})
        yield _gauge("http_requests_in_progress", "Requests that this process is answering", {(): self._in_progress})
        lag = time.monotonic() - self._turned_at
        yield _gauge(
            "event_loop_lag_seconds",
            "Since this process' event loop last turned, about a second at most in health: while it hangs nobody is "
            "answered but who asks for metrics on their own port",
            {(): lag},
        )
        yield from _of_store(self._store)
        if counts is not None:
            yield from self._counted(Counts.of(counts), {} if kept is None or not budgets else _datasets(kept))
        if seen is not None:
            yield from _of_queue(seen)
            yield from _of_redis(seen.facts)
            yield from gpu_metrics.families(seen.workers)
        if kept is not None and budgets:
            yield from privacy_metrics.families(kept)

    def _counted(self, counts: Counts, datasets: Mapping[str, str]) -> Iterator[Metric]:
        for name, told in COUNTED.items():
            if FAMILIES[name].kind == "counter":
                yield self._counter(name, told, counts.counters.get(name, {}), datasets)
            else:
                yield self._times(name, told, counts.times.get(name, {}))

    def _counter(
        self, name: str, told: Told, amounts: Mapping[tuple[str, ...], float], datasets: Mapping[str, str]
    ) -> Metric:
        labels = FAMILIES[name].labels
        values: dict[tuple[str, ...], float] = dict.fromkeys(self._zeros(name), 0.0)
        for found, amount in amounts.items():
            known = self._bounded(labels, found)
            values[known] = values.get(known, 0.0) + amount
        if name == "privacy_charges_total":
            labels = ("dataset", "state")
            charges = {(budget, state): 0.0 for budget in datasets for state in ("granted", "refused")} | values
            values = {(datasets[b], state): amount for (b, state), amount in charges.items() if b in datasets}
        family = CounterMetricFamily(f"warpdesk_{name.removesuffix('_total')}", told.words, labels=labels)
        for known, amount in sorted(values.items()):
            family.add_metric(known, amount)
        return family

    def _times(self, name: str, told: Told, times: Mapping[tuple[str, ...], Timed]) -> Metric:
        labels, sizes = FAMILIES[name].labels, FAMILIES[name].kind == "sizes"
        merged: dict[tuple[str, ...], Timed] = dict.fromkeys(self._zeros(name), Timed())
        for found, timed in times.items():
            known = self._bounded(labels, found)
            merged[known] = merged.get(known, Timed()) + timed
        if not told.bounds:
            summary = SummaryMetricFamily(f"warpdesk_{name}", told.words, labels=labels)
            for known, timed in sorted(merged.items()):
                summary.add_metric(known, timed.count, timed.sum)
            return summary
        histogram = HistogramMetricFamily(f"warpdesk_{name}", told.words, labels=labels)
        for known, timed in sorted(merged.items()):
            at_most = _sizes(timed.buckets, told.bounds) if sizes else buckets.cumulative(timed.buckets, told.bounds)
            pairs = [(_le(bound), float(count)) for bound, count in zip(told.bounds, at_most, strict=True)]
            histogram.add_metric(known, [*pairs, ("+Inf", float(timed.count))], timed.sum)
        return histogram

    def _bounded(self, labels: tuple[str, ...], values: tuple[str, ...]) -> tuple[str, ...]:
        """Operations that this release does not have are one."""
        if "operation" not in labels:
            return values
        place = labels.index("operation")
        known = values[place] if values[place] in self._operations else "other"
        return (*values[:place], known, *values[place + 1 :])

    def _zeros(self, name: str) -> list[tuple[str, ...]]:
        """What is told before the first: a rate cannot see a counter's first step if it begins with it."""
        match FAMILIES[name].labels:
            case ():
                return [()]
            case ("code",):
                return [(code,) for code in (("500", "503") if name == "http_failures_total" else _UNWELL)]
            case ("queue", "reason"):
                return [(queue, reason) for queue in PRIORITIES for reason in FAILURES]
            case ("queue",):
                return [(queue,) for queue in PRIORITIES]
            case ("queue", "operation"):
                return [("batch", operation) for operation in self._operations]
            case ("direction",):
                return [("h2d",), ("d2h",)]
            case ("state",):
                return [("hit",), ("miss",), ("error",)]
            case ("operation",) if FAMILIES[name].kind == "counter":
                return [(operation,) for operation in self._operations]
        return []


class _WithoutBudgets(Registered):
    """What is told to keys that are no admin's: nothing of budgets and rounds, which name datasets."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        return self._metrics.told(budgets=False)


def _timed_as(route: str) -> str:
    """The label of a route's times: the steps of a round have one together, and so have the routes of workers."""
    for together in ("/v1/secagg/rounds/{round_id}/", "/v1/worker/"):
        if route.startswith(together):
            return f"{together}*"
    return route


def _requests(counted: Amounts, requests: Iterable[tuple[str, str, int, float | None]]) -> None:
    answered: dict[tuple[str, str, int], list[float | None]] = defaultdict(list)
    for method, route, status, seconds in requests:
        answered[method, route, status].append(seconds)
    for (method, route, status), times in answered.items():
        counted.add(len(times), "http_requests_total", route, method, str(status))
        if status >= 500 and route.startswith("/v1/"):
            counted.add(len(times), "http_failures_total", str(status))
        told = [seconds for seconds in times if seconds is not None]
        counted.times(told, "http_request_duration_seconds", _timed_as(route), method)


def _datasets(seen: privacy_metrics.Seen) -> dict[str, str]:
    return {budget.id: budget.dataset for budget in seen.budgets}


def _sizes(counts: Mapping[int, int], bounds: tuple[float, ...]) -> list[int]:
    return [sum(count for size, count in counts.items() if size <= bound) for bound in bounds]


def _le(bound: float) -> str:
    return repr(float(bound))


def _of_store(store: Store) -> Iterator[Metric]:
    (left, kept_free), (used, most) = store.disk(), store.stored()
    for name, words, value in (
        ("store_free_bytes", "Free bytes of the disk of arrays and results", left),
        ("store_kept_free_bytes", "How many of them no array and no result may take", kept_free),
        ("store_used_bytes", "Bytes that arrays and results take or were promised", used),
        ("store_max_bytes", "The most that they may be", most),
    ):
        yield _gauge(name, words, {(): value})


def _of_queue(seen: Seen) -> Iterator[Metric]:
    jobs: dict[tuple[str, ...], float] = defaultdict(float)
    oldest: dict[tuple[str, ...], float] = {}
    for queue in PRIORITIES:
        backlog = seen.queues[queue]
        jobs |= {(queue, "queued"): backlog.queued, (queue, "running"): backlog.running}
        jobs[queue, "delayed"] = backlog.delayed
        oldest[(queue,)] = 0.0 if backlog.oldest is None else max(0.0, seen.at - backlog.oldest)
    yield _gauge(
        "queue_jobs",
        "Live jobs: waiting for a worker, running, or waiting out a backoff. Those an identical one computes for are "
        "in none",
        jobs, "queue", "state",
    )  # fmt: skip
    yield _gauge(
        "queue_oldest_job_age_seconds",
        "Since the submission of the oldest job that waits for a worker; 0 where none does",
        oldest, "queue",
    )  # fmt: skip
    yield _gauge("dead_letters", "Jobs that were given up and wait for an operator, for a week", {(): seen.dead})


def _of_redis(facts: Facts) -> Iterator[Metric]:
    """What it does not tell is left out."""
    for name, words, value in (
        ("redis_memory_used_bytes", "Memory that Redis has taken", facts.memory),
        ("redis_memory_max_bytes", "The most it may take; 0 where it may take all there is", facts.max_memory),
        ("redis_keeps_jobs", "1 while it evicts nothing and has an append-only file, else jobs can be lost",
         facts.keeps),
        ("redis_durable", "1 while each write is on its disk before it is confirmed", facts.durability == "always"),
    ):  # fmt: skip
        if value is not None:
            yield _gauge(name, words, {(): value})
    if facts.evicted is not None:
        evicted = CounterMetricFamily("warpdesk_redis_evicted_keys", "Keys that it threw away: jobs may be among them")
        evicted.add_metric([], facts.evicted)
        yield evicted


def _gauge(name: str, words: str, values: Mapping[tuple[str, ...], float], *labels: str) -> Metric:
    family = GaugeMetricFamily(f"warpdesk_{name}", words, labels=labels)
    for known, value in values.items():
        family.add_metric(known, value)
    return family
