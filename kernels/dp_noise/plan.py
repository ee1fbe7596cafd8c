"""The plan of a noisy release in integers: the grid, the clip bound and the sensitivity, never above the budget.

All arithmetic here is exact (Fraction and int). The noise has scale 2**k grid steps, so the sampler needs only random
bits. The grid is chosen so that the budget is met:

    discrete Laplace    epsilon = D1 / 2**k              D1, D2: L1 and L2 sensitivity in grid steps
    discrete Gaussian   rho     = D2**2 / (2 * 4**k)     (Canonne, Kamath, Steinke 2020, Theorem 4)
                        epsilon and delta: calibration.py, from D2 where one coordinate moves and from rho where several

k starts at 20 and rises until one record's bound has 1024 steps (or rounding costs at most one part in 1024).
"""

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from math import isqrt, prod

from warpdesk_server.kernels.dp_noise.calibration import (
    epsilon_of_move,
    epsilon_of_rho,
    largest_move,
    least_beyond,
    rho_of,
)
from warpdesk_server.kernels.dp_noise.params import DpNoise, Norm, has_noisy_count, released
from warpdesk_server.kernels.dp_noise.rational import power, root_up, round_down
from warpdesk_server.kernels.problems import refuse
from warpdesk_server.kernels.spend import Spend

MIN_LOG2_SCALE = 20
# Laplace noise is u + v * 2**k with v geometric: 64 bits hold v < 2**23, which fails with probability exp(-2**23). The
# Gaussian's acceptance test needs 2k + 3 bits.
MAX_LOG2_SCALE = {"discrete_laplace": 40, "discrete_gaussian": 30}
RESOLUTION = 1024
MAX_SENSITIVITY = 2**40  # grid steps; with k = 20 that is an epsilon of a million, which protects nobody
MAX_TOTAL = 2**62  # grid steps in a sum or a single value: one bit of 63 is left for the noise


@dataclass(frozen=True)
class Plan:
    """The plan of a noisy release in integers: a value x becomes round(x * steps), steps = mantissa * 2**exponent."""

    log2_scale: int  # k
    mantissa: int  # 2**52 <= mantissa < 2**53
    exponent: int
    bound: int  # records: clip bound in grid steps, or the steps of one record in a count; aggregate: 0
    saturation: int  # a coordinate is cut to this many steps before its record's norm is taken
    sensitivity_squared: int  # in grid steps and the mechanism's norm, including rounding and neighbouring
    width: int  # numbers released
    one_moves: bool  # at most one of them differs between neighbours
    divisor: int = 1  # of the noisy numbers: a mean's number of records, if that is public
    count: "Plan | None" = None  # the plan of a mean's noisy count, if the number of records is private

    @property
    def steps(self) -> Fraction:
        """The number of steps of the noise's grid in a unit of a released value."""
        return Fraction(self.mantissa) * power(self.exponent)

    @property
    def grid(self) -> Fraction:
        """The size of a step of the noise's grid, in units of a released value."""
        return 1 / self.steps

    @property
    def scale(self) -> Fraction:
        """The scale of the noise, in units of a released value."""
        return 2**self.log2_scale / self.steps


@dataclass(frozen=True)
class _Reach:
    """The sensitivity of a statistic that noise covers: neighbours differ by at most `amount` in a norm of `width`
    coordinates."""

    norm: Norm
    amount: Fraction
    width: int
    factor_squared: int = 1  # replacing a record moves a sum by up to two of its bounds
    rounding: int = 0  # 1 if real statistics are rounded to the grid, which may move each coordinate by one more step
    one_moves: bool = False

    def shared(self, laplace: bool) -> int:
        """The effect of rounding to the noise's grid, in steps and the mechanism's norm; a finer grid makes it
        negligible."""
        return self.width if laplace and self.norm == "l1" else root_up(self.width)


@dataclass(frozen=True)
class _Budget:
    """The privacy budget of the noise, or its scale: exactly one of four."""

    epsilon: Fraction | None = None
    pair: tuple[Fraction, Fraction] | None = None  # epsilon and delta, where one coordinate moves
    rho: Fraction | None = None
    scale: Fraction | None = None

    def squared(self, k: int) -> int:
        """The square of the largest sensitivity, in steps, that noise of 2**k steps covers within this budget."""
        if self.epsilon is not None:
            return int(self.epsilon * 2**k) ** 2
        if self.pair is not None:
            return largest_move(k, *self.pair) ** 2
        assert self.rho is not None  # noqa: S101 (the validator has seen to it)
        return int(2 * self.rho * 4**k)

    def half(self) -> "_Budget":
        if self.epsilon is not None:
            return _Budget(epsilon=self.epsilon / 2)
        return self if self.rho is None else _Budget(rho=self.rho / 2)


