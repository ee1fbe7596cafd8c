"""Turn decimal amounts into integers: the grid, the clip bound and the sensitivity, with the budget never exceeded.

All arithmetic here is exact (Fraction and int). The noise has scale 2**k grid steps, so the sampler needs free bits
only; the grid is chosen so that the budget is met:

    discrete Laplace    epsilon = D1 / 2**k              D1, D2: L1 and L2 sensitivity in grid steps
    discrete Gaussian   rho     = D2**2 / (2 * 4**k)     (Canonne, Kamath, Steinke 2020, Theorem 4)

k starts at 20 and rises until one record's bound has 1024 steps (or rounding costs at most one part in 1024).
"""

from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR
from fractions import Fraction
from math import isqrt, log, log1p, prod
from typing import Any

from kernels.dp_noise.rational import at_least, digits, exact, power, root_up, round_down
from kernels.dp_noise.spec import DpNoise, Norm
from kernels.operation import refuse
from kernels.spend import Spend

MIN_LOG2_SCALE = 20
# Laplace noise is u + v * 2**k with v geometric: 64 bits then hold v < 2**23, which exp(-2**23) leaves to no one.
# The Gaussian's acceptance test needs 2k + 3 bits.
MAX_LOG2_SCALE = {"discrete_laplace": 40, "discrete_gaussian": 30}
RESOLUTION = 1024
MAX_SENSITIVITY = 2**40  # grid steps; with k = 20 that is an epsilon of a million, which protects no one
MAX_TOTAL = 2**62  # grid steps in a sum or a single value: one bit of 63 is left for the noise


@dataclass(frozen=True)
class Plan:
    """One release in integers: a value x becomes round(x * steps), steps = mantissa * 2**exponent a unit."""

    log2_scale: int  # k
    mantissa: int  # 2**52 <= mantissa < 2**53
    exponent: int
    bound: int  # records: clip bound in grid steps; aggregate: 0
    saturation: int  # a coordinate is cut to this many steps before its record's norm is taken
    sensitivity_squared: int  # of the norm the mechanism needs, in grid steps, rounding and neighbouring included
    width: int  # numbers released

    @property
    def steps(self) -> Fraction:
        return Fraction(self.mantissa) * power(self.exponent)

    @property
    def grid(self) -> Fraction:
        return 1 / self.steps

    @property
    def scale(self) -> Fraction:
        return 2**self.log2_scale / self.steps


def plan(params: DpNoise, shape: tuple[int, ...]) -> Plan:
    """Choose grid and clip bound for values of this shape; raise InvalidRequest where none is safe."""
    records = params.mode == "records"
    width = (shape[1] if len(shape) == 2 else 1) if records else prod(shape)
    highest = MAX_LOG2_SCALE[params.mechanism]
    for k in range(MIN_LOG2_SCALE, highest + 1):
        made = _attempt(params, width, k)
        wanted, _ = _resolution(params, width)
        if made.size >= wanted:
            break
    _, least = _resolution(params, width)
    asked = f"{_given(params)} {getattr(params, _given(params))}"
    if made.size < least:
        raise refuse(
            f"/params/{_given(params)}",
            f"{asked} over {width} coordinates leaves {max(made.size, 0)} grid steps for the sensitivity even with a "
            f"noise scale of 2**{highest} steps, the largest 64 bits are safe with; {least} are needed",
        )
    if made.sensitivity_squared > MAX_SENSITIVITY**2:
        raise refuse(
            f"/params/{_given(params)}",
            f"{asked} makes the sensitivity {isqrt(made.sensitivity_squared)} grid steps at a noise scale of 2**{k}, "
            f"above {MAX_SENSITIVITY}, the largest the 64-bit sampler is safe with",
        )
    saturation = 2 ** min(50, 62 - width.bit_length())
    if records:
        if made.size > saturation:
            raise refuse(
                "/params/clip", f"a clip bound of {made.size} grid steps over {width} coordinates passes {saturation}"
            )
        if shape[0] * made.size > MAX_TOTAL:
            raise refuse(
                "/inputs/values",
                f"the sum could overflow: {shape[0]} records * {made.size} grid steps = {shape[0] * made.size}, above "
                f"{MAX_TOTAL}",
            )
    mantissa, exponent = round_down(made.steps)
    return Plan(k, mantissa, exponent, made.size if records else 0, saturation, made.sensitivity_squared, width)


