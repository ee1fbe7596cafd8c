"""Real worker processes on a real Redis: answers, time-outs, cancels, deaths of child and parent, outages."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from redis import Redis
from rq import Queue, Worker
from rq.command import send_stop_job_command
from rq.registry import FailedJobRegistry, StartedJobRegistry

from tests.conftest import ROOT
from tests.workers.conftest import OWNER, Desk
from warpdesk.redis_server import RedisServer
from workers.protocol import Failed, State
from workers.queue import JobQueue, JobRecord, connect
from workers.store import SpoolStore

GPU = {"WARPDESK_DEVICE": "tests.workers.device:PaperDevice"}


def doubled(desk: Desk, record: JobRecord) -> list[float]:
    assert record.state is State.SUCCEEDED, record
    assert record.result is not None
    answer: list[float] = np.load(desk.store.result(record.result) / "doubled.npy").tolist()
    return answer


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def nap(desk: Desk, name: str = "marker", seconds: float = 600.0, **fields: object) -> tuple[str, int]:
    """Submit a nap in native code and wait until it has begun; the job's id and the napping process."""
    job_id = desk.submit("nap", params={"seconds": seconds, "marker": str(desk.marker(name))}, **fields)
    return job_id, desk.napping(desk.marker(name))


def hold_for_ever(desk: Desk, job_id: str) -> None:
    """Give a dead worker a lease that never runs out: only its death can cost it the job."""
    with connect(desk.url) as connection:
        connection.zadd("warpdesk:leases", {job_id: time.time() + 1e6}, xx=True)


