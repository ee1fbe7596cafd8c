"""Benchmark of the metrics' cost: jobs a second, and processor time of the API, the worker and Redis per job.

One service, with a Redis, an API process and a worker, is loaded in turns: as it is shipped, and with all counting
taken out of the same processes (`benchmarks.uncounted`), since of two services that are alike one may use some
hundredths more for as long as both live. Single jobs come over HTTP, each of a launch of its own; batches of 64 are a
backlog that is queued before the clock starts; requests alone ask whether the API lives, which tells what counting a
request costs more surely than jobs do. Processor time is taken until a second after the load, in which what was noted
is sent; of each process it is steadier than of all, and where processors are the limit throughput falls by what all of
it rises by. Each row is the median of what the one has more than the other of two runs one after the other, with the
interval that holds it at 95 %, by ranks, and the same as a share of the whole.
"""

import asyncio
import itertools
import json
import math
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from redis import Redis

from examples.prices import sp500
from warpdesk_server.benchmarks.batches import all_at_once, keep, request_of, until
from warpdesk_server.benchmarks.overload import Caller
from warpdesk_server.benchmarks.processes import api_process, redis, worker
from warpdesk_server.benchmarks.report import Row, show
from warpdesk_server.workers.queue.jobs import JobQueue, connect
from warpdesk_server.workers.queue.keys import LEASES
from warpdesk_server.workers.store.spool import SpoolStore

REPEATS = int(os.environ.get("INSTRUMENTATION_REPEATS", "40"))
SINGLE, BACKLOG, ALIKE, REQUESTS, CALLERS = 400, 1024, 64, 2000, 8
SENT = 1.3  # seconds within which what was noted is in Redis
COUNTING, BARE = "counting", "not counting"

RATE, PROCESSOR = "jobs or requests a second", "processor, us of each"
_PARTS = ("Redis", "the worker", "the API")

_numbers = itertools.count(1)


@dataclass
class _Service:
    home: str
    url: str
    queue: JobQueue
    redis: Redis
    redis_process: int
    arrays: list[str]


Load = Callable[[_Service, Callable[[], None]], int]  # calls the function when the clock starts; how many
_Run = dict[str, float]  # of one load, by what was measured


def main() -> None:
    loads: dict[str, Load] = {
        "single jobs over HTTP": _single,
        f"batches of {ALIKE}": _batches,
        "requests alone": _requests,
    }
    runs: dict[tuple[str, str], list[_Run]] = {}
    with _service() as service:
        for turn in range(REPEATS + 1):
            for load, name in itertools.product(loads, (COUNTING, BARE) if turn % 2 else (BARE, COUNTING)):
                _turn(service, name)
                run = _measure(service, loads[load], counted=name == COUNTING)
                if turn:  # the first is to warm up
                    runs.setdefault((load, name), []).append(run)
    show("instrumentation", [row for load in loads for row in _rows(load, runs[load, COUNTING], runs[load, BARE])])


def _rows(load: str, counting: list[_Run], bare: list[_Run]) -> Iterator[Row]:
    for what in counting[0]:
        ones, others = ([run[what] for run in runs] for runs in (counting, bare))
        more = [one - other for one, other in zip(ones, others, strict=True)]
        lower, upper = interval(more)
        whole = statistics.median(run[RATE if what == RATE else PROCESSOR] for run in bare)
        yield {
            "load": load,
            "what": what,
            COUNTING: statistics.median(ones),
            BARE: statistics.median(others),
            "more": statistics.median(more),
            "from": lower,
            "to": upper,
            "% of the whole": 100 * statistics.median(more) / whole,
            "pairs": len(more),
        }


def interval(values: list[float]) -> tuple[float, float]:
    """The 95 % confidence interval of the median: with so few values beyond, on either side, that tossing a
    coin for each of them would have fewer at most once in 40 times. Of fewer than 6 values it is their range, which is
    less sure."""
    ordered, n = sorted(values), len(values)
    outside = 0
    while sum(math.comb(n, k) for k in range(outside + 1)) <= 0.025 * 2**n:
        outside += 1
    return ordered[max(0, outside - 1)], ordered[min(n - 1, n - outside)]


@contextmanager
def _service() -> Iterator[_Service]:
    through = ("warpdesk_server.benchmarks.uncounted",)
    with (
        redis() as redis_url,
        tempfile.TemporaryDirectory(prefix="warpdesk-bench-") as home,
        api_process(redis_url, Path(home), through) as url,
        worker(redis_url, Path(home), {"WARPDESK_DEVICE": "cpu"}, through),
        connect(redis_url) as connection,
    ):
        store = SpoolStore(Path(home) / "store")
        queue = JobQueue(connection, store.mac_of)
        until(lambda: any(report.state == "ready" for report in queue.workers()))
        closes = sp500().close[:1000]
        arrays = [keep(store, closes + turn) for turn in range(BACKLOG)]
        yield _Service(home, url, queue, connection, connection.info("server")["process_id"], arrays)