def describe(params: DpNoise, made: Plan) -> dict[str, Any]:
    """Every output but the noise itself."""
    laplace = params.mechanism == "discrete_laplace"
    units = root_up(made.sensitivity_squared)
    spent = {"epsilon" if laplace else "rho": at_least(_spent(params, made))}
    return {
        "mechanism": params.mechanism,
        "scale": exact(made.scale),
        "grid": exact(made.grid),
        "sensitivity": {"norm": "l1" if laplace else "l2", "grid_units": units, "value": float(units * made.grid)},
        "sensitivity_source": "enforced" if params.mode == "records" else "declared",
        "spent": spent,
        "accuracy_95": float(_accuracy(made.log2_scale, laplace) * made.grid),
        "statement": _statement(params, made, spent),
        "unaccounted": params.unaccounted is True,
    }


def charged(params: DpNoise, shape: tuple[int, ...]) -> Spend:
    """Return what each accountant is charged: what was asked where it was asked for, else what the noise costs."""
    spent = _spent(params, plan(params, shape))
    neighbouring = params.neighbouring if params.mode == "records" else None
    if params.mechanism == "discrete_laplace":
        epsilon = spent if params.epsilon is None else Fraction(params.epsilon)
        # Pure epsilon is epsilon**2 / 2 zero-concentrated: Bun and Steinke (2016), Proposition 1.4.
        return Spend(epsilon, (epsilon, Fraction(0)), epsilon**2 / 2, neighbouring)
    return Spend(None, None, spent if params.rho is None else Fraction(params.rho), neighbouring)


def _spent(params: DpNoise, made: Plan) -> Fraction:
    """Return epsilon of discrete Laplace noise, rho of discrete Gaussian noise."""
    if params.mechanism == "discrete_laplace":
        return Fraction(root_up(made.sensitivity_squared), 2**made.log2_scale)
    return Fraction(made.sensitivity_squared, 2 * 4**made.log2_scale)


@dataclass(frozen=True)
class _Attempt:
    size: int  # grid steps of the clip bound, or of the declared sensitivity before rounding is added
    sensitivity_squared: int
    steps: Fraction  # grid steps per unit of the values


