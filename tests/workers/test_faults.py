"""The faulty device: each fault happens on its launch, and only once the device is armed."""

from pathlib import Path

import numpy as np
import pytest

from kernels.cuda import DeviceLost, LaunchFailed, OutOfMemory, Source
from tests.workers.device import PaperDevice
from workers.faults import Fault, FaultyDevice, parse

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
    assert parse("oom@1, lost@2/once") == (Fault("oom", 1, False), Fault("lost", 2, True))
    assert parse("") == ()


@pytest.mark.parametrize("text", ["oom", "oom@", "oom@0", "oom@x", "melt@1", "oom@1/twice"])
def test_a_fault_that_does_not_exist_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not <fault>@<launch>"):
        parse(text)


def test_a_faulty_device_tells_what_its_device_is(tmp_path: Path) -> None:
    device = faulty("", tmp_path)
    assert (device.name, device.architecture, device.multiprocessors, device.cupy) == ("paper", "sm_00", 1, None)
    assert device.times() == PaperDevice().times()
