"""A worker answers jobs, one after the other, and runs nothing but our operations."""

import socket
import subprocess
import sys
import time
from pathlib import Path

from rq import Queue, Worker
from rq.registry import StartedJobRegistry

from tests.conftest import ROOT
from tests.workers.conftest import OWNER, Desk
from warpdesk.models import State
from warpdesk_server.workers.queue.jobs import connect
from warpdesk_server.workers.queue.protocol import Failed


def test_jobs_are_answered_in_order_and_rq_shows_the_worker(desk: Desk) -> None:
    report = desk.start_worker()
    ids = [desk.submit(inputs={"values": desk.array([float(number)])}) for number in range(20)]
    records = [desk.wait(job_id) for job_id in ids]
    assert [desk.doubled(record) for record in records] == [[2.0 * number] for number in range(20)]
    assert [record.attempt for record in records] == [1] * 20
    assert sorted(record.started_at or 0 for record in records) == [record.started_at for record in records]

    assert report is not None
    assert report.device is not None
    assert (report.host, report.pid, report.device.backend) == (socket.gethostname(), desk.workers[0].pid, "cpu")
    with connect(desk.url) as connection:
        (rq_worker,) = Worker.all(connection)
        assert (rq_worker.name, rq_worker.pid) == (report.name, report.pid)
        # Who watches the queues learns no moment at which a job ended.
        desk.until(lambda: Worker.all(connection)[0].last_heartbeat.microsecond == 0, "its time is no whole second")
        desk.until(lambda: Worker.all(connection)[0].successful_job_count == 20, "RQ did not count the jobs")
        assert Worker.all(connection)[0].failed_job_count == 0
        assert len(StartedJobRegistry(f"warpdesk-batch-{OWNER}", connection=connection)) == 0
        assert [key for key in connection.scan_iter("rq:*") if b"job_" in key] == []
    rq = subprocess.run(
        [sys.executable, "-m", "rq.cli", "info", "--url", desk.url],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    assert "1 workers, 0 queues" in rq.stdout  # RQ shows those in which something waits or runs
    assert "20 finished, 0 failed" in rq.stdout


def test_a_deterministic_error_fails_once_without_data(desk: Desk) -> None:
    desk.start_worker()
    record = desk.wait(desk.submit("stumble", {"values": desk.array([271828.0])}))
    assert (record.state, record.attempt) == (State.FAILED, 1)
    assert record.error == Failed(code="operation-error", message="stumble failed with RuntimeError")
    assert "271828" not in desk.log()
    assert desk.results() == []
    assert desk.doubled(desk.wait(desk.submit())) == [2.0, 4.0, 6.0]  # and the child lives on


def test_only_our_one_function_runs(desk: Desk) -> None:
    desk.start_worker()
    touched = desk.home / "touched"
    with desk.gate() as gate, connect(desk.url) as connection:
        blocker, _ = desk.nap(gate=gate)
        ours = desk.submit()  # so that its list is looked at
        name = f"warpdesk-batch-{OWNER}"
        foreign = Queue(name, connection=connection, serializer="json").enqueue(
            "os.system", f"touch {touched}", at_front=True
        )
        connection.lpush(f"rq:queue:{name}", "garbage")
    assert desk.doubled(desk.wait(ours)) == [2.0, 4.0, 6.0]
    assert desk.wait(blocker).state is State.SUCCEEDED
    with connect(desk.url) as connection:
        assert foreign.id.encode() not in connection.lrange(f"rq:queue:{name}", 0, -1)
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
    modules = "warpdesk_server.workers.parent.main, warpdesk_server.kernels.catalogue"
    script = f"import sys, {modules}; print([m for m in sys.modules if m in {heavy}])"
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True)
    assert answer.stdout == "[]\n"
