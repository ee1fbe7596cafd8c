"""No (epsilon, delta) is promised that the noise does not keep, and little noise is given away for it."""

from fractions import Fraction
from itertools import pairwise
from math import log
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.kernels.dp_noise.distributions import gaussian_pmf, laplace_pmf
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.dp_noise import calibration
from warpdesk_server.kernels.dp_noise.calibration import (
    epsilon_of_move,
    epsilon_of_rho,
    largest_move,
    least_beyond,
    rho_of,
)
from warpdesk_server.kernels.dp_noise.description import describe
from warpdesk_server.kernels.dp_noise.params import DpNoise
from warpdesk_server.kernels.dp_noise.plan import plan
from warpdesk_server.kernels.dp_noise.spec import OPERATION

_settings = settings(deadline=None, max_examples=40)
_EPSILONS = st.decimals("0.001", "30", places=4).map(Fraction)
_DELTAS = st.integers(1, 60).map(lambda bits: Fraction(1, 2**bits))


def _exact_delta(scale: int, moved: int, epsilon: Fraction) -> Any:
    """Theorem 7 by its definition, term by term: the sum over n of max(0, P(n) - e^epsilon P(n - D)), in 60 digits."""
    with mpmath.workdps(60):
        weight = mpmath.e ** (-mpmath.mpf(1) / (2 * scale**2))
        reach = range(-14 * scale - moved, 14 * scale + moved)
        whole = mpmath.fsum(weight ** (n * n) for n in reach)
        factor = mpmath.exp(mpmath.mpf(epsilon.numerator) / epsilon.denominator)
        gains = (weight ** ((n - moved) ** 2) - factor * weight ** (n * n) for n in reach)
        return mpmath.fsum(gain for gain in gains if gain > 0) / whole


def _continuous_delta(scale: float, moved: float, epsilon: float) -> float:
    """Balle and Wang (2018), Theorem 8."""
    with mpmath.workdps(40):
        at, half, e = epsilon * mpmath.mpf(scale) / moved, mpmath.mpf(moved) / (2 * scale), mpmath.exp(epsilon)
        return float(mpmath.ncdf(half - at) - e * mpmath.ncdf(-half - at))


@pytest.mark.parametrize("k", [4, 5, 6])
@pytest.mark.parametrize(("moves", "epsilon"), [(1, "0.1"), (1.5, "3"), (0.3, "0.01"), (0.1, "0.5"), (4, "10")])
def test_delta_is_the_sum_over_the_pmf_and_never_below_it(k: int, moves: float, epsilon: str) -> None:
    moved = max(1, round(moves * 2**k))
    exact = _exact_delta(2**k, moved, Fraction(epsilon))
    with calibration._lock:
        calibration._mp.prec = 200
        bound = calibration._delta(k, moved, Fraction(epsilon))
    assert exact <= mpmath.mpf(bound.numerator) / bound.denominator <= exact * (1 + mpmath.mpf(2) ** (14 - 4 * k))


def test_the_sum_over_the_pmf_is_what_accounting_libraries_say_and_the_continuous_formula_is_below_it() -> None:
    # dp-accounting 0.6.0, pld.from_discrete_gaussian_mechanism(sigma=2, sensitivity=1) at delta 1e-5.
    assert _exact_delta(2, 1, Fraction("2.0113398213477054")) == pytest.approx(1e-5, rel=1e-4)
    assert _continuous_delta(2, 1, 2.0113398213477054) < 0.95e-5


# dp-accounting 0.6.0, pld.from_discrete_gaussian_mechanism at loss intervals of 1e-5, to which it rounds.
@pytest.mark.parametrize(
    ("k", "moved", "delta", "epsilon"), [(6, 20, "1e-6", 1.3501273849165703), (6, 16, "1e-9", 1.3956255707827243)]
)
def test_the_epsilon_of_a_move_is_that_of_dp_accounting(k: int, moved: int, delta: str, epsilon: float) -> None:
    assert abs(epsilon_of_move(k, moved, Fraction(delta)) - epsilon) < 1e-5