def plan(params: DpNoise, shape: tuple[int, ...]) -> Plan:
    """Choose the grid and clip bound of a noisy release of this shape. Raises InvalidRequest if none is safe."""
    reach = _reach(params, shape)
    budget = _budget(params, reach)
    width = released(params, shape)
    if not has_noisy_count(params):
        divisor = shape[0] if params.query == "mean" else 1
        return _noise(params, reach, budget, shape, width, divisor)
    # The sum spends one half of the charge, the count the other. A given scale is the sum's; the count costs as much.
    half = budget.half()
    summed = _noise(params, reach, half, shape, width)
    if budget.scale is not None:
        cost = spent(params, summed)
        half = _Budget(epsilon=cost) if params.mechanism == "discrete_laplace" else _Budget(rho=cost)
    return replace(summed, count=_noise(params, _Reach("l1", Fraction(1), 1), half, shape, 1))


def charged(params: DpNoise, shape: tuple[int, ...]) -> Spend:
    """The budget charge of a noisy release for each accountant: the requested amount, or the cost of the noise."""
    made = plan(params, shape)
    cost, within = spent(params, made), partial(accuracy_95, params, made)
    if params.mechanism == "discrete_laplace":
        epsilon = cost if params.epsilon is None else Fraction(params.epsilon)
        # Pure epsilon is epsilon**2 / 2 zero-concentrated: Bun and Steinke (2016), Proposition 1.4.
        return Spend(epsilon, (epsilon, Fraction(0)), epsilon**2 / 2, params.neighbouring, within)
    rho = cost if params.rho is None else Fraction(params.rho)
    return Spend(None, approximate(params, made), rho, params.neighbouring, within)


def accuracy_95(params: DpNoise, made: Plan, noisy_count: float | None = None) -> float | None:
    """The accuracy of one released number: its noise is below this with probability 95 %, by the exact pmf.

    A noisy mean s'/n' is off by at most (|noise of s| + bound |noise of n|) / n', since no mean exceeds the bound. Each
    of the two noises is taken at 97.5 %. None before n' is known.
    """
    laplace = params.mechanism == "discrete_laplace"
    if made.count is None:
        return float(least_beyond(laplace, made.log2_scale, Fraction(1, 20)) * made.grid / made.divisor)
    if noisy_count is None:
        return None
    summed, counted = (
        least_beyond(laplace, each.log2_scale, Fraction(1, 40)) * each.grid for each in (made, made.count)
    )
    bound = made.bound * made.grid
    return float(min((summed + bound * counted) / max(Fraction(noisy_count), Fraction(1)), 2 * bound))


def _reach(params: DpNoise, shape: tuple[int, ...]) -> _Reach:
    if params.sensitivity is not None:
        width = prod(shape)
        return _Reach(params.sensitivity.norm, Fraction(params.sensitivity.value), width, 1, 1, width == 1)
    replaced = params.neighbouring == "replace_one"
    if params.clip is not None:
        width = prod(shape[1:])
        return _Reach(params.clip.norm, Fraction(params.clip.bound), width, 4 if replaced else 1, one_moves=width == 1)
    # A record counts one in one bin. Replaced, one bin loses one and another gains one: 2 in L1, sqrt(2) in L2.
    moved = (4 if params.mechanism == "discrete_laplace" else 2) if replaced else 1
    return _Reach("l1", Fraction(1), released(params, shape), moved, one_moves=not replaced)


def _budget(params: DpNoise, reach: _Reach) -> _Budget:
    if params.scale is not None:
        return _Budget(scale=Fraction(params.scale))
    if params.rho is not None:
        return _Budget(rho=Fraction(params.rho))
    epsilon = Fraction(params.epsilon or 0)
    if params.delta is None:
        return _Budget(epsilon=epsilon)
    delta = Fraction(params.delta)
    if reach.one_moves and not has_noisy_count(params):
        return _Budget(pair=(epsilon, delta))
    return _Budget(rho=max(Fraction(0), rho_of(epsilon, delta)))


