"""Benchmark of a region split: what a quick job costs when its worker, or its caller, is far from the service.

The job is the RSI of 1,000 prices in the body, waited for in the same request. A far worker reaches Redis and the API
by a line with the round trip of the first column; a far caller reaches the API by it, and the worker is beside the
service. The line is a relay that holds back the bytes of open connections for half a round trip each way. Opening a
connection costs nothing there, and neither TCP's slow start nor lost packets are in it: a real line is slower, not
quicker.
"""

import asyncio
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

import httpx

from examples.prices import sp500
from warpdesk_server.app.access.keys import create_key
from warpdesk_server.benchmarks.processes import api, compiled, redis, worker
from warpdesk_server.benchmarks.report import Row, show
from warpdesk_server.workers.queue.jobs import JobQueue, connect
from warpdesk_server.workers.settings import WorkerSettings

ROUND_TRIPS = (0, 10, 40, 80)  # ms
JOBS, TURNS = 20, 3  # of each round trip


class Line:
    """A relay to a socket or port that holds back what passes for `delay` seconds each way, in a thread of its own."""

    def __init__(self, target: str) -> None:
        self.delay = 0.0
        self._target = urlsplit(target)
        self._loop = asyncio.new_event_loop()
        self._server = self._loop.run_until_complete(asyncio.start_server(self._relay, "127.0.0.1", 0))
        self.port: int = self._server.sockets[0].getsockname()[1]
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._target.scheme == "unix":
            back, forth = await asyncio.open_unix_connection(unquote(self._target.path))
        else:
            back, forth = await asyncio.open_connection(self._target.hostname, self._target.port)
        with suppress(OSError):
            await asyncio.gather(self._pass(reader, forth), self._pass(back, writer))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        due: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def write() -> None:
            data = b"-"
            while data:
                at, data = await due.get()
                await asyncio.sleep(at - self._loop.time())
                writer.write(data)
                await writer.drain()
            writer.close()

        writing = asyncio.create_task(write())
        data = b"-"
        while data:
            with suppress(ConnectionError):
                data = b""
                data = await reader.read(1 << 16)
            due.put_nowait((self._loop.time() + self.delay, data))
        await writing


def main() -> None:
    times: dict[tuple[str, int], list[float]] = {}
    for who in ("worker", "caller"):
        with _service(far_worker=who == "worker") as (client, lines):
            _answers(client, JOBS)  # warm
            for _ in range(TURNS):
                for round_trip in ROUND_TRIPS:
                    for line in lines:
                        line.delay = round_trip / 2e3
                    _answers(client, 2)
                    times.setdefault((who, round_trip), []).extend(_answers(client, JOBS))
    rows: list[Row] = [
        {
            "round trip, ms": round_trip,
            "far away": who,
            "p50 ms": statistics.median(taken),
            "p90 ms": statistics.quantiles(taken, n=10)[-1],
            "round trips more": (statistics.median(taken) - statistics.median(times[who, 0])) / round_trip
            if round_trip
            else 0.0,
        }
        for (who, round_trip), taken in times.items()
    ]
    show("regions", rows)


@contextmanager
def _service(far_worker: bool) -> Iterator[tuple[httpx.Client, list[Line]]]:
    """A service with one worker; a client, and the lines that one of both is behind."""
    with ExitStack() as stack:
        url, folder = (
            stack.enter_context(redis()),
            Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="warpdesk-bench-"))),
        )
        home = folder / "home"
        owner, key = create_key(home, "owner", ["submit", "read"]), create_key(home, "far", ["worker"])
        api_url = stack.enter_context(api(url, home))
        to_api, to_redis = Line(api_url), Line(url)
        near = {"WARPDESK_DEVICE": "cpu", "WARPDESK_TAKES": "all"}
        if far_worker:
            (folder / "far").mkdir()
            door = {"WARPDESK_API_URL": f"http://127.0.0.1:{to_api.port}", "WARPDESK_API_KEY": key}
            stack.enter_context(worker(f"redis://127.0.0.1:{to_redis.port}/0", folder / "far", {**near, **door}))
        else:
            stack.enter_context(worker(url, home, near))
        base = api_url if far_worker else f"http://127.0.0.1:{to_api.port}"
        with connect(url) as connection:
            queue = JobQueue(connection)
            while not any(report.state == "ready" for report in queue.workers()):
                time.sleep(0.2)
        compiled(WorkerSettings(home=folder / "far" if far_worker else home))
        headers = {"Authorization": f"Bearer {owner}", "Prefer": "wait=30"}
        client = stack.enter_context(httpx.Client(base_url=base, headers=headers, timeout=60))
        yield client, [to_api, to_redis]


def _answers(client: httpx.Client, count: int) -> list[float]:
    """The milliseconds from each of so many requests to its answer."""
    taken = []
    for _ in range(count):
        prices = (sp500().close[:1000] + time.monotonic() % 1).tolist()
        body = {"operation": "rsi", "params": {"period": 14}, "inputs": {"close": {"data": prices, "dtype": "float64"}}}
        began = time.perf_counter()
        answer = client.post("/v1/jobs", json=body)
        taken.append((time.perf_counter() - began) * 1e3)
        assert answer.status_code == 200, answer.text
    return taken


if __name__ == "__main__":
    main()
