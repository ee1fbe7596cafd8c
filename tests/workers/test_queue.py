"""A job's transitions: each happens once, stale fences are refused, RQ's keys stay readable and do not leak."""

from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis
from rq import Queue
from rq.job import Job
from rq.registry import FailedJobRegistry, StartedJobRegistry
from rq.serializers import JSONSerializer

from workers.protocol import DONE_CHANNEL, Failed, JobRequest, Provenance, State, Succeeded, WorkerReport
from workers.queue import JobQueue, connect

ARRAY = "blake3:" + "a" * 64
OTHER = "blake3:" + "b" * 64


@pytest.fixture
def connection(redis_url: str) -> Iterator[Redis]:
    with connect(redis_url) as connection:
        yield connection


@pytest.fixture
def queue(connection: Redis) -> JobQueue:
    return JobQueue(connection)


def request(number: int = 1, owner: str = "key_a", **fields: Any) -> JobRequest:
    values: dict[str, Any] = {
        "params": {"period": 14},
        "inputs": {"prices": ARRAY},
        "seed": 2**64 - 1,
        "timeout": 10.0,
        "result_ttl": 60.0,
        **fields,
    }
    return JobRequest(id=f"job_{number:04d}", owner=owner, operation="rsi", **values)


def succeeded(attempt: int, number: int = 1) -> Succeeded:
    return Succeeded(
        result=f"job_{number:04d}.{attempt}", provenance=Provenance(backend="cpu", device="a CPU", attempt=attempt)
    )


DIED = Failed(code="worker-died", message="gone")


def test_an_enqueued_job_is_queued_and_keeps_its_request(queue: JobQueue) -> None:
    queue.enqueue(request())
    record = queue.get("job_0001")
    assert record is not None
    assert record.request == request()
    assert (record.state, record.attempt, record.started_at) == (State.QUEUED, 0, None)
    assert abs(record.submitted_at - queue.time()) < 60
    assert queue.length() == 1


def test_an_unknown_job_is_none_and_cannot_be_canceled(queue: JobQueue) -> None:
    assert queue.get("job_9999") is None
    assert queue.position("job_9999") is None
    assert queue.start("job_9999") is None
    assert queue.erase("job_9999") == (None, ())
    with pytest.raises(KeyError):
        queue.cancel("job_9999")


def test_the_same_enqueue_twice_is_one_job(queue: JobQueue, connection: Redis) -> None:
    queue.enqueue(request())
    queue.start("job_0001")
    queue.enqueue(request())  # as redis-py repeats a transaction whose reply was lost
    record = queue.get("job_0001")
    assert record is not None
    assert (record.state, record.attempt) == (State.RUNNING, 1)
    assert queue.start("job_0001") is None  # the second id on the queue finds it running


def test_positions_count_the_jobs_ahead(queue: JobQueue) -> None:
    for number in (1, 2, 3):
        queue.enqueue(request(number))
    assert [queue.position(f"job_000{number}") for number in (1, 2, 3)] == [0, 1, 2]
    queue.cancel("job_0001")
    assert [queue.position(f"job_000{number}") for number in (1, 2, 3)] == [None, 0, 1]


def test_start_raises_the_fence_and_finish_commits_once(queue: JobQueue) -> None:
    queue.enqueue(request())
    assert queue.start("job_0001") == (request(), 1)
    assert queue.finish("job_0001", 1, succeeded(1))
    record = queue.get("job_0001")
    assert record is not None
    assert (record.state, record.result, record.progress) == (State.SUCCEEDED, "job_0001.1", 1.0)
    assert record.started_at is not None
    assert record.ended_at is not None
    assert record.result_expires_at == pytest.approx(record.ended_at + 60, abs=0.1)
    assert record.provenance is not None
    assert record.provenance.queue_seconds == pytest.approx(record.started_at - record.submitted_at, abs=1e-5)


def test_a_repeated_start_or_finish_after_a_lost_reply_answers_the_same(queue: JobQueue) -> None:
    queue.enqueue(request())
    assert queue.start("job_0001", execution="x") == queue.start("job_0001", execution="x") == (request(), 1)
    assert queue.start("job_0001", execution="y") is None
    assert queue.finish("job_0001", 1, succeeded(1))
    assert queue.finish("job_0001", 1, succeeded(1))
    assert not queue.finish("job_0001", 1, DIED)
    assert not queue.finish("job_0001", 1, Succeeded(result="job_0001.9", provenance=succeeded(1).provenance))


