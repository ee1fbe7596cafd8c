"""The plan of a Monte Carlo simulation: the numbers that every path needs of an option, the same on every device.

With h = maturity / steps and W_k the sum of the first k standard normals of a path,

    log(S_k / S_0) = a k + b W_k,   a = (rate - dividend - volatility^2 / 2) h,   b = volatility sqrt(h).

W is summed in float64 from float32 normals, so hundreds of steps add up without loss.
"""

from math import frexp, ldexp, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from warpdesk_server.kernels.monte_carlo.closed_form import (
    exp,
    geometric_asian,
    geometric_asian_pays,
    log,
    positive_part,
)
from warpdesk_server.kernels.monte_carlo.spec import BINS_PER_DEVIATION, MonteCarloParams

# The kinds of options that are simulated; the kernel is compiled once for each.
KINDS = (
    EUROPEAN,
    ASIAN_ARITHMETIC,
    ASIAN_GEOMETRIC,
    BARRIER_DISCRETE,
    BARRIER_CONTINUOUS,
    LOOKBACK_DISCRETE,
    LOOKBACK_CONTINUOUS,
) = tuple(range(7))

# Those whose payoff has no jump, so that a path has Greeks; the digital ones among the first are refused.
DIFFERENTIABLE = (EUROPEAN, ASIAN_ARITHMETIC, ASIAN_GEOMETRIC, LOOKBACK_DISCRETE, LOOKBACK_CONTINUOUS)

# The forms of a kind, which differ only in what is paid at the end.
VANILLA, CASH_OR_NOTHING, ASSET_OR_NOTHING = range(3)  # European
KNOCK_OUT, KNOCK_IN = range(2)  # barrier
FIXED_STRIKE, FLOATING_STRIKE = range(2)  # lookback


class Terms(NamedTuple):
    """The scalars of one simulated option; present values are in units of the spot's currency."""

    kind: int  # EUROPEAN .. LOOKBACK_CONTINUOUS
    form: int  # of the kind
    steps: int
    fixings: int  # prices an Asian option averages: steps, or steps + 1 with the spot
    paths: int
    drift: float  # a
    diffusion: float  # b
    spot: float
    strike: float
    sign: float  # 1 call, -1 put
    discount: float  # e^(-rate * maturity)
    shift: float  # discounted payoff of the path without noise, subtracted so that squares do not cancel
    control: float  # closed-form value of the geometric Asian, or 0
    control_pays: float  # probability that it pays, or 0
    weight: float  # of the control in the cubes: 1 where it corrects the price, else 0
    unit: float  # power of two that brings payoffs near 1, so that their cubes stay finite
    bins_per_unit: float  # histogram bins per unit of W
    side: float  # 1 up, -1 down: where a barrier or an extreme price lies
    barrier: float  # log(barrier / spot) / b, the barrier in units of W; or log(barrier / spot) where b = 0. Or extreme
    barrier_drift: float  # a / b; or a where b = 0
    barrier_noise: float  # 1; or 0 where b = 0
    greeks: int  # 1 where they are wanted
    moves: int  # 1 where a lookback's first extreme price is the spot, which moves with it
    step: float  # h
    tilt: float  # (rate - dividend + volatility^2 / 2) h
    volatility: float
    rate: float
    maturity: float
    mirrored: int  # 1 where paths 2i and 2i + 1 are a pair of antithetic ones
    cash: float  # a barrier's rebate, or what a cash-or-nothing option pays


def terms(params: MonteCarloParams) -> Terms:
    """The scalars of a simulation from its parameters."""
    h = params.maturity / params.steps
    a = (params.rate - params.dividend - 0.5 * params.volatility * params.volatility) * h
    b = _diffusion(params)
    kind = _kind(params)
    sign = 1.0 if params.option == "call" else -1.0
    discount = exp(-params.rate * params.maturity)
    fixings = params.steps + 1 if params.include_spot else params.steps
    scale = b if b > 0.0 else 1.0
    strike = params.strike if params.strike is not None else 0.0
    level = params.extreme if params.is_lookback else params.barrier
    distance = log(level / params.spot) if level is not None else 0.0
    cash = params.rebate
    if params.payoff == "cash_or_nothing":
        cash = params.payout if params.payout is not None else 1.0
    control, control_pays = 0.0, 0.0
    if kind == ASIAN_ARITHMETIC:
        average = (
            params.option,
            params.spot,
            strike,
            params.rate,
            params.dividend,
            params.volatility,
            params.maturity,
            params.steps,
            params.include_spot,
        )
        control, control_pays = geometric_asian(*average), geometric_asian_pays(*average)
    job = Terms(
        kind=kind,
        form=_FORMS.get(params.payoff, VANILLA),
        steps=params.steps,
        fixings=fixings,
        paths=params.paths,
        drift=a,
        diffusion=b,
        spot=params.spot,
        strike=strike,
        sign=sign,
        discount=discount,
        shift=0.0,
        control=control,
        control_pays=control_pays,
        weight=1.0 if kind == ASIAN_ARITHMETIC and params.control_variate else 0.0,
        unit=ldexp(1.0, -frexp(discount * max(params.spot, strike, cash, params.extreme or 0.0))[1]),
        bins_per_unit=BINS_PER_DEVIATION / sqrt(params.steps),
        side=1.0 if "_up_" in params.payoff or (params.is_lookback and params.looks_up) else -1.0,
        barrier=distance / scale,
        barrier_drift=a / scale,
        barrier_noise=b / scale,
        greeks=int(params.greeks),
        moves=int(params.extreme is None),
        step=h,
        tilt=(params.rate - params.dividend + 0.5 * params.volatility * params.volatility) * h,
        volatility=params.volatility,
        rate=params.rate,
        maturity=params.maturity,
        mirrored=int(params.sampling == "antithetic"),
        cash=cash,
    )
    return job._replace(shift=_payment_without_noise(job, hit_discounts(params)))


