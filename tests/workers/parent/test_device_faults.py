"""Faults of a GPU, planned on a stand-in for one, in a real worker."""

import numpy as np

from tests.workers.conftest import Desk
from warpdesk.models import State

GPU = {"WARPDESK_DEVICE": "tests.workers.device:PaperDevice"}


def test_out_of_memory_completes_on_the_cpu_with_the_bytes(desk: Desk) -> None:
    desk.start_worker(**GPU, STAND_IN_FAULTS="oom@1")
    records = [desk.wait(desk.submit()) for _ in range(2)]
    assert [desk.doubled(record) for record in records] == [[2.0, 4.0, 6.0]] * 2
    first, second = (record.provenance for record in records)
    assert first is not None
    assert second is not None
    assert first.fallback_reason is not None
    assert "needed 3221225472 bytes, free 2147483648" in first.fallback_reason
    assert [(first.backend, first.attempt), (second.backend, second.attempt)] == [("cpu", 1), ("gpu", 1)]


def test_a_real_kernel_and_its_fallback_give_the_same_bytes(desk: Desk) -> None:
    desk.start_worker(
        WARPDESK_OPERATIONS="tests.workers.operations:SMA_ALONE",
        WARPDESK_DEVICE="tests.cudasim.device:EmulatedDevice",
        STAND_IN_FAULTS="oom@1-2",
    )
    prices = desk.array(100 + np.cumsum(np.random.default_rng(0).normal(size=5_000)))
    records = [desk.wait(desk.submit("sma", {"prices": prices}, params={"period": 14})) for _ in range(2)]
    assert [record.provenance and record.provenance.backend for record in records] == ["cpu", "gpu"]
    fallback, kernel = (desk.store.result(record.result) / "sma.npy" for record in records if record.result is not None)
    assert fallback.read_bytes() == kernel.read_bytes()


def test_a_lost_device_costs_an_attempt_and_the_worker_replaces_itself(desk: Desk) -> None:
    desk.start_worker(**GPU, STAND_IN_FAULTS="lost@2/once")
    records = [desk.wait(desk.submit()) for _ in range(3)]
    assert [desk.doubled(record) for record in records] == [[2.0, 4.0, 6.0]] * 3
    assert [record.attempt for record in records] == [1, 2, 1]
    assert [record.provenance and record.provenance.backend for record in records] == ["gpu"] * 3
    report = desk.until(
        lambda: next((r for r in desk.queue.workers() if r.restarts == 1 and r.state == "ready"), None), "no report"
    )
    assert "illegal address" in report.last_fault


def test_a_job_that_loses_the_device_twice_is_answered_by_the_cpu(desk: Desk) -> None:
    desk.start_worker(**GPU, STAND_IN_FAULTS="lost@1")
    record = desk.wait(desk.submit())
    assert desk.doubled(record) == [2.0, 4.0, 6.0]
    assert record.provenance is not None
    assert (record.attempt, record.provenance.backend) == (3, "cpu")
    assert record.provenance.fallback_reason == "2 attempts on the GPU ended with the worker's death"


def test_a_job_that_insists_on_the_device_is_given_up_after_three(desk: Desk) -> None:
    desk.start_worker(**GPU, STAND_IN_FAULTS="lost@1")
    record = desk.wait(desk.submit(backend="gpu"))
    assert (record.state, record.attempt) == (State.FAILED, 3)
    assert record.error is not None
    assert (record.error.code, record.error.retryable) == ("device-fault", True)


def test_a_crash_in_a_launch_is_survived(desk: Desk) -> None:
    desk.start_worker(**GPU, STAND_IN_FAULTS="crash@1/once")
    record = desk.wait(desk.submit())
    assert desk.doubled(record) == [2.0, 4.0, 6.0]
    assert record.attempt == 2


def test_a_launch_that_never_returns_is_timed_out(desk: Desk) -> None:
    desk.start_worker(**GPU, STAND_IN_FAULTS="hang@1")
    record = desk.wait(desk.submit(timeout=2.0))
    assert record.error is not None
    assert record.error.code == "timeout"


def test_a_device_that_breaks_at_every_start_is_quarantined_and_jobs_run_on_the_cpu(desk: Desk) -> None:
    report = desk.start_worker(WARPDESK_DEVICE="tests.workers.device:BrokenDevice")
    assert report is not None
    assert report.device is not None
    assert (report.device.backend, report.restarts) == ("cpu", 3)
    reason = "the device was lost (the first copy hit an uncorrectable memory error) while looking for a GPU"
    assert report.device.reason == f"the GPU is quarantined: {reason}"
    assert report.gpu is not None
    assert (report.gpu.state, report.gpu.reason, report.gpu.faults) == ("quarantined", reason, {"start": 3})
    assert report.gpu.next_probe is not None
    assert report.gpu.next_probe > report.gpu.since
    record = desk.wait(desk.submit())
    assert record.provenance is not None
    assert record.provenance.fallback_reason == f"the GPU is quarantined: {reason}"


def test_a_driver_that_kills_who_looks_for_a_device_is_left_alone(desk: Desk) -> None:
    report = desk.start_worker(WARPDESK_DEVICE="tests.workers.device:deadly")
    assert report is not None
    assert report.device is not None
    assert (report.device.backend, report.restarts) == ("cpu", 3)
    assert report.gpu is not None
    assert (report.gpu.state, report.gpu.reason) == (
        "quarantined",
        "the worker process was ended by signal 9 (SIGKILL) while looking for a GPU",
    )


def test_a_gpu_job_waits_for_the_worker_that_has_one(desk: Desk) -> None:
    desk.start_worker(**GPU)
    desk.start_worker()
    records = [desk.wait(desk.submit(backend="gpu")) for _ in range(6)]
    assert [record.provenance and record.provenance.backend for record in records] == ["gpu"] * 6
