"""The condition of a GPU follows from what children say and how they end."""

from typing import Any

import pytest

from warpdesk_server.workers.gpu.condition import Condition
from warpdesk_server.workers.pipe import Answer, Checked, FaultKind, KernelFault, Lost
from warpdesk_server.workers.queue.protocol import Failed
from warpdesk_server.workers.queue.reports import (
    DeviceMemory,
    DeviceReport,
    FailedExample,
    GpuFinding,
    GpuReading,
    GpuReport,
)

H200 = DeviceReport(backend="gpu", name="H200", uuid="GPU-1")
GIB = 1 << 30


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def condition(clock: Clock) -> Condition:
    made = Condition(cool_down=30, canary_seconds=60, canary_deadline=1.5, clock=clock)
    made.opened(H200)
    return made


def answer(job: str, *faults: tuple[FaultKind, str], kernels: tuple[str, ...] = (), **fields: Any) -> Answer:
    outcome = Failed(code="operation-error", message="not looked at here")
    found = tuple(KernelFault(kind=kind, kernel=kernel, message=f"{kernel} {kind}") for kind, kernel in faults)
    return Answer(job=job, outcomes=(outcome,), faults=found, kernels=kernels, **fields)


def state(condition: Condition, **details: Any) -> tuple[str, str | None]:
    report = condition.report("serving", **details)
    assert report is not None
    return report.state, report.reason


def memory(stuck: int) -> DeviceMemory:
    return DeviceMemory(used=0, held=stuck, limit=16 * GIB, stuck=stuck, peak=0)


def test_nothing_is_told_before_anything_is_known() -> None:
    assert Condition().report("starting") is None
    assert Condition().report("serving") is None


def test_a_gpu_that_was_opened_is_healthy_and_bears_its_name(condition: Condition) -> None:
    report = condition.report("serving")
    assert report is not None
    assert (report.state, report.reason, report.name, report.uuid) == ("healthy", None, "H200", "GPU-1")


def test_out_of_memory_opens_nothing_however_often(condition: Condition) -> None:
    for number in range(100):
        condition.answered(answer(f"job_{number}", ("out-of-memory", "rsi")))
    assert condition.refused() == {}
    assert state(condition) == ("healthy", None)
    assert condition.faults == {"out-of-memory": 100}


def test_a_kernel_refused_for_three_jobs_is_kept_off_and_closed_again_by_one_job_after_the_canary(
    condition: Condition, clock: Clock
) -> None:
    for number in range(3):
        condition.answered(answer(f"job_{number}", ("launch", "rsi")))
    assert condition.refused() == {"rsi": "rsi launch"}
    assert state(condition) == ("degraded", "rsi is kept off the GPU: rsi launch")
    assert not condition.canary_wanted()
    clock.now += 30
    assert condition.refused() == {}
    assert condition.canary_wanted()
    condition.answered(answer("other", kernels=("ema",), canary_at=clock.now))
    assert not condition.canary_wanted()
    assert state(condition)[0] == "degraded"
    condition.answered(answer("first", kernels=("rsi",), canary_at=clock.now))
    assert state(condition) == ("healthy", None)


def test_a_kernel_that_fails_when_it_is_tried_again_is_kept_off_for_longer(condition: Condition, clock: Clock) -> None:
    for number in range(3):
        condition.answered(answer(f"job_{number}", ("launch", "rsi")))
    clock.now += 30
    condition.answered(answer("first", ("launch", "rsi")))
    clock.now += 59
    assert condition.refused() == {"rsi": "rsi launch"}
    clock.now += 1
    assert condition.refused() == {}


def test_one_job_that_is_refused_again_and_again_is_its_own_fault(condition: Condition) -> None:
    for _ in range(10):
        condition.answered(answer("odd", ("launch", "rsi")))
    assert condition.refused() == {}


