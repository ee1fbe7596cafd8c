"""Redis' clock is set an hour ahead or back: who works keeps its job, and nobody waits an hour for what is due."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.claims import claim, finish, ids, request, succeeded, take
from tests.clocks import HOUR, Clock
from tests.redis_servers import newest
from warpdesk.models import State
from warpdesk_server.service.redis_server import RedisServer
from warpdesk_server.workers.parent.endings import Endings
from warpdesk_server.workers.parent.heartbeat import REPORT_TTL
from warpdesk_server.workers.parent.recovery import Recovery
from warpdesk_server.workers.queue.counts import Tally
from warpdesk_server.workers.queue.jobs import JobQueue, connect
from warpdesk_server.workers.queue.records import LEASE_SECONDS, Claim
from warpdesk_server.workers.queue.reports import WorkerReport
from warpdesk_server.workers.store.spool import SpoolStore

ELSEWHERE = "another host|7|7"  # whose end nobody here can see


@pytest.fixture(scope="module")
def redis_clock(tmp_path_factory: pytest.TempPathFactory) -> Clock:
    return Clock(tmp_path_factory.mktemp("clock") / "clock")


@pytest.fixture(scope="module")
def redis_server(redis_clock: Clock, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with RedisServer(tmp_path_factory.mktemp("redis"), binary=redis_clock.under(newest())) as server:
        yield server.url


@pytest.fixture
def clock(redis_clock: Clock) -> Clock:
    redis_clock.set_ahead(0.0)
    return redis_clock


@pytest.fixture
def queue(clock: Clock, redis_url: str) -> Iterator[JobQueue]:
    with connect(redis_url) as connection:
        yield JobQueue(connection)


@pytest.fixture
def recovery(queue: JobQueue, tmp_path: Path) -> Recovery:
    made = Recovery(queue, Endings(queue, SpoolStore(tmp_path), {}), Tally())
    assert not made.look(judge_leases=True)
    return made


def state(queue: JobQueue) -> State:
    record = queue.get("job_0001")
    assert record is not None
    return record.state


def test_no_lease_ends_by_a_jump(queue: JobQueue, recovery: Recovery, clock: Clock) -> None:
    queue.enqueue(request())
    job = take(queue, process=ELSEWHERE)
    clock.set_ahead(HOUR)
    assert recovery.look(judge_leases=True)
    assert queue.renew([job]).lost == []
    assert not recovery.look(judge_leases=True)
    clock.set_ahead(0.0)
    assert recovery.look(judge_leases=True)
    assert finish(queue, job, succeeded(job)) == "done"


def test_no_lead_of_a_job_in_shards_is_slow_by_a_jump(queue: JobQueue, clock: Clock) -> None:
    queue.enqueue(request(shards=2))
    job = take(queue, worker="lead")
    queue.claim_shard(Claim("lead"), job, HOUR)
    shard = take(queue, "job_0001:1", worker="helper")
    finish(queue, shard, succeeded(shard))
    clock.set_ahead(HOUR)
    assert claim(queue, "helper") == []
    assert queue.renew([job]).lost == []


def test_no_lease_ends_by_a_jump_in_the_middle_of_a_look(queue: JobQueue, clock: Clock) -> None:
    queue.enqueue(request())
    take(queue, process=ELSEWHERE)
    looked_at = queue.time()
    clock.set_ahead(HOUR)
    assert queue.reap([], judge_leases=True, until=looked_at + 5) == []
    assert [one.how for one in queue.reap([], judge_leases=True, until=queue.time() + 5)] == ["queued"]


def test_a_worker_whose_report_ended_by_a_jump_is_not_forgotten(
    queue: JobQueue, recovery: Recovery, clock: Clock
) -> None:
    report = WorkerReport(
        name="w1", host="another", pid=7, child_pid=None, state="ready", device=None, started_at=0.0, reported_at=0.0
    )
    queue.report(report, REPORT_TTL, ELSEWHERE)
    clock.set_ahead(HOUR)
    assert not queue.reported("w1")
    assert recovery.look(judge_leases=True)
    assert "w1" in queue.processes()
    assert not recovery.look(judge_leases=True)  # and it has not reported again, as nobody does so soon
    assert "w1" not in queue.processes()


def test_the_lease_of_who_is_gone_ends_in_time_after_the_clock_was_set_back(
    queue: JobQueue, recovery: Recovery, clock: Clock
) -> None:
    clock.set_ahead(HOUR)
    recovery.look(judge_leases=True)
    queue.enqueue(request())
    take(queue, process=ELSEWHERE)
    clock.set_ahead(0.0)
    recovery.look(judge_leases=True)
    clock.set_ahead(LEASE_SECONDS + 1)
    recovery.look(judge_leases=True)
    recovery.look(judge_leases=True)
    assert state(queue) is State.QUEUED


def test_a_backoff_ends_where_the_clock_is_set_back(queue: JobQueue, recovery: Recovery, clock: Clock) -> None:
    queue.enqueue(request())
    assert finish(queue, take(queue), how="retry", delays=(60.0,)) == "queued"
    recovery.look(judge_leases=True)
    assert claim(queue) == []
    clock.set_ahead(-HOUR)
    recovery.look(judge_leases=True)
    assert claim(queue) == ["job_0001"]


def test_no_job_is_handed_to_who_waited_before_the_clock_was_set_back(queue: JobQueue, clock: Clock) -> None:
    waits = Claim("w1", waits=True)
    assert queue.claim(waits) is None
    clock.set_ahead(-HOUR)
    queue.enqueue(request())
    assert state(queue) is State.QUEUED
    batch = queue.claim(waits)  # it is alive, and says so every second
    assert batch is not None
    assert ids(batch) == ["job_0001"]


def test_a_lane_ages_after_the_clock_was_set_back(queue: JobQueue, clock: Clock) -> None:
    queue.enqueue(request(1, priority="research"))
    clock.set_ahead(-HOUR)
    queue.enqueue(request(2, priority="realtime"))
    assert claim(queue) == ["job_0001"]
    queue.enqueue(request(3, priority="research"))
    assert claim(queue) == ["job_0002"]
