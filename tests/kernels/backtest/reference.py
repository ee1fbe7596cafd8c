"""A backtest written bar by bar from the README's table of rules, in plain Python, and its metrics by NumPy."""

from dataclasses import dataclass, field
from itertools import pairwise
from math import floor, isnan, sqrt
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass
class Broker:
    """One account. `position` is signed units; `wanted` is the side that the last signal asked for."""

    rules: dict[str, Any]
    cash: float
    position: float = 0.0
    wanted: int = 0
    stop: float | None = None
    gap: float | None = None  # of the trailing stop: what it lies below the best price, as a share and as a distance
    share: float = 0.0
    best: float = 0.0
    target: float | None = None
    entered: int = -1
    entry_price: float = 0.0
    money_before: float = 0.0
    gains: list[float] = field(default_factory=list)
    trades: list[tuple[Any, ...]] = field(default_factory=list)
    costs: float = 0.0
    traded: float = 0.0
    ruined: bool = False

    @property
    def side(self) -> int:
        return (self.position > 0) - (self.position < 0)

    def leave(self, bar: int, level: float, reason: str, limit: bool = False) -> None:
        price = level if limit else level - self.side * abs(level) * self.rules["slippage"]
        value = abs(self.position * price)
        paid = value * self.rules["fee"] + self.rules["fixed_fee"]
        self.cash += self.position * price - paid
        self.costs += paid + abs(self.position) * abs(level - price)
        self.traded += value / self.money_before
        self.close_book(bar, price, reason)

    def close_book(self, bar: int, price: float, reason: str) -> None:
        self.gains.append(self.cash - self.money_before)
        self.trades.append((self.entered, bar, self.side, abs(self.position), self.entry_price, price, reason))
        self.position, self.stop, self.target, self.gap = 0.0, None, None, None

    def enter(self, bar: int, level: float, side: int, series: dict[str, float]) -> None:
        rules = self.rules
        price = level * (1 + side * rules["slippage"])
        distances = {}
        for name in ("stop_loss", "take_profit", "trailing_stop", "size"):
            own = rules[name]
            distances[name] = series[name] if own == "series" else own
            if own == "series" and (isnan(series[name]) or (name != "size" and series[name] <= 0)):
                return
        fee = rules["fee"]
        if rules["size_in"] == "units":
            units = distances["size"]
        else:
            spent = distances["size"] * self.cash - rules["fixed_fee"]
            units = (spent * (1 - fee) if rules["fee_of"] == "spent" else spent / (1 + fee)) / price
        units = floor(units) if rules["whole_units"] else units
        if units <= 0 or price <= 0 or distances["size"] > 1e12:
            self.wanted = 0
            return
        value = units * price
        paid = value * (fee / (1 - fee) if rules["fee_of"] == "spent" else fee) + rules["fixed_fee"]
        self.money_before = self.cash
        self.cash -= side * value + paid
        self.costs += paid + units * abs(price - level)
        self.traded += value / self.money_before
        self.position, self.entered, self.entry_price, self.best = side * units, bar, price, price

        def distance(name: str) -> float | None:
            if rules[name] is None:
                return None
            return distances[name] if rules[name] == "series" else distances[name] * price

        stop, target = distance("stop_loss"), distance("take_profit")
        self.stop = None if stop is None else price - side * stop
        self.target = None if target is None else price + side * target
        if rules["trailing_stop"] is not None:
            series = rules["trailing_stop"] == "series"
            self.gap = distances["trailing_stop"] if series else 0.0
            self.share = 0.0 if series else distances["trailing_stop"]

    def level(self) -> float | None:
        levels = [] if self.stop is None else [self.stop]
        if self.gap is not None:
            levels.append(self.best * (1 - self.side * self.share) - self.side * self.gap)
        if not levels:
            return None
        return max(levels) if self.side > 0 else min(levels)

    def fill(self, bar: int, level: float, series: dict[str, float]) -> None:
        if self.wanted == self.side:
            return
        if self.side:
            self.leave(bar, level, "signal")
        if self.wanted:
            self.enter(bar, level, self.wanted, series)

    def within(self, bar: int, opened: float, high: float, low: float) -> None:
        side, stop, target = self.side, self.level(), self.target
        if self.rules["stops_from"] == "next_bar" and self.entered == bar:
            return
        worst, best = (low, high) if side > 0 else (high, low)
        waits = self.wanted != side

        def beyond(price: float, level: float | None, way: int) -> bool:
            return level is not None and way * (price - level) >= 0

        if beyond(opened, stop, -side):
            self.leave(bar, opened, "stop")
        elif beyond(opened, target, side):
            better = self.rules["target_fill"] == "open_if_better"
            self.leave(bar, opened if better else target, "target", limit=True)
        elif beyond(worst, stop, -side) and not (self.rules["if_both"] == "target" and beyond(best, target, side)):
            self.leave(bar, stop, "stop")
        elif beyond(best, target, side):
            self.leave(bar, target, "target", limit=True)
        if not self.side and not waits:
            self.wanted = 0

    def hear(self, enter: set[int], leave: set[int]) -> None:
        if self.ruined:
            return
        side = self.side
        if not side:
            if len(enter) == 1 and not enter & leave:
                (self.wanted,) = enter
            elif self.wanted in leave:
                self.wanted = 0
        elif -side in enter and side not in enter:
            self.wanted = -side if self.rules["opposite"] == "reverse" else 0
        elif side in leave:
            self.wanted = 0
        elif side in enter:
            self.wanted = side


