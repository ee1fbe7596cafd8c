"""A worker that is told to stop, or has reached a limit of its own, finishes its job or gives it back."""

import signal
import time

from tests.workers.conftest import Desk, alive
from warpdesk.models import State
from warpdesk_server.workers.queue.jobs import connect


def test_a_stopped_worker_finishes_its_job_first(desk: Desk) -> None:
    desk.start_worker()
    with desk.gate() as gate:
        job_id, child = desk.nap(gate=gate)
        desk.workers[0].terminate()
    assert desk.workers[0].wait(20) == 0
    record = desk.queue.get(job_id)
    assert record is not None
    assert (record.state, record.attempt) == (State.SUCCEEDED, 1)
    assert not alive(child)
    assert list(desk.queue.workers()) == []
    with connect(desk.url) as connection:
        assert set(connection.scan_iter("rq:*")) == set()


def test_a_stopped_worker_gives_back_a_job_it_cannot_finish_without_a_strike(desk: Desk) -> None:
    desk.start_worker(WARPDESK_DRAIN_SECONDS="0.3")
    job_id, child = desk.nap()
    desk.workers[0].send_signal(signal.SIGINT)
    assert desk.workers[0].wait(20) == 0
    assert not alive(child)
    record = desk.queue.get(job_id)
    assert record is not None
    assert (record.state, record.attempt, record.strikes) == (State.QUEUED, 1, 0)
    assert desk.queue.position(job_id) == 0


def test_a_worker_without_a_job_for_too_long_ends_by_itself_and_waits_for_none(desk: Desk) -> None:
    desk.start_worker(WARPDESK_IDLE_EXIT_SECONDS="1.2")
    with desk.gate() as gate:
        longer, _ = desk.nap(gate=gate)
        time.sleep(1.5)  # a job is not idleness, however long it takes
    assert desk.wait(longer).state is State.SUCCEEDED
    assert desk.wait(desk.submit()).state is State.SUCCEEDED
    assert desk.workers[0].wait(20) == 0
    assert "(WARPDESK_IDLE_EXIT_SECONDS): the worker stops" in desk.log()
    late = desk.queue.get(desk.submit())
    assert late is not None
    assert (late.state, late.attempt) == (State.QUEUED, 0), "nothing is handed to one that has gone"
    with connect(desk.url) as connection:
        assert list(connection.scan_iter("rq:worker*")) == []


def test_a_worker_ends_by_itself_when_its_time_is_over_even_while_it_starts(desk: Desk) -> None:
    began = time.monotonic()
    desk.start_worker(ready=False, WARPDESK_MAX_SECONDS="1")
    assert desk.workers[0].wait(30) == 0
    assert time.monotonic() - began >= 1


def test_a_worker_whose_time_is_over_finishes_its_job_and_takes_no_other(desk: Desk) -> None:
    desk.start_worker(WARPDESK_MAX_SECONDS="600")
    with desk.gate() as gate:
        running, _ = desk.nap(gate=gate)
        desk.workers[0].send_signal(signal.SIGALRM)  # as its timer does
        other = desk.submit()
        time.sleep(1.2)
        desk.workers[0].terminate()  # as Slurm does near the end of its own limit: a first signal, not a second
        time.sleep(0.2)
        assert desk.workers[0].poll() is None
    assert desk.workers[0].wait(20) == 0
    ended, left = desk.queue.get(running), desk.queue.get(other)
    assert ended is not None
    assert left is not None
    assert (ended.state, ended.attempt) == (State.SUCCEEDED, 1)
    assert (left.state, left.attempt) == (State.QUEUED, 0)


def test_a_worker_whose_time_is_over_gives_back_what_it_cannot_finish(desk: Desk) -> None:
    desk.start_worker(WARPDESK_MAX_SECONDS="600", WARPDESK_DRAIN_SECONDS="0.2")
    job_id, child = desk.nap()
    desk.workers[0].send_signal(signal.SIGALRM)
    assert desk.workers[0].wait(20) == 0
    assert not alive(child)
    record = desk.queue.get(job_id)
    assert record is not None
    assert (record.state, record.attempt, record.strikes) == (State.QUEUED, 1, 0)
