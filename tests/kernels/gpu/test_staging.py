"""Copies between host and device are whole at any size, by any number of cores, and leave nothing where they fail."""

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.kernels.gpu.cupy_on_cpu import POISON, CUDARuntimeError, Machine, pretend
from warpdesk_server.kernels.gpu import staging
from warpdesk_server.kernels.gpu.contract import Device
from warpdesk_server.kernels.gpu.cupy_device import CupyDevice, open_device
from warpdesk_server.kernels.gpu.faults import DeviceLost, LaunchFailed

PIECE = 4096  # in this file: many pieces of small arrays


def opened(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cores: int, index: int = 0, **facts: Any
) -> tuple[CupyDevice, Machine]:
    machine = pretend(monkeypatch, tmp_path, **{"memory": 8 << 20, **facts})
    monkeypatch.setattr(staging, "PIECE", PIECE)
    monkeypatch.setattr("warpdesk_server.kernels.gpu.cupy_device.cores", lambda _: cores)
    device = open_device(index)
    machine.pinned.clear()
    return device, machine


def at_once(cores: int) -> Callable[[], None]:
    """Let the first copies of so many threads wait for each other: so each has one, before another has all."""
    barrier, idents = threading.Barrier(cores), set()

    def wait() -> None:
        if threading.get_ident() not in idents:
            idents.add(threading.get_ident())
            barrier.wait(20)

    return wait


def left(machine: Machine) -> int:
    """Bytes in the buffers that a copy left there: neither overwritten nor as they were at first."""
    return sum(int(np.count_nonzero((buffer != 0) & (buffer != POISON))) for buffer in machine.pinned)


@pytest.mark.parametrize(
    ("processors", "lanes", "expected"), [(1, 2, 1), (2, 2, 1), (3, 2, 1), (4, 2, 2), (16, 2, 4), (64, 2, 4), (3, 1, 3)]
)
def test_lanes_share_the_processors_and_a_few_are_enough_for_each(
    monkeypatch: pytest.MonkeyPatch, processors: int, lanes: int, expected: int
) -> None:
    monkeypatch.setattr("numba.config.NUMBA_NUM_THREADS", processors)
    assert staging.cores(lanes) == expected


