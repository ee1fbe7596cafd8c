"""Long jobs run in a second process beside the worker, and nothing of one kind of job delays or hurts the other."""

import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.workers.conftest import Desk, alive
from warpdesk.models import State
from warpdesk_server.workers.parent.companion import FORGOTTEN_SECONDS, Companion, beside_companion, patience
from warpdesk_server.workers.queue.reports import WorkerReport
from warpdesk_server.workers.settings import WorkerSettings


def companion(desk: Desk) -> WorkerReport:
    """The report of the worker that takes long jobs, once it computes one."""
    found: WorkerReport = desk.until(
        lambda: next((each for each in desk.queue.workers() if each.takes == "long" and each.child_pid), None),
        "no worker of long jobs came",
    )
    return found


def policies(pid: int) -> set[int]:
    return {os.sched_getscheduler(int(thread.name)) for thread in Path(f"/proc/{pid}/task").iterdir()}


def test_a_quick_job_is_answered_while_a_long_one_computes_at_the_lowest_priority(desk: Desk) -> None:
    worker = desk.start_worker()
    assert worker is not None
    assert [each.takes for each in desk.queue.workers()] == ["both"]
    with desk.gate() as gate:
        long, napping = desk.nap(gate=gate, long=True, priority="realtime")
        record = desk.wait(desk.submit(priority="research"))
        assert desk.doubled(record) == [2.0, 4.0, 6.0]
        beside = companion(desk)
        assert (beside.started_by, beside.child_pid) == (worker.pid, napping)
        assert worker.child_pid is not None
        assert policies(worker.child_pid) == {os.SCHED_OTHER}
        assert policies(napping) == {os.SCHED_IDLE}
        assert policies(beside.pid) == {os.SCHED_OTHER}  # it renews the claim
        running = desk.queue.get(long)
        assert running is not None
        assert running.state is State.RUNNING
    assert desk.wait(long).state is State.SUCCEEDED


def test_a_quick_job_that_kills_its_process_costs_the_long_one_no_strike(desk: Desk) -> None:
    desk.start_worker()
    marks = desk.home / "marks"
    marks.mkdir()
    with desk.gate() as gate:
        long, napping = desk.nap(gate=gate, long=True)
        deadly = desk.wait(desk.submit("die", params={"times": 99, "marker": str(marks)}))
        assert (deadly.state, deadly.attempt) == (State.FAILED, 3)
        assert desk.doubled(desk.wait(desk.submit())) == [2.0, 4.0, 6.0]
        assert alive(napping)
    record = desk.wait(long)
    assert (record.state, record.attempt, record.strikes) == (State.SUCCEEDED, 1, 0)


def test_a_long_job_that_kills_its_process_hurts_no_quick_one(desk: Desk) -> None:
    worker = desk.start_worker()
    marks = desk.home / "marks"
    marks.mkdir()
    deadly = desk.submit("die", params={"times": 2, "marker": str(marks)}, long=True)
    quick = [desk.submit() for _ in range(20)]
    assert [desk.wait(job_id).attempt for job_id in quick] == [1] * 20
    record = desk.wait(deadly)
    assert (record.state, record.attempt, record.strikes) == (State.SUCCEEDED, 3, 2)
    now = next(each for each in desk.queue.workers() if each.takes == "both")
    assert worker is not None
    assert (now.child_pid, now.restarts) == (worker.child_pid, 0)


def test_a_stopped_worker_ends_once_its_long_job_is_done(desk: Desk) -> None:
    desk.start_worker()
    with desk.gate() as gate:
        long, _ = desk.nap(gate=gate, long=True)
        beside = companion(desk)
        desk.workers[0].terminate()
        desk.until(lambda: [each.takes for each in desk.queue.workers()] == ["long"], "it did not stop")
    assert desk.workers[0].wait(20) == 0
    record = desk.wait(long)
    assert (record.state, record.attempt) == (State.SUCCEEDED, 1)
    assert not alive(beside.pid)
    assert list(desk.queue.workers()) == []


def test_a_stopped_worker_gives_back_a_long_job_that_it_cannot_finish(desk: Desk) -> None:
    desk.start_worker(WARPDESK_DRAIN_SECONDS="0.3")
    long, napping = desk.nap(long=True)
    desk.workers[0].terminate()
    assert desk.workers[0].wait(20) == 0
    assert not alive(napping)
    record = desk.queue.get(long)
    assert record is not None
    assert (record.state, record.attempt, record.strikes) == (State.QUEUED, 1, 0)


