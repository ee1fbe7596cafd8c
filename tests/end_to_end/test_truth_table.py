"""What /readyz and /gpu-health say of each fault: a real Redis, a real worker, real HTTP, and faults in its real child.

Each row plans faults (`tests.stand_ins.faults`), sends jobs one after another, and asserts how they ended, every
condition that the GPU was in, in that order, and that nobody was told of trouble where there is none. The measured
times are printed.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.app.conftest import Live, live
from tests.stand_ins.faults import HAPPENED
from tests.stand_ins.nvml import A100
from tests.workers.conftest import Desk
from tests.workers.operations import TRUTH_TABLE
from warpdesk_server.service.redis_server import RedisServer

pytestmark = pytest.mark.timeout(300)  # seconds

PAPER = "tests.workers.device:PaperDevice"
SCRIPTS = Path(__file__).parent.parent / "workers" / "gpu" / "nvml"
DOUBLE = {"operation": "double", "inputs": {"values": {"data": [1.0, 2.0]}}}

# How a job ended: its state, and the backend that answered or the error's code.
GPU, CPU, LATE = ("succeeded", "gpu"), ("succeeded", "cpu"), ("failed", "timeout")
REFUSED, NO_GPU = ("failed", "device-fault"), ("refused", "no-gpu-worker")


@dataclass(frozen=True)
class Row:
    """`jobs` are sent one after another, each with what it must become; a word waits for that condition of the GPU, or
    state of a breaker. `conditions` is what must be seen in this order; nothing else may be, but health."""

    jobs: tuple[Any, ...]
    conditions: tuple[str, ...]
    says: str = ""  # in what /gpu-health says at some time
    faults: str = ""
    device: str = PAPER
    attempts: int | None = None  # of the first job
    environment: dict[str, str] = field(default_factory=dict)
    job: dict[str, Any] = field(default_factory=dict)


ROWS = {
    "no fault": Row((GPU,) * 5, ("healthy",)),
    "out of memory": Row((CPU, GPU, GPU), ("healthy",), '"out-of-memory":1', "oom@1"),
    "out of memory for a while": Row((CPU, GPU), ("healthy",), '"out-of-memory":1', "oom-alloc@2"),
    "memory that others have": Row((CPU, GPU), ("healthy",), '"out-of-memory":1', "full@1"),
    "a kernel not compiled once": Row((CPU, GPU, GPU), ("healthy",), '"compile":1', "compile@1"),
    "a kernel not compiled for three jobs": Row(
        (CPU, CPU, CPU, "degraded", CPU, REFUSED, "half-open", GPU, "healthy", GPU),
        ("degraded", "healthy"),
        "double_values is kept off the GPU: double_values could not be compiled",
        "compile:double_values@1-3",
        environment={"WARPDESK_COOL_DOWN_SECONDS": "5"},
    ),
    "a launch refused once": Row((CPU, GPU, GPU), ("healthy",), '"launch":1', "launch@1"),
    "a kernel refused for three jobs": Row(
        (CPU, CPU, CPU, "degraded", CPU, REFUSED, "half-open", GPU, "healthy", GPU),
        ("degraded", "healthy"),
        "double_values is kept off the GPU",
        "launch:double_values@1-3",
        environment={"WARPDESK_COOL_DOWN_SECONDS": "5"},
    ),
    "lost once": Row((GPU, "healthy"), ("restarting", "healthy"), "illegal address", "lost@1/once", attempts=2),
    "lost in an example": Row(
        (CPU, "half-open", GPU, "healthy"),
        ("restarting", "degraded", "healthy"),
        "double is kept off the GPU: the device was lost (double_values ended with CUDA error 719",
        "lost=719:double_values@1/once/start",
        environment={"WARPDESK_COOL_DOWN_SECONDS": "12"},
    ),
    "a job that loses the device each time": Row(
        (CPU, "healthy"),
        ("restarting", "healthy"),
        "illegal address",
        "lost@1",
        attempts=3,
    ),
    "three jobs that lose the device": Row(
        (CPU, CPU, CPU, "quarantined", NO_GPU, CPU, "degraded"),
        ("restarting", "quarantined", "degraded"),  # the kernel that all of them named is still kept off
        "illegal address",
        "lost@1",
        environment={"WARPDESK_COOL_DOWN_SECONDS": "5"},
    ),
    "a kernel that hangs": Row(
        (LATE, "healthy"), ("degraded", "restarting", "healthy"), "longer than its size explains", "hang@1/once"
    ),
    "three jobs that hang": Row(
        (LATE, LATE, LATE, "quarantined", CPU),
        ("degraded", "restarting", "quarantined"),
        '"timeout":3',
        "hang@1",
        environment={"WARPDESK_COOL_DOWN_SECONDS": "60"},
    ),
    "a GPU that hangs between jobs": Row(
        (GPU, "restarting", GPU, "healthy", GPU),
        ("restarting", "healthy"),
        "did not answer the canary within 1.5 s",
        "hang:canary@2/once",
        environment={"WARPDESK_CANARY_SECONDS": "2"},
    ),
    "a GPU that hangs before a job": Row(
        (CPU, "half-open", GPU, "healthy"),
        ("restarting", "degraded", "restarting", "healthy"),
        '"hang":1',
        "lost=719:double_values@1/once/start,hang:canary@1/once",
        environment={"WARPDESK_COOL_DOWN_SECONDS": "15"},
    ),
    "a crash": Row((GPU, "healthy"), ("restarting", "healthy"), "SIGKILL", "crash@1/once", attempts=2),
    "a wrong answer to the canary": Row(
        (GPU, "quarantined", CPU, "healthy", GPU),
        ("quarantined", "healthy"),
        "paper computes wrongly: 1 of 512 known answers",
        "corrupt@4/once",
        environment={"WARPDESK_CANARY_SECONDS": "0.5"},
    ),
    "a wrong answer when it is opened": Row(
        (CPU, "healthy", GPU), ("quarantined", "healthy"), "paper computes wrongly", "corrupt@1/once"
    ),
    "memory that stays stuck": Row(
        (GPU, "degraded", GPU, GPU, "healthy", GPU),
        ("degraded", "restarting", "healthy"),
        "1073741824 bytes of device memory",
        "leak@1/once",
    ),
    "no device": Row((CPU, NO_GPU), ("absent",), "held by another process", device="tests.workers.device:absent"),
    "an error when it is opened": Row(
        (CPU, NO_GPU),
        ("quarantined",),
        "unknown error",
        device="tests.workers.device:ailing",
        environment={"WARPDESK_COOL_DOWN_SECONDS": "60"},
    ),
    "a driver that hangs when it is opened": Row(
        (CPU,),
        ("quarantined",),
        "said nothing for 8 s while looking for a GPU",
        device="tests.workers.device:hanging",
        environment={"WARPDESK_START_SECONDS": "8", "WARPDESK_COOL_DOWN_SECONDS": "60"},
    ),
    "a GPU that falls off the bus": Row(
        ("quarantined", CPU),
        ("quarantined",),
        "the GPU is lost",
        device=f"tests.workers.several:NumberedDevice@{A100}",
        environment={"STAND_IN_NVML": str(SCRIPTS / "lost.json"), "WARPDESK_COOL_DOWN_SECONDS": "60"},
    ),
    "a driver that stops answering": Row(
        (GPU, "degraded", GPU),
        ("degraded",),
        "the driver hangs",
        device=f"tests.workers.several:NumberedDevice@{A100}",
        environment={"STAND_IN_NVML": str(SCRIPTS / "hung.json")},
    ),
}
# In these conditions jobs run, and something is to be told.
TROUBLE = {"degraded", "quarantined"}


@dataclass(frozen=True)
class Verdict:
    """What both said at one time: the GPU's condition, its worker's state, /readyz' code and status."""

    condition: str
    worker: str
    code: int
    status: str


