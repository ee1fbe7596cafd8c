"""A job's transitions: each happens once, stale fences are refused, a repeat changes nothing and answers the same."""

import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis

from tests.claims import ARRAY, OTHER, claim, finish, request, succeeded, take
from tests.workers.queue.snapshot import Snapshot
from warpdesk.models import State
from warpdesk_server.workers.queue.jobs import JobQueue
from warpdesk_server.workers.queue.keys import EVENTS, LEASES
from warpdesk_server.workers.queue.protocol import Event, Failed, Together
from warpdesk_server.workers.queue.records import (
    Bounds,
    Claim,
    Ending,
    Held,
    IdempotencyKey,
    InputsGone,
    JobRecord,
    KeyReused,
    QueueFull,
    QuotaReached,
)
from warpdesk_server.workers.queue.reports import WorkerReport

DIED = Failed(code="worker-died", message="gone")
KEY = IdempotencyKey("its-key", "its-body")
RECORD = "warpdesk:job:job_0001"

ENDINGS: list[dict[str, Any]] = [
    {"outcome": "succeeded"},
    {"outcome": DIED},
    {"how": "expired"},
    {"how": "returned"},
    {"how": "struck"},
    {"how": "retry", "delays": (1.0,)},
]


pytestmark = pytest.mark.parametrize("redis_url", ["redis_server", "oldest_redis"], indirect=True)


def record(queue: JobQueue, job_id: str = "job_0001") -> JobRecord:
    found = queue.get(job_id)
    assert found is not None
    return found


def end(queue: JobQueue, job: Held, ending: dict[str, Any]) -> str:
    given = {**ending, "outcome": succeeded(job)} if ending.get("outcome") == "succeeded" else ending
    return finish(queue, job, **given)


def names(queue: JobQueue, job_id: str = "job_0001") -> list[str]:
    return [event.event for event in queue.events(job_id)]


# Enqueue.


def test_an_enqueued_job_is_queued_and_keeps_its_request(queue: JobQueue) -> None:
    assert queue.enqueue(request()).job_id == "job_0001"
    found = record(queue)
    assert found.request == request()
    assert (found.state, found.attempt, found.started_at) == (State.QUEUED, 0, None)
    assert abs(found.submitted_at - queue.time()) < 60
    assert queue.length() == 1


def test_an_unknown_job_is_none_and_cannot_be_canceled(queue: JobQueue) -> None:
    assert queue.get("job_9999") is None
    assert queue.position("job_9999") is None
    assert queue.erase("job_9999") == (None, ())
    assert queue.events("job_9999") == []
    assert not queue.rerun("job_9999")
    with pytest.raises(KeyError):
        queue.cancel("job_9999")


def test_the_same_enqueue_twice_is_one_job(queue: JobQueue) -> None:
    assert queue.enqueue(request()) == queue.enqueue(request())
    assert queue.length() == 1
    take(queue)
    queue.enqueue(request())  # as redis-py repeats a script whose reply was lost
    assert (record(queue).state, record(queue).attempt) == (State.RUNNING, 1)
    assert claim(queue) == []


def test_an_idempotency_key_makes_one_job_and_finds_it_ever_after(queue: JobQueue, connection: Redis) -> None:
    assert queue.replay("key_a", "its-key") is None
    first = queue.enqueue(request(1), KEY)
    again = queue.enqueue(request(2), KEY)
    assert (first.replayed, again.job_id, again.replayed) == (False, "job_0001", True)
    assert queue.replay("key_a", "its-key") == ("job_0001", "its-body")
    queue.cancel("job_0001")
    assert queue.enqueue(request(3), KEY, bounds=Bounds(0, 0)).job_id == "job_0001"
    with pytest.raises(KeyReused) as reused:
        queue.enqueue(request(4), IdempotencyKey("its-key", "another body"))
    assert reused.value.job_id == "job_0001"
    assert [queue.get(job_id) for job_id in ("job_0002", "job_0003", "job_0004")] == [None] * 3
    assert 23 * 3600 < connection.ttl("warpdesk:idempotency:key_a:its-key") <= 24 * 3600


def test_an_idempotency_key_is_its_owners(queue: JobQueue) -> None:
    queue.enqueue(request(1), KEY)
    assert queue.enqueue(request(2, owner="key_b"), KEY).job_id == "job_0002"
    assert queue.replay("key_c", "its-key") is None


