"""Whose jobs are taken back: those of dead processes, and those with a lapsed lease when everyone could renew."""

import pytest
from redis import Redis

from tests.claims import claim, take
from tests.workers.conftest import OWNER, Desk
from tests.workers.operations import OPERATIONS
from warpdesk.models import State
from warpdesk_server.workers.parent.endings import Endings
from warpdesk_server.workers.parent.recovery import Recovery
from warpdesk_server.workers.process import identity
from warpdesk_server.workers.queue.counts import Tally
from warpdesk_server.workers.queue.jobs import JobQueue
from warpdesk_server.workers.queue.keys import job_key

DEAD = "|".join([*identity().split("|")[:2], "1"])  # this process' number with another start time


@pytest.fixture
def recovery(desk: Desk) -> Recovery:
    return Recovery(desk.queue, Endings(desk.queue, desk.store, OPERATIONS), Tally())


def worker(connection: Redis, name: str = "w1", process: str = DEAD) -> str:
    """One that has registered, as the first heartbeat does."""
    connection.hset("warpdesk:workers", name, process)
    return name


def lapse(connection: Redis, job_id: str) -> None:
    connection.zadd("warpdesk:leases", {job_id: 1.0})


def state(desk: Desk, job_id: str) -> State:
    record = desk.queue.get(job_id)
    assert record is not None
    return record.state


def test_a_dead_process_loses_its_jobs_and_what_it_wrote_and_nobody_is_charged(
    desk: Desk, recovery: Recovery, connection: Redis
) -> None:
    job_id = desk.submit()
    take(desk.queue, job_id, worker(connection), DEAD)
    (desk.store.new_result(job_id, 1) / "doubled.npy").write_bytes(b"half of it")
    recovery.look(judge_leases=False)
    assert state(desk, job_id) is State.QUEUED
    assert desk.results() == []
    assert take(desk.queue, job_id).strikes == 0
    assert desk.queue.events(job_id)[-2].reason == "its worker is gone"


def test_a_worker_that_is_gone_is_counted_once_and_one_that_stopped_is_not(desk: Desk, connection: Redis) -> None:
    tallies = [Tally(), Tally()]
    for name in ("gone", "stopped"):
        worker(connection, name)
    assert desk.queue.unregister("stopped")  # as it does itself at its end
    for tally in tallies:
        Recovery(desk.queue, Endings(desk.queue, desk.store, OPERATIONS), tally).look(judge_leases=False)
        desk.queue.count_left(tally)
    assert connection.hget("warpdesk:counts", "workers_lost_total") == b"1"


def test_a_living_process_keeps_its_job_while_its_lease_runs(desk: Desk, recovery: Recovery, connection: Redis) -> None:
    job_id = desk.submit()
    take(desk.queue, job_id, worker(connection, process=identity()), identity())
    recovery.look(judge_leases=True)
    assert state(desk, job_id) is State.RUNNING


def test_a_lapsed_lease_counts_only_when_everyone_could_renew(
    desk: Desk, recovery: Recovery, connection: Redis
) -> None:
    job_id = desk.submit()
    take(desk.queue, job_id, "w1", "another host|7|7")
    lapse(connection, job_id)
    recovery.look(judge_leases=False)
    assert state(desk, job_id) is State.RUNNING
    recovery.look(judge_leases=True)
    assert state(desk, job_id) is State.QUEUED
    assert desk.queue.events(job_id)[-1].reason == "its worker did not renew its claim"


def test_the_tenth_death_gives_the_job_up(desk: Desk, recovery: Recovery, connection: Redis) -> None:
    job_id = desk.submit()
    for _ in range(10):
        connection.zunionstore("warpdesk:delayed", {"warpdesk:delayed": 0})  # backoffs are over
        take(desk.queue, job_id, worker(connection), DEAD)
        recovery.look(judge_leases=False)
    record = desk.queue.get(job_id)
    assert record is not None
    assert record.error is not None
    assert (record.state, record.error.code, record.strikes, record.dead) == (State.FAILED, "worker-died", 0, True)


def test_an_expired_job_is_told_and_its_secret_is_erased(desk: Desk, recovery: Recovery) -> None:
    secret = desk.array([5, 6], "int64")
    job_id = desk.submit("whisper", {"secret": secret}, deadline=1.0)
    assert claim(desk.queue) == []
    recovery.look(judge_leases=False)
    assert state(desk, job_id) is State.EXPIRED
    assert not desk.store.path(OWNER, secret).exists()


def test_a_lease_without_a_record_is_dropped(desk: Desk, recovery: Recovery, connection: Redis) -> None:
    job_id = desk.submit()
    take(desk.queue, job_id, "w1", DEAD)
    connection.delete(f"warpdesk:job:{job_id}")
    recovery.look(judge_leases=False)
    assert not connection.exists("warpdesk:leases")


def test_a_dead_worker_is_forgotten(desk: Desk, recovery: Recovery, connection: Redis) -> None:
    worker(connection, "dead", DEAD)
    worker(connection, "alive", identity())
    connection.sadd("rq:workers", "rq:worker:dead")
    recovery.look(judge_leases=False)
    assert set(desk.queue.processes()) == {"alive"}
    assert connection.smembers("rq:workers") == set()


def test_a_dead_worker_is_forgotten_with_all_its_jobs(desk: Desk, recovery: Recovery, connection: Redis) -> None:
    for job_id in [desk.submit("nap") for _ in range(300)]:
        take(desk.queue, job_id, worker(connection), DEAD)
    for _ in range(10):
        desk.queue.enqueue(desk.request("nap", deadline=1.0))
    assert "w1" in desk.queue.processes()
    recovery.look(judge_leases=False)  # more than Redis ends in one step
    assert not connection.exists("warpdesk:leases")
    assert desk.queue.length() == 300
    assert desk.queue.processes() == {}


def test_a_worker_beside_the_store_believes_no_record_that_was_not_signed(desk: Desk, connection: Redis) -> None:
    desk.start_worker()
    answered = desk.submit()
    record = desk.wait(answered)
    unsigned, forged = desk.request(), "job_of_another"
    JobQueue(connection).enqueue(unsigned)
    connection.hset(job_key(forged), mapping=connection.hgetall(job_key(answered)))  # what it asks for is the other's
    connection.hset(job_key(forged), mapping={"state": "running", "worker": worker(connection)})
    lapse(connection, forged)
    for job_id in (unsigned.id, forged):  # the one is claimed, the other reaped and then claimed
        desk.until(lambda: connection.hget(job_key(job_id), "state") == b"failed", f"{job_id} did not fail")  # noqa: B023
    assert desk.doubled(record) == [2.0, 4.0, 6.0]
    assert desk.results() == [record.result]


def test_a_worker_beside_the_store_claims_nothing_until_what_an_earlier_release_queued_is_signed(
    desk: Desk, connection: Redis
) -> None:
    job_id = desk.submit()
    connection.hdel(job_key(job_id), "mac")
    (desk.home / "store" / "records-signed").unlink()
    worker = desk.start_worker()
    assert worker is not None
    in_rq = f"rq:worker:{worker.name}"
    desk.until(lambda: connection.hget(in_rq, "state") == b"suspended", "it is not suspended")
    desk.queue.sign_older([OWNER])
    desk.store.note_signed_records()
    assert desk.doubled(desk.wait(job_id)) == [2.0, 4.0, 6.0]