def _turn(service: _Service, name: str) -> None:
    """Switch the metrics of the API and the worker on or off."""
    through = [
        process for process, command in _processes(service) if b"warpdesk_server.benchmarks.uncounted" in command
    ]
    assert len(through) == 2, through
    for process in through:
        os.kill(process, signal.SIGUSR2 if name == COUNTING else signal.SIGUSR1)


def _measure(service: _Service, load: Load, *, counted: bool) -> _Run:
    before: dict[str, float] = {}
    began, counted_before = 0.0, _counted(service)

    def begin() -> None:
        nonlocal began
        before.update(_processor_seconds(service))
        began = time.perf_counter()

    jobs = load(service, begin)
    seconds = time.perf_counter() - began
    time.sleep(SENT)
    used = _processor_seconds(service)
    found = [after - before for after, before in zip(_counted(service), counted_before, strict=True)]
    if found != (_COUNTED[load](jobs) if counted else [0, 0, 0]):
        raise SystemExit(f"of {jobs} {found} ends, computations and requests were counted")
    parts = {f"of {part}": 1e6 * (used[part] - before[part]) / jobs for part in _PARTS}
    return {RATE: jobs / seconds, PROCESSOR: sum(parts.values()), **parts}


def _single(service: _Service, begin: Callable[[], None]) -> int:
    begin()
    asyncio.run(_ask(service.url))
    return SINGLE


def _requests(service: _Service, begin: Callable[[], None]) -> int:
    begin()
    asyncio.run(_look(service.url))
    return REQUESTS


def _batches(service: _Service, begin: Callable[[], None]) -> int:
    with all_at_once(service.redis):
        for array in service.arrays:
            service.queue.enqueue(request_of(array, ALIKE))
        begin()
    until(lambda: not service.queue.length() and not service.redis.zcard(LEASES))
    return len(service.arrays)


def _counted(service: _Service) -> list[float]:
    """The counters of ended jobs (Redis), computed jobs (worker) and requests (API)."""
    (counted,) = service.queue.counted()
    return [
        sum(amount for name, amount in counted.items() if name.startswith(f"{family}|"))
        for family in ("jobs_finished_total", "jobs_computed_total", "http_requests_total")
    ]


# The counters that a load of so many jobs or requests should add: Redis, worker, API.
_COUNTED: Mapping[Load, Callable[[int], list[float]]] = {
    _single: lambda jobs: [jobs, jobs, jobs],
    _batches: lambda jobs: [jobs, jobs, 0],
    _requests: lambda requests: [0, 0, requests],
}


def _processes(service: _Service) -> Iterator[tuple[int, bytes]]:
    """The live processes of the API and the worker, with their command lines."""
    for folder in Path("/proc").iterdir():
        try:
            if f"WARPDESK_HOME={service.home}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                yield int(folder.name), (folder / "cmdline").read_bytes()
        except OSError:  # no process, another's, or gone
            continue


def _processor_seconds(service: _Service) -> dict[str, float]:
    """The user and kernel processor seconds of the service's live processes so far."""
    used = dict.fromkeys(_PARTS, 0.0)
    used["Redis"] = _clock(service.redis_process)
    for process, command in _processes(service):
        with suppress(OSError):  # gone
            used["the API" if b"warpdesk_server.service.api" in command else "the worker"] += _clock(process)
    return used


def _clock(process: int) -> float:
    """Seconds that all threads of a process used, to the nanosecond: clock_getcpuclockid(3)."""
    return time.clock_gettime(~process << 3 | 2)


async def _look(url: str) -> None:
    caller, left = Caller(url), iter(range(REQUESTS))
    request = f"GET /livez HTTP/1.1\r\nHost: {url.removeprefix('http://')}\r\n\r\n".encode()

    async def one() -> None:
        for _ in left:
            answer = await caller.send(request)
            assert answer is not None
            assert answer.status == 200, answer.body

    await asyncio.gather(*(one() for _ in range(CALLERS)))
    caller.close()


async def _ask(url: str) -> None:
    caller, left = Caller(url), iter(range(SINGLE))
    host = url.removeprefix("http://")

    async def one() -> None:
        for _ in left:
            number = next(_numbers)
            body = json.dumps(
                {
                    "operation": "rsi",
                    "params": {"period": 2 + number % 60},  # no two in flight are of one launch
                    "inputs": {"prices": {"data": [float(number), *range(1, 100)]}},
                }
            )
            head = (
                f"POST /v1/jobs HTTP/1.1\r\nHost: {host}\r\nPrefer: wait=50\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\n\r\n"
            )
            answer = await caller.send((head + body).encode())
            assert answer is not None
            assert answer.status == 200, answer.body

    await asyncio.gather(*(one() for _ in range(CALLERS)))
    caller.close()


if __name__ == "__main__":
    main()
