"""How much of a backtest's best result is luck: the arithmetic of `overfitting` besides its splits.

Sources: Bailey and Lopez de Prado, "The Deflated Sharpe Ratio" (2014); Bailey, Borwein, Lopez de Prado and Zhu, "The
Probability of Backtest Overfitting" (2015).
"""

from itertools import combinations
from math import e, sqrt
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from warpdesk_server.kernels.backtest.metrics import STILL, probability_above
from warpdesk_server.kernels.backtest.spec import Overfitting
from warpdesk_server.kernels.cpu.cores import share
from warpdesk_server.kernels.device.elementary import log64
from warpdesk_server.kernels.device.reduce import pairwise_sum
from warpdesk_server.kernels.monte_carlo.closed_form import normal_quantile

Array = NDArray[Any]
_EULER = 0.5772156649015329


def edges_of(bars: int, blocks: int) -> Array:
    """The first bar of each of a backtest's blocks, and the end."""
    return np.arange(blocks + 1) * bars // blocks


@njit(cache=True, nogil=True)
def block_sums_of(returns, edges, sums, first):  # type: ignore[no-untyped-def]
    """Fill sums (4, sets, blocks) from the set `first` on with the first four powers of returns (sets, bars), added bar
    by bar."""
    for row in range(returns.shape[0]):
        for block in range(edges.size - 1):
            one = two = three = four = 0.0
            for bar in range(edges[block], edges[block + 1]):
                step = returns[row, bar]
                square = step * step
                one += step
                two += square
                three += square * step
                four += square * square
            to = first + row
            sums[0, to, block], sums[1, to, block], sums[2, to, block], sums[3, to, block] = one, two, three, four


def sums_of(params: Overfitting, returns: Array | None, block_sums: Array | None) -> tuple[Array, int]:
    """The sums (4, sets, blocks) of a backtest's returns, and how many bars they are of."""
    if returns is None:
        return np.array(block_sums), params.bars
    edges = edges_of(returns.shape[1], params.blocks)
    sums = np.empty((4, len(returns), params.blocks))
    whole = returns

    def work(first: int, end: int) -> None:  # copies, as a loop is compiled once more for what is only to be read
        block_sums_of(np.array(whole[first:end], np.float64), edges, sums, first)

    share(len(returns), work, 64)
    return sums, returns.shape[1]


def sizes_of(params: Overfitting, bars: int) -> Array:
    """The bars of each of a backtest's blocks, as float64."""
    return np.diff(edges_of(bars, params.blocks)).astype(np.float64)


def splits(blocks: int) -> Array:
    """Every half of the blocks as the bits of a number, in ascending order."""
    halves = [sum(1 << block for block in half) for half in combinations(range(blocks), blocks // 2)]
    return np.array(sorted(halves), np.int64)


def sharpe(one: Array, two: Array, bars: int) -> Array:
    """The Sharpe ratios of a bar from sums of returns and of their squares; 0 where nothing moved."""
    mean = one / bars
    variance = (two - one * mean) / (bars - 1)
    moves = bars * two - one * one > STILL * bars * (bars * two)
    return np.where(moves, mean / np.sqrt(np.where(moves, variance, 1.0)), 0.0)


def expected_best(variance: float, trials: int) -> float:
    """The Sharpe ratio that the best of so many trials of no skill is expected to have (2014, equation 1)."""
    if trials < 2:
        return 0.0
    low, high = normal_quantile(1.0 - 1.0 / trials), normal_quantile(1.0 - 1.0 / (trials * e))
    return sqrt(variance) * ((1.0 - _EULER) * low + _EULER * high)


def logits_of(below: Array, equal: Array, sets: int) -> Array:
    """The logits of the relative ranks of chosen sets, of which so many sets are below and as many have equal scores,
    themselves included. Equal ones share their mean rank."""
    rank = (below + (equal + 1) / 2) / (sets + 1)
    out: Array = _log(rank / (1.0 - rank))
    return out


@njit(cache=True)
def _log(numbers):  # type: ignore[no-untyped-def]
    out = np.empty(numbers.size)
    for k in range(numbers.size):
        out[k] = log64(numbers[k])
    return out


def answer(params: Overfitting, sums: Array, bars: int, chosen: Array, below: Array, equal: Array) -> dict[str, Any]:
    """The outputs of `overfitting` from sums (4, sets, blocks), and of each split the chosen set and its rank."""
    sets, year = sums.shape[1], sqrt(params.periods_per_year)
    totals = sums[:, :, 0].copy()
    for block in range(1, params.blocks):
        totals += sums[:, :, block]
    ratios = sharpe(totals[0], totals[1], bars)
    best = int(ratios.argmax())
    mean = float(pairwise_sum(ratios[:, None])[0]) / sets
    variance = float(pairwise_sum(((ratios - mean) ** 2)[:, None])[0]) / (sets - 1)
    trials = sets + params.prior_trials if params.trials is None else params.trials
    luck = expected_best(variance, trials)
    shape = _shape(totals[:, best], bars)
    ratio = float(ratios[best])
    logits = logits_of(below, equal, sets)
    walked, together = _walk_forward(params, sums, bars)
    return {
        "best": best,
        "sharpe": ratio * year,
        "probabilistic_sharpe": probability_above(ratio, 0.0, bars, *shape),
        "deflated_sharpe": probability_above(ratio, luck, bars, *shape),
        "expected_best_sharpe": luck * year,
        "trials": trials,
        "pbo": int(np.count_nonzero(logits <= 0.0)) / len(logits),
        "splits": len(logits),
        "logits": logits,
        "chosen": chosen,
        "walk_forward": walked,
        "walk_forward_sharpe": together,
    }


def _shape(totals: Array, bars: int) -> tuple[float, float]:
    """Skewness and kurtosis of returns from the sums of their powers."""
    mean, two, three, four = (float(total) / bars for total in totals)
    variance = two - mean * mean
    if not variance > STILL * bars * two:
        return 0.0, 3.0
    skewed = three - mean * (3.0 * two - 2.0 * mean * mean)
    peaked = four - mean * (4.0 * three - mean * (6.0 * two - 3.0 * mean * mean))
    return skewed / (variance * sqrt(variance)), peaked / (variance * variance)


def _walk_forward(params: Overfitting, sums: Array, bars: int) -> tuple[Array, float]:
    """For each block after those to train on: block, the set that was best before, its Sharpe ratios before and in it.
    And the Sharpe ratio of all tested blocks together."""
    edges, year = edges_of(bars, params.blocks), sqrt(params.periods_per_year)
    rows, tested, count = [], np.zeros(2), 0
    for block in range(params.train_blocks or 1, params.blocks):
        first = block - params.train_blocks if params.train_blocks else 0
        trained = sums[:2, :, first].copy()
        for other in range(first + 1, block):
            trained += sums[:2, :, other]
        before = sharpe(trained[0], trained[1], int(edges[block] - edges[first]))
        chosen, length = int(before.argmax()), int(edges[block + 1] - edges[block])
        own = sums[:2, chosen, block]
        rows.append((block, chosen, float(before[chosen]) * year, float(sharpe(own[0], own[1], length)) * year))
        tested, count = tested + own, count + length
    return np.array(rows, np.float64), float(sharpe(tested[0], tested[1], count)) * year
