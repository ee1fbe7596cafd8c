"""Prices cut into chunks, by rows or in time, have the answer of prices that are not, however many are resident."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.cudasim.device import EmulatedDevice
from tests.kernels.indicators.cases import TILE, walk
from tests.kernels.indicators.reference import compute
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.catalogue import OPERATIONS
from warpdesk_server.kernels.gpu import chunks
from warpdesk_server.kernels.indicators import program_cpu, recurrence_gpu, spec
from warpdesk_server.kernels.indicators.algebra import Node, series
from warpdesk_server.kernels.indicators.cuts import Cut
from warpdesk_server.kernels.indicators.plan import plan
from warpdesk_server.kernels.indicators.recurrence import GROUP, Recurrence, look_back
from warpdesk_server.kernels.indicators.series import Series
from warpdesk_server.kernels.operation import Grid

pytestmark = pytest.mark.timeout(600)  # the emulator compiles and runs kernels, also on a busy machine

CALLS: list[tuple[str, dict[str, Any]]] = [
    ("sma", {"period": 9}),
    ("sma", {"period": 2500}),
    ("bollinger", {"period": 700}),
    ("ema", {"period": 1}),
    ("ema", {"period": 9}),
    ("ema", {"period": 3000, "convention": "tradingview"}),
    ("rsi", {"period": 2}),
    ("rsi", {"period": 300}),
    ("rsi", {"period": 3000}),
    ("rsi", {"period": 40, "convention": "cutler"}),
    ("rsi", {"period": 9, "convention": "ema"}),
]


def grid_of(name: str, params: dict[str, Any], prices: NDArray[Any]) -> Grid:
    operation = OPERATIONS[name]
    return operation.grid(operation.params(**params), {"prices": ArrayInfo(prices.dtype.name, prices.shape)})


def on_device(name: str, prices: NDArray[Any], device: EmulatedDevice, **params: Any) -> dict[str, Any]:
    operation = OPERATIONS[name]
    return operation.implementation("gpu")(operation.params(**params), prices, device=device)


def assert_same_bytes(name: str, prices: NDArray[Any], device: EmulatedDevice, **params: Any) -> None:
    expected, got = compute(name, prices, **params), on_device(name, prices, device, **params)
    for output, values in expected.items():
        np.testing.assert_array_equal(got[output], values, f"{name} {params} {prices.shape}")


def prices_with_gaps(rows: int, time: int, length: int) -> NDArray[Any]:
    """Prices with gaps just before, at and after the edges of chunks."""
    prices = walk(rows, time, seed=31)
    for row in range(rows):
        for at, edge in enumerate(range(length, time, length)):
            if (row + at) % 4:
                prices[row, min(edge + (row + at) % 4 - 2, time - 1)] = np.nan
    return prices


@given(st.integers(1, 40), st.integers(1, 9 * TILE), st.integers(1, 5 * TILE), st.data())
def test_however_a_job_is_run_its_pieces_are_its_bars_each_once(
    rows: int, time: int, bars: int, data: st.DataObject
) -> None:
    cut = Cut(rows, time, bars)
    visits = np.zeros((rows, time), int)
    first = 0
    while first < cut.chunks:
        end = data.draw(st.integers(first + 1, cut.chunks))
        for piece in cut.pieces(first, end):
            visits[piece.row : piece.end_row, piece.begin : piece.end] += 1
            assert not cut.in_time or piece.begin % TILE == 0
        first = end
    assert (visits == 1).all()


@given(st.integers(1, 200), st.integers(1, 9 * TILE), st.integers(1, 5 * TILE))
def test_a_chunk_holds_whole_rows_unless_one_alone_is_too_long(rows: int, time: int, bars: int) -> None:
    cut = Cut(rows, time, bars)
    longest = max((piece.end_row - piece.row) * (piece.end - piece.begin) for piece in cut.pieces(0, 1))
    assert longest <= max(bars + TILE, time if not cut.in_time else 0)


@pytest.mark.parametrize(("name", "params"), CALLS)
@pytest.mark.parametrize("resident", [1, 2, 100])
def test_a_row_cut_in_time_has_the_answer_of_the_whole_row(
    name: str, params: dict[str, Any], resident: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spec, "CHUNK_BARS", 2 * TILE)
    prices = prices_with_gaps(2, 13 * TILE + 77, 2 * TILE)
    grid = grid_of(name, params, prices)
    assert grid.chunks == 14
    assert_same_bytes(name, prices, EmulatedDevice(memory=grid.fixed + resident * grid.each), **params)


@pytest.mark.parametrize(("name", "params"), CALLS)
@pytest.mark.parametrize("policy", ["window", "skip", "ffill"])
def test_gaps_of_rows_cut_in_time_are_closed_as_in_whole_rows(
    name: str, params: dict[str, Any], policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spec, "CHUNK_BARS", 1)
    prices = prices_with_gaps(2, 4 * TILE + 1, TILE)
    prices[1, :30] = np.nan
    assert_same_bytes(name, prices, EmulatedDevice("random", seed=5), **params, nan_policy=policy)


@pytest.mark.parametrize(("name", "params"), CALLS)
@pytest.mark.parametrize("policy", ["window", "skip", "ffill"])
def test_chunks_of_several_rows_have_the_answer_of_all_at_once(
    name: str, params: dict[str, Any], policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prices = walk(23, 3100, seed=32, gaps=0.02)
    monkeypatch.setattr(spec, "CHUNK_BARS", 3 * 3100 + 50)
    grid = grid_of(name, {**params, "nan_policy": policy}, prices)
    assert grid.chunks == 8
    device = EmulatedDevice(memory=grid.fixed + 2 * grid.each)
    assert_same_bytes(name, prices, device, **params, nan_policy=policy)


@pytest.mark.parametrize("flat", [50, "nan"])
@pytest.mark.parametrize("moves", [0, 60, 2 * TILE + 10])
def test_an_rsi_that_stands_still_does_so_over_cuts(moves: int, flat: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spec, "CHUNK_BARS", TILE)
    prices = np.full((2, 8 * TILE + 5), 97.5)
    prices[:, :moves] = walk(2, moves, seed=33)
    prices[1, 4 * TILE] = np.nan
    for period in (2, 2500):
        assert_same_bytes("rsi", prices, EmulatedDevice(), period=period, flat=flat)


@pytest.mark.parametrize("name", ["ema", "rsi"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_memory_through_all_tiles_is_carried_over_cuts_within_and_between_groups(
    name: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spec, "CHUNK_BARS", 37 * TILE)
    prices = walk(1, 150 * TILE + 9, seed=34, dtype=dtype)
    grid = grid_of(name, {"period": 20_000}, prices)
    for resident in (1, 2):
        assert_same_bytes(name, prices, EmulatedDevice(memory=grid.fixed + resident * grid.each), period=20_000)


def test_a_memory_through_all_tiles_is_carried_from_span_to_span() -> None:
    prices = 100 + np.cumsum(np.random.default_rng(36).normal(0, 0.01, 64 * 64 * TILE + 3 * TILE + 9))
    expected = compute("rsi", prices, period=100_000)["rsi"]
    grid = grid_of("rsi", {"period": 100_000}, prices)
    assert grid.chunks == 3
    for resident in (1, 3):
        device = EmulatedDevice(memory=grid.fixed + resident * grid.each)
        np.testing.assert_array_equal(on_device("rsi", prices, device, period=100_000)["rsi"], expected)


def test_a_state_goes_through_three_spans_in_one_launch() -> None:
    from scipy.signal import lfilter

    # A memory so long that what the first span held still shows in the third: no period of a request's is.
    law, span = Recurrence(beta=1 - 1e-8, warm=1, valid=1), GROUP * GROUP * TILE
    prices = 100 + np.cumsum(np.random.default_rng(37).normal(0, 0.01, 2 * span + 3 * TILE + 9))
    assert look_back(law, 8) == 0
    graph = {"ema": Node("follow", (series("close"),), (law.beta, law.warm, law.late))}
    [expected] = program_cpu.run(plan(graph, 8), {"close": prices[np.newaxis]})

    # One plain loop: y <- beta (y + (before - price)).
    distance = lfilter([law.beta], [1, -law.beta], -np.diff(prices, prepend=prices[0]))
    np.testing.assert_allclose(expected[0], prices + distance, rtol=1e-11)
    assert abs(expected[0, -1] - prices[-1]) > 1

    device = EmulatedDevice()
    whole, _ = recurrence_gpu.averages(Series(device, device.to_device(prices), 1, prices.size, prices.dtype), law)
    np.testing.assert_array_equal(device.to_host(whole), expected[0])


def test_parts_that_need_the_state_of_the_one_before_them_do_not_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    overlaps = []
    monkeypatch.setattr(spec, "CHUNK_BARS", TILE)
    monkeypatch.setattr(chunks, "run", lambda *_, overlap: overlaps.append(overlap))
    for period, time in ((14, 3 * TILE), (9000, 3 * TILE), (9000, TILE)):
        on_device("ema", walk(1, time), EmulatedDevice(), period=period)
    assert overlaps == [True, False, True]
