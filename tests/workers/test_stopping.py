"""A worker that is told to stop finishes its job, or gives it back."""

import signal

from tests.workers.conftest import Desk, alive
from workers.protocol import State
from workers.queue import connect


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