class Watcher(threading.Thread):
    """Asks /readyz and /gpu-health all the time, as a load balancer and an operator would."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.verdicts: list[tuple[float, Verdict]] = []  # each change
        self.words = ""  # all that /gpu-health said
        self.now = ""
        self._url = url
        self._ended = threading.Event()

    def run(self) -> None:
        with httpx.Client(base_url=self._url, timeout=30) as http:
            while not self._ended.wait(0.01):
                before, health, ready = (http.get(path) for path in ("/gpu-health", "/gpu-health", "/readyz"))
                after = http.get("/gpu-health")
                around = [_verdict(one, ready) for one in (before, health, after)]
                if not health.is_success or not around[0] == around[1] == around[2]:
                    continue  # something changed between the questions: ask again
                self.now = health.text
                self.words += self.now
                verdict = _verdict(health, ready)
                if not self.verdicts or self.verdicts[-1][1] != verdict:
                    self.verdicts.append((time.time(), verdict))

    def end(self) -> None:
        self._ended.set()
        self.join()

    def is_now(self, word: str) -> bool:
        return bool(self.verdicts) and (self.verdicts[-1][1].condition == word or f'"state":"{word}"' in self.now)

    def definite_verdicts(self) -> list[tuple[float, Verdict]]:
        unknown = takewhile(lambda change: change[1].condition == "unknown", self.verdicts)
        first = len(list(unknown))
        return self.verdicts[first:]

    def conditions(self) -> list[str]:
        """One after another."""
        found: list[str] = []
        for _, verdict in self.definite_verdicts():
            condition = "restarting" if verdict.condition == "lost" else verdict.condition
            if not found or found[-1] != condition:
                found.append(condition)
        return found


def _verdict(health: httpx.Response, ready: httpx.Response) -> Verdict:
    body = health.json() if health.is_success else {}
    condition = next((device["state"] for device in body.get("devices", ())), "unknown")
    worker = next((worker["state"] for worker in body.get("workers", ())), "gone")
    return Verdict(condition, worker, ready.status_code, ready.json()["status"])


def _in_order(expected: tuple[str, ...], conditions: list[str]) -> bool:
    """Whether all that is expected was seen in this order, and nothing else but health."""
    rest = iter(conditions)
    in_order = all(any(found == wanted for found in rest) for wanted in expected)
    return in_order and set(conditions) <= {*expected, "healthy"}


@contextmanager
def watched(redis_url: str, home: Path, row: Row) -> Iterator[tuple[Live, Desk, Watcher]]:
    timeout = 3.0 if LATE in row.jobs else 60.0
    with live(home, redis_url, TRUTH_TABLE, job_timeout=timeout) as api:
        desk = Desk(redis_url, home, api.queue, api.store)
        watcher = Watcher(api.url)
        watcher.start()
        try:
            desk.start_worker(
                WARPDESK_OPERATIONS="tests.workers.operations:TRUTH_TABLE",
                **{
                    "WARPDESK_DEVICE": row.device,
                    "STAND_IN_FAULTS": row.faults,
                    "WARPDESK_COOL_DOWN_SECONDS": "1.5",
                    **row.environment,
                },
            )
            yield api, desk, watcher
        finally:
            watcher.end()
            desk.close()


def send(api: Live, **changes: Any) -> tuple[str, tuple[str, str], int]:
    """A job's id, how it ended, and its attempts."""
    answer = api.http.post("/v1/jobs", json={**DOUBLE, **changes}, headers={"Prefer": "wait=55"}, timeout=60)
    if answer.status_code == 503:
        return "", ("refused", answer.json()["code"]), 0
    assert answer.status_code == 200, answer.text
    job = answer.json()
    if job["status"] == "succeeded":
        assert job["result"]["outputs"] == {"doubled": [2.0, 4.0], "total": 6.0}
        return job["id"], ("succeeded", job["provenance"]["backend"]), job["attempt"]
    return job["id"], (job["status"], job["error"]["code"]), job["attempt"]


