"""A desk to test workers at: a real Redis, a store, and real worker processes that are gone afterwards."""

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from redis import Redis

from tests.conftest import ROOT
from tests.stand_ins import through
from tests.waiting import wait_until
from warpdesk.models import State
from warpdesk_server.workers.queue.jobs import JobQueue, connect
from warpdesk_server.workers.queue.protocol import JobRequest
from warpdesk_server.workers.queue.records import JobRecord
from warpdesk_server.workers.queue.reports import WorkerReport
from warpdesk_server.workers.store.spool import SpoolStore

OWNER = "key_a"
PATIENCE = 60.0


@dataclass
class Desk:
    """Submit jobs, start workers, wait for what becomes of both."""

    url: str
    home: Path
    queue: JobQueue
    store: SpoolStore
    workers: list["subprocess.Popen[bytes]"] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def array(self, values: Any, dtype: str = "float64", ttl: float = 600.0) -> str:
        array = np.asarray(values, dtype)
        with self.store.writer(OWNER, dtype, array.shape, ttl) as writer:  # type: ignore[arg-type]
            writer.take(array.tobytes())
            return writer.commit(has_nan=bool(np.isnan(array).any()), has_inf=False).id

    def request(self, operation: str = "double", inputs: dict[str, str] | None = None, **fields: Any) -> JobRequest:
        if inputs is None:
            inputs = {"values": self.array([1.0, 2.0, 3.0])} if operation in ("double", "stumble") else {}
        values: dict[str, Any] = {"params": {}, "timeout": 30.0, "result_ttl": 60.0, **fields}
        return JobRequest(
            id=f"job_{next(self._numbers):08d}", owner=OWNER, operation=operation, inputs=inputs, **values
        )

    def submit(self, operation: str = "double", inputs: dict[str, str] | None = None, **fields: Any) -> str:
        request = self.request(operation, inputs, **fields)
        self.queue.enqueue(request)
        return request.id

    def start_worker(self, *, ready: bool = True, url: str | None = None, **environment: str) -> WorkerReport | None:
        """Start a worker on the CPU, or with WARPDESK_DEVICE on a stand-in; return its first report when it is up."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith("WARPDESK_")}
        old_names = {report.name for report in self.queue.workers()} if ready else set()
        with (self.home / "worker.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", *through(environment), "warpdesk_server.workers.parent.main"],
                cwd=ROOT,
                env={
                    **clean,
                    "WARPDESK_HOME": str(self.home),
                    "WARPDESK_REDIS_URL": url or self.url,
                    "WARPDESK_OPERATIONS": "tests.workers.operations:OPERATIONS",
                    "WARPDESK_DEVICE": "cpu",
                    "WARPDESK_AUTO": "gpu",  # a stand-in's times say nothing
                    "WARPDESK_RETRY_DELAYS": "[]",
                    "WARPDESK_LOG_LEVEL": "info",
                    **environment,
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.workers.append(process)
        if not ready:
            return None
        return self.until(
            lambda: next((r for r in self.queue.workers() if r.able and r.name not in old_names), None),
            "no worker became ready",
            3 * PATIENCE,  # some children die before
        )

    def wait(self, job_id: str, patience: float = PATIENCE) -> JobRecord:
        """The record once it is final."""

        def final() -> JobRecord | None:
            record = self.queue.get(job_id)
            return record if record is not None and record.state.final else None

        return self.until(final, f"{job_id} did not end", patience)

    def doubled(self, record: JobRecord) -> list[float]:
        """The answer of `double`."""
        assert record.state is State.SUCCEEDED, record
        assert record.result is not None
        answer: list[float] = np.load(self.store.result(record.result) / "doubled.npy").tolist()
        return answer

    def until(self, found: Any, otherwise: str, patience: float = PATIENCE) -> Any:
        return wait_until(found, lambda: f"{otherwise}; the workers said:\n{self.log()[-6000:]}", patience)

    def log(self) -> str:
        file = self.home / "worker.log"
        return file.read_text() if file.exists() else ""

    def marker(self, name: str = "marker") -> Path:
        return self.home / name

    @contextmanager
    def gate(self, name: str = "gate") -> Iterator[str]:
        """A gate where jobs wait as long as this context lasts: pass it as `gate` in the parameters."""
        gate = self.home / name
        with gate.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield str(gate)

    def nap(self, name: str = "marker", gate: str = "", **fields: Any) -> tuple[str, int]:
        """Submit a nap and wait until it has begun: in native code without end, or until the gate is opened.

        Returns the job's id and the process that naps.
        """
        params = {"seconds": 600.0, "marker": str(self.marker(name)), "gate": gate}
        job_id = self.submit("nap", params=params, **fields)
        return job_id, self.napping(self.marker(name))

    def napping(self, marker: Path) -> int:
        """Wait until a nap has begun; return the number of the process that naps."""
        return int(self.until(lambda: marker.exists() and marker.read_text(), "nobody napped"))

    def results(self) -> list[str]:
        return sorted(directory.name for directory in (self.home / "store" / "results").iterdir())

    def close(self) -> None:
        for process in self.workers:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait()


def alive(pid: int) -> bool:
    """Whether any thread of it is: what it has open is closed by the last that ends."""
    states = []
    for task in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(OSError):
            states.append(task.read_text().rpartition(")")[2].split()[0])
    return any(state not in "ZX" for state in states)


@pytest.fixture
def connection(redis_url: str) -> Iterator[Redis]:
    with connect(redis_url) as connection:
        yield connection


@pytest.fixture
def queue(connection: Redis) -> JobQueue:
    return JobQueue(connection)


@pytest.fixture
def desk(redis_url: str, tmp_path: Path) -> Iterator[Desk]:
    connection = connect(redis_url)
    store = SpoolStore(tmp_path / "store")
    made = Desk(redis_url, tmp_path, JobQueue(connection, store.mac_of), store)
    yield made
    made.close()
    connection.close()