def hit_discounts(params: MonteCarloParams) -> NDArray[np.float64]:
    """The discount factors of an option's rebate that is paid when the barrier is hit in step k = 0 .. steps.

    If the barrier is watched on dates, it is paid at the date. If always, half a step before it, since the time within
    the step is unknown. k = 0 is a barrier that the spot has already reached.
    """
    if not params.is_barrier:
        return np.ones(1)
    h = params.maturity / params.steps
    before = 0.5 if _kind(params) == BARRIER_CONTINUOUS else 0.0
    times = [0.0] + [(k - before) * h for k in range(1, params.steps + 1)]
    return np.array([exp(-params.rate * time) for time in times])


def lines(job: Terms) -> NDArray[np.float64]:
    """The values that all simulated paths share in step k = 1 .. steps: the drifted log price, or the barrier's
    place."""
    k = np.arange(1.0, job.steps + 1.0)
    if job.kind >= BARRIER_DISCRETE:
        return job.barrier - job.barrier_drift * k
    return job.drift * k if job.kind == ASIAN_ARITHMETIC else np.zeros(1)


def tame(job: Terms) -> bool:
    """Whether no simulated path can leave the range of exp64: |W_k| is at most 6.77 k."""
    return job.steps * (abs(job.drift) + 6.8 * job.diffusion) < 700.0


def key(seed: int) -> tuple[int, int]:
    """The two 32-bit key words of a simulation's 64-bit seed, low half first."""
    if not 0 <= seed < 1 << 64:
        raise ValueError(f"seed {seed} is not in [0, 2^64)")
    return seed & 0xFFFFFFFF, seed >> 32


_FORMS = {
    "cash_or_nothing": CASH_OR_NOTHING,
    "asset_or_nothing": ASSET_OR_NOTHING,
    "barrier_up_in": KNOCK_IN,
    "barrier_down_in": KNOCK_IN,
    "lookback_floating": FLOATING_STRIKE,
}


def _diffusion(params: MonteCarloParams) -> float:
    return params.volatility * sqrt(params.maturity / params.steps)


def _kind(params: MonteCarloParams) -> int:
    if params.payoff in ("european", "cash_or_nothing", "asset_or_nothing"):
        return EUROPEAN
    if params.payoff == "asian_arithmetic":
        return ASIAN_ARITHMETIC
    if params.payoff == "asian_geometric":
        return ASIAN_GEOMETRIC
    # A path without noise is monotone: if it crosses a level between two dates, it is past it on the later date.
    on_dates = params.monitoring == "discrete" or _diffusion(params) == 0.0
    if params.is_lookback:
        return LOOKBACK_DISCRETE if on_dates else LOOKBACK_CONTINUOUS
    return BARRIER_DISCRETE if on_dates else BARRIER_CONTINUOUS


def _payment_without_noise(job: Terms, discounts: NDArray[np.float64]) -> float:
    """The option's payoff on the path without noise (W = 0), by the kernels' operations in their order.

    Without volatility every path pays this, to the last bit, so the simulated variance is exactly zero.
    """
    if job.kind in (ASIAN_ARITHMETIC, ASIAN_GEOMETRIC):
        if job.kind == ASIAN_ARITHMETIC:
            total = 1.0 if job.fixings > job.steps else 0.0
            for k in range(1, job.steps + 1):
                total += exp(job.drift * k)
            return _vanilla(job, job.spot * (total / job.fixings))
        return _vanilla(job, job.spot * exp(job.drift * (job.steps * (job.steps + 1) // 2) / job.fixings))
    last = job.spot * exp(job.drift * job.steps)
    vanilla = _vanilla(job, last)
    if job.kind == EUROPEAN:
        return vanilla if job.form == VANILLA else _all_or_nothing(job, last)
    if job.kind == LOOKBACK_DISCRETE or job.kind == LOOKBACK_CONTINUOUS:
        lowest = min(0.0, *(job.side * (job.barrier - job.barrier_drift * k) for k in range(1, job.steps + 1)))
        scale = job.diffusion if job.diffusion > 0.0 else 1.0
        extreme = job.spot * exp(scale * (job.barrier - job.side * lowest))
        if job.form == FLOATING_STRIKE:
            return job.discount * positive_part(job.sign * (last - extreme))
        return _vanilla(job, extreme)
    alive = job.side * job.barrier > 0.0
    hit = 0.0 if alive else float(discounts[0])
    for k in range(1, job.steps + 1):
        if alive and job.side * (job.barrier - job.barrier_drift * k) <= 0.0:
            alive = False
            hit = float(discounts[k])
    if job.form == KNOCK_IN:
        return job.discount * job.cash if alive else vanilla
    return vanilla if alive else job.cash * hit


def _all_or_nothing(job: Terms, price: float) -> float:
    if not job.sign * (price - job.strike) > 0.0:
        return 0.0
    return job.discount * (job.cash if job.form == CASH_OR_NOTHING else price)


def _vanilla(job: Terms, price: float) -> float:
    return job.discount * positive_part(job.sign * (price - job.strike))