@pytest.mark.parametrize("whom", ["worker", "companion"])
def test_the_death_of_either_parent_costs_a_long_job_one_attempt_and_no_strike(desk: Desk, whom: str) -> None:
    worker = desk.start_worker()
    with desk.gate() as gate:
        long, napping = desk.nap(gate=gate, long=True)
        beside = companion(desk)
        assert worker is not None
        os.kill(worker.pid if whom == "worker" else beside.pid, signal.SIGKILL)
        desk.until(lambda: not alive(beside.pid) and not alive(napping), "it outlived its parent")
        if whom == "worker":
            desk.start_worker()
    record = desk.wait(long)
    assert (record.state, record.attempt, record.strikes) == (State.SUCCEEDED, 2, 0)


def test_a_worker_is_not_idle_while_a_long_job_runs_and_both_end_after_it(desk: Desk) -> None:
    desk.start_worker(WARPDESK_IDLE_EXIT_SECONDS="1.2")
    with desk.gate() as gate:
        long, _ = desk.nap(gate=gate, long=True)
        beside = companion(desk)
        time.sleep(2)
        assert desk.workers[0].poll() is None
    assert desk.wait(long).state is State.SUCCEEDED
    assert desk.workers[0].wait(20) == 0
    assert not alive(beside.pid)


def test_what_takes_both_kinds_in_turn_starts_no_other_process(desk: Desk) -> None:
    worker = desk.start_worker(WARPDESK_TAKES="all")
    with desk.gate() as gate:
        long, napping = desk.nap(gate=gate, long=True)
        quick = desk.submit()
        time.sleep(0.5)
        waiting = desk.queue.get(quick)
        assert waiting is not None
        assert waiting.state is State.QUEUED
        assert worker is not None
        assert worker.child_pid == napping
    assert desk.wait(quick).state is State.SUCCEEDED
    assert desk.wait(long).state is State.SUCCEEDED
    assert [each.name for each in desk.queue.workers()] == [worker.name]


def test_a_worker_of_one_kind_leaves_the_other_where_it_is(desk: Desk) -> None:
    quick, long = desk.submit(), desk.submit(long=True)
    desk.start_worker(WARPDESK_TAKES="quick")
    assert desk.wait(quick).state is State.SUCCEEDED
    time.sleep(2.5)  # it looks for long jobs every second, if it looks at all
    waiting = desk.queue.get(long)
    assert waiting is not None
    assert waiting.state is State.QUEUED
    desk.start_worker(WARPDESK_TAKES="long")
    assert desk.wait(long).state is State.SUCCEEDED


@pytest.mark.parametrize(
    ("granted", "left"), [("", "0.5"), ("0.45", "0.25"), ("9000000000", "5000000000"), ("much", "much")]
)
def test_a_worker_leaves_part_of_the_device_memory_to_its_companion(granted: str, left: str) -> None:
    def made(takes: str) -> WorkerSettings:
        return WorkerSettings.model_validate({"takes": takes, "gpu_memory": granted})

    assert beside_companion(made("both")) == {"WARPDESK_GPU_MEMORY": left}
    assert [beside_companion(made(takes)) for takes in ("all", "quick", "long")] == [{}] * 3


@pytest.mark.parametrize("takes", ["long", "all", "both"])
def test_a_long_job_that_needs_a_gpu_does_not_wait_for_a_free_worker_without_one(desk: Desk, takes: str) -> None:
    desk.start_worker(WARPDESK_DEVICE="tests.workers.device:PaperDevice")
    desk.start_worker(WARPDESK_TAKES=takes)
    record = desk.wait(desk.submit(backend="gpu", long=True))
    assert record.state is State.SUCCEEDED
    assert record.provenance is not None
    assert record.provenance.backend == "gpu"


@pytest.mark.parametrize("kind", ["long", "quick"])
def test_a_job_that_needs_a_gpu_fails_rather_than_waits_where_only_the_process_of_other_jobs_has_one(
    desk: Desk, kind: str
) -> None:
    has_it = "quick" if kind == "long" else "long"
    desk.start_worker(WARPDESK_DEVICE=f"tests.workers.device:only_{has_it}")
    if kind == "quick":
        assert desk.wait(desk.submit(backend="gpu", long=True)).state is State.SUCCEEDED  # the companion is there
    record = desk.wait(desk.submit(backend="gpu", long=kind == "long"))
    assert record.error is not None
    assert record.error.code == "no-gpu-worker"


def test_a_worker_of_long_jobs_that_takes_none_is_not_waited_for(desk: Desk) -> None:
    desk.start_worker(WARPDESK_TAKES="long", WARPDESK_KEPT_FREE_BYTES=str(1 << 60))  # more than the disk has
    desk.start_worker()
    assert desk.wait(desk.submit(long=True)).state is State.SUCCEEDED


def reported(name: str, takes: str, backend: str = "cpu", **fields: Any) -> WorkerReport:
    values = {"host": "here", "pid": 1, "child_pid": 2, "state": "ready", "started_at": 0.0, "reported_at": 0.0}
    device = {"backend": backend, "name": "a device"}
    return WorkerReport.model_validate({"name": name, "takes": takes, "device": device, **values, **fields})


