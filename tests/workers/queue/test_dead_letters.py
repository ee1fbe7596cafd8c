"""What is charged to a job, how long it waits before the next try, and what becomes of one that is given up."""

from typing import Any

import pytest
from redis import Redis

from tests.claims import ARRAY, claim, finish, request, succeeded, take
from tests.workers.queue.snapshot import Snapshot
from warpdesk.models import State
from warpdesk_server.workers.queue.jobs import JobQueue
from warpdesk_server.workers.queue.protocol import Failed
from warpdesk_server.workers.queue.records import GIVEN_UP, InputsGone, JobRecord

POISON = Failed(code="worker-died", message="it ended its worker", retryable=True)
FULL = Failed(code="storage-full", message="no space is left", retryable=True)


def record(queue: JobQueue, job_id: str = "job_0001") -> JobRecord:
    found = queue.get(job_id)
    assert found is not None
    return found


def wake(connection: Redis) -> None:
    """The backoff of every job is over."""
    for job_id in Snapshot(connection).members("warpdesk:delayed"):
        connection.zadd("warpdesk:delayed", {job_id: 1.0})


def waits(queue: JobQueue, connection: Redis, job_id: str = "job_0001") -> float | None:
    """Seconds until a job may be claimed, None when it may be now."""
    until = connection.zscore("warpdesk:delayed", job_id)
    return None if until is None else until - queue.time()


def dead(queue: JobQueue, number: int = 1, **fields: Any) -> str:
    """A job that was given up after three strikes."""
    queue.enqueue(request(number, **fields))
    job_id = f"job_{number:04d}"
    for answer in ("queued", "queued", "dead"):
        assert finish(queue, take(queue, job_id), how="struck", reason="it ended", failure=POISON) == answer
    return job_id


def test_a_job_that_ends_its_worker_goes_first_again_and_is_given_up_the_third_time(queue: JobQueue) -> None:
    queue.enqueue(request(1))
    queue.enqueue(request(2))
    for strikes in (0, 1, 2):
        job = take(queue)
        assert (job.attempt, job.strikes) == (strikes + 1, strikes)
        assert finish(queue, job, how="struck", failure=POISON) == ("queued" if strikes < 2 else "dead")
    found = record(queue)
    assert (found.state, found.error, found.strikes, found.dead) == (State.FAILED, POISON, 3, True)
    assert claim(queue) == ["job_0002"]
    assert record(queue, "job_0002").strikes == 0


def test_a_job_that_is_given_back_is_not_charged_until_the_tenth_claim(queue: JobQueue, connection: Redis) -> None:
    queue.enqueue(request())
    for attempt in range(1, 11):
        wake(connection)
        job = take(queue)
        assert (job.attempt, job.strikes) == (attempt, 0)
        assert finish(queue, job, how="returned", failure=POISON) == ("queued" if attempt < 10 else "dead")
    found = record(queue)
    assert (found.state, found.error, found.strikes, found.dead) == (State.FAILED, POISON, 0, True)


def test_a_job_that_is_given_up_without_a_word_says_why_all_the_same(queue: JobQueue, connection: Redis) -> None:
    queue.enqueue(request())
    for _ in range(10):
        wake(connection)
        finish(queue, take(queue), how="returned")
    assert record(queue).error == GIVEN_UP


def test_a_returned_job_waits_from_the_third_time_on_and_longer_each_time(queue: JobQueue, connection: Redis) -> None:
    queue.enqueue(request())
    waited = []
    for _ in range(9):
        wake(connection)
        finish(queue, take(queue), how="returned")
        waited.append(waits(queue, connection))
    assert waited[:2] == [None, None]
    assert waited[2:] == [pytest.approx(seconds, abs=0.3) for seconds in (0.5, 1, 2, 4, 8, 8, 8)]


def test_a_job_that_waits_out_a_backoff_is_queued_and_cannot_be_claimed(queue: JobQueue, connection: Redis) -> None:
    queue.enqueue(request(1))
    finish(queue, take(queue), how="retry", failure=FULL, delays=(1000.0,))
    queue.enqueue(request(2))
    assert record(queue).state is State.QUEUED
    assert queue.length() == 2
    assert [claim(queue), claim(queue)] == [["job_0002"], []]
    wake(connection)
    assert claim(queue) == ["job_0001"]


def test_the_reaper_wakes_what_has_waited_and_rings(queue: JobQueue, connection: Redis) -> None:
    queue.enqueue(request())
    finish(queue, take(queue), how="retry", failure=FULL, delays=(1000.0,))
    wake(connection)
    connection.delete("warpdesk:bell:any")
    queue.reap([], judge_leases=False)
    assert connection.exists("warpdesk:bell:any")
    assert waits(queue, connection) is None
    assert claim(queue) == ["job_0001"]


@pytest.mark.parametrize("stop", ["cancel", "expire"])
def test_a_job_that_waits_out_a_backoff_can_be_stopped(queue: JobQueue, connection: Redis, stop: str) -> None:
    queue.enqueue(request(deadline=queue.time() + 1000))
    finish(queue, take(queue), how="retry", failure=FULL, delays=(1000.0,))
    if stop == "cancel":
        queue.cancel("job_0001")
    else:
        connection.zadd("warpdesk:deadlines", {"job_0001": 1.0})
        connection.hset("warpdesk:job:job_0001", "deadline", "1.0")
        queue.reap([], judge_leases=False)
    assert record(queue).state.final
    assert not connection.exists("warpdesk:delayed", "warpdesk:waiting", "warpdesk:deadlines")


