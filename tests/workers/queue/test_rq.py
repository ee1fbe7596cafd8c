"""What plain RQ does where our queue does otherwise, and what RQ's own tools make of our keys.

The first part runs RQ alone. Each name says what RQ does: one that fails tells that RQ has mended it, and that a reason
for something of ours is gone.
"""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fcntl import LOCK_EX, flock
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from rq import Queue, Worker
from rq.intermediate_queue import IntermediateQueue
from rq.job import Job
from rq.registry import FailedJobRegistry, StartedJobRegistry
from rq.serializers import JSONSerializer

from tests.claims import finish, request, succeeded, take
from tests.conftest import ROOT
from tests.waiting import wait_until
from tests.workers.conftest import OWNER, Desk
from tests.workers.queue import plain_rq
from warpdesk.models import State
from warpdesk_server.service.redis_server import RedisServer
from warpdesk_server.workers.queue.jobs import JobQueue, connect
from warpdesk_server.workers.queue.keys import LEASES
from warpdesk_server.workers.queue.protocol import Failed, Together
from warpdesk_server.workers.queue.records import Claim

DIED = Failed(code="worker-died", message="gone")
SIMPLE = "rq.SimpleWorker"
KILLED_AT_THE_POP = "tests.workers.queue.plain_rq.KilledAtThePop"