def test_an_idempotency_key_that_was_not_told_of_its_job_is_not_replayed_to_the_caller_who_made_it(
    queue: JobQueue,
) -> None:
    assert queue.enqueue(request(), KEY) == queue.enqueue(request(), KEY)


@pytest.mark.parametrize(
    ("bounds", "refusal"), [(Bounds(2, 10), QueueFull(2)), (Bounds(10, 2), QuotaReached(2)), (None, InputsGone(ARRAY))]
)
def test_a_refused_job_leaves_nothing_behind(
    queue: JobQueue, connection: Redis, bounds: Bounds | None, refusal: Exception
) -> None:
    queue.enqueue(request(1, inputs={}), bounds=bounds)
    queue.enqueue(request(2, inputs={}), bounds=bounds)
    assert queue.forbid("key_a", ARRAY)
    before = Snapshot(connection).keys
    with pytest.raises(type(refusal)) as refused:
        queue.enqueue(request(3, inputs={} if bounds else {"a": ARRAY, "b": OTHER}), KEY, "digest", bounds)
    assert refused.value.args == refusal.args
    assert Snapshot(connection).keys == before


def test_running_jobs_count_for_the_quota_and_not_for_the_queue(queue: JobQueue) -> None:
    queue.enqueue(request(1))
    take(queue)
    queue.enqueue(request(2), bounds=Bounds(1, 2))
    with pytest.raises(QuotaReached):
        queue.enqueue(request(3), bounds=Bounds(2, 2))
    queue.enqueue(request(4, owner="key_b"), bounds=Bounds(2, 1))


# Claim, renew, finish.


def test_a_claim_raises_the_fence_and_finish_commits_once(queue: JobQueue) -> None:
    queue.enqueue(request())
    job = take(queue)
    assert (job.request, job.attempt, job.strikes) == (request(), 1, 0)
    assert finish(queue, job, succeeded(job)) == "done"
    found = record(queue)
    assert (found.state, found.result, found.progress) == (State.SUCCEEDED, "job_0001.1", 1.0)
    assert found.started_at is not None
    assert found.ended_at is not None
    assert found.result_expires_at == pytest.approx(found.ended_at + 60, abs=0.1)
    assert found.provenance is not None
    assert found.provenance.queue_seconds == pytest.approx(found.started_at - found.submitted_at, abs=1e-5)


def test_a_repeated_claim_answers_the_same_and_takes_no_more(queue: JobQueue) -> None:
    for number in (1, 2, 3):
        queue.enqueue(request(number, together=Together(key="k", items=2, bytes=100)))
    wish = Claim("w1")
    first = queue.claim(wish)
    assert first is not None
    assert queue.claim(wish) == first
    assert queue.length() == 1
    queue.cancel("job_0001")
    again = queue.claim(wish)
    assert again is not None
    assert (again.jobs, again.reason) == (first.jobs[1:], "full")
    queue.cancel("job_0002")
    assert queue.claim(wish) is None
    assert claim(queue) == ["job_0003"]


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_repeated_finish_answers_the_same_and_changes_nothing(
    queue: JobQueue, connection: Redis, ending: dict[str, Any]
) -> None:
    queue.enqueue(request())
    job = take(queue)
    first, before = end(queue, job, ending), Snapshot(connection).keys
    assert end(queue, job, ending) == first
    assert Snapshot(connection).keys == before


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("how", ["taken over", "canceled", "done", "from the future"])
def test_a_stale_fence_is_refused_whatever_it_brings(
    queue: JobQueue, connection: Redis, how: str, ending: dict[str, Any]
) -> None:
    queue.enqueue(request())
    job = take(queue)
    if how == "taken over":
        finish(queue, job, how="returned")
        take(queue)
    elif how == "canceled":
        queue.cancel("job_0001")
    elif how == "from the future":
        job = Held(job.request, 2)
    else:
        finish(queue, job, Failed(code="timeout", message="another end"))
    before = Snapshot(connection).keys
    assert end(queue, job, ending) == "stale"
    assert queue.renew([job]).lost == [job]
    queue.progress(job.id, job.attempt, 0.5)
    assert Snapshot(connection).keys == before


