"""The faulty device: each fault happens on its launch, and only once the device is armed."""

import time
from contextlib import nullcontext
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest

from tests.stand_ins.faults import HAPPENED, Fault, FaultyDevice, parse
from tests.workers.device import PaperDevice
from warpdesk_server.kernels.gpu import canary, chunks
from warpdesk_server.kernels.gpu.faults import CompileFailed, DeviceLost, LaunchFailed, OutOfMemory
from warpdesk_server.kernels.gpu.source import Source
from warpdesk_server.kernels.operation import Grid

SOURCE = Source(Path(__file__))


def faulty(text: str, tmp_path: Path, armed: bool = True) -> FaultyDevice:
    device = FaultyDevice(PaperDevice(), parse(text), tmp_path / "faults")
    if armed:
        device.arm()
    return device


def launch(device: FaultyDevice) -> list[float]:
    given, doubled = device.to_device(np.array([1.0, 2.0])), device.empty(2, "float64")
    device.kernel(SOURCE, "double_values")((1,), (2,), (given, doubled, np.int64(2)))
    answer: list[float] = device.to_host(doubled).tolist()
    return answer


@pytest.mark.parametrize(("text", "error"), [("oom", OutOfMemory), ("launch", LaunchFailed), ("lost", DeviceLost)])
def test_a_fault_happens_on_the_nth_launch(text: str, error: type[Exception], tmp_path: Path) -> None:
    device = faulty(f"{text}@2", tmp_path)
    assert launch(device) == [2.0, 4.0]
    with pytest.raises(error, match="double_values"):
        launch(device)


@pytest.mark.parametrize("text", ["oom", "launch"])
def test_the_context_lives_on_after_a_jobs_fault(text: str, tmp_path: Path) -> None:
    device = faulty(f"{text}@1", tmp_path)
    with pytest.raises((OutOfMemory, LaunchFailed)):
        launch(device)
    assert launch(device) == [2.0, 4.0]


def test_after_a_lost_device_every_call_fails(tmp_path: Path) -> None:
    device = faulty("lost@1", tmp_path)
    array = device.to_device(np.zeros(1))
    with pytest.raises(DeviceLost) as caught:
        launch(device)
    assert caught.value.code == 700
    for call in (
        lambda: device.to_device(array),
        lambda: device.empty(1, "f8"),
        lambda: device.zeros(1, "f8"),
        lambda: device.to_host(array),
        lambda: launch(device),
    ):
        with pytest.raises(DeviceLost):
            call()


def test_launches_before_arming_do_not_count(tmp_path: Path) -> None:
    device = faulty("oom@1", tmp_path, armed=False)
    assert launch(device) == [2.0, 4.0]
    device.arm()
    with pytest.raises(OutOfMemory, match="3221225472 bytes"):
        launch(device)


def test_once_means_once_for_every_process_of_a_home(tmp_path: Path) -> None:
    with pytest.raises(OutOfMemory):
        launch(faulty("oom@1/once", tmp_path))
    assert launch(faulty("oom@1/once", tmp_path)) == [2.0, 4.0]


def test_faults_are_a_list() -> None:
    assert parse("oom@1, lost=719:rsi@2-4/once/start") == (
        Fault("oom", 1, 1),
        Fault("lost", 2, 4, kernel="rsi", code=719, once=True, start=True),
    )
    assert parse("") == ()


@pytest.mark.parametrize("text", ["oom", "oom@", "oom@0", "oom@x", "melt@1", "oom@1/twice", "oom=2@1", "lost:@1"])
def test_a_fault_that_does_not_exist_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not <fault>\[:<kernel>\]@<n>"):
        parse(text)


def test_a_fault_of_one_kernel_counts_its_launches_alone(tmp_path: Path) -> None:
    device = faulty("launch:another@1, oom:double_values@2", tmp_path)
    assert launch(device) == [2.0, 4.0]
    with pytest.raises(OutOfMemory):
        launch(device)


def test_a_range_of_launches_fails_and_the_next_does_not(tmp_path: Path) -> None:
    device = faulty("launch@1-2", tmp_path)
    for _ in range(2):
        with pytest.raises(LaunchFailed):
            launch(device)
    assert launch(device) == [2.0, 4.0]