def test_jobs_are_answered_in_order_and_rq_shows_the_worker(desk: Desk) -> None:
    report = desk.start_worker()
    ids = [desk.submit(inputs={"values": desk.array([float(number)])}) for number in range(20)]
    records = [desk.wait(job_id) for job_id in ids]
    assert [doubled(desk, record) for record in records] == [[2.0 * number] for number in range(20)]
    assert [record.attempt for record in records] == [1] * 20
    assert sorted(record.started_at or 0 for record in records) == [record.started_at for record in records]

    assert report is not None
    assert report.device is not None
    assert (report.host, report.pid, report.device.backend) == (socket.gethostname(), desk.workers[0].pid, "cpu")
    with connect(desk.url) as connection:
        (seen,) = Worker.all(connection)
        assert (seen.name, seen.pid) == (report.name, report.pid)
        desk.until(lambda: Worker.all(connection)[0].successful_job_count == 20, "RQ did not count the jobs")
        assert Worker.all(connection)[0].failed_job_count == 0
        assert len(StartedJobRegistry("warpdesk", connection=connection)) == 0
        assert [key for key in connection.scan_iter("rq:*") if b"job_" in key] == []
    rq = subprocess.run(
        [sys.executable, "-m", "rq.cli", "info", "--url", desk.url],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    assert "1 workers, 1 queues" in rq.stdout
    assert "20 finished, 0 failed" in rq.stdout


def test_a_deterministic_error_fails_once_without_data(desk: Desk) -> None:
    desk.start_worker()
    record = desk.wait(desk.submit("stumble", {"values": desk.array([271828.0])}))
    assert (record.state, record.attempt) == (State.FAILED, 1)
    assert record.error == Failed(code="operation-error", message="stumble failed with RuntimeError")
    assert "271828" not in desk.log()
    assert desk.results() == []
    assert doubled(desk, desk.wait(desk.submit())) == [2.0, 4.0, 6.0]  # and the child lives on


def test_a_time_out_ends_native_code_that_holds_the_interpreters_lock(desk: Desk) -> None:
    report = desk.start_worker()
    job_id, child = nap(desk, timeout=0.5)
    record = desk.wait(job_id)
    assert record.error == Failed(code="timeout", message="an attempt may run 0.5 s, and this one ran longer")
    assert record.attempt == 1
    assert record.ended_at is not None
    assert record.started_at is not None
    assert record.ended_at - record.started_at >= 0.5
    assert not alive(child)
    assert doubled(desk, desk.wait(desk.submit())) == [2.0, 4.0, 6.0]
    (after,) = desk.queue.workers()
    assert report is not None
    assert after.name == report.name  # the parent never went away
    assert after.child_pid != child


def test_a_deadline_ends_a_running_job(desk: Desk) -> None:
    desk.start_worker()
    job_id, child = nap(desk, deadline=time.time() + 1.0)
    assert desk.wait(job_id).state is State.EXPIRED
    desk.until(lambda: not alive(child), "the child outlived the deadline")


@pytest.mark.parametrize("by", ["the service", "rq"])
def test_a_cancel_ends_native_code_that_holds_the_interpreters_lock(desk: Desk, by: str) -> None:
    desk.start_worker()
    job_id, child = nap(desk)
    if by == "rq":
        with connect(desk.url) as connection:
            send_stop_job_command(connection, job_id, serializer="json")
    else:
        assert desk.queue.cancel(job_id) is State.CANCELED
    desk.until(lambda: not alive(child), "the child lives")
    assert desk.wait(job_id).state is State.CANCELED
    assert desk.results() == []
    assert doubled(desk, desk.wait(desk.submit())) == [2.0, 4.0, 6.0]


def test_a_cancel_whose_message_is_lost_is_noticed(desk: Desk) -> None:
    desk.start_worker()
    job_id, child = nap(desk)
    with connect(desk.url) as connection:
        for client in connection.client_list(_type="pubsub"):
            connection.client_kill_filter(_id=client["id"])
    desk.queue.cancel(job_id)
    desk.until(lambda: not alive(child), "the child lives")


def test_a_killed_child_is_replaced_and_its_job_answered(desk: Desk) -> None:
    desk.start_worker()
    marks = desk.home / "marks"
    marks.mkdir()
    record = desk.wait(desk.submit("die", params={"times": 2, "marker": str(marks)}))
    assert (record.state, record.attempt) == (State.SUCCEEDED, 3)
    (report,) = desk.queue.workers()
    assert report.restarts >= 1
    assert report.last_fault is not None
    assert "SIGKILL" in report.last_fault


def test_a_job_that_kills_three_children_is_given_up(desk: Desk) -> None:
    desk.start_worker()
    marks = desk.home / "marks"
    marks.mkdir()
    record = desk.wait(desk.submit("die", params={"times": 99, "marker": str(marks)}))
    assert (record.state, record.attempt) == (State.FAILED, 3)
    assert record.error is not None
    assert record.error.code == "worker-died"
    assert "3 times" in record.error.message
    assert len(list(marks.iterdir())) == 3
    assert doubled(desk, desk.wait(desk.submit())) == [2.0, 4.0, 6.0]


def test_an_idle_child_that_dies_is_replaced_before_a_job_needs_it(desk: Desk) -> None:
    report = desk.start_worker()
    assert report is not None
    assert report.child_pid is not None
    os.kill(report.child_pid, signal.SIGKILL)
    desk.until(
        lambda: [r for r in desk.queue.workers() if r.state == "ready" and r.child_pid != report.child_pid],
        "no new child",
    )
    record = desk.wait(desk.submit())
    assert record.attempt == 1


def test_a_killed_parent_takes_its_child_along_and_a_successor_takes_over_its_job(desk: Desk) -> None:
    desk.start_worker()
    job_id, child = nap(desk, "first", seconds=1.5)
    waiting = desk.submit()
    desk.workers[0].kill()
    desk.workers[0].wait()
    hold_for_ever(desk, job_id)
    desk.until(lambda: not alive(child), "the child outlived its parent")
    desk.marker("first").unlink()
    desk.start_worker(ready=False)
    desk.napping(desk.marker("first"))
    assert desk.wait(job_id).attempt == 2
    assert desk.wait(waiting).attempt == 1
    with connect(desk.url) as connection:
        assert len(FailedJobRegistry("warpdesk", connection=connection)) == 0
        desk.until(lambda: len(Worker.all(connection)) == 1, "RQ still lists the dead worker")


def test_another_worker_takes_over_the_job_of_a_killed_one(desk: Desk) -> None:
    desk.start_worker()
    job_id, first = nap(desk)
    desk.start_worker()
    desk.marker().unlink()
    desk.workers[0].kill()
    desk.workers[0].wait()
    hold_for_ever(desk, job_id)
    assert desk.napping(desk.marker()) != first
    record = desk.queue.get(job_id)
    assert record is not None
    assert (record.state, record.attempt, desk.queue.strikes(job_id)) == (State.RUNNING, 2, 1)


def test_a_worker_that_hung_finds_its_job_taken_over_and_its_answer_refused(desk: Desk) -> None:
    report = desk.start_worker()
    assert report is not None
    assert report.child_pid is not None
    second = desk.start_worker()
    assert second is not None
    secret, key = desk.array([5, 6], "int64"), desk.marker("key")
    job_id = desk.submit("whisper", {"secret": secret}, params={"marker": str(key), "seconds": 1.5})
    desk.until(key.exists, "it did not begin")
    (holder,) = (lease.worker for lease in desk.queue.leases())
    hung = report if holder == report.name else second
    assert hung.child_pid is not None
    # A host that stands still: neither parent nor child notices how long it was away.
    for pid in (hung.pid, hung.child_pid):
        os.kill(pid, signal.SIGSTOP)
    key.unlink()
    with connect(desk.url) as connection:
        connection.zadd("warpdesk:leases", {job_id: 1.0})  # the lease ran out, without the test waiting for it
    desk.until(key.exists, "nobody took it over")
    for pid in (hung.child_pid, hung.pid):
        os.kill(pid, signal.SIGCONT)
    record = desk.wait(job_id)
    assert (record.state, record.attempt, record.result) == (State.SUCCEEDED, 2, f"{job_id}.2")
    desk.until(lambda: desk.results() == [f"{job_id}.2"], "the first attempt's noise is still there")
    desk.until(
        lambda: sorted(r.state for r in desk.queue.workers()) == ["ready", "ready"], "a worker did not come back"
    )


def test_a_stopped_worker_finishes_its_job_first(desk: Desk) -> None:
    desk.start_worker()
    job_id, child = nap(desk, seconds=1.0)
    desk.workers[0].terminate()
    assert desk.workers[0].wait(20) == 0
    record = desk.queue.get(job_id)
    assert record is not None
    assert (record.state, record.attempt) == (State.SUCCEEDED, 1)
    assert not alive(child)
    assert list(desk.queue.workers()) == []
    with connect(desk.url) as connection:
        assert set(connection.scan_iter("rq:*")) == {b"rq:queues"}


def test_a_stopped_worker_gives_back_a_job_it_cannot_finish_without_a_strike(desk: Desk) -> None:
    desk.start_worker(WARPDESK_DRAIN_SECONDS="0.3")
    job_id, child = nap(desk)
    desk.workers[0].send_signal(signal.SIGINT)
    assert desk.workers[0].wait(20) == 0
    assert not alive(child)
    record = desk.queue.get(job_id)
    assert record is not None
    assert (record.state, record.attempt) == (State.QUEUED, 1)
    assert desk.queue.strikes(job_id) == 0
    assert desk.queue.position(job_id) == 0


def test_only_our_one_function_runs(desk: Desk) -> None:
    desk.start_worker()
    touched = desk.home / "touched"
    with connect(desk.url) as connection:
        queue = Queue("warpdesk", connection=connection, serializer="json")
        foreign = queue.enqueue("os.system", f"touch {touched}")
        other = queue.enqueue("workers.execute.run", "job_of_another_id")
        desk.until(lambda: foreign.get_status().value == "failed", "it was not refused")
        desk.until(lambda: other.get_status().value == "failed", "it was not refused")
        connection.hset(
            "rq:job:garbage", mapping={"data": b"\x80\x05.", "status": "no such status", "origin": "warpdesk"}
        )
        connection.rpush("rq:queue:warpdesk", "garbage")
        assert doubled(desk, desk.wait(desk.submit())) == [2.0, 4.0, 6.0]
        assert connection.llen("rq:queue:warpdesk:intermediate") == 0
    assert not touched.exists()
    assert desk.workers[0].poll() is None


def test_a_machine_that_has_compiled_nothing_gets_ready_and_its_second_compiler_ends(
    desk: Desk, tmp_path: Path
) -> None:
    report = desk.start_worker(NUMBA_CACHE_DIR=str(tmp_path / "empty"))
    assert report is not None
    helpers = Path(f"/proc/{report.child_pid}/task/{report.child_pid}/children")
    deadline = time.monotonic() + 60
    while helpers.read_text() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert helpers.read_text() == ""


def test_the_parent_imports_neither_numpy_nor_a_kernel() -> None:
    heavy = "{'numpy', 'numba', 'cupy'}"
    script = f"import sys, workers.warm, kernels.catalogue; print([m for m in sys.modules if m in {heavy}])"
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True)
    assert answer.stdout == "[]\n"


