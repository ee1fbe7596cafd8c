"""A worker that waits is handed the next job in the step in which it is enqueued."""

from typing import Any, cast

import pytest
from redis import Redis
from rq.suspension import suspend

from tests.claims import claim, finish, ids, request, succeeded
from tests.workers.conftest import Desk
from warpdesk.models import State
from warpdesk_server.workers.queue import scripts
from warpdesk_server.workers.queue.jobs import JobQueue
from warpdesk_server.workers.queue.keys import LEASES, handed_key
from warpdesk_server.workers.queue.lua import digest_of
from warpdesk_server.workers.queue.records import LEASE_SECONDS, Batch, Claim, Ending

FIRST = ["job_0001"]


def waits(queue: JobQueue, worker: str = "w1", **wish: Any) -> Claim:
    wish = {"waits": True, **wish}
    made = Claim(worker, **wish)
    assert queue.claim(made) is None
    return made


def received(connection: Redis, claim: Claim) -> Batch | None:
    message = cast(bytes | None, connection.lpop(handed_key(claim.worker)))
    return None if message is None else JobQueue(connection).handed(claim, message)


def test_a_job_is_handed_to_who_waits_longest_and_nobody_is_rung_for(queue: JobQueue, connection: Redis) -> None:
    waiting = [waits(queue, worker) for worker in ("w2", "w1", "w3")]
    queue.enqueue(request())
    batch = received(connection, waiting[0])
    assert batch is not None
    assert (ids(batch), batch.jobs[0].attempt, batch.reason) == (FIRST, 1, "full")
    assert not connection.exists(handed_key("w1"), handed_key("w3"), "warpdesk:bell:any", "warpdesk:bell:gpu")
    record = queue.get("job_0001")
    assert record is not None
    assert (record.state, record.attempt) == (State.RUNNING, 1)
    assert [event.event for event in queue.events("job_0001")] == ["queued", "running"]
    assert queue.renew(batch.jobs).lost == []
    assert finish(queue, batch.jobs[0], succeeded(batch.jobs[0])) == "done"


def test_a_wait_whose_job_was_taken_back_unheard_goes_on(queue: JobQueue) -> None:
    waiting = waits(queue)
    queue.enqueue(request(1))
    queue.cancel("job_0001")
    assert queue.claim(waiting) is None
    queue.enqueue(request(2))
    batch = queue.claim(waiting)
    assert batch is not None
    assert ids(batch) == ["job_0002"]


def test_one_wait_is_for_one_hand(queue: JobQueue, connection: Redis) -> None:
    waiting = waits(queue)
    queue.enqueue(request(1))
    queue.enqueue(request(2))
    assert received(connection, waiting) is not None
    assert received(connection, waiting) is None
    assert connection.exists("warpdesk:bell:any")
    assert claim(queue, "w2") == ["job_0002"]


def test_a_job_for_a_gpu_passes_who_waits_without_one(queue: JobQueue, connection: Redis) -> None:
    without, with_one = waits(queue, "w1"), waits(queue, "w2", gpu=True)
    queue.enqueue(request(backend="gpu"))
    assert received(connection, without) is None
    assert received(connection, with_one) is not None


def test_where_only_workers_without_a_gpu_wait_a_job_for_one_stays_in_the_queue(queue: JobQueue) -> None:
    waiting = waits(queue)
    queue.enqueue(request(backend="gpu"))
    assert queue.leave(waiting) is None
    assert claim(queue, "w2", gpu=True) == FIRST


def test_who_was_silent_for_two_seconds_is_handed_nothing(queue: JobQueue, connection: Redis) -> None:
    waiting = waits(queue)
    connection.zincrby("warpdesk:idle", -2, "w1")
    queue.enqueue(request())
    assert received(connection, waiting) is None
    assert connection.exists("warpdesk:bell:any")
    assert claim(queue) == FIRST


def test_who_did_not_hear_of_it_learns_of_it_by_leaving_or_by_the_same_claim(
    queue: JobQueue, connection: Redis
) -> None:
    waiting = waits(queue)
    queue.enqueue(request())
    batch = queue.leave(waiting)
    assert batch is not None
    assert ids(batch) == FIRST
    assert queue.claim(waiting) == batch
    later = waits(queue)
    assert received(connection, later) is None  # what is in the list was for the claim before


def test_the_same_claim_again_rings_for_what_is_left(queue: JobQueue, connection: Redis) -> None:
    queue.enqueue(request(1))
    queue.enqueue(request(2))
    same = Claim("w1")
    batch = queue.claim(same)
    connection.delete("warpdesk:bell:any")  # somebody heard it
    assert queue.claim(same) == batch
    assert connection.exists("warpdesk:bell:any")


def test_who_has_left_or_claims_without_waiting_is_handed_nothing(queue: JobQueue, connection: Redis) -> None:
    left, claims = waits(queue, "w1"), waits(queue, "w2")
    assert queue.leave(left) is None
    assert claim(queue, "w2") == []
    queue.enqueue(request())
    assert (received(connection, left), received(connection, claims)) == (None, None)
    assert claim(queue, "w3") == FIRST


