"""What a caller of federated_average gets: exact averages, clipped ones with noise, steps of FedAvg and FedAdam."""

import json
import secrets
import tracemalloc
from fractions import Fraction
from math import isqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cudasim.device import EmulatedDevice
from tests.kernels.federated_average.cases import CASES, NOISE, ROUND, updates
from tests.kernels.parity import Case, assert_same
from tests.kernels.watched import WatchedDevice
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.dp_noise.calibration import epsilon_of_rho, rho_of
from warpdesk_server.kernels.federated_average import cpu, gpu, spec
from warpdesk_server.kernels.federated_average.averaging import prepare
from warpdesk_server.kernels.federated_average.params import FederatedAverage
from warpdesk_server.kernels.federated_average.plan import plan
from warpdesk_server.kernels.federated_average.spec import OPERATION
from warpdesk_server.kernels.gpu.faults import LaunchFailed, OutOfMemory
from warpdesk_server.kernels.problems import InvalidRequest
from warpdesk_server.kernels.spend import Spend

_REFERENCE = Path(__file__).parents[4] / "shared" / "reference" / "privacy_reference_cases.json"
_NOISY = {"dp": NOISE, "unaccounted": True}
_BUDGET = "budget_" + 32 * "a"
# The first call of a compiled function loads or compiles it: no example has a deadline.
_settings = settings(deadline=None, max_examples=40)
Array = np.ndarray[Any, Any]


def run(params: dict[str, Any], key: bytes | None = None, **inputs: Any) -> dict[str, Any]:
    arrays = {name: np.asarray(array) for name, array in inputs.items()}
    infos = {name: ArrayInfo(array.dtype.name, array.shape) for name, array in arrays.items()}
    return cpu.federated_average(OPERATION.validate(params, infos), **arrays, key=key or secrets.token_bytes(32))


def exactly(values: Array, weights: Array) -> list[Fraction]:
    """The weighted mean in rationals."""
    total = sum(map(Fraction, weights.tolist()))
    return [
        sum((Fraction(w) * Fraction(x) for w, x in zip(weights.tolist(), column, strict=True)), Fraction(0)) / total
        for column in values.T.tolist()
    ]


def reference(suite: str) -> Any:
    if not _REFERENCE.exists():
        pytest.skip(f"{_REFERENCE} is not here")
    return json.loads(_REFERENCE.read_text())["suites"][suite]


# Without noise.


def test_the_reference_average_is_met_to_the_last_bit() -> None:
    case = next(case for case in reference("fedavg") if case["id"] == "fedavg-1")
    answer = run({}, updates=np.array(case["updates"]), weights=np.array(case["weights"]))
    assert answer["average"].tolist() == case["expect"]
    assert answer["total_weight"] == 10


def test_the_example_runs_and_its_answer_has_every_output() -> None:
    inputs = {name: np.array(given["data"], given["dtype"]) for name, given in OPERATION.example.inputs.items()}
    answer = run(OPERATION.example.params, **inputs)
    assert list(answer) == [output.name for output in OPERATION.outputs]
    assert answer["average"].tolist() == [2.025, 1.4, -0.2]
    assert answer["model"].tolist() == [0.5 + 2.025, 1.4, -0.5 - 0.2]
    assert [answer[name].size for name in ("first_moment", "second_moment")] == [0, 0]


_FLOATS = st.floats(-1e6, 1e6, allow_nan=False)


@_settings
@given(
    st.integers(1, 20).flatmap(
        lambda n: st.tuples(
            st.lists(st.lists(_FLOATS, min_size=3, max_size=3), min_size=n, max_size=n),
            st.lists(st.floats(1e-6, 1e6), min_size=n, max_size=n),
        )
    ),
    st.sampled_from(["float32", "float64"]),
)
def test_without_noise_the_average_is_that_of_rationals(drawn: Any, dtype: str) -> None:
    values, weights = np.array(drawn[0], dtype), np.array(drawn[1])
    got = run({}, updates=values, weights=weights)["average"].tolist()
    share = max(abs(x) * w for row, w in zip(values.tolist(), weights.tolist(), strict=True) for x in row)
    for value, truth in zip(got, exactly(values, weights), strict=True):
        # Half a step, and half a unit in the last place of the product, for each client; two roundings at the end.
        allowed = len(values) * share * 2.0**-48 / weights.sum() + abs(float(truth)) * 2.0**-51
        assert abs(value - truth) <= allowed


