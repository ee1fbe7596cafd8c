"""Whoever starts a job can listen how far it is; no byte depends on it, and nobody else hears."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numba
import numpy as np
import pytest

from tests.cudasim.device import EmulatedDevice
from tests.kernels.parity import Case, assert_same
from warpdesk_server.kernels import progress
from warpdesk_server.kernels.cpu.cores import share
from warpdesk_server.kernels.gpu import chunks
from warpdesk_server.kernels.operation import Grid


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = numba.get_num_threads()
    numba.set_num_threads(min(count, numba.config.NUMBA_NUM_THREADS))
    try:
        yield
    finally:
        numba.set_num_threads(before)


def assert_forward(parts: list[float], at_least: int) -> None:
    assert len(parts) >= at_least
    assert parts == sorted(set(parts))
    assert parts[0] > 0
    assert parts[-1] == pytest.approx(1.0)


def test_where_nobody_listens_a_report_is_nothing() -> None:
    assert not progress.has_listener()
    progress.report(0.5)
    with progress.telling(None), progress.stage(0.0, 0.5):
        assert not progress.has_listener()
        progress.report(0.5)


def test_a_stage_is_a_part_of_what_is_around_it() -> None:
    parts: list[float] = []
    with progress.telling(parts.append):
        progress.report(0.125)
        with progress.stage(0.25, 0.75):
            progress.report(0.5)
            with progress.stage(0.5, 1.0):
                progress.report(0.5)
        progress.report(1.0)
    progress.report(0.9)
    assert parts == [0.125, 0.5, 0.625, 1.0]


def test_a_job_never_goes_back() -> None:
    parts: list[float] = []
    with progress.telling(parts.append):
        for done in (0.0, 0.25, 0.5, 0.125, 0.5, 0.75, 1.0, 1.5):  # as one that begins again on the CPU
            progress.report(done)
    assert parts == [0.25, 0.5, 0.75, 1.0]


@pytest.mark.parametrize("count", [1, 2])
def test_shared_tasks_are_told_as_they_end_in_the_thread_of_whoever_asked(count: int) -> None:
    parts: list[tuple[float, str]] = []
    done = np.zeros(1000, int)

    def run(first: int, end: int) -> None:
        done[first:end] += 1

    with threads(count), progress.telling(lambda part: parts.append((part, threading.current_thread().name))):
        share(done.size, run)
    assert done.tolist() == [1] * 1000
    assert {name for _, name in parts} == {threading.current_thread().name}
    assert parts[-1][0] == 1.0  # whoever did the last of it
    if count == 1:
        assert_forward([part for part, _ in parts], 30)


def test_alone_on_a_core_tasks_that_nobody_listens_to_are_not_cut() -> None:
    parts: list[tuple[int, int]] = []
    with threads(1):
        share(1000, lambda first, end: parts.append((first, end)))
        with progress.telling(lambda _: None):
            share(1000, lambda first, end: parts.append((first, end)), at_least=400)
    assert parts == [(0, 1000), (0, 400), (400, 800), (800, 1000)]


@pytest.mark.parametrize("lanes", [1, 2])
def test_chunks_are_told_as_they_end_on_a_device(lanes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "PART", 1000)
    device, parts, done = EmulatedDevice(), list[float](), np.zeros(50, int)
    device.lanes = lanes

    def work(first: int, end: int) -> None:
        done[first:end] += 1

    with progress.telling(parts.append):
        chunks.run(device, Grid(50, 1000, 0), work, overlap=True)
    assert done.tolist() == [1] * 50
    if lanes == 1:
        assert_forward(parts, chunks._LEAST_PARTS - 4)
    else:
        assert parts == sorted(set(parts))


def _market(**more: Any) -> dict[str, Any]:
    market = {"spot": 100.0, "strike": 101.0, "rate": 0.05, "volatility": 0.3, "maturity": 0.75}
    return {"payoff": "european", "option": "call", **market, **more}


_LONG = (
    Case("monte_carlo", _market(steps=2, paths=40_000), seed=3),
    Case("matmul", {"algorithm": "kernel"}, lambda: {"a": np.ones((400, 9)), "b": np.ones((9, 400))}),
    Case("rsi", {"period": 14}, lambda: {"prices": 100 + np.arange(400_000.0).reshape(200, 2000) % 7}),
    Case("bollinger", {"period": 20}, lambda: {"prices": 100 + np.arange(400_000.0).reshape(200, 2000) % 7}),
    Case("sum", {}, lambda: {"x": np.ones(1_000_000)}),
    Case("add", {}, lambda: {"x": np.ones(1_000_000), "y": np.ones(1_000_000)}),
)


@pytest.mark.parametrize("case", _LONG, ids=lambda case: case.operation)
def test_a_job_that_is_heard_has_the_same_bytes_and_goes_forward_on_the_cpu(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("warpdesk_server.kernels.monte_carlo.spec.CHUNK", 4096)
    parts: list[float] = []
    with threads(1):
        silent = case.run()
        with progress.telling(parts.append):
            with_listener = case.run()
    assert_same(case, silent, with_listener)
    assert_forward(parts, 4)


@pytest.mark.parametrize(
    "case",
    [
        Case("add", {}, lambda: {"x": np.ones(20_000), "y": np.ones(20_000)}),
        Case("rsi", {"period": 14}, lambda: {"prices": 100 + np.arange(40_000.0).reshape(40, 1000) % 7}),
    ],
    ids=lambda case: case.operation,
)
def test_a_job_that_is_heard_has_the_same_bytes_and_goes_forward_on_a_device(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("warpdesk_server.kernels.vector.spec.CHUNK", 2000)
    monkeypatch.setattr("warpdesk_server.kernels.indicators.spec.CHUNK_BARS", 8000)
    device, parts = EmulatedDevice(), list[float]()
    silent = case.run(device)
    with progress.telling(parts.append):
        with_listener = case.run(device)
    assert_same(case, silent, with_listener)
    assert_forward(parts, 4)


def test_what_all_parts_need_is_not_copied_again_and_again_to_be_heard() -> None:
    device, parts = EmulatedDevice(), list[int]()
    with progress.telling(lambda _: None):
        chunks.run(device, Grid(8, 1000, 8000), lambda first, end: parts.append(end - first))
        chunks.run(device, Grid(8, 1000, 1000), lambda first, end: parts.append(end - first))
    assert parts == [8, 4, 4]
