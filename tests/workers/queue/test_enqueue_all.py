"""Several jobs in one step: what is in Redis afterwards is as if they had come in turn, or as it was before."""

import json
import re
from typing import Any

import pytest
from redis import Redis

from tests.claims import ARRAY, OTHER, claim, request
from tests.workers.queue.snapshot import Snapshot
from tests.workers.queue.test_handed import received, waits
from warpdesk_server.workers.queue.jobs import JobQueue
from warpdesk_server.workers.queue.protocol import Together
from warpdesk_server.workers.queue.records import (
    Bounds,
    IdempotencyKey,
    InputsGone,
    KeyReused,
    NewJob,
    QueueFull,
    QuotaReached,
    TasksReached,
)

pytestmark = pytest.mark.parametrize("redis_url", ["redis_server", "oldest_redis"], indirect=True)

KEY = IdempotencyKey("its-key", "its-body")
TOGETHER = Together(key="k", items=4, bytes=1000)
TIME = re.compile(r"\b\d{10}(\.\d+)?\b|\d{4}-\d\d-\d\dT[\d:.]+Z")


def jobs(*numbers: int, **fields: Any) -> list[NewJob]:
    return [NewJob(request(number, **fields)) for number in numbers]


def settled(connection: Redis) -> str:
    """All of Redis as text, without times."""
    found = Snapshot(connection)
    return TIME.sub("a time", json.dumps([found.keys, found.lasting], sort_keys=True, default=sorted))


def test_jobs_of_every_lane_are_as_if_they_had_come_in_turn(queue: JobQueue, connection: Redis) -> None:
    new = [
        *jobs(1, 2, together=TOGETHER, inputs={"a": ARRAY, "b": OTHER}),
        *jobs(3, deadline=4e9, priority="realtime"),
        *jobs(4, backend="gpu"),
        *jobs(5, task=True, inputs={}),
        *jobs(6, long=True, shards=3),
        NewJob(request(7, inputs={"a": ARRAY}, attached={"a": "float64"}), "digest", '{"a": 1}'),
        NewJob(request(8, inputs={"a": ARRAY}, attached={"a": "float64"}), "digest", '{"a": 1}'),
        NewJob(request(9, deadline=4e9), "digest"),
    ]
    for job in new:
        queue.enqueue(job.request, None, job.same, None, job.attached)
    in_turn = settled(connection)
    connection.flushdb()

    assert queue.enqueue_all(new).job_id == "job_0001"

    assert settled(connection) == in_turn


def test_a_thousand_jobs_fit_into_one_step_and_are_claimed_in_order(queue: JobQueue, connection: Redis) -> None:
    new = [NewJob(request(number, together=TOGETHER, deadline=4e9), "digest") for number in range(1000)]
    queue.enqueue_all(new, KEY, Bounds(1000, 1000))
    assert (queue.length(), connection.scard("warpdesk:live:key_a")) == (4, 1000)  # one computes for 256 others
    assert claim(queue) == ["job_0000", "job_0257", "job_0514", "job_0771"]
    assert len(queue.jobs("key_a", 1001)[0]) == 1000


@pytest.mark.parametrize(
    ("bounds", "refusal"),
    [
        (Bounds(4, 10), QueueFull(2)),
        (Bounds(10, 4), QuotaReached(2)),
        (Bounds(8, 10, shared=True), QuotaReached(2, 6)),
        (Bounds(10, 10, tasks=2), TasksReached(0)),
        (Bounds(10, 10), InputsGone(OTHER)),
    ],
)
def test_where_the_last_one_does_not_fit_none_is_queued(
    queue: JobQueue, connection: Redis, bounds: Bounds, refusal: Exception
) -> None:
    queue.enqueue_all(jobs(1, 2, inputs={}))
    gone = isinstance(refusal, InputsGone)
    assert queue.forbid("key_a", OTHER)
    new = jobs(3, 4, inputs={"a": ARRAY}) + jobs(5, inputs={"a": OTHER if gone else ARRAY})
    if bounds.tasks:
        new = jobs(3, 4, 5, task=True, inputs={})
    before = Snapshot(connection).keys

    with pytest.raises(type(refusal)) as refused:
        queue.enqueue_all(new, KEY, bounds)

    assert refused.value.args == refusal.args
    assert Snapshot(connection).keys == before
    assert queue.enqueue_all(jobs(3, 4), KEY, bounds).job_id == "job_0003"  # and its key is free


def test_the_same_again_is_the_same_jobs_and_nothing_more(queue: JobQueue, connection: Redis) -> None:
    first = queue.enqueue_all(jobs(1, 2), KEY)
    before = Snapshot(connection).keys

    assert queue.enqueue_all(jobs(1, 2), KEY) == first  # after a lost reply
    again = queue.enqueue_all(jobs(3, 4), KEY, Bounds(0, 0))
    with pytest.raises(KeyReused, match="job_0001"):
        queue.enqueue_all(jobs(5, 6), IdempotencyKey("its-key", "another body"))
    with pytest.raises(KeyReused, match="job_0001"):
        queue.enqueue(request(7), IdempotencyKey("its-key", "one job"))

    assert (again.job_id, again.replayed) == ("job_0001", True)
    assert Snapshot(connection).keys == before


def test_one_that_waits_is_handed_a_launch_and_for_the_rest_is_rung(queue: JobQueue, connection: Redis) -> None:
    waiting = [waits(queue, worker) for worker in ("w1", "w2")]
    queue.enqueue_all(jobs(1, 2, 3, 4, 5, 6, together=TOGETHER))

    batch = received(connection, waiting[0])
    assert batch is not None
    assert [job.id for job in batch.jobs] == ["job_0001", "job_0002", "job_0003", "job_0004"]
    assert received(connection, waiting[1]) is None
    assert connection.exists("warpdesk:bell:any")
    assert claim(queue, "w2") == ["job_0005", "job_0006"]


def test_all_that_hear_no_bell_are_handed_what_is_theirs(queue: JobQueue, connection: Redis) -> None:
    waiting = [waits(queue, worker, gpus=("g1",)) for worker in ("w1", "w2")]
    queue.enqueue_all(jobs(1, 2, 3, backend="cpu"))

    batches = [received(connection, each) for each in waiting]
    assert [[job.id for job in batch.jobs] for batch in batches if batch is not None] == [["job_0001"], ["job_0002"]]
