"""On the CPU a worker computes jobs while other operations' examples were not tried yet."""

import os
import signal

from tests.workers.conftest import Desk
from warpdesk.models import State
from warpdesk_server.workers.queue.protocol import MAX_STRIKES
from warpdesk_server.workers.queue.reports import WarmUp, WorkerReport


def start(desk: Desk, gate: str, second_gate: str = os.devnull, **environment: str) -> WorkerReport:
    """Start a worker whose child tries the example of `nap`, which waits at the gate; return its report then."""
    desk.start_worker(
        ready=False,
        WARPDESK_OPERATIONS="tests.workers.operations:GATED",
        GATE=gate,
        SECOND_GATE=second_gate,
        **environment,
    )
    return at(desk, 1)


def at(desk: Desk, done: int) -> WorkerReport:
    """The worker's report once so many of its three examples were tried."""
    report: WorkerReport = desk.until(
        lambda: next((r for r in desk.queue.workers() if r.warm_up == WarmUp(done=done, of=3)), None),
        f"no worker has tried {done} examples",
    )
    return report


def test_a_job_is_computed_between_two_examples_and_its_time_begins_after_the_first(desk: Desk) -> None:
    with desk.gate("second") as second_gate:
        with desk.gate() as gate:
            report = start(desk, gate, second_gate)
            assert (report.state, report.able) == ("ready", False)
            job_id = desk.submit(timeout=5.0)
            desk.until(lambda: desk.queue.get(job_id).state is State.RUNNING, "the job was not claimed")
            claimed = desk.queue.time()
            desk.until(lambda: desk.queue.time() > claimed + 6.0, "the clock stands still")
            assert desk.queue.get(job_id).state is State.RUNNING
        assert desk.doubled(desk.wait(job_id)) == [2.0, 4.0, 6.0]
        at(desk, 2)
    desk.until(lambda: desk.queue.workers()[0].able, "the worker has not tried every example")
    assert desk.queue.get(job_id).attempt == 1


def test_a_job_that_waits_for_an_example_whose_child_dies_gets_no_strike(desk: Desk) -> None:
    with desk.gate() as gate:
        report = start(desk, gate)
        job_id = desk.submit("nap", params={"seconds": 0.0, "marker": os.devnull})
        for attempt in range(1, MAX_STRIKES + 1):
            desk.until(lambda: desk.queue.get(job_id).attempt == attempt, "the job was not claimed again")  # noqa: B023
            desk.until(lambda: at(desk, 1).child_pid != report.child_pid or attempt == 1, "no other child")  # noqa: B023
            report = at(desk, 1)
            os.kill(report.child_pid, signal.SIGKILL)
    assert desk.wait(job_id).state is State.SUCCEEDED


def test_a_cancel_of_a_job_that_waits_for_an_example_does_not_end_the_child(desk: Desk) -> None:
    with desk.gate() as gate:
        report = start(desk, gate)
        job_id = desk.submit()
        desk.until(lambda: desk.queue.get(job_id).state is State.RUNNING, "the job was not claimed")
        desk.queue.cancel(job_id)
        canceled = desk.queue.time()
        desk.until(lambda: desk.queue.time() > canceled + 3.0, "the clock stands still")
        assert desk.queue.get(job_id).state is State.CANCELED
        (later,) = desk.queue.workers()
        assert (later.child_pid, later.restarts) == (report.child_pid, 0)


def test_a_child_that_hangs_in_an_example_is_replaced(desk: Desk) -> None:
    with desk.gate() as gate:
        start(desk, gate, WARPDESK_START_SECONDS="15")
        report = desk.until(
            lambda: next((r for r in desk.queue.workers() if r.restarts), None), "the child was not replaced"
        )
    assert "said nothing for 15 s while warming up on the CPU, in nap" in report.last_fault
