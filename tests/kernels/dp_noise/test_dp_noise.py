"""What a caller of dp_noise gets, is told, and cannot ask for."""

import secrets
from fractions import Fraction
from math import exp, prod
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.cudasim.device import DeviceArray, EmulatedDevice
from tests.kernels.dp_noise.cases import AGGREGATE, RECORDS
from tests.kernels.parity import Case, assert_same
from tests.kernels.watched import WatchedDevice
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.dp_noise import cpu, gpu, spec
from warpdesk_server.kernels.dp_noise.spec import OPERATION
from warpdesk_server.kernels.gpu.faults import DeviceFault, OutOfMemory
from warpdesk_server.kernels.operation import Grid
from warpdesk_server.kernels.problems import InvalidRequest


def _release(params: dict[str, Any], values: Any, key: bytes | None = None) -> dict[str, Any]:
    values = np.asarray(values)
    parsed = OPERATION.validate(params, {"values": ArrayInfo(values.dtype.name, values.shape)})
    return cpu.dp_noise(parsed, values, key=key or secrets.token_bytes(32))


def test_the_example_runs_and_its_answer_has_every_output() -> None:
    example = OPERATION.example.inputs["values"]
    answer = _release(OPERATION.example.params, np.array(example["data"], example["dtype"]))
    assert list(answer) == [output.name for output in OPERATION.outputs]
    assert answer["noisy"].shape == (1,)
    assert abs(answer["noisy"][0] - 271.75) < 100 * 40  # off by more once in e**40


def test_enforced_records_are_said_to_be_private_and_the_release_to_be_unaccounted() -> None:
    answer = _release({**RECORDS, "neighbouring": "replace_one"}, np.ones(10))
    assert answer["sensitivity_source"] == "enforced"
    assert answer["unaccounted"] is True
    assert "epsilon-differentially private with epsilon = 1 for replacing one record" in answer["statement"]
    assert "Unaccounted: no budget was charged" in answer["statement"]


@pytest.mark.parametrize(
    "amount",
    [{"epsilon": "1"}, {"mechanism": "discrete_gaussian", "epsilon": None, "scale": "2.5"}],
    ids=["laplace", "gaussian"],
)
def test_a_declared_sensitivity_is_never_called_private(amount: dict[str, Any]) -> None:
    answer = _release({**AGGREGATE, **amount}, np.ones(10))
    assert answer["sensitivity_source"] == "declared"
    assert "noise at scale" in answer["statement"]
    assert "private" not in str(answer)
    assert "differential" not in str(answer).lower()
    assert "Unaccounted: no budget was charged" in answer["statement"]


def test_every_noisy_value_lies_on_the_stated_grid() -> None:
    for params in (
        RECORDS,
        {**AGGREGATE, "epsilon": "0.3"},
        {**AGGREGATE, "sensitivity": {"norm": "linf", "value": "0.7"}},
    ):
        answer = _release(params, np.linspace(-5, 5, 400))
        grid = Fraction(answer["grid"]["exact"])
        for value in answer["noisy"].tolist():
            assert value == float(round(Fraction(value) / grid)) * float(grid)


def test_the_sum_under_the_noise_is_the_clipped_sum() -> None:
    values = np.array([[0.5, 3.0], [-9.0, 0.25], [0.125, -1.0]])
    params = {**RECORDS, "epsilon": "1000"}
    answer = _release(params, values)
    expected = np.clip(values, -1, 1).sum(axis=0)
    noise_scale = answer["scale"]["value"]
    assert noise_scale == pytest.approx(2 / 1000)
    assert np.abs(answer["noisy"] - expected).max() < 40 * noise_scale


def test_accuracy_95_holds_for_95_percent_of_noise() -> None:
    count = 100_000
    gaussian = {"mechanism": "discrete_gaussian", "epsilon": None, "scale": "0.01"}
    for amount in ({"epsilon": "100"}, gaussian):
        answer = _release({**AGGREGATE, **amount, "sensitivity": {"norm": "linf", "value": "0.001"}}, np.zeros(count))
        within = np.mean(np.abs(answer["noisy"]) < answer["accuracy_95"])
        assert abs(within - 0.95) < 5 * (0.95 * 0.05 / count) ** 0.5


