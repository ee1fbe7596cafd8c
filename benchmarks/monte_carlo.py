"""Benchmark cases of Monte Carlo: an Asian option over 1M paths of 252 steps beside NumPy, and by Sobol points.

NumPy walks 16,384 paths at a time so that its vectors stay in the second-level cache, reuses every buffer, and draws
by PCG64 in the dtype of the row; on one thread, as NumPy runs, and with one generator per core in a thread pool. It
returns the plain price and its standard error. Warpdesk returns those, the price corrected by the geometric average,
and the quantiles of the terminal price.

SciPy draws and scrambles Sobol points, a product by NumPy's BLAS is the bridge, and 16 scrambles give the error.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import exp, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdesk_server.benchmarks.cases import Case, Goal, Peer, Sizes, cores, measured, module, numpy_peer

PATHS, STEPS, BLOCK = 1_000_000, 252, 16_384
S0, K, RATE, VOLATILITY, MATURITY = 100.0, 100.0, 0.05, 0.2, 1.0


def numpy_payoffs(seed: int, paths: int, dtype: type, steps: int = STEPS) -> NDArray[np.float64]:
    """Discounted payoffs of an arithmetic Asian call, as one would write it in NumPy."""
    rng = np.random.default_rng(seed)
    dt = MATURITY / steps
    drift, diffusion = dtype((RATE - 0.5 * VOLATILITY**2) * dt), dtype(VOLATILITY * sqrt(dt))
    payoffs = np.empty(paths)
    buffers: NDArray[Any] = np.empty((4, BLOCK), dtype)
    z, log_price, price, total = buffers
    for first in range(0, paths, BLOCK):
        n = min(BLOCK, paths - first)
        log_price[:] = 0
        total[:] = 0
        for _ in range(steps):
            rng.standard_normal(out=z, dtype=dtype)
            z *= diffusion
            z += drift
            log_price += z
            np.exp(log_price, out=price)
            total += price
        payoffs[first : first + n] = np.maximum(S0 * total[:n].astype(np.float64) / steps - K, 0.0)
    return payoffs * exp(-RATE * MATURITY)


def numpy_price(dtype: type, paths: int, steps: int, threads: int = 1) -> tuple[float, float]:
    if threads == 1:
        payoffs = numpy_payoffs(1, paths, dtype, steps)
    else:
        share = -(-paths // threads)
        with ThreadPoolExecutor(threads) as pool:
            parts = pool.map(lambda seed: numpy_payoffs(seed, share, dtype, steps), range(threads))
            payoffs = np.concatenate(list(parts))
    return float(payoffs.mean()), float(payoffs.std(ddof=1) / sqrt(len(payoffs)))


def bridge_matrix(steps: int) -> NDArray[np.float64]:
    """W at each date from one normal for each dimension: expiry first, then the middle of each interval."""
    rows = np.zeros((steps + 1, steps))
    rows[steps, 0] = sqrt(steps)
    intervals, dimension = [(0, steps)], 1
    for left, right in intervals:
        if right - left > 1:
            middle = (left + right) // 2
            part = (middle - left) / (right - left)
            rows[middle] = (1 - part) * rows[left] + part * rows[right]
            rows[middle, dimension] = sqrt(part * (right - middle))
            intervals += [(left, middle), (middle, right)]
            dimension += 1
    return rows[1:]


def _scipy_sobol(paths: int, steps: int) -> Peer:
    def prepare(_inputs: Any) -> Any:
        qmc, ndtri = module("scipy.stats").qmc, module("scipy.special").ndtri
        bridge, dt = bridge_matrix(steps).T, MATURITY / steps
        drift = (RATE - 0.5 * VOLATILITY**2) * dt * np.arange(1, steps + 1)

        def call() -> tuple[float, float]:
            means = []
            for seed in range(16):
                points = qmc.Sobol(steps, rng=seed).random(paths // 16)
                prices = S0 * np.exp(VOLATILITY * sqrt(dt) * (ndtri(points) @ bridge) + drift)
                means.append(exp(-RATE * MATURITY) * np.maximum(prices.mean(axis=1) - K, 0.0).mean())
            return float(np.mean(means)), float(np.std(means, ddof=1) / 4)

        return call

    return Peer("SciPy's Sobol points", "scipy", prepare, note="one thread but for the BLAS; without quantiles")


def _peer(paths: int, steps: int, dtype: type, threads: int) -> Peer:
    name = f"NumPy {np.dtype(dtype)}, {'all cores' if threads > 1 else 'one thread'}"
    return numpy_peer(lambda _inputs: lambda: numpy_price(dtype, paths, steps, threads), name, threads=threads)


def _peers(paths: int, steps: int) -> tuple[Peer, ...]:
    counts = sorted({1, cores()})
    return tuple(_peer(paths, steps, dtype, threads) for threads in counts for dtype in (np.float32, np.float64))


def _case(sizes: Sizes, paths: int, steps: int, goal: Goal) -> Case:
    params = {
        "payoff": "asian_arithmetic",
        "option": "call",
        "spot": S0,
        "strike": K,
        "rate": RATE,
        "volatility": VOLATILITY,
        "maturity": MATURITY,
        "steps": steps,
        "paths": paths,
    }
    label = f"Asian call, {measured(paths)} x {steps}"
    return Case("monte_carlo", label, params, dict, sizes, _peers(paths, steps), goal, repeats=3)


def _sobol(sizes: Sizes, paths: int, steps: int) -> Case:
    plain = _case(sizes, paths, steps, Goal())
    label = f"{plain.label} by Sobol points"
    return replace(
        plain, label=label, params={**plain.params, "sampling": "sobol"}, peers=(_scipy_sobol(paths, steps),)
    )


CASES: tuple[Case, ...] = (
    _case("small", 4_096, 4, Goal()),
    _case(
        "full",
        PATHS,
        STEPS,
        Goal(
            {f"NumPy {dtype}, all cores": ratio for dtype, ratio in (("float32", 2.2), ("float64", 3.2))},
            seconds=0.8e-3,
        ),
    ),
    _sobol("small", 4_096, 4),
    _sobol("full", 65_536, 64),
)