def test_three_jobs_that_lose_the_device_within_ten_minutes_put_it_in_quarantine(
    condition: Condition, clock: Clock
) -> None:
    for job in ("a", "a", "b"):
        condition.lost(job, Lost(message="error 700"))
        assert condition.no_gpu() is None
        clock.now += 200
    condition.lost("c", Lost(message="error 719"))
    assert condition.no_gpu() == "the GPU is quarantined: error 719"
    report = condition.report("serving")
    assert report is not None
    assert (report.state, report.since, report.next_probe) == ("quarantined", clock.now, clock.now + 30)


def test_losses_further_apart_do_not(condition: Condition, clock: Clock) -> None:
    for job in ("a", "b", "c", "d"):
        condition.lost(job, Lost(message="error 700"))
        clock.now += 301
    assert condition.no_gpu() is None


def test_a_quarantine_ends_when_a_trial_opens_the_gpu_and_doubles_when_it_fails(
    condition: Condition, clock: Clock
) -> None:
    condition.lost("a", Lost(message="it computes wrongly", wrong=True))
    assert not condition.to_be_tried()
    clock.now += 30
    assert condition.to_be_tried()
    condition.trial_failed("the device was lost while looking for a GPU")
    clock.now += 59
    assert not condition.to_be_tried()
    clock.now += 1
    assert condition.to_be_tried()
    condition.opened(H200)
    assert state(condition) == ("healthy", None)


def test_a_wrong_answer_to_the_canary_is_enough(condition: Condition) -> None:
    condition.lost("idle", Lost(message="H200 computes wrongly", wrong=True))
    assert state(condition) == ("quarantined", "H200 computes wrongly")
    assert condition.faults == {"wrong-answer": 1}


def test_the_child_of_a_quarantined_gpu_does_not_make_it_absent(condition: Condition) -> None:
    condition.lost("idle", Lost(message="H200 computes wrongly", wrong=True))
    condition.opened(DeviceReport(backend="cpu", name="CPU", reason=condition.no_gpu()))
    assert state(condition) == ("quarantined", "H200 computes wrongly")


def test_an_example_that_cost_the_device_is_skipped_and_keeps_jobs_like_it_off(
    condition: Condition, clock: Clock
) -> None:
    condition.start_failed("lost in sma (float32)", Lost(message="error 700"), "sma (float32)")
    assert condition.skip() == {"sma (float32)": "lost in sma (float32)"}
    assert condition.example_open("sma (float32)") == "lost in sma (float32)"
    assert condition.no_gpu() is None
    assert state(condition)[0] == "degraded"
    clock.now += 30
    assert condition.example_open("sma (float32)") is None
    assert condition.canary_wanted()
    condition.example_lost("sma (float32)", "job", "lost again")
    assert condition.example_open("sma (float32)") == "lost again"
    clock.now += 60
    condition.example_answered("sma (float32)")
    assert condition.skip() == {}


def test_three_starts_that_fail_put_the_gpu_in_quarantine(condition: Condition) -> None:
    for _ in range(3):
        assert condition.no_gpu() is None
        condition.start_failed("killed while looking for a GPU", None, None)
    assert condition.no_gpu() == "the GPU is quarantined: killed while looking for a GPU"


@pytest.mark.parametrize(
    ("fault", "found"), [(None, "absent"), (100, "absent"), (35, "absent"), (999, "quarantined"), (-1, "quarantined")]
)
def test_a_gpu_that_cannot_be_opened_is_absent_or_tried_again_by_the_errors_number(
    fault: int | None, found: str
) -> None:
    condition = Condition()
    condition.opened(DeviceReport(backend="cpu", name="CPU", reason="no device", fault=fault))
    assert state(condition) == (found, "no device")


def test_memory_that_stays_stuck_for_three_jobs_is_a_reason_for_a_new_process(condition: Condition) -> None:
    for number in range(3):
        assert condition.recycling() is None
        condition.answered(answer(f"job_{number}", memory=memory(stuck=GIB)))
    assert state(condition) == ("degraded", f"{GIB} bytes of device memory are stuck")
    assert condition.recycling() == f"{GIB} bytes of device memory stayed stuck after 3 jobs"
    condition.opened(H200)
    assert condition.recycling() is None
    assert state(condition) == ("healthy", None)


