"""Benchmark of `POST /v1/jobs/batch`: 200 small jobs in one request, beside the same in turn, by the Python client.

Each job is the RSI of 200 prices of its own, in the request's body. `queued` is until the service has taken all,
`answered` until the client has all results. How long a script of Redis that queues a thousand jobs holds it is measured
by Redis, without workers.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
from redis import Redis

from examples.prices import sp500
from warpdesk import Call, Client
from warpdesk_server.benchmarks.processes import redis, service
from warpdesk_server.benchmarks.report import Row, show
from warpdesk_server.workers.queue.jobs import JobQueue, connect
from warpdesk_server.workers.queue.protocol import JobRequest, Together
from warpdesk_server.workers.queue.records import NewJob

JOBS = 200
PRICES = 200
MOST = 1000
REPEATS = 5


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="warpdesk-bench-") as home, redis() as url:
        with service(url, home=Path(home), WARPDESK_DEVICE="cpu") as address, Client(address) as client:
            rows = _measured(client)
        with connect(url) as connection:
            connection.flushdb()
            rows += [_held(connection, count) for count in (1, JOBS, MOST)]
    show("batch_submit", rows)


def _measured(client: Client) -> list[Row]:
    rng = np.random.default_rng(1)
    closes = sp500().close[:PRICES]

    def calls() -> list[Call]:
        return [Call("rsi", close=closes + rng.normal(size=PRICES), period=14) for _ in range(JOBS)]

    def ended() -> None:
        while next(client.list(1)).status not in ("succeeded", "failed"):
            time.sleep(0.05)
        time.sleep(0.5)  # what follows an end, such as the release of reserved room

    kinds: dict[str, Callable[[list[Call]], Any]] = {
        "queued, in turn": lambda jobs: [client.submit(each.operation, **each.fields) for each in jobs],
        "queued, in one request": client.submit_many,
        "answered, in turn": lambda jobs: [client.run(each.operation, **each.fields) for each in jobs],
        "answered, in one request": client.run_many,
    }
    took: dict[str, list[float]] = {name: [] for name in kinds}
    for repeat in range(REPEATS + 1):
        for name, run in kinds.items():
            jobs = calls()
            begun = time.perf_counter()
            run(jobs)
            if repeat:  # the first is to warm up
                took[name].append(time.perf_counter() - begun)
            ended()
    rows: list[Row] = []
    for name, seconds in took.items():
        what, _, how = name.partition(", ")
        in_turn = statistics.median(took[f"{what}, in turn"])
        rows.append(
            {
                f"{JOBS} jobs": what,
                "how": how,
                "ms": statistics.median(seconds) * 1e3,
                "least": min(seconds) * 1e3,
                "most": max(seconds) * 1e3,
                "of in turn": statistics.median(seconds) / in_turn,
            }
        )
    return rows


def _held(connection: Redis, count: int) -> Row:
    """How long Redis is held by the script that queues so many jobs: the median by its own clock."""
    queue, times = JobQueue(connection, lambda _: "0" * 64), list[float]()
    for repeat in range(3 * REPEATS):
        jobs = [NewJob(_request(repeat * 1024 + place), f"{repeat} {place}") for place in range(count)]
        connection.config_resetstat()
        queue.enqueue_all(jobs)
        found = cast(dict[str, dict[str, float]], connection.info("commandstats"))
        times.append(found["cmdstat_evalsha"]["usec"] / 1e3)
        connection.flushdb()
    return {
        f"{JOBS} jobs": f"Redis held for {count}",
        "how": "one script",
        "ms": statistics.median(times),
        "least": min(times),
        "most": max(times),
    }


def _request(number: int) -> JobRequest:
    return JobRequest(
        id=f"job_{number:032x}",
        owner="bench",
        operation="rsi",
        params={"period": 14},
        inputs={"prices": "blake3:" + "0" * 64},
        timeout=600.0,
        result_ttl=86_400.0,
        size=16_000,
        together=Together(key="0" * 32, items=64, bytes=1 << 26),
        request_id="0" * 16,
    )
