"""A GPU that hangs is found out soon, by an idle worker and by a busy one, and a long job is no hang."""

import os
import signal
import time
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

import pytest
from rq.suspension import resume, suspend

from tests.workers.conftest import Desk
from warpdesk.models import State
from warpdesk_server.workers.parent.child_process import ChildProcess
from warpdesk_server.workers.pipe import Checked, Checking, Orders, send
from warpdesk_server.workers.queue.counts import Tally
from warpdesk_server.workers.queue.jobs import connect
from warpdesk_server.workers.queue.reports import GpuCondition, WorkerReport
from warpdesk_server.workers.settings import WorkerSettings

SOUND = {"WARPDESK_OPERATIONS": "tests.workers.operations:TRUTH_TABLE"}
PAPER = {**SOUND, "WARPDESK_DEVICE": "tests.workers.device:PaperDevice"}


def report(desk: Desk, **expected: Any) -> WorkerReport:
    """The worker's report once it is ready and its GPU has this state or these faults."""

    def found() -> WorkerReport | None:
        for worker in desk.queue.workers():
            if worker.state == "ready" and worker.gpu is not None:
                values = worker.gpu.model_dump() | {"restarts": worker.restarts}
                if expected.items() <= values.items():
                    return worker
        return None

    answer: WorkerReport = desk.until(found, f"no worker told {expected}")
    return answer


def late(desk: Desk) -> GpuCondition | None:
    """What is told of a GPU that a job has been in one call of for too long."""
    conditions = (worker.gpu for worker in desk.queue.workers())
    return next((gpu for gpu in conditions if gpu is not None and gpu.state == "degraded"), None)


def backend(desk: Desk, job_id: str) -> str:
    record = desk.wait(job_id)
    assert record.provenance is not None, record
    return record.provenance.backend


def test_an_idle_worker_waits_for_a_job_for_less_time_than_the_canary_has(desk: Desk) -> None:
    desk.start_worker(**PAPER)
    with connect(desk.url) as connection, connection.monitor() as commands:
        command = ""
        while not command.startswith("BLPOP"):
            command = commands.next_command()["command"]
    assert float(command.split()[-1]) < WorkerSettings().canary_deadline_seconds


def test_a_gpu_that_hangs_while_it_is_idle_costs_its_process_and_no_job(desk: Desk) -> None:
    desk.start_worker(**PAPER, STAND_IN_FAULTS="hang:canary@1/once", WARPDESK_CANARY_SECONDS="0.5")
    worker = report(desk, restarts=1, state="healthy")
    assert worker.gpu is not None
    assert worker.gpu.faults == {"hang": 1}
    assert backend(desk, desk.submit()) == "gpu"


def test_a_suspended_worker_looks_after_its_gpu_and_takes_no_job(desk: Desk) -> None:
    desk.start_worker(**PAPER, STAND_IN_FAULTS="hang:canary@1/once", WARPDESK_CANARY_SECONDS="3")
    with connect(desk.url) as connection:
        suspend(connection)
        (name,) = connection.smembers("rq:workers")
        desk.until(lambda: connection.hget(name, "state") == b"suspended", "it is not suspended")
        job_id = desk.submit()
        report(desk, restarts=1, state="healthy")
        assert desk.queue.length() == 1
        resume(connection)
        assert backend(desk, job_id) == "gpu"
        suspend(connection)
        desk.until(lambda: connection.hget(name, "state") == b"suspended", "it is not suspended again")
        resume(connection)
        desk.until(lambda: connection.hget(name, "state") == b"idle", "RQ still shows it as suspended")


def test_a_gpu_is_asked_the_canary_before_the_first_job_after_a_pause(desk: Desk) -> None:
    desk.start_worker(**PAPER, STAND_IN_FAULTS="hang:canary@1/once")
    time.sleep(1.5)
    assert backend(desk, desk.submit()) == "gpu"
    worker = report(desk, restarts=1)
    assert worker.gpu is not None
    assert worker.gpu.faults == {"hang": 1}