def test_memory_that_went_back_was_not_stuck(condition: Condition) -> None:
    for stuck in (GIB, GIB, 0, GIB, GIB):
        condition.answered(answer("job", memory=memory(stuck)))
    assert condition.recycling() is None


def test_what_the_process_has_outside_its_pool_follows_from_what_the_driver_says(condition: Condition) -> None:
    def outside(process: int | None) -> int | None:
        reading = GpuReading(uuid="GPU-1", name="H200", process_memory=process)
        report = condition.report("serving", driver=GpuReport(state="healthy", reading=reading))
        assert report is not None
        assert report.memory is not None
        return report.memory.outside

    condition.answered(answer("job", memory=memory(stuck=GIB)))
    assert [outside(process) for process in (None, 3 * GIB, GIB // 2)] == [None, 2 * GIB, 0]


def test_a_child_that_says_nothing_while_it_waits_for_work_is_told(condition: Condition, clock: Clock) -> None:
    condition.note_report(Checked(canary_at=clock.now))
    clock.now += 182
    condition.listened()
    silent = "its process has said nothing for 182 s, not even that it asks the canary"
    assert state(condition) == ("degraded", silent)
    condition.note_report(Checked(canary_at=clock.now))
    assert state(condition) == ("healthy", None)


def test_a_parent_that_has_not_listened_takes_no_child_for_silent(condition: Condition, clock: Clock) -> None:
    condition.note_report(Checked(canary_at=clock.now))
    clock.now += 600  # in which it waited for Redis
    assert state(condition) == ("healthy", None)


def test_a_long_job_is_no_silence(condition: Condition, clock: Clock) -> None:
    condition.note_report(Checked(canary_at=clock.now))
    condition.listened()
    start, clock.now = clock.now, clock.now + 600
    condition.answered(answer("job", canary_at=start))
    assert state(condition) == ("healthy", None)
    condition.listened()
    assert state(condition) == ("healthy", None)


def test_the_canary_is_asked_before_a_job_that_comes_after_a_pause(condition: Condition, clock: Clock) -> None:
    assert not condition.canary_wanted()  # it has just been opened
    clock.now += 1.1
    assert condition.canary_wanted()
    condition.note_report(Checked(canary_at=clock.now))
    assert not condition.canary_wanted()
    clock.now += 1.1
    condition.answered(answer("on the CPU"))
    assert condition.canary_wanted()
    condition.answered(answer("on the GPU", kernels=("rsi",)))
    assert not condition.canary_wanted()


def test_a_canary_that_cannot_be_asked_is_told_until_it_answers(condition: Condition, clock: Clock) -> None:
    condition.note_report(Checked(trouble="needed 4096 bytes"))
    assert state(condition) == ("degraded", "the canary could not be asked: needed 4096 bytes")
    condition.note_report(Checked(canary_at=clock.now))
    assert state(condition) == ("healthy", None)


def test_a_gpu_that_hangs_in_the_canary_three_times_within_ten_minutes_is_quarantined(
    condition: Condition, clock: Clock
) -> None:
    for _ in range(3):
        assert condition.no_gpu() is None
        condition.hung("no answer")
        assert condition.report("gone", why="no answer") is not None
        clock.now += 1
    assert condition.no_gpu() == "the GPU is quarantined: no answer"
    assert condition.faults == {"hang": 3}


def test_a_suspected_gpu_that_cannot_be_opened_is_quarantined_at_once(condition: Condition) -> None:
    condition.suspect("a job was canceled in a call")
    assert (condition.suspected, condition.no_gpu(), condition.faults) == (True, None, {})
    condition.start_failed("it said nothing for 10 s", None, None)
    why = "it said nothing for 10 s, after a job was canceled in a call"
    assert condition.no_gpu() == f"the GPU is quarantined: {why}"
    assert not condition.suspected


def test_no_answer_to_the_canary_is_a_suspicion_too(condition: Condition) -> None:
    condition.hung("no answer")
    assert condition.no_gpu() is None
    condition.start_failed("it said nothing for 10 s", None, None)
    assert condition.quarantined


def test_a_lost_gpu_that_cannot_be_opened_again_is_quarantined_at_once(condition: Condition) -> None:
    condition.lost("a", Lost(message="an illegal address"))
    assert (condition.suspected, condition.quarantined) == (True, False)
    condition.start_failed("it said nothing for 10 s", None, None)
    why = "it said nothing for 10 s, after the device was lost (an illegal address)"
    assert condition.no_gpu() == f"the GPU is quarantined: {why}"


def test_a_gpu_whose_opening_hangs_is_quarantined_at_once_and_one_whose_opening_fails_is_not(
    condition: Condition,
) -> None:
    condition.start_failed("ended while looking for a GPU", None, None)
    assert not condition.quarantined
    condition.start_failed("it said nothing for 60 s", None, None, hung=True)
    assert condition.no_gpu() == "the GPU is quarantined: it said nothing for 60 s"


def test_a_suspicion_ends_when_a_child_has_heard_the_canary(condition: Condition) -> None:
    for _ in range(10):
        condition.suspect("a job was canceled in a call")
        condition.cleared()
    condition.start_failed("ended", None, None)
    assert condition.no_gpu() is None
    assert condition.faults == {"start": 1}


def test_three_different_jobs_on_the_gpu_that_time_out_within_ten_minutes_quarantine_it(condition: Condition) -> None:
    for job in ("a", "a", "a", "b"):
        condition.timed_out(job, "longer than its 2 s", stuck=1.9, ran=2.0)
        assert condition.no_gpu() is None
    assert state(condition) == ("healthy", None)
    condition.timed_out("c", "longer than its 2 s", stuck=1.9, ran=2.0)
    assert state(condition) == ("quarantined", "longer than its 2 s")
    assert condition.faults == {"timeout": 5}


@pytest.mark.parametrize(("stuck", "ran"), [(299.0, 600.0), (1.4, 1.5)])
def test_jobs_of_many_calls_or_of_little_time_that_time_out_are_long_and_no_fault(
    condition: Condition, stuck: float, ran: float
) -> None:
    for job in "abcdef":
        condition.timed_out(job, "longer than its time", stuck, ran)
    assert state(condition) == ("healthy", None)
    assert condition.faults == {}


def test_the_driver_has_a_say(condition: Condition) -> None:
    def driver(level: Any) -> GpuReport:
        return GpuReport(state=level, findings=(GpuFinding(state=level, reason="Xid 79", remedy="restart"),))

    found = {level: state(condition, driver=driver(level)) for level in ("healthy", "unknown", "degraded", "drain")}
    assert found == {
        "healthy": ("healthy", None),
        "unknown": ("healthy", None),
        "degraded": ("degraded", "Xid 79"),
        "drain": ("quarantined", "Xid 79"),
    }


def test_a_child_that_ends_or_starts_is_told(condition: Condition) -> None:
    condition.lost("job", Lost(message="error 700"))
    why = "the device was lost (error 700)"
    gone, starting = condition.report("gone", why=why), condition.report("starting", why=why)
    condition.opened(H200)
    replaced = condition.report("gone", why="it was recycled")
    states = [(report.state, report.reason) for report in (gone, starting, replaced) if report is not None]
    assert states == [("lost", "error 700"), ("restarting", why), ("restarting", "it was recycled")]


def test_failed_examples_degrade_a_gpu(condition: Condition) -> None:
    failed = FailedExample(operation="sma", backend="gpu", error="CompileFailed", message="no NVRTC")
    assert state(condition, failed=(failed,)) == ("degraded", "1 example failed on the GPU")


def test_another_gpu_starts_with_a_clean_sheet(condition: Condition) -> None:
    for number in range(3):
        condition.answered(answer(f"job_{number}", ("launch", "rsi")))
    condition.opened(H200.model_copy(update={"uuid": "GPU-2"}))
    assert condition.refused() == {}