def test_the_same_key_gives_the_same_bytes_and_another_key_other_noise() -> None:
    values = np.arange(100.0)
    one, again, other = (_release(AGGREGATE, values, key=bytes([b]) * 32)["noisy"] for b in (1, 1, 2))
    assert one.tobytes() == again.tobytes()
    assert not np.any(one == other)


def test_randomness_is_private_so_that_no_caller_can_choose_it() -> None:
    assert OPERATION.randomness == "private"
    with pytest.raises(InvalidRequest, match="/params/seed: there is no field"):
        OPERATION.validate({**RECORDS, "seed": 1}, {"values": ArrayInfo("float64", (3,))})


def test_narrow_types_give_what_their_float64_values_give() -> None:
    key = secrets.token_bytes(32)
    values = np.array([0, 1, 7, 200, 31])
    expected = _release(AGGREGATE, values.astype(np.float64), key=key)["noisy"]
    for dtype in (np.float32, np.int64, np.int32, np.uint32, np.uint8):
        assert np.array_equal(_release(AGGREGATE, values.astype(dtype), key=key)["noisy"], expected)


@pytest.mark.parametrize("norm", ["l1", "l2", "linf"])
def test_an_integer_record_beyond_float64_is_clipped_like_any_other(norm: str) -> None:
    """A refusal would tell that somebody's record is that large."""
    key = bytes(range(32))
    params = RECORDS | {"clip": {"norm": norm, "bound": "1"}}
    far = np.array([[2**62 + 1, 0], [0, -(2**63)], [2**53 + 1, 0]])
    expected = _release(params, far.astype(np.float64), key=key)["noisy"]
    assert np.array_equal(_release(params, far, key=key)["noisy"], expected)
    parsed = OPERATION.params.model_validate(params, strict=False)
    assert np.array_equal(gpu.dp_noise(parsed, far, key=key, device=EmulatedDevice())["noisy"], expected)


def test_read_only_memory_is_enough() -> None:
    values = np.arange(9.0)
    values.flags.writeable = False
    assert _release(AGGREGATE, values.reshape(3, 3))["noisy"].shape == (3, 3)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.array([1.0, np.nan]), "NaN or an infinity"),
        (np.array([-np.inf]), "NaN or an infinity"),
        (np.array([2**53 + 1]), "an integer is above 2\\*\\*53 in magnitude"),
        (np.array([-(2**63)]), "an integer is above 2\\*\\*53 in magnitude"),
        (np.array([0.0, 4.5e12]), "a value is 4.4e\\+12 or more in magnitude"),
    ],
)
def test_values_only_the_data_shows_to_be_wrong_are_refused_by_both_backends(values: Any, message: str) -> None:
    params = OPERATION.params.model_validate(AGGREGATE, strict=False)
    with pytest.raises(InvalidRequest, match=message):
        cpu.dp_noise(params, values, key=bytes(32))
    with pytest.raises(InvalidRequest, match=message):
        gpu.dp_noise(params, values, key=bytes(32), device=EmulatedDevice())