def test_a_late_success_of_a_job_that_is_queued_again_is_stale(queue: JobQueue) -> None:
    queue.enqueue(request())
    job = take(queue)
    finish(queue, job, how="returned")
    assert finish(queue, job, succeeded(job)) == "stale"
    assert record(queue).state is State.QUEUED


def test_jobs_of_a_batch_end_each_by_itself_and_the_next_are_claimed_in_the_same_step(queue: JobQueue) -> None:
    for number in (1, 2, 3, 4):
        queue.enqueue(request(number, together=Together(key="k", items=3, bytes=100)))
    batch = queue.claim(Claim("w1"))
    assert batch is not None
    first, second, third = batch.jobs
    queue.cancel("job_0002")
    endings = [Ending(first, succeeded(first)), Ending(second, succeeded(second)), Ending(third, how="struck")]
    wish = Claim("w1")
    answers, following, *_ = queue.finish(endings, "w1", then=wish)
    assert answers == ["done", "stale", "queued"]
    assert following is not None
    assert [job.id for job in following.jobs] == ["job_0003"]
    assert queue.finish(endings, "w1", then=wish)[:2] == (["done", "stale", "stale"], following)
    assert [record(queue, f"job_000{number}").state.value for number in (1, 2, 3, 4)] == [
        "succeeded",
        "canceled",
        "running",
        "queued",
    ]


def test_a_lease_lasts_fifteen_seconds_from_the_claim_and_from_each_renewal(queue: JobQueue, connection: Redis) -> None:
    queue.enqueue(request())
    job = take(queue)
    assert connection.zscore("warpdesk:leases", job.id) == pytest.approx(queue.time() + 15, abs=2)
    connection.zadd("warpdesk:leases", {job.id: queue.time() + 9})
    assert queue.renew([job]).lost == []
    assert connection.zscore("warpdesk:leases", job.id) == pytest.approx(queue.time() + 15, abs=2)
    assert queue.renew([]).lost == []


def test_a_lease_that_lapsed_and_was_not_taken_is_renewed(queue: JobQueue, connection: Redis) -> None:
    queue.enqueue(request())
    job = take(queue)
    connection.zadd("warpdesk:leases", {job.id: 1.0})
    assert queue.renew([job]).lost == []
    assert queue.reap([], judge_leases=True) == []


# Deadlines, cancel, erase.


@pytest.mark.parametrize("ask", ["get", "jobs", "cancel", "erase", "reap"])
def test_a_queued_job_past_its_deadline_is_expired_for_whoever_asks(queue: JobQueue, ask: str) -> None:
    queue.enqueue(request(deadline=queue.time() - 1))
    calls: dict[str, Callable[[], object]] = {
        "get": lambda: queue.get("job_0001"),
        "jobs": lambda: queue.jobs("key_a", 10),
        "cancel": lambda: queue.cancel("job_0001"),
        "erase": lambda: queue.erase("job_0001"),
        "reap": lambda: queue.reap([], judge_leases=False),
    }
    calls[ask]()
    assert queue.length() == 0
    assert record(queue).state is State.EXPIRED


def test_a_job_past_its_deadline_is_not_claimed_and_the_reaper_tells_of_it(queue: JobQueue) -> None:
    queue.enqueue(request(1, deadline=queue.time() - 1))
    queue.enqueue(request(2, deadline=queue.time() + 1000))
    assert [claim(queue), claim(queue)] == [["job_0002"], []]
    assert names(queue) == ["queued"]
    (gone,) = queue.reap([], judge_leases=False)
    assert (gone.request.id, gone.how) == ("job_0001", "gone")
    assert names(queue) == ["queued", "expired"]
    assert queue.reap([], judge_leases=False) == []


def test_one_look_of_the_reaper_ends_so_many_jobs(queue: JobQueue) -> None:
    for number in range(5):
        queue.enqueue(request(number, deadline=1.0))
    assert [len(queue.reap([], judge_leases=False, most=2)) for _ in range(4)] == [2, 2, 1, 0]


def test_a_running_job_past_its_deadline_is_expired_by_its_worker(queue: JobQueue) -> None:
    queue.enqueue(request(deadline=queue.time() + 60))
    job = take(queue)
    assert finish(queue, job, how="expired") == "done"
    assert record(queue).state is State.EXPIRED
    assert finish(queue, job, succeeded(job)) == "stale"


