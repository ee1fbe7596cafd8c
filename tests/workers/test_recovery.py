"""Whose jobs are taken back: those of dead processes, and those with a lapsed lease when everyone could renew."""

import pytest
from redis import Redis

from tests.workers.conftest import Desk
from tests.workers.operations import OPERATIONS
from workers.endings import Endings
from workers.process import identity
from workers.protocol import State
from workers.queue import connect
from workers.recovery import Recovery

DEAD = "|".join([*identity().split("|")[:2], "1"])  # this process' number with another start time


@pytest.fixture
def recovery(desk: Desk) -> Recovery:
    return Recovery(desk.queue, Endings(desk.queue, desk.store, OPERATIONS))


def lapse(desk: Desk, job_id: str) -> None:
    with connect(desk.url) as connection:
        connection.zadd("warpdesk:leases", {job_id: 1.0})


def state(desk: Desk, job_id: str) -> State:
    record = desk.queue.get(job_id)
    assert record is not None
    return record.state


def test_a_dead_process_loses_its_job_and_what_it_wrote(desk: Desk, recovery: Recovery) -> None:
    job_id = desk.submit()
    desk.queue.start(job_id, worker="w1", process=DEAD)
    (desk.store.new_result(job_id, 1) / "doubled.npy").write_bytes(b"half of it")
    recovery.look(judge_leases=False)
    assert state(desk, job_id) is State.QUEUED
    assert desk.results() == []
    assert desk.queue.strikes(job_id) == 1


def test_a_living_process_keeps_its_job_while_its_lease_runs(desk: Desk, recovery: Recovery) -> None:
    job_id = desk.submit()
    desk.queue.start(job_id, worker="w1", process=identity())
    recovery.look(judge_leases=True)
    assert state(desk, job_id) is State.RUNNING


def test_a_lapsed_lease_counts_only_when_everyone_could_renew(desk: Desk, recovery: Recovery) -> None:
    job_id = desk.submit()
    desk.queue.start(job_id, worker="w1", process="another host|7|7")
    lapse(desk, job_id)
    recovery.look(judge_leases=False)
    assert state(desk, job_id) is State.RUNNING
    recovery.look(judge_leases=True)
    assert state(desk, job_id) is State.QUEUED


def test_the_third_death_fails_the_job(desk: Desk, recovery: Recovery) -> None:
    job_id = desk.submit()
    for _ in range(3):
        desk.queue.start(job_id, worker="w1", process=DEAD)
        recovery.look(judge_leases=False)
    record = desk.queue.get(job_id)
    assert record is not None
    assert record.error is not None
    assert (record.state, record.error.code) == (State.FAILED, "worker-died")


def test_an_id_between_pop_and_start_is_restored_on_the_second_sight(desk: Desk, recovery: Recovery) -> None:
    recovery.look(judge_leases=False)
    job_id = desk.submit()
    with connect(desk.url) as connection:
        connection.lmove("rq:queue:warpdesk", "rq:queue:warpdesk:intermediate", "LEFT", "RIGHT")
    recovery.look(judge_leases=False)
    assert desk.queue.popped() == {job_id}  # it may be about to start
    recovery.look(judge_leases=False)
    assert desk.queue.popped() == frozenset()
    assert desk.queue.length() == 1


def test_a_lease_without_a_record_is_dropped(desk: Desk, recovery: Recovery, redis_url: str) -> None:
    job_id = desk.submit()
    desk.queue.start(job_id, worker="w1", process=DEAD)
    with Redis.from_url(redis_url) as connection:
        connection.delete(f"warpdesk:job:{job_id}")
    lapse(desk, job_id)
    recovery.look(judge_leases=True)
    assert list(desk.queue.leases()) == []


def test_a_dead_worker_is_forgotten(desk: Desk, recovery: Recovery) -> None:
    with connect(desk.url) as connection:
        connection.hset("warpdesk:workers", mapping={"dead": DEAD, "alive": identity()})
        connection.sadd("rq:workers", "rq:worker:dead")
        recovery.look(judge_leases=False)
        assert set(desk.queue.processes()) == {"alive"}
        assert connection.smembers("rq:workers") == set()