@pytest.mark.parametrize("chunk", [1, 7 * 6, 10**6])
@pytest.mark.parametrize("norm", ["l1", "l2", "linf"])
def test_a_device_gives_the_same_bytes_however_the_records_are_cut(
    norm: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = np.random.default_rng(6).normal(0, 1, (50, 6))
    case = Case(
        "dp_noise", {**RECORDS, "clip": {"norm": norm, "bound": "1"}}, lambda: {"values": values}, key=bytes(32)
    )
    expected = case.run()
    monkeypatch.setattr(spec, "CHUNK", chunk)
    assert_same(case, expected, case.run(EmulatedDevice()))


@pytest.mark.parametrize("n", [511, 512, 513, 1025, 1600])
def test_records_beyond_the_blocks_of_a_launch_are_shared_out_among_them(
    monkeypatch: pytest.MonkeyPatch, n: int
) -> None:
    values = np.random.default_rng(n).normal(0, 2, (n, 3))
    params = {**RECORDS, "clip": {"norm": "l1", "bound": "1"}}
    case = Case("dp_noise", params, lambda: {"values": values}, key=bytes(32))
    for most in (1, 2, 3, 65_535):
        monkeypatch.setattr(gpu, "_GRID_Y", most)
        assert_same(case, case.run(), case.run(EmulatedDevice()))


@pytest.mark.parametrize("mechanism", [{}, {"mechanism": "discrete_gaussian", "rho": "1", "epsilon": None}])
def test_elements_that_run_dry_have_the_same_noise_in_blocks_of_any_number_of_elements(
    mechanism: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case("dp_noise", {**AGGREGATE, **mechanism}, lambda: {"values": np.arange(2500.0)}, key=bytes(32))
    expected = case.run()
    for most in (1, 3, 8):
        monkeypatch.setattr(gpu, "_MOST_ROUNDS", most)
        device = EmulatedDevice()
        device.multiprocessors = device.blocks_per_multiprocessor = 1
        assert_same(case, expected, case.run(device))


_CUT = [
    ({**RECORDS, "clip": {"norm": norm, "bound": "1"}}, shape)
    for norm, shape in (("linf", (40,)), ("l2", (40, 3)), ("l1", (2, 90)))
] + [(AGGREGATE, (150,))]


@pytest.mark.parametrize("resident", [1, 2, 3, 100])
@pytest.mark.parametrize(("params", "shape"), _CUT)
def test_the_noise_is_the_same_however_many_chunks_are_in_memory(
    params: dict[str, Any], shape: tuple[int, ...], resident: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case("dp_noise", params, lambda: {"values": np.linspace(-3, 3, prod(shape)).reshape(shape)}, key=bytes(32))
    expected = case.run()
    monkeypatch.setattr(spec, "CHUNK", 16)
    grid = _grid(params, shape)
    assert grid.chunks > 2
    assert_same(case, expected, case.run(EmulatedDevice(memory=grid.fixed + resident * grid.each)))


@pytest.mark.parametrize(("params", "shape"), _CUT)
def test_a_chunk_takes_what_the_grid_says(
    params: dict[str, Any], shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case("dp_noise", params, lambda: {"values": np.zeros(shape)}, key=bytes(32))
    monkeypatch.setattr(spec, "CHUNK", 16)
    grid = _grid(params, shape)
    device = EmulatedDevice(memory=grid.fixed + grid.each)
    case.run(device)
    # Asked for is the larger of what is fixed for records, their sum, and for elements, key and flag.
    assert 0 <= grid.fixed + grid.each - device.memory.peak <= 36
    with pytest.raises(OutOfMemory):
        case.run(EmulatedDevice(memory=device.memory.peak - 1))


def _grid(params: dict[str, Any], shape: tuple[int, ...]) -> Grid:
    return OPERATION.grid(
        OPERATION.params.model_validate(params, strict=False), {"values": ArrayInfo("float64", shape)}
    )


@pytest.mark.parametrize(("params", "shape"), _CUT)
@pytest.mark.parametrize("seed", range(6))
def test_what_ran_out_of_memory_is_released_again_with_the_same_noise_and_leaves_nothing(
    params: dict[str, Any], shape: tuple[int, ...], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case("dp_noise", params, lambda: {"values": np.linspace(-3, 3, prod(shape)).reshape(shape)}, key=bytes(32))
    expected = case.run()
    monkeypatch.setattr(spec, "CHUNK", 16)
    device = _Scarce(seed)
    assert_same(case, expected, case.run(device))
    assert device.failed
    assert device.left() == 0


class _Scarce(WatchedDevice):
    """A device on which memory runs out now and then, never twice running."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._random = np.random.default_rng(seed)
        self.failed = 0
        self._patient = seed % 3  # allocations that succeed before one may fail again

    def _allocate(self, shape: Any, dtype: Any) -> DeviceArray:
        if self._patient == 0 and (not self.failed or self._random.random() < 1 / 3):
            self.failed += 1
            self._patient = 5
            raise OutOfMemory("out of memory, says the test", 2)
        self._patient = max(0, self._patient - 1)
        return super()._allocate(shape, dtype)


_PRIVATE = [
    ({**RECORDS, "clip": {"norm": norm, "bound": "1"}}, np.linspace(-3, 3, 60).reshape(20, 3))
    for norm in ("l1", "l2", "linf")
] + [(AGGREGATE, np.linspace(-3, 3, 60))]


@pytest.mark.parametrize(("params", "values"), _PRIVATE)
@pytest.mark.parametrize("chunk", [1, 10**6])
def test_no_byte_of_records_key_or_noise_is_left_in_device_memory(
    params: dict[str, Any], values: npt.NDArray[np.float64], chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spec, "CHUNK", chunk)
    device, key = WatchedDevice(), secrets.token_bytes(32)
    parsed = OPERATION.params.model_validate(params, strict=False)
    answer = gpu.dp_noise(parsed, values, key=key, device=device)
    assert key in device.copied
    assert any(values.tobytes().startswith(went) for went in device.copied)
    assert device.left() == 0
    assert np.array_equal(answer["noisy"], _release(params, values, key)["noisy"])


@pytest.mark.parametrize(
    ("params", "values", "options"),
    [
        (RECORDS, np.ones((20, 3)), {"refuse": "laplace_noise"}),
        (RECORDS, np.ones((20, 3)), {"refuse": "sum_rows"}),
        (AGGREGATE, np.ones(20), {"refuse": "laplace_noise"}),
        (AGGREGATE, np.ones(20), {"memory": 20 * 8 + 4 + 31}),  # no room for the key
        (AGGREGATE, np.array([1.0, 1e300]), {}),  # refused for the value that only the grid shows
    ],
)
def test_no_byte_is_left_where_the_job_fails(
    params: dict[str, Any], values: npt.NDArray[np.float64], options: dict[str, Any]
) -> None:
    device = WatchedDevice(**options)
    parsed = OPERATION.params.model_validate(params, strict=False)
    with pytest.raises((DeviceFault, InvalidRequest)):
        gpu.dp_noise(parsed, values, key=bytes([7]) * 32, device=device)
    assert device.given
    assert device.left() == 0


@pytest.mark.parametrize("threads", [1, 16, 64, 1000])
def test_the_memory_for_partial_sums_is_in_the_cost_whatever_the_cores(
    monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    n, d = 40, 1000
    taken = []
    summed = cpu.sum_records

    def watched(rows: Any, *arguments: Any) -> Any:
        taken.append(arguments[-1])
        return summed(rows, *arguments)

    monkeypatch.setattr(cpu, "get_num_threads", lambda: threads)
    monkeypatch.setattr(cpu, "sum_records", watched)
    _release(RECORDS, np.ones((n, d)))
    (parts,) = taken
    assert parts == min(threads, 16)
    cost = OPERATION.cost(OPERATION.params.model_validate(RECORDS), {"values": ArrayInfo("float64", (n, d))}).bytes
    # The values and their float64, a sum and a record in every part, the total and the answer.
    assert cost >= 2 * 8 * n * d + parts * 2 * 8 * d + 2 * 8 * d


@pytest.mark.parametrize("count", [1, 31, 32, 33, 1023, 1024, 1025])
def test_edge_sizes_keep_their_shape_and_stay_near_the_values(count: int) -> None:
    answer = _release(
        {**AGGREGATE, "sensitivity": {"norm": "linf", "value": "0.001"}, "epsilon": "100"}, np.arange(count)
    )
    assert answer["noisy"].shape == (count,)
    assert np.abs(answer["noisy"] - np.arange(count)).max() < 50 * answer["scale"]["value"]


# Floating-point attacks. A sampler of floats returns, for an input of 0, values that an input of 1 cannot give
# (Mironov, CCS 2012; Haney et al., arXiv 2207.13793): one output in four gives the input away.


def _impossible_for_one(outputs: npt.NDArray[np.float64]) -> float:
    """The share of outputs that are no multiple of 2**-53: float noise around 0 reaches them, around 1 it cannot."""
    scaled = outputs * 2.0**53
    return float(np.mean(scaled != np.rint(scaled)))


def test_outputs_for_zero_and_for_one_lie_on_the_same_lattice() -> None:
    count = 50_000
    params = {**AGGREGATE, "sensitivity": {"norm": "linf", "value": "1"}, "epsilon": str(count)}  # scale 1
    zero, one = (_release(params, np.full(count, x))["noisy"] for x in (0.0, 1.0))
    grid = Fraction(_release(params, np.zeros(count))["grid"]["exact"])
    for outputs in (zero, one):
        steps = np.rint(outputs / float(grid))
        assert np.array_equal(steps * float(grid), outputs)
    assert _impossible_for_one(zero) == _impossible_for_one(np.rint(zero / float(grid)) * float(grid))
    assert abs(np.abs(zero).mean() - 1) < 0.05


def test_the_distinguisher_catches_a_float_sampler() -> None:
    noise = np.random.default_rng(8).laplace(size=50_000)
    assert _impossible_for_one(noise) > 0.2
    assert _impossible_for_one(1 + noise) == 0.0


@pytest.mark.parametrize(
    "params",
    [
        {**AGGREGATE, "sensitivity": {"norm": "linf", "value": "1"}},
        {**AGGREGATE, "sensitivity": {"norm": "linf", "value": "1"}, "mechanism": "discrete_gaussian"},
        {**RECORDS, "query": "identity", "neighbouring": "replace_one"},
        {**RECORDS, "query": "identity", "neighbouring": "replace_one", "mechanism": "discrete_gaussian"},
    ],
)
def test_the_distinguisher_finds_nothing_in_ours(params: dict[str, Any]) -> None:
    # A grid of 53 bits, on which products are rounded as a float sampler's are.
    count, scale = 200_000, 0.7
    given = {**params, "epsilon": None, "scale": str(scale)}
    zero, one = (_impossible_for_one(_release(given, np.full(count, x))["noisy"]) for x in (0.0, 1.0))
    assert min(zero, one) > 1e-3, "what one gives the other gives too"
    if "laplace" in given["mechanism"]:
        factor = exp(1 / scale)
        for first, second in ((zero, one), (one, zero)):
            assert first <= factor * second + 5 * ((first + factor**2 * second) / count) ** 0.5


def test_neighbours_outputs_are_within_the_factor_epsilon_promises() -> None:
    # Outputs for sums apart by the whole sensitivity: P0 <= e^epsilon P1 in each bin, five standard deviations allowed.
    count, epsilon = 200_000, 0.5
    params = {**AGGREGATE, "sensitivity": {"norm": "linf", "value": "1"}, "epsilon": str(epsilon * count)}
    zero, one = (_release(params, np.full(count, x))["noisy"] for x in (0.0, 1.0))
    edges = np.linspace(-6, 7, 40)
    for a, b in ((zero, one), (one, zero)):
        first, second = np.histogram(a, edges)[0].astype(float), np.histogram(b, edges)[0].astype(float)
        slack = 5 * np.sqrt(first + exp(2 * epsilon) * second + 1)
        assert np.all(first <= exp(epsilon) * second + slack)
        # The same check with half the epsilon must fail: the bound is tight in the tails, or the test proves nothing.
        slack = 5 * np.sqrt(first + exp(epsilon) * second + 1)
        assert not np.all(first <= exp(epsilon / 2) * second + slack)