def test_a_canceled_queued_job_never_starts(queue: JobQueue) -> None:
    queue.enqueue(request())
    assert queue.cancel("job_0001") is State.CANCELED
    assert queue.cancel("job_0001") is State.CANCELED
    assert queue.length() == 0
    assert claim(queue) == []


def test_a_canceled_running_job_is_final_at_once_and_its_worker_is_told(queue: JobQueue, connection: Redis) -> None:
    queue.enqueue(request())
    job = take(queue, worker="w1")
    with connection.pubsub() as subscription:
        subscription.subscribe("rq:pubsub:w1")
        assert subscription.get_message(timeout=5)["type"] == "subscribe"
        assert queue.cancel("job_0001") is State.CANCELED
        message = subscription.get_message(timeout=5)
    assert json.loads(message["data"]) == {"command": "stop-job", "job_id": "job_0001"}
    assert queue.renew([job]).lost == [job]
    assert finish(queue, job, succeeded(job)) == "stale"
    assert (record(queue).state, record(queue).result) == (State.CANCELED, None)


def test_a_finished_job_cannot_be_canceled(queue: JobQueue) -> None:
    queue.enqueue(request())
    job = take(queue)
    finish(queue, job, succeeded(job))
    assert queue.cancel("job_0001") is State.SUCCEEDED


def test_erase_forgets_what_was_asked_and_names_what_nobody_else_reads(queue: JobQueue, connection: Redis) -> None:
    together = Together(key="digest-of-the-batch", items=2, bytes=100)
    queue.enqueue(request(1, inputs={"a": ARRAY, "b": OTHER}, together=together), same="digest-of-the-job")
    queue.enqueue(request(2, inputs={"a": OTHER}))
    job = take(queue)
    finish(queue, job, succeeded(job))
    assert queue.erase("job_0001") == ("job_0001.1", (ARRAY,))
    found = record(queue)
    assert (found.erased, found.state, found.result, found.provenance) == (True, State.SUCCEEDED, None, None)
    assert (found.request.params, found.request.inputs, found.request.seed) == ({}, {}, None)
    kept = str(Snapshot(connection).keys[RECORD])
    assert [word for word in ("period", "digest-of", ARRAY) if word in kept] == []
    assert queue.events("job_0001") == []
    assert not connection.exists("warpdesk:events:job_0001")


def test_erase_names_the_same_again_for_a_minute_and_then_nothing(queue: JobQueue, connection: Redis) -> None:
    queue.enqueue(request())
    job = take(queue)
    finish(queue, job, succeeded(job))
    assert queue.erase("job_0001") == queue.erase("job_0001") == ("job_0001.1", (ARRAY,))
    queue.enqueue(request(2))
    assert queue.erase("job_0001") == ("job_0001.1", ())  # another job reads it by now
    assert 0 < connection.ttl("warpdesk:erased:job_0001") <= 60
    connection.delete("warpdesk:erased:job_0001")  # its time is over
    assert queue.erase("job_0001") == (None, ())


def test_erase_forgets_why_a_job_failed_and_keeps_that_it_did(queue: JobQueue, connection: Redis) -> None:
    queue.enqueue(request())
    finish(queue, take(queue), Failed(code="invalid-input", message="the largest value is 271828.5"))
    assert "271828.5" in str(Snapshot(connection).keys)
    queue.erase("job_0001")
    found = record(queue)
    assert (found.erased, found.state, found.error) == (True, State.FAILED, None)
    assert "271828.5" not in str(Snapshot(connection).keys)


@pytest.mark.parametrize("running", [False, True])
def test_erase_cancels_a_live_job(queue: JobQueue, running: bool) -> None:
    queue.enqueue(request())
    if running:
        job = take(queue)
    assert queue.erase("job_0001") == (None, (ARRAY,))
    assert record(queue).state is State.CANCELED
    if running:
        assert finish(queue, job, succeeded(job)) == "stale"


# Inputs.