@pytest.mark.parametrize(("cores", "pinnable"), [(1, True), (1, False), (2, True), (4, True), (4, False)])
def test_arrays_of_any_size_are_whole_whatever_the_cores(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cores: int, pinnable: bool
) -> None:
    device, machine = opened(monkeypatch, tmp_path, cores, pinnable=pinnable)
    for size in (0, 1, PIECE, PIECE + 1, 3 * PIECE, 23 * PIECE + 5):
        given = np.random.default_rng(size).integers(0, 256, size, np.uint8)
        array = device.to_device(given)
        kept = given.copy()
        given[:] = 0  # the caller may do what it likes with it
        np.testing.assert_array_equal(device.to_host(array), kept)
        np.testing.assert_array_equal(device.to_host(array[size // 3 :: 2]), kept[size // 3 :: 2])
    assert len(machine.pinned) <= 2 * cores
    assert {buffer.size for buffer in machine.pinned} <= {PIECE}


def test_each_core_takes_pieces_of_a_large_array_and_only_the_callers_those_of_a_small_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # A thread must be told which of several devices is in use.
    device, machine = opened(monkeypatch, tmp_path, 4, index=1, devices=2)
    given = np.random.default_rng(1).integers(0, 256, 16 * PIECE, np.uint8)
    threads: Counter[int] = Counter()

    def counted(wait: Callable[[], None]) -> Callable[[], None]:
        threads.clear()
        return lambda: (threads.update([threading.get_ident()]), wait())[1]

    machine.copying = counted(at_once(4))
    array = device.to_device(given)
    assert (len(threads), threads.total()) == (4, 16)
    machine.copying = counted(at_once(4))
    np.testing.assert_array_equal(device.to_host(array), given)
    assert (len(threads), threads.total()) == (4, 16)
    machine.copying = counted(lambda: None)
    device.to_host(array[: 7 * PIECE])
    assert threads == {threading.get_ident(): 7}


@pytest.mark.parametrize("cores", [1, 3])
@pytest.mark.parametrize("dtype", [np.float64, np.uint8])
@pytest.mark.parametrize("columns", [slice(3, 4), slice(1, 100), slice(0, 5000), slice(200, 9000)])
def test_a_block_of_columns_is_copied_as_it_lies(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, columns: slice, dtype: Any, cores: int
) -> None:
    device, _ = opened(monkeypatch, tmp_path, cores)
    given = np.random.default_rng(5).integers(0, 256, (1, 7, 10_000), np.uint8).astype(dtype)
    monkeypatch.setattr(np, "ascontiguousarray", None)  # which would copy it before
    array = device.to_device(given[:, 1:, columns])
    into = np.zeros((2, 6, 10_000), dtype)
    assert device.to_host(array, into[1:, :, columns]).base is not None
    expected = np.zeros_like(into)
    expected[1:, :, columns] = given[:, 1:, columns]
    np.testing.assert_array_equal(into, expected)


def test_what_does_not_lie_in_rows_goes_up_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    device, _ = opened(monkeypatch, tmp_path, 2)
    given = np.arange(60_000.0).reshape(30, 40, 50)
    for part in (
        given[:, 5:, 3:40],
        given.T,
        given[::2, ::3, ::5],
        given[::-1],
        np.broadcast_to(given[0], (3, 40, 50)),
    ):
        np.testing.assert_array_equal(device.to_host(device.to_device(part)), part)


# What a copy meets, and what the job is told. An error of a kernel is met by whoever waits next.
@pytest.mark.parametrize(
    ("error", "expected"),
    [(1, LaunchFailed), (719, DeviceLost), ("of a kernel", DeviceLost), ("of the host", MemoryError)],
)
@pytest.mark.parametrize("way", ["up", "down"])
@pytest.mark.parametrize(("cores", "after"), [(1, 0), (1, 5), (3, 0), (3, 4), (3, 11)])
def test_a_copy_that_fails_leaves_nothing_behind_and_no_thread_at_work_and_the_next_is_right(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    cores: int,
    after: int,
    way: str,
    error: int | str,
    expected: type[Exception],
) -> None:
    device, machine = opened(monkeypatch, tmp_path, cores)
    given = np.full((12, PIECE // 8), 2.0)
    array, host, before = device.to_device(given), np.empty_like(given), device.memory.used()
    copies: list[int] = []

    def copying() -> None:
        copies.append(threading.get_ident())
        if len(copies) <= after:
            return
        if error == "of a kernel":
            machine.sync_error = 700
        else:
            raise CUDARuntimeError(error) if isinstance(error, int) else MemoryError(error)

    def failing() -> None:
        copies.clear()
        machine.copying = copying
        with pytest.raises(expected):
            device.to_host(array, host) if way == "down" else device.to_device(given)
        machine.sync_error, machine.copying = None, lambda: copies.append(0)
        assert device.memory.used() == before, "what was made for it is gone"

    failing()
    device.forget()
    assert left(machine) == 0
    failing()
    other = np.random.default_rng(2).standard_normal(given.shape)
    np.testing.assert_array_equal(device.to_host(device.to_device(other), host), other)
    assert copies[-24:] == [0] * 24, "no thread went on with what had failed"
    device.forget()
    assert left(machine) == 0


def test_a_failure_is_not_told_before_the_other_threads_have_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    device, machine = opened(monkeypatch, tmp_path, 2)
    here, both, failed, ended = threading.get_ident(), at_once(2), threading.Event(), []

    def copying() -> None:
        both()
        if threading.get_ident() == here:
            failed.set()
            raise KeyboardInterrupt
        failed.wait(20)
        ended.append(True)

    machine.copying = copying
    with pytest.raises(KeyboardInterrupt):
        device.to_device(np.zeros(10 * PIECE, np.uint8))
    assert ended == [True], "one piece, and no other after it"


@pytest.mark.parametrize("cores", [1, 3])
def test_memory_that_cannot_be_pinned_halfway_is_done_without(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cores: int
) -> None:
    device, machine = opened(monkeypatch, tmp_path, cores)
    machine.copying = lambda: setattr(machine, "pinnable", False)
    given = np.random.default_rng(4).integers(0, 256, 12 * PIECE, np.uint8)
    np.testing.assert_array_equal(device.to_host(device.to_device(given)), given)
    assert len(machine.pinned) < 2 * cores


def test_a_process_that_may_have_no_more_threads_copies_with_those_it_has(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    given = np.random.default_rng(6).integers(0, 256, 12 * PIECE, np.uint8)
    with monkeypatch.context() as limited:
        limited.setattr(threading.Thread, "start", refused)
        device, _ = opened(monkeypatch, tmp_path, 4)
        np.testing.assert_array_equal(device.to_host(device.to_device(given)), given)
    np.testing.assert_array_equal(device.to_host(device.to_device(given)), given)


# ---------------------------------------------------------------- on every device there is


def test_a_result_is_copied_into_its_place(device: Device) -> None:
    array = device.to_device(np.arange(6.0).reshape(2, 3))
    into = np.zeros((4, 5))
    rows = into[1:3, 1:4]
    assert device.to_host(array, rows) is rows
    assert into.tolist() == [[0] * 5, [0, 0, 1, 2, 0], [0, 3, 4, 5, 0], [0] * 5]


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (np.zeros((2, 3), np.float32), r"float64 of shape \(2, 3\) cannot be copied into float32 of shape \(2, 3\)"),
        (np.zeros(6), r"float64 of shape \(2, 3\) cannot be copied into float64 of shape \(6,\)"),
        (np.zeros((2, 6))[:, ::2], r"shape \(2, 3\) and strides \(48, 16\) is no matrix of rows"),
        (np.zeros((3, 2)).T, r"shape \(2, 3\) and strides \(8, 16\) is no matrix of rows"),
        (np.broadcast_to(np.zeros(3), (2, 3)), r"the array of shape \(2, 3\) to copy into is read-only"),
        ([[0.0] * 3] * 2, "what a device computed is copied into NumPy arrays, got list"),
    ],
)
def test_a_place_that_does_not_fit_is_refused_before_anything_is_copied(device: Device, out: Any, message: str) -> None:
    array = device.to_device(np.arange(1, 7.0).reshape(2, 3))
    device.times()
    with pytest.raises(TypeError, match=message):
        device.to_host(array, out)
    assert not np.any(out)
    assert device.times().copy == 0
