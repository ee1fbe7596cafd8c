"""Benchmark of revisions: requests a second of this revision, beside another one on the same machine.

`OTHER=../other python -m benchmarks revisions` where `../other` is a checkout of the other revision after `make
install`. Each has a Redis, an API process and a worker of its own for the whole time, and they are loaded in turns:
the load of one, the same of the other, in changing order. Small jobs, one by one, come over HTTP with eight at once;
a backlog of 1,024 small jobs runs in batches of 64; arrays of 8 MB are uploaded one after the other; the answer of a
small job is fetched eight at once. Each row is the median of the change from pair to pair and the interval that
holds it at 95 %, by ranks: above 0 this revision is the quicker. REVISIONS_SECONDS=1200 is how long it takes. Where
a disk takes longer from time to time than from revision to revision, TMPDIR=/dev/shm leaves it out.
"""

import asyncio
import io
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

LOADS = ("small jobs", "a backlog in batches", "uploads of 8 MB", "answers")
SECONDS = float(os.environ.get("REVISIONS_SECONDS", "1200"))
JOBS, BACKLOG, ALIKE, UPLOADS, ANSWERS, CALLERS = 200, 1024, 64, 5, 800, 8
FEWEST = 5  # turns
TIMES = {"uploads of 8 MB": 3}  # as many pairs of it in a turn: they differ most


def main() -> int:
    from warpdesk_server.benchmarks.instrumentation import interval
    from warpdesk_server.benchmarks.report import show

    other = os.environ.get("OTHER")
    if other is None:
        print("OTHER names no checkout of another revision: OTHER=../other python -m benchmarks revisions")
        return 2
    trees = [_Tree(Path.cwd()), _Tree(Path(other).resolve())]
    changes: dict[str, list[float]] = {load: [] for load in LOADS}
    end = time.monotonic() + SECONDS
    for turn in itertools.count():
        if time.monotonic() > end and turn > FEWEST:
            break
        for load in itertools.chain.from_iterable([load] * TIMES.get(load, 1) for load in LOADS):
            seconds = {tree: tree.run(load) for tree in (trees if turn % 2 else reversed(trees))}
            if turn > 2:  # until then compilers run beside it
                changes[load].append(math.log(seconds[trees[1]] / seconds[trees[0]]))
    for tree in trees:
        tree.close()
    rows = []
    for load, found in changes.items():
        lower, upper = interval(found)
        percent = {"change, %": statistics.median(found), "from": lower, "to": upper}
        rows.append(
            {"load": load, **{name: 100 * math.expm1(log) for name, log in percent.items()}, "pairs": len(found)}
        )
    show("revisions", rows)
    return 0


class _Tree:
    """The service of one checkout, in a process that runs the checkout's own modules."""

    def __init__(self, root: Path) -> None:
        self._process = subprocess.Popen(
            [root / ".venv" / "bin" / "python", __file__], cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        self._answer()

    def run(self, load: str) -> float:
        """Run a load in the checkout's process; returns the seconds it took."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{load}\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> float:
        assert self._process.stdout is not None
        return float(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate(timeout=60)


def _serve() -> None:
    """Run each load named on standard input, and print the seconds it took."""
    from warpdesk_server.kernels.fingerprint import fingerprint

    os.environ.setdefault("NUMBA_CACHE_DIR", str(Path.cwd() / ".cache" / "numba" / fingerprint()))
    import httpx
    import numpy as np

    from examples.prices import sp500
    from warpdesk_server.app.access.keys import create_key
    from warpdesk_server.benchmarks.batches import all_at_once, keep, request_of, until
    from warpdesk_server.benchmarks.overload import Caller
    from warpdesk_server.benchmarks.processes import api_process, redis, worker
    from warpdesk_server.workers.queue.jobs import JobQueue, connect
    from warpdesk_server.workers.queue.keys import LEASES
    from warpdesk_server.workers.store.spool import SpoolStore

    numbers = itertools.count()
    file = io.BytesIO()
    np.save(file, np.random.default_rng(1).normal(size=1_000_000))
    upload = bytearray(file.getvalue())

    with (
        redis() as redis_url,
        tempfile.TemporaryDirectory(prefix="warpdesk-bench-") as home,
        api_process(redis_url, Path(home)) as url,
        worker(redis_url, Path(home), {"WARPDESK_DEVICE": "cpu"}),
        connect(redis_url) as connection,
    ):
        token = create_key(Path(home), "bench", ["submit", "read", "cancel"])
        store = SpoolStore(Path(home) / "store")
        queue = JobQueue(connection, store.mac_of) if hasattr(store, "mac_of") else JobQueue(connection)
        until(lambda: any(report.state == "ready" for report in queue.workers()))
        closes = sp500().close[:1000]
        arrays = [keep(store, closes + turn) for turn in range(BACKLOG)]

        def request(line: str, body: bytes = b"", *headers: str) -> bytes:
            head = [f"{line} HTTP/1.1", f"Host: {url.removeprefix('http://')}", f"Authorization: Bearer {token}"]
            return "\r\n".join([*head, *headers, f"Content-Length: {len(body)}", "\r\n"]).encode() + body

        def sent(make: Callable[[], bytes], count: int, callers: int, status: int) -> list[Any]:
            """Send `count` requests from `callers` callers, and return their responses."""
            caller, left, answers = Caller(url), iter(range(count)), []

            async def one() -> None:
                for _ in left:
                    answer = await caller.send(make())
                    assert answer is not None, "no answer"
                    assert answer.status == status, answer
                    answers.append(answer)

            async def all_of_them() -> None:
                await asyncio.gather(*(one() for _ in range(callers)))
                caller.close()

            asyncio.run(all_of_them())
            return answers

        def job() -> bytes:
            number = next(numbers)
            body = {"operation": "rsi", "params": {"period": 2 + number % 60},
                    "inputs": {"prices": {"data": [float(number), *range(1, 100)]}}}  # fmt: skip
            return request(
                "POST /v1/jobs", json.dumps(body).encode(), "Prefer: wait=50", "Content-Type: application/json"
            )

        def put() -> bytes:
            upload[-8:] = np.float64(next(numbers)).tobytes()
            return request("PUT /v1/arrays", bytes(upload), "Content-Type: application/x-npy")

        def backlog() -> None:
            until(lambda: not queue.length() and not connection.zcard(LEASES))

        done = json.loads(sent(job, 1, 1, 200)[0].body)["id"]
        uploaded: list[Any] = []
        loads: dict[str, Callable[[], object]] = {
            "small jobs": lambda: sent(job, JOBS, CALLERS, 200),
            "a backlog in batches": backlog,
            "uploads of 8 MB": lambda: uploaded.extend(sent(put, UPLOADS, 1, 201)),
            "answers": lambda: sent(lambda: request(f"GET /v1/jobs/{done}/result"), ANSWERS, CALLERS, 200),
        }
        print(0, flush=True)
        for line in sys.stdin:
            if line.strip() == "a backlog in batches":
                with all_at_once(connection):
                    for array in arrays:
                        queue.enqueue(request_of(array, ALIKE))
                    began = time.perf_counter()
            else:
                began = time.perf_counter()
            loads[line.strip()]()
            seconds = time.perf_counter() - began
            for answer in uploaded:  # room for the next
                array = json.loads(answer.body)["id"]
                headers = {"Authorization": f"Bearer {token}"}
                httpx.delete(f"{url}/v1/arrays/{array}", headers=headers).raise_for_status()
            uploaded.clear()
            print(seconds, flush=True)


if __name__ == "__main__":
    sys.path[0] = str(Path.cwd())  # the checkout's modules, and not those beside this file
    _serve()