def test_an_array_is_in_use_while_a_live_job_of_its_owner_reads_it(queue: JobQueue) -> None:
    queue.enqueue(request(1))
    queue.enqueue(request(2, inputs={"a": ARRAY, "b": ARRAY}))
    assert queue.in_use("key_a", ARRAY)
    assert not queue.in_use("key_b", ARRAY)
    queue.cancel("job_0001")
    assert queue.in_use("key_a", ARRAY)
    job = take(queue, "job_0002")
    finish(queue, job, succeeded(job))
    assert not queue.in_use("key_a", ARRAY)


def test_an_array_that_is_about_to_be_deleted_gets_no_job(queue: JobQueue, connection: Redis) -> None:
    queue.enqueue(request(1))
    assert not queue.forbid("key_a", ARRAY)
    assert queue.forbid("key_b", ARRAY)
    queue.cancel("job_0001")
    assert queue.forbid("key_a", ARRAY)
    with pytest.raises(InputsGone) as gone:
        queue.enqueue(request(2, inputs={"a": OTHER, "b": ARRAY}))
    assert gone.value.arrays == (ARRAY,)
    assert 0 < connection.ttl(f"warpdesk:forbidden:key_a:{ARRAY}") <= 60
    queue.allow("key_a", ARRAY)
    queue.enqueue(request(2))


# Events.


def test_each_transition_is_an_event_with_the_next_number_and_all_but_the_first_are_published_once(
    queue: JobQueue, connection: Redis
) -> None:
    """Nobody knows a job's id before it is enqueued, so that nobody can wait for what that step tells."""
    with connection.pubsub() as subscription:
        subscription.subscribe(EVENTS)
        subscription.get_message(timeout=5)
        queue.enqueue(request())
        finish(queue, take(queue), how="struck", reason="it ended its worker")
        job = take(queue)
        queue.progress(job.id, job.attempt, 0.25)
        finish(queue, job, succeeded(job))
        finish(queue, job, succeeded(job))
        queue.cancel("job_0001")
        messages = []
        while message := subscription.get_message(timeout=0.2):
            messages.append(message["data"].decode().partition("\n"))
    events = queue.events("job_0001")
    assert [Event.model_validate_json(event) for event, _, _ in messages] == events[1:]
    assert [bool(record) for _, _, record in messages] == [False] * 4 + [True]
    assert queue.published_record("job_0001", messages[-1][2]) == queue.get("job_0001")  # nobody has to ask for it
    assert [(event.event, event.attempt, event.progress, event.reason) for event in events] == [
        ("queued", 0, None, None),
        ("running", 1, None, None),
        ("queued", 1, None, "it ended its worker"),
        ("running", 2, None, None),
        ("progress", 2, 0.25, None),
        ("succeeded", 2, None, None),
    ]
    assert [event.number for event in events] == [1, 2, 3, 4, 5, 6]
    assert all(abs(event.at - queue.time()) < 60 for event in events)
    assert queue.events("job_0001", after=4) == events[4:]
    assert queue.events("job_0001", after=6) == []
    entries = [entry for entry, _ in Snapshot(connection).keys["warpdesk:events:job_0001"]]
    assert entries == [f"{number}-0" for number in range(1, 7)]


def test_the_oldest_of_very_many_events_are_gone(queue: JobQueue, connection: Redis) -> None:
    queue.enqueue(request())
    job = take(queue)
    for step in range(500):
        queue.progress(job.id, job.attempt, step / 500)
    numbers = [event.number for event in queue.events("job_0001")]
    assert numbers == list(range(numbers[0], 503))
    assert len(numbers) < 400


@pytest.mark.parametrize("how", ["finish", "fail", "expire", "cancel", "cancel queued", "expire queued"])
def test_every_final_state_is_told_once(queue: JobQueue, how: str) -> None:
    queue.enqueue(request(deadline=1.0 if how == "expire queued" else None))
    if "queued" not in how:
        job = take(queue)
    endings: dict[str, Callable[[], object]] = {
        "finish": lambda: finish(queue, job, succeeded(job)),
        "fail": lambda: finish(queue, job, DIED),
        "expire": lambda: finish(queue, job, how="expired"),
        "cancel": lambda: queue.cancel("job_0001"),
        "cancel queued": lambda: queue.cancel("job_0001"),
        "expire queued": lambda: queue.get("job_0001"),
    }
    for _ in range(2):
        endings[how]()
        queue.reap(["a test"], judge_leases=True)
    events = queue.events("job_0001")
    assert [event.event for event in events if event.final] == [record(queue).state.value]
    assert events[-1].final


