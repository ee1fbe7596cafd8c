"""A watched device notes what a job launched and what failed, and refuses kernels whose breaker is open."""

import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.stand_ins.faults import FaultyDevice, parse
from tests.workers.device import PaperDevice, UncompiledDevice
from warpdesk_server.kernels.gpu.faults import DeviceLost, LaunchFailed, OutOfMemory
from warpdesk_server.kernels.gpu.source import Source
from warpdesk_server.workers.calls import Calls, shared
from warpdesk_server.workers.child.backend import RECOVERABLE
from warpdesk_server.workers.child.watched import BreakerOpen, WatchedDevice
from warpdesk_server.workers.pipe import KernelFault

SOURCE = Source(Path(__file__))


def calls() -> Calls:
    descriptor = shared()
    made = Calls(descriptor)
    os.close(descriptor)
    return made


def watched(faults: str = "", device: PaperDevice | None = None, current_call: Calls | None = None) -> WatchedDevice:
    faulty = FaultyDevice(device or PaperDevice(), parse(faults))
    faulty.arm()
    return WatchedDevice(faulty, current_call or calls())


def launch(device: WatchedDevice) -> None:
    given, doubled = device.to_device(np.array([1.0, 2.0])), device.empty(2, "float64")
    device.kernel(SOURCE, "double_values")((1,), (2,), (given, doubled, np.int64(2)))
    device.to_host(doubled)


def noted(device: WatchedDevice) -> list[tuple[str, str]]:
    return [(fault.kind, fault.kernel) for fault in device.faults]


def test_what_was_launched_is_noted_until_the_next_job_begins() -> None:
    device = watched()
    launch(device)
    assert (device.launched, device.faults) == ({"double_values"}, [])
    device.begin({})
    assert device.launched == set()


class AskingDevice(PaperDevice):
    """It looks whether its calls are seen."""

    def __init__(self, current_call: Calls) -> None:
        self.current_call = current_call
        self.found: list[bool] = []

    def to_device(self, array: np.ndarray) -> np.ndarray:
        self.found.append(self.current_call.seconds() is not None)
        return np.array(array)


def test_a_call_is_seen_while_it_runs_and_no_longer_also_where_it_fails() -> None:
    current_call = calls()
    inner = AskingDevice(current_call)
    device = watched("launch@1", inner, current_call)
    with pytest.raises(LaunchFailed):
        launch(device)
    assert (inner.found, current_call.seconds()) == ([True], None)


def test_of_several_calls_the_oldest_is_seen() -> None:
    current_call = calls()
    began, done = threading.Event(), threading.Event()

    def call() -> None:
        call = current_call.begin(3600)
        began.set()
        done.wait()
        current_call.end(call)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    began.wait()
    older = current_call.seconds()
    second = current_call.begin(3600)
    newer = current_call.seconds()
    assert older is not None
    assert newer is not None
    assert newer >= older
    current_call.end(second)
    still = current_call.seconds()
    assert still is not None
    assert still >= newer
    done.set()
    thread.join()
    assert current_call.seconds() is None


def test_a_call_is_late_when_it_takes_longer_than_it_may_and_did_so_a_moment_ago() -> None:
    current_call = calls()
    call = current_call.begin(0)
    assert not current_call.late()  # the machine may have stood still
    time.sleep(0.2)
    assert current_call.late()
    current_call.end(call)
    assert not current_call.late()


def test_of_several_calls_the_one_that_is_due_first_is_late() -> None:
    current_call = calls()
    current_call.begin(3600)
    time.sleep(0.5)
    due = current_call.begin(0)  # of another thread, or within the first
    current_call.late()
    time.sleep(0.2)
    assert current_call.late()
    elapsed = current_call.seconds()
    assert elapsed is not None
    current_call.end(due)
    longer = current_call.seconds()
    assert longer is not None
    assert longer > elapsed + 0.4  # its own time was told, not that of the first
    assert not current_call.late()


class Patient(Calls):
    """It keeps what calls were given."""

    def __init__(self) -> None:
        descriptor = shared()
        super().__init__(descriptor)
        os.close(descriptor)
        self.given: list[float] = []

    def begin(self, patience: float) -> int:
        self.given.append(patience)
        return super().begin(patience)


