"""Benchmark of the service: latency and throughput of small jobs, beside plain RQ on the same Redis.

Ours goes over HTTP: POST with `Prefer: wait`, validation, queue, worker, result as JSON. It is a job as small as jobs
get, the sum of three numbers, and one of use, the RSI of 1,000 closes. RQ's is a no-op without HTTP, from `enqueue` to
`latest_result(timeout)`: what a job queue alone costs. Kinds take turns, ten calls at a time: one call after the
other, then each after a rest, from which processors wake slowly and RQ's worker has ended what it does after a job. The
client is the standard library's, and its JSON encoding and decoding count. Each body has different prices.
"""

import http.client
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from itertools import count
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from redis import Redis
from rq import Queue

from examples.prices import sp500
from warpdesk_server.benchmarks.processes import (
    API,
    CHILD,
    PARENT,
    process_of,
    processor_seconds,
    redis,
    rq_worker,
    service,
)
from warpdesk_server.benchmarks.report import Row, show

CALLS = 500  # of each kind, after a run of uncounted ones
RUN = 10  # of one kind, before those of another
REST = 0.02  # seconds
JOBS = 400
CONNECTIONS = 16
NO_OP = "operator.truth"  # a built-in the workers have loaded, so that no import is timed


def main() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="warpdesk-bench-") as home,
        redis() as redis_url,
        service(redis_url, home=Path(home)) as url,
        rq_worker(redis_url, "bench-fork", "rq.Worker"),
        rq_worker(redis_url, "bench-simple", "rq.SimpleWorker"),
    ):
        client = _Client(url)
        # RQ blocks on a stream for a job's result: longer than redis-py's default socket time-out of 5 s.
        connection = Redis.from_url(redis_url, socket_timeout=60)
        fork, simple = Queue("bench-fork", connection=connection), Queue("bench-simple", connection=connection)
        closes = sp500().close[:1000]
        inline = ({"data": (closes + turn).tolist()} for turn in count())
        uploaded, vector = _upload(client, closes), _upload(client, [3.0, -4.0, 12.0])
        stored = ({"array": uploaded} for _ in count())
        calls = {
            "RQ SimpleWorker, no-op": lambda: _no_op(simple),
            "RQ Worker (fork), no-op": lambda: _no_op(fork),
            "warpdesk, sum of three, numbers uploaded before": lambda: _sum(client, vector),
            "warpdesk, RSI, prices in the body": lambda: _rsi(client, next(inline)),
            "warpdesk, RSI, prices uploaded before": lambda: _rsi(client, next(stored)),
        }
        show("service_latency", _latency(calls, rest=0.0))
        show("service_latency_after_rest", _latency(calls, rest=REST))
        show(
            "service_throughput",
            _throughput(
                {
                    "RQ SimpleWorker, no-op": lambda: _many_no_ops(simple, JOBS),
                    "RQ Worker (fork), no-op": lambda: _many_no_ops(fork, JOBS // 4),
                    "warpdesk, RSI, prices in the body": lambda: _many_rsi(client, inline, JOBS),
                    "warpdesk, RSI, prices uploaded before": lambda: _many_rsi(client, stored, JOBS),
                }
            ),
        )
        parts = {
            "API": process_of(Path(home), API),
            "worker's parent": process_of(Path(home), PARENT),
            "worker's child": process_of(Path(home), CHILD),
            "Redis": int(connection.info("server")["process_id"]),
        }
        show(
            "service_processors", [_processors(parts, connections, client, inline) for connections in (1, CONNECTIONS)]
        )


class _Client:
    """An HTTP client that keeps its connections open, as many as are in use at once."""

    def __init__(self, url: str) -> None:
        self._address = urlsplit(url).netloc
        self._idle: SimpleQueue[http.client.HTTPConnection] = SimpleQueue()

    def send(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, Any]:
        try:
            connection = self._idle.get_nowait()
        except Empty:
            connection = http.client.HTTPConnection(self._address, timeout=60)
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        answer = response.status, json.loads(response.read())
        self._idle.put(connection)
        return answer


def _upload(client: _Client, values: Any) -> str:
    file = BytesIO()
    np.save(file, values)
    status, array = client.send("PUT", "/v1/arrays", file.getvalue(), {"Content-Type": "application/x-npy"})
    assert status == 201, array
    return str(array["id"])


def _sum(client: _Client, vector: str) -> None:
    assert _run(client, {"operation": "sum", "inputs": {"x": {"array": vector}}}) == {"sum": [11.0]}


def _rsi(client: _Client, prices: dict[str, Any]) -> None:
    outputs = _run(client, {"operation": "rsi", "params": {"period": 14}, "inputs": {"prices": prices}})
    assert len(outputs["rsi"]) == 1000


def _run(client: _Client, body: dict[str, Any]) -> Any:
    headers = {"Content-Type": "application/json", "Prefer": "wait=50"}
    status, job = client.send("POST", "/v1/jobs", json.dumps(body).encode(), headers)
    assert status == 200, job
    return job["result"]["outputs"]


def _no_op(queue: Queue) -> None:
    result = queue.enqueue(NO_OP, True).latest_result(timeout=30)
    assert result is not None
    assert result.return_value is True


def _processors(parts: dict[str, int], connections: int, client: _Client, prices: Iterator[dict[str, Any]]) -> Row:
    """The processor time of a job, an RSI with its prices in the body, by process."""
    before = {name: processor_seconds(process) for name, process in parts.items()}
    jobs = _many_rsi(client, prices, 5 * JOBS, connections)
    took = {name: 1e3 * (processor_seconds(parts[name]) - seconds) / jobs for name, seconds in before.items()}
    return {
        "connections": connections,
        **{f"{name}, ms": each for name, each in took.items()},
        "all, ms": sum(took.values()),
    }


def _many_rsi(client: _Client, prices: Iterator[dict[str, Any]], jobs: int, connections: int = CONNECTIONS) -> int:
    with ThreadPoolExecutor(connections) as pool:
        for done in [pool.submit(_rsi, client, next(prices)) for _ in range(jobs)]:
            done.result()
    return jobs


def _many_no_ops(queue: Queue, count: int) -> int:
    jobs = [queue.enqueue(NO_OP, True) for _ in range(count)]
    for job in jobs:
        result = job.latest_result(timeout=60)
        assert result is not None
        assert result.return_value is True
    return count


def _latency(calls: dict[str, Callable[[], None]], rest: float) -> list[Row]:
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(1 + CALLS // RUN):
        for name, call in calls.items():
            call()  # what other workers and Redis do after the calls before is over then
            for _ in range(RUN):
                time.sleep(rest)
                start = time.perf_counter()
                call()
                if turn:
                    seconds[name].append(time.perf_counter() - start)
    baseline = statistics.median(next(iter(seconds.values())))
    return [
        {
            "from request to answer": name,
            "median ms": 1e3 * statistics.median(taken),
            "p99 ms": 1e3 * statistics.quantiles(taken, n=100)[-1],
            "fastest ms": 1e3 * min(taken),
            "times RQ SimpleWorker": statistics.median(taken) / baseline,
        }
        for name, taken in seconds.items()
    ]


def _throughput(runs: dict[str, Callable[[], int]], repeats: int = 3) -> list[Row]:
    rates: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            start = time.perf_counter()
            count = run()
            rates[name].append(count / (time.perf_counter() - start))
    baseline = statistics.median(next(iter(rates.values())))
    return [
        {
            f"one worker, {CONNECTIONS} connections": name,
            "jobs/s": statistics.median(found),
            "lowest": min(found),
            "highest": max(found),
            "times RQ SimpleWorker": statistics.median(found) / baseline,
        }
        for name, found in rates.items()
    ]


if __name__ == "__main__":
    main()
