"""A private job that fails or is never run again: nothing of its data is told, and its secrets are erased."""

from kernels.catalogue import OPERATIONS
from tests.workers.conftest import OWNER, Desk
from tests.workers.operations import OPERATIONS as MISBEHAVING
from tests.workers.test_warm import everything
from workers import execute
from workers.device import without_gpu
from workers.endings import Endings
from workers.protocol import Failed, State
from workers.queue import connect

# Beyond what float64 holds exactly, so that dp_noise refuses it once it sees it.
MARKER = 2**53 + 271828


def test_a_refusal_by_dp_noise_does_not_tell_redis_the_value_it_refused(desk: Desk) -> None:
    values = desk.array([MARKER, 1], "int64")
    params = {
        "mechanism": "discrete_laplace",
        "mode": "aggregate",
        "epsilon": "1",
        "sensitivity": {"norm": "l1", "value": "1"},
        "unaccounted": True,
    }
    job_id = desk.submit("dp_noise", {"values": values}, params=params)
    started = desk.queue.start(job_id)
    assert started is not None
    request, attempt = started
    outcome = execute.run(request, attempt, desk.store, without_gpu("not needed"), OPERATIONS)
    assert isinstance(outcome, Failed)
    assert outcome.code == "invalid-input"
    assert "2**53" in outcome.message  # the reason is told
    assert desk.queue.finish(job_id, attempt, outcome)
    record = desk.queue.get(job_id)
    assert record is not None
    assert record.state is State.FAILED
    with connect(desk.url) as connection:
        kept = everything(connection)
    assert b"2**53" in kept
    assert str(MARKER).encode() not in kept


def test_a_job_given_back_and_canceled_meanwhile_takes_its_secret_along(desk: Desk) -> None:
    secret = desk.array([5, 6], "int64")
    job_id = desk.submit("whisper", {"secret": secret})
    started = desk.queue.start(job_id)
    assert started is not None
    desk.queue.cancel(job_id)
    assert desk.store.path(OWNER, secret).exists()
    Endings(desk.queue, desk.store, MISBEHAVING).released(*started)
    assert not desk.store.path(OWNER, secret).exists()


def test_a_job_given_back_keeps_its_secret_for_the_next_attempt(desk: Desk) -> None:
    secret = desk.array([5, 6], "int64")
    started = desk.queue.start(desk.submit("whisper", {"secret": secret}))
    assert started is not None
    Endings(desk.queue, desk.store, MISBEHAVING).released(*started)
    assert desk.store.path(OWNER, secret).exists()


def test_a_requeued_job_whose_deadline_passes_in_the_queue_loses_its_secret_when_it_is_popped(desk: Desk) -> None:
    secret = desk.array([5, 6], "int64")
    job_id = desk.submit("whisper", {"secret": secret}, deadline=desk.queue.time() + 1.0)
    started = desk.queue.start(job_id)
    assert started is not None
    Endings(desk.queue, desk.store, MISBEHAVING).released(*started)
    with connect(desk.url) as connection:  # the worker asks before anyone else does
        connection.lrem("rq:queue:warpdesk", 0, job_id)
        connection.hset(f"warpdesk:job:{job_id}", "deadline", "1.0")
        connection.rpush("rq:queue:warpdesk", job_id)
    desk.start_worker()
    desk.until(lambda: not desk.store.path(OWNER, secret).exists(), "the secret is still there")
    record = desk.queue.get(job_id)
    assert record is not None
    assert (record.state, record.attempt) == (State.EXPIRED, 1)
