"""What both backends know of a backtest before they simulate: prices, rules and orders as arrays, and the answer."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.backtest import spec
from warpdesk_server.kernels.backtest.metrics import TRADES, kinds_of, metrics_of
from warpdesk_server.kernels.backtest.operands import Operands
from warpdesk_server.kernels.backtest.sets import Sets
from warpdesk_server.kernels.backtest.strategy import DISTANCES, PRICES
from warpdesk_server.kernels.device import orders as o
from warpdesk_server.kernels.indicators.indicator import whole_shape

Array = NDArray[Any]
_FILLS = {"next_open": o.AT_OPEN, "next_close": o.AT_CLOSE, "same_close": o.AT_SIGNAL}


class Job:
    """A backtest's request as arrays: `prices` (assets, 4, bars), `kinds` (assets, bars), `rules` (RULES), `orders`
    (ORDER, sets)."""

    def __init__(self, params: Any, given: Mapping[str, Array]) -> None:
        kinds: dict[str, Any] = {name: array.dtype.name for name, array in given.items()}
        self.params = params
        self.infos = {name: ArrayInfo(kinds[name], array.shape) for name, array in given.items()}
        self.sets = spec.sets_of_params(params)
        self.shape = whole_shape(self.infos)
        self.bars, self.assets = self.shape[-1], (self.shape[0] if len(self.shape) > 1 else 1)
        rows = {name: array.view(np.ndarray).reshape(-1, self.bars) for name, array in given.items()}
        self.inputs: dict[str, Array] = {name: np.ascontiguousarray(each, np.float64) for name, each in rows.items()}
        self.strategy = spec.strategy_of(params, given)
        self.program = self.strategy.program
        self.operands = Operands(self.strategy, self.inputs)
        self.rules, self.orders = _rules(params), _orders(params, self.sets)

    def prices(self, asset: int) -> Array:
        """Open, high, low and close of an asset (4, bars); the close stands in for what was not given."""
        given = [self.inputs.get(name, self.inputs["close"]) for name in PRICES]
        return np.ascontiguousarray([rows[asset if len(rows) > 1 else 0] for rows in given])

    def kinds(self, prices: Array) -> Array:
        return kinds_of(prices, self.params.blocks, self.params.flat_at_edges, self.params.last_bar == "sold")

    def metrics(self, raw: Array) -> Array:
        """The metrics (METRICS, runs) of raw numbers."""
        params = self.params
        out: Array = metrics_of(raw, self.bars, params.capital, params.periods_per_year, params.benchmark_sharpe)
        return out

    def replaced(self, cut: int) -> "Job":
        """The job with other numbers from a bar on: those of the mirrored rest, and one more than twice as large."""
        given = {
            name: np.concatenate([rows[:, :cut], 2.0 * rows[:, cut:][:, ::-1] + 1.0], axis=1)
            for name, rows in self.inputs.items()
        }
        return Job(self.params, {name: rows.reshape(self.infos[name].shape) for name, rows in given.items()})


def _rules(params: Any) -> Array:
    rules = np.zeros(o.RULES)
    fee = params.fee
    rules[o.FILL] = _FILLS[params.fill]
    # Of what is spent on an entry, fee and value together, or of the value.
    rules[o.ENTRY_FEE] = fee / (1.0 - fee) if params.fee_of == "spent" else fee
    rules[o.EXIT_FEE], rules[o.FIXED], rules[o.SLIPPAGE] = fee, params.fixed_fee, params.slippage
    rules[o.BORROW] = params.borrow / params.periods_per_year
    rules[o.UNITS], rules[o.WHOLE] = params.size_in == "units", params.whole_units
    rules[o.TARGET_FIRST], rules[o.NEXT_BAR] = params.if_both == "target", params.stops_from == "next_bar"
    rules[o.OPEN_IF_BETTER], rules[o.REVERSE] = params.target_fill == "open_if_better", params.opposite == "reverse"
    return rules


def _orders(params: Any, sets: Sets) -> Array:
    orders = np.full((o.ORDER, sets.count), np.inf)
    numbers = spec.order_numbers(params, sets)
    for place, name in enumerate(DISTANCES):
        if name in numbers:
            orders[place] = numbers[name]
        elif spec.is_series(getattr(params, name)):
            orders[place] = 0.0
    return orders


def answer(job: Job, raw: Array, sums: Array, prefix_differences: Array) -> dict[str, Any]:
    """The outputs of a sweep: raw (RAW, assets, sets) as metrics, sums (4, assets, sets, blocks)."""
    runs = job.assets * job.sets.count
    metrics = job.metrics(raw.reshape(len(raw), runs)).reshape(-1, job.assets, job.sets.count)
    return {
        "metrics": np.ascontiguousarray(metrics.swapaxes(1, 2)).reshape(
            spec.shape_of_metrics(job.infos, job.sets.count)
        ),
        "block_sums": np.ascontiguousarray(sums.swapaxes(1, 2)).reshape(
            spec.shape_of_sums(job.params, job.infos, job.sets.count)
        ),
        "sets": np.array(job.sets.columns, np.float64),
        "prefix_differences": prefix_differences,
        **spec.values_of(job.params, job.infos, job.sets),
    }


def _portfolio_returns(job: Job, equity: Array) -> Array:
    """The returns of a portfolio of accounts with equity (assets, bars), 0 from where it has nothing left."""
    worth = np.zeros(1 + job.bars)  # before the first bar, and at each close
    for weight, account in zip(job.params.weights or (1.0,) * job.assets, equity, strict=True):
        worth[0] += weight * job.params.capital
        worth[1:] += weight * account
    before, after = worth[:-1], worth[1:]
    return np.where(before > 0.0, after / np.where(before > 0.0, before, 1.0) - 1.0, 0.0)


def single_answer(job: Job, raw: Array, curves: Array, logs: Array, prefix_differences: Array) -> dict[str, Any]:
    """The outputs of one set: raw (RAW, assets), curves (assets, 2, bars), logs (assets, trades, TRADE)."""
    trades = []
    for asset, log in enumerate(logs):
        own = np.empty((int(raw[TRADES, asset]), 1 + o.TRADE))
        own[:, 0], own[:, 1:] = asset, log[: len(own)]
        trades.append(own)
        if log[-1, o.REASON] == o.STILL_OPEN:
            trades.append(np.concatenate([[asset], log[-1]])[None])
    return {
        "equity": np.ascontiguousarray(curves[:, 0]).reshape(job.shape),
        "position": np.ascontiguousarray(curves[:, 1]).reshape(job.shape),
        "trades": np.concatenate(trades),
        "metrics": job.metrics(raw).reshape(-1, *job.shape[:-1]),
        "portfolio_returns": _portfolio_returns(job, curves[:, 0]),
        "prefix_differences": prefix_differences,
        **spec.values_of(job.params, job.infos, job.sets),
        "trade_fields": list(spec.TRADE_FIELDS),
        "reasons": list(spec.REASONS),
    }
