"""Bars one entry at a time in plain Python, sums by `math.fsum`: what each option means, without its code."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

Arrays = Mapping[str, "np.ndarray[Any, Any]"]
SECOND = 1_000_000_000


@dataclass
class Bar:
    time: int
    close_time: int
    complete: bool = False
    entries: list[tuple[float, ...]] = field(default_factory=list)  # open, high, low, close, price, size

    @property
    def numbers(self) -> dict[str, float]:
        """The outputs of a bar, NaN where it has no entry."""
        if not self.entries:
            nothing = dict.fromkeys(("open", "high", "low", "close", "vwap"), math.nan)
            return {**nothing, "volume": 0.0, "count": 0}
        opens, highs, lows, closes, prices, sizes = zip(*self.entries, strict=True)
        volume = math.fsum(sizes)
        moved = math.fsum(price * size for price, size in zip(prices, sizes, strict=True) if size > 0)
        return {
            "open": opens[0],
            "high": max(highs),
            "low": min(lows),
            "close": closes[-1],
            "volume": volume,
            "vwap": moved / volume if volume else math.nan,
            "count": len(self.entries),
        }


def entries_of(inputs: Arrays) -> list[tuple[float, ...]]:
    if "price" in inputs:
        return [(price, price, price, price, price, size) for price, size in _columns(inputs, "price", "size")]
    rows = []
    for at, (opened, high, low, close, volume) in enumerate(_columns(inputs, "open", "high", "low", "close", "volume")):
        price = float(inputs["vwap"][at]) if "vwap" in inputs else (high + low + close) / 3
        rows.append((opened, high, low, close, 0.0 if volume == 0 and math.isnan(price) else price, volume))
    return rows


def _columns(inputs: Arrays, *names: str) -> list[tuple[float, ...]]:
    return list(zip(*(inputs[name].tolist() for name in names), strict=True))


def bars_of(
    inputs: Arrays,
    *,
    by: str,
    every: float,
    origin: int = 0,
    gaps: str = "omit",
    incomplete: str = "keep",
    nan_policy: str = "error",
) -> list[Bar]:
    """The bars of one series."""
    time = inputs["time"].tolist()
    opens, closes = ([int(at) for at in inputs.get(name, [])] for name in ("session_open", "session_close"))
    whole = [(-(10**30), 10**30)] if "session_open" not in inputs else list(zip(opens, closes, strict=True))
    length = int(Fraction(str(every)) * SECOND)
    found: list[Bar] = []
    for begin, end in whole:
        anchor = begin if opens else origin
        amount, running = Fraction(0), None
        for t, entry in zip(time, entries_of(inputs), strict=True):
            if not begin <= t < end or any(math.isnan(number) for number in entry):
                continue
            if by == "time":
                start = anchor + (t - anchor) // length * length
                if running is None or running.time != start:
                    running = Bar(start, min(start + length, end))
                    running.complete = time[-1] >= running.close_time
                    found.append(running)
            else:
                if running is None:
                    running, amount = Bar(t, t), Fraction(0)
                    found.append(running)
                running.close_time = t
                amount += Fraction({"count": 1.0, "volume": entry[5], "dollar": entry[4] * entry[5]}[by])
            running.entries.append(entry)
            if by != "time" and amount >= Fraction(every):
                running.complete, running = True, None
    if incomplete == "drop":
        found = [bar for bar in found if bar.complete]
    return found if gaps == "omit" or not found else _filled(found, whole, length, origin if not opens else None)


def _filled(found: list[Bar], whole: list[tuple[int, int]], length: int, origin: int | None) -> list[Bar]:
    by_time, filled = {bar.time: bar for bar in found}, []
    for begin, end in whole:
        start = begin
        if origin is not None:
            start = found[0].time
        while start < end and start <= found[-1].time:
            if start >= found[0].time:
                empty = Bar(start, min(start + length, end), complete=True)
                filled.append(by_time.get(start, empty))
            start += length
    return filled
