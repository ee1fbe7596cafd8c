"""A job that many workers compute in shards has the bytes of the job on one, whatever the cut and whoever computes."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.cudasim.device import EmulatedDevice
from tests.kernels.families import all_cases
from tests.kernels.parity import Answer, Case, assert_same
from tests.kernels.test_splits import REQUEST, SPLIT
from warpdesk_server.kernels import progress
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.catalogue import OPERATIONS
from warpdesk_server.kernels.gpu.contract import Device
from warpdesk_server.kernels.indicators.declared import DECLARED
from warpdesk_server.kernels.operation import SHARD_OVERHEAD, SHARD_SECONDS, Operation
from warpdesk_server.kernels.sharding import Division, Shard, Sharding
from warpdesk_server.kernels.shards import compute, join, merge, parts

pytestmark = pytest.mark.timeout(600)  # the emulator compiles and runs kernels, also on a busy machine

ROOT = Path(__file__).resolve().parents[2]
SHARDED = [name for name, operation in OPERATIONS.items() if operation.sharding is not None]
TYPICAL = [name for name in SPLIT if name in SHARDED]

# Constants of families on which units depend and no byte does: a few paths or rows make several units.
SMALL: dict[str, tuple[str, tuple[int, ...]]] = {
    "monte_carlo.spec.CHUNK": ("monte_carlo", (256, 512, 1024, 1 << 20)),
    "monte_carlo.spec.UNITS": ("monte_carlo", (3, 256)),
    "basket_options.spec.CHUNK": ("basket_options", (256, 512)),
    "matmul.spec._TILE": ("matmul", (1, 7, 32, 128)),
    "matmul.spec.PANEL_BYTES": ("matmul", (3_000, 1 << 26)),
    "indicators.spec.CHUNK_BARS": ("indicators", (1, 1_000, 1 << 22)),
}

# A property that draws a request of an operation and says how it is cut.
drawn = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


@dataclass(frozen=True)
class Job:
    """A job of a case, and its sharding."""

    case: Case
    operation: Operation
    params: Any
    inputs: dict[str, "np.ndarray[Any, Any]"]
    sharding: Sharding

    @property
    def options(self) -> dict[str, Any]:
        return {"seed": self.case.seed} if self.operation.randomness == "seed" else {}

    def result(self, shard: Shard, device: Device | None = None, **options: Any) -> dict[str, "np.ndarray[Any, Any]"]:
        where = {} if device is None else {"device": device}
        given = parts(self.sharding, shard, self.inputs)
        infos = {name: ArrayInfo(array.dtype.name, array.shape) for name, array in given.items()}  # type: ignore[arg-type]
        assert infos == self.sharding.parts(described(self.inputs), shard)
        backend = "cpu" if device is None else "gpu"
        chosen = {**self.options, **where, **options}
        return compute(self.operation, backend, self.params, self.sharding, shard, given, **chosen)  # type: ignore[arg-type]

    def memory(self, shard: Shard) -> int:
        """The bytes of a device that one chunk of a shard needs."""
        grid = self.operation.grid(self.sharding.like(shard), self.sharding.parts(described(self.inputs), shard))
        return grid.fixed + grid.each

    def merged(self, results: Any) -> Answer:
        return merge(self.operation, self.params, self.sharding, results)


def described(inputs: Mapping[str, "np.ndarray[Any, Any]"]) -> dict[str, ArrayInfo]:
    return {name: ArrayInfo(array.dtype.name, array.shape) for name, array in inputs.items()}  # type: ignore[arg-type]


def job_of(case: Case) -> Job | None:
    """The job of a case; None where it stays whole."""
    operation, inputs = OPERATIONS[case.operation], case.inputs()
    params = operation.params.model_validate(dict(case.params), strict=False)
    sharding = operation.shards(params, described(inputs))
    return None if sharding is None else Job(case, operation, params, inputs, sharding)


def sharded(case: Case) -> Job:
    job = job_of(case)
    assert job is not None
    return job


def request_of(name: str, random: np.random.Generator) -> Case:
    """A random request; of an indicator of several inputs sometimes one series for all assets."""
    given = REQUEST[name](random)
    seed = given.pop("seed", None)
    inputs = {field: given.pop(field) for field in tuple(given) if isinstance(given[field], np.ndarray)}
    if len(inputs) > 1 and OPERATIONS[name].package.endswith("indicators") and random.random() < 0.5:
        last = next(reversed(inputs))
        inputs |= {last: inputs[last][0] if random.random() < 0.5 else inputs[last][:1]}
    return Case(name, given, lambda: inputs, seed=seed)


@contextmanager
def small(name: str, choose: Callable[[tuple[int, ...]], int]) -> Iterator[None]:
    """Units of other sizes for an operation, as `choose` takes them."""
    with pytest.MonkeyPatch.context() as patch:
        for constant, (family, values) in SMALL.items():
            if OPERATIONS[name].package.endswith(family):
                patch.setattr(f"warpdesk_server.kernels.{constant}", choose(values))
        yield


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = numba.get_num_threads()
    numba.set_num_threads(min(count, numba.config.NUMBA_NUM_THREADS))
    try:
        yield
    finally:
        numba.set_num_threads(before)


def several(case: Case) -> bool:
    """Whether a case has several units, of the smallest size."""
    if case.operation not in SHARDED:
        return False
    with small(case.operation, min):
        return job_of(case) is not None


CASES = [case for _, case in all_cases() if several(case)]


def cuts(units: int) -> st.SearchStrategy[list[Shard]]:
    """Any cut of so many units into shards, one unit each and all in one among them."""
    ends = st.sets(st.integers(1, units - 1), max_size=12)
    several = ends.map(lambda inner: [0, *sorted(inner), units])
    cut = several.map(lambda ends: [Shard(*pair) for pair in pairwise(ends)])
    each = st.just([Shard(unit, unit + 1) for unit in range(units)])
    return st.one_of(cut, each, st.just([Shard(0, units)])).flatmap(st.permutations)


def check(name: str, data: st.DataObject, *, mixed: bool = False) -> None:
    """Draw a job and its shards, compute each on a drawn backend and number of threads, and compare what they make."""
    with small(name, lambda values: data.draw(st.sampled_from(values))):
        case = request_of(name, np.random.default_rng(data.draw(st.integers(0, 1 << 32), "seed of the request")))
        job = job_of(case)
        assume(job is not None)
        assert job is not None
        results = []
        for shard in data.draw(cuts(job.sharding.units), "shards in the order of computing"):
            memory = data.draw(st.sampled_from([0, job.memory(shard), 1 << 40]), "device memory") if mixed else 0
            on = EmulatedDevice(memory=memory) if memory else None
            with threads(data.draw(st.integers(1, 2), "threads")):
                results.append((shard, job.result(shard, on)))
        assert_same(case, case.run(), job.merged(results))


@pytest.mark.parametrize("name", TYPICAL)
@given(st.data())
@settings(drawn, max_examples=100)
def test_no_cut_into_shards_and_no_order_of_theirs_changes_a_byte(name: str, data: st.DataObject) -> None:
    check(name, data)


@pytest.mark.parametrize("name", TYPICAL)
@given(st.data())
@settings(drawn, max_examples=40)
def test_shards_of_a_cpu_and_of_a_gpu_make_one_answer(name: str, data: st.DataObject) -> None:
    check(name, data, mixed=True)


@pytest.mark.parametrize("name", [operation.name for operation in DECLARED])
def test_every_indicator_of_many_assets_has_the_bytes_that_it_has_asset_by_asset(name: str) -> None:
    random = np.random.default_rng(list(name.encode()))
    for _ in range(3):
        job = job_of(request_of(name, random))
        if job is not None:
            shards = [Shard(unit, unit + 1) for unit in range(job.sharding.units)]
            whole = job.case.run()
            assert_same(job.case, whole, job.merged((shard, job.result(shard)) for shard in shards))
            assert_same(job.case, whole, job.merged((shard, job.result(shard)) for shard in job.sharding.cut(2)))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_case_of_several_units_has_the_bytes_it_has_in_shards_of_both_backends(case: Case) -> None:
    with small(case.operation, min):
        job = sharded(case)
        device, whole = EmulatedDevice(), case.run()
        for count in (2, 3, job.sharding.units) if case.small else (3,):
            shards = job.sharding.cut(min(count, 40))[::-1]
            mixed = [(shard, job.result(shard, device if shard.first % 2 else None)) for shard in shards]
            assert_same(case, whole, job.merged(mixed))
            assert_same(case, whole, job.merged((shard, job.result(shard)) for shard in shards))


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES, ids=str)
def test_shards_of_a_real_gpu_and_of_the_cpu_make_the_answer_of_the_cpu(case: Case, cuda: Device) -> None:
    with small(case.operation, min):
        job = sharded(case)
        shards = job.sharding.cut(8)
        mixed = [(shard, job.result(shard, cuda if at % 2 else None)) for at, shard in enumerate(shards)]
        assert_same(case, case.run(), job.merged(mixed))


def option(payoff: str = "european", **given: Any) -> Case:
    market = {"spot": 100.0, "strike": 101.0, "volatility": 0.3, "maturity": 0.75, "option": "call"}
    return Case("monte_carlo", {"payoff": payoff, **market, **given}, seed=5)


def prices(assets: int, bars: int) -> Case:
    values = 100 + np.random.default_rng(assets).normal(size=(assets, bars))
    return Case("rsi", {"period": 14}, lambda: {"prices": values})


def product(a: tuple[int, ...], b: tuple[int, ...], algorithm: str | None = "kernel") -> Case:
    random = np.random.default_rng(1)
    inputs = {"a": random.normal(size=a), "b": random.normal(size=b)}
    return Case("matmul", {"algorithm": algorithm}, lambda: inputs)


# The edges of units: one more and one less than a block of paths, a tile of rows, one asset.
EDGES = {
    **{f"{paths} paths": (option(steps=3, paths=paths), -(-paths // 256)) for paths in (257, 511, 512, 513, 2_049)},
    **{f"{rows} rows": (product((rows, 5), (5, 6)), -(-rows // 128)) for rows in (129, 255, 256, 257, 1_025)},
    "two products": (product((2, 3, 5), (2, 5, 6)), 2),
    "three products of one a": (product((3, 5), (3, 5, 6)), 3),
    "tall matrices of one b": (product((3, 100, 5), (5, 6)), 3),
    "a batch of one": (product((1, 300, 5), (1, 5, 6)), 3),
    "a batch of one, and no batch": (product((300, 5), (1, 5, 6)), 3),
    "two assets": (prices(2, 100), 2),
    "33 assets": (prices(33, 100), 33),
}


@pytest.mark.parametrize("edge", EDGES)
def test_at_the_edges_of_units_every_number_of_shards_makes_the_answer(edge: str) -> None:
    case, units = EDGES[edge]
    job, whole = sharded(case), case.run()
    assert job.sharding.units == units
    for count in range(1, units + 2):
        shards = job.sharding.cut(count)
        assert_same(case, whole, job.merged((shard, job.result(shard)) for shard in shards))


@pytest.mark.parametrize("edge", EDGES)
def test_a_shard_that_is_cut_once_more_gives_its_arrays(edge: str) -> None:
    job = sharded(EDGES[edge][0])
    for shard in (Shard(0, job.sharding.units), *job.sharding.cut(2)):
        cut = job.sharding.cut(3, shard)
        assert (cut[0].first, cut[-1].end) == (shard.first, shard.end)
        joined = join(job.sharding, shard, ((part, job.result(part)) for part in cut[::-1]))
        assert_same(job.case, job.result(shard), joined)


WHOLE = {
    "one block of paths": option(steps=3, paths=256),
    "two paths": option(steps=3, paths=2),
    "one tile of rows": product((128, 5), (5, 6)),
    "one row": product((1, 5), (5, 6)),
    "a library": product((1_000, 5), (5, 6), "library"),
    "whatever is quickest": product((1_000, 5), (5, 6), None),
    "one asset": prices(1, 100),
    "one series": Case("rsi", {"period": 14}, lambda: {"prices": np.arange(100.0)}),
    "one series by another": Case(
        "rolling_pair",
        {"period": 5, "statistic": "beta"},
        lambda: {"close": np.arange(100.0), "benchmark": np.ones((1, 100))},
    ),
    "noise": Case("dp_noise", OPERATIONS["dp_noise"].example.params, lambda: {"values": np.ones(10)}),
    "another operation": Case("sum", {}, lambda: {"x": np.ones(10)}),
}


@pytest.mark.parametrize("which", WHOLE)
def test_a_job_of_one_unit_of_a_library_or_of_private_noise_stays_whole(which: str) -> None:
    case = WHOLE[which]
    operation, inputs = OPERATIONS[case.operation], described(case.inputs())
    params = operation.params.model_validate(dict(case.params), strict=False)
    assert operation.shards(params, inputs) is None
    assert operation.width(params, inputs, 8) == 1


def test_results_outlive_their_worker_in_files_and_are_merged_file_by_file(tmp_path: Path) -> None:
    """Inputs are maps of files, of which a shard reads one piece; the answer is a map that is filled."""
    random = np.random.default_rng(3)
    bars = {name: 100 + random.normal(size=(7, 300)) for name in ("high", "low", "close")}
    written = {"outputs": {"r": {"op": "rsi", "of": "close", "period": 5}, "a": {"op": "sub", "a": "high", "b": "low"}}}
    for case in (Case("expression", written, lambda: bars), product((3, 200, 9), (9, 4)), option(steps=2, paths=3_000)):
        job = sharded(case)
        for name, array in job.inputs.items():
            np.save(tmp_path / f"{name}.npy", array)
        given = {name: np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in job.inputs}
        elsewhere = replace(job, inputs=given)
        shards = job.sharding.cut(3)
        for shard in shards:
            for name, part in parts(job.sharding, shard, given).items():
                assert part.flags.c_contiguous
                assert np.shares_memory(part, given[name])
            for name, array in elsewhere.result(shard).items():
                np.save(tmp_path / f"{shard.first}-{name}.npy", array)

        def mapped(name: str, info: ArrayInfo) -> "np.ndarray[Any, Any]":
            path = tmp_path / f"whole-{name}.npy"
            return np.lib.format.open_memmap(path, "w+", np.dtype(info.dtype), info.shape)

        names = job.sharding.results(shards[0])
        stored = {
            shard: {name: np.load(tmp_path / f"{shard.first}-{name}.npy", mmap_mode="r") for name in names}
            for shard in shards
        }
        answer = merge(job.operation, job.params, job.sharding, stored.items(), mapped)
        assert_same(case, case.run(), answer)
        for name in job.sharding.joined.keys() & answer.keys():
            assert_same(case, {name: answer[name]}, {name: np.load(tmp_path / f"whole-{name}.npy")})


@given(units=st.integers(1, 10_000), count=st.integers(1, 200))
def test_shards_are_as_even_as_can_be_and_have_every_unit_once(units: int, count: int) -> None:
    shards = Sharding(units, lambda _: None).cut(count)
    sizes = [shard.end - shard.first for shard in shards]
    assert len(shards) == min(count, units)
    assert min(sizes) >= max(1, max(sizes) - 1)
    assert [unit for shard in shards for unit in range(shard.first, shard.end)] == list(range(units))


def test_what_is_missing_twice_there_or_of_another_shape_is_refused() -> None:
    job = sharded(prices(5, 40))
    first, second = Shard(0, 2), Shard(2, 5)
    one, two = job.result(first), job.result(second)
    assert job.merged([(second, two), (first, one)])["rsi"].shape == (5, 40)
    for results in ([(first, one)], [(second, two)], [(first, one)] * 2 + [(second, two)], []):
        with pytest.raises(ValueError, match="expected each of 0 to 5 once"):
            job.merged(results)
    with pytest.raises(ValueError, match=r"rsi of units 2 to 5 is float64 of shape \[2, 40\], expected .* \[3, 40\]"):
        job.merged([(first, one), (second, one)])
    with pytest.raises(ValueError, match="is float32 of shape"):
        job.merged([(first, {"rsi": one["rsi"].astype(np.float32)}), (second, two)])


@pytest.mark.parametrize("case", [option(steps=2, paths=1_500), prices(6, 40), product((6, 4, 5), (6, 5, 3))], ids=str)
def test_the_comparison_finds_results_in_the_wrong_order_of_another_seed_or_of_other_units(case: Case) -> None:
    job, whole = sharded(case), case.run()
    first, second = job.sharding.cut(2)
    one, two = job.result(first), job.result(second)
    assert_same(case, whole, job.merged([(first, one), (second, two)]))
    wrong = [(two, one), (one, one)]
    if job.options:
        wrong.append((one, job.result(second, seed=6)))
    for results in wrong:
        answer = job.merged(zip((first, second), results, strict=True))
        with pytest.raises(AssertionError, match=r"differs|expected"):
            assert_same(case, whole, answer)


def test_an_operation_with_a_key_or_a_secret_cannot_be_cut() -> None:
    for name in ("dp_noise", "secure_aggregation", "shamir_reconstruct"):
        assert OPERATIONS[name].confidential
        with pytest.raises(TypeError, match=f"{name} is confidential"):
            replace(OPERATIONS[name], sharding=lambda _params, _inputs: None)
    assert {name for name in SHARDED if OPERATIONS[name].confidential} == set()


def test_floats_are_joined_and_never_added_up() -> None:
    with pytest.raises(TypeError, match="total: floats"):
        Sharding(2, lambda _: None, added={"total": ArrayInfo("float64", (3,))})


def width(case: Case, workers: int, shapes: dict[str, tuple[int, ...]] | None = None) -> int:
    operation = OPERATIONS[case.operation]
    params = operation.params.model_validate(dict(case.params), strict=False)
    infos = {name: ArrayInfo("float64", shape) for name, shape in (shapes or {}).items()}
    return operation.width(params, infos, workers)


def test_as_many_shards_are_taken_as_workers_are_idle_where_it_helps() -> None:
    long = option(steps=100, paths=50_000_000)  # 8.9 s of one core
    assert [width(long, workers) for workers in (0, 1, 2, 7)] == [1, 1, 2, 7]
    assert width(long, 1_000) == 8.5 / SHARD_SECONDS
    assert width(option(steps=1, paths=30_000_000), 1_000) == 1  # 0.45 s
    heavy = product((1, 1), (1, 1))
    assert width(heavy, 4, {"a": (32_768, 16_384), "b": (16_384, 16_384)}) == 4
    assert width(heavy, 1_000, {"a": (32_768, 16_384), "b": (16_384, 16_384)}) == 256  # one tile of rows each


def test_a_job_that_is_short_or_mostly_reading_and_writing_stays_whole() -> None:
    assert width(product((1, 1), (1, 1)), 8, {"a": (1_000, 1_000), "b": (1_000, 1_000)}) == 1
    assert width(prices(1, 20), 8, {"prices": (50_000, 5_000)}) == 1
    assert width(product((1, 1), (1, 1)), 8, {"a": (4_096, 4_096), "b": (4_096, 4_096)}) == 1


@pytest.mark.parametrize("name", TYPICAL)
def test_shards_of_the_width_auto_take_little_more_than_the_job(name: str) -> None:
    operation = OPERATIONS[name]
    example = {
        "monte_carlo": {**operation.example.params, "paths": 3_000_000},
        "matmul": {"algorithm": "kernel"},
        "basket_option": {**OPERATIONS["basket_option"].variants[0].params, "paths": 50_000_000},
        "rolling_quantile": {**operation.example.params, "period": 10_000},
    }.get(name, operation.example.params)
    params = operation.params.model_validate(example, strict=False)
    shape = (20_000, 20_000) if name != "basket_option" else (5,)
    inputs = {given.name: ArrayInfo("float32", shape) for given in operation.inputs if given.required}
    inputs = inputs or ({} if name == "monte_carlo" else {"close": ArrayInfo("float32", shape)})
    sharding = operation.shards(params, inputs)
    assert sharding is not None
    count = operation.width(params, inputs, 12)
    assert count > 1 or name not in ("monte_carlo", "basket_option", "matmul", "rolling_quantile")
    whole = operation.cost(params, inputs).core_seconds
    each = [operation.shard_cost(sharding, inputs, shard).core_seconds for shard in sharding.cut(count)]
    if count > 1:
        merging = operation.merge_cost(sharding, count).core_seconds
        assert sum(each) / count + merging <= whole / count + SHARD_OVERHEAD * whole
        assert min(each) > SHARD_SECONDS * 0.9


def test_a_shard_reports_its_own_progress() -> None:
    job = sharded(option(steps=2, paths=20_000))
    done: list[float] = []
    with progress.telling(done.append):
        job.result(job.sharding.cut(3)[1])
    assert done == sorted(set(done))
    assert done[-1] == pytest.approx(1.0)


def test_how_a_job_is_cut_is_worked_out_without_numpy() -> None:
    program = """
