"""Which jobs a claim takes: by priority and age, owners in turn, alike jobs together, within the limits of a launch."""

from collections.abc import Sequence
from typing import Any

import pytest
from redis import Redis

from tests.claims import claim, finish, ids, request, take
from warpdesk_server.workers.queue.jobs import JobQueue
from warpdesk_server.workers.queue.keys import BELL, job_key
from warpdesk_server.workers.queue.protocol import PRIORITIES, QUICK, Together
from warpdesk_server.workers.queue.records import Backlog, Claim

GPU = {"backend": "gpu"}


def alike(number: int = 1, key: str = "k", items: int = 8, room: int = 1000, **fields: Any) -> Any:
    return request(number, together=Together(key=key, items=items, bytes=room), **fields)


def enqueue(queue: JobQueue, *requests: Any) -> None:
    for one in requests:
        queue.enqueue(one)


def jobs(*numbers: int) -> list[str]:
    return [f"job_{number:04d}" for number in numbers]


def served_long_ago(connection: Redis, lane: str, seconds: float) -> None:
    served = float(connection.hget("warpdesk:served", lane) or 0)
    connection.hset("warpdesk:served", lane, repr(served - seconds))


def test_jobs_of_one_key_run_together_and_one_of_another_keeps_its_place(queue: JobQueue) -> None:
    enqueue(queue, alike(1), alike(2, "other"), alike(3), request(4), alike(5))
    assert claim(queue) == jobs(1, 3, 5)
    assert claim(queue) == jobs(2)
    assert claim(queue) == jobs(4)
    assert claim(queue) == []


def test_a_job_that_cannot_run_together_is_claimed_alone(queue: JobQueue) -> None:
    enqueue(queue, request(1), request(2))
    assert [claim(queue), claim(queue)] == [jobs(1), jobs(2)]


@pytest.mark.parametrize(
    ("sizes", "items", "taken", "reason"),
    [
        ((1, 1, 1), 3, 3, "full"),
        ((1, 1, 1), 2, 2, "full"),
        ((1, 1, 1), 4, 3, "drained"),
        ((4, 6, 1), 8, 2, "bytes"),
        ((4, 7, 1), 8, 1, "bytes"),
        ((40, 1), 8, 1, "bytes"),  # the first runs, however large
        ((1,), 1, 1, "full"),
    ],
)
def test_a_batch_ends_where_its_items_or_its_bytes_do_and_says_which(
    queue: JobQueue, sizes: Sequence[int], items: int, taken: int, reason: str
) -> None:
    enqueue(queue, *(alike(number, items=items, room=10, size=size) for number, size in enumerate(sizes)))
    batch = queue.claim(Claim("w1"))
    assert batch is not None
    assert (len(batch.jobs), batch.reason) == (taken, reason)
    assert queue.length() == len(sizes) - taken


def test_a_batch_is_looked_for_in_so_many_ids_and_no_more(queue: JobQueue) -> None:
    enqueue(queue, alike(1), *(request(number) for number in range(2, 258)), alike(258))
    assert claim(queue) == jobs(1)


def test_owners_take_turns_in_a_batch_and_between_batches(queue: JobQueue) -> None:
    enqueue(queue, *(alike(number, items=3) for number in range(1, 7)))
    enqueue(queue, *(alike(number, items=3, owner="key_b") for number in range(11, 15)))
    assert claim(queue) == jobs(1, 11, 2)
    assert claim(queue) == jobs(12, 3, 13)  # who came last comes last
    enqueue(queue, request(21, owner="key_0"))
    assert [claim(queue), claim(queue), claim(queue)] == [jobs(4, 14, 5), jobs(21), jobs(6)]


def test_a_burst_of_one_owner_leaves_room_for_anothers_jobs_in_the_next_batch(queue: JobQueue) -> None:
    enqueue(queue, *(alike(number, items=64) for number in range(1000)))
    assert len(claim(queue)) == 64
    enqueue(queue, *(alike(number, items=64, owner="key_b") for number in (5001, 5002, 5003)))
    enqueue(queue, alike(6001, items=64, owner="key_c"))
    taken = claim(queue)
    assert len(taken) == 64
    assert set(jobs(5001, 5002, 5003, 6001)) <= set(taken)


def test_a_job_that_ended_its_worker_runs_alone_from_then_on(queue: JobQueue) -> None:
    enqueue(queue, alike(1), alike(2), alike(3))
    batch = queue.claim(Claim("w1"))
    assert batch is not None
    for job, how in zip(batch.jobs, ("returned", "struck", "returned"), strict=True):
        assert finish(queue, job, how=how) == "queued"
    taken = [claim(queue) for _ in range(2)]
    assert sorted(taken) == sorted([jobs(2), sorted(jobs(1, 3))]) or sorted(map(sorted, taken)) == [jobs(1, 3), jobs(2)]


