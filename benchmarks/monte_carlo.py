"""Price an Asian option over 1M paths of 252 steps beside NumPy: `python -m benchmarks.monte_carlo [--save]`.

NumPy walks 16,384 paths at a time so that its vectors stay in the second-level cache, reuses every buffer, and draws
by PCG64 in the dtype of the row; on one thread, as NumPy runs, and with one generator per core in a thread pool. It
returns the plain price and its standard error. Warpdesk returns those, the price corrected by the geometric average,
and the quantiles of the terminal price.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from math import exp, sqrt

import numpy as np
from numpy.typing import NDArray

from benchmarks.report import interleave, show
from kernels.monte_carlo.cpu import monte_carlo
from kernels.monte_carlo.spec import MonteCarloParams

PATHS, STEPS, BLOCK = 1_000_000, 252, 16_384
S0, K, RATE, VOLATILITY, MATURITY = 100.0, 100.0, 0.05, 0.2, 1.0
OPTION = MonteCarloParams(
    payoff="asian_arithmetic",
    option="call",
    spot=S0,
    strike=K,
    rate=RATE,
    volatility=VOLATILITY,
    maturity=MATURITY,
    steps=STEPS,
    paths=PATHS,
)


def numpy_payoffs(seed: int, paths: int, dtype: type) -> NDArray[np.float64]:
    """Discounted payoffs of an arithmetic Asian call, as one would write it in NumPy."""
    rng = np.random.default_rng(seed)
    dt = MATURITY / STEPS
    drift, diffusion = dtype((RATE - 0.5 * VOLATILITY**2) * dt), dtype(VOLATILITY * sqrt(dt))
    payoffs = np.empty(paths)
    z, log_price, price, total = (np.empty(BLOCK, dtype=dtype) for _ in range(4))
    for first in range(0, paths, BLOCK):
        n = min(BLOCK, paths - first)
        log_price[:] = 0
        total[:] = 0
        for _ in range(STEPS):
            rng.standard_normal(out=z, dtype=dtype)
            z *= diffusion
            z += drift
            log_price += z
            np.exp(log_price, out=price)
            total += price
        payoffs[first : first + n] = np.maximum(S0 * total[:n].astype(np.float64) / STEPS - K, 0.0)
    return payoffs * exp(-RATE * MATURITY)


def numpy_price(dtype: type, threads: int = 1) -> tuple[float, float]:
    if threads == 1:
        payoffs = numpy_payoffs(1, PATHS, dtype)
    else:
        share = -(-PATHS // threads)
        with ThreadPoolExecutor(threads) as pool:
            payoffs = np.concatenate(list(pool.map(lambda seed: numpy_payoffs(seed, share, dtype), range(threads))))
    return float(payoffs.mean()), float(payoffs.std(ddof=1) / sqrt(len(payoffs)))


def main() -> None:
    cores = len(os.sched_getaffinity(0))
    functions = {
        f"warpdesk, {cores} threads": lambda: monte_carlo(OPTION, seed=1),
        "numpy float32": lambda: numpy_price(np.float32),
        "numpy float64": lambda: numpy_price(np.float64),
    }
    if cores > 1:
        functions[f"numpy float32, {cores} threads"] = lambda: numpy_price(np.float32, cores)
        functions[f"numpy float64, {cores} threads"] = lambda: numpy_price(np.float64, cores)
    times = interleave(functions, repeats=3)
    ours = next(iter(times.values()))
    show(
        "monte_carlo",
        [
            {
                "1M x 252 Asian": name,
                "time": time,
                "Msteps/s": PATHS * STEPS / time.median / 1e6,
                "x warpdesk": time.median / ours.median,
            }
            for name, time in times.items()
        ],
    )
    answer = monte_carlo(OPTION, seed=1)
    price, error = numpy_price(np.float64)
    print(f"numpy float64 {price:.5f} +- {error:.5f}; warpdesk {answer['price']:.5f} +- {answer['standard_error']:.5f}")


if __name__ == "__main__":
    main()
