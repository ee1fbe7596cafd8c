"""One job computes for others that are identical: each is its own job, whatever becomes of that one."""

import pytest
from redis import Redis

from tests.claims import claim, finish, request, succeeded, take
from warpdesk.models import State
from warpdesk_server.workers.queue.jobs import JobQueue
from warpdesk_server.workers.queue.protocol import Failed
from warpdesk_server.workers.queue.records import Claim, JobRecord

BROKEN = Failed(code="operation-error", message="it failed after 3 steps")


def enqueue(queue: JobQueue, *numbers: int, owner: str = "key_a", deadline: float | None = None) -> None:
    for number in numbers:
        queue.enqueue(request(number, owner=owner, deadline=deadline), same="digest")


def record(queue: JobQueue, number: int) -> JobRecord:
    found = queue.get(f"job_{number:04d}")
    assert found is not None
    return found


def states(queue: JobQueue, *numbers: int) -> list[str]:
    return [record(queue, number).state.value for number in numbers]


def test_identical_jobs_of_an_owner_run_once_and_each_has_the_answer(queue: JobQueue) -> None:
    enqueue(queue, 1, 2, 3)
    enqueue(queue, 4, owner="key_b")
    assert queue.length() == 2
    job = take(queue)
    enqueue(queue, 5)  # while it runs
    assert claim(queue) == ["job_0004"]
    assert claim(queue) == []
    finish(queue, job, succeeded(job))
    for number in (1, 2, 3, 5):
        ended = record(queue, number)
        assert (ended.state, ended.result, ended.progress) == (State.SUCCEEDED, "job_0001.1", 1.0)
        assert ended.result_expires_at is not None
        assert ended.provenance is not None
        assert ended.provenance.coalesced is (number != 1)
        assert ended.provenance.queue_seconds is not None
        assert ended.provenance.queue_seconds >= 0
        assert [event.event for event in queue.events(f"job_{number:04d}") if event.final] == ["succeeded"]
    assert states(queue, 4) == ["running"]
    enqueue(queue, 6)  # nothing computes for it any more
    assert claim(queue) == ["job_0006"]


def test_a_failure_is_everyones(queue: JobQueue) -> None:
    enqueue(queue, 1, 2, 3)
    finish(queue, take(queue), BROKEN)
    assert states(queue, 1, 2, 3) == ["failed"] * 3
    assert [record(queue, number).error for number in (1, 2, 3)] == [BROKEN] * 3


def test_a_dead_letter_fails_those_it_computed_for_and_is_the_only_one(queue: JobQueue) -> None:
    enqueue(queue, 1, 2)
    for _ in range(3):
        finish(queue, take(queue), how="struck", failure=BROKEN)
    assert states(queue, 1, 2) == ["failed", "failed"]
    assert [letter.request.id for letter in queue.dead_letters(10)] == ["job_0001"]
    assert queue.rerun("job_0001")
    enqueue(queue, 3)
    assert claim(queue) == ["job_0001"]
    assert claim(queue) == ["job_0003"]


@pytest.mark.parametrize("how", ["cancel queued", "cancel running", "erase", "expire queued", "expire running"])
def test_where_it_is_stopped_the_first_of_the_others_takes_over(queue: JobQueue, connection: Redis, how: str) -> None:
    enqueue(queue, 1, deadline=queue.time() + 1000)
    enqueue(queue, 2, 3)
    if "running" in how:
        job = take(queue)
    if "cancel" in how:
        queue.cancel("job_0001")
    elif how == "erase":
        queue.erase("job_0001")
    elif how == "expire running":
        finish(queue, job, how="expired")
    else:
        connection.hset("warpdesk:job:job_0001", "deadline", "1.0")
        queue.get("job_0001")
    assert states(queue, 1)[0] in ("canceled", "expired")
    assert states(queue, 2, 3) == ["queued", "queued"]
    assert [event.reason is not None for event in queue.events("job_0002")] == [True, True]
    enqueue(queue, 4)
    job = take(queue, "job_0002")
    assert claim(queue) == []
    finish(queue, job, succeeded(job))
    assert [record(queue, number).result for number in (2, 3, 4)] == ["job_0002.1"] * 3


def test_one_that_is_canceled_or_late_leaves_the_others_alone(queue: JobQueue) -> None:
    enqueue(queue, 1, 2, 3)
    enqueue(queue, 4, deadline=queue.time() + 1000)
    enqueue(queue, 5, deadline=1.0)
    queue.cancel("job_0002")
    job = take(queue)
    assert [(late.request.id, late.how) for late in queue.reap([], judge_leases=False)] == [("job_0005", "gone")]
    finish(queue, job, succeeded(job))
    assert states(queue, 1, 2, 3, 4, 5) == ["succeeded", "canceled", "succeeded", "succeeded", "expired"]


def test_one_whose_deadline_has_passed_is_not_answered_though_nobody_looked(queue: JobQueue) -> None:
    enqueue(queue, 1)
    enqueue(queue, 2, deadline=1.0)
    job = take(queue)
    finish(queue, job, succeeded(job))
    assert states(queue, 1, 2) == ["succeeded", "expired"]


def test_a_result_is_named_for_deletion_with_the_last_job_that_has_it(queue: JobQueue, connection: Redis) -> None:
    enqueue(queue, 1, 2, 3)
    job = take(queue)
    finish(queue, job, succeeded(job))
    assert queue.erase("job_0001")[0] is None
    assert queue.erase("job_0003")[0] is None
    assert record(queue, 2).result == "job_0001.1"
    assert queue.erase("job_0002")[0] == "job_0001.1"
    assert not connection.exists("warpdesk:shared:job_0001.1")


def test_those_it_computes_for_are_not_in_the_queue_and_count_as_live(queue: JobQueue, connection: Redis) -> None:
    enqueue(queue, 1, 2)
    assert queue.length() == 1
    assert connection.scard("warpdesk:live:key_a") == 2
    assert queue.position("job_0002") == 0
    queue.enqueue(request(9, priority="realtime"))
    assert queue.position("job_0002") == 1
    take(queue)
    assert queue.position("job_0002") == 0


def test_they_hear_how_far_it_is(queue: JobQueue) -> None:
    enqueue(queue, 1, 2)
    queue.progress("job_0001", take(queue).attempt, 0.25)
    assert record(queue, 2).progress == 0.25
    assert queue.events("job_0002")[-1].progress == 0.25
    queue.cancel("job_0001")
    assert record(queue, 2).progress is None


def test_so_many_end_in_one_step_and_the_next_computes_for_those_after_it(queue: JobQueue) -> None:
    enqueue(queue, *range(1, 261))
    assert queue.length() == 2
    first, second = take(queue, "job_0001"), take(queue, "job_0258")
    finish(queue, first, succeeded(first))
    assert states(queue, 257, 258, 259, 260) == ["succeeded", "running", "queued", "queued"]
    finish(queue, second, succeeded(second))
    assert record(queue, 260).result == "job_0258.1"


def test_a_claim_that_is_lost_and_taken_again_answers_everyone_once(queue: JobQueue) -> None:
    enqueue(queue, 1, 2)
    lost = take(queue)
    finish(queue, lost, how="returned", reason="its worker stopped")
    batch = queue.claim(Claim("w2"))
    assert batch is not None
    assert finish(queue, batch.jobs[0], succeeded(batch.jobs[0])) == "done"
    assert finish(queue, lost, succeeded(lost)) == "stale"
    assert record(queue, 2).result == "job_0001.2"
    assert len([event for event in queue.events("job_0002") if event.final]) == 1
