"""How soon is a job back after a fault, and how soon is the fault told?

Faults are planned (`workers.faults`) in real workers on a device of paper, so that what is measured is recovery alone;
opening a real GPU takes a second or two longer where the worker is alone. The time of a fault is that of the marker the
faulty device leaves; the time of the next start is Redis'. Both are this machine's clock.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

import httpx
import numpy as np

from benchmarks.processes import api, redis, worker
from benchmarks.report import Row, show
from workers.protocol import JobRequest
from workers.queue import JobQueue, JobRecord, connect
from workers.store import SpoolStore

RECOVERABLE = 1000
STICKY = int(os.environ.get("REPETITIONS", "50"))
OWNER = "local"
PATIENCE = 60.0


def main() -> None:
    with redis() as redis_url, TemporaryDirectory(prefix="warpdesk-bench-") as home:
        rows = [
            _row("out of memory to the CPU's first instruction", _fallbacks(redis_url, Path(home)), goal=1e-3),
            *_losses(redis_url, Path(home)),
        ]
        show("faults", rows)


class _Desk:
    """Submit jobs past the API, and look at what becomes of them."""

    def __init__(self, redis_url: str, home: Path) -> None:
        self.queue = JobQueue(connect(redis_url))
        self.store = SpoolStore(home / "store")
        self.marker = home / "faults" / "lost-any-1"
        with self.store.writer(OWNER, "float64", (2,), 3600) as writer:
            writer.take(np.array([1.0, 2.0]).tobytes())
            self._values = writer.commit(has_nan=False, has_inf=False).id

    def run(self) -> JobRecord:
        """Answer one job."""
        request = JobRequest(
            id=f"job_{uuid4().hex}",
            owner=OWNER,
            operation="double",
            params={},
            inputs={"values": self._values},
            timeout=60.0,
            result_ttl=60.0,
        )
        self.queue.enqueue(request)
        return self.until(lambda: self._final(request.id))

    def _final(self, job_id: str) -> JobRecord | None:
        record = self.queue.get(job_id)
        return record if record is not None and record.state.final else None

    def on_gpu(self, workers: int) -> bool:
        """Whether so many workers are idle and their GPUs well."""
        reports = self.queue.workers()
        well = [report.state == "ready" and report.gpu and report.gpu.state == "healthy" for report in reports]
        return well == [True] * workers

    def restarts(self) -> int:
        return sum(report.restarts for report in self.queue.workers())

    def until(self, found: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if value := found():
                return value
            time.sleep(0.001)
        raise SystemExit(f"nothing came in {PATIENCE:.0f} s: {self.queue.workers()}")


@contextmanager
def _desk(redis_url: str, home: Path, workers: int, faults: str) -> Iterator[_Desk]:
    settings = {
        "WARPDESK_OPERATIONS": "tests.workers.operations:TRUTH_TABLE",
        "WARPDESK_DEVICE": "tests.workers.device:PaperDevice",
        "WARPDESK_FAULTS": faults,
        "WARPDESK_AUTO": "gpu",
        "WARPDESK_COOL_DOWN_SECONDS": "0.1",  # three losses are a quarantine, and there are more to come
    }
    with ExitStack() as running:
        for _ in range(workers):
            running.enter_context(worker(redis_url, home, settings))
        desk = _Desk(redis_url, home)
        desk.until(lambda: desk.on_gpu(workers))
        yield desk
        running.close()
        desk.until(lambda: not desk.queue.workers())


def _fallbacks(redis_url: str, home: Path) -> list[float]:
    """Seconds from an exception in the GPU's code to the CPU's: as each answer says."""
    taken = []
    with _desk(redis_url, home, 1, f"oom@1-{RECOVERABLE}") as desk:
        for _ in range(RECOVERABLE):
            how = desk.run().provenance
            assert how is not None
            assert how.fallback_seconds is not None, how
            taken.append(how.fallback_seconds)
    return taken


def _losses(redis_url: str, home: Path) -> Iterator[Row]:
    """Every job loses the device that takes it first; what is measured is when another attempt begins."""
    lost = "lost@1-1000000/once"
    with _desk(redis_url, home, 2, lost) as desk:
        elsewhere = [_lose(desk, 2)[1] for _ in range(STICKY)]
    yield _row("device lost to the job running on a second worker", elsewhere, goal=0.5)
    with _desk(redis_url, home, 1, lost) as desk, api(redis_url, home) as url:
        told, alone = [], []
        for _ in range(STICKY):
            fault, again = _lose(desk, 1, lambda since: _telling(url, since))
            told.append(fault)
            alone.append(again)
    yield _row("device lost to the job running again, one worker", alone, goal=5.0)
    yield _row("device lost to /gpu-health telling it", told, goal=2.0)


def _lose(desk: _Desk, workers: int, look: Callable[[float], float] = lambda _: 0.0) -> tuple[float, float]:
    """Lose a device once. Returns what `look` returns, and the seconds to the next start of the job."""
    for _ in range(100):  # a quarantine or a breaker that is still open may keep a job off the GPU
        desk.until(lambda: desk.on_gpu(workers) or _tries(desk))
        restarts = desk.restarts()
        desk.marker.unlink(missing_ok=True)
        began = time.time()
        with _beside(partial(look, began)) as seen:
            record = desk.run()
        if record.attempt == 2:
            happened = desk.marker.stat().st_mtime
            assert record.started_at is not None
            # The job may be answered before the worker that lost it has said that it starts again.
            desk.until(lambda: desk.restarts() > restarts)  # noqa: B023 (called here)
            return seen[0] - happened, record.started_at - happened
    raise SystemExit("no job lost the device")


def _tries(desk: _Desk) -> bool:
    """A breaker that is half-open closes by a job that works, and none does while the marker is away."""
    reports = desk.queue.workers()
    kept_off = [report for report in reports if report.gpu is not None and report.gpu.breakers]
    if kept_off and all(report.state == "ready" for report in reports):
        desk.marker.touch()
        desk.run()
        time.sleep(0.1)  # the cool-down
    return False


@contextmanager
def _beside(work: Callable[[], float]) -> Iterator[list[float]]:
    """Do something in another thread meanwhile; what it returns is in the list at the end."""
    found: list[float] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    yield found
    thread.join()


def _telling(url: str, since: float) -> float:
    """When /gpu-health first tells of a fault later than `since`."""
    deadline = time.monotonic() + PATIENCE
    with httpx.Client(base_url=url) as http:
        while time.monotonic() < deadline:
            for device in http.get("/gpu-health").json()["devices"]:
                fault = device["last_fault_at"]
                if device["state"] != "healthy" and fault is not None and _unix(fault) > since:
                    return time.time()
            time.sleep(0.005)
    return float("nan")


def _unix(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()


def _row(what: str, seconds: list[float], goal: float) -> Row:
    p50, p99 = (1e3 * float(np.quantile(seconds, share, method="higher")) for share in (0.5, 0.99))
    return {
        "from": what,
        "times": len(seconds),
        "p50 ms": p50,
        "p99 ms": p99,
        "most ms": 1e3 * max(seconds),
        "goal for p99 ms": 1e3 * goal,
    }
