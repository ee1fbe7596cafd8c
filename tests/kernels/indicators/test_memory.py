"""No indicator takes more of a device's memory than its cost promises, however many rows and however short they are."""

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cudasim.device import EmulatedDevice, EmulatedKernel
from tests.kernels.indicators.cases import TILE, bars
from warpdesk.models import DType
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.catalogue import OPERATIONS
from warpdesk_server.kernels.gpu.source import Source
from warpdesk_server.kernels.indicators import spec

ALL = ("sma", "ema", "rsi", "bollinger")
VALUES = 300_000  # at most, so that all buffers of a device stay small


class DeviceWithoutThreads(EmulatedDevice):
    """What is allocated depends on shapes alone, so launches may do nothing and shapes may be large."""

    def kernel(self, source: Source, name: str) -> Any:
        return _Idle(super().kernel(source, name))


class _Idle:
    def __init__(self, kernel: EmulatedKernel) -> None:
        self.blocks_per_multiprocessor = kernel.blocks_per_multiprocessor

    def __call__(self, grid: Any, block: Any, args: Any, shared_mem: int = 0) -> None:
        """Nothing is done."""


def peak_and_promise(
    name: str, params: dict[str, Any], shape: tuple[int, ...], dtype: DType, device: EmulatedDevice
) -> tuple[int, int]:
    operation = OPERATIONS[name]
    inputs = {"prices": ArrayInfo(dtype, shape)}
    accepted = operation.validate(params, inputs)
    operation.implementation("gpu")(accepted, np.full(shape, 100, dtype), device=device)
    return device.memory.peak, operation.cost(accepted, inputs).bytes


def choices(name: str) -> st.SearchStrategy[dict[str, Any]]:
    conventions = {"ema": ["talib", "tradingview"], "rsi": ["talib", "cutler", "ema", "tradingview"]}
    fields: dict[str, st.SearchStrategy[Any]] = {"nan_policy": st.sampled_from(["window", "skip", "ffill"])}
    if name in conventions:
        fields["convention"] = st.sampled_from(conventions[name])
    return st.fixed_dictionaries(fields)


@pytest.mark.parametrize("policy", ["window", "skip", "ffill"])
@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("sma", {"period": 20}),
        ("rsi", {"period": 14}),
        ("bollinger", {}),
        ("macd", {}),
        ("adx", {}),
        ("expression", {"outputs": {f"ema{n}": {"op": "ema", "period": n} for n in range(2, 10)}}),
    ],
)
def test_the_memory_of_the_cpu_is_what_the_cost_says(name: str, params: dict[str, Any], policy: str) -> None:
    found, operation = bars(40, 5_000, gaps=0.01), OPERATIONS[name]
    names = [each.shown for each in operation.inputs if each.required] or ["close"]
    arrays = {each: found[each] for each in names}
    given = {expected.name: arrays[expected.shown] for expected in operation.inputs if expected.shown in arrays}
    accepted = operation.params(**params, nan_policy=policy)
    compute = operation.implementation("cpu")
    compute(accepted, **given)  # what is kept from job to job is there
    tracemalloc.start()
    try:
        answer = compute(accepted, **given)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert answer
    infos = {each: ArrayInfo("float64", array.shape) for each, array in given.items()}
    assert most + sum(array.nbytes for array in given.values()) <= operation.cost(accepted, infos).bytes


SHAPES = st.one_of(
    st.integers(1, VALUES // 3).flatmap(lambda rows: st.tuples(st.just(rows), st.integers(3, VALUES // rows))),
    st.integers(3, VALUES).flatmap(lambda time: st.tuples(st.integers(1, VALUES // time), st.just(time))),
    st.tuples(st.integers(3, VALUES)),
)


@pytest.mark.parametrize("name", ALL)
@given(data=st.data(), shape=SHAPES, dtype=st.sampled_from(["float64", "float32"]))
@settings(max_examples=60, deadline=None)
def test_no_shape_takes_more_memory_than_the_cost_says(
    name: str, data: st.DataObject, shape: tuple[int, ...], dtype: DType
) -> None:
    params = data.draw(choices(name))
    params["period"] = data.draw(st.integers(2, min(shape[-1] - 1, 100_000)))
    peak, promise = peak_and_promise(name, params, shape, dtype, DeviceWithoutThreads())
    assert peak <= promise


@pytest.mark.parametrize("policy", ["window", "skip", "ffill"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(
    ("name", "shape", "params"),
    [
        ("ema", (20_000, 3), {"period": 3}),
        ("rsi", (20_000, 3), {"period": 2}),
        ("ema", (20_000, 1), {"period": 5_000, "convention": "tradingview"}),  # states carried through all tiles
        ("rsi", (20_000, 3), {"period": 2, "convention": "cutler"}),
        ("sma", (20_000, 1), {"period": 1}),
        ("bollinger", (20_000, 1), {"period": 1}),
        ("sma", (100_001,), {"period": 99_999}),
        ("bollinger", (100_001,), {"period": 99_999}),
        ("rsi", (100_001,), {"period": 99_999, "convention": "cutler"}),
    ],
)
def test_neither_short_rows_nor_long_windows_take_more_memory_than_the_cost_says(
    name: str, shape: tuple[int, ...], params: dict[str, Any], dtype: DType, policy: str
) -> None:
    peak, promise = peak_and_promise(name, {**params, "nan_policy": policy}, shape, dtype, DeviceWithoutThreads())
    assert peak <= promise


@pytest.mark.parametrize("name", ALL)
def test_the_memory_counted_without_threads_is_that_of_a_real_run(name: str) -> None:
    params, shape = {"period": 5, "nan_policy": "skip"}, (7, 40)
    idle = peak_and_promise(name, params, shape, "float64", DeviceWithoutThreads())
    assert idle == peak_and_promise(name, params, shape, "float64", EmulatedDevice())


@pytest.mark.parametrize("policy", ["window", "skip", "ffill"])
@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("sma", {"period": 9}),
        ("bollinger", {"period": 13}),
        ("ema", {"period": 9}),
        ("ema", {"period": 3000, "convention": "tradingview"}),
        ("rsi", {"period": 9}),
        ("rsi", {"period": 9, "convention": "cutler"}),
    ],
)
@pytest.mark.parametrize(
    ("shape", "bars"), [((60, 3100), 12 * 3100), ((1, 200 * TILE), 60 * TILE), ((30_000, 20), 1 << 17)]
)
def test_one_resident_chunk_takes_what_the_grid_says_and_not_much_less(
    name: str,
    params: dict[str, Any],
    policy: str,
    shape: tuple[int, int],
    bars: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(spec, "CHUNK_BARS", bars)
    operation, inputs = OPERATIONS[name], {"prices": ArrayInfo("float64", shape)}
    accepted = operation.params(**params, nan_policy=policy)
    grid = operation.grid(accepted, inputs)
    device = DeviceWithoutThreads(memory=grid.fixed + grid.each)
    operation.implementation("gpu")(accepted, np.full(shape, 100.0), device=device)
    assert 0.85 * grid.each <= device.memory.peak <= grid.fixed + grid.each