class TestOnADevice:
    """Faults are planned on a stand-in for a GPU, in the real child."""

    def test_out_of_memory_completes_on_the_cpu_with_the_bytes(self, desk: Desk) -> None:
        desk.start_worker(**GPU, WARPDESK_FAULTS="oom@1")
        records = [desk.wait(desk.submit()) for _ in range(2)]
        assert [doubled(desk, record) for record in records] == [[2.0, 4.0, 6.0]] * 2
        first, second = (record.provenance for record in records)
        assert first is not None
        assert second is not None
        assert first.fallback_reason is not None
        assert "needed 3221225472 bytes, free 2147483648" in first.fallback_reason
        assert [(first.backend, first.attempt), (second.backend, second.attempt)] == [("cpu", 1), ("gpu", 1)]

    def test_a_real_kernel_and_its_fallback_give_the_same_bytes(self, desk: Desk) -> None:
        desk.start_worker(
            WARPDESK_OPERATIONS="tests.workers.operations:SMA_ALONE",
            WARPDESK_DEVICE="tests.cudasim.device:EmulatedDevice",
            WARPDESK_FAULTS="oom@1",
        )
        prices = desk.array(100 + np.cumsum(np.random.default_rng(0).normal(size=5_000)))
        records = [desk.wait(desk.submit("sma", {"prices": prices}, params={"period": 14})) for _ in range(2)]
        assert [record.provenance and record.provenance.backend for record in records] == ["cpu", "gpu"]
        fallback, kernel = (
            desk.store.result(record.result) / "sma.npy" for record in records if record.result is not None
        )
        assert fallback.read_bytes() == kernel.read_bytes()

    def test_a_lost_device_costs_an_attempt_and_the_worker_replaces_itself(self, desk: Desk) -> None:
        desk.start_worker(**GPU, WARPDESK_FAULTS="lost@2/once")
        records = [desk.wait(desk.submit()) for _ in range(3)]
        assert [doubled(desk, record) for record in records] == [[2.0, 4.0, 6.0]] * 3
        assert [record.attempt for record in records] == [1, 2, 1]
        assert [record.provenance and record.provenance.backend for record in records] == ["gpu"] * 3
        report = desk.until(
            lambda: next((r for r in desk.queue.workers() if r.restarts == 1 and r.state == "ready"), None), "no report"
        )
        assert "illegal address" in report.last_fault

    def test_a_job_that_loses_the_device_twice_is_answered_by_the_cpu(self, desk: Desk) -> None:
        desk.start_worker(**GPU, WARPDESK_FAULTS="lost@1")
        record = desk.wait(desk.submit())
        assert doubled(desk, record) == [2.0, 4.0, 6.0]
        assert record.provenance is not None
        assert (record.attempt, record.provenance.backend) == (3, "cpu")
        assert record.provenance.fallback_reason == "2 attempts on the GPU ended with the worker's death"

    def test_a_job_that_insists_on_the_device_is_given_up_after_three(self, desk: Desk) -> None:
        desk.start_worker(**GPU, WARPDESK_FAULTS="lost@1")
        record = desk.wait(desk.submit(backend="gpu"))
        assert (record.state, record.attempt) == (State.FAILED, 3)
        assert record.error is not None
        assert (record.error.code, record.error.retryable) == ("device-fault", True)

    def test_a_crash_in_a_launch_is_survived(self, desk: Desk) -> None:
        desk.start_worker(**GPU, WARPDESK_FAULTS="crash@1/once")
        record = desk.wait(desk.submit())
        assert doubled(desk, record) == [2.0, 4.0, 6.0]
        assert record.attempt == 2

    def test_a_launch_that_never_returns_is_timed_out(self, desk: Desk) -> None:
        desk.start_worker(**GPU, WARPDESK_FAULTS="hang@1")
        record = desk.wait(desk.submit(timeout=0.5))
        assert record.error is not None
        assert record.error.code == "timeout"

    def test_a_device_that_breaks_at_every_start_is_given_up_for_the_cpu(self, desk: Desk) -> None:
        report = desk.start_worker(WARPDESK_DEVICE="tests.workers.device:BrokenDevice")
        assert report is not None
        assert report.device is not None
        assert report.device.backend == "cpu"
        assert report.restarts == 3
        reason = report.device.reason
        assert reason is not None
        assert reason.startswith("the worker failed to start on the GPU 3 times")
        assert "uncorrectable memory error" in reason
        record = desk.wait(desk.submit())
        assert record.provenance is not None
        assert record.provenance.fallback_reason == reason

    def test_a_gpu_job_waits_for_the_worker_that_has_one(self, desk: Desk) -> None:
        desk.start_worker(**GPU)
        desk.start_worker()
        records = [desk.wait(desk.submit(backend="gpu")) for _ in range(6)]
        assert [record.provenance and record.provenance.backend for record in records] == ["gpu"] * 6