def test_a_batch_that_waits_for_company_takes_its_own_key_and_what_it_has_room_for(queue: JobQueue) -> None:
    enqueue(queue, alike(1, size=4), alike(2, "other"), alike(3, size=4), alike(4, size=4), request(5))
    batch = queue.claim(Claim("w1", only="k", items=5, bytes=9))
    assert batch is not None
    assert (ids(batch), batch.reason) == (jobs(1, 3), "bytes")
    assert claim(queue, only="nobody", items=5, bytes=9) == []
    assert claim(queue, only="k", items=1, bytes=9) == jobs(4)
    assert [claim(queue), claim(queue)] == [jobs(2), jobs(5)]


def test_priorities_go_in_order_and_are_not_mixed(queue: JobQueue) -> None:
    enqueue(
        queue, alike(1, priority="research"), alike(2), alike(3, priority="realtime"), alike(4, priority="realtime")
    )
    assert [claim(queue) for _ in range(3)] == [jobs(3, 4), jobs(2), jobs(1)]


@pytest.mark.parametrize(("priority", "seconds"), [("batch", 5), ("research", 20)])
def test_a_lane_that_was_not_served_for_long_goes_first_once(
    queue: JobQueue, connection: Redis, priority: Any, seconds: float
) -> None:
    enqueue(queue, *(request(number, priority="realtime") for number in (1, 2, 3)))
    enqueue(queue, *(request(number, priority=priority) for number in (11, 12)))
    served_long_ago(connection, priority, seconds - 2)
    assert claim(queue) == jobs(1)
    served_long_ago(connection, priority, 2)
    assert claim(queue) == jobs(11)
    assert claim(queue) == jobs(2)


def test_of_two_lanes_not_served_for_long_the_one_more_beyond_its_time_goes_first(
    queue: JobQueue, connection: Redis
) -> None:
    enqueue(queue, request(1, priority="realtime"), request(2), request(3, priority="research"))
    served_long_ago(connection, "batch", 10)
    served_long_ago(connection, "research", 60)
    assert [claim(queue) for _ in range(3)] == [jobs(3), jobs(2), jobs(1)]


def test_where_a_batch_takes_longer_than_a_lane_may_wait_urgent_jobs_have_every_second_turn(
    queue: JobQueue, connection: Redis
) -> None:
    enqueue(queue, *(request(number) for number in (1, 2, 3)))
    enqueue(queue, *(request(number, priority="realtime") for number in (11, 12, 13)))
    taken = []
    for _ in range(6):
        for lane in ("realtime", "batch"):  # what was claimed ran for half a minute
            served_long_ago(connection, lane, 30)
        taken += claim(queue)
    assert taken in (jobs(1, 11, 2, 12, 3, 13), jobs(11, 1, 12, 2, 13, 3))


def test_a_lane_that_was_empty_has_not_waited(queue: JobQueue, connection: Redis) -> None:
    enqueue(queue, request(1))
    take(queue)
    served_long_ago(connection, "batch", 100)
    enqueue(queue, request(2), request(3, priority="realtime"))
    assert claim(queue) == jobs(3)


def test_a_worker_without_a_gpu_can_leave_gpu_jobs_to_others(queue: JobQueue) -> None:
    enqueue(queue, request(1, **GPU), request(2), request(3, **GPU, priority="realtime"))
    assert [claim(queue), claim(queue)] == [jobs(2), []]
    assert [claim(queue, gpu=True), claim(queue, gpu=True)] == [jobs(3), jobs(1)]


def test_of_jobs_for_any_worker_and_for_a_gpu_those_that_wait_longer_go_first(
    queue: JobQueue, connection: Redis
) -> None:
    enqueue(queue, request(1), request(2, **GPU))
    served_long_ago(connection, "batch-gpu", 1)
    assert [claim(queue, gpu=True), claim(queue, gpu=True)] == [jobs(2), jobs(1)]


def test_a_bell_stays_rung_until_nothing_waits(queue: JobQueue, connection: Redis) -> None:
    enqueue(queue, request(1), request(2), request(3, **GPU))
    for bell in ("any", "gpu"):
        assert connection.lpop(f"warpdesk:bell:{bell}")
    assert claim(queue) == jobs(1)
    assert connection.llen("warpdesk:bell:any") == 1
    assert claim(queue) == jobs(2)
    assert connection.llen("warpdesk:bell:any") == 0
    claim(queue, gpu=True)
    assert connection.llen("warpdesk:bell:gpu") == 0