def test_a_call_of_a_larger_job_may_take_longer_and_so_may_one_that_compiles() -> None:
    current_call = Patient()
    device = watched(current_call=current_call)
    device.begin({}, work=1.0)
    device.to_device(np.ones(1))
    device.begin({}, work=1e10)
    device.to_device(np.ones(1))
    device.kernel(SOURCE, "double_values")
    device.kernel(SOURCE, "double_values")
    device.kernel(Source(Path(__file__), {"REAL": "float"}), "double_values")
    device.expect(0.01)
    device.to_device(np.ones(1))
    device.expect(math.inf)  # a step of a plan of which nothing is predicted
    device.to_device(np.ones(1))
    small, large, load, again, other, expected, whole = current_call.given
    assert small < 1.5  # and is told within two seconds
    assert large == again == pytest.approx(small + 100)
    assert load == other >= 60
    assert expected == pytest.approx(small + 0.1)
    assert whole == large


class Waiting(PaperDevice):
    """It looks, wherever it may wait for the device, whether that is seen."""

    def __init__(self, current_call: Calls) -> None:
        self.current_call = current_call
        self.found: list[str] = []

    def look(self, where: str) -> None:
        assert self.current_call.seconds() is not None, where
        self.found.append(where)

    @contextmanager
    def lane(self, index: int) -> Iterator[None]:  # noqa: ARG002
        self.look("in")
        yield
        self.look("out")

    def library(self, work: Callable[[], Any], name: str) -> Any:
        self.look(name)
        return work()

    def forget(self) -> None:
        self.look("forget")


def test_all_that_may_wait_for_the_device_is_a_call_and_what_a_job_does_in_a_lane_is_none() -> None:
    current_call = calls()
    inner = Waiting(current_call)
    device = WatchedDevice(inner, current_call)
    with device.lane(1):
        assert current_call.seconds() is None
        assert device.library(lambda: device.to_device(np.ones(2)).sum(), "cublas") == 2.0  # a call within a call
    with pytest.raises(ValueError, match="of the lane"), device.lane(1):
        raise ValueError("of the lane")
    device.forget()
    assert (inner.found, current_call.seconds()) == (["in", "cublas", "out", "in", "forget"], None)


@pytest.mark.parametrize(
    ("faults", "error", "kind"), [("launch@1", LaunchFailed, "launch"), ("oom@1", OutOfMemory, "out-of-memory")]
)
def test_a_fault_of_a_launch_is_noted_with_its_kernel(faults: str, error: type[Exception], kind: str) -> None:
    device = watched(faults)
    with pytest.raises(error):
        launch(device)
    assert noted(device) == [(kind, "double_values")]
    assert device.launched == set()


def test_a_fault_of_an_allocation_is_no_kernels() -> None:
    device = watched("oom-alloc@1")
    with pytest.raises(OutOfMemory), device.memory.job():
        launch(device)
    assert noted(device) == [("out-of-memory", "")]


def test_a_kernel_that_cannot_be_compiled_is_noted() -> None:
    device = watched(device=UncompiledDevice())
    with pytest.raises(RECOVERABLE):
        launch(device)
    assert device.faults == [KernelFault(kind="compile", kernel="double_values", message="Failed to find CUDA headers")]


def test_a_lost_device_is_not_noted_since_it_ends_the_process() -> None:
    device = watched("lost@1")
    with pytest.raises(DeviceLost) as caught:
        launch(device)
    assert (noted(device), caught.value.kernel) == ([], "double_values")


def test_a_kernel_whose_breaker_is_open_is_refused_and_the_job_may_fall_back() -> None:
    device = watched()
    device.begin({"double_values": "refused for three jobs"})
    with pytest.raises(BreakerOpen, match="double_values is kept off the GPU: refused for three jobs") as caught:
        launch(device)
    assert isinstance(caught.value, RECOVERABLE)
    assert noted(device) == [("kept-off", "double_values")]


def test_what_a_device_is_and_offers_beyond_the_contract_is_passed_on() -> None:
    device, paper = watched(), PaperDevice()
    assert (device.name, device.multiprocessors, device.lanes) == (paper.name, paper.multiprocessors, paper.lanes)
    device.forget()
    assert device.forgotten == 1
