"""Benchmark of batches: small jobs a second of one worker, beside a plain RQ SimpleWorker on the same Redis.

Each job is the RSI of 1,000 prices of its own, read from the array store and answered into it, all of them queued
before the clock starts. Both keep what they answer as the profile `always` asks: Redis and files forced to disk. RQ's
job calls the very function that our worker's child calls, for one job. A no-op tells what RQ takes by itself.
"""

import itertools
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from redis import Redis
from rq import Queue
from rq.suspension import resume, suspend

from examples.prices import sp500
from warpdesk.models import State
from warpdesk_server.benchmarks.processes import compiled, redis, rq_worker, worker
from warpdesk_server.benchmarks.report import Row, show
from warpdesk_server.kernels.catalogue import OPERATIONS
from warpdesk_server.workers.child import execute
from warpdesk_server.workers.child.device import without_gpu
from warpdesk_server.workers.queue import scripts
from warpdesk_server.workers.queue.jobs import JobQueue, connect
from warpdesk_server.workers.queue.keys import JOB, LEASES, RQ_SUSPENDED
from warpdesk_server.workers.queue.lua import digest_of
from warpdesk_server.workers.queue.protocol import JobRequest, Together
from warpdesk_server.workers.settings import WorkerSettings
from warpdesk_server.workers.store.spool import SpoolStore

JOBS = 2048
ALIKE = 64  # jobs of a batch
REPEATS = 3
OWNER = "bench"
NO_OP = "operator.truth"

_numbers = itertools.count()


