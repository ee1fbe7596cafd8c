"""Benchmark of recovery: how soon is a job computed again after a GPU fault, and how soon is the fault reported?

Faults are planned (`tests.stand_ins.faults`) in real workers, so that what is measured is recovery alone. The time of a
fault is what the faulty device notes just before it raises it. All times are this machine's clock.

After a recoverable fault the same process goes on with the CPU. That is measured with an operation of each family on
the emulated GPU, where real implementations, chunks and accounts of memory are left behind by the fault; it ends at the
first instruction of the CPU's implementation. Kernels run in jobs in between, and never in what is measured. On a real
GPU the driver's own time to free memory comes on top.

After a sticky fault another process takes the job. That is measured on a device of paper: opening a real GPU takes a
second or two longer where the worker is alone.
"""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import cycle, islice, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

import httpx
import numpy as np

from tests.stand_ins.faults import HAPPENED
from warpdesk_server.benchmarks.faulted import FAULTED
from warpdesk_server.benchmarks.processes import api, compiled, redis, worker
from warpdesk_server.benchmarks.report import Row, show
from warpdesk_server.kernels.operation import Example
from warpdesk_server.workers.queue.jobs import JobQueue, connect
from warpdesk_server.workers.queue.protocol import JobRequest
from warpdesk_server.workers.queue.records import JobRecord
from warpdesk_server.workers.settings import WorkerSettings
from warpdesk_server.workers.store.spool import SpoolStore

RECOVERABLE = int(os.environ.get("RECOVERABLE", "1000"))
WAITING = RECOVERABLE // 10  # takes a second each
STICKY = int(os.environ.get("STICKY", "50"))  # take 1.5 s each; of so few the 99th percentile is the largest
OWNER = "local"
PATIENCE = 60.0
SOON, ELSEWHERE, ALONE, TELLING = 1e-3, 0.5, 5.0, 2.0  # goals for the 99th percentile, in seconds

PAPER = {
    "WARPDESK_OPERATIONS": "tests.workers.operations:TRUTH_TABLE",
    "WARPDESK_DEVICE": "tests.workers.device:PaperDevice",
    "WARPDESK_COOL_DOWN_SECONDS": "0.1",  # three losses are a quarantine, and there are more to come
}
EMULATED = {
    "WARPDESK_OPERATIONS": "warpdesk_server.benchmarks.faulted:FAULTED",
    "WARPDESK_DEVICE": "tests.cudasim.device:EmulatedDevice",
    "WARPDESK_COOL_DOWN_SECONDS": "0.001",  # refused launches open breakers, and there are more to come
}
DOUBLE = Example(inputs={"values": {"data": [1.0, 2.0], "dtype": "float64"}})
# Of eight chunks, for which memory is asked as 8, 4, 2, 1 and once more 1.
LARGE = Example(inputs={"x": {"data": np.ones(1 << 25, np.float32), "dtype": "float32"}})


def main() -> None:
    with redis() as redis_url, TemporaryDirectory(prefix="warpdesk-bench-") as home:
        rows = [*_fallbacks(redis_url, Path(home)), *_losses(redis_url, Path(home))]
        show("faults", rows)


