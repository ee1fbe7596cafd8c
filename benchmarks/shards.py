"""Benchmark of one job on two workers: the same job whole and in shards, over HTTP.

Each worker has one thread, and takes every kind of job. Widths take turns. Times are from a job's start to its end, as
the service tells them. With one worker a cut shows what it costs where it helps nobody.
"""

import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from redis import Redis

from warpdesk.calls import Shards
from warpdesk.client import Client
from warpdesk_server.benchmarks.processes import api, redis, worker
from warpdesk_server.benchmarks.report import Row, show
from warpdesk_server.workers.queue.jobs import JobQueue

REPEATS = 7
# Two workers should be so many times as quick as one, and a cut that helps nobody take so much longer than the job.
TIMES, OVERHEAD = 1.8, 0.03
SETTINGS = {"WARPDESK_DEVICE": "cpu", "WARPDESK_TAKES": "all", "NUMBA_NUM_THREADS": "1"}

WIDTHS: dict[int, Sequence[Shards]] = {1: (1, 2, 16), 2: (1, 2, 4, "auto")}  # by the number of workers

_ASIAN: dict[str, Any] = {
    "payoff": "asian_arithmetic", "option": "call", "spot": 100.0, "strike": 100.0, "volatility": 0.2, "maturity": 1.0,
    "steps": 250,
}  # fmt: skip
# The first has 10^8 path steps, and the first goal.
JOBS: tuple[tuple[str, str, dict[str, Any], dict[str, tuple[int, ...]]], ...] = (
    ("Asian call, 400,000 x 250", "monte_carlo", {**_ASIAN, "paths": 400_000}, {}),
    ("Asian call, 4,000,000 x 250", "monte_carlo", {**_ASIAN, "paths": 4_000_000}, {}),
    ("2,500 x 2,500 by 2,500 x 2,500", "matmul", {"algorithm": "kernel"}, {"a": (2_500,) * 2, "b": (2_500,) * 2}),
    ("median of 200 bars, 500 x 5,000", "rolling_quantile", {"period": 200, "percent": 50.0}, {"close": (500, 5_000)}),
)  # fmt: skip


def main() -> int:
    rows = list[Row]()
    with ExitStack() as stack:
        url = stack.enter_context(redis())
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="warpdesk-bench-")))
        client = Client(stack.enter_context(api(url, home)), timeout=300)
        queue, inputs = JobQueue(Redis.from_url(url)), _upload(client)
        for workers, widths in WIDTHS.items():
            stack.enter_context(worker(url, home, SETTINGS))
            _await(queue, workers)
            for number in range(len(JOBS)):
                rows += _measure(client, number, inputs[number], workers, widths)
    show("shards", rows)
    found = {(row["job"], row["workers"], row["width"]): row["times"] for row in rows}
    reached = found[JOBS[0][0], 2, "2"] >= TIMES and found[JOBS[1][0], 1, "2"] >= 1 - OVERHEAD
    return int(not reached or not all(row["same bytes"] for row in rows))


def _upload(client: Client) -> list[dict[str, Any]]:
    """The inputs of each job, in the service."""
    random, found = np.random.default_rng(1), list[dict[str, Any]]()
    for _, operation, _, shapes in JOBS:
        values = {name: random.normal(0, 0.01, shape) for name, shape in shapes.items()}
        if operation != "matmul":
            values = {name: 100 * np.exp(each.cumsum(1)) for name, each in values.items()}
        found.append({name: client.upload(each) for name, each in values.items()})
    return found


def _measure(client: Client, number: int, inputs: dict[str, Any], workers: int, widths: Sequence[Shards]) -> list[Row]:
    """Time a job with each of these widths, in turns; each once before."""
    label, operation, params, _ = JOBS[number]
    took: dict[Shards, list[float]] = {width: [] for width in widths}
    shards: dict[Shards, int] = {}
    answers = set()
    seed = 1 if operation == "monte_carlo" else None
    for repeat in range(REPEATS + 1):
        for width in widths if repeat % 2 else list(reversed(widths)):
            answer = client.run(operation, shards=width, timeout=600, params=params, seed=seed, **inputs)
            job = client.job(answer.job.id)
            assert job.started_at is not None
            assert job.ended_at is not None
            answers.add(repr([_as_bytes(value) for value in answer.values()]))
            shards[width] = 1 if job.shards is None else job.shards.count
            if repeat:
                took[width].append((job.ended_at - job.started_at).total_seconds())
    whole = median(took[1])
    return [
        {
            "job": label,
            "workers": workers,
            "width": str(width),
            "shards": shards[width],
            "ms": median(seconds) * 1e3,
            "times": whole / median(seconds),
            "same bytes": len(answers) == 1,
        }
        for width, seconds in took.items()
    ]


def _as_bytes(value: Any) -> Any:
    return value.tobytes() if isinstance(value, np.ndarray) else value


def _await(queue: JobQueue, count: int, patience: float = 300.0) -> None:
    """Wait until so many workers are ready and have compiled everything."""
    until = time.monotonic() + patience
    while sum(report.able for report in queue.workers()) < count:
        if time.monotonic() > until:
            raise SystemExit(f"fewer than {count} workers are ready after {patience:.0f} s")
        time.sleep(0.2)


if __name__ == "__main__":
    main()