def test_what_nobody_of_ours_put_into_a_queue_is_dropped(queue: JobQueue, connection: Redis) -> None:
    enqueue(queue, request(1), request(2))
    take(queue)
    connection.lpush("rq:queue:warpdesk-batch-key_a", "job_9999", "job_0001")
    assert claim(queue) == jobs(2)
    assert claim(queue) == []
    assert not connection.exists("rq:queue:warpdesk-batch-key_a")


def test_very_many_late_jobs_are_passed_in_several_claims(queue: JobQueue, connection: Redis) -> None:
    enqueue(queue, request(1, deadline=1.0), request(2))
    late = [f"late_{number}" for number in range(5000)]
    with connection.pipeline() as pipe:
        for job_id in late:
            pipe.copy("warpdesk:job:job_0001", f"warpdesk:job:{job_id}")
        pipe.lpush("rq:queue:warpdesk-batch-key_a", *late)
        pipe.execute()
    taken: list[str] = []
    while not taken:
        assert connection.llen("warpdesk:bell:any") == 1
        taken = claim(queue)
    assert taken == jobs(2)


def test_positions_count_what_will_be_claimed_before_of_the_same_owner_alone(queue: JobQueue) -> None:
    enqueue(queue, *(request(number) for number in (1, 2, 3)))
    assert [queue.position(job_id) for job_id in jobs(1, 2, 3)] == [0, 1, 2]
    enqueue(queue, *(request(number, owner="key_b") for number in (4, 5)), request(6, priority="realtime"))
    assert [queue.position(job_id) for job_id in jobs(1, 2, 3)] == [1, 2, 3]
    assert [queue.position(job_id) for job_id in jobs(4, 5, 6)] == [0, 1, 0]
    queue.cancel("job_0001")
    assert [queue.position(job_id) for job_id in jobs(1, 2)] == [None, 1]
    assert queue.position("job_9999") is None


def test_what_waits_is_counted_by_priority_and_owner_and_the_oldest_by_its_age(
    queue: JobQueue, connection: Redis
) -> None:
    assert (queue.length(), queue.waiting_by_owner()) == (0, {})
    assert queue.queues() == (dict.fromkeys(PRIORITIES, Backlog(0, 0, 0, None)), 0)
    enqueue(queue, request(1), request(2, **GPU), request(3, owner="key_b"), request(4, priority="realtime"))
    assert queue.length() == 4
    assert queue.waiting_by_owner() == {"batch": {"key_a": 2, "key_b": 1}, "realtime": {"key_a": 1}}
    connection.hset(job_key("job_0003"), "submitted_at", 50.5)
    found, dead = queue.queues()
    assert (found["batch"], dead) == (Backlog(queued=3, running=0, delayed=0, oldest=50.5), 0)
    assert (found["realtime"].queued, found["research"].oldest) == (1, None)


def test_a_worker_of_quick_jobs_leaves_long_ones_to_a_worker_of_long_jobs(queue: JobQueue, connection: Redis) -> None:
    enqueue(queue, request(1, long=True, priority="realtime"), request(2, priority="research"))
    assert claim(queue, takes="quick") == jobs(2)
    assert claim(queue, takes="quick") == []
    assert queue.waiting_long_work() == {"long"}
    assert connection.exists(f"{BELL}long") == 1
    assert (connection.exists(f"{BELL}any"), connection.exists(f"{BELL}long-gpu")) == (0, 0)
    assert claim(queue, takes="long") == jobs(1)
    assert queue.waiting_long_work() == frozenset()


def test_a_worker_of_long_jobs_leaves_those_that_need_a_gpu_where_it_has_none(queue: JobQueue) -> None:
    enqueue(queue, request(1, long=True, **GPU), request(2, long=True))
    assert claim(queue, takes="long") == jobs(2)
    assert claim(queue, takes="long") == []
    assert claim(queue, takes="long", gpu=True) == jobs(1)


def test_a_worker_of_all_jobs_takes_long_ones_by_their_priority(queue: JobQueue) -> None:
    enqueue(queue, request(1, long=True), request(2), request(3, long=True, priority="realtime"))
    assert [claim(queue), claim(queue), claim(queue)] == [jobs(3), jobs(1), jobs(2)]


def test_long_jobs_are_counted_and_have_a_position_among_long_ones(queue: JobQueue) -> None:
    enqueue(queue, request(1), request(2, long=True), request(3, long=True, owner="key_b"), request(4, long=True))
    assert [queue.position(job_id) for job_id in jobs(1, 2, 4)] == [0, 0, 1]
    assert queue.queues()[0]["batch"].queued == 4
    assert queue.waiting_by_owner() == {"batch": {"key_a": 3, "key_b": 1}}
    assert queue.waiting_by_owner(QUICK) == {"batch": {"key_a": 1}}
