"""The Prometheus page at `/metrics`.

Every API process serves the same metrics of the service. Only requests in progress, the lag of the event loop and
`collector_up` are the process' own, so a query over several processes takes `max without (instance, pod)` first. A
scrape never waits for a Redis or a ledger that hangs: it serves the last values, and `collector_up` says so.
"""

import platform
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import product

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector as Registered

from warpdesk_server.app.kit.errors import CODES
from warpdesk_server.app.metrics import gpu as gpu_metrics
from warpdesk_server.app.metrics import privacy as privacy_metrics
from warpdesk_server.app.metrics.collector import Collector
from warpdesk_server.app.metrics.families import families, family, times
from warpdesk_server.app.metrics.redis_source import Facts, RedisCollector, Snapshot
from warpdesk_server.kernels.operation import Computation
from warpdesk_server.workers.metrics import COUNTED, OPERATION, REFUSAL
from warpdesk_server.workers.queue.counts import Amounts, Counts, Timed
from warpdesk_server.workers.queue.protocol import PRIORITIES
from warpdesk_server.workers.store.protocol import Store

# How long a scrape waits for Redis.
PATIENCE = 0.5

# Refusals that mean a problem of the service. They are exported as 0 before the first, so that an alert sees the first.
_UNWELL = [code for code, (status, _, _) in CODES.items() if status >= 429] + ["budget-exceeded"]


class Metrics(Registered):
    """The metrics of one API process: it counts requests, and writes the page that Prometheus scrapes."""

    def __init__(
        self,
        redis: RedisCollector,
        ledger: Collector[privacy_metrics.Snapshot],
        operations: Mapping[str, Computation],
        version: str,
        store: Store,
    ) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(self)
        self._redis = redis
        self._ledger = ledger
        self._labels = {name: operation.counted_as or name for name, operation in operations.items()}
        self._version = version
        self._store = store
        self._in_progress = 0
        self._turned_at = time.monotonic()

    def begun(self) -> None:
        """Count a request in progress for the API's metrics. Like `request`, only for the event loop's thread."""
        self._in_progress += 1

    def turned(self) -> None:
        """Note for the API's metrics that the event loop ran: its lag is counted from this moment."""
        self._turned_at = time.monotonic()

    def request(self, method: str, route: str, status: int, seconds: float | None) -> None:
        """Count an answered request for the API's metrics; `seconds` is None for one that waited for a private job."""
        self._in_progress -= 1
        self._redis.tally.later(_requests, (method, route, status, seconds))

    def replayed(self) -> None:
        self._redis.tally.add("jobs_replayed_total")

    def refused(self, code: str) -> None:
        self._redis.tally.add("refusals_total", code)

    def charged(self, budget: str, state: str) -> None:
        """Count a budget charge as granted or refused for the API's metrics. The metric shows the dataset of the
        budget with this id."""
        self._redis.tally.add("privacy_charges_total", budget, state)

    def exposition(self, *, budgets: bool) -> bytes:
        """The API's metrics page in Prometheus text format. With `budgets` it includes the metrics that name datasets.

        It may wait for up to PATIENCE seconds: call it in a thread.
        """
        registry = CollectorRegistry()
        registry.register(self if budgets else _WithoutBudgets(self))
        return generate_latest(registry)

    def describe(self) -> Iterator[Metric]:
        return iter(())  # so that registering reads no source

    def collect(self) -> Iterator[Metric]:
        yield from self.all_metrics(budgets=True)

    def all_metrics(self, *, budgets: bool) -> Iterator[Metric]:
        snapshot, fresh = self._redis.ask(PATIENCE)
        counts = self._redis.tally.totals()
        kept, fresh_ledger = self._ledger.last(privacy_metrics.OLD_SECONDS)
        yield from families(
            {
                "build_info": {(self._version, platform.python_version()): 1},
                "collector_up": {("queue",): fresh, ("redis",): fresh, ("ledger",): fresh_ledger},
                "queue_up": {(): fresh},
                "http_requests_in_progress": {(): self._in_progress},
                "event_loop_lag_seconds": {(): time.monotonic() - self._turned_at},
            }
        )
        yield from _of_store(self._store)
        if counts is not None:
            yield from self._counted(Counts.of(counts), {} if kept is None or not budgets else _datasets(kept))
        if snapshot is not None:
            yield from _of_queue(snapshot)
            yield from _of_redis(snapshot.facts)
            yield from gpu_metrics.collect(snapshot.workers)
        if kept is not None and budgets:
            yield from privacy_metrics.collect(kept)

    def _counted(self, counts: Counts, datasets: Mapping[str, str]) -> Iterator[Metric]:
        for name, metric in COUNTED.items():
            if metric.kind == "counter":
                yield self._counter(name, counts.counters.get(name, {}), datasets)
            else:
                yield self._times(name, counts.times.get(name, {}))

    def _counter(self, name: str, amounts: Mapping[tuple[str, ...], float], datasets: Mapping[str, str]) -> Metric:
        values: dict[tuple[str, ...], float] = dict.fromkeys(self._zeros(name), 0.0)
        for labels, amount in amounts.items():
            bounded = self._bounded(name, labels)
            values[bounded] = values.get(bounded, 0.0) + amount
        if name == "privacy_charges_total":
            charges = {(budget, state): 0.0 for budget in datasets for state in ("granted", "refused")} | values
            values = {(datasets[b], state): amount for (b, state), amount in charges.items() if b in datasets}
        return family(name, dict(sorted(values.items())))

    def _times(self, name: str, counted: Mapping[tuple[str, ...], Timed]) -> Metric:
        merged: dict[tuple[str, ...], Timed] = dict.fromkeys(self._zeros(name), Timed())
        for labels, timed in counted.items():
            bounded = self._bounded(name, labels)
            merged[bounded] = merged.get(bounded, Timed()) + timed
        return times(name, dict(sorted(merged.items())))

    def _bounded(self, name: str, values: tuple[str, ...]) -> tuple[str, ...]:
        """The label values of a metric on the Prometheus page, with `indicator` for declared indicators, which are one
        loop, and `other` for operations that this release does not have."""
        labels = COUNTED[name].labels
        if "operation" not in labels:
            return values
        place = labels.index("operation")
        operation = self._labels.get(values[place], "other")
        return (*values[:place], operation, *values[place + 1 :])

    def _zeros(self, name: str) -> list[tuple[str, ...]]:
        """The label values that a metric exports to Prometheus as 0 from the start: else a rate misses the first
        increment."""
        metric = COUNTED[name]
        values_of = {OPERATION: list(dict.fromkeys(self._labels.values())), REFUSAL: _UNWELL}
        zeros = metric.zeros if metric.labels else ((),)
        return [each for zero in zeros for each in product(*(values_of.get(value, [value]) for value in zero))]


