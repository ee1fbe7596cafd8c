"""The heartbeat tells what is new before it is asked to."""

import time
from collections.abc import Collection, Iterator
from itertools import cycle
from pathlib import Path

import redis

from warpdesk_server.workers.parent.endings import Endings
from warpdesk_server.workers.parent.heartbeat import Heartbeat
from warpdesk_server.workers.queue.counts import Tally
from warpdesk_server.workers.queue.jobs import JobQueue, connect
from warpdesk_server.workers.queue.keys import COUNTS_FRESH, job_key
from warpdesk_server.workers.queue.protocol import JobRequest
from warpdesk_server.workers.queue.records import Held
from warpdesk_server.workers.queue.reports import ConditionState, GpuCondition, WorkerReport
from warpdesk_server.workers.store.spool import SpoolStore

RUNNING = JobRequest(id="job_1", owner="key_a", operation="double", params={}, inputs={}, timeout=30, result_ttl=60)


class Restless:
    """A worker whose GPU is in another state whenever someone looks, and who says nothing of it by itself."""

    name = "restless"
    process = "restless"

    def __init__(self, queue: JobQueue) -> None:
        self.looks = [0]  # before the first renewal, before the next, ...
        self.up_to_date: list[bool] = []  # whether what was seen last was told by then
        self.tally = Tally()
        self._queue = queue
        self._states: Iterator[ConditionState] = cycle(("healthy", "quarantined"))
        self._state: ConditionState

    def report(self) -> WorkerReport:
        self.looks[-1] += 1
        self._state = next(self._states)
        now = time.time()
        gpu = GpuCondition(state=self._state, since=now)
        return WorkerReport(
            name=self.name,
            host="here",
            pid=1,
            child_pid=None,
            state="ready",
            device=None,
            started_at=now,
            reported_at=now,
            gpu=gpu,
        )

    def held(self) -> list[Held]:
        self.up_to_date.append([report.gpu and report.gpu.state for report in self._queue.workers()] == [self._state])
        self.looks.append(0)
        return [Held(RUNNING, 1)]

    def revoke(self, jobs: Collection[Held]) -> None:
        pass  # there is no such job

    def look_around(self, queue: JobQueue) -> None:
        pass  # it is alone

    def keep_registered(self, connection: redis.Redis) -> None:
        pass  # nor is RQ here


def test_what_nobody_says_is_looked_for_more_often_than_a_claim_is_renewed_and_told_at_once(
    redis_url: str, tmp_path: Path
) -> None:
    with connect(redis_url) as connection:
        worker = Restless(JobQueue(connection))
        heartbeat = Heartbeat(redis_url, worker, lambda jobs: Endings(jobs, SpoolStore(tmp_path), {}))
        heartbeat.start()
        while len(worker.up_to_date) < 4:
            time.sleep(0.05)
        heartbeat.stop()
        heartbeat.join()
    assert all(worker.up_to_date)
    assert max(worker.looks) > 1


def test_a_redis_that_cannot_keep_counts_keeps_nothing_else_from_being_done(redis_url: str, tmp_path: Path) -> None:
    with connect(redis_url) as connection:
        queue = JobQueue(connection)
        queue.enqueue(RUNNING.model_copy(update={"deadline": time.time() + 0.5}))
        connection.set(COUNTS_FRESH, "not a hash")
        worker = Restless(queue)
        worker.tally.add("workers_lost_total")
        heartbeat = Heartbeat(redis_url, worker, lambda jobs: Endings(jobs, SpoolStore(tmp_path), {}))
        heartbeat.start()
        until = time.monotonic() + 60
        while connection.hget(job_key("job_1"), "state") != b"expired":  # by the heartbeat, which looks for such
            assert time.monotonic() < until
            time.sleep(0.05)
        connection.delete(COUNTS_FRESH)
        while not worker.tally.empty:
            assert time.monotonic() < until
            time.sleep(0.05)
        heartbeat.stop()
        heartbeat.join()
        assert queue.counted()[0]["workers_lost_total"] == 1
