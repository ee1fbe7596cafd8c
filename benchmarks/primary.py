"""Benchmark of what one Redis primary carries: jobs a second through the real scripts, and Redis' own processor time.

Each process enqueues jobs one by one, as the API does for its callers, claims what waits, and ends it in the round trip
that claims the next. No job is computed and no file is written, so what is measured is the queue alone. The processes
share the cores with Redis, and Python takes more of them than Redis does. What Redis could carry on a core of its own
is therefore told by the processor time of its main thread for each job: `jobs/s of a core` is its inverse. `Redis idle`
is the part of the time in which that thread had no processor, since it waited for the disk or for whoever asks. With
`appendfsync always` the disk may be the limit before the processor.
"""

import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

from redis import Redis

from warpdesk_server.benchmarks.report import Row, show
from warpdesk_server.service.redis_server import RedisServer
from warpdesk_server.workers.queue.jobs import JobQueue, connect
from warpdesk_server.workers.queue.lua import load
from warpdesk_server.workers.queue.protocol import JobRequest, Provenance, Succeeded, Together
from warpdesk_server.workers.queue.records import Claim, Ending
from warpdesk_server.workers.settings import Durability
from warpdesk_server.workers.store.spool import SpoolStore

SECONDS = 4.0  # of a run
AT_ONCE = 64  # jobs that a process enqueues before it works them off
DURABILITIES: tuple[Durability, ...] = ("always", "everysec")
PROCESSES = (1, 8)
ALIKE = (1, 64)  # jobs of a batch


def main() -> None:
    rows = list[Row]()
    for durability in DURABILITIES:
        with (
            tempfile.TemporaryDirectory(prefix="warpdesk-bench-") as home,
            RedisServer(Path(home), durability) as server,
            connect(server.url) as connection,
        ):
            load(connection)
            for alike in ALIKE:
                for processes in PROCESSES:
                    _run(server.url, home, connection, alike, processes, 0.5)
                    rows.append({"appendfsync": durability, **_run(server.url, home, connection, alike, processes)})
    show("primary", rows)


def _run(
    url: str, home: str, connection: Redis, alike: int, processes: int, seconds: float = SECONDS
) -> dict[str, Any]:
    context = multiprocessing.get_context("fork")  # each process connects by itself
    barrier, done = context.Barrier(processes + 1), context.SimpleQueue()
    workers = [
        context.Process(
            target=_work,
            args=(url, home, f"{alike}-{processes}-{int(seconds)}-{number}", alike, seconds, barrier, done),
        )
        for number in range(processes)
    ]
    for worker in workers:
        worker.start()
    barrier.wait()
    began, before = time.perf_counter(), _busy(connection)
    jobs = sum(done.get() for _ in workers)
    took, after = time.perf_counter() - began, _busy(connection)
    for worker in workers:
        worker.join()
    busy = after - before
    return {
        "jobs of a batch": alike,
        "processes": processes,
        "jobs/s": jobs / took,
        "Redis, us a job": busy / jobs * 1e6,
        "jobs/s of a core": jobs / busy,
        "Redis idle": 1 - busy / took,
    }


def _busy(connection: Redis) -> float:
    """The processor time of Redis' main thread, in seconds."""
    found: Any = connection.info("cpu")
    return float(found["used_cpu_user_main_thread"] + found["used_cpu_sys_main_thread"])


def _work(url: str, home: str, name: str, alike: int, seconds: float, barrier: Any, done: Any) -> None:
    store = SpoolStore(Path(home) / "store")
    with connect(url) as connection:
        queue, requests = JobQueue(connection, store.mac_of), _requests(name, alike)
        barrier.wait()
        until, ended = time.monotonic() + seconds, 0
        while time.monotonic() < until:
            for _ in range(AT_ONCE):
                queue.enqueue(next(requests))
            batch = queue.claim(Claim(name))
            while batch is not None:
                endings = [Ending(held, Succeeded(result=f"{held.id}.1", provenance=_HOW)) for held in batch.jobs]
                ended += len(endings)
                batch = queue.finish(endings, name, then=Claim(name)).then
        done.put(ended)


def _requests(name: str, alike: int) -> Iterator[JobRequest]:
    together = Together(key="rsi", items=alike, bytes=1 << 30) if alike > 1 else None
    for number in count():
        yield JobRequest(
            id=f"job_{name}-{number}",
            owner="bench",
            operation="rsi",
            params={"period": 14},
            inputs={"prices": "blake3:" + "0" * 64},
            timeout=60.0,
            result_ttl=3600.0,
            size=16_000,
            together=together,
        )


_HOW = Provenance(backend="cpu", device="CPU", attempt=1, compute_seconds=0.001)