class TestPrivacy:
    def test_secrets_are_erased_at_commit_and_nothing_private_is_in_redis(self, desk: Desk) -> None:
        desk.start_worker()
        secret = desk.array([1234567890123, 6], "int64")
        key = desk.marker("key")
        record = desk.wait(desk.submit("whisper", {"secret": secret}, params={"marker": str(key)}))
        assert record.state is State.SUCCEEDED
        desk.until(lambda: not desk.store.path(OWNER, secret).exists(), "the secret is still there")
        assert record.provenance is not None
        assert record.provenance.compute_seconds is None
        assert record.result is not None
        noisy = np.load(desk.store.result(record.result) / "noisy.npy").tolist()
        with connect(desk.url) as connection:
            kept = everything(connection)
        for private in (key.read_bytes(), key.read_bytes().hex().encode(), b"1234567890123", str(noisy[0]).encode()):
            assert private not in kept
            assert private not in desk.log().encode()

    def test_a_secret_two_jobs_read_is_erased_with_the_second(self, desk: Desk) -> None:
        secret = desk.array([5, 6], "int64")
        marker = desk.marker("key")
        params = {"marker": str(marker), "seconds": 1.0}
        first = desk.submit("whisper", {"secret": secret})
        second = desk.submit("whisper", {"secret": secret}, params=params)
        desk.start_worker()
        desk.wait(first)
        desk.until(marker.exists, "the second did not begin")
        assert desk.store.path(OWNER, secret).exists()
        assert desk.wait(second).state is State.SUCCEEDED
        desk.until(lambda: not desk.store.path(OWNER, secret).exists(), "the secret is still there")

    def test_noise_of_an_attempt_that_did_not_commit_is_deleted(self, desk: Desk) -> None:
        desk.start_worker()
        secret, key = desk.array([5, 6], "int64"), desk.marker("key")
        job_id = desk.submit("whisper", {"secret": secret}, params={"marker": str(key), "seconds": 1.0})
        desk.until(key.exists, "it did not begin")
        # Another parent took the job over while this one was cut off: attempt 1 is stale when it answers.
        assert desk.queue.retry(job_id, 1)
        with connect(desk.url) as connection:
            connection.lrem("rq:queue:warpdesk", 0, job_id)
        desk.until(lambda: f"{job_id} attempt 1" in desk.log(), "the stale attempt was not stopped")
        desk.until(lambda: desk.results() == [], "the stale attempt's noise is still there")
        record = desk.queue.get(job_id)
        assert record is not None
        assert (record.state, record.result) == (State.QUEUED, None)
        assert desk.store.path(OWNER, secret).exists()  # the next attempt needs it

    def test_a_canceled_private_job_leaves_neither_noise_nor_secret(self, desk: Desk) -> None:
        desk.start_worker()
        secret, key = desk.array([5, 6], "int64"), desk.marker("key")
        job_id = desk.submit("whisper", {"secret": secret}, params={"marker": str(key), "seconds": 60.0})
        desk.until(key.exists, "it did not begin")
        desk.queue.cancel(job_id)
        desk.until(lambda: not desk.store.path(OWNER, secret).exists(), "the secret is still there")
        assert desk.results() == []