import json, sys
sys.modules["numpy"] = None
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.catalogue import OPERATIONS
found = {}
shapes = {"monte_carlo": (), "matmul": (30_000, 30_000), "rsi": (30_000, 3_000), "expression": (9, 99)}
for name, shape in shapes.items():
    operation = OPERATIONS[name]
    given = {**operation.example.params, "algorithm": "kernel"} if name == "matmul" else operation.example.params
    params = operation.params.model_validate(given, strict=False)
    inputs = {each: ArrayInfo("float64", shape) for each in operation.example.inputs}
    sharding = operation.shards(params, inputs)
    shard = sharding.cut(3)[2]
    described = sharding.parts(inputs, shard), sharding.results(shard), operation.shard_cost(sharding, inputs, shard)
    found[name] = [sharding.units, operation.width(params, inputs, 4)]
print(json.dumps(found))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "monte_carlo": [196, 1],
        "matmul": [235, 4],
        "rsi": [30_000, 1],
        "expression": [9, 1],
    }


def test_a_division_of_a_batch_is_of_rows_or_of_matrices() -> None:
    batch = ArrayInfo("float64", (3, 4, 5))
    rows, matrices, series = Division(batch, each=7), Division(batch, inner=2), Division(batch, outer=1)
    shard = Shard(1, 2)
    assert [each.lines for each in (rows, matrices, series)] == [(12, 5), (3, 4, 5), (3, 4, 5)]
    assert [each.span(shard) for each in (rows, matrices, series)] == [(7, 12), (1, 2), (1, 2)]
    assert [each.part(shard).shape for each in (rows, matrices, series)] == [(5, 5), (1, 4, 5), (3, 1, 5)]
