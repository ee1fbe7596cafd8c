"""The metrics of a backtest, from the sums that its loop leaves of each run."""

from math import sqrt

import numpy as np
from numba import njit
from numpy.typing import NDArray

from warpdesk_server.kernels.device.elementary import exp64, log64
from warpdesk_server.kernels.device.normal_tail import normal_cdf

# Bits of a bar's kind: it has prices, ends a block, sells what is held at its close, and repeats what a target wants.
PRICED, BLOCK_ENDS, SOLD, REPEATED = 1, 2, 4, 8

# n returns with the sum s, and q of their squares, moved where n q - s s > STILL n (n q): less is rounding.
STILL = 2.0**-46  # 64 epsilon

# The raw numbers of a run: equity at the end, sums of the returns' first four powers, of squares of those below 0, the
# least equity relative to the peak before it, most bars below a peak, costs, and counts.
FINAL, SUM1, SUM2, SUM3, SUM4, DOWNSIDE, WORST, LONGEST, COSTS, HELD, TRADES, WINS, PROFIT, LOSS, TURNOVER, RUINED = (
    range(16)
)
RAW = 16
COUNTS = (TRADES, WINS, PROFIT, LOSS, TURNOVER, RUINED)


@njit(cache=True, error_model="numpy", nogil=True)
def probability_above(ratio, least, bars, skewness, kurtosis):  # type: ignore[no-untyped-def]
    """The probability that a true Sharpe ratio is above `least` where `ratio` was seen in so many bars.

    Bailey and Lopez de Prado, "The Sharpe Ratio Efficient Frontier", 2012, equation 9. Ratios are of a bar; the normal
    distribution has kurtosis 3.
    """
    spread = 1.0 - skewness * ratio + (kurtosis - 1.0) / 4.0 * ratio * ratio
    if not spread > 0.0:
        return np.nan
    return normal_cdf((ratio - least) * sqrt(bars - 1.0) / sqrt(spread))


@njit(cache=True, error_model="numpy", nogil=True)
def metrics_of(raw, bars, capital, per_year, benchmark_sharpe):  # type: ignore[no-untyped-def]
    """The metrics (METRICS, runs) of runs' raw numbers (RAW, runs), in the order of spec.METRICS.

    Returns of all bars count, the first one's from the capital on. What is not defined, such as the Sharpe ratio of an
    account that never moved, is NaN.
    """
    out = np.empty((19, raw.shape[1]))
    for run in range(raw.shape[1]):
        growth = raw[FINAL, run] / capital
        mean = raw[SUM1, run] / bars
        second = raw[SUM2, run] / bars - mean * mean
        third = raw[SUM3, run] / bars - mean * (3.0 * (raw[SUM2, run] / bars) - 2.0 * mean * mean)
        fourth = (
            raw[SUM4, run] / bars
            - mean * (4.0 * (raw[SUM3, run] / bars))
            + mean * mean * (6.0 * (raw[SUM2, run] / bars) - 3.0 * mean * mean)
        )
        moves = second > STILL * bars * (raw[SUM2, run] / bars) and bars > 1
        deviation = np.sqrt(second * (bars / (bars - 1.0))) if moves else np.nan
        downside = np.sqrt(raw[DOWNSIDE, run] / bars)
        fall, trades, root = 1.0 - raw[WORST, run], raw[TRADES, run], np.sqrt(per_year)
        yearly = exp64(log64(growth) * (per_year / bars)) - 1.0 if growth > 1e-300 else -1.0
        out[0, run] = growth - 1.0
        out[1, run] = yearly
        out[2, run] = deviation * root if moves else 0.0
        out[3, run] = mean / deviation * root
        out[4, run] = mean / downside * root if downside > 0.0 else np.nan
        out[5, run] = yearly / fall if fall > 0.0 else np.nan
        out[6, run] = fall
        out[7, run] = raw[LONGEST, run]
        out[8, run] = trades
        out[9, run] = raw[WINS, run] / trades if trades else np.nan
        out[10, run] = raw[PROFIT, run] / raw[LOSS, run]
        out[11, run] = raw[HELD, run] / bars
        out[12, run] = raw[TURNOVER, run] * (per_year / bars)
        out[13, run] = raw[COSTS, run] / capital
        out[14, run] = third / (second * np.sqrt(second)) if moves else np.nan
        out[15, run] = fourth / (second * second) if moves else np.nan
        out[16, run] = probability_above(mean / deviation, benchmark_sharpe / root, bars, out[14, run], out[15, run])
        out[17, run] = raw[FINAL, run]
        out[18, run] = raw[RUINED, run]
    return out


def kinds_of(prices: NDArray[np.float64], blocks: int, flat_at_edges: bool, sold: bool) -> NDArray[np.uint8]:
    """The kind of each bar of an asset's prices (4, bars): PRICED, BLOCK_ENDS, SOLD, REPEATED.

    Block b of n has the bars from b bars // n on; the last bar always ends one. What is sold is sold at the last bar
    that has prices.
    """
    bars = prices.shape[1]
    priced = np.isfinite(prices).all(axis=0)
    kinds = np.where(priced, PRICED, 0).astype(np.uint8)
    edges = (np.arange(max(blocks, 1) + 1) * bars) // max(blocks, 1)
    ends = edges[1:] - 1
    kinds[ends] |= BLOCK_ENDS | (REPEATED if flat_at_edges else 0)
    last = np.maximum.accumulate(np.where(priced, np.arange(bars), -1))  # at each bar the last one with prices
    if flat_at_edges:
        kinds[last[ends][last[ends] >= edges[:-1]]] |= SOLD
    if sold and last[-1] >= 0:
        kinds[last[-1]] |= SOLD
    return kinds