def test_a_fault_that_may_pass_is_tried_after_each_delay_and_then_fails(queue: JobQueue, connection: Redis) -> None:
    queue.enqueue(request())
    for delay in (100.0, 200.0):
        assert finish(queue, take(queue), how="retry", failure=FULL, delays=(100.0, 200.0)) == "queued"
        assert waits(queue, connection) == pytest.approx(delay, abs=2)
        wake(connection)
    assert finish(queue, take(queue), how="retry", failure=FULL, delays=(100.0, 200.0)) == "done"
    found = record(queue)
    assert (found.state, found.error, found.strikes, found.dead) == (State.FAILED, FULL, 0, False)


def test_a_job_that_goes_back_to_the_queue_forgets_what_its_attempt_told(queue: JobQueue) -> None:
    queue.enqueue(request())
    job = take(queue)
    queue.progress(job.id, job.attempt, 0.5)
    finish(queue, job, how="returned", reason="its worker stopped")
    found = record(queue)
    assert (found.state, found.attempt, found.started_at, found.progress) == (State.QUEUED, 1, None, None)
    assert queue.events("job_0001")[-1].reason == "its worker stopped"


def test_dead_letters_of_every_owner_are_listed_the_latest_first(queue: JobQueue, connection: Redis) -> None:
    for number in (1, 2, 3):
        dead(queue, number, owner=f"key_{number}")
        connection.zadd("warpdesk:dead", {f"job_{number:04d}": float(queue.time()) + number})
    assert [letter.request.id for letter in queue.dead_letters(2)] == ["job_0003", "job_0002"]
    assert [letter.request.id for letter in queue.dead_letters(2, "job_0002")] == ["job_0001"]
    queue.erase("job_0002")
    assert [letter.request.id for letter in queue.dead_letters(5)] == ["job_0003", "job_0001"]


def test_a_dead_letter_lasts_until_it_is_erased_or_a_week_old(queue: JobQueue, connection: Redis) -> None:
    first, second = dead(queue, 1), dead(queue, 2, inputs={"b": ARRAY})
    assert connection.ttl(f"warpdesk:job:{first}") == connection.ttl(f"warpdesk:events:{first}") == -1
    queue.erase(first)
    assert 0 < connection.ttl(f"warpdesk:job:{first}") <= 60 + 24 * 3600
    assert not record(queue, first).dead
    connection.zadd("warpdesk:dead", {second: queue.time() - 7 * 24 * 3600 - 1})
    queue.reap([], judge_leases=False)
    assert queue.get(second) is None
    assert not connection.exists("warpdesk:dead", f"warpdesk:events:{second}")
    assert not queue.in_use("key_a", ARRAY)


def test_a_dead_letter_keeps_its_inputs_in_use_unless_they_are_private(queue: JobQueue) -> None:
    job_id = dead(queue)
    assert queue.in_use("key_a", ARRAY)
    assert not queue.forbid("key_a", ARRAY)
    assert queue.erase(job_id) == (None, (ARRAY,))
    dead(queue, 2, owner="key_b", private=True)
    assert not queue.in_use("key_b", ARRAY)
    with pytest.raises(InputsGone) as gone:
        queue.rerun("job_0002")
    assert gone.value.arrays == (ARRAY,)
    assert record(queue, "job_0002").dead


def test_a_dead_letter_is_run_again_as_if_nothing_had_happened_but_its_fence_goes_on_rising(
    queue: JobQueue, connection: Redis
) -> None:
    queue.enqueue(request(2))
    job_id = dead(queue, deadline=queue.time() + 1000)
    assert queue.rerun(job_id)
    assert not queue.rerun(job_id)
    found = record(queue)
    assert (found.state, found.strikes, found.dead, found.error) == (State.QUEUED, 0, False, None)
    assert (found.request.deadline, found.ended_at) == (None, None)
    assert connection.ttl(f"warpdesk:job:{job_id}") == -1
    assert not connection.exists("warpdesk:dead", "warpdesk:deadlines")
    assert connection.sismember("warpdesk:live:key_a", job_id)
    for attempt in range(4, 13):  # ten claims more
        wake(connection)
        job = take(queue)
        assert (job.attempt, job.strikes) == (attempt, 0)
        assert finish(queue, job, how="returned") == "queued"
    wake(connection)
    assert finish(queue, take(queue), how="returned") == "dead"
    assert queue.rerun(job_id)
    job = take(queue)
    assert finish(queue, job, succeeded(job)) == "done"
    assert record(queue).result == "job_0001.14"
    finals = [event.event for event in queue.events(job_id) if event.final]
    assert finals == ["failed", "failed", "succeeded"]


def test_only_a_dead_letter_is_run_again(queue: JobQueue) -> None:
    queue.enqueue(request())
    assert not queue.rerun("job_0001")
    finish(queue, take(queue), POISON)
    assert not queue.rerun("job_0001")
    job_id = dead(queue, 2)
    queue.erase(job_id)
    assert not queue.rerun(job_id)
    assert record(queue).state is State.FAILED
