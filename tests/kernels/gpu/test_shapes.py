"""Launches take shapes that suit the device, and no shape changes a bit."""

from typing import Any

import pytest

from tests.kernels.gpu.described import DESCRIPTIONS, ChoosyDevice, DescribedDevice
from tests.kernels.indicators.cases import walk
from tests.kernels.parity import Case, assert_same
from tests.kernels.vector.cases import numbers
from warpdesk_server.kernels.gpu.faults import LaunchFailed
from warpdesk_server.kernels.gpu.occupancy import Shape, best, resident


class Holding:
    """A kernel of which a multiprocessor holds `threads` threads and `shared` bytes at a time, in any blocks."""

    def __init__(self, threads: int = 2048, shared: int = 1 << 30) -> None:
        self._threads, self._shared = threads, shared

    def __call__(self, *_launch: Any) -> None:
        raise AssertionError("it is only asked")

    def blocks_per_multiprocessor(self, threads: int, shared_mem: int = 0) -> int:
        if shared_mem > self._shared:
            raise LaunchFailed("more than a block may have", 1)
        return min(self._threads // threads, self._shared // shared_mem if shared_mem else 1 << 30)


class Sized:
    def __init__(self, multiprocessors: int) -> None:
        self.multiprocessors = multiprocessors


def chosen(shapes: list[Shape], kernel: Holding, multiprocessors: int = 10) -> Shape:
    return best(Sized(multiprocessors), kernel, shapes)  # type: ignore[arg-type]


def test_the_shape_that_keeps_most_of_a_large_job_in_flight_is_taken() -> None:
    few, many = Shape(100_000, 64, 64, shared=20_000), Shape(25_000, 256, 256, shared=60_000)
    assert chosen([few, many], Holding(shared=100_000)) == few  # 5 x 64 threads at a time, or 256
    assert chosen([few, many], Holding(shared=130_000)) == many  # 6 x 64, or 2 x 256


def test_a_small_job_is_spread_over_all_multiprocessors() -> None:
    assert chosen([Shape(5, 256, 256), Shape(10, 128, 128), Shape(20, 64, 64)], Holding()) == Shape(20, 64, 64)
    assert chosen([Shape(5, 256, 256), Shape(10, 128, 128)], Holding()) == Shape(10, 128, 128)


def test_what_is_read_twice_counts_where_as_much_is_in_flight() -> None:
    assert chosen([Shape(40_000, 64, 80), Shape(20_000, 128, 144)], Holding()) == Shape(20_000, 128, 144)


def test_of_shapes_as_good_as_each_other_the_smaller_block_is_taken() -> None:
    assert chosen([Shape(10_000, 256, 256), Shape(20_000, 128, 129)], Holding()) == Shape(20_000, 128, 129)


def test_a_shape_that_cannot_be_launched_is_not_taken_unless_there_is_no_other() -> None:
    large, small = Shape(10, 128, 128, shared=70_000), Shape(20, 64, 64, shared=60_000)
    assert chosen([large, small], Holding(shared=65_536)) == small
    assert chosen([large, small], Holding(shared=48_000)) == small


def test_a_loop_has_as_many_blocks_as_the_device_holds_and_at_least_one() -> None:
    device: Any = Sized(3)
    assert resident(device, Holding(), 256) == 24
    assert resident(device, Holding(threads=128), 256) == 3


def _vector(operation: str, n: int, *rows: int, dtype: str = "float64", **params: Any) -> Case:
    names = "xy" if operation in ("add", "dot") else "x"
    inputs = {name: numbers(*rows, n, dtype=dtype, seed=seed) for seed, name in enumerate(names)}
    return Case(operation, {**params, **({"axis": "last"} if rows else {})}, lambda: inputs)


def _windows(operation: str, period: int, *shape: int, dtype: str = "float64", **params: Any) -> Case:
    prices = walk(*shape, dtype=dtype, seed=period, gaps=0.002)
    return Case(operation, {"period": period, **params}, lambda: {"prices": prices})


CUTLER = {"convention": "cutler"}

# A job, and how many different launches it has on the described devices.
JOBS = [
    (_vector("add", 100_003), 1),
    (_vector("add", 300, dtype="float32"), 1),
    (_vector("sum", 100, 300), 2),
    (_vector("dot", 33, 300, dtype="float32"), 2),
    (_vector("max", 20, 300), 2),
    (_vector("norm", 20, 50), 1),
    (_vector("sum", 20_000), 1),  # its tree has as many threads everywhere
    *(
        (_windows(operation, period, *shape, **params), launches)
        for operation, params in (("sma", {}), ("bollinger", {}), ("rsi", CUTLER))
        for period, shape, launches in (
            (7, (9, 1100), 2),
            (7, (300, 60), 1),
            (20, (9, 1100), 2),
            (20, (70, 45), 1),
            (300, (3, 1025), 2),
            (1100, (2, 2500), 1),
            (2049, (1, 2500), 1),  # sums of 2,048 bars decide bytes
        )
    ),
    (_windows("bollinger", 20, 40, 500, dtype="float32"), 3),
    *(
        (_windows(operation, 7, *shape, dtype=dtype), launches)
        for operation in ("ema", "rsi")
        for shape, dtype, launches in (
            ((70, 31), "float64", 1),
            ((9, 700), "float32", 2),
            ((20, 1100), "float64", 2),
            ((3, 2048), "float64", 1),
            ((2, 2100), "float64", 1),  # tiles decide bytes
        )
    ),
]


@pytest.mark.parametrize(("case", "launches"), JOBS)
def test_devices_with_other_launches_give_the_same_bytes(case: Case, launches: int) -> None:
    expected, shapes = case.run(), set()
    for description in DESCRIPTIONS:
        device = DescribedDevice(description)
        assert_same(case, expected, case.run(device))
        shapes.add(tuple(device.shapes))
    assert len(shapes) == launches, shapes


def test_every_shape_that_a_device_might_want_gives_the_same_bytes() -> None:
    wanted: dict[str, set[Any]] = {}
    for case, _ in JOBS:
        expected = case.run()
        for choice in range(7):
            device = ChoosyDevice(choice)
            assert_same(case, expected, case.run(device))
            for kernel, _, block, _ in device.shapes:
                wanted.setdefault(kernel, set()).add(block)
    constant = {"norm2_tiles", "sma_totals", "sma_long", "deviation_totals", "deviation_long"} | {
        *("cutler_totals", "cutler_long")
    }
    assert {kernel for kernel, blocks in wanted.items() if len(blocks) == 1} == constant


def test_a_large_job_has_the_shape_that_keeps_most_of_it_on_each_architecture() -> None:
    """Of 500 rows of 2,520 bars, which are 126 blocks of bars: an A100's multiprocessor holds 21 blocks of 21 of these
    or 11 of 42, and an H200's 24 or 12."""
    shapes = {}
    for description in DESCRIPTIONS:
        device = DescribedDevice(description, registers=40, idle=True)
        _windows("bollinger", 20, 500, 2520).run(device)
        shapes[description.name] = device.shapes
    assert shapes["A100"][1] == ("deviation", (1500,), (128,), 13384)  # in 1.26 rounds, or in 1.32
    assert shapes["H200"][1] == ("deviation", (3000,), (64,), 6800)  # in 0.95 rounds either way


def test_short_rows_fill_their_blocks() -> None:
    """Five eighths of the threads have bars to sum, whatever the length: the worst is a row of one thread more."""
    for time in (20, 60, 100, 252, 300, 504, 1025, 1100, 1300, 1500, 1800, 2048):
        for operation, period in (("sma", 7), ("sma", 20), ("sma", 50), ("ema", 7)):
            device = DescribedDevice(DESCRIPTIONS[0], idle=True)
            _windows(operation, period, 200, time).run(device)
            [(kernel, (blocks,), (threads,), _)] = device.shapes
            threads_of_a_row = {
                "sma_short": -(-time // 8),  # eights
                "sma": -(-time // period) * -(-period // 8),  # eights of blocks of bars
                "ema": -(-time // 32),  # segments
            }[kernel]
            assert 200 * threads_of_a_row >= 0.625 * blocks * threads, (kernel, time, period, blocks, threads)