@dataclass
class Plain:
    """RQ as anyone would run it: its command line, its workers, a Redis."""

    url: str
    home: Path
    connection: Redis
    processes: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    def queue(self, name: str = "one") -> Queue:
        return Queue(name, connection=self.connection, serializer=JSONSerializer)

    def enqueue(self, function: Any, *arguments: str, queue: str = "one", **options: Any) -> Job:
        return self.queue(queue).enqueue(function, *arguments, **options)

    def rq(self, command: str, *arguments: str) -> "subprocess.Popen[bytes]":
        with (self.home / "rq.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "rq.cli", command, "--url", self.url, *arguments],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.processes.append(process)
        return process

    def worker(self, *queues: str, kind: str = SIMPLE, burst: bool = False) -> "subprocess.Popen[bytes]":
        options = ("--worker-class", kind, "--serializer", "rq.serializers.JSONSerializer")
        return self.rq("worker", *options, *(("--burst",) if burst else ()), *queues)

    @contextmanager
    def at_a_gate(self, function: Any, **options: Any) -> Iterator[Job]:
        """A job that waits as long as this context lasts."""
        with (self.home / "gate").open("w") as gate:
            flock(gate, LOCK_EX)
            yield self.enqueue(function, gate.name, str(self.home / "marker"), **options)

    def log(self) -> str:
        return (self.home / "rq.log").read_text()

    def begun(self) -> None:
        wait_until((self.home / "marker").exists, self.log)

    def found(self, job: Job) -> list[str]:
        """Every list and sorted set that holds the job, or an execution of it."""
        holding = []
        for key in self.connection.scan_iter("rq:*"):
            kind = self.connection.type(key)
            if kind == b"list":
                entries = self.connection.lrange(key, 0, -1)
            elif kind == b"zset":
                entries = self.connection.zrange(key, 0, -1)
            else:
                continue
            if any(entry.startswith(job.id.encode()) for entry in entries):
                holding.append(key.decode())
        return holding

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()


@pytest.fixture
def plain(redis_url: str, tmp_path: Path) -> Iterator[Plain]:
    with connect(redis_url) as connection:
        made = Plain(redis_url, tmp_path, connection)
        yield made
        made.close()


def test_rq_loses_a_job_whose_worker_of_two_queues_is_killed_at_the_pop(plain: Plain) -> None:
    job = plain.enqueue(time.sleep, "0", queue="two")
    assert plain.worker("one", "two", kind=KILLED_AT_THE_POP).wait(60) == -signal.SIGKILL
    assert plain.rq("info").wait(60) == plain.worker("one", "two", burst=True).wait(60) == 0  # they clean up
    assert (plain.found(job), job.get_status()) == ([], "queued")


def test_rq_keeps_a_job_whose_worker_of_one_queue_is_killed_at_the_pop_where_only_maintenance_looks(
    plain: Plain,
) -> None:
    job = plain.enqueue(time.sleep, "0")
    assert plain.worker("one", kind=KILLED_AT_THE_POP).wait(60) == -signal.SIGKILL
    assert plain.rq("info").wait(60) == 0
    assert plain.found(job) == [IntermediateQueue.get_intermediate_queue_key(plain.queue().key)]
    assert plain.worker("one", burst=True).wait(60) == 0
    assert job.get_status() == "queued"


def test_rq_gives_up_and_loses_the_result_when_redis_is_away_at_the_end_of_a_job(tmp_path: Path) -> None:
    server = RedisServer(tmp_path / "r")
    with server, connect(server.url) as connection:
        plain = Plain(server.url, tmp_path, connection)
        try:
            with plain.at_a_gate(plain_rq.wait_at) as job:
                worker = plain.worker("one")
                plain.begun()
                server.stop()
            worker.wait(60)
            server.start()
            assert (job.get_status(), job.return_value()) == ("started", None)
            assert plain.worker("one", burst=True).wait(60) == 0
            assert job.get_status() == "started"
        finally:
            plain.close()


def test_rq_fails_a_job_of_a_killed_worker_when_anyone_looks_at_it(plain: Plain) -> None:
    with plain.at_a_gate(plain_rq.wait_at) as job:
        worker = plain.worker("one")
        plain.begun()
        worker.kill()
        worker.wait()
    started = StartedJobRegistry("one", connection=plain.connection)
    ((entry, _),) = plain.connection.zrange(started.key, 0, -1, withscores=True)
    plain.connection.zadd(started.key, {entry: 1.0})  # its time is over, four minutes later by default
    assert plain.rq("info").wait(60) == 0
    assert job.get_status() == "failed"
    assert plain.found(job) == [FailedJobRegistry("one", connection=plain.connection).key]
    failure = job.latest_result()
    assert failure is not None
    assert "AbandonedJobError" in str(failure.exc_string)


def test_rq_does_not_interrupt_native_code_at_a_time_out(plain: Plain) -> None:
    with plain.at_a_gate(plain_rq.wait_natively_at, job_timeout=1) as job:
        plain.worker("one")
        plain.begun()
        time.sleep(2.0)  # the alarm rings after one
        assert job.get_status() == "started"
    wait_until(lambda: job.get_status() == "failed", plain.log)
    failure = job.latest_result()
    assert failure is not None
    assert "JobTimeoutException" in str(failure.exc_string)


def test_rq_runs_any_importable_function_whatever_the_serializer(plain: Plain) -> None:
    job = plain.enqueue("os.mkdir", str(plain.home / "made"))
    assert plain.worker("one", burst=True).wait(60) == 0
    assert job.get_status() == "finished"
    assert (plain.home / "made").is_dir()


# RQ's own tools over our keys.


@pytest.fixture
def queue(plain: Plain) -> JobQueue:
    return JobQueue(plain.connection)


def rq_info(plain: Plain) -> list[str]:
    """What `rq info` prints of every queue and worker. It runs RQ's clean-up of all its registries first."""
    with (plain.home / "info.txt").open("w") as file:
        command = [sys.executable, "-m", "rq.cli", "info", "--url", plain.url, "--raw"]
        subprocess.run(command, cwd=ROOT, stdout=file, stderr=file, check=True, timeout=60)
    return sorted((plain.home / "info.txt").read_text().splitlines())


def exporter_counts(plain: Plain) -> dict[str, tuple[int, int]]:
    """Jobs that wait and that run, by queue, as rq-exporter 3.1 counts them.

    The calls are its own. The package asks for redis-py below 6 and cannot be installed beside this one.
    """
    counted = {}
    for queue in Queue.all(plain.connection):
        assert queue.finished_job_registry.get_job_count(cleanup=False) == 0
        assert queue.failed_job_registry.get_job_count(cleanup=False) == 0
        assert queue.deferred_job_registry.get_job_count(cleanup=False) == 0
        assert queue.scheduled_job_registry.get_job_count(cleanup=False) == 0
        counted[queue.name] = queue.count, queue.started_job_registry.get_job_count(cleanup=False)
    return counted


def everything(plain: Plain) -> dict[bytes, bytes]:
    """All that is in Redis, but what RQ's tools wrote down for themselves."""
    return {key: plain.connection.dump(key) for key in plain.connection.scan_iter() if not key.startswith(b"rq:clean")}


def test_rq_info_and_the_exporter_count_our_jobs_right_and_change_nothing(plain: Plain, queue: JobQueue) -> None:
    together = Together(key="alike", items=8, bytes=1000)
    for number in (1, 2, 3):
        queue.enqueue(request(number, together=together))
    batch = queue.claim(Claim("w1"))
    assert batch is not None
    assert len(batch.jobs) == 3
    queue.enqueue(request(4))
    abandoned = take(queue, "job_0004", "w2")
    plain.connection.zadd(LEASES, {"job_0004": 1.0})
    queue.enqueue(request(5))
    for _ in range(3):
        finish(queue, take(queue, "job_0005", "w3"), how="struck", failure=DIED)
    queue.enqueue(request(6))
    finish(queue, take(queue, "job_0006", "w3"), how="retry", failure=DIED, delays=(600.0,))
    for number, owner, priority in ((7, "key_a", "batch"), (8, "key_a", "batch"), (9, "key_b", "realtime")):
        queue.enqueue(request(number, owner, priority=priority))
    queue.enqueue(request(10, "key_b"))
    finish(queue, done := take(queue, "job_0010", "w3"), succeeded(done))
    queue.enqueue(request(11, backend="gpu"))

    before = everything(plain)
    assert rq_info(plain) == [
        "queue warpdesk-batch-gpu-key_a 1, 0 executing, 0 finished, 0 failed",
        "queue warpdesk-batch-key_a 2, 4 executing, 0 finished, 0 failed",
        "queue warpdesk-realtime-key_b 1, 0 executing, 0 finished, 0 failed",
    ]
    assert exporter_counts(plain) == {
        "warpdesk-batch-gpu-key_a": (1, 0),
        "warpdesk-batch-key_a": (2, 4),
        "warpdesk-realtime-key_b": (1, 0),
    }
    assert everything(plain) == before

    assert [finish(queue, job, succeeded(job)) for job in batch.jobs] == ["done"] * 3
    assert [(each.request.id, each.how) for each in queue.reap([], judge_leases=True)] == [("job_0004", "queued")]
    assert finish(queue, abandoned, succeeded(abandoned)) == "stale"
    while (batch := queue.claim(Claim("w4", gpu=True))) is not None:
        assert [finish(queue, job, succeeded(job)) for job in batch.jobs] == ["done"]
    states = {number: getattr(queue.get(f"job_{number:04d}"), "state", None) for number in range(1, 12)}
    assert states == {**dict.fromkeys(range(1, 12), "succeeded"), 5: "failed", 6: "queued"}
    assert [letter.request.id for letter in queue.dead_letters(10)] == ["job_0005"]
    assert rq_info(plain) == []


def test_rq_info_beside_a_working_worker_counts_what_it_did_and_harms_no_job(desk: Desk, tmp_path: Path) -> None:
    plain = Plain(desk.url, tmp_path, desk.queue._redis)
    report = desk.start_worker()
    assert report is not None
    with desk.gate() as gate:
        held, _ = desk.nap(gate=gate)
        jobs = [desk.submit() for _ in range(20)]
        plain.connection.zadd(LEASES, {held: 1.0})
        lines = rq_info(plain)
        name = f"warpdesk-batch-{OWNER}"
        assert lines[0] == f"queue {name} 20, 1 executing, 0 finished, 0 failed"
        assert exporter_counts(plain) == {name: (20, 1)}
        (worker,) = Worker.all(plain.connection)
        assert (worker.name, worker.get_state()) == (report.name, "busy")
    while not all(state_of(desk, job).final for job in jobs):
        rq_info(plain)
    assert {desk.wait(job).state for job in (held, *jobs)} == {State.SUCCEEDED}
    (worker,) = Worker.all(plain.connection)
    assert (worker.successful_job_count, worker.failed_job_count) == (21, 0)


def state_of(desk: Desk, job: str) -> State:
    record = desk.queue.get(job)
    assert record is not None
    return record.state
