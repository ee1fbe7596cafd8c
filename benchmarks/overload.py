"""Benchmark of overload: how does a service answer five times its capacity, and how soon does it recover?

First its capacity: the jobs a second of 32 callers that wait for each result. Then five times as many are offered for
two minutes (OVERLOAD_SECONDS), whether or not earlier ones were answered, by three API keys, in all priorities, each
job with a deadline. Then only single jobs, until they are answered as quickly as before.

The caller shares two cores with Redis, the API and the worker. So each refusal has two times: the API's, from the
request's head until the answer begins, which it tells in the answer (`Server-Timing`), and the caller's, from the
sending of the request until the answer was read, which includes every process's wait for a core. The caller's own
delay in sending is reported separately.
"""

import asyncio
import json
import os
import random
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from warpdesk.models import State
from warpdesk_server.app.access.keys import create_key
from warpdesk_server.benchmarks.processes import redis, service
from warpdesk_server.benchmarks.report import Row, show
from warpdesk_server.workers.queue.jobs import JobQueue, connect
from warpdesk_server.workers.queue.records import JobRecord

TIMES = 5
SECONDS = float(os.environ.get("OVERLOAD_SECONDS", "120"))
CAPACITY_SECONDS = 10.0
CALLERS = 32
CONNECTIONS = 512  # then requests that are due wait for one, which counts as the service's time
PROBES = 20
PATIENCE = 60.0  # seconds for it to be itself again

PRICES = [100.0 + 5.0 * random.Random(0).random() for _ in range(100)]
KEYS = {"busy": 0.6, "other": 0.3, "calm": 0.1}
WISHES = {("realtime", 1.0): 0.1, ("batch", 5.0): 0.7, ("research", 20.0): 0.2}


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="warpdesk-bench-") as home, redis() as redis_url:
        tokens = [create_key(Path(home), name, ["submit", "read"]) for name in KEYS]
        file = str(Path(home) / "keys.json")
        with service(redis_url, WARPDESK_KEYS_FILE=file) as url, connect(redis_url) as connection:
            history = asyncio.run(_measure(url, tokens))
            records = JobQueue(connection).records(history.accepted)
    late = [record for record in records if record is None or not _in_time(record)]
    show("overload", [_summary(history, records)])
    show("overload_refusals", _refusals(history))
    return 1 if late else 0


@dataclass
class _History:
    """The caller's records of its requests and their answers."""

    capacity: float = 0.0
    offered: int = 0
    seconds: float = 0.0
    accepted: list[str] = field(default_factory=list)
    refused: dict[str, list[tuple[float, float, float]]] = field(default_factory=dict)  # seconds: API, caller, late
    admitted: list[tuple[float, float, float]] = field(default_factory=list)
    broken: Counter[str] = field(default_factory=Counter)
    before: float = 0.0
    recovered: float | None = None

    def take(self, answer: "_Answer", due: float) -> None:
        times = (answer.served, answer.at - answer.sent, answer.sent - due)
        if answer.status == 202:
            self.accepted.append(json.loads(answer.body)["id"])
            self.admitted.append(times)
        elif answer.status in (429, 503):
            self.refused.setdefault(json.loads(answer.body)["code"], []).append(times)
        else:
            self.broken[str(answer.status)] += 1


@dataclass(frozen=True)
class _Answer:
    status: int
    body: bytes
    served: float
    sent: float
    at: float