def test_a_stale_fence_changes_nothing(queue: JobQueue) -> None:
    queue.enqueue(request())
    queue.start("job_0001")
    assert queue.retry("job_0001", 1)
    assert queue.start("job_0001") == (request(), 2)
    before = queue.get("job_0001")
    assert not queue.finish("job_0001", 1, succeeded(1))
    assert not queue.finish("job_0001", 3, succeeded(3))
    assert not queue.retry("job_0001", 1)
    assert not queue.expire("job_0001", 1)
    assert not queue.renew("job_0001", 1)
    assert queue.get("job_0001") == before
    assert queue.renew("job_0001", 2)


def test_a_retried_job_goes_first_and_three_strikes_are_enough(queue: JobQueue) -> None:
    queue.enqueue(request(1))
    queue.enqueue(request(2))
    for attempt in (1, 2):
        assert queue.start("job_0001") == (request(1), attempt)
        assert queue.retry("job_0001", attempt)
        assert queue.position("job_0001") == 0
        assert queue.strikes("job_0001") == attempt
    queue.start("job_0001")
    assert not queue.retry("job_0001", 3)
    assert queue.finish("job_0001", 3, DIED)
    record = queue.get("job_0001")
    assert record is not None
    assert (record.state, record.error) == (State.FAILED, DIED)


def test_a_job_given_back_by_a_stopping_worker_is_not_charged(queue: JobQueue) -> None:
    queue.enqueue(request())
    for attempt in range(1, 6):
        assert queue.start("job_0001") == (request(), attempt)
        assert queue.retry("job_0001", attempt, strike=False)
    assert queue.strikes("job_0001") == 0


def test_a_canceled_queued_job_never_starts(queue: JobQueue) -> None:
    queue.enqueue(request())
    assert queue.cancel("job_0001") is State.CANCELED
    assert queue.cancel("job_0001") is State.CANCELED
    assert queue.length() == 0
    assert queue.start("job_0001") is None


def test_a_canceled_running_job_is_final_at_once_and_its_worker_is_told(queue: JobQueue, connection: Redis) -> None:
    queue.enqueue(request())
    queue.start("job_0001", worker="w1")
    with connection.pubsub() as heard:
        heard.subscribe("rq:pubsub:w1")
        assert heard.get_message(timeout=5)["type"] == "subscribe"
        assert queue.cancel("job_0001") is State.CANCELED
        message = heard.get_message(timeout=5)
    assert b'"job_0001"' in message["data"]
    assert b'"stop-job"' in message["data"]
    assert not queue.finish("job_0001", 1, succeeded(1))
    record = queue.get("job_0001")
    assert record is not None
    assert (record.state, record.result) == (State.CANCELED, None)


def test_a_finished_job_cannot_be_canceled(queue: JobQueue) -> None:
    queue.enqueue(request())
    queue.start("job_0001")
    queue.finish("job_0001", 1, succeeded(1))
    assert queue.cancel("job_0001") is State.SUCCEEDED


@pytest.mark.parametrize("ask", ["get", "start", "cancel", "jobs"])
def test_a_queued_job_past_its_deadline_is_expired_for_whoever_asks(queue: JobQueue, ask: str) -> None:
    queue.enqueue(request(deadline=queue.time() - 1))
    if ask == "jobs":
        assert [record.state for record in queue.jobs("key_a", 10)] == [State.EXPIRED]
    elif ask == "cancel":
        assert queue.cancel("job_0001") is State.EXPIRED
    else:
        getattr(queue, ask)("job_0001")
    record = queue.get("job_0001")
    assert record is not None
    assert record.state is State.EXPIRED
    assert queue.length() == 0 or ask == "start"  # a worker has popped the id before it asks


def test_a_running_job_past_its_deadline_is_expired_by_its_worker(queue: JobQueue) -> None:
    queue.enqueue(request(deadline=queue.time() + 60))
    queue.start("job_0001")
    assert queue.expire("job_0001", 1)
    assert not queue.finish("job_0001", 1, succeeded(1))


