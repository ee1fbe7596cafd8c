"""Jobs that must end while native code holds the interpreter's lock: time-outs, deadlines and cancels."""

import time

import pytest
from rq.command import send_stop_job_command

from tests.workers.conftest import Desk, alive
from warpdesk.models import State
from warpdesk_server.workers.queue.jobs import connect
from warpdesk_server.workers.queue.protocol import Failed


def test_a_time_out_ends_native_code_that_holds_the_interpreters_lock(desk: Desk) -> None:
    report = desk.start_worker()
    job_id, child = desk.nap(timeout=2.0)
    record = desk.wait(job_id)
    assert record.error == Failed(code="timeout", message="an attempt may run 2 s, and this one ran longer")
    assert record.attempt == 1
    assert record.ended_at is not None
    assert record.started_at is not None
    assert record.ended_at - record.started_at >= 2.0
    assert not alive(child)
    assert desk.doubled(desk.wait(desk.submit())) == [2.0, 4.0, 6.0]
    (after,) = desk.queue.workers()
    assert report is not None
    assert after.name == report.name  # the parent never went away
    assert after.child_pid != child


def test_a_deadline_ends_a_running_job(desk: Desk) -> None:
    desk.start_worker()
    job_id, child = desk.nap(deadline=time.time() + 3.0)
    assert desk.wait(job_id).state is State.EXPIRED
    desk.until(lambda: not alive(child), "the child outlived the deadline")


@pytest.mark.parametrize("by", ["the service", "rq"])
def test_a_cancel_ends_native_code_that_holds_the_interpreters_lock(desk: Desk, by: str) -> None:
    desk.start_worker()
    job_id, child = desk.nap()
    if by == "rq":
        with connect(desk.url) as connection:
            send_stop_job_command(connection, job_id, serializer="json")
    else:
        assert desk.queue.cancel(job_id) is State.CANCELED
    desk.until(lambda: not alive(child), "the child lives")
    assert desk.wait(job_id).state is State.CANCELED
    assert desk.results() == []
    assert desk.doubled(desk.wait(desk.submit())) == [2.0, 4.0, 6.0]


def test_a_cancel_whose_message_is_lost_is_noticed(desk: Desk) -> None:
    desk.start_worker()
    job_id, child = desk.nap()
    with connect(desk.url) as connection:
        for client in connection.client_list(_type="pubsub"):
            connection.client_kill_filter(_id=client["id"])
    desk.queue.cancel(job_id)
    desk.until(lambda: not alive(child), "the child lives")