class _Desk:
    """A client that submits jobs directly to the queue, without the API, and follows them."""

    def __init__(self, redis_url: str, home: Path, fault: str) -> None:
        self.store = SpoolStore(home / "store")
        self.queue = JobQueue(connect(redis_url), self.store.mac_of)
        folder = home / "faults"
        self.marker = folder / f"{fault.partition('=')[0].partition('@')[0]}-any-1"
        self._happened = folder / HAPPENED
        self._read = 0
        self._stored: dict[str, dict[str, str]] = {}  # ids of inputs, by operation

    def run(self, operation: str, example: Example) -> JobRecord:
        """Submit one job and wait for its end."""
        request = JobRequest(
            id=f"job_{uuid4().hex}",
            owner=OWNER,
            operation=operation,
            params=example.params,
            inputs=self._inputs(operation, example),
            seed=0,
            timeout=60.0,
            result_ttl=60.0,
        )
        self.queue.enqueue(request)
        return self.until(lambda: self._final(request.id))

    def _inputs(self, operation: str, example: Example) -> dict[str, str]:
        """The ids of the example's arrays, stored once. Secret ones are stored for each job and end with it."""
        secret = operation in FAULTED and any(given.secret for given in FAULTED[operation].inputs)
        if secret or operation not in self._stored:
            self._stored[operation] = {name: self._store(secret, **given) for name, given in example.inputs.items()}
        return self._stored[operation]

    def _store(self, secret: bool, data: Any, dtype: Any) -> str:
        array = np.asarray(data, dtype)
        with self.store.writer(OWNER, dtype, array.shape, 3600, unique=secret) as writer:
            writer.take(array.tobytes())
            return writer.commit(has_nan=False, has_inf=False).id

    def happened(self) -> list[tuple[str, float]]:
        """The faulty device's notes since the last call: kind and Unix seconds."""
        with self._happened.open() as file:
            file.seek(self._read)
            lines = file.read().splitlines()
            self._read = file.tell()
        return [(kind, float(at)) for kind, at in map(str.split, lines)]

    def began(self, record: JobRecord) -> float | None:
        """The time at which the CPU began to compute this job's result, if it did."""
        assert record.result is not None, record
        document = json.loads((self.store.result(record.result) / "result.json").read_text())
        self.store.delete_result(record.result)
        began: float | None = document["outputs"]["began"]["value"]
        return began

    def _final(self, job_id: str) -> JobRecord | None:
        record = self.queue.get(job_id)
        return record if record is not None and record.state.final else None

    def on_gpu(self, workers: int) -> bool:
        """Whether `workers` workers are idle with healthy GPUs."""
        reports = self.queue.workers()
        well = [report.state == "ready" and report.gpu and report.gpu.state == "healthy" for report in reports]
        return well == [True] * workers

    def restarts(self) -> int:
        return sum(report.restarts for report in self.queue.workers())

    def until(self, found: Callable[[], Any], patience: float = PATIENCE) -> Any:
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            if value := found():
                return value
            time.sleep(0.005)  # who looks takes time from those who are measured
        raise SystemExit(f"nothing came in {patience:.0f} s: {self.queue.workers()}")


@contextmanager
def _desk(redis_url: str, home: Path, workers: int, settings: Mapping[str, str], fault: str) -> Iterator[_Desk]:
    """So many workers, ready, on whose devices a fault is planned, and all of whose code is compiled."""
    with ExitStack() as running:
        for _ in range(workers):
            environment = {**settings, "STAND_IN_FAULTS": fault, "WARPDESK_AUTO": "gpu"}
            running.enter_context(worker(redis_url, home, environment, through=("tests.stand_ins",)))
        desk = _Desk(redis_url, home, fault)
        desk.until(lambda: desk.on_gpu(workers), 600.0)
        compiled(WorkerSettings(operations=settings["WARPDESK_OPERATIONS"]))
        yield desk
        running.close()
        desk.until(lambda: not desk.queue.workers())


@dataclass(frozen=True)
class _Fallback:
    """Seconds from a job's first fault, and from its last, to the CPU's first instruction; and its seconds of waiting
    for memory held by others."""

    from_first: float
    from_last: float
    waiting: float


def _fallbacks(redis_url: str, home: Path) -> Iterator[Row]:
    """Rows for each kind of recoverable fault; those whose kernels breakers may keep off the GPU one at a time."""
    examples = {name: operation.example for name, operation in FAULTED.items()}
    large = {"sum": LARGE}
    for fault, what in (("launch", "a launch refused"), ("compile", "a kernel not compiled")):
        taken = _fall(redis_url, home, f"{fault}@1-1000000/once", examples, RECOVERABLE)
        yield _row(what, [each.from_last for each in taken], SOON)
    taken = _fall(redis_url, home, "oom-alloc@1-1000000", examples, RECOVERABLE)
    yield _row("out of memory", [each.from_last for each in taken], SOON)
    yield _row("out of memory, tried twice", [each.from_first for each in taken], SOON)
    taken = _fall(redis_url, home, "oom-alloc@1-1000000", large, RECOVERABLE)
    yield _row("out of memory, tried in 8 chunks, 4, 2, 1 and 1", [each.from_first for each in taken], SOON)
    taken = _fall(redis_url, home, "full@1-1000000", large, WAITING)
    yield _row("others have the memory: the whole ladder", [each.from_first for each in taken])
    yield _row("... of it waiting for them, twice", [each.waiting for each in taken])
    yield _row("... of it after the last try", [each.from_last for each in taken], SOON)


