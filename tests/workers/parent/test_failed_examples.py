"""A worker tells which operations failed their example, and serves the others."""

from tests.workers.conftest import Desk
from warpdesk.models import State
from warpdesk_server.workers.queue.reports import FailedExample

UNCOMPILED = {"WARPDESK_DEVICE": "tests.workers.device:UncompiledDevice"}


def test_a_worker_names_the_operations_that_failed_and_serves_the_others(desk: Desk) -> None:
    report = desk.start_worker()
    assert report is not None
    failures = {failure.operation: failure for failure in report.failed_examples}
    assert failures.keys() == {"stumble", "hoard"}
    assert failures["stumble"] == FailedExample(
        operation="stumble", backend="cpu", error="RuntimeError", message="the caller's number is 1.0"
    )
    assert "MemoryError" in failures["hoard"].error
    assert "TiB" in failures["hoard"].message
    assert desk.doubled(desk.wait(desk.submit())) == [2.0, 4.0, 6.0]


def test_an_operation_that_answers_a_job_is_no_longer_told_as_failed(desk: Desk) -> None:
    report = desk.start_worker(WARPDESK_OPERATIONS="tests.workers.operations:FUSSY")
    assert report is not None
    (failure,) = report.failed_examples
    assert (failure.operation, failure.error, failure.message) == ("fuss", "ValueError", "this is not to my liking")
    desk.wait(desk.submit())
    assert desk.wait(desk.submit("fuss", params={"pleased": False})).state is State.FAILED
    (later,) = desk.queue.workers()
    assert later.failed_examples == (failure,)
    assert desk.wait(desk.submit("fuss", params={"pleased": True})).state is State.SUCCEEDED
    desk.until(lambda: desk.queue.workers()[0].failed_examples == (), "the worker still tells a failure")


def test_a_variant_is_told_as_failed_until_a_job_of_its_choices_and_dtypes_is_answered(desk: Desk) -> None:
    report = desk.start_worker(
        WARPDESK_OPERATIONS="tests.workers.operations:WAVERING", WARPDESK_DEVICE="tests.workers.device:PaperDevice"
    )
    assert report is not None
    (failure,) = report.failed_examples
    assert failure.variant == "mood bad, times 3, float32"
    assert (failure.choices, failure.dtypes) == ({"mood": "bad"}, {"values": "float32"})

    def answered(mood: str, dtype: str) -> None:
        inputs = {"values": desk.array([7.0], dtype)}
        assert desk.wait(desk.submit("waver", inputs, params={"mood": mood})).state is State.SUCCEEDED
        sent = desk.queue.workers()[0].reported_at
        desk.until(lambda: desk.queue.workers()[0].reported_at > sent, "the worker did not report again")

    answered("bad", "float64")
    answered("good", "float32")
    assert desk.queue.workers()[0].failed_examples == (failure,)
    answered("bad", "float32")
    desk.until(lambda: desk.queue.workers()[0].failed_examples == (), "the worker still tells a failure")


def test_a_job_that_the_cpu_answered_does_not_make_the_gpu_well(desk: Desk) -> None:
    report = desk.start_worker(**UNCOMPILED)
    assert report is not None
    failures = {failure.operation: failure for failure in report.failed_examples}
    assert (failures["double"].backend, failures["double"].error, failures["double"].fallback) == (
        "gpu",
        "CompileFailed",
        True,
    )
    record = desk.wait(desk.submit())
    assert record.provenance is not None
    assert (record.provenance.backend, record.provenance.fallback_reason) == ("cpu", failures["double"].message)
    sent = report.reported_at
    later = desk.until(
        lambda: next((r for r in desk.queue.workers() if r.reported_at > sent and r.state == "ready"), None),
        "the worker did not report again",
    )
    assert "double" in {failure.operation for failure in later.failed_examples}


def test_a_worker_on_which_nothing_works_takes_no_job_and_tries_again(desk: Desk) -> None:
    desk.start_worker(ready=False, WARPDESK_OPERATIONS="tests.workers.operations:NOTHING_WORKS")
    job_id = desk.submit("stumble")
    report = desk.until(
        lambda: next((r for r in desk.queue.workers() if r.restarts >= 2), None), "the worker did not try again"
    )
    assert report.state == "restarting"
    assert {failure.operation for failure in report.failed_examples} == {"stumble", "hoard"}
    assert report.last_fault.startswith("every operation failed its example, stumble with RuntimeError: ")
    record = desk.queue.get(job_id)
    assert record is not None
    assert record.state is State.QUEUED