# (epsilon, delta, sigma) of Balle and Wang's mechanism for a sensitivity of 1, by mpmath in 50 digits. On a fine grid
# discrete noise needs no more.
_REFERENCE = [
    ("0.01", "1e-7", 362.018347829838842),
    ("0.1", "1e-9", 50.2098182630153307),
    ("1", "1e-5", 3.73063163481594183),
    ("1", "1e-9", 5.49526615723829619),
    ("2", "1e-5", 1.99381244564353668),
    ("8", "1e-5", 0.6002290722),
    ("10", "1e-6", 0.541086831818365981),
    ("20", "1e-9", 0.3598120866545926),
    ("50", "1e-10", 0.180294222942413729),
]


@pytest.mark.parametrize(("epsilon", "delta", "sigma"), _REFERENCE)
def test_one_coordinate_needs_the_noise_of_the_reference_cases(epsilon: str, delta: str, sigma: float) -> None:
    chosen = 2**30 / largest_move(30, Fraction(epsilon), Fraction(delta))
    assert sigma * (1 - 1e-9) <= chosen <= sigma * (1 + 1e-6)
    assert _continuous_delta(chosen, 1, float(epsilon)) <= float(delta) * (1 + 1e-9)


@_settings
@given(_EPSILONS, _DELTAS, st.sampled_from([20, 24, 30]))
@example(Fraction(1, 10**6), Fraction(1, 2), 20)
@example(Fraction(100), Fraction(9, 10), 20)
@example(Fraction(3), Fraction(1, 10**30), 30)
def test_the_move_that_is_found_keeps_delta_and_one_in_a_thousand_more_would_not(
    epsilon: Fraction, delta: Fraction, k: int
) -> None:
    moved = largest_move(k, epsilon, delta)
    with calibration._lock:
        calibration._mp.prec = 400
        assert moved == 0 or calibration._delta(k, moved, epsilon) <= delta
        assert calibration._delta(k, moved + 1 + moved // 1000, epsilon) > delta


@_settings
@given(_EPSILONS, _DELTAS)
def test_an_epsilon_that_is_solved_for_keeps_delta_and_is_the_least_that_does(
    epsilon: Fraction, delta: Fraction
) -> None:
    moved = largest_move(24, epsilon, delta)
    if moved == 0:
        return
    found = epsilon_of_move(24, moved, delta)
    with calibration._lock:
        calibration._mp.prec = 400
        assert calibration._delta(24, moved, found) <= delta
        less = found * Fraction(999_999, 1_000_000) - Fraction(1, 10**8)
        assert less <= 0 or calibration._delta(24, moved, less) > delta
    # The search ends a little above; what it gives away protects.
    assert found <= epsilon * Fraction(1_000_001, 1_000_000) + Fraction(1, 10**7)


def _log_delta_of(rho: Fraction, epsilon: Fraction) -> float:
    """The logarithm of Corollary 13's delta, the least over orders a = 1 + less, by trying very many of them."""
    less = np.exp(np.linspace(-40, 40, 400_001))
    orders = less * ((1 + less) * float(rho) - float(epsilon)) - np.log(less) - (1 + less) * np.log1p(1 / less)
    return float(orders.min())


@_settings
@given(_EPSILONS, st.integers(3, 60).map(lambda bits: Fraction(1, 2**bits)))
def test_rho_for_several_coordinates_is_what_the_conversion_allows_and_not_more(
    epsilon: Fraction, delta: Fraction
) -> None:
    rho = rho_of(epsilon, delta)
    assert _log_delta_of(rho, epsilon) <= log(delta) + 1e-6  # the best order lies between those that are tried
    assert _log_delta_of(rho * Fraction(1001, 1000), epsilon) > log(delta)


# rho, delta, and epsilon of the tight conversion as dp-accounting 0.6.0 and OpenDP 0.16.0 give it.
@pytest.mark.parametrize(
    ("rho", "delta", "epsilon"),
    [
        ("0.5", "1e-5", 4.728386984943314),
        ("0.2", "1e-5", 2.813632189331966),
        ("1.25", "1e-6", 8.845889348462379),
        ("1", "1e-6", 7.766216625311721),
    ],
)
def test_rho_is_told_in_the_epsilon_of_the_reference_cases(rho: str, delta: str, epsilon: float) -> None:
    found = epsilon_of_rho(Fraction(rho), Fraction(delta))
    assert epsilon * (1 - 1e-14) <= found <= epsilon * (1 + 1e-10) + 1e-12
    assert (
        Fraction(rho) * (1 - Fraction(1, 10**10))
        <= rho_of(found, Fraction(delta))
        <= Fraction(rho) * (1 + Fraction(1, 10**10))
    )


@settings(deadline=None, max_examples=15)
@given(st.floats(1e-4, 20), st.integers(2, 12))
def test_rho_is_told_in_the_epsilon_of_opendp(rho: float, digits: int) -> None:
    prelude = pytest.importorskip("opendp.prelude", reason="OpenDP is not installed")
    prelude.enable_features("contrib")
    space = prelude.atom_domain(T=float, nan=False), prelude.absolute_distance(T=float)
    scale = (1 / (2 * rho)) ** 0.5
    curve = prelude.c.make_zCDP_to_approxDP(prelude.m.make_gaussian(*space, scale=scale)).map(1.0)
    reference = curve.epsilon(10.0**-digits)
    ours = float(epsilon_of_rho(Fraction(1 / (2 * scale**2)), Fraction(1, 10**digits)))
    assert ours == pytest.approx(reference, rel=1e-6, abs=1e-9)


def test_nothing_is_left_for_budgets_that_no_noise_of_64_bits_keeps() -> None:
    assert largest_move(20, Fraction(1, 10**30), Fraction(1, 10**30)) == 0
    assert largest_move(20, Fraction(1, 10**9), Fraction(1, 10**30)) == 0
    assert rho_of(Fraction(1, 10**30), Fraction(1, 10**30)) < Fraction(1, 10**20)


@pytest.mark.parametrize("share", [Fraction(1, 20), Fraction(1, 40), Fraction(1, 1000)])
def test_the_reach_of_noise_is_that_of_the_pmf(share: Fraction) -> None:
    for k in (0, 1, 3, 6):
        assert least_beyond(True, k, share) == _least_beyond(laplace_pmf(2.0**k, 40 << k), share)
    for k in (4, 6, 8):
        assert least_beyond(False, k, share) == _least_beyond(gaussian_pmf(2.0**k, 12 << k), share)


def _least_beyond(pmf: Any, share: Fraction) -> int:
    middle = len(pmf) // 2
    return next(m for m in range(1, middle) if 2 * pmf[middle + m :].sum() <= share)


# What a request comes to: mechanism, shape, and how many coordinates may move.

_REQUEST = {"mechanism": "discrete_gaussian", "mode": "records", "unaccounted": True}
_BUDGET = "budget_" + 32 * "b"


def _params(**given: Any) -> DpNoise:
    return DpNoise.model_validate({**_REQUEST, "neighbouring": "add_remove", **given}, strict=False)


_CLIP = {"clip": {"norm": "l2", "bound": "1.5"}}
_BINS = {"query": "histogram", "bins": {"categories": 10}}
_DECLARED = {"mode": "aggregate", "neighbouring": None, "sensitivity": {"norm": "l1", "value": "0.1"}}


@pytest.mark.parametrize(
    ("given", "shape", "one_moves"),
    [
        (_CLIP, (100,), True),
        (_CLIP, (100, 1), True),
        (_CLIP, (100, 2), False),
        ({**_CLIP, "neighbouring": "replace_one"}, (100,), True),
        ({**_CLIP, "neighbouring": "replace_one", "query": "mean"}, (100,), True),
        ({**_CLIP, "query": "mean"}, (100,), False),  # the count moves too
        ({**_CLIP, "neighbouring": "replace_one", "query": "identity"}, (100,), True),
        ({**_CLIP, "neighbouring": "replace_one", "query": "identity"}, (100, 2), False),
        (_BINS, (100,), True),  # a record is in one bin
        ({**_BINS, "neighbouring": "replace_one"}, (100,), False),  # or moves from one to another
        (_DECLARED, (1,), True),
        (_DECLARED, (2,), False),
    ],
)
def test_where_one_number_moves_its_exact_delta_decides_and_elsewhere_what_all_of_them_cost(
    given: dict[str, Any], shape: tuple[int, ...], one_moves: bool
) -> None:
    params = _params(epsilon="1", delta="1e-6", **given)
    made = plan(params, shape)
    ratio = 4**made.log2_scale / Fraction(made.sensitivity_squared)
    spread = float(ratio if made.count is None else ratio / 2) ** 0.5
    # sigma over sensitivity: 4.22 for one Gaussian number, 4.53 by the conversion of rho.
    assert spread == pytest.approx(4.2246788 if one_moves else 4.5309, rel=1e-3)
    spent = describe(params, made, 100.0)["spent"]
    assert list(spent) == ["epsilon", "delta", "rho"]
    assert (spent["epsilon"]["exact"], spent["delta"]["exact"]) == ("1/1", "1/1000000")


def test_a_budget_in_epsilon_and_delta_is_charged_what_was_asked_and_one_in_rho_what_the_noise_costs() -> None:
    params = _params(**_CLIP, epsilon="0.5", delta="1e-6", unaccounted=None, budget=_BUDGET)
    spent = _spend(params, 100, 2)
    assert (spent.pure, spent.approx) == (None, (Fraction(1, 2), Fraction(1, 10**6)))
    made = plan(params, (100, 2))
    assert spent.zcdp == Fraction(made.sensitivity_squared, 2 * 4**made.log2_scale)
    assert spent.zcdp is not None
    assert spent.zcdp <= rho_of(Fraction(1, 2), Fraction(1, 10**6))


@pytest.mark.parametrize("shape", [(100,), (100, 2)])
def test_a_scale_with_a_delta_is_charged_the_epsilon_it_comes_to(shape: tuple[int, ...]) -> None:
    params = _params(clip={"norm": "l2", "bound": "2"}, scale="8", delta="1e-6", unaccounted=None, budget=_BUDGET)
    spent = _spend(params, *shape)
    assert spent.approx is not None
    assert spent.zcdp == Fraction(1, 32)
    one, several = epsilon_of_move(20, 2**18, Fraction(1, 10**6)), epsilon_of_rho(Fraction(1, 32), Fraction(1, 10**6))
    assert one < several
    assert spent.approx == (one if len(shape) == 1 else several, Fraction(1, 10**6))
    assert _spend(params.model_copy(update={"delta": None}), *shape).approx is None


def _spend(params: DpNoise, *shape: int) -> Any:
    assert OPERATION.spend is not None
    return OPERATION.spend(params, {"values": ArrayInfo("float64", shape)})


def test_less_delta_and_less_epsilon_are_more_noise() -> None:
    for name, moves in (
        ("delta", [largest_move(24, Fraction(1), Fraction(1, 10**n)) for n in range(1, 20)]),
        ("epsilon", [largest_move(24, Fraction(1, 2**n), Fraction(1, 10**6)) for n in range(12)]),
        ("rho", [rho_of(Fraction(1), Fraction(1, 10**n)) for n in range(1, 20)]),
    ):
        assert all(more > less for more, less in pairwise(moves)), name