@pytest.mark.parametrize("end", ["finish", "cancel", "expire", "fail"])
def test_every_final_state_is_announced_once(queue: JobQueue, connection: Redis, end: str) -> None:
    queue.enqueue(request())
    queue.start("job_0001")
    with connection.pubsub() as heard:
        heard.subscribe(DONE_CHANNEL)
        heard.get_message(timeout=5)
        {
            "finish": lambda: queue.finish("job_0001", 1, succeeded(1)),
            "fail": lambda: queue.finish("job_0001", 1, DIED),
            "cancel": lambda: queue.cancel("job_0001"),
            "expire": lambda: queue.expire("job_0001", 1),
        }[end]()
        queue.finish("job_0001", 1, succeeded(1))
        assert heard.get_message(timeout=5)["data"] == b"job_0001"
        assert heard.get_message(timeout=0.05) is None


def test_an_array_is_in_use_while_a_live_job_of_its_owner_reads_it(queue: JobQueue) -> None:
    queue.enqueue(request(1))
    queue.enqueue(request(2, inputs={"a": ARRAY, "b": ARRAY}))
    assert queue.in_use("key_a", ARRAY)
    assert not queue.in_use("key_b", ARRAY)
    queue.cancel("job_0001")
    assert queue.in_use("key_a", ARRAY)
    queue.start("job_0002")
    queue.finish("job_0002", 1, succeeded(1, 2))
    assert not queue.in_use("key_a", ARRAY)


def test_erase_forgets_what_was_asked_and_names_what_nobody_else_reads(queue: JobQueue, connection: Redis) -> None:
    queue.enqueue(request(1, inputs={"a": ARRAY, "b": OTHER}))
    queue.enqueue(request(2, inputs={"a": OTHER}))
    queue.start("job_0001")
    queue.finish("job_0001", 1, succeeded(1))
    assert queue.erase("job_0001") == ("job_0001.1", (ARRAY,))
    assert queue.erase("job_0001") == (None, ())
    record = queue.get("job_0001")
    assert record is not None
    assert (record.erased, record.state, record.result, record.provenance) == (True, State.SUCCEEDED, None, None)
    assert (record.request.params, record.request.inputs, record.request.seed) == ({}, {}, None)
    assert b"period" not in b"".join(connection.hvals("warpdesk:job:job_0001"))


def test_erase_forgets_why_a_job_failed_and_keeps_that_it_did(queue: JobQueue, connection: Redis) -> None:
    queue.enqueue(request())
    queue.start("job_0001")
    queue.finish("job_0001", 1, Failed(code="invalid-input", message="the largest value is 271828.5"))
    assert b"271828.5" in b"".join(connection.hvals("warpdesk:job:job_0001"))
    queue.erase("job_0001")
    record = queue.get("job_0001")
    assert record is not None
    assert (record.erased, record.state, record.error) == (True, State.FAILED, None)
    assert b"271828.5" not in b"".join(connection.hvals("warpdesk:job:job_0001"))


def test_erase_cancels_a_live_job(queue: JobQueue) -> None:
    queue.enqueue(request(1))
    assert queue.erase("job_0001") == (None, (ARRAY,))
    record = queue.get("job_0001")
    assert record is not None
    assert record.state is State.CANCELED


def test_jobs_are_listed_newest_first_per_owner_and_page_by_page(queue: JobQueue, connection: Redis) -> None:
    for number in range(1, 6):
        queue.enqueue(request(number))
    queue.enqueue(request(6, owner="key_b"))

    def ids(limit: int, before: str | None = None) -> list[str]:
        return [record.request.id for record in queue.jobs("key_a", limit, before)]

    assert ids(2) == ["job_0005", "job_0004"]
    assert ids(2, "job_0004") == ["job_0003", "job_0002"]
    connection.delete("warpdesk:job:job_0002")  # its time is over
    assert ids(10) == ["job_0005", "job_0004", "job_0003", "job_0001"]
    assert connection.zcard("warpdesk:jobs:key_a") == 4


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


def test_rq_reads_a_queued_and_a_started_job_as_its_own(queue: JobQueue, connection: Redis) -> None:
    queue.enqueue(request())
    job = Job.fetch("job_0001", connection=connection, serializer=JSONSerializer)
    assert (job.get_status().value, job.origin, job.description, list(job.args)) == (
        "queued",
        "warpdesk",
        "rsi",
        ["job_0001"],
    )
    assert Queue("warpdesk", connection=connection).job_ids == ["job_0001"]

    queue.start("job_0001", worker="w1", execution="e1")
    job.refresh()
    assert (job.get_status().value, job.worker_name) == ("started", "w1")
    assert [execution.id for execution in job.get_executions()] == ["e1"]
    started = StartedJobRegistry("warpdesk", connection=connection)
    assert started.get_job_and_execution_ids() == [("job_0001", "e1")]