def test_a_job_handed_to_a_worker_that_died_waiting_goes_back_without_a_strike(queue: JobQueue) -> None:
    waits(queue)
    queue.enqueue(request())
    assert [ended.how for ended in queue.reap(["w1"], judge_leases=False)] == ["queued"]
    record = queue.get("job_0001")
    assert record is not None
    assert (record.state, record.strikes) == (State.QUEUED, 0)


def test_a_worker_that_has_gone_is_handed_nothing_and_leaves_nothing(queue: JobQueue, connection: Redis) -> None:
    waits(queue)
    queue.enqueue(request(1))
    waits(queue)
    queue.unregister("w1")
    queue.enqueue(request(2))
    assert not connection.exists("warpdesk:idle", "warpdesk:wishes", handed_key("w1"))
    assert claim(queue, "w2") == ["job_0002"]


def test_what_is_late_or_identical_to_another_job_is_handed_to_nobody(queue: JobQueue, connection: Redis) -> None:
    queue.enqueue(request(1), same="digest")
    assert claim(queue, "w2") == FIRST
    waiting = waits(queue)
    queue.enqueue(request(2), same="digest")
    queue.enqueue(request(3, deadline=1.0))
    assert received(connection, waiting) is None
    queue.enqueue(request(4))
    batch = received(connection, waiting)
    assert batch is not None
    assert ids(batch) == ["job_0004"]


def test_nothing_is_handed_over_while_workers_are_suspended(queue: JobQueue, connection: Redis) -> None:
    waiting = waits(queue)
    suspend(connection)
    queue.enqueue(request())
    assert queue.leave(waiting) is None
    assert connection.exists("warpdesk:bell:any")


def test_the_lease_of_what_is_handed_over_is_short_until_it_is_renewed(queue: JobQueue, connection: Redis) -> None:
    waiting = waits(queue)
    queue.enqueue(request())
    batch = received(connection, waiting)
    assert batch is not None

    def left() -> float:
        return float(cast(float, connection.zscore(LEASES, "job_0001"))) - queue.time()

    assert left() <= 5
    assert queue.renew(batch.jobs).lost == []
    assert 5 < left() <= LEASE_SECONDS


def test_a_job_is_queued_though_it_cannot_be_handed_over(queue: JobQueue, connection: Redis) -> None:
    waits(queue)
    connection.hset("warpdesk:wishes", "w1", "of another release")
    assert queue.enqueue(request()).job_id == "job_0001"
    assert connection.exists("warpdesk:bell:any")
    assert claim(queue, "w2") == FIRST


def test_nothing_of_a_job_stays_in_a_list_that_nobody_reads(queue: JobQueue, connection: Redis) -> None:
    for number, ends in enumerate((queue.leave, queue.claim)):
        waiting = waits(queue)
        queue.enqueue(request(number))
        assert connection.exists(handed_key("w1"))
        ends(waiting)
        assert not connection.exists(handed_key("w1"))


def test_an_idle_worker_has_a_job_without_asking_for_it(desk: Desk, connection: Redis) -> None:
    desk.start_worker()
    connection.config_set("slowlog-log-slower-than", 0)
    connection.config_set("slowlog-max-len", 4096)
    steps = {digest_of(getattr(scripts, name)): name for name in ("ENQUEUE", "CLAIM", "LEAVE", "FINISH")}

    def handed_at_once() -> bool:
        desk.until(lambda: connection.zcard("warpdesk:idle"), "no worker waits")
        connection.slowlog_reset()
        assert desk.wait(desk.submit()).state is State.SUCCEEDED
        commands = [entry["command"].decode("latin-1").split()[:2] for entry in reversed(connection.slowlog_get(4096))]
        taken = [steps[command[1]] for command in commands if command[0] == "EVALSHA" and command[1] in steps]
        return taken[:2] == ["ENQUEUE", "FINISH"]

    handed_at_once()  # Redis learns the scripts
    assert any(handed_at_once() for _ in range(5))  # once a second it asks of its own


@pytest.mark.parametrize("loaded_scripts", [(), ("CLAIM",), ("FINISH",)])
def test_a_redis_that_has_forgotten_the_scripts_is_sent_them(
    queue: JobQueue, connection: Redis, loaded_scripts: tuple[str, ...]
) -> None:
    queue.enqueue(request(1))
    queue.enqueue(request(2))
    batch = queue.claim(Claim("w1"))
    assert batch is not None
    connection.script_flush()
    for name in loaded_scripts:
        connection.script_load(getattr(scripts, name))
    (done,), then, *_ = queue.finish([Ending(batch.jobs[0], succeeded(batch.jobs[0]))], "w1", then=Claim("w1"))
    assert done == "done"
    assert then is not None
    assert ids(then) == ["job_0002"]