def test_allocations_of_jobs_are_counted_for_themselves_and_recover(tmp_path: Path) -> None:
    device = faulty("oom-alloc@2-3", tmp_path)
    canary.check(device)
    with device.memory.job():
        device.empty(1, "f8")
        for allocate in (lambda: device.zeros(1, "f8"), lambda: device.to_device(np.zeros(1))):
            with pytest.raises(OutOfMemory, match="an allocation needed 3221225472 bytes"):
                allocate()
        assert launch(device) == [2.0, 4.0]


def test_a_kernel_is_not_compiled_when_it_is_asked_for_and_the_next_time_it_is(tmp_path: Path) -> None:
    device = faulty("compile@1-2, compile:another@1-9", tmp_path)
    device.kernel(SOURCE, "canary")
    for _ in range(2):
        with pytest.raises(CompileFailed, match="double_values could not be compiled"):
            device.kernel(SOURCE, "double_values")
    assert launch(device) == [2.0, 4.0]


def test_while_a_job_runs_others_have_all_of_the_memory_and_then_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "PATIENCE", 0.03)
    device, tried = faulty("full@2", tmp_path), []

    def work(first: int, end: int) -> None:
        tried.append(end - first)
        device.empty(end - first, "f8")

    def job() -> None:
        with device.memory.job():
            chunks.run(device, Grid(8, 8), work)

    job()
    with pytest.raises(OutOfMemory, match=r"one chunk needs 8 bytes.*free are 0"):
        job()
    job()
    assert tried == [8, 1, 1, 8]
    events = [line.split()[0] for line in (tmp_path / "faults" / HAPPENED).read_text().splitlines()]
    # When the job begins; one chunk is tried twice, and others are waited for before each time.
    assert [kind for kind, _ in groupby(events)] == ["full", "waiting", "full", "waiting", "full"]


def test_each_fault_that_happens_is_told_with_its_time(tmp_path: Path) -> None:
    began = time.time()
    device = faulty("slow:another@1, compile@1, launch@2, oom-alloc@7/once", tmp_path)
    for error in (CompileFailed, None, LaunchFailed, OutOfMemory, None):
        with nullcontext() if error is None else pytest.raises(error), device.memory.job():
            launch(device)
    lines = [line.split() for line in (tmp_path / "faults" / HAPPENED).read_text().splitlines()]
    assert [kind for kind, _ in lines] == ["compile", "launch", "oom-alloc"]
    times = [began, *(float(at) for _, at in lines), time.time()]
    assert times == sorted(times)


def test_a_lost_device_has_the_error_number_it_was_given(tmp_path: Path) -> None:
    device = faulty("lost=719@1", tmp_path)
    for _ in range(2):
        with pytest.raises(DeviceLost, match="CUDA error 719") as caught:
            launch(device)
        assert caught.value.code == 719


def test_faults_from_the_start_count_what_warms_up(tmp_path: Path) -> None:
    with pytest.raises(LaunchFailed):
        launch(faulty("launch@1/start", tmp_path, armed=False))


def test_the_nth_canary_answers_wrongly_and_no_launch_of_a_job_counts(tmp_path: Path) -> None:
    device = faulty("corrupt@2, lost@2", tmp_path)
    canary.check(device)
    launch(device)
    with pytest.raises(canary.Miscomputed, match="1 of 512 known answers in words, the first at 0"):
        canary.check(device)
    canary.check(device)


def test_a_leak_stays_stuck_in_what_memory_reports(tmp_path: Path) -> None:
    device = faulty("leak@1-2", tmp_path)
    for stuck in (1 << 30, 2 << 30, 2 << 30):
        launch(device)
        report = device.memory.report()
        assert (report.used, report.held, report.stuck) == (0, stuck, stuck)


def test_a_faulty_device_tells_what_its_device_is(tmp_path: Path) -> None:
    device = faulty("", tmp_path)
    assert (device.name, device.architecture, device.multiprocessors, device.cupy) == ("paper", "sm_00", 1, None)
    assert device.times() == PaperDevice().times()