def test_a_private_job_does_not_tell_when_it_ran_nor_how_far_it_is(queue: JobQueue) -> None:
    queue.enqueue(request(private=True))
    job = take(queue)
    queue.progress(job.id, job.attempt, 0.5)
    assert record(queue).progress is None
    finish(queue, job, how="returned", reason="its worker stopped")
    job = take(queue)
    finish(queue, job, succeeded(job))
    assert names(queue) == ["queued", "queued", "succeeded"]
    assert [event.number for event in queue.events("job_0001")] == [1, 2, 3]


# Lists of jobs and workers.


def test_jobs_are_listed_newest_first_per_owner_and_page_by_page(queue: JobQueue, connection: Redis) -> None:
    for number in range(1, 6):
        queue.enqueue(request(number))
    queue.enqueue(request(6, owner="key_b"))

    def ids(limit: int, before: str | None = None) -> list[str]:
        return [record.request.id for record in queue.jobs("key_a", limit, before)[0]]

    assert ids(2) == ["job_0005", "job_0004"]
    assert ids(2, "job_0004") == ["job_0003", "job_0002"]
    connection.delete("warpdesk:job:job_0002")  # its time is over
    assert ids(10) == ["job_0005", "job_0004", "job_0003", "job_0001"]
    assert connection.zcard("warpdesk:jobs:key_a") == 4


def test_ids_of_records_whose_time_is_over_are_forgotten_as_new_jobs_come(queue: JobQueue, connection: Redis) -> None:
    for number in range(1, 5):
        queue.enqueue(request(number))
        connection.delete(f"warpdesk:job:job_{number:04d}")
    for number in range(11, 14):
        queue.enqueue(request(number))
    assert connection.zrange("warpdesk:jobs:key_a", 0, -1) == [b"job_0011", b"job_0012", b"job_0013"]


def test_a_worker_is_listed_until_its_report_is_too_old(queue: JobQueue, connection: Redis) -> None:
    report = WorkerReport(
        name="w1", host="h", pid=1, child_pid=2, state="ready", device=None, started_at=0, reported_at=1
    )
    queue.report(report, ttl=60)
    assert list(queue.workers()) == [report]
    assert queue.reported("w1")
    connection.pexpire("warpdesk:worker:w1", 0)  # its time to live is over
    assert not queue.reported("w1")
    assert list(queue.workers()) == []


def test_a_worker_that_has_gone_leaves_nothing(queue: JobQueue, connection: Redis) -> None:
    report = WorkerReport(
        name="w1", host="h", pid=1, child_pid=2, state="ready", device=None, started_at=0, reported_at=1
    )
    queue.report(report, ttl=60, process="h|1|1")
    queue.enqueue(request())
    take(queue, worker="w1")
    queue.unregister("w1")
    assert queue.processes() == {}
    assert not connection.exists("warpdesk:claims", "warpdesk:worker:w1")


def test_a_record_that_is_none_of_ours_keeps_no_reaper_from_the_others(queue: JobQueue, connection: Redis) -> None:
    for number in (1, 2, 3):
        queue.enqueue(request(number, deadline=1e12 if number == 3 else None))
    take(queue, "job_0001")
    for place, state in (("leases", "running"), ("delayed", "queued"), ("deadlines", "queued")):
        connection.hset(f"warpdesk:job:{place}", mapping={"state": state, "worker": "gone", "request": "{}"})
        connection.zadd(f"warpdesk:{place}", {place: 1.0, f"lost_{place}": 1.0})
    connection.zadd("warpdesk:leases", {"job_0001": 1.0})
    assert [one.request.id for one in queue.reap(["gone"], judge_leases=True)] == ["job_0001"]
    assert connection.zcard("warpdesk:leases") == connection.zcard("warpdesk:delayed") == 0
    assert connection.zrange("warpdesk:deadlines", 0, -1) == [b"job_0003"]


def test_what_a_later_release_adds_to_a_message_keeps_no_job_from_a_worker_of_this_one(
    queue: JobQueue, connection: Redis
) -> None:
    submission = request(1)
    queue.enqueue(submission)
    connection.hset("warpdesk:job:job_0001", "request", json.dumps({**submission.model_dump(), "later": 1}))
    batch = queue.claim(Claim("w1"))
    assert batch is not None
    assert batch.jobs[0].request == submission