class _WithoutBudgets(Registered):
    """The metrics for API keys without the scope admin: none of budgets and rounds, because these name datasets."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        return self._metrics.all_metrics(budgets=False)


def _timed_as(route: str) -> str:
    """The `route` label in the metric of request durations: the steps of a round share one, and so do the routes of
    workers, and those of administrators that ask for the whole service."""
    if route.startswith(("/v1/queue", "/v1/keys", "/v1/audit")):
        return "administration"
    for together in ("/v1/secagg/rounds/{round_id}/", "/v1/worker/"):
        if route.startswith(together):
            return f"{together}*"
    return route


def _requests(counted: Amounts, requests: Iterable[tuple[str, str, int, float | None]]) -> None:
    answered: dict[tuple[str, str, int], list[float | None]] = defaultdict(list)
    for method, route, status, seconds in requests:
        answered[method, route, status].append(seconds)
    for (method, route, status), durations in answered.items():
        counted.add(len(durations), "http_requests_total", route, method, str(status))
        if status >= 500 and route.startswith("/v1/"):
            counted.add(len(durations), "http_failures_total", str(status))
        timed = [seconds for seconds in durations if seconds is not None]
        counted.times(timed, "http_request_duration_seconds", _timed_as(route), method)


def _datasets(ledger: privacy_metrics.Snapshot) -> dict[str, str]:
    return {budget.id: budget.dataset for budget in ledger.budgets}


def _of_store(store: Store) -> Iterator[Metric]:
    (left, kept_free), (used, most) = store.disk(), store.stored()
    return families(
        {
            "store_free_bytes": {(): left},
            "store_kept_free_bytes": {(): kept_free},
            "store_used_bytes": {(): used},
            "store_max_bytes": {(): most},
        }
    )


def _of_queue(snapshot: Snapshot) -> Iterator[Metric]:
    jobs: dict[tuple[str, ...], float] = defaultdict(float)
    oldest: dict[tuple[str, ...], float] = {}
    for queue in PRIORITIES:
        backlog = snapshot.queues[queue]
        jobs |= {(queue, "queued"): backlog.queued, (queue, "running"): backlog.running}
        jobs[queue, "delayed"] = backlog.delayed
        oldest[(queue,)] = 0.0 if backlog.oldest is None else max(0.0, snapshot.at - backlog.oldest)
    dead: dict[tuple[str, ...], float] = {(): snapshot.dead}
    paused: dict[tuple[str, ...], float] = {(): snapshot.paused}
    yield from families({"queue_jobs": jobs, "queue_oldest_job_age_seconds": oldest})
    yield from families({"paused_tasks": paused, "dead_letters": dead})


def _of_redis(facts: Facts) -> Iterator[Metric]:
    """Metrics of Redis itself on the API's metrics page; a value that Redis does not report is left out."""
    values = {
        "redis_memory_used_bytes": facts.memory,
        "redis_memory_max_bytes": facts.max_memory,
        "redis_keeps_jobs": facts.keeps,
        "redis_durable": facts.durability == "always",
        "redis_evicted_keys_total": facts.evicted,
    }
    return families({name: {(): value} for name, value in values.items() if value is not None})