def test_rqs_own_cleanup_never_takes_a_running_job_for_abandoned(queue: JobQueue, connection: Redis) -> None:
    queue.enqueue(request())
    queue.start("job_0001", worker="w1")
    in_a_week = queue.time() + 7 * 24 * 3600
    StartedJobRegistry("warpdesk", connection=connection, serializer=JSONSerializer).cleanup(in_a_week)
    assert len(FailedJobRegistry("warpdesk", connection=connection)) == 0
    assert queue.renew("job_0001", 1)


@pytest.mark.parametrize("end", ["succeed", "fail", "cancel", "expire", "cancel queued", "expire queued", "retry"])
def test_a_final_job_leaves_nothing_in_rq_and_no_lease(queue: JobQueue, connection: Redis, end: str) -> None:
    queue.enqueue(request(deadline=queue.time() - 1 if end == "expire queued" else None))
    if "queued" not in end:
        queue.start("job_0001", worker="w1")
    if end == "retry":
        queue.retry("job_0001", 1)
        queue.start("job_0001", worker="w2")
    {
        "succeed": lambda: queue.finish("job_0001", 1, succeeded(1)),
        "retry": lambda: queue.finish("job_0001", 2, succeeded(2)),
        "fail": lambda: queue.finish("job_0001", 1, DIED),
        "expire": lambda: queue.expire("job_0001", 1),
        "cancel": lambda: queue.cancel("job_0001"),
        "cancel queued": lambda: queue.cancel("job_0001"),
        "expire queued": lambda: queue.get("job_0001"),
    }[end]()
    left = {key.decode() for key in connection.scan_iter()}
    # The id of the retried job was never popped here, so it is still on the queue's list; a pop would find it final.
    assert left - {"rq:queue:warpdesk"} == {"rq:queues", "warpdesk:job:job_0001", "warpdesk:jobs:key_a"}
    assert 0 < connection.ttl("warpdesk:job:job_0001") <= 60 + 24 * 3600


def test_an_id_left_between_pop_and_start_goes_back_to_the_front(queue: JobQueue, connection: Redis) -> None:
    queue.enqueue(request(1))
    queue.enqueue(request(2))
    connection.lmove("rq:queue:warpdesk", "rq:queue:warpdesk:intermediate", "LEFT", "RIGHT")
    assert queue.popped() == {"job_0001"}
    assert queue.position("job_0001") == 0
    assert queue.restore("job_0001")
    assert not queue.restore("job_0001")
    assert queue.popped() == frozenset()
    assert Queue("warpdesk", connection=connection).job_ids == ["job_0001", "job_0002"]


def test_an_id_of_a_running_job_is_not_restored(queue: JobQueue, connection: Redis) -> None:
    queue.enqueue(request())
    queue.start("job_0001")
    connection.rpush("rq:queue:warpdesk:intermediate", "job_0001")
    assert not queue.restore("job_0001")
    assert queue.popped() == frozenset()


def test_a_worker_without_a_gpu_can_leave_a_gpu_job_to_others(queue: JobQueue) -> None:
    queue.enqueue(request(backend="gpu"))
    assert queue.start("job_0001", leave_gpu_jobs=True) is None
    assert queue.start("job_0001", leave_gpu_jobs=False) == (request(backend="gpu"), 1)


def test_leases_name_the_worker_and_run_out_by_redis_clock(queue: JobQueue, connection: Redis) -> None:
    queue.enqueue(request())
    queue.start("job_0001", worker="w1", process="h|1|2")
    (lease,) = queue.leases()
    assert (lease.job_id, lease.attempt, lease.worker, lease.process, lease.expired) == (
        "job_0001",
        1,
        "w1",
        "h|1|2",
        False,
    )
    connection.zadd("warpdesk:leases", {"job_0001": queue.time() - 1})
    assert queue.leases()[0].expired
    assert queue.renew("job_0001", 1)
    assert not queue.leases()[0].expired
