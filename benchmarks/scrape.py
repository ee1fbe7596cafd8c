"""Benchmark of a scrape of `/metrics`: its duration with eight GPU workers and every metric present.

An API process with the whole catalogue; eight workers' reports, each of a GPU of its own as the driver of an H100 is
read; every family of counts, for 40 routes and for every operation in all queues and on both backends, in two size
classes and forty buckets: nearly the 2,200 series that are the most there may be. It is scraped by one client over one
connection, as Prometheus does, first alone and then while others keep the process busy with submissions that are
refused. `/performance-metrics` is asked beside it; the first answer of a process, which reads 7 days of nine devices,
is reported separately.
"""

import itertools
import random
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median, quantiles

import httpx

from tests.stand_ins.nvml import Replay
from warpdesk_server.benchmarks.processes import ROOT, api, redis
from warpdesk_server.benchmarks.report import Row, show
from warpdesk_server.kernels.catalogue import OPERATIONS
from warpdesk_server.workers.gpu.nvml import look
from warpdesk_server.workers.metrics import COUNTED
from warpdesk_server.workers.queue.counts import DEVICE, HOURLY, SIZE_CLASSES, Amounts, Tally, named
from warpdesk_server.workers.queue.jobs import JobQueue, connect
from warpdesk_server.workers.queue.keys import counts_key
from warpdesk_server.workers.queue.protocol import PRIORITIES
from warpdesk_server.workers.queue.reports import DeviceMemory, DeviceReport, GpuCondition, WorkerReport

WORKERS, SCRAPES, BUCKETS = 8, 100, 40
GOAL = 0.050  # seconds, for the 99th percentile
MOST_SERIES = 2200  # that a test allows a full service

_VALUES = {
    "queue": PRIORITIES,
    "operation": tuple(OPERATIONS),
    "backend": ("cpu", "gpu"),
    "state": ("succeeded", "failed", "canceled"),
    "reason": ("", "timeout"),
    "trigger": ("full", "alone"),
    "size_class": SIZE_CLASSES[:2],
    "direction": ("h2d", "d2h"),
    "code": ("200",),
    "method": ("GET",),
    "dataset": (),
}


