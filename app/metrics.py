"""What this process counted: requests, and jobs whose end it saw. No ids in labels."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client import Counter as PrometheusCounter
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector
from redis.exceptions import RedisError

from workers.protocol import PRIORITIES, WorkerReport
from workers.queue import JobQueue, JobRecord


class _QueueCollector(Collector):
    """Queue length and workers, read from Redis when someone scrapes; left out while Redis is away."""

    def __init__(self, jobs: JobQueue) -> None:
        self._jobs = jobs

    def collect(self) -> Iterator[Any]:
        up = GaugeMetricFamily("warpdesk_queue_up", "1 while the queue can be reached")
        try:
            length, oldest, workers = self._jobs.length(), self._jobs.oldest(), self._jobs.workers()
            lanes = self._jobs.waiting_by_owner()
        except (RedisError, OSError):
            up.add_metric([], 0)
            yield up
            return
        up.add_metric([], 1)
        yield up
        queued = GaugeMetricFamily("warpdesk_queue_length", "Jobs that wait for a worker")
        queued.add_metric([], length)
        yield queued
        waited = GaugeMetricFamily("warpdesk_queue_oldest_seconds", "How long the oldest of them has waited")
        waited.add_metric([], oldest or 0.0)
        yield waited
        counts = {priority: sum(lanes.get(priority, {}).values()) for priority in PRIORITIES}
        yield _gauge("warpdesk_queue_lane_length", "Jobs that wait, those in a backoff left out", "priority", counts)
        alive = GaugeMetricFamily("warpdesk_workers", "Live workers", labels=["state", "backend"])
        for labels, count in Counter(
            (worker.state, worker.device.backend if worker.device else "unknown") for worker in workers
        ).items():
            alive.add_metric(list(labels), count)
        yield alive
        yield from _gpus(workers)

    def describe(self) -> Iterator[Any]:
        return iter(())  # registering must not touch Redis


def _gpus(workers: Sequence[WorkerReport]) -> Iterator[Any]:
    """Of all live workers. The counters of a worker that goes go with it."""
    known = [worker.gpu for worker in workers if worker.gpu is not None]
    states = Counter(gpu.state for gpu in known)
    yield _gauge("warpdesk_gpus", "GPUs of live workers, by their condition", "state", states)
    breakers = Counter(breaker.what for gpu in known for breaker in gpu.breakers)
    yield _gauge("warpdesk_breakers", "GPUs that a kernel or an example is kept off", "what", breakers)
    faults: Counter[str] = sum((Counter(gpu.faults) for gpu in known), Counter())
    yield _counter("warpdesk_gpu_faults", "Faults of GPUs, by kind", "kind", faults)
    fallbacks: Counter[str] = sum((Counter(worker.fallbacks) for worker in workers), Counter())
    yield _counter("warpdesk_fallbacks", "Answers of the CPU that were wanted from a GPU", "reason", fallbacks)
    restarts = CounterMetricFamily("warpdesk_worker_restarts", "Processes of live workers that were replaced")
    restarts.add_metric([], sum(worker.restarts for worker in workers))
    yield restarts


def _gauge(name: str, words: str, label: str, counts: Mapping[Any, int]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, words, labels=[label])
    for value, count in sorted(counts.items()):
        family.add_metric([value], count)
    return family


def _counter(name: str, words: str, label: str, counts: Mapping[Any, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, words, labels=[label])
    for value, count in sorted(counts.items()):
        family.add_metric([value], count)
    return family


class Metrics:
    """The counters of one API process."""

    def __init__(self, jobs: JobQueue) -> None:
        self.registry = CollectorRegistry()
        self._requests = PrometheusCounter(
            "warpdesk_http_requests", "Requests answered", ["method", "route", "status"], registry=self.registry
        )
        self._latency = Histogram(
            "warpdesk_http_request_seconds",
            "From the request's head to the end of the response",
            ["method", "route"],
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
            registry=self.registry,
        )
        self._submitted = PrometheusCounter(
            "warpdesk_jobs_submitted", "Jobs this process enqueued", ["operation"], registry=self.registry
        )
        self._ended = PrometheusCounter(
            "warpdesk_jobs_finished",
            "Jobs whose end this process saw; each API process sees the ends of all jobs",
            ["operation", "state"],
            registry=self.registry,
        )
        self._replayed = PrometheusCounter(
            "warpdesk_jobs_replayed", "Submissions answered with their Idempotency-Key's job", registry=self.registry
        )
        self._refused = PrometheusCounter(
            "warpdesk_refusals", "Requests this process refused", ["code"], registry=self.registry
        )
        self._together = Histogram(
            "warpdesk_batch_jobs",
            "Jobs in the launch that computed a job, counted for each job",
            ["operation"],
            buckets=(1, 2, 4, 8, 16, 32, 64, 128),
            registry=self.registry,
        )
        self._batches = PrometheusCounter(
            "warpdesk_batches",
            "Launches of several jobs or of one, by why there were no more; each job counts as its share of one",
            ["operation", "reason"],
            registry=self.registry,
        )
        self._coalesced = PrometheusCounter(
            "warpdesk_jobs_coalesced", "Jobs that an identical one was computed for", ["operation"],
            registry=self.registry,
        )  # fmt: skip
        self._redelivered = PrometheusCounter(
            "warpdesk_redeliveries", "Attempts beyond the first of jobs that ended", ["operation"],
            registry=self.registry,
        )  # fmt: skip
        self._strikes = PrometheusCounter(
            "warpdesk_strikes", "Attempts that ended their worker, of jobs that ended", ["operation"],
            registry=self.registry,
        )  # fmt: skip
        self._dead = PrometheusCounter(
            "warpdesk_dead_letters", "Jobs that were given up", ["operation"], registry=self.registry
        )
        self.registry.register(_QueueCollector(jobs))

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        self._requests.labels(method, route, str(status)).inc()
        self._latency.labels(method, route).observe(seconds)

    def submitted(self, operation: str) -> None:
        self._submitted.labels(operation).inc()

    def replayed(self) -> None:
        self._replayed.inc()

    def refused(self, code: str) -> None:
        self._refused.labels(code).inc()

    def finished(self, record: JobRecord) -> None:
        """Count a job that has reached a final state."""
        if not record.state.final:
            return
        operation = record.request.operation
        self._ended.labels(operation, record.state.value).inc()
        self._delivered(operation, record)

    def _delivered(self, operation: str, record: JobRecord) -> None:
        """How often it was tried, and with how many others it ran at last."""
        self._redelivered.labels(operation).inc(max(0, record.attempt - 1))
        self._strikes.labels(operation).inc(record.strikes)
        self._dead.labels(operation).inc(record.dead)
        provenance = record.provenance
        if provenance is None:
            return
        if provenance.coalesced:
            self._coalesced.labels(operation).inc()
            return
        self._together.labels(operation).observe(provenance.batch_size)
        self._batches.labels(operation, provenance.batch_reason or "alone").inc(1 / provenance.batch_size)

    def exposition(self) -> bytes:
        """In the Prometheus text format. Reads Redis: call it in a thread."""
        return generate_latest(self.registry)
