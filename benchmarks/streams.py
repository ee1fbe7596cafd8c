"""Benchmark of event streams: the memory of a thousand in one API process, and an event's delay to its reader.

Each stream is of a job of its own. Memory is the process' resident memory, all of it. An event's way is from the call
that makes it (the queue's script, in Redis) until its reader has it: first one job at a time on a quiet service, then
all jobs as quickly as one caller can.
"""

import asyncio
import resource
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import httpx
from redis import Redis

from warpdesk_server.benchmarks.processes import api, memory, process_of_api, redis
from warpdesk_server.benchmarks.report import Row, show
from warpdesk_server.workers.queue.jobs import JobQueue, connect
from warpdesk_server.workers.queue.keys import EVENTS

STREAMS = 1000
ALONE = 100  # streams whose job ends by itself; the others' end at once
MIB = 1 << 20


def main() -> None:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # of the service too, which inherits it
    with (
        redis() as redis_url,
        tempfile.TemporaryDirectory(prefix="warpdesk-bench-") as home,
        api(redis_url, Path(home), WARPDESK_MAX_STREAMS=str(STREAMS)) as url,
        connect(redis_url) as connection,
    ):
        show("event_streams", asyncio.run(_measure(url, process_of_api(Path(home)), connection)))


async def _measure(url: str, process: int, connection: Redis) -> list[Row]:
    jobs = await asyncio.to_thread(_submit, url, STREAMS)
    before = memory(process, "VmRSS")
    readers = [_Reader(url, job) for job in jobs]
    for some in range(0, STREAMS, 50):
        await asyncio.gather(*(reader.open() for reader in readers[some : some + 50]))
    opened = memory(process, "VmRSS")
    subscriptions = connection.pubsub_numsub(EVENTS)[0][1]
    assert subscriptions == 1, f"{subscriptions} subscriptions"
    queue = JobQueue(connection)
    alone, together = readers[:ALONE], readers[ALONE:]
    one_by_one = []
    for reader in alone:
        await _cancel(queue, reader)
        one_by_one.append(await reader.end())
        await asyncio.sleep(0.01)
    ends = asyncio.gather(*(reader.end() for reader in together))
    for reader in together:
        await _cancel(queue, reader)
    at_once = list(await ends)
    for reader in readers:
        assert reader.numbers == [1, 2], f"{reader.job} had {reader.numbers}"
    return [
        {
            "open event streams": STREAMS,
            "API MiB before": before / MIB,
            "with them": opened / MIB,
            "at most": memory(process, "VmHWM") / MIB,
            "KiB a stream": (opened - before) / STREAMS / 1024,
            "subscriptions": subscriptions,
            **_milliseconds("one job ends", one_by_one),
            **_milliseconds("all end", at_once),
        }
    ]


def _submit(url: str, count: int) -> list[str]:
    # Each job has a different number: identical jobs would share one computation.
    bodies = ({"operation": "sum", "inputs": {"x": {"data": [float(job)]}}} for job in range(count))
    with httpx.Client(base_url=url, timeout=60) as http:
        answers = [http.post("/v1/jobs", json=body) for body in bodies]
    return [str(answer.raise_for_status().json()["id"]) for answer in answers]


async def _cancel(queue: JobQueue, reader: "_Reader") -> None:
    reader.made = time.perf_counter()
    await asyncio.to_thread(queue.cancel, reader.job)


class _Reader:
    """One open stream: a connection, the numbers of the events it brought, and when the last one was made."""

    def __init__(self, url: str, job: str) -> None:
        self.job = job
        self.numbers: list[int] = []
        self.made = 0.0
        self._address = urlsplit(url)

    async def open(self) -> None:
        host, port = self._address.hostname, self._address.port
        self._lines, self._writer = await asyncio.open_connection(host, port)
        head = f"GET /v1/jobs/{self.job}/events HTTP/1.1\r\nHost: {self._address.netloc}\r\n\r\n"
        self._writer.write(head.encode())
        assert b" 200 " in await self._lines.readline()
        await self._event()

    async def end(self) -> float:
        """Read the next event; returns the seconds since it was made."""
        await self._event()
        here = time.perf_counter()
        self._writer.close()
        return here - self.made

    async def _event(self) -> None:
        while not (line := await self._lines.readline()).startswith(b"id: "):
            assert line, f"the stream of {self.job} was cut"
        self.numbers.append(int(line.removeprefix(b"id: ")))


def _milliseconds(name: str, seconds: Sequence[float]) -> Row:
    return {f"{name}: median ms": 1e3 * statistics.median(seconds), f"{name}: worst ms": 1e3 * max(seconds)}


if __name__ == "__main__":
    main()
