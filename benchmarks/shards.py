"""Benchmark of a job in shards: two processes that share it beside one, and what a cut costs one process.

Each process has one thread. As workers do, the two of them read the inputs from mapped files and write what they
compute to files, which a third process merges. One process computes the whole job, and then all shards one after
another. Beside the time on the clock, its median, there is the least time of the processors, of which a busy machine
takes less away: of two processes that of the slower, and the merge.
"""

import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import numba
import numpy as np

from warpdesk_server.benchmarks.report import Row, show
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.catalogue import OPERATIONS
from warpdesk_server.kernels.sharding import Shard, Sharding
from warpdesk_server.kernels.shards import compute, merge, parts

REPEATS = 9
SHARDS = (2, 16)
# Two processes should be so many times as quick as one, and shards in one process take so much longer than the job.
TIMES, OVERHEAD = 1.8, 0.03

_ASIAN = {
    "payoff": "asian_arithmetic",
    "option": "call",
    "spot": 100.0,
    "strike": 100.0,
    "volatility": 0.2,
    "maturity": 1.0,
}
# The first has 10^8 path steps, and goals.
JOBS: tuple[tuple[str, str, dict[str, Any], dict[str, tuple[int, ...]]], ...] = (
    ("Asian call, 400,000 x 250", "monte_carlo", {**_ASIAN, "paths": 400_000, "steps": 250}, {}),
    ("2,000 x 2,000 by 2,000 x 2,000", "matmul", {"algorithm": "kernel"}, {"a": (2_000,) * 2, "b": (2_000,) * 2}),
    ("median of 200 bars, 500 x 5,000", "rolling_quantile", {"period": 200, "percent": 50.0}, {"close": (500, 5_000)}),
    ("EMA of 20 bars, 2,000 x 5,000", "ema", {"period": 20}, {"prices": (2_000, 5_000)}),
)  # fmt: skip


class _Job:
    """A job whose inputs are files of a folder; each process makes its own."""

    def __init__(self, folder: Path, number: int) -> None:
        self.label, name, params, shapes = JOBS[number]
        self._folder = folder
        self._operation = OPERATIONS[name]
        self._params = self._operation.params.model_validate(params, strict=False)
        self._inputs = {each: np.load(folder / f"{number}-{each}.npy", mmap_mode="r") for each in shapes}
        self._options = {"seed": 1} if self._operation.randomness == "seed" else {}
        sharding = self._operation.shards(
            self._params, {each: ArrayInfo("float64", shape) for each, shape in shapes.items()}
        )
        assert sharding is not None
        self.sharding: Sharding = sharding

    def whole(self) -> dict[str, Any]:
        return self._operation.implementation("cpu")(self._params, **self._inputs, **self._options)

    def result(self, shard: Shard) -> dict[str, Any]:
        given = parts(self.sharding, shard, self._inputs)
        return compute(self._operation, "cpu", self._params, self.sharding, shard, given, **self._options)

    def in_shards(self, shards: int) -> dict[str, Any]:
        """The answer of this process alone, in so many shards."""
        results = ((shard, self.result(shard)) for shard in self.sharding.cut(shards))
        return merge(self._operation, self._params, self.sharding, results)

    def keep(self, shard: Shard, to: str) -> None:
        """Write the arrays of a shard to files."""
        for name, array in self.result(shard).items():
            np.save(self._folder / f"{to}-{name}.npy", array)

    def kept(self, shards: Sequence[tuple[Shard, str]]) -> dict[str, Any]:
        """The answer, from files."""
        results = (
            (shard, {name: np.load(self._folder / f"{at}-{name}.npy", mmap_mode="r") for name in names})
            for shard, at in shards
            if (names := self.sharding.results(shard))
        )
        return merge(self._operation, self._params, self.sharding, results)


def main() -> int:
    numba.set_num_threads(1)
    with (
        tempfile.TemporaryDirectory(prefix="warpdesk-bench-") as folder,
        ProcessPoolExecutor(2, get_context("spawn"), numba.set_num_threads, (1,)) as processes,
    ):
        _write_inputs(Path(folder))
        rows = [_measure(_Job(Path(folder), number), Path(folder), number, processes) for number in range(len(JOBS))]
    show("shards", rows)
    first = rows[0]
    reached = (
        first["times, processors"] >= TIMES and max(first[f"{count} shards, more"] for count in SHARDS) <= OVERHEAD
    )
    return int(not reached or not all(row["same bytes"] for row in rows))


def _write_inputs(folder: Path) -> None:
    random = np.random.default_rng(1)
    for number, (_, name, _, shapes) in enumerate(JOBS):
        for each, shape in shapes.items():
            values = random.normal(0, 0.01, shape)
            np.save(folder / f"{number}-{each}.npy", values if name == "matmul" else 100 * np.exp(values.cumsum(1)))


def _measure(job: _Job, folder: Path, number: int, processes: ProcessPoolExecutor) -> Row:
    """Time the job in one process and in two, and in shards, in turns; each once before."""
    numbers = count()

    def shared() -> tuple[dict[str, Any], float]:
        """The answer of two processes, and the processor time of the slower of them."""
        halves = [(shard, f"{number}-{next(numbers)}") for shard in job.sharding.cut(2)]
        taken = [processes.submit(_of_process, folder, number, shard, to) for shard, to in halves]
        slower = max(each.result() for each in taken)
        return job.kept(halves), slower

    ways: dict[str, Callable[[], Any]] = {"whole": lambda: (job.whole(), 0.0), "two": shared}
    ways |= {f"{shards}": partial(lambda shards: (job.in_shards(shards), 0.0), shards) for shards in SHARDS}
    clock: dict[str, list[float]] = {way: [] for way in ways}
    processor: dict[str, list[float]] = {way: [] for way in ways}
    answer, same = job.whole(), True
    for repeat in range(REPEATS + 2):  # two more, in which each of both processes compiles
        for way in ways if repeat % 2 else reversed(ways):
            began, worked = time.perf_counter(), time.process_time()
            found, elsewhere = ways[way]()
            took = time.perf_counter() - began, time.process_time() - worked + elsewhere
            if repeat > 1:
                clock[way].append(took[0])
                processor[way].append(took[1])
            same &= _as_bytes(found) == _as_bytes(answer)
    on_clock = {way: median(seconds) for way, seconds in clock.items()}
    of_processors = {way: min(seconds) for way, seconds in processor.items()}
    return {
        "job": job.label,
        "one process, ms": on_clock["whole"] * 1e3,
        "two, ms": on_clock["two"] * 1e3,
        "times": on_clock["whole"] / on_clock["two"],
        "times, processors": of_processors["whole"] / of_processors["two"],
        **{f"{shards} shards, more": of_processors[f"{shards}"] / of_processors["whole"] - 1 for shards in SHARDS},
        "same bytes": same,
    }


@cache
def _job(folder: Path, number: int) -> _Job:
    return _Job(folder, number)


def _of_process(folder: Path, number: int, shard: Shard, to: str) -> float:
    """Compute and keep a shard in this process; returns the processor time that it took."""
    worked = time.process_time()
    _job(folder, number).keep(shard, to)
    return time.process_time() - worked


def _as_bytes(answer: dict[str, Any]) -> list[Any]:
    return [value.tobytes() if isinstance(value, np.ndarray) else value for value in answer.values()]


if __name__ == "__main__":
    main()