def _fall(redis_url: str, home: Path, fault: str, examples: Mapping[str, Example], times: int) -> list[_Fallback]:
    """Measure fallbacks to the CPU, of one operation after another."""
    taken: list[_Fallback] = []
    with _desk(redis_url, home, 1, EMULATED, fault) as desk:
        for name, example in islice(cycle(examples.items()), times):
            desk.marker.unlink(missing_ok=True)
            desk.happened()
            record = desk.run(name, example)
            began, noted = desk.began(record), desk.happened()
            if fault.startswith("full"):
                noted = noted[1:]  # others have the memory from the job's begin on; it is noticed later
            if began is None or not noted:
                raise SystemExit(f"{fault} in {name} led to {record.provenance}")
            taken.append(_Fallback(began - noted[0][1], began - noted[-1][1], _waited(noted)))
            while fault.endswith("/once") and desk.began(desk.run(name, example)) is not None:
                time.sleep(0.01)  # a breaker that is half-open closes by a job that works
    return taken


def _waited(noted: list[tuple[str, float]]) -> float:
    """Seconds spent in polls of memory that other processes hold. A poll comes every hundredth of a second."""
    return sum(later - at for (kind, at), (again, later) in pairwise(noted) if (kind, again) == ("waiting", "waiting"))


def _losses(redis_url: str, home: Path) -> Iterator[Row]:
    """Rows for lost devices: each job loses its first device, and the time to the next attempt is measured."""
    lost = "lost@1-1000000/once"
    with _desk(redis_url, home, 2, PAPER, lost) as desk:
        elsewhere = [_lose(desk, 2)[1] for _ in range(STICKY)]
    yield _row("device lost, to the job's start on a second worker", elsewhere, ELSEWHERE)
    with _desk(redis_url, home, 1, PAPER, lost) as desk, api(redis_url, home) as url:
        delays, alone = [], []
        for _ in range(STICKY):
            fault, again = _lose(desk, 1, lambda since: _telling(url, since))
            delays.append(fault)
            alone.append(again)
    yield _row("device lost, to the job's next start, one worker", alone, ALONE)
    yield _row("device lost, to /gpu-health telling it", delays, TELLING)


def _lose(desk: _Desk, workers: int, look: Callable[[float], float] = lambda _: 0.0) -> tuple[float, float]:
    """Lose a device once. Returns the result of `look`, and the seconds to the next start of the job."""
    for _ in range(100):  # a quarantine or a breaker that is still open may keep a job off the GPU
        desk.until(lambda: desk.on_gpu(workers) or _tries(desk))
        restarts = desk.restarts()
        desk.marker.unlink(missing_ok=True)
        began = time.time()
        with _beside(partial(look, began)) as looks:
            record = desk.run("double", DOUBLE)
        if record.attempt == 2:
            _, happened = desk.happened()[-1]
            assert record.started_at is not None
            # The job may be answered before the worker that lost it has said that it starts again.
            desk.until(lambda: desk.restarts() > restarts)  # noqa: B023 (called here)
            return looks[0] - happened, record.started_at - happened
    raise SystemExit("no job lost the device")


def _tries(desk: _Desk) -> bool:
    """A breaker that is half-open closes by a job that works, and none does while the marker is away."""
    reports = desk.queue.workers()
    kept_off = [report for report in reports if report.gpu is not None and report.gpu.breakers]
    if kept_off and all(report.state == "ready" for report in reports):
        desk.marker.touch()
        desk.run("double", DOUBLE)
        time.sleep(0.1)  # the cool-down
    return False


@contextmanager
def _beside(work: Callable[[], float]) -> Iterator[list[float]]:
    """Run `work` in another thread during this context; its result is in the list at the end."""
    found: list[float] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    yield found
    thread.join()


def _telling(url: str, since: float) -> float:
    """The time at which /gpu-health first reports a fault later than `since`."""
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


def _row(what: str, seconds: list[float], goal: float | None = None) -> Row:
    p50, p99 = (1e3 * float(np.quantile(seconds, share, method="higher")) for share in (0.5, 0.99))
    return {
        "from": what,
        "times": len(seconds),
        "p50 ms": p50,
        "p99 ms": p99,
        "most ms": 1e3 * max(seconds),
        "goal for p99 ms": "none" if goal is None else 1e3 * goal,
    }