@_settings
@given(st.integers(1, 40), st.integers(1, 9), st.booleans(), st.randoms(use_true_random=False))
def test_the_order_of_clients_changes_no_byte(clients: int, width: int, noisy: bool, random: Any) -> None:
    params = _NOISY if noisy else {}
    inputs = updates(clients, width, random.choice(["float32", "float64"]))
    order = random.sample(range(clients), clients)
    shuffled = {name: array[order] for name, array in inputs.items()}
    one, other = (run(params, key=bytes(32), **each) for each in (inputs, shuffled))
    assert one["average"].tobytes() == other["average"].tobytes()


def test_a_sum_of_floats_does_depend_on_the_order_of_clients() -> None:
    """Else the test above would show nothing."""
    values = updates(40, 9, "float64")["updates"]
    assert values.sum(axis=0).tobytes() != values[::-1].sum(axis=0).tobytes()


@pytest.mark.parametrize("params", [{}, _NOISY], ids=["plain", "noisy"])
def test_an_update_of_zeros_is_one_that_moves_nothing(params: dict[str, Any]) -> None:
    assert any(case["id"] == "zero-update" for case in reference("fedavg"))
    values = np.array([[3.0, -1.0], [0.0, 0.0]])
    without = run(params, key=bytes(32), updates=values, weights=[2.0, 0.0])["average"]
    zeros = run(params, key=bytes(32), updates=values, weights=[2.0, 3.0])
    if params:  # the divisor is fixed
        assert zeros["average"].tolist() == without.tolist()
    else:
        assert zeros["average"].tolist() == [1.2, -0.4]
    assert run(params, updates=np.zeros((3, 2)))["average"].shape == (2,)


@pytest.mark.parametrize("size", [1, 31, 32, 33, 1023, 1024, 1025, 4095, 4097, 65_537])
def test_edge_sizes_have_the_average_of_numpy(size: int) -> None:
    values = np.random.default_rng(size).normal(0, 1, (3, size))
    got = run({}, updates=values, weights=[1.0, 2.0, 5.0])["average"]
    most = 3 * 2.0**-49 * np.abs(values).max()  # a step for each client
    np.testing.assert_allclose(got, np.average(values, axis=0, weights=[1, 2, 5]), rtol=0, atol=most)


def test_equal_updates_average_to_themselves_whatever_their_size() -> None:
    for value in (1e-280, 2.5, 1.7e308, float(np.finfo(np.float32).smallest_subnormal)):
        (got,) = run({}, updates=np.full((7, 1), value), weights=np.full(7, 0.1))["average"].tolist()
        assert abs(got / value - 1) <= 2.0**-48


def test_weights_of_any_size_make_the_same_average() -> None:
    values = np.array([[1.0], [4.0]])
    for scale in (2.0**-1000, 1.0, 2.0**1000):
        assert run({}, updates=values, weights=np.array([1.0, 3.0]) * scale)["average"].tolist() == [3.25]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"updates": [[1.0, np.nan]]}, "/inputs/updates: the array holds a NaN or an infinity"),
        ({"updates": np.array([[1.0, -np.inf]], "f4")}, "/inputs/updates: the array holds a NaN or an infinity"),
        ({"updates": [[1.0]], "weights": [np.nan]}, "/inputs/weights: the array holds a NaN or an infinity"),
        ({"updates": [[1.0]], "weights": [-1.0]}, "/inputs/weights: weight 0 is negative"),
        ({"updates": [[1.0], [2.0]], "weights": [0, 0]}, "/inputs/weights: all 2 weights are zero"),
        ({"updates": [[1.0], [2.0]], "weights": [1.7e308, 1.7e308]}, "add up to more than a float64 holds"),
        ({"updates": [[1.0]], "model": [np.inf]}, "/inputs/model: the array holds a NaN or an infinity"),
    ],
)
def test_numbers_only_the_data_shows_to_be_wrong_are_refused_by_both_backends(
    inputs: dict[str, Any], message: str
) -> None:
    arrays = {name: np.asarray(array) for name, array in inputs.items()}
    params = FederatedAverage()
    with pytest.raises(InvalidRequest, match=message):
        cpu.federated_average(params, **arrays, key=bytes(32))
    with pytest.raises(InvalidRequest, match=message):
        gpu.federated_average(params, **arrays, key=bytes(32), device=EmulatedDevice())