class _Connection(asyncio.Protocol):
    """A connection with one request at a time, whose response goes to its sender. It parses as little as possible."""

    def __init__(self, lost: Callable[["_Connection"], None]) -> None:
        self._lost = lost
        self._got = b""
        self._callback: Callable[[_Answer | None], None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def send(self, request: bytes, callback: Callable[[_Answer | None], None]) -> None:
        self._callback = callback
        self._sent = time.perf_counter()
        self._transport.write(request)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        self._got += data
        end = self._got.find(b"\r\n\r\n")
        if end < 0:
            return
        head = self._got[:end].lower()
        if len(self._got) < end + 4 + int(_value(head, b"\r\ncontent-length: ")):
            return
        body, self._got = self._got[end + 4 :], b""
        served = float(_value(head, b"\r\nserver-timing: app;dur=")) / 1e3
        self._answered(_Answer(int(head[9:12]), body, served, self._sent, time.perf_counter()))

    def connection_lost(self, _: Exception | None) -> None:
        self._lost(self)
        self._answered(None)

    def close(self) -> None:
        self._transport.close()

    def _answered(self, answer: _Answer | None) -> None:
        callback, self._callback = self._callback, None
        if callback is not None:
            callback(answer)


def _value(head: bytes, name: bytes) -> bytes:
    return head.partition(name)[2].partition(b"\r\n")[0]


class Caller:
    """A pool of connections to the service, the last used one first. A request waits if none is free."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        self._host, self._port = address.hostname or "", address.port or 0
        self._idle: list[_Connection] = []
        self._free = asyncio.Semaphore(CONNECTIONS)

    async def send(self, request: bytes) -> _Answer | None:
        """Send a request and return its response; None if the connection was lost before it."""
        async with self._free:
            connection = self._idle.pop() if self._idle else await self._open()
            answered: asyncio.Future[_Answer | None] = asyncio.get_running_loop().create_future()
            connection.send(request, answered.set_result)
            answer = await answered
            if answer is not None:
                self._idle.append(connection)
            return answer

    async def _open(self) -> _Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: _Connection(self._forget), self._host, self._port)
        return connection

    def _forget(self, connection: _Connection) -> None:
        if connection in self._idle:
            self._idle.remove(connection)

    def close(self) -> None:
        for connection in list(self._idle):
            connection.close()


class _Requests:
    """Submissions that all differ, each mostly prepared beforehand."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._chance = random.Random(1)
        self._count = 0
        self._prices = json.dumps(PRICES)[1:-1]

    def draw(self) -> bytes:
        """A submission of the offered mix."""
        token = self._chance.choices(self._tokens, list(KEYS.values()))[0]
        priority, deadline = self._chance.choices(list(WISHES), list(WISHES.values()))[0]
        return self._made(token, f',"priority":"{priority}","deadline_s":{deadline}')

    def waiting(self) -> bytes:
        """A submission whose caller waits for the result."""
        return self._made(self._tokens[self._count % len(self._tokens)], "", "Prefer: wait=50\r\n")

    def _made(self, token: str, wishes: str, headers: str = "") -> bytes:
        self._count += 1
        body = (
            f'{{"operation":"rsi","params":{{"period":14}},"inputs":{{"prices":{{"data":[{self._count}.5,{self._prices}]}}}}'
            f"{wishes}}}"
        )
        head = (
            f"POST /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n{headers}"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return (head + body).encode()


async def _measure(url: str, tokens: list[str]) -> _History:
    caller, requests, history = Caller(url), _Requests(tokens), _History()
    for _ in range(PROBES):  # the first ones find nothing warm
        await _probe(caller, requests)
    history.before = statistics.median([await _probe(caller, requests) for _ in range(PROBES)])
    history.capacity = await _capacity(caller, requests)
    await asyncio.sleep(2.0)
    await _overload(caller, requests, history)
    history.recovered = await _recovery(caller, requests, history.before)
    caller.close()
    return history


async def _probe(caller: Caller, requests: _Requests) -> float:
    start = time.perf_counter()
    answer = await caller.send(requests.waiting())
    if answer is None or answer.status != 200:
        return float("inf")
    return answer.at - start


async def _capacity(caller: Caller, requests: _Requests) -> float:
    start, done = time.perf_counter(), 0

    async def one() -> None:
        nonlocal done
        while time.perf_counter() < start + CAPACITY_SECONDS:
            answer = await caller.send(requests.waiting())
            done += answer is not None and answer.status == 200

    await asyncio.gather(*(one() for _ in range(CALLERS)))
    return done / (time.perf_counter() - start)


async def _overload(caller: Caller, requests: _Requests, history: _History) -> None:
    rate, start = TIMES * history.capacity, time.perf_counter()
    tasks: set[asyncio.Task[None]] = set()

    async def one(due: float) -> None:
        answer = await caller.send(requests.draw())
        if answer is None:
            history.broken["connection lost"] += 1
        else:
            history.take(answer, due)

    while (now := time.perf_counter()) < start + SECONDS:
        while history.offered < (now - start) * rate:
            task = asyncio.create_task(one(start + history.offered / rate))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            history.offered += 1
        await asyncio.sleep(0.001)
    history.seconds = time.perf_counter() - start
    await asyncio.gather(*tasks)


async def _recovery(caller: Caller, requests: _Requests, before: float) -> float | None:
    """Seconds until three jobs in a row took at most twice as long as before; None if that never happened."""
    start, quick, since = time.perf_counter(), 0, 0.0
    while time.perf_counter() < start + PATIENCE:
        elapsed = time.perf_counter() - start
        if await _probe(caller, requests) <= 2 * before:
            since = elapsed if quick == 0 else since
            quick += 1
            if quick == 3:
                return since
        else:
            quick = 0
        await asyncio.sleep(0.1)
    return None


def _in_time(record: JobRecord) -> bool:
    deadline = record.request.deadline
    return (
        record.state is State.SUCCEEDED
        and record.ended_at is not None
        and deadline is not None
        and record.ended_at <= deadline
    )


def _summary(history: _History, records: list[JobRecord | None]) -> Row:
    there = [record for record in records if record is not None]
    expired = sum(record.state is State.EXPIRED for record in there)
    late = sum(record.state is State.SUCCEEDED and not _in_time(record) for record in there)
    other = len(records) - len(there) + sum(not record.state.final or record.state is State.FAILED for record in there)
    return {
        "seconds": history.seconds,
        "capacity jobs/s": history.capacity,
        "offered/s": history.offered / history.seconds,
        "taken": len(history.accepted),
        "jobs/s done": sum(map(_in_time, there)) / history.seconds,
        "expired": expired,
        "late": late,
        "not done": other,
        "broken": sum(history.broken.values()),
        "before ms": 1e3 * history.before,
        "itself again after s": "never" if history.recovered is None else history.recovered,
    }


def _refusals(history: _History) -> list[Row]:
    every = [times for found in history.refused.values() for times in found]
    rows = {"all refusals": every, **dict(sorted(history.refused.items())), "taken": history.admitted}
    return [
        {
            "answer": code,
            "count": len(found),
            **_quantiles("API", [served for served, _, _ in found]),
            **_quantiles("caller", [taken for _, taken, _ in found]),
            **_quantiles("sent late", [late for _, _, late in found]),
        }
        for code, found in rows.items()
        if len(found) > 1
    ]


def _quantiles(whose: str, seconds: list[float]) -> Row:
    cuts = statistics.quantiles(seconds, n=1000)
    return {
        f"{whose} median ms": 1e3 * cuts[499],
        f"{whose} p99 ms": 1e3 * cuts[989],
        f"{whose} worst ms": 1e3 * max(seconds),
    }


if __name__ == "__main__":
    raise SystemExit(main())
