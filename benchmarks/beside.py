"""Benchmark of quick jobs beside long ones: how long does a small RSI take while other work keeps the service busy?

One client sends an RSI of 1,000 prices in its body, ten a second at random moments, over HTTP, with priority
`realtime`. Meanwhile nothing else happens, `research` Monte Carlos of a minute compute, a gigabyte is uploaded, or
a result of 500 MB is computed and fetched. The same with both kinds of jobs in one process (WARPDESK_TAKES=all) shows
what the second process is for.

Then: what a Monte Carlo loses to those quick jobs, and that its bytes stay the same through a thousand of them. The
client computes on the same cores, and what it takes is lost too.
"""

import http.client
import io
import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from statistics import median, quantiles
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from warpdesk_server.benchmarks.processes import redis, service
from warpdesk_server.benchmarks.report import Row, show

EVERY = 0.1  # seconds
WARM_UP, QUICK = 50, 300  # quick jobs that are not counted, and those of one row
# Paths and steps of Monte Carlos that take about a minute on two cores, and a few seconds.
MINUTE, SECONDS = (99_000_000, 504), (20_000_000, 252)
REPEATS = 7
INTERRUPTIONS = 1_000
ASSETS, BARS = 25_000, 2_520  # 504 MB
GIB = 1 << 30

# The median and the 99th percentile may be so many times those of an idle service, the latter at most so many ms, and
# long jobs may lose this share.
MEDIAN_TIMES, P99_TIMES, P99_MS, LOSS = 2.0, 5.0, 100.0, 0.05

_JSON = {"Content-Type": "application/json"}
_NPY = {"Content-Type": "application/x-npy"}
_CHUNK = 1 << 20


def main() -> int:
    random.seed(5)
    with redis() as redis_url, service(redis_url) as url:
        caller = _Caller(url)
        caller.quick(WARM_UP)
        idle = caller.quick(QUICK)
        rows = [_row("nothing", idle, idle)]
        with caller.computing(MINUTE):
            rows.append(_row("Monte Carlos of a minute", caller.quick(QUICK), idle))
        rows.append(_row("a gigabyte is uploaded, three times", caller.during(lambda: _uploads(url)), idle))
        rows.append(_row("a result of 500 MB, three times", caller.during(lambda: _results(url)), idle))
        losses = [_loss(caller), _interruptions(caller)]
    with redis() as redis_url, service(redis_url, WARPDESK_TAKES="all") as url:
        caller = _Caller(url)
        caller.quick(WARM_UP)
        idle = caller.quick(QUICK)
        with caller.computing(SECONDS):
            rows.append(_row("one process for both: a Monte Carlo of seconds", caller.quick(20, paced=False), idle))
    show("beside", rows)
    show("beside_long", losses)
    kept = rows[1]["p50 ratio"] <= MEDIAN_TIMES and rows[1]["p99 ratio"] <= P99_TIMES
    kept = kept and all(row["p99 ms"] <= P99_MS for row in rows[1:4])
    return int(not kept or losses[0]["lost"] > LOSS or not losses[1]["same bytes"])


def _row(meanwhile: str, seconds: list[float], idle: list[float]) -> Row:
    p99, idle_p99 = (quantiles(some, n=100, method="inclusive")[98] for some in (seconds, idle))
    return {
        "meanwhile": meanwhile,
        "quick jobs": len(seconds),
        "p50 ms": median(seconds) * 1e3,
        "p99 ms": p99 * 1e3,
        "slowest ms": max(seconds) * 1e3,
        "p50 ratio": median(seconds) / median(idle),
        "p99 ratio": p99 / idle_p99,
    }


def _loss(caller: "_Caller") -> Row:
    """How much longer a Monte Carlo takes with quick jobs beside it; one with and one without in turns."""
    caller.compute(0)
    alone, beside = list[float](), list[float]()
    for seed in range(REPEATS):
        compute = partial(_timed, partial(caller.compute, seed))
        alone.append(compute())
        caller.during(lambda: beside.append(compute()))  # noqa: B023 - it is over before the next
    return {
        "Monte Carlo": f"{SECONDS[0]:,} paths, with ten quick jobs a second",
        "alone s": median(alone),
        "beside s": median(beside),
        "lost": median(beside) / median(alone) - 1,
        "quick jobs": None,
        "same bytes": None,
    }


def _interruptions(caller: "_Caller") -> Row:
    """Whether Monte Carlos have the bytes they have alone, whatever quick jobs run meanwhile, and at which moments."""
    alone = [caller.compute(seed) for seed in range(3)]
    answers, quick = list[Any](), 0
    while quick < INTERRUPTIONS:
        seed = len(answers) % len(alone)
        quick += len(caller.during(lambda: answers.append(caller.compute(seed)), paced=False))  # noqa: B023 - as above
    return {
        "Monte Carlo": f"{SECONDS[0]:,} paths, with quick jobs one after another",
        "alone s": None,
        "beside s": None,
        "lost": None,
        "quick jobs": quick,
        "same bytes": all(answer == alone[at % len(alone)] for at, answer in enumerate(answers)),
    }