# Clipping and noise.


def _steps_of(dp: dict[str, Any], values: Array, weights: Array) -> tuple[Any, list[list[int]]]:
    """The plan, and each client's integers as they enter the sum: one client a call, and no noise."""
    params = FederatedAverage.model_validate({"dp": dp, "unaccounted": True})
    made = plan(params, *values.shape)
    clients = []
    for i in range(len(values)):
        given = {"updates": values[i : i + 1], "weights": weights[i : i + 1]}
        names = ("updates", "weights", "sum", "model", "first_moment", "second_moment")
        job = prepare(params, {name: given.get(name) for name in names})
        clients.append(cpu._total(job).tolist())
    return made, clients


@_settings
@given(
    st.lists(st.lists(st.floats(-1e9, 1e9), min_size=4, max_size=4), min_size=1, max_size=6),
    st.sampled_from(["0.001", "1", "37.5"]),
    st.sampled_from(["0.01", "0.5", "1e4"]),
    st.sampled_from(["add_remove", "replace_one"]),
    st.randoms(use_true_random=False),
)
def test_no_client_moves_the_sum_by_more_than_the_bound(
    values: Any, clip: str, rho: str, neighbouring: str, random: Any
) -> None:
    dp = {**NOISE, "clip": clip, "rho": rho, "neighbouring": neighbouring}
    weights = np.array([random.choice([-1.0, 0.0, 0.3, 3.0, 99.0]) for _ in values])
    made, clients = _steps_of(dp, np.array(values), weights)
    factor = 2 if neighbouring == "replace_one" else 1
    assert made.bound * factor == made.sensitivity
    for steps, weight in zip(clients, weights.tolist(), strict=True):
        share = min(max(Fraction(weight), Fraction(0)), 3) / 3
        assert sum(q * q for q in steps) <= (made.bound * share) ** 2
    # What one step is worth in the sum: the bound is worth no more than clip * max_weight.
    step = made.grid * Fraction(NOISE["expected_weight"])
    assert made.bound * step <= Fraction(clip) * 3
    assert made.rho <= Fraction(rho)
    assert made.rho >= Fraction(rho) * (1 - Fraction(1, 2**15))


def test_an_update_within_the_clip_is_not_changed_and_one_outside_keeps_its_direction() -> None:
    values = np.array([[0.3, -0.4, 0.0], [3.0, -4.0, 0.0], [0.3, -0.4, 0.0]])
    weights = np.array([3.0, 3.0, 1.0])
    made, (inside, outside, light) = _steps_of({**NOISE, "clip": "2"}, values, weights)
    step = float(made.grid * 20)  # in units of weight times update
    np.testing.assert_allclose(np.array(inside) * step, 3 * values[0], atol=2 * step)
    np.testing.assert_allclose(np.array(outside) * step, 3 * 2 * values[1] / 5, atol=2 * step)
    np.testing.assert_allclose(np.array(light) * step, values[2], atol=2 * step)


def test_the_reference_clippings_are_met() -> None:
    for case in reference("clipping")["cases"]:
        steps, bound = [int(q) for q in case["q"]], int(case["C"])
        squares = [[[sum((q >> 25) ** 2 for q in steps), sum((q >> 25) * (q & 0x1FFFFFF) for q in steps),
                     sum((q & 0x1FFFFFF) ** 2 for q in steps)]]]  # fmt: skip
        params = FederatedAverage.model_validate({"dp": {**NOISE, "max_weight": "1"}, "unaccounted": True})
        given = dict.fromkeys(("weights", "sum", "model", "first_moment", "second_moment"))
        job = prepare(params, {"updates": np.zeros((1, len(steps))), **given})
        assert job.made is not None
        object.__setattr__(job.made, "bound", bound)
        (ratio,) = job.ratios(np.array(squares, np.uint64), 0, 1).tolist()
        assert [q * ratio >> 63 for q in steps] == [int(q) for q in case["expect"]]