@pytest.mark.parametrize(
    ("others", "seconds"),
    [
        ([], 0.0),
        ([reported("a", "both", pid=7), reported("z", "both", pid=8)], 2.0),  # one comes before it
        ([reported("a", "both", pid=7), reported("b", "long", state="busy", started_by=7)], 0.0),  # and has one
        ([reported("a", "both", pid=7), reported("b", "long", host="there", state="busy", started_by=7)], 2.0),
        ([reported("z", "long")], 3.0),
        ([reported("z", "all", state="starting")], 3.0),
        ([reported("z", "long", state="busy"), reported("y", "quick"), reported("x", "")], 0.0),
    ],
)
def test_workers_start_companions_in_turns_and_wait_for_one_that_is_free(
    others: list[WorkerReport], seconds: float
) -> None:
    assert patience("m", {"long"}, others) == seconds


@pytest.mark.parametrize("python", ["/no/such/python", "no-such-python", "/etc"])
def test_an_interpreter_for_tasks_that_is_no_program_is_told_at_the_start(
    python: str, caplog: pytest.LogCaptureFixture
) -> None:
    fault = f"the worker of tasks cannot start: WARPDESK_TASK_PYTHON, {python!r}, is no program"
    settings = WorkerSettings(task_python=python)
    assert (Companion(settings, "tasks").fault, Companion(settings, "long").fault) == (fault, None)
    assert caplog.messages == [fault]
    assert Companion(WorkerSettings(task_python=sys.executable), "tasks").fault is None


def test_a_companion_is_wanted_for_tasks_that_it_can_run_and_asked_again_after_an_hour(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1000.0
    monkeypatch.setattr("warpdesk_server.workers.parent.companion.time.monotonic", lambda: now)
    own = Companion(WorkerSettings(), "tasks")
    monkeypatch.setattr(own, "_process", type("Process", (), {"pid": 7})())

    def wanted(*tasks: str, others: list[WorkerReport] | None = None) -> bool:
        own.look("m", {"task"}, others or [], set(tasks))
        return own.wanted

    assert wanted("train"), "nothing is known yet"
    for host, pid, parent in (("there", 7, 1), (socket.gethostname(), 8, 9)):
        other = reported("z", "tasks", host=host, pid=pid, started_by=parent)
        assert wanted("train", others=[other.model_copy(update={"tasks": {"train": ("torch",)}, "state": "busy"})])
    mine = reported("z", "tasks", host=socket.gethostname(), pid=8, started_by=7, state="busy")
    knows = mine.model_copy(update={"tasks": {"train": ("torch",), "simulate": ()}})
    assert not wanted("train", "unknown", others=[knows])
    assert own.waited_for_since is None
    assert wanted("train", "simulate")
    now += FORGOTTEN_SECONDS - 1
    assert not wanted("train")
    now += 2
    assert wanted("train")
    assert own.tasks == {"train": ("torch",), "simulate": ()}, "as it is reported"


def test_who_has_no_gpu_is_not_waited_for_with_a_job_that_needs_one() -> None:
    assert patience("m", {"long-gpu"}, [reported("z", "long")]) == 0.0
    assert patience("m", {"long-gpu"}, [reported("z", "long", "gpu")]) == 3.0


def test_a_worker_whose_time_is_over_gives_back_its_long_job_like_the_quick_one(desk: Desk) -> None:
    desk.start_worker(WARPDESK_DRAIN_SECONDS="3")
    with desk.gate("one") as one, desk.gate("two") as two:
        jobs = desk.nap("long", gate=one, long=True)[0], desk.nap("quick", gate=two)[0]
        desk.workers[0].send_signal(signal.SIGALRM)  # as the timer of WARPDESK_MAX_SECONDS does
        assert desk.workers[0].wait(40) == 0
        records = [desk.queue.get(job_id) for job_id in jobs]
    assert [record and (record.state, record.attempt, record.strikes) for record in records] == [
        (State.QUEUED, 1, 0)
    ] * 2


def test_a_companion_that_does_not_start_is_told_and_its_worker_stays_for_the_job(desk: Desk) -> None:
    desk.start_worker(WARPDESK_OPERATIONS="tests.workers.operations:NOT_BESIDE_ANOTHER", WARPDESK_IDLE_EXIT_SECONDS="2")
    job_id = desk.submit(long=True)
    faults = desk.until(lambda: [each.long_fault for each in desk.queue.workers() if each.long_fault], "nobody told")
    assert faults == ["the worker of long jobs ended with exit code 3"]
    time.sleep(2.5)
    assert desk.workers[0].poll() is None
    assert desk.doubled(desk.wait(desk.submit())) == [2.0, 4.0, 6.0]
    desk.queue.cancel(job_id)
    assert desk.workers[0].wait(20) == 0
