"""The noise plan of a federated average, in integers: how far one client can move the sum, and the noise that hides it.

All arithmetic here is exact (Fraction and int). The noise is a discrete Gaussian of 2**30 steps, the largest that is
safe for the 64-bit sampler, so that the rounding of updates is far below it. With an L2 sensitivity of D steps,

    rho = D**2 / (2 * 4**30)      Canonne, Kamath, Steinke (2020), Theorem 4

Updates: D is the clip bound in steps, which follows from rho; a step is worth clip * max_weight / bound. A round's sum
is in steps of its own quantisation. It is converted to the finer or coarser grid that rho requires, and the rounding
adds one step in every coordinate to the sensitivity.
"""

from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR
from fractions import Fraction
from functools import partial
from math import isqrt
from typing import Any

from warpdesk_server.kernels.dp_noise.calibration import epsilon_of_rho, least_beyond, rho_of
from warpdesk_server.kernels.dp_noise.plan import MAX_LOG2_SCALE, MAX_SENSITIVITY, MAX_TOTAL, RESOLUTION
from warpdesk_server.kernels.dp_noise.rational import at_least, digits, exact, power, root_up, round_down
from warpdesk_server.kernels.federated_average.params import FederatedAverage, Noise, Round
from warpdesk_server.kernels.problems import refuse
from warpdesk_server.kernels.spend import Spend

LOG2_SCALE = MAX_LOG2_SCALE["discrete_gaussian"]
SATURATION = 2**50  # steps: a coordinate is cut to this before its update's norm is taken
_EXACT = 2**53  # up to here float64 holds every integer


@dataclass(frozen=True)
class Plan:
    """The plan of a noisy average in integers: updates, or a round's sum, have mantissa * 2**exponent steps a unit."""

    mantissa: int  # 2**52 <= mantissa <= 2**53
    exponent: int
    bound: int  # steps: the most L2 norm of one client's weighted update; 0 if a round's clients have clipped
    sensitivity: int  # steps: L2, including rounding and the neighbouring relation
    grid: Fraction  # what one step is worth in the average

    @property
    def steps(self) -> Fraction:
        return self.mantissa * power(self.exponent)

    @property
    def scale(self) -> Fraction:
        return 2**LOG2_SCALE * self.grid

    @property
    def rho(self) -> Fraction:
        """The privacy cost of the average's noise: rho of zero-concentrated DP."""
        return Fraction(self.sensitivity**2, 2 * 4**LOG2_SCALE)


def plan(params: FederatedAverage, clients: int, width: int) -> Plan:
    """Choose the grid and clip bound of a noisy average. Raises InvalidRequest if none is safe."""
    dp = params.dp
    assert dp is not None  # noqa: S101 (the callers have seen to it)
    most = isqrt(int(2 * rho_asked_for(dp) * 4**LOG2_SCALE))
    if most > MAX_SENSITIVITY:
        raise refuse(
            f"/params/dp/{dp.given}",
            f"{dp.given} {getattr(dp, dp.given)} makes the sensitivity {most} steps at a noise scale of "
            f"2**{LOG2_SCALE} steps, above {MAX_SENSITIVITY}, the largest the 64-bit sampler is safe with",
        )
    if params.round is not None:
        return _of_round(dp, params.round, width, most)
    bound = most // _factor(dp)
    if bound < RESOLUTION:
        raise _too_noisy(dp, bound, RESOLUTION)
    if clients * bound > MAX_TOTAL:
        raise refuse(
            "/inputs/updates",
            f"the sum could overflow: {clients} clients * {bound} steps = {clients * bound}, above {MAX_TOTAL}",
        )
    mantissa, exponent = round_down(bound / Fraction(dp.clip))
    if mantissa * power(exponent) * Fraction(dp.clip) < bound:
        mantissa += 1  # rounded up, so that the bound is worth no more than clip
    weight = Fraction(dp.max_weight or 1) / Fraction(dp.expected_weight)
    return Plan(mantissa, exponent, bound, _factor(dp) * bound, weight / (mantissa * power(exponent)))


def _of_round(dp: Noise, given: Round, width: int, most: int) -> Plan:
    rounding = root_up(width)
    left = most - rounding
    if left < 8 * rounding:
        raise _too_noisy(dp, most, 9 * rounding)
    if given.max_abs_sum > _EXACT:
        raise refuse(
            "/params/round/quantisation",
            f"{given.survivors} survivors * weight {given.quantisation.max_weight} * {given.quantisation.bound} "
            f"(clip * scale) = {given.max_abs_sum}, above 2**53, beyond which float64 is not exact",
        )
    # A client clips to L2 norm `clip` and rounds each coordinate by half a step at most. No coordinate exceeds the
    # round's own bound.
    scale = Fraction(given.quantisation.scale)
    clipped = Fraction(dp.clip) * scale + Fraction(rounding, 2)
    of_client = given.quantisation.max_weight * min(clipped, Fraction(root_up(width * given.quantisation.bound**2)))
    mantissa, exponent = round_down(left / (_factor(dp) * of_client))
    steps = mantissa * power(exponent)
    if given.max_abs_sum * steps > MAX_TOTAL:
        raise refuse(
            "/params/round",
            f"the sum could overflow: {given.max_abs_sum} * {float(steps):.3g} steps of the noise's grid, above "
            f"{MAX_TOTAL}",
        )
    return Plan(mantissa, exponent, 0, most, 1 / (steps * scale * Fraction(dp.expected_weight)))