def run(rules: dict[str, Any], prices: Array, signals: dict[str, Array], series: dict[str, Array]) -> dict[str, Any]:
    """Equity, position, trades and metrics of one run; `rules` has all of them, "series" where one has a series."""
    bars = prices.shape[1]
    broker = Broker(rules, rules["capital"])
    equity, position, value = np.empty(bars), np.empty(bars), rules["capital"]
    edges = [block * bars // rules["blocks"] for block in range(rules["blocks"] + 1)]
    priced = np.flatnonzero(np.isfinite(prices).all(axis=0)).tolist()
    blocks = [[bar for bar in priced if begin <= bar < end] for begin, end in pairwise(edges)]
    sold = {own[-1] for own in blocks if own} if rules["flat_at_edges"] else set[int]()
    if rules["last_bar"] == "sold":
        sold |= set(priced[-1:])
    wanted_before, held = 0.0, 0
    for bar in range(bars):
        opened, high, low, close = (float(price) for price in prices[:, bar])
        here, before = ({name: float(own[at]) for name, own in series.items()} for at in (bar, max(bar - 1, 0)))
        enter, leave = set[int](), set[int]()
        if "target" in signals:
            target = float(signals["target"][bar])
            now = wanted_before if isnan(target) else float(np.sign(target))
            if now != wanted_before or (rules["flat_at_edges"] and bar + 1 in edges):
                enter, leave = ({int(now)} if now else set()), {-1, 1} - {int(now)}
            wanted_before = now
        else:
            for name, to, side in (
                ("entries", enter, 1),
                ("short_entries", enter, -1),
                ("exits", leave, 1),
                ("short_exits", leave, -1),
            ):
                if name in signals and signals[name][bar] not in (0,) and not isnan(signals[name][bar]):
                    to.add(side)
        there = not np.isnan(prices[:, bar]).any()
        signals_read = False
        if there:
            if rules["fill"] == "next_open":
                broker.fill(bar, opened, before)
            if broker.side:
                broker.within(bar, opened, high, low)
            if broker.side:
                broker.best = max(broker.best, high) if broker.side > 0 else min(broker.best, low)
            if bar in sold:
                if broker.side:
                    broker.leave(bar, close, "end")
                broker.wanted = 0
            elif rules["fill"] == "same_close":
                broker.hear(enter, leave)
                signals_read = True
                broker.fill(bar, close, here)
            elif rules["fill"] == "next_close":
                broker.fill(bar, close, before)
            if broker.side < 0:
                rent = -broker.position * abs(close) * rules["borrow"] / rules["periods_per_year"]
                broker.cash -= rent
                broker.costs += rent
            value = broker.cash + broker.position * close
            if value <= 0 and not broker.ruined:
                broker.cash, broker.ruined = value, True
                if broker.side:
                    broker.close_book(bar, close, "ruin")
                broker.wanted = 0
        if not signals_read:
            broker.hear(enter, leave)
        equity[bar], position[bar] = value, broker.position
        held += broker.side != 0
    return {
        "equity": equity,
        "position": position,
        "trades": broker.trades,
        "metrics": metrics(rules, equity, broker, held),
    }


def metrics(rules: dict[str, Any], equity: Array, broker: Broker, held: int) -> dict[str, float]:
    """The metrics by their textbook formulas."""
    bars, year = len(equity), rules["periods_per_year"]
    returns = equity / np.concatenate([[rules["capital"]], equity[:-1]]) - 1
    peak = np.maximum.accumulate(np.concatenate([[rules["capital"]], equity]))[1:]
    longest = run_ = 0
    for below in equity < peak:
        run_ = run_ + 1 if below else 0
        longest = max(longest, run_)
    mean, deviation = returns.mean(), returns.std(ddof=1) if bars > 1 else np.nan
    central = returns - mean
    with np.errstate(all="ignore"):
        ratio = mean / deviation
        skewness = (central**3).mean() / (central**2).mean() ** 1.5
        kurtosis = (central**4).mean() / (central**2).mean() ** 2
    error = sqrt(1 - skewness * ratio + (kurtosis - 1) / 4 * ratio**2)  # Bailey and Lopez de Prado 2012
    beyond = (ratio - rules["benchmark_sharpe"] / sqrt(year)) * sqrt(bars - 1) / error
    gains = np.array(broker.gains)
    fall = float((1 - equity / peak).max())
    growth = equity[-1] / rules["capital"]
    cagr = growth ** (year / bars) - 1 if growth > 0 else -1.0
    below = sqrt((np.minimum(returns, 0) ** 2).mean())
    won, lost = gains[gains > 0].sum(), np.abs(gains[gains <= 0]).sum()
    with np.errstate(all="ignore"):
        return {
            "total_return": growth - 1,
            "cagr": cagr,
            "volatility": deviation * sqrt(year) if bars > 1 else 0.0,
            "sharpe": ratio * sqrt(year),
            "sortino": mean / below * sqrt(year) if below else np.nan,
            "calmar": cagr / fall if fall else np.nan,
            "max_drawdown": fall,
            "drawdown_bars": longest,
            "trades": len(gains),
            "win_rate": (gains > 0).mean() if len(gains) else np.nan,
            "profit_factor": np.float64(won) / lost,
            "exposure": held / bars,
            "turnover": broker.traded * year / bars,
            "costs": broker.costs / rules["capital"],
            "skewness": skewness,
            "kurtosis": kurtosis,
            "probabilistic_sharpe": NormalDist().cdf(beyond),
            "final_equity": equity[-1],
            "ruined": float(broker.ruined),
        }
