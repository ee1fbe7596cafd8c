"""Chunks of several rows have the answer of all rows at once, and long rows that of one plain loop."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.cudasim.device import EmulatedDevice
from tests.kernels.indicators.cases import TILE, walk
from tests.kernels.indicators.reference import compute
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.catalogue import OPERATIONS
from warpdesk_server.kernels.indicators import program_cpu, program_gpu, spec
from warpdesk_server.kernels.indicators.algebra import Node, series
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


def test_a_memory_through_all_tiles_is_carried_from_span_to_span() -> None:
    prices = 100 + np.cumsum(np.random.default_rng(36).normal(0, 0.01, 64 * 64 * TILE + 3 * TILE + 9))
    expected = compute("rsi", prices, period=100_000)["rsi"]
    np.testing.assert_array_equal(on_device("rsi", prices, EmulatedDevice(), period=100_000)["rsi"], expected)


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
    given = Series(device, device.to_device(prices), 1, prices.size, prices.dtype)
    [got] = program_gpu.run(plan(graph, 8), {"close": given})
    np.testing.assert_array_equal(device.to_host(got), expected[0])
