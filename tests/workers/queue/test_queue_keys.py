"""What the queue leaves in Redis, and what RQ's own classes read there."""

from typing import Any

import pytest
from redis import Redis
from rq import Queue, Worker
from rq.job import Job
from rq.registry import FailedJobRegistry, StartedJobRegistry
from rq.serializers import JSONSerializer

from tests.claims import ARRAY, claim, finish, request, succeeded, take
from tests.workers.queue.snapshot import Snapshot
from warpdesk_server.workers.queue.jobs import JobQueue
from warpdesk_server.workers.queue.protocol import Failed, Together
from warpdesk_server.workers.queue.records import Bounds, Claim, IdempotencyKey

pytestmark = pytest.mark.parametrize("redis_url", ["redis_server", "oldest_redis"], indirect=True)

FAILED = Failed(code="operation-error", message="it failed")
LANE = "warpdesk-batch-key_a"

# Without a time to live, whatever ended: what owners, lanes and workers there are, and what is counted.
LASTING = {"warpdesk:jobs:key_a", "warpdesk:served", "warpdesk:claims", "warpdesk:counts"}


def test_rq_reads_a_queued_and_a_running_job_as_its_own(queue: JobQueue, connection: Redis) -> None:
    queue.enqueue(request())
    job = Job.fetch("job_0001", connection=connection, serializer=JSONSerializer)
    assert (job.get_status().value, job.origin, job.description, list(job.args)) == (
        "queued",
        LANE,
        "rsi",
        ["job_0001"],
    )
    assert [queue.name for queue in Queue.all(connection=connection)] == [LANE]
    assert Queue(LANE, connection=connection).job_ids == ["job_0001"]

    held = take(queue, worker="w1")
    job.refresh()
    assert (job.get_status().value, job.worker_name) == ("started", "w1")
    assert job.started_at is not None
    assert Queue(LANE, connection=connection).job_ids == []
    assert StartedJobRegistry(LANE, connection=connection).get_job_ids() == ["job_0001"]
    assert [queue.name for queue in Queue.all(connection=connection)] == [LANE]

    finish(queue, held, how="returned")
    job.refresh()
    assert (job.get_status().value, job.worker_name) == ("queued", None)
    assert StartedJobRegistry(LANE, connection=connection).get_job_ids() == []


def test_rq_shows_a_queue_for_each_priority_and_owner_that_has_jobs(queue: JobQueue, connection: Redis) -> None:
    queue.enqueue(request(1, priority="realtime"))
    queue.enqueue(request(2, owner="key_b", backend="gpu"))
    queue.enqueue(request(3))
    found = {queue.name: queue.job_ids for queue in Queue.all(connection=connection)}
    assert found == {
        "warpdesk-realtime-key_a": ["job_0001"],
        "warpdesk-batch-gpu-key_b": ["job_0002"],
        LANE: ["job_0003"],
    }
    for job_id in ("job_0001", "job_0002", "job_0003"):
        queue.cancel(job_id)
    assert Queue.all(connection=connection) == []


def test_rq_shows_what_a_worker_does_and_has_done(queue: JobQueue, connection: Redis) -> None:
    worker = Worker([Queue("warpdesk", connection=connection)], name="w1", connection=connection)
    worker.register_birth()
    for number in (1, 2):
        queue.enqueue(request(number, together=Together(key="k", items=2, bytes=10)))
    first, second = take(queue, worker="w1"), "job_0002"
    worker.refresh()
    assert (worker.get_state(), worker.get_current_job_id()) == ("busy", "job_0001")
    finish(queue, first, succeeded(first))
    assert claim(queue) == [second]
    queue.cancel(second)
    assert claim(queue) == []
    worker.refresh()
    assert (worker.get_state(), worker.get_current_job_id()) == ("idle", None)
    worker.register_death()


def test_rqs_own_clean_up_never_takes_a_running_job_for_abandoned(queue: JobQueue, connection: Redis) -> None:
    queue.enqueue(request())
    job = take(queue, worker="w1")
    connection.zadd("warpdesk:leases", {job.id: 1.0})
    in_a_week = queue.time() + 7 * 24 * 3600
    StartedJobRegistry(LANE, connection=connection, serializer=JSONSerializer).cleanup(in_a_week)
    assert len(FailedJobRegistry(LANE, connection=connection)) == 0
    assert queue.renew([job]).lost == []
    assert finish(queue, job, succeeded(job)) == "done"


ENDS = ["succeed", "fail", "cancel", "expire", "cancel queued", "expire queued", "return", "retry", "strikes", "erase"]


@pytest.mark.parametrize("end", ENDS)
def test_a_final_job_leaves_its_record_and_its_events_for_a_time_and_nothing_else(
    queue: JobQueue, connection: Redis, end: str
) -> None:
    queue.enqueue(request(deadline=queue.time() + (-1 if end == "expire queued" else 1000)))
    job = take(queue) if "queued" not in end else None
    if end in ("return", "retry"):
        assert job is not None
        finish(queue, job, how="returned" if end == "return" else "retry", delays=(0.0,))
        job = take(queue)
    if job is None:
        queue.cancel("job_0001") if "cancel" in end else queue.reap([], judge_leases=False)
    elif end == "cancel":
        queue.cancel("job_0001")
    elif end == "expire":
        finish(queue, job, how="expired")
    elif end == "strikes":
        for _ in range(2):
            finish(queue, job, how="struck")
            job = take(queue)
        finish(queue, job, how="struck")
        queue.erase("job_0001")
    else:
        finish(queue, job, FAILED if end == "fail" else succeeded(job))
    if end == "erase":
        queue.erase("job_0001")
    assert claim(queue) == []  # which silences the bell
    snapshot = Snapshot(connection)
    erased = (
        {"warpdesk:erased:job_0001", "warpdesk:closed:job_0001"}
        if end in ("erase", "strikes")
        else {"warpdesk:events:job_0001"}
    )
    left = snapshot.keys.keys() - LASTING - {"warpdesk:counts:fresh"}
    assert left == {"warpdesk:job:job_0001"} | erased
    assert not left & snapshot.lasting
    assert connection.ttl("warpdesk:job:job_0001") <= 60 + 24 * 3600


def test_nothing_lasts_once_every_job_has_ended(queue: JobQueue, connection: Redis) -> None:
    """Keys that have no time to live are one for each owner, and the three of all lanes, workers and counts."""
    number = 0
    kinds: list[dict[str, Any]] = [{}, {"backend": "gpu"}, {"priority": "research", "private": True}, {"deadline": 1.0}]
    for fields in kinds:
        for same, key in ((None, IdempotencyKey(f"key {number}", "body")), ("digest" if not fields else None, None)):
            number += 1
            queue.enqueue(request(number, **fields), key, same, Bounds(100, 100))
    number += 1
    queue.enqueue(request(number), same="digest")
    queue.forbid("key_a", "blake3:unused")
    queue.reap([], judge_leases=False)
    while batch := queue.claim(Claim("w1", gpu=True)):
        for job in batch.jobs:
            finish(queue, job, succeeded(job))
    assert queue.length() == 0
    assert not queue.in_use("key_a", ARRAY)
    queue.counted()
    assert Snapshot(connection).lasting - {"warpdesk:workers"} == LASTING