def mac_of(text: str) -> str:
    return hashlib.sha256(f"key {text}".encode()).hexdigest()


def test_to_who_has_the_key_what_was_not_signed_is_no_job(queue: JobQueue, connection: Redis) -> None:
    signed = JobQueue(connection, mac_of)
    signed.enqueue(request(1))
    queue.enqueue(request(2))
    copy = connection.hgetall("warpdesk:job:job_0001")
    connection.hset("warpdesk:job:job_0003", mapping=copy)  # a copy is of another id
    connection.hset("warpdesk:job:job_0004", mapping={**copy, b"submitted_at": b"\xff"})
    ids = [f"job_{number:04d}" for number in range(1, 6)]
    for read in (signed.records, signed.checked, lambda ids: [signed.get(job_id) for job_id in ids]):
        assert [None if found is None else found.request.id for found in read(ids)] == [ids[0], *[None] * 4]
    assert [record.request.id for record in signed.jobs("key_a", 10)[0]] == [ids[0]]
    text = json.dumps({name.decode(): value.decode() for name, value in copy.items()})
    assert signed.published_record("job_0001", text) == signed.get("job_0001")
    for odd in ("", "[]", "{}", text.replace('"queued"', "[]")):
        assert signed.published_record("job_0001", odd) is None
    assert signed.published_record("job_0002", text) is None
    assert signed.erase("job_0002") == (None, ())


def test_to_who_has_the_key_what_was_not_signed_is_not_claimed_and_nobody_claims_it_again(
    queue: JobQueue, connection: Redis
) -> None:
    signed = JobQueue(connection, mac_of)
    queue.enqueue(request(1))
    assert signed.claim(Claim("w1")) is None
    record = queue.get("job_0001")
    assert record is not None
    assert record.error is not None
    assert (record.state, record.error.message) == (State.FAILED, "The job's request is not what this service wrote")
    waiting = Claim("w1", waits=True)
    assert signed.claim(waiting) is None
    queue.enqueue(request(2))  # it is handed over
    assert signed.claim(waiting) is None
    signed.enqueue(request(3))
    batch = signed.claim(waiting)
    assert batch is not None
    assert [job.id for job in batch.jobs] == ["job_0003"]


def test_of_what_is_reaped_what_was_not_signed_is_not_told(queue: JobQueue, connection: Redis) -> None:
    signed = JobQueue(connection, mac_of)
    for made, number in ((signed, 1), (queue, 2), (signed, 3)):
        made.enqueue(request(number))
        take(queue, f"job_{number:04d}")
    connection.hset("warpdesk:job:job_0003", mapping={"request": request(1).model_dump_json()})
    reaped = signed.reap(["a test"], judge_leases=False)
    assert [(one.request.id, one.how) for one in reaped] == [("job_0001", "queued")]
    assert connection.zcard(LEASES) == 0


def test_jobs_without_a_mac_are_signed_also_in_a_full_redis_and_what_is_no_record_is_passed_over(
    queue: JobQueue, connection: Redis
) -> None:
    for number in (1, 2):
        queue.enqueue(request(number))
        connection.hdel(f"warpdesk:job:job_{number:04d}", "mac")
    connection.hset("warpdesk:job:job_0001", "request", b"\xff")
    queue.enqueue(request(3))
    connection.delete("warpdesk:job:job_0003")
    connection.set("warpdesk:job:job_0003", "no record")
    signed = JobQueue(connection, mac_of)
    assert signed.get("job_0002") is None
    connection.config_set("maxmemory", 1)  # full
    try:
        signed.sign_older(["key_a", "nobody"])
    finally:
        connection.config_set("maxmemory", 0)
    assert signed.get("job_0001") is None
    assert signed.get("job_0002") == queue.get("job_0002")


def test_what_is_past_its_deadline_by_redis_clock_is_closed(queue: JobQueue) -> None:
    queue.enqueue(request(1, deadline=queue.time() - 1))
    queue.enqueue(request(2, deadline=queue.time() + 600))
    assert [record and record.closed for record in queue.checked(["job_0001", "job_0002"])] == [True, False]