def _noise(
    params: DpNoise, reach: _Reach, budget: _Budget, shape: tuple[int, ...], width: int, divisor: int = 1
) -> Plan:
    laplace = params.mechanism == "discrete_laplace"
    highest = MAX_LOG2_SCALE[params.mechanism]
    wanted, least = RESOLUTION, 8
    if reach.rounding and reach.norm != "linf":
        # Rounding adds `width` steps to an L1 sensitivity, sqrt(width) to an L2 one: at most one eighth more.
        wanted, least = (each * reach.shared(laplace) for each in (wanted, least))
    for k in range(MIN_LOG2_SCALE, highest + 1):
        size, steps = _size(reach, laplace, budget, k)
        if size >= wanted:
            break
    place, amount = f"/params/{_amount_name(params)}", _amount(params)
    if size < least:
        raise refuse(
            place,
            f"{amount} over {reach.width} coordinates leaves {max(size, 0)} grid steps for the sensitivity even with a "
            f"noise scale of 2**{highest} steps, the largest 64 bits are safe with; {least} are needed",
        )
    sensitivity_squared = _sensitivity_squared(reach, laplace, size)
    if sensitivity_squared > MAX_SENSITIVITY**2:
        raise refuse(
            place,
            f"{amount} makes the sensitivity {isqrt(sensitivity_squared)} grid steps at a noise scale of 2**{k}, "
            f"above {MAX_SENSITIVITY}, the largest the 64-bit sampler is safe with",
        )
    saturation = 2 ** min(50, 62 - reach.width.bit_length())
    if params.mode == "records":
        if size > saturation:
            raise refuse(
                "/params/clip", f"a clip bound of {size} grid steps over {reach.width} coordinates passes {saturation}"
            )
        if params.query != "identity" and shape[0] * size > MAX_TOTAL:
            raise refuse(
                "/inputs/values",
                f"the sum could overflow: {shape[0]} records * {size} grid steps = {shape[0] * size}, above "
                f"{MAX_TOTAL}",
            )
    mantissa, exponent = round_down(steps)
    bound = size if params.mode == "records" else 0
    return Plan(k, mantissa, exponent, bound, saturation, sensitivity_squared, width, reach.one_moves, divisor)


def _size(reach: _Reach, laplace: bool, budget: _Budget, k: int) -> tuple[int, Fraction]:
    """The steps of the noise's grid in the bound, or in the declared sensitivity without rounding, and in a unit."""
    if budget.scale is None:
        size = _largest(reach, laplace, budget.squared(k))
        return size, size / reach.amount
    # A given scale is at least 2**k steps: the grid follows from it, and the budget from the grid.
    mantissa, exponent = round_down(2**k / budget.scale)
    steps = mantissa * power(exponent)
    # A clip bound is rounded down to the grid, a declared sensitivity up.
    return (-int(-reach.amount * steps // 1) if reach.rounding else int(reach.amount * steps)), steps


def _sensitivity_squared(reach: _Reach, laplace: bool, size: int) -> int:
    """The square of the sensitivity, L1 for Laplace noise or L2 for Gaussian, of integers that differ by at most `size`
    steps."""
    if reach.norm == "linf":
        each = size + reach.rounding
        return reach.factor_squared * (reach.width**2 if laplace else reach.width) * each**2
    if laplace:
        # l2: Cauchy-Schwarz, |v|_1 <= sqrt(width) |v|_2.
        # Sums of integers are integers, so the root may be rounded down.
        total = size if reach.norm == "l1" else isqrt(reach.width * size**2)
        return reach.factor_squared * (total + reach.rounding * reach.width) ** 2
    return reach.factor_squared * (size + reach.rounding * root_up(reach.width)) ** 2  # |v|_2 <= |v|_1


def _largest(reach: _Reach, laplace: bool, budget_squared: int) -> int:
    """The largest size in steps whose sensitivity is within the noise's budget; below 1 if there is none."""
    each_squared = budget_squared // reach.factor_squared
    if reach.norm == "linf":
        return isqrt(each_squared // (reach.width**2 if laplace else reach.width)) - reach.rounding
    each = isqrt(each_squared)
    if laplace:
        left = each - reach.rounding * reach.width
        if reach.norm == "l1" or left <= 0:
            return left
        return isqrt(((left + 1) ** 2 - 1) // reach.width)  # the largest with floor(sqrt(width) * size) <= left
    return each - reach.rounding * root_up(reach.width)


def spent(params: DpNoise, made: Plan) -> Fraction:
    """The privacy cost of a release: epsilon of discrete Laplace or rho of discrete Gaussian noise, with a count's."""
    counted = Fraction(0) if made.count is None else spent(params, made.count)
    if params.mechanism == "discrete_laplace":
        return counted + Fraction(root_up(made.sensitivity_squared), 2**made.log2_scale)
    return counted + Fraction(made.sensitivity_squared, 2 * 4**made.log2_scale)


def approximate(params: DpNoise, made: Plan) -> tuple[Fraction, Fraction] | None:
    """The epsilon and delta of the noise if a delta was given: as requested, or computed from a scale."""
    if params.delta is None:
        return None
    delta = Fraction(params.delta)
    if params.epsilon is not None:
        return Fraction(params.epsilon), delta
    if made.one_moves and made.count is None:
        return epsilon_of_move(made.log2_scale, root_up(made.sensitivity_squared), delta), delta
    return epsilon_of_rho(spent(params, made), delta), delta


def _amount_name(params: DpNoise) -> str:
    return next(name for name in ("epsilon", "rho", "scale") if getattr(params, name) is not None)


def _amount(params: DpNoise) -> str:
    amount = f"{_amount_name(params)} {getattr(params, _amount_name(params))}"
    return amount if params.delta is None or params.epsilon is None else f"{amount} and delta {params.delta}"