def rho_asked_for(dp: Noise) -> Fraction:
    """The rho of the noise requested for a federated average."""
    if dp.rho is not None:
        return Fraction(dp.rho)
    if dp.noise_multiplier is not None:
        return 1 / (2 * Fraction(dp.noise_multiplier) ** 2)
    return max(Fraction(0), rho_of(Fraction(dp.epsilon or 0), Fraction(dp.delta or 0)))


def _approximate(dp: Noise, rho: Fraction) -> tuple[Fraction, Fraction] | None:
    """The epsilon and delta of an average's noise if a delta was given: as requested, or computed from a noise
    multiplier."""
    if dp.delta is None:
        return None
    delta = Fraction(dp.delta)
    return (epsilon_of_rho(rho, delta) if dp.epsilon is None else Fraction(dp.epsilon)), delta


def charged(params: FederatedAverage, clients: int, width: int) -> Spend:
    """The budget charge of a noisy average for each accountant: the requested amount, at least the noise's cost."""
    dp = params.dp
    assert dp is not None  # noqa: S101
    made, rho = plan(params, clients, width), rho_asked_for(dp)
    return Spend(None, _approximate(dp, rho), rho, dp.neighbouring, partial(_accuracy_95, made))


def _accuracy_95(made: Plan) -> float:
    return float(least_beyond(False, LOG2_SCALE, Fraction(1, 20)) * made.grid)


def describe(params: FederatedAverage, made: Plan, width: int) -> dict[str, Any]:
    """The outputs of federated_average that describe the noise."""
    assert params.dp is not None  # noqa: S101
    spent = {"rho": at_least(made.rho)}
    approximate = _approximate(params.dp, made.rho)
    if approximate is not None:
        spent = {"epsilon": at_least(approximate[0]), "delta": at_least(approximate[1]), **spent}
    return {
        "mechanism": "discrete_gaussian",
        "scale": exact(made.scale),
        "grid": exact(made.grid),
        "sensitivity": {
            "norm": "l2",
            "grid_units": made.sensitivity,
            "value": float(made.sensitivity * made.grid),
        },
        "sensitivity_source": "enforced" if params.round is None else "declared",
        "neighbouring": params.dp.neighbouring,
        "spent": spent,
        "accuracy_95": _accuracy_95(made),
        "server_learned": learned(params),
        "statement": _statement(params, made, width, spent),
        "unaccounted": params.unaccounted is True,
    }


def undescribed(params: FederatedAverage, clients: int) -> dict[str, Any]:
    """The outputs of federated_average that describe the noise, for an average without noise."""
    names = ("mechanism", "scale", "grid", "sensitivity", "sensitivity_source", "neighbouring", "spent", "accuracy_95")
    return {
        **dict.fromkeys(names),
        "server_learned": learned(params),
        "statement": (
            f"The average of {clients} updates is exact and carries no noise: it is not differential privacy. Whoever "
            "reads it can learn about single clients, most of all from two averages that differ by one of them."
        ),
        "unaccounted": None,
    }


def learned(params: FederatedAverage) -> str:
    if params.round is None:
        return "Every client's update and weight, in the clear: this service is trusted with them."
    return (
        f"The exact sum of {params.round.survivors} clients' vectors, as the round gave it, and no single vector. "
        "Secure aggregation is not differential privacy: what the sum tells, this service knows."
    )


def _statement(params: FederatedAverage, made: Plan, width: int, spent: dict[str, dict[str, Any]]) -> str:
    assert params.dp is not None  # noqa: S101
    noise = f"discrete Gaussian noise at scale {digits(made.scale, ROUND_FLOOR)} on each of {width} coordinates"
    accounted = (
        "A budget was charged for it."
        if params.unaccounted is None
        else "Unaccounted: no budget was charged, and every further average of the same clients adds to what is learnt."
    )
    if params.round is not None:
        return (
            f"The average has {noise} and a fixed divisor. That every client clipped its update to an L2 norm of "
            f"{params.dp.clip} was declared by the caller and nothing here can check it, since masks hide what a "
            f"client sent; what the noise protects depends on it. {accounted}"
        )
    change = "adding or removing one client" if params.dp.neighbouring == "add_remove" else "replacing one client"
    cost = {name: digits(Fraction(amount["exact"]), ROUND_CEILING) for name, amount in spent.items()}
    notion = f"rho-zero-concentrated differentially private with rho = {cost['rho']}"
    if len(cost) > 1:
        notion = f"(epsilon, delta)-differentially private with epsilon = {cost['epsilon']} and delta = {cost['delta']}"
    return (
        f"The average of clipped updates is {notion} for {change}: {noise}, and a fixed divisor. This "
        "protects clients from readers of the average and of the model, not from this service, which sees every "
        f"update. Nothing is claimed for clients having been sampled. {accounted}"
    )


def _factor(dp: Noise) -> int:
    return 2 if dp.neighbouring == "replace_one" else 1


def _too_noisy(dp: Noise, left: int, least: int) -> Exception:
    return refuse(
        f"/params/dp/{dp.given}",
        f"{dp.given} {getattr(dp, dp.given)} leaves {left} steps for the sensitivity at a noise scale of "
        f"2**{LOG2_SCALE} steps, the largest 64 bits are safe with; {least} are needed",
    )