class _Caller:
    """A client of the service: its quick jobs go over one connection."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._quick = _connection(url)
        self._random = np.random.default_rng(3)

    def quick(self, count: int, *, paced: bool = True, until: threading.Event | None = None) -> list[float]:
        """The seconds that quick jobs take, one after the other, each at a random moment of its tenth of a second."""
        taken, began = list[float](), time.perf_counter()
        for number in range(count):
            if until is not None and until.is_set():
                break
            if paced:
                due = began + (number + random.random() / 2) * EVERY
                time.sleep(max(0.0, due - time.perf_counter()))
            prices = (100 + self._random.normal(size=1000).cumsum()).tolist()
            body = {
                "operation": "rsi", "params": {"period": 14}, "priority": "realtime",
                "inputs": {"close": {"data": prices, "dtype": "float64"}},
            }  # fmt: skip
            sent = json.dumps(body)
            taken.append(_timed(partial(_ask, self._quick, "POST", "/v1/jobs", sent, wait=True)))
        return taken

    def during(self, work: Callable[[], object], *, paced: bool = True) -> list[float]:
        """The seconds of the quick jobs that are sent while `work` is done."""
        over, taken = threading.Event(), list[float]()
        thread = threading.Thread(target=lambda: taken.extend(self.quick(1 << 30, paced=paced, until=over)))
        thread.start()
        try:
            work()
        finally:
            over.set()
            thread.join()
        return taken

    def compute(self, seed: int) -> Any:
        """The outputs of a Monte Carlo of seconds."""
        connection = _connection(self._url)
        job = self._submitted(connection, SECONDS, seed)
        while _ask(connection, "GET", f"/v1/jobs/{job}", wait=True)["status"] in ("queued", "running"):
            pass
        outputs = _ask(connection, "GET", f"/v1/jobs/{job}/result")["outputs"]
        connection.close()
        return outputs

    @contextmanager
    def computing(self, size: tuple[int, int]) -> Iterator[None]:
        """Have the service compute Monte Carlos one after the other in this block."""
        connection = _connection(self._url)
        jobs = [self._submitted(connection, size, seed) for seed in range(3)]
        while _ask(connection, "GET", f"/v1/jobs/{jobs[0]}")["status"] != "running":
            time.sleep(0.05)
        yield
        for job in jobs:
            _ask(connection, "POST", f"/v1/jobs/{job}/cancel")
        connection.close()

    def _submitted(self, connection: http.client.HTTPConnection, size: tuple[int, int], seed: int) -> str:
        params = {
            "payoff": "asian_arithmetic", "option": "call", "spot": 100.0, "strike": 100.0, "rate": 0.05,
            "dividend": 0.0, "volatility": 0.2, "maturity": 1.0, "paths": size[0], "steps": size[1],
        }  # fmt: skip
        body = {"operation": "monte_carlo", "params": params, "seed": seed, "priority": "research"}
        return str(_ask(connection, "POST", "/v1/jobs", json.dumps(body))["id"])


def _uploads(url: str) -> None:
    connection, numbers = _connection(url), np.random.default_rng()
    for _ in range(3):
        _upload(connection, numbers.random((GIB - 128) // 8))
    connection.close()


def _results(url: str) -> None:
    """Upload prices, and have means of all of them computed and sent."""
    connection = _connection(url)
    prices = _upload(connection, np.random.default_rng().random((ASSETS, BARS)) + 100)
    for period in (20, 21, 22):
        body = {"operation": "sma", "params": {"period": period}, "inputs": {"close": {"array": prices}}}
        job = _ask(connection, "POST", "/v1/jobs", json.dumps(body))["id"]
        while _ask(connection, "GET", f"/v1/jobs/{job}", wait=True)["status"] in ("queued", "running"):
            pass
        connection.request("GET", f"/v1/jobs/{job}/result/sma", headers={"Accept": "application/x-npy"})
        answer = connection.getresponse()
        while answer.read(_CHUNK):
            pass
    connection.close()


def _upload(connection: http.client.HTTPConnection, array: np.ndarray) -> str:
    file = io.BytesIO()
    np.save(file, array)
    return str(_ask(connection, "PUT", "/v1/arrays", file.getbuffer(), headers=_NPY)["id"])


def _connection(url: str) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    return http.client.HTTPConnection(parts.hostname or "", parts.port or 0, timeout=600)


def _ask(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: Any = None,
    *,
    wait: bool = False,
    headers: Any = _JSON,
) -> Any:
    connection.request(method, path, body, {**headers, **({"Prefer": "wait=50"} if wait else {})})
    answer = connection.getresponse()
    text = answer.read()
    if answer.status not in (200, 201, 202):
        raise SystemExit(f"{method} {path} answered {answer.status}: {text[:500].decode()}")
    return json.loads(text)


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