@pytest.mark.parametrize("width", [1, 8191, 8192, 8193, 20_000])
def test_a_norm_is_exact_whatever_the_size_of_an_update(width: int) -> None:
    """At the largest step counts there are, so that each sum of squares comes near its 63 bits."""
    params = FederatedAverage.model_validate({"dp": {**NOISE, "clip": "1e-9"}, "unaccounted": True})
    values = np.random.default_rng(width).choice([-1e30, 1e30, 1e-9 / 3], (1, width))
    given = dict.fromkeys(("weights", "sum", "model", "first_moment", "second_moment"))
    job = prepare(params, {"updates": values, **given})
    assert job.made is not None
    squares = np.empty((1, -(-width // spec.BLOCK), 3), np.uint64)
    cpu._add_squares(values, float(job.factors[0]), 0, squares.shape[1], squares)
    steps = [min(max(round(x * float(job.factors[0])), -(2**50)), 2**50) for x in values[0].tolist()]
    norm_squared = sum(q * q for q in steps)
    norm = isqrt(norm_squared) + (isqrt(norm_squared) ** 2 < norm_squared)
    (ratio,) = job.ratios(squares, 0, 1).tolist()
    assert ratio == (2**63 * Fraction(1, 3) * min(1, Fraction(job.made.bound, norm))).__floor__()


def test_noise_has_the_scale_that_is_told_and_the_answer_lies_on_the_grid() -> None:
    width = 100_000
    answer = run(_NOISY, updates=np.zeros((2, width)))
    scale, grid = answer["scale"]["value"], Fraction(answer["grid"]["exact"])
    assert scale == pytest.approx(3 * 1.5 / 20)  # noise multiplier 1: rho is 1/2
    assert abs(answer["average"].std() / scale - 1) < 6 / (2 * width) ** 0.5
    assert abs(answer["average"].mean()) < 6 * scale / width**0.5
    within = np.mean(np.abs(answer["average"]) < answer["accuracy_95"])
    assert abs(within - 0.95) < 6 * (0.95 * 0.05 / width) ** 0.5
    for value in answer["average"][:500].tolist():
        assert value == float(round(Fraction(value) / grid)) * float(grid)


def test_with_noise_the_average_is_of_clipped_updates_over_a_fixed_weight() -> None:
    values, weights = np.array([[0.5, 0.0], [30.0, 40.0], [0.0, -0.5]]), [1.0, 9.0, -2.0]
    quiet = {"dp": {**NOISE, "rho": "500000"}, "unaccounted": True}
    answer = run(quiet, updates=values, weights=weights)
    expected = (np.array([0.5, 0.0]) + 3 * 1.5 * np.array([0.6, 0.8])) / 20
    assert np.abs(answer["average"] - expected).max() < 8 * answer["scale"]["value"]
    assert answer["total_weight"] == 20
    assert 8 * answer["scale"]["value"] < 0.002


def test_the_same_key_gives_the_same_bytes_and_another_key_other_noise() -> None:
    inputs = updates(5, 100, "float32")
    one, again, other = (run(_NOISY, key=bytes([b]) * 32, **inputs)["average"] for b in (1, 1, 2))
    assert one.tobytes() == again.tobytes()
    assert not np.any(one == other)
    plain, plain_too = (run({}, key=bytes([b]) * 32, **inputs)["average"] for b in (1, 2))
    assert plain.tobytes() == plain_too.tobytes()


def test_a_noise_multiplier_is_the_rho_it_costs() -> None:
    by_rho, by_multiplier = (
        plan(FederatedAverage.model_validate({"dp": {**NOISE, "rho": None, **noise}, "unaccounted": True}), 5, 3)
        for noise in ({"rho": "0.125"}, {"noise_multiplier": "2"})
    )
    assert by_rho == by_multiplier
    assert by_rho.rho == Fraction(1, 8)
    assert by_rho.scale == 2 * by_rho.sensitivity * by_rho.grid


# On top of a round.


def test_the_sum_of_a_round_is_divided_as_the_round_says() -> None:
    total = np.array([65536 * 4, -65536, 3])
    given = {"survivors": 4, "quantisation": {"clip": "8", "scale": "65536"}}
    assert run({"round": given}, sum=total)["average"].tolist() == [1.0, -0.25, 3 / 65536 / 4]
    weighted = {**given, "quantisation": {**given["quantisation"], "max_weight": 9}, "total_weight": 32}
    assert run({"round": weighted}, sum=total)["average"].tolist() == [1 / 8, -1 / 32, 3 / 65536 / 32]


def test_a_round_and_its_clients_in_the_clear_have_the_same_average() -> None:
    values = np.random.default_rng(4).normal(0, 1, (9, 50))
    total = np.rint(np.clip(values, -8, 8) * 65536).astype(np.int64).sum(axis=0)
    over_round = run({"round": ROUND}, sum=total)["average"]
    np.testing.assert_allclose(over_round, run({}, updates=values)["average"], atol=2.0**-17)


def test_noise_on_a_round_covers_what_its_clients_round_and_what_the_grid_does() -> None:
    width = 400
    params = {"round": ROUND, "dp": {**NOISE, "max_weight": None}, "unaccounted": True}
    made = plan(FederatedAverage.model_validate(params), 9, width)
    # One client: norm 1.5 at 65,536 steps a unit, and half a step of rounding in each of 400 coordinates.
    of_client = Fraction("1.5") * 65536 + 10
    assert made.sensitivity >= of_client * made.steps + 20
    assert made.sensitivity < of_client * made.steps * (1 + Fraction(1, 2**40)) + 21
    assert made.rho <= Fraction(1, 2)
    answer = run(params, sum=np.zeros(width, np.int64))
    assert answer["sensitivity_source"] == "declared"
    assert answer["scale"]["value"] == pytest.approx((1.5 + 10 / 65536) / 20, rel=1e-6)
    assert abs(answer["average"].std() / answer["scale"]["value"] - 1) < 0.2


def test_a_round_whose_own_bound_is_tighter_needs_less_noise() -> None:
    loose, tight = (
        plan(
            FederatedAverage.model_validate(
                {
                    "round": {"survivors": 9, "quantisation": {"clip": clip, "scale": "65536"}},
                    "dp": {**NOISE, "max_weight": None},
                    "unaccounted": True,
                }
            ),
            9,
            4,
        )
        for clip in ("8", "0.125")
    )
    assert tight.scale < loose.scale / 5  # norm 0.25 at most, by its quantisation, against 1.5 by the clip


# The server's step.


def test_fedavg_moves_the_model_by_the_average() -> None:
    answer = run({"learning_rate": 0.5}, updates=[[2.0, -4.0]], model=[1.0, 1.0])
    assert answer["model"].tolist() == [2.0, -1.0]


def test_fedadam_is_algorithm_2_of_reddi_round_after_round() -> None:
    """Recomputed from the paper in extended precision: m, v, x + eta m / (sqrt(v) + tau), where v begins at tau^2."""
    random, eta, beta1, beta2, tau = np.random.default_rng(3), 0.1, 0.9, 0.99, 1e-3
    x = random.normal(0, 1, 50)
    model, state = x.astype(np.longdouble), {}
    m, v = np.zeros(50, np.longdouble), np.full(50, np.longdouble(tau) ** 2)
    for _ in range(5):
        values = random.normal(0, 0.1, (4, 50))
        answer = run({"strategy": "fedadam", "learning_rate": eta}, updates=values, model=x, **state)
        delta = answer["average"].astype(np.longdouble)
        m, v = beta1 * m + (1 - beta1) * delta, beta2 * v + (1 - beta2) * delta**2
        model = model + eta * m / (np.sqrt(v) + tau)
        x = answer["model"]
        state = {name: answer[name] for name in ("first_moment", "second_moment")}
        for got, expected in ((x, model), (state["first_moment"], m), (state["second_moment"], v)):
            np.testing.assert_allclose(got, expected.astype(np.float64), rtol=1e-13, atol=1e-15)


def test_fedadam_is_adam_of_torch_without_its_bias_correction() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    eta, beta1, beta2, tau = 0.1, 0.9, 0.99, 1e-3
    random = np.random.default_rng(5)
    x = random.normal(0, 1, 20)
    parameter = torch.nn.Parameter(torch.tensor(x))
    adam = torch.optim.Adam([parameter], lr=eta, betas=(beta1, beta2), eps=tau)
    state = {"first_moment": np.zeros(20), "second_moment": np.zeros(20)}
    for step in range(1, 6):
        values = random.normal(0, 0.1, (4, 20))
        # torch divides m by 1 - beta1^t and v by 1 - beta2^t: our eta and tau are scaled to undo that.
        first, second = 1 - beta1**step, (1 - beta2**step) ** 0.5
        params = {"strategy": "fedadam", "learning_rate": eta * second / first, "tau": tau * second}
        answer = run(params, updates=values, model=x, **state)
        parameter.grad = -torch.tensor(answer["average"])
        adam.step()
        x = answer["model"]
        state = {name: answer[name] for name in ("first_moment", "second_moment")}
        np.testing.assert_allclose(x, parameter.detach().numpy(), rtol=1e-12)


# What is told, and what is charged.


def test_clipped_updates_are_said_to_be_private_and_by_whom_they_were_seen() -> None:
    answer = run({"dp": {**NOISE, "neighbouring": "replace_one"}, "unaccounted": True}, updates=np.ones((4, 2)))
    assert answer["sensitivity_source"] == "enforced"
    assert "differentially private with rho = 0.5 for replacing one client" in answer["statement"]
    assert "Nothing is claimed for clients having been sampled" in answer["statement"]
    assert "Unaccounted: no budget was charged" in answer["statement"]
    assert answer["unaccounted"] is True
    assert answer["server_learned"].startswith("Every client's update")
    # How many clients took part is private where one may be added or removed.
    assert "4 " not in answer["statement"]


def test_a_declared_clip_is_never_called_private_and_an_exact_average_says_that_it_is_not() -> None:
    noisy = run({"round": ROUND, "dp": {**NOISE, "max_weight": None}, "unaccounted": True}, sum=np.zeros(3, np.int64))
    assert "private" not in noisy["statement"]
    assert "nothing here can check it" in noisy["statement"]
    assert "no single vector. Secure aggregation is not differential privacy" in noisy["server_learned"]
    plain = run({}, updates=np.ones((4, 2)))
    assert "it is not differential privacy" in plain["statement"]
    assert [plain[name] for name in ("mechanism", "spent", "unaccounted", "sensitivity_source")] == [None] * 4


def _spend(params: dict[str, Any], **inputs: ArrayInfo) -> Spend | None:
    assert OPERATION.spend is not None
    return OPERATION.spend(OPERATION.validate(params, inputs), inputs)


def test_what_is_charged_is_what_was_asked_under_the_relation_asked_for() -> None:
    given = {"updates": ArrayInfo("float32", (10, 3))}
    noise = {**NOISE, "rho": None, "noise_multiplier": "3"}
    assert _spend({"dp": {**NOISE, "rho": "0.1"}, "budget": _BUDGET}, **given) == Spend(
        None, None, Fraction(1, 10), "add_remove"
    )
    assert _spend({"dp": {**noise, "neighbouring": "replace_one"}, "budget": _BUDGET}, **given) == Spend(
        None, None, Fraction(1, 18), "replace_one"
    )


def test_an_epsilon_and_a_delta_are_the_rho_that_keeps_them() -> None:
    given = {"updates": ArrayInfo("float32", (10, 3))}
    epsilon, delta = Fraction(3), Fraction(1, 10**6)
    dp = {**NOISE, "rho": None, "epsilon": "3", "delta": "1e-6"}
    spent = _spend({"dp": dp, "budget": _BUDGET}, **given)
    assert spent is not None
    assert spent.approx == (epsilon, delta)
    assert spent.zcdp == rho_of(epsilon, delta)
    answer = run({"dp": dp, "unaccounted": True}, updates=np.ones((4, 2)))
    assert Fraction(answer["spent"]["epsilon"]["exact"]) == 3
    assert Fraction(answer["spent"]["rho"]["exact"]) <= spent.zcdp
    assert "(epsilon, delta)-differentially private with epsilon = 3 and delta = 0.000001" in answer["statement"]
    # The other way round: a noise multiplier with a delta is charged with the epsilon it comes to.
    other = _spend({"dp": {**NOISE, "rho": None, "noise_multiplier": "2", "delta": "1e-6"}, "budget": _BUDGET}, **given)
    assert other == Spend(None, (epsilon_of_rho(Fraction(1, 8), delta), delta), Fraction(1, 8), "add_remove")


def test_an_average_without_noise_or_account_charges_nothing() -> None:
    given = {"updates": ArrayInfo("float32", (10, 3))}
    assert _spend({}, **given) is None
    assert _spend(_NOISY, **given) is None
    answer = run({"dp": NOISE, "budget": _BUDGET}, updates=np.ones((4, 2)))
    assert answer["unaccounted"] is False
    assert "A budget was charged for it." in answer["statement"]


@pytest.mark.parametrize(
    ("params", "inputs", "message"),
    [
        ({}, {}, "needs updates, or the sum of a round"),
        ({}, {"updates": (2, 3), "sum": (3,)}, "needs the field round"),
        ({"round": ROUND}, {"updates": (2, 3)}, "but not the sum of that round"),
        ({"round": ROUND}, {"sum": (3,), "weights": (9,)}, "the sum of a round already includes its weights"),
        ({}, {"updates": (2, 3), "weights": (3,)}, "3 weights for 2 updates"),
        ({}, {"updates": (2, 3), "model": (4,)}, "4 numbers, and the updates have 3"),
        ({}, {"updates": (2, 3), "first_moment": (3,)}, "strategy fedavg has no moments"),
        ({"strategy": "fedadam"}, {"updates": (2, 3)}, "fedadam needs the model"),
        (
            {"strategy": "fedadam"},
            {"updates": (2, 3), "model": (3,), "first_moment": (3,)},
            "/inputs/second_moment: give both moments of the round before",
        ),
        ({"beta1": 0.5}, {"updates": (2, 3)}, "strategy fedavg does not take beta1"),
        ({"strategy": "fedadam", "beta1": 1.0}, {"updates": (2, 3)}, "beta1 should be below 1"),
        ({"learning_rate": 0.0}, {"updates": (2, 3)}, "learning_rate should be above 0"),
        ({"unaccounted": True}, {"updates": (2, 3)}, "unaccounted is for dp"),
        ({"dp": NOISE}, {"updates": (2, 3)}, "exactly one of budget and unaccounted is needed"),
        ({"dp": NOISE, "budget": _BUDGET, "unaccounted": True}, {"updates": (2, 3)}, "got both"),
        ({"dp": {**NOISE, "noise_multiplier": "1"}, "unaccounted": True}, {"updates": (2, 3)}, "got rho, noise"),
        ({"dp": {**NOISE, "rho": None}, "unaccounted": True}, {"updates": (2, 3)}, "got none"),
        ({"dp": {**NOISE, "rho": None, "epsilon": "1"}, "unaccounted": True}, {"updates": (2, 3)}, "with a delta"),
        ({"dp": {**NOISE, "delta": "1e-6"}, "unaccounted": True}, {"updates": (2, 3)}, "rho is taken without a delta"),
        (
            {"dp": {**NOISE, "rho": None, "epsilon": "1", "delta": "1"}, "unaccounted": True},
            {"updates": (2, 3)},
            "delta '1' is not below one",
        ),
        ({"dp": {**NOISE, "rho": "1e-25"}, "unaccounted": True}, {"updates": (2, 3)}, "leaves 0 steps"),
        ({"dp": {**NOISE, "rho": "1e12"}, "unaccounted": True}, {"updates": (2, 3)}, "above 1099511627776"),
        ({"dp": {**NOISE, "rho": "5e5"}, "unaccounted": True}, {"updates": (2**23, 1)}, "the sum could overflow"),
        ({"round": ROUND, **_NOISY}, {"sum": (3,)}, "does not take dp.max_weight"),
        (
            {"round": {**ROUND, "quantisation": {"clip": "8", "scale": "65536", "max_weight": 3}}},
            {"sum": (3,)},
            "needs the sum of their weights",
        ),
        ({"round": {**ROUND, "total_weight": 10}}, {"sum": (3,)}, "9 weights from 1 to 1 cannot add up to 10"),
        ({"seed": 1}, {"updates": (2, 3)}, "there is no field 'seed'"),
    ],
)
def test_bad_requests_are_refused_with_the_numbers(
    params: dict[str, Any], inputs: dict[str, tuple[int, ...]], message: str
) -> None:
    infos = {name: ArrayInfo("int64" if name == "sum" else "float64", shape) for name, shape in inputs.items()}
    with pytest.raises(InvalidRequest) as raised:
        OPERATION.validate(params, infos)
    assert message in str(raised.value)


def test_a_sum_that_no_such_round_can_have_is_refused() -> None:
    for params in ({"round": ROUND}, {"round": ROUND, "dp": {**NOISE, "max_weight": None}, "unaccounted": True}):
        with pytest.raises(InvalidRequest, match="a coordinate passes 4718592"):
            run(params, sum=np.array([0, -(2**63)]))


def test_a_negative_mean_of_squares_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="a mean of squares is negative"):
        run({"strategy": "fedadam"}, updates=[[1.0]], model=[0.0], first_moment=[0.0], second_moment=[-1.0])


# On a device.


_CUT = [
    case for case in CASES if "updates" in (given := case.inputs()) and given["updates"].size < 5_000
]  # the others have no other code


@pytest.mark.parametrize("chunk", [16, 200])
@pytest.mark.parametrize("case", _CUT, ids=str)
def test_a_device_gives_the_same_bytes_however_the_updates_are_cut(
    case: Case, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = case.run()
    monkeypatch.setattr(spec, "CHUNK", chunk)
    assert_same(case, expected, case.run(EmulatedDevice()))


@pytest.mark.parametrize("most", [1, 2, 3])
def test_clients_beyond_the_blocks_of_a_launch_are_shared_out_among_them(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case("federated_average", {}, lambda: updates(100, 3, "float32"), key=bytes(32))
    monkeypatch.setattr(gpu, "_GRID_Y", most)
    assert_same(case, case.run(), case.run(EmulatedDevice()))


_PRIVATE = [
    Case("federated_average", {"strategy": "fedadam", **params}, inputs, key=bytes(32))
    for params, inputs in (
        ({}, lambda: updates(9, 40, "float32", ("model",))),
        (_NOISY, lambda: updates(9, 40, "float64", ("model",))),
        ({"round": ROUND}, lambda: {"sum": np.arange(90), "model": np.ones(90)}),
    )
]


@pytest.mark.parametrize("case", _PRIVATE, ids=["plain", "noisy", "round"])
def test_nothing_of_the_updates_is_left_on_the_device(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spec, "CHUNK", 64)
    device = WatchedDevice()
    assert_same(case, case.run(), case.run(device))
    assert device.given
    assert device.left() == 0


@pytest.mark.parametrize("kernel", ["add_squares", "add_up", "gaussian_noise", "adapt"])
def test_nothing_is_left_where_a_kernel_fails(kernel: str) -> None:
    device = WatchedDevice(refuse=kernel)
    with pytest.raises(LaunchFailed):
        _PRIVATE[1].run(device)
    assert device.given
    assert device.left() == 0


@pytest.mark.parametrize("case", _PRIVATE, ids=["plain", "noisy", "round"])
def test_a_chunk_takes_what_the_grid_says(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spec, "CHUNK", 16)
    params = FederatedAverage.model_validate(dict(case.params))
    inputs = {name: ArrayInfo(array.dtype.name, array.shape) for name, array in case.inputs().items()}
    grid = OPERATION.grid(params, inputs)
    assert grid.chunks > 2
    device = EmulatedDevice(memory=grid.fixed + grid.each)
    assert_same(case, case.run(), case.run(device))
    # Asked for is the larger of what is fixed and the larger of what a chunk has, of chunks of updates and of elements.
    assert (grid.fixed + grid.each) / 2 < device.memory.peak <= grid.fixed + grid.each
    with pytest.raises(OutOfMemory):
        case.run(EmulatedDevice(memory=device.memory.peak - 1))


def test_a_job_holds_no_more_host_memory_than_its_cost_says() -> None:
    values = np.ones((40, 20_000), np.float32)
    for params in ({"strategy": "fedadam"}, {"strategy": "fedadam", **_NOISY}):
        inputs = {"updates": values, "model": np.ones(20_000)}
        infos = {name: ArrayInfo(array.dtype.name, array.shape) for name, array in inputs.items()}
        run(params, **inputs)  # compiled
        tracemalloc.start()
        run(params, **inputs)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak <= OPERATION.cost(OPERATION.validate(params, infos), infos).bytes + 200_000
