"""Killed children, killed parents, a worker that hung: the job is answered all the same, by one attempt."""

import os
import signal
import time

import pytest
from redis import Redis
from rq import Worker
from rq.registry import FailedJobRegistry

from tests.workers.conftest import Desk, alive
from warpdesk.models import State
from warpdesk_server.kernels.fingerprint import fingerprint
from warpdesk_server.workers.child.warmup import stamp
from warpdesk_server.workers.queue.jobs import connect
from warpdesk_server.workers.settings import WorkerSettings


def hold_for_ever(desk: Desk, job_id: str) -> None:
    """Give a dead worker a lease that never runs out: only its death can cost it the job."""
    with connect(desk.url) as connection:
        connection.zadd("warpdesk:leases", {job_id: time.time() + 1e6}, xx=True)


def test_a_killed_child_is_replaced_and_its_job_answered(desk: Desk) -> None:
    desk.start_worker()
    marks = desk.home / "marks"
    marks.mkdir()
    record = desk.wait(desk.submit("die", params={"times": 2, "marker": str(marks)}))
    assert (record.state, record.attempt) == (State.SUCCEEDED, 3)
    (report,) = desk.queue.workers()
    assert report.restarts >= 1
    assert report.last_fault is not None
    assert "SIGKILL" in report.last_fault


def test_a_job_that_kills_three_children_is_given_up(desk: Desk) -> None:
    desk.start_worker()
    marks = desk.home / "marks"
    marks.mkdir()
    record = desk.wait(desk.submit("die", params={"times": 99, "marker": str(marks)}))
    assert (record.state, record.attempt) == (State.FAILED, 3)
    assert record.error is not None
    assert record.error.code == "worker-died"
    assert "3 times" in record.error.message
    assert len(list(marks.iterdir())) == 3
    assert desk.doubled(desk.wait(desk.submit())) == [2.0, 4.0, 6.0]


def test_an_idle_child_that_dies_is_replaced_before_a_job_needs_it(desk: Desk) -> None:
    report = desk.start_worker()
    assert report is not None
    assert report.child_pid is not None
    os.kill(report.child_pid, signal.SIGKILL)
    desk.until(
        lambda: [r for r in desk.queue.workers() if r.state == "ready" and r.child_pid != report.child_pid],
        "no new child",
    )
    record = desk.wait(desk.submit())
    assert record.attempt == 1


def test_children_that_die_at_their_start_without_a_gpu_are_not_blamed_on_one(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks, catalogue = desk.home / "marks", "tests.workers.operations:FRAIL"
    marks.mkdir()
    monkeypatch.setenv("MARKS", str(marks))
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(desk.home / fingerprint()))
    done = stamp(WorkerSettings(operations=catalogue))  # else the second compiler would die of the example as well
    done.parent.mkdir()
    done.touch()
    report = desk.start_worker(WARPDESK_OPERATIONS=catalogue, WARPDESK_DEVICE="tests.workers.device:absent")
    assert report is not None
    assert report.device is not None
    assert (report.device.backend, report.device.reason) == ("cpu", "the device is held by another process")
    assert report.restarts == 3
    assert report.gpu is not None
    assert (report.gpu.state, report.gpu.reason) == ("absent", "the device is held by another process")
    assert report.last_fault == (
        "the worker process was ended by signal 9 (SIGKILL) while warming up on the CPU, in die"
    )
    record = desk.wait(desk.submit())
    assert record.provenance is not None
    assert record.provenance.fallback_reason == "the device is held by another process"


def test_a_killed_parent_takes_its_child_along_and_a_successor_takes_over_its_job(desk: Desk) -> None:
    desk.start_worker()
    with desk.gate() as gate:
        job_id, child = desk.nap("first", gate=gate)
        waiting = desk.submit()
        desk.workers[0].kill()
        desk.workers[0].wait()
        hold_for_ever(desk, job_id)
        desk.until(lambda: not alive(child), "the child outlived its parent")
        desk.marker("first").unlink()
        desk.start_worker(ready=False)
        desk.napping(desk.marker("first"))
    assert desk.wait(job_id).attempt == 2
    assert desk.wait(waiting).attempt == 1
    with connect(desk.url) as connection:
        assert len(FailedJobRegistry("warpdesk", connection=connection)) == 0
        desk.until(lambda: len(Worker.all(connection)) == 1, "RQ still lists the dead worker")