def main() -> int:
    with redis() as redis_url, tempfile.TemporaryDirectory(prefix="warpdesk-bench-") as home:
        with connect(redis_url) as connection:
            queue = JobQueue(connection)
            fields = _fill(queue)
            hour = int(queue.time() // 3600)
            hours = [counts_key(hour - ago) for ago in range(168)]
            (hourly,) = queue.counted([hour])[1:]
            hourly = {name: amount for name, amount in hourly.items() if _in_an_hour(name)}
            for key in hours:
                connection.hset(key, mapping=hourly)
            for number in range(WORKERS):
                queue.report(_report(number), ttl=600)
        with api(redis_url, Path(home)) as url, httpx.Client(base_url=url, timeout=30) as client:
            began = time.perf_counter()
            while client.get("/performance-metrics").status_code != 200:
                time.sleep(0.1)  # it goes on reading what it had no patience for
            first = time.perf_counter() - began
            rows = [
                _row("/metrics, alone", client, "/metrics"),
                _row("/performance-metrics, alone", client, "/performance-metrics"),
            ]
            with _Busy(url):
                rows.append(_row("/metrics, beside refusals", client, "/metrics"))
            text = client.get("/metrics").text
    series = sum(not line.startswith("#") for line in text.splitlines())
    assert text.count("warpdesk_gpu_info{") == WORKERS
    assert series < MOST_SERIES, series
    facts = {
        "scrape": f"{series} series, {len(text) // 1024} KiB, {len(fields)} counts, {len(hourly)} in each of 168 hours"
    }
    show("scrape", [*rows, {"scrape": "the first /performance-metrics", "median ms": 1e3 * first}, facts])
    return int(any(row["p99 ms"] > GOAL * 1e3 for row in rows if row["scrape"] == "/metrics, alone"))


def _fill(queue: JobQueue) -> dict[str, float]:
    """Write counters of every metric family to Redis, and return them."""
    chance, tally = random.Random(0), Tally()
    routes = [f"/v1/route/{number}" for number in range(40)]
    for family, kept in COUNTED.items():
        values = [routes if label == "route" else _VALUES.get(label, ("a",)) for label in kept.labels]
        for labels in itertools.product(*values):
            if family == "jobs_finished_total" and ("failed" in labels) == ("" in labels):
                continue  # those that failed have a reason, and no others
            devices = [""]
            if "backend" in kept.labels:
                devices = ["a processor"] if "cpu" in labels else [_uuid(number) for number in range(WORKERS)]
            if kept.kind == "counter":
                for device in devices:
                    tally.add(family, *labels, amount=chance.randrange(1, 1_000_000), device=device)
            elif kept.kind == "sizes":
                for size in range(1, 33):
                    tally.add(family, *labels, size, amount=chance.randrange(1, 1000))
            else:
                for _ in range(BUCKETS):
                    one = family, labels, chance.choice(devices), 10 ** chance.uniform(-4, 2)
                    tally.later(_times, one)
    queue.count(tally, ask=True)
    fields = tally.totals() or {}
    assert named("jobs_finished_total", "batch", "rsi", "succeeded", "") in fields
    return fields


def _times(counted: Amounts, times: Iterable[tuple[str, Sequence[str], str, float]]) -> None:
    for family, labels, device, seconds in times:
        counted.times([seconds], family, *labels, device=device)


def _in_an_hour(name: str) -> bool:
    """Whether a counter is kept per hour and is of the first size class: every operation on both backends."""
    family, *labels = name.partition(DEVICE)[0].split("|")
    return family in HOURLY and not {*SIZE_CLASSES[1:]} & {*labels}


def _uuid(number: int) -> str:
    return f"GPU-4810000{number}-0000-4000-8000-000000000000"


def _report(number: int) -> WorkerReport:
    driver = look("", Replay(ROOT / "tests" / "workers" / "gpu" / "nvml" / "h100.json"))
    assert driver.reading is not None
    uuid, now = _uuid(number), time.time()
    reading = driver.reading.model_copy(update={"uuid": uuid})
    gpu = GpuCondition(
        state="healthy", since=now, uuid=uuid, name=reading.name, canary_at=now,
        memory=DeviceMemory(used=10, held=30, limit=1000, stuck=1, peak=20),
        driver=driver.model_copy(update={"reading": reading, "age_seconds": 0.5}),
    )  # fmt: skip
    return WorkerReport(
        name=f"worker-{number}", host=f"host-{number}", pid=4711, child_pid=4712, state="busy",
        device=DeviceReport(backend="gpu", name=reading.name, uuid=uuid), started_at=now, reported_at=now, slot=number,
        gpu=gpu, dollars_per_hour=3.5,
    )  # fmt: skip


class _Busy:
    """A context in which two callers send submissions that are refused, one after the other."""

    def __init__(self, url: str) -> None:
        self._url, self._over = url, threading.Event()
        self._threads = [threading.Thread(target=self._send) for _ in range(2)]

    def _send(self) -> None:
        with httpx.Client(base_url=self._url, timeout=30) as client:
            while not self._over.is_set():
                assert client.post("/v1/jobs", json={"operation": "nothing"}).status_code in (404, 422)

    def __enter__(self) -> None:
        for thread in self._threads:
            thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()


def _durations(client: httpx.Client, path: str, times: int) -> list[float]:
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        answer = client.get(path)
        taken.append(time.perf_counter() - began)
        if answer.status_code != 200:
            raise SystemExit(f"{path} answered {answer.status_code}: {answer.text[:300]}")
    return taken


def _row(name: str, client: httpx.Client, path: str) -> Row:
    _durations(client, path, 3)
    taken = _durations(client, path, SCRAPES if path == "/metrics" else SCRAPES // 10)
    return {
        "scrape": name,
        "median ms": 1e3 * median(taken),
        "p99 ms": 1e3 * quantiles(taken, n=100)[98],
        "worst ms": 1e3 * max(taken),
        "times": len(taken),
    }


if __name__ == "__main__":
    main()
