"""Benchmark of a plan beside its steps as jobs: four indicators of an uploaded array, of which the last bar is wanted.

The plan answers the last bar of each; the jobs answer whole arrays, since a job has no `last`. Both take turns, over
HTTP, on one worker, and the last bars are compared byte by byte.
"""

import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from redis import Redis

from warpdesk.client import Client
from warpdesk.plan import Plan
from warpdesk_server.benchmarks.processes import api, redis, worker
from warpdesk_server.benchmarks.report import Row, show
from warpdesk_server.workers.queue.jobs import JobQueue

REPEATS = 11
PART = 0.25  # of the time of four jobs that the plan may take
SHAPE = (500, 2_520)
INDICATORS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("rsi", "rsi", {"period": 14}),
    ("ema", "ema", {"period": 20}),
    ("bollinger", "upper", {"period": 20}),
    ("sma", "sma", {"period": 50}),
)


def main() -> int:
    prices = 100 * np.exp(np.random.default_rng(1).normal(0, 0.01, SHAPE).cumsum(1))
    with ExitStack() as stack:
        url = stack.enter_context(redis())
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="warpdesk-bench-")))
        client = Client(stack.enter_context(api(url, home)), timeout=300)
        stack.enter_context(worker(url, home, {"WARPDESK_DEVICE": "cpu"}))
        queue = JobQueue(Redis.from_url(url))
        while not any(report.able for report in queue.workers()):
            time.sleep(0.1)
        uploaded = client.upload(prices)
        ways: dict[str, Callable[[], list[Any]]] = {
            "a plan, last: 1": lambda: _plan(client, uploaded),
            "four jobs": lambda: _jobs(client, uploaded),
        }
        took: dict[str, list[float]] = {name: [] for name in ways}
        bars = {name: way() for name, way in ways.items()}  # each once before
        for repeat in range(REPEATS):
            for name in ways if repeat % 2 else list(ways)[::-1]:
                began = time.perf_counter()
                bars[name] = ways[name]()
                took[name].append(time.perf_counter() - began)
    one, four = bars.values()
    same = all(bar.tobytes() == np.ascontiguousarray(other).tobytes() for bar, other in zip(one, four, strict=True))
    whole = median(took["four jobs"])
    rows: list[Row] = [
        {
            "request": name,
            "indicators": len(INDICATORS),
            "assets": SHAPE[0],
            "bars": SHAPE[1],
            "seconds": round(median(times), 4),
            "part": round(median(times) / whole, 3),
            "same bytes": same,
        }
        for name, times in took.items()
    ]
    show("plans", rows)
    return int(not same or rows[0]["part"] > PART)


def _plan(client: Client, prices: Any) -> list[Any]:
    plan = Plan()
    steps = [plan.step(name, close=plan.input("prices"), **params) for name, _, params in INDICATORS]
    named = zip(steps, INDICATORS, strict=True)
    wanted = plan.params(**{name: step[output].last(1) for step, (name, output, _) in named})
    result = client.run("plan", **wanted, prices=prices)
    return [result[name] for name, _, _ in INDICATORS]


def _jobs(client: Client, prices: Any) -> list[Any]:
    return [client.run(name, params=params, close=prices)[output][:, -1:] for name, output, params in INDICATORS]


if __name__ == "__main__":
    raise SystemExit(main())