def test_another_worker_takes_over_the_job_of_a_killed_one(desk: Desk) -> None:
    desk.start_worker()
    job_id, first = desk.nap()
    desk.start_worker()
    desk.marker().unlink()
    desk.workers[0].kill()
    desk.workers[0].wait()
    hold_for_ever(desk, job_id)
    assert desk.napping(desk.marker()) != first
    record = desk.queue.get(job_id)
    assert record is not None
    assert (record.state, record.attempt, record.strikes) == (State.RUNNING, 2, 0)  # not the job's fault


def test_a_worker_that_hung_finds_its_job_taken_over_and_its_answer_refused(desk: Desk) -> None:
    report = desk.start_worker()
    assert report is not None
    assert report.child_pid is not None
    second = desk.start_worker()
    assert second is not None
    secret, key = desk.array([5, 6], "int64"), desk.marker("key")
    with desk.gate() as gate:
        job_id = desk.submit("whisper", {"secret": secret}, params={"marker": str(key), "gate": gate})
        desk.until(key.exists, "it did not begin")
        with connect(desk.url) as connection:
            holder = connection.hget(f"warpdesk:job:{job_id}", "worker").decode()
        hung = report if holder == report.name else second
        assert hung.child_pid is not None
        # A host that stands still: neither parent nor child notices how long it was away.
        for pid in (hung.pid, hung.child_pid):
            os.kill(pid, signal.SIGSTOP)
        key.unlink()
        with connect(desk.url) as connection:
            connection.zadd("warpdesk:leases", {job_id: 1.0})  # the lease ran out, without the test waiting for it
        desk.until(key.exists, "nobody took it over")
    for pid in (hung.child_pid, hung.pid):
        os.kill(pid, signal.SIGCONT)
    record = desk.wait(job_id)
    assert (record.state, record.attempt, record.result) == (State.SUCCEEDED, 2, f"{job_id}.2")
    desk.until(lambda: desk.results() == [f"{job_id}.2"], "the first attempt's noise is still there")
    desk.until(
        lambda: sorted(r.state for r in desk.queue.workers()) == ["ready", "ready"], "a worker did not come back"
    )


def test_a_job_that_its_child_did_not_live_to_get_has_no_strike(desk: Desk) -> None:
    report = desk.start_worker()
    assert report is not None
    with desk.gate() as gate:
        first, child = desk.nap(gate=gate)
        second = desk.submit()
        os.kill(report.pid, signal.SIGSTOP)
    desk.until((desk.store.result(f"{first}.1") / "result.json").exists, "it has no result")
    time.sleep(0.5)  # its answer is on its way
    os.kill(child, signal.SIGKILL)
    desk.until(lambda: not alive(child), "the child lives")
    os.kill(report.pid, signal.SIGCONT)
    record = desk.wait(second)
    assert (record.state, record.attempt, record.strikes) == (State.SUCCEEDED, 2, 0)
    assert desk.wait(first).attempt == 1


def test_a_job_handed_to_a_worker_whose_child_has_died_goes_back_before_the_next_child_is_waited_for(
    desk: Desk, connection: Redis
) -> None:
    report = desk.start_worker()
    assert report is not None
    assert report.child_pid is not None
    desk.until(lambda: connection.zcard("warpdesk:idle"), "no worker waits")
    os.kill(report.pid, signal.SIGSTOP)
    os.kill(report.child_pid, signal.SIGKILL)
    desk.until(lambda: not alive(report.child_pid), "the child lives")
    connection.zadd("warpdesk:idle", {report.name: desk.queue.time()}, xx=True)  # however long that took
    job_id = desk.submit()
    record = desk.queue.get(job_id)
    assert record is not None
    assert record.state is State.RUNNING
    os.kill(report.pid, signal.SIGCONT)

    record = desk.wait(job_id)
    assert (record.state, record.attempt, record.strikes) == (State.SUCCEEDED, 2, 0)
    reasons = [event.reason for event in desk.queue.events(job_id) if event.event == "queued"]
    assert reasons == [None, "the worker process ended before the job began"]