@pytest.mark.parametrize("name", ROWS)
def test_health_tells_the_truth_of_each_fault(redis_url: str, tmp_path: Path, name: str) -> None:
    row = ROWS[name]
    ended: list[tuple[str, tuple[str, str], int]] = []
    with watched(redis_url, tmp_path / "home", row) as (api, desk, watcher):
        for step in row.jobs:
            if isinstance(step, str):
                desk.until(lambda step=step: watcher.is_now(step), f"the GPU was never {step}")
            else:
                ended.append(send(api, **({"backend": "gpu"} if step in (REFUSED, NO_GPU) else {})))
                assert ended[-1][1] == step, (watcher.verdicts, desk.log()[-4000:])
        desk.until(lambda: row.says in watcher.words, f"nobody said {row.says!r}")
        desk.until(lambda: _in_order(row.conditions, watcher.conditions()), f"{row.conditions} was not seen", 20)
        results = desk.results() if (desk.home / "store" / "results").exists() else []

    _print(name, tmp_path / "home" / "faults" / HAPPENED, watcher)
    if row.attempts is not None:
        assert ended[0][2] == row.attempts
    # Nothing is lost, nothing is answered twice.
    assert results == sorted(f"{job}.{attempt}" for job, how, attempt in ended if how[0] == "succeeded")
    for _, verdict in watcher.definite_verdicts():
        if verdict.worker in ("ready", "busy"):
            status = "degraded" if verdict.condition in TROUBLE else "ok"
            assert (verdict.code, verdict.status) == (200, status), watcher.verdicts
        elif verdict.worker == "restarting" and verdict.code == 200:  # by the parent's own will, for some seconds
            assert verdict.status == "degraded", watcher.verdicts
        else:
            assert (verdict.code, verdict.status) == (503, "unavailable"), watcher.verdicts


def _print(name: str, file: Path, watcher: Watcher) -> None:
    """How long after the fault before it a trouble was first told, where it follows a planned one."""
    happened = [float(line.split()[1]) for line in file.read_text().splitlines()] if file.exists() else []
    noticed_at = next((at for at, verdict in watcher.definite_verdicts() if verdict.condition != "healthy"), 0.0)
    before = [at for at in happened if at < noticed_at]
    later = f", told {noticed_at - before[-1]:.2f} s after the fault" if before else ""
    print(f"{name}: {' > '.join(watcher.conditions())}{later}")  # noqa: T201


def test_a_redis_that_goes_away_is_told_at_once_and_costs_no_job(tmp_path: Path) -> None:
    with (
        RedisServer(tmp_path / "redis") as server,
        watched(server.url, tmp_path / "home", Row((), ())) as (api, desk, _),
    ):
        first = send(api)
        server.stop()
        desk.until(lambda: api.http.get("/readyz").status_code == 503, "it is still ready")
        health = api.http.get("/gpu-health")
        server.start()
        desk.until(lambda: api.http.get("/readyz").json()["status"] == "ok", "it is not ready again")
        second = send(api)
        state = api.http.get("/gpu-health").json()["devices"][0]["state"]
    assert (health.status_code, health.json()["code"]) == (503, "queue-unavailable")
    assert [how for _, how, _ in (first, second)] == [GPU, GPU]
    assert state == "healthy"