def _attempt(params: DpNoise, width: int, k: int) -> _Attempt:
    if params.mode == "records":
        assert params.clip is not None  # noqa: S101 (the validator has seen to it)
        norm, amount = params.clip.norm, Fraction(params.clip.bound)
        factor, rounding = (2 if params.neighbouring == "replace_one" else 1), 0
    else:
        assert params.sensitivity is not None  # noqa: S101
        norm, amount = params.sensitivity.norm, Fraction(params.sensitivity.value)
        factor, rounding = 1, 1
    laplace = params.mechanism == "discrete_laplace"
    if params.scale is not None:
        # The scale is 2**k steps at least: the grid follows from it, and the budget is what comes out.
        mantissa, exponent = round_down(2**k / Fraction(params.scale))
        steps = mantissa * power(exponent)
        # A clip bound may only shrink on the grid, a declared sensitivity only grow.
        size = int(amount * steps) if rounding == 0 else -int(-amount * steps // 1)
    else:
        if laplace:
            budget_squared = int(Fraction(params.epsilon or 0) * 2**k) ** 2
        else:
            budget_squared = int(2 * Fraction(params.rho or 0) * 4**k)
        size = _largest(norm, laplace, width, factor, rounding, budget_squared)
        steps = size / amount
    return _Attempt(size, _sensitivity_squared(norm, laplace, width, factor, rounding, max(size, 0)), steps)


def _sensitivity_squared(norm: Norm, laplace: bool, width: int, factor: int, rounding: int, size: int) -> int:
    """Square of the L1 (Laplace) or L2 (Gaussian) sensitivity of integers within `size` steps of each other in `norm`.

    `rounding` 1 adds what rounding two real statistics to the grid can add: one step in every coordinate.
    """
    if norm == "linf":
        each = size + rounding
        return factor**2 * (width**2 if laplace else width) * each**2
    if laplace:
        # l2: Cauchy-Schwarz, |v|_1 <= sqrt(width) |v|_2.
        # Sums of integers are integers, so the root may be rounded down.
        total = size if norm == "l1" else isqrt(width * size**2)
        return factor**2 * (total + rounding * width) ** 2
    return factor**2 * (size + rounding * root_up(width)) ** 2  # |v|_2 <= |v|_1


def _largest(norm: Norm, laplace: bool, width: int, factor: int, rounding: int, budget_squared: int) -> int:
    """Return the largest `size` whose sensitivity is within the budget; below 1 when there is none."""
    each_squared = budget_squared // factor**2
    if norm == "linf":
        return isqrt(each_squared // (width**2 if laplace else width)) - rounding
    each = isqrt(each_squared)
    if laplace:
        left = each - rounding * width
        if norm == "l1" or left <= 0:
            return left
        return isqrt(((left + 1) ** 2 - 1) // width)  # the largest with floor(sqrt(width) * size) <= left
    return each - rounding * root_up(width)


def _resolution(params: DpNoise, width: int) -> tuple[int, int]:
    """Return the grid steps the bound should have, and the fewest accepted."""
    if params.mode == "records" or (params.sensitivity is not None and params.sensitivity.norm == "linf"):
        return RESOLUTION, 8
    # Rounding adds `width` steps to an L1 sensitivity, sqrt(width) to an L2 one: an eighth on top is the most we add.
    l1 = params.mechanism == "discrete_laplace" and params.sensitivity is not None and params.sensitivity.norm == "l1"
    added = width if l1 else root_up(width)
    return RESOLUTION * added, 8 * added


def _accuracy(k: int, laplace: bool) -> int:
    """Return the smallest m with P(|noise| >= m) <= 5 % (Laplace: from the tail of the pmf; Gaussian: rounded up)."""
    scale = 2**k
    if laplace:
        # P(|Y| >= m) = 2 exp(-m / t) / (1 + exp(-1 / t)), and exp(-1/t) = 1 - 1/t + ... for t >= 2**20.
        return int(scale * (log(2 / 0.05) - log1p(1 - 1 / scale))) + 1
    return int(1.959963984540055 * scale) + 2  # two-sided 95 % quantile of the normal distribution


def _statement(params: DpNoise, made: Plan, spent: dict[str, dict[str, Any]]) -> str:
    name, told = next(iter(spent.items()))
    amount = Fraction(told["exact"])
    kind = "Laplace" if params.mechanism == "discrete_laplace" else "Gaussian"
    unaccounted = (
        "Unaccounted: no budget was charged, and every further release about the same people adds to what is learnt."
        if params.unaccounted
        else f"Charged to {params.budget}."
    )
    if params.mode == "aggregate":
        return (
            f"Discrete {kind} noise at scale {digits(made.scale, ROUND_FLOOR)} was added to each of {made.width} "
            "coordinates. The sensitivity was declared by the caller and nothing here checks it; what the noise "
            f"protects depends on it. {unaccounted}"
        )
    change = "adding or removing one record" if params.neighbouring == "add_remove" else "replacing one record"
    notion = "epsilon-differentially private" if name == "epsilon" else "rho-zero-concentrated differentially private"
    return (
        f"The sum of clipped records is {notion} with {name} = {digits(amount, ROUND_CEILING)} for {change}: discrete "
        f"{kind} noise at scale {digits(made.scale, ROUND_FLOOR)}. This protects people from readers of "
        f"the noisy sum, not from this service, which sees the records. {unaccounted}"
    )


def _given(params: DpNoise) -> str:
    return next(name for name in ("epsilon", "rho", "scale") if getattr(params, name) is not None)