def main() -> None:
    with redis() as url, tempfile.TemporaryDirectory(prefix="warpdesk-bench-") as home, connect(url) as connection:
        store = SpoolStore(Path(home) / "store")
        queue = JobQueue(connection, store.mac_of)
        closes = sp500().close[:1000]
        arrays = [keep(store, closes + turn) for turn in range(JOBS)]
        simple = Queue("bench-simple", connection=connection)
        with (
            worker(url, Path(home), {"WARPDESK_DEVICE": "cpu"}),
            rq_worker(url, "bench-simple", "rq.SimpleWorker"),
        ):
            until(lambda: any(report.state == "ready" for report in queue.workers()))
            compiled(WorkerSettings())
            runs: dict[str, Callable[[], tuple[int, float]]] = {
                "RQ SimpleWorker, no-op": lambda: _rq(simple, connection, [(NO_OP, (True,))] * (JOBS // 8)),
                "RQ SimpleWorker, the same RSI": lambda: _rq(
                    simple,
                    connection,
                    [
                        ("warpdesk_server.benchmarks.batches.answer", (home, request_of(array).model_dump()))
                        for array in arrays[: JOBS // 8]
                    ],
                ),
                "warpdesk, one by one": lambda: _ours(queue, connection, arrays[: JOBS // 4], 1),
                f"warpdesk, batches of {ALIKE}": lambda: _ours(queue, connection, arrays, ALIKE),
            }
            rates: dict[str, list[float]] = {name: [] for name in runs}
            for run in runs.values():  # warm
                run()
            for _ in range(REPEATS):
                for name, run in runs.items():
                    jobs, seconds = run()
                    rates[name].append(jobs / seconds)
            trips = _round_trips(queue, connection, arrays)
        peer = sorted(rates["RQ SimpleWorker, the same RSI"])[REPEATS // 2]
        rows: list[Row] = [
            {
                "RSI of 1,000 prices, one worker": name,
                "jobs/s": sorted(found)[REPEATS // 2],
                "lowest": min(found),
                "highest": max(found),
                "times SimpleWorker": sorted(found)[REPEATS // 2] / peer,
            }
            for name, found in rates.items()
        ]
        show(
            "batches", [*rows, {"RSI of 1,000 prices, one worker": "round trips to Redis in a batch", "jobs/s": trips}]
        )


def answer(home: str, request: dict[str, Any]) -> str:
    """The function that RQ's worker runs: one job, computed as by the worker's child process."""
    store = _stores.setdefault(home, SpoolStore(Path(home) / "store"))
    job = JobRequest.model_validate(request)
    (outcome,) = execute.run([(job, 1)], store, _nowhere, OPERATIONS)
    return outcome.model_dump_json()


_stores: dict[str, SpoolStore] = {}
_nowhere = without_gpu("a benchmark of the CPU")


def request_of(array: str, alike: int = 1) -> JobRequest:
    together = Together(key="rsi", items=alike, bytes=1 << 30) if alike > 1 else None
    return JobRequest(
        id=f"job_{next(_numbers):08d}",
        owner=OWNER,
        operation="rsi",
        params={"period": 14},
        inputs={"prices": array},
        timeout=60.0,
        result_ttl=3600.0,
        size=16_000,
        together=together,
    )


def keep(store: SpoolStore, values: np.ndarray) -> str:
    with store.writer(OWNER, "float64", values.shape, 3600.0) as writer:
        writer.take(np.ascontiguousarray(values, np.float64).tobytes())
        return writer.commit(has_nan=False, has_inf=False).id


def _ours(queue: JobQueue, connection: Redis, arrays: list[str], alike: int) -> tuple[int, float]:
    with all_at_once(connection):
        ids = [queue.enqueue(request_of(array, alike)).job_id for array in arrays]
    start = time.perf_counter()
    until(lambda: not queue.length() and not connection.zcard(LEASES))
    seconds = time.perf_counter() - start
    records = [queue.get(job_id) for job_id in ids]
    assert all(record is not None and record.state is State.SUCCEEDED for record in records)
    first = min(record.started_at or 0.0 for record in records if record)
    return len(ids), min(seconds, max(record.ended_at or 0.0 for record in records if record) - first)


def _rq(queue: Queue, connection: Redis, calls: list[tuple[str, tuple[Any, ...]]]) -> tuple[int, float]:
    with all_at_once(connection):
        jobs = [queue.enqueue(name, *arguments) for name, arguments in calls]
    until(lambda: all(job.get_status().value == "finished" for job in jobs[-1:]))
    for job in jobs:
        job.refresh()
        assert job.get_status().value == "finished", job.latest_result()
    first = min(job.started_at for job in jobs if job.started_at)
    return len(jobs), (max(job.ended_at for job in jobs if job.ended_at) - first).total_seconds()


@contextmanager
def all_at_once(connection: Redis) -> Iterator[None]:
    """Suspend the workers in this context, so that all jobs are queued before the first starts."""
    suspend(connection)
    time.sleep(1.5)  # each looks once a second, and is handed nothing meanwhile
    try:
        yield
    finally:
        resume(connection)


def _round_trips(queue: JobQueue, connection: Redis, arrays: list[str]) -> float:
    """All that a worker sends for a batch, its heartbeat included: each command, though those of a pipeline are one
    trip."""
    commands: list[str] = []
    done = threading.Event()
    with connection.monitor() as monitor:  # type: ignore[no-untyped-call]

        def listen() -> None:
            for command in monitor.listen():
                if "bench-over" in command["command"]:
                    done.set()
                    return
                if command["client_type"] != "lua":
                    commands.append(command["command"])

        thread = threading.Thread(target=listen)
        thread.start()
        _ours(queue, connection, arrays, ALIKE)
        connection.echo("bench-over")
        done.wait(30)
        thread.join(30)
    ours = (
        f"EVALSHA {digest_of(scripts.ENQUEUE)}",
        "ZCARD",
        f"HGETALL {JOB}",
        f"SET {RQ_SUSPENDED}",
        f"DEL {RQ_SUSPENDED}",
        "MONITOR",
    )
    sent = [command for command in commands if not command.startswith(ours)]
    return len(sent) / (len(arrays) / ALIKE)


def until(true: Callable[[], bool], patience: float = 300.0) -> None:
    deadline = time.monotonic() + patience
    while not true():
        if time.monotonic() > deadline:
            raise SystemExit(f"it took more than {patience:.0f} s")
        time.sleep(0.002)


if __name__ == "__main__":
    main()
