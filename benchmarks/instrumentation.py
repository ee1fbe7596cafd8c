"""What does counting cost: jobs a second, and processor time of all processes and of Redis' scripts for each job?

Two services stand side by side, each with a Redis, an API process and a worker, and are loaded in turns: one counts as
it is shipped, from the other all counting is taken out (`benchmarks.uncounted`). Single jobs come over HTTP, each of a
launch of its own; batches of 64 are a backlog that is queued before the clock starts. Processor time is the steadier
measure, on a machine with other work too; what it rises by is what throughput falls by where processors are the limit.
Each row is the median of pairs measured one after the other, with the interval that holds it at 95 %, by ranks.
"""

import asyncio
import itertools
import json
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from redis import Redis

from benchmarks.batches import all_at_once, keep, request_of, until
from benchmarks.overload import Caller
from benchmarks.processes import api_process, redis, worker
from benchmarks.report import Row, show
from examples.prices import sp500
from workers.queue import JobQueue, connect
from workers.store import SpoolStore

REPEATS = int(os.environ.get("INSTRUMENTATION_REPEATS", "25"))
SINGLE, BACKLOG, ALIKE, CALLERS = 400, 2048, 64, 8
COUNTING, BARE = "counting", "not counting"

_MEASURES = {
    "jobs a second": "jobs_per_second",
    "processor, us a job": "processor_us",
    "Redis' scripts, us a job": "scripts_us",
}

_numbers = itertools.count(1)


@dataclass
class _Service:
    home: str
    url: str
    queue: JobQueue
    redis: Redis
    redis_process: int
    arrays: list[str]


Load = Callable[[_Service, Callable[[], None]], int]  # calls the function when the clock starts; how many jobs


@dataclass(frozen=True)
class _Run:
    """Of one load, for each job."""

    jobs_per_second: float
    processor_us: float  # of the API, the worker and Redis
    scripts_us: float  # of Redis, in scripts


def main() -> None:
    with ExitStack() as open_until_the_end:
        services = {
            name: open_until_the_end.enter_context(_service(through))
            for name, through in ((COUNTING, ()), (BARE, ("benchmarks.uncounted",)))
        }
        loads: dict[str, Load] = {
            "single jobs over HTTP": _single,
            f"batches of {ALIKE}": _batches,
        }
        runs: dict[tuple[str, str], list[_Run]] = {}
        for turn in range(REPEATS + 1):
            for load, name in itertools.product(loads, services if turn % 2 else reversed(services)):
                run = _measure(services[name], loads[load])
                if turn:  # the first is to warm up
                    runs.setdefault((load, name), []).append(run)
        ended = {name: _ended(service) for name, service in services.items()}
        assert ended[COUNTING], "the service that counts has not"
        assert not ended[BARE], f"the service that does not count has counted {ended[BARE]}"
    show("instrumentation", [row for load in loads for row in _rows(load, runs[load, COUNTING], runs[load, BARE])])


def _rows(load: str, counting: list[_Run], bare: list[_Run]) -> Iterator[Row]:
    for what, field in _MEASURES.items():
        ones, others = ([getattr(run, field) for run in runs] for runs in (counting, bare))
        pairs = [100 * (one / other - 1) for one, other in zip(ones, others, strict=True)]
        lower, upper = _interval(pairs)
        yield {
            "load": load,
            "what": what,
            COUNTING: statistics.median(ones),
            BARE: statistics.median(others),
            "% more": statistics.median(pairs),
            "from": lower,
            "to": upper,
            "pairs": len(pairs),
        }


def _interval(values: list[float]) -> tuple[float, float]:
    """Between which of the values their median is at 95 %: at most one of 40 would have so few of `n` on one side."""
    ordered, n = sorted(values), len(values)
    outside = 0
    while sum(math.comb(n, k) for k in range(outside + 1)) <= 0.025 * 2**n:
        outside += 1
    return ordered[max(0, outside - 1)], ordered[min(n - 1, n - outside)]


@contextmanager
def _service(through: tuple[str, ...]) -> Iterator[_Service]:
    with (
        redis() as redis_url,
        tempfile.TemporaryDirectory(prefix="warpdesk-bench-") as home,
        api_process(redis_url, Path(home), through) as url,
        worker(redis_url, Path(home), {"WARPDESK_DEVICE": "cpu"}, through),
        connect(redis_url) as connection,
    ):
        queue, store = JobQueue(connection), SpoolStore(Path(home) / "store")
        until(lambda: any(report.state == "ready" for report in queue.workers()))
        closes = sp500().close[:1000]
        arrays = [keep(store, closes + turn) for turn in range(BACKLOG)]
        yield _Service(home, url, queue, connection, connection.info("server")["process_id"], arrays)


def _measure(service: _Service, load: Load) -> _Run:
    before: dict[str, float] = {}

    def begin() -> None:
        service.redis.config_resetstat()
        before.update(used=_processor_seconds(service), at=time.perf_counter())

    jobs = load(service, begin)
    seconds = time.perf_counter() - before["at"]
    return _Run(
        jobs / seconds,
        1e6 * (_processor_seconds(service) - before["used"]) / jobs,
        service.redis.info("commandstats")["cmdstat_evalsha"]["usec"] / jobs,
    )


def _single(service: _Service, begin: Callable[[], None]) -> int:
    begin()
    asyncio.run(_ask(service.url))
    return SINGLE


def _batches(service: _Service, begin: Callable[[], None]) -> int:
    with all_at_once(service.redis):
        for array in service.arrays:
            service.queue.enqueue(request_of(array, ALIKE))
        begin()
    until(lambda: not service.queue.length() and not service.redis.zcard("warpdesk:leases"))
    return len(service.arrays)


def _ended(service: _Service) -> list[str]:
    """Counts of jobs that ended. (Those of a backlog are queued by this process, which counts them.)"""
    (counted,) = service.queue.counted()
    return [name for name in counted if name.startswith("jobs_finished_total|")]


def _processor_seconds(service: _Service) -> float:
    """What the service's processes that live have used so far, of theirs and of the kernel's."""
    used = 0.0
    for folder in Path("/proc").iterdir():
        try:
            ours = f"WARPDESK_HOME={service.home}".encode() in (folder / "environ").read_bytes().split(b"\0")
            if ours or folder.name == str(service.redis_process):
                used += time.clock_gettime(~int(folder.name) << 3 | 2)  # clock_getcpuclockid(3), in nanoseconds
        except OSError:  # no process, another's, or gone
            continue
    return used


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