class TestWithoutRedis:
    """The desk's own Redis of this test, which comes and goes."""

    @pytest.fixture
    def server(self, tmp_path: Path) -> Iterator[RedisServer]:
        server = RedisServer(tmp_path / "r")
        yield server
        server.stop()

    @pytest.fixture
    def away(self, server: RedisServer, tmp_path: Path) -> Iterator[Desk]:
        connection = connect(server.url)
        desk = Desk(server.url, tmp_path, JobQueue(connection), SpoolStore(tmp_path / "store"))
        yield desk
        desk.close()
        connection.close()

    def test_a_worker_waits_for_a_redis_that_is_not_there_yet(self, away: Desk, server: RedisServer) -> None:
        away.start_worker(ready=False)
        away.until(lambda: "does not answer" in away.log(), "the worker did not miss Redis")
        server.start()
        assert doubled(away, away.wait(away.submit())) == [2.0, 4.0, 6.0]

    def test_a_worker_that_waits_for_redis_can_be_stopped(self, away: Desk) -> None:
        away.start_worker(ready=False)
        away.until(lambda: "does not answer" in away.log(), "the worker did not miss Redis")
        away.workers[0].terminate()
        assert away.workers[0].wait(20) == 0

    @pytest.mark.parametrize("end", ["stopped", "killed"])
    def test_a_result_is_delivered_when_redis_comes_back(self, away: Desk, server: RedisServer, end: str) -> None:
        server.start()
        away.start_worker()
        job_id, _ = nap(away, seconds=1.0)
        time.sleep(1.1 if end == "killed" else 0)  # the append-only file is written once a second
        if end == "killed":
            assert server.pid is not None
            os.kill(server.pid, signal.SIGKILL)
        server.stop()
        away.until(lambda: any(Path(away.home, "store", "results").glob("*/result.json")) or None, "no result")
        time.sleep(1.0)
        server.start()
        record = away.wait(job_id)
        assert (record.state, record.attempt) == (State.SUCCEEDED, 1)
        assert away.workers[0].poll() is None
        assert doubled(away, away.wait(away.submit())) == [2.0, 4.0, 6.0]
        away.until(lambda: away.queue.workers(), "the worker does not report")

    def test_an_idle_worker_survives_an_outage_and_hears_cancels_again(self, away: Desk, server: RedisServer) -> None:
        server.start()
        away.start_worker()
        server.stop()
        time.sleep(2.0)
        server.start()
        job_id, child = nap(away)
        away.queue.cancel(job_id)
        away.until(lambda: not alive(child), "the child lives")
        assert away.workers[0].poll() is None


def everything(connection: "Redis") -> bytes:
    """Every key and value of the database."""
    read = {
        b"string": lambda key: connection.get(key),
        b"hash": lambda key: (
            json.dumps({k.hex(): v.hex() for k, v in connection.hgetall(key).items()}).encode()
            + b"".join(connection.hvals(key))
        ),
        b"list": lambda key: b" ".join(connection.lrange(key, 0, -1)),
        b"set": lambda key: b" ".join(connection.smembers(key)),
        b"zset": lambda key: b" ".join(connection.zrange(key, 0, -1)),
        b"stream": lambda key: repr(connection.xrange(key)).encode(),
    }
    return b"\n".join(key + b" " + read[connection.type(key)](key) for key in connection.scan_iter())