def test_a_child_that_lost_its_gpu_and_cannot_end_gets_no_job(desk: Desk) -> None:
    clinging = "tests.workers.stuck:ClingingDevice"
    desk.start_worker(**SOUND, WARPDESK_DEVICE=clinging, WARPDESK_CANARY_SECONDS="0.5")
    worker = report(desk, restarts=1, state="healthy")
    assert worker.gpu is not None
    assert worker.gpu.faults == {"lost": 1}
    record = desk.wait(desk.submit())
    assert (record.state, record.attempt) == (State.SUCCEEDED, 1)


def test_a_job_that_is_canceled_in_a_call_makes_a_hanging_gpu_be_found_out_by_the_next_child(desk: Desk) -> None:
    desk.start_worker(**SOUND, WARPDESK_DEVICE="tests.workers.stuck:once_hung", STAND_IN_FAULTS="hang@1/once")
    job_id = desk.submit()
    condition = desk.until(lambda: late(desk), "nobody told of a long call")
    assert condition.call_since is not None
    assert "longer than its size explains: it may hang" in (condition.reason or "")
    desk.queue.cancel(job_id)
    worker = report(desk, state="quarantined")
    assert worker.gpu is not None
    assert worker.gpu.reason is not None
    assert worker.gpu.reason.startswith(
        "the worker process said nothing for 10 s while looking for a GPU, after a job that was canceled had been in "
        "one call of the GPU for "
    )
    assert backend(desk, desk.submit()) == "cpu"


def test_long_jobs_that_are_ended_in_a_call_are_no_hang(desk: Desk) -> None:
    desk.start_worker(**PAPER, STAND_IN_FAULTS="slow@1-100")
    late = [desk.wait(desk.submit(timeout=0.4)) for _ in range(3)]
    expired = desk.wait(desk.submit(deadline=time.time() + 0.4))
    assert [record.error and record.error.code for record in late] == ["timeout"] * 3
    assert expired.state is State.EXPIRED
    assert backend(desk, desk.submit()) == "gpu"
    worker = report(desk, state="healthy")
    assert worker.gpu is not None
    assert worker.gpu.faults == {}


def test_a_canary_asked_very_often_raises_no_alarm(desk: Desk) -> None:
    first = desk.start_worker(**PAPER, WARPDESK_CANARY_SECONDS="0.05")
    assert first is not None

    def second() -> WorkerReport | None:
        return next((worker for worker in desk.queue.workers() if worker.reported_at > first.reported_at), None)

    worker: WorkerReport = desk.until(second, "it reported once only")
    assert worker.gpu is not None
    assert (worker.gpu.state, worker.gpu.reason) == ("healthy", None)


@pytest.fixture
def child(tmp_path: Path) -> ChildProcess:
    return ChildProcess(WorkerSettings(home=tmp_path, device="cpu"), Tally())


def test_a_parent_that_hears_late_of_a_question_does_not_take_the_answer_on_its_way_for_none(
    child: ChildProcess,
) -> None:
    ours, theirs = Pipe()
    assert isinstance(ours, Connection)
    child.pipe = ours
    with ours, theirs:
        send(theirs, Checking(began=time.monotonic() - 3600))
        child.hear()
        left = child.canary_left
        assert left is not None
        assert left > 0
        send(theirs, Checked())
        child.hear()
        assert child.canary_left is None


def test_a_parent_that_was_stopped_as_the_time_to_answer_ended_hears_the_child_first(child: ChildProcess) -> None:
    ours, theirs = Pipe()
    assert isinstance(ours, Connection)
    child.pipe = ours
    with ours, theirs:
        send(theirs, Checking(began=time.monotonic() - 3600))
        child.hear()
        time.sleep(0.5)  # nobody asks meanwhile, as on a machine that stands still
        left = child.canary_left
        assert left is not None
        assert left > 0


def test_a_child_that_is_to_end_is_gone_before_it_has_ended(child: ChildProcess) -> None:
    child.spawn(Orders(no_gpu="it is a test"))
    assert not child.gone
    child.dismiss()
    assert child.gone
    assert child.kill() == -signal.SIGKILL


def test_a_killed_worker_counts_no_longer_as_alive_on_its_own_machine(desk: Desk) -> None:
    worker = desk.start_worker()
    assert worker is not None
    os.kill(worker.pid, signal.SIGKILL)
    desk.workers[0].wait()
    assert list(desk.queue.workers()) == []
