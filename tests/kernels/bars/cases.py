"""Bars that must not depend on where they are computed: each kind, both dtypes, sessions, gaps and missing numbers."""

from typing import Any

import numpy as np

from tests.kernels.parity import Case

Arrays = dict[str, "np.ndarray[Any, Any]"]

SECOND = 1_000_000_000
START = 1_700_000_000 * SECOND


def ticks(count: int, dtype: str = "float64", *, nan: float = 0.0, seed: int = 0, unit: float = 1.0) -> Arrays:
    """Ticks some 2 s apart, many at equal times, a few long after the one before; sizes are multiples of `unit`."""
    random = np.random.default_rng([seed, count, len(dtype)])
    waits = random.integers(0, 10, count) * random.integers(0, 2, count) * SECOND
    waits[random.random(count) < 0.02] += 400 * SECOND
    price = 100 * np.exp(np.cumsum(random.normal(0, 1e-3, count)))
    size = unit * random.integers(0, 50, count)
    for array in (price, size):
        array[random.random(count) < nan] = np.nan
    return {"price": price.astype(dtype), "size": size.astype(dtype), "time": START + np.cumsum(waits)}


def smaller(
    shape: tuple[int, ...], dtype: str = "float64", *, nan: float = 0.0, vwap: bool = False, seed: int = 0
) -> Arrays:
    """Bars of a minute, at times that all assets have in common; some minutes are missing."""
    random = np.random.default_rng([seed, *shape, len(dtype)])
    close = 50 * np.exp(np.cumsum(random.normal(0, 1e-3, shape), axis=-1))
    up, down, shift = (np.abs(random.normal(0, 0.01, shape)) for _ in range(3))
    bars = {"open": close * (1 - down + (up + down) * np.clip(shift * 50, 0, 1)), "high": close * (1 + up)}
    bars |= {"low": close * (1 - down), "close": close, "volume": random.integers(0, 900, shape).astype(float)}
    if vwap:
        bars["vwap"] = np.where(bars["volume"] > 0, close * (1 - down / 2), np.nan)
    for name in bars:
        bars[name][random.random(shape) < nan] = np.nan
    minutes = np.sort(random.choice(3 * shape[-1], shape[-1], replace=False))
    return {**{name: array.astype(dtype) for name, array in bars.items()}, "time": START + minutes * 60 * SECOND}


def sessions(inputs: Arrays, length: int = 3600, apart: int = 5400) -> Arrays:
    """The inputs with sessions of `length` seconds, one each `apart` seconds."""
    opens = np.arange(START + 60 * SECOND, int(inputs["time"][-1]) + 1, apart * SECOND)
    return {**inputs, "session_open": opens, "session_close": opens + length * SECOND}


def _case(name: str, inputs: Any, *, by: str, every: float, **params: Any) -> Case:
    return Case("bars", {"by": by, "every": every, **params}, inputs, name=f"bars-{name}")


_AMOUNTS = {"time": 60.0, "count": 7.0, "volume": 120.0, "dollar": 12_000.0}

CASES: tuple[Case, ...] = (
    *(
        _case(f"{by}-{count}-{dtype}", lambda count=count, dtype=dtype: ticks(count, dtype), by=by, every=_AMOUNTS[by])
        for by, count, dtype in (
            ("time", 1, "float64"), ("count", 31, "float32"), ("volume", 32, "float64"), ("dollar", 33, "float32"),
            ("time", 1023, "float32"), ("count", 1024, "float64"), ("volume", 1025, "float32"),
            ("dollar", 1023, "float64"), ("time", 1025, "float64"),
        )
    ),
    *(
        _case(
            f"{by}-sessions-nan-{dtype}",
            lambda dtype=dtype: sessions(ticks(2000, dtype, nan=0.1, unit=0.7)),
            by=by,
            every=every,
            nan_policy="skip",
            incomplete=incomplete,
        )
        for by, every in _AMOUNTS.items()
        for dtype, incomplete in (("float64", "keep"), ("float32", "drop"))
    ),
    _case("one-bar", lambda: ticks(5000, unit=0.3), by="time", every=1e8),
    _case("nan", lambda: ticks(500, nan=0.2), by="time", every=60.0, gaps="nan", nan_policy="skip", origin=7 * SECOND),
    _case("last", lambda: sessions(ticks(700, "float32")), by="time", every=90.0, gaps="last"),
    _case("none-in-a-session", lambda: sessions(ticks(9)) | {"time": np.full(9, START)}, by="volume", every=1.0),
    *(
        _case(
            f"smaller-{by}-{dtype}",
            lambda by=by, dtype=dtype: smaller((1025,), dtype, vwap=by != "time"),
            by=by,
            every=3600.0 if by == "time" else 50 * every,
        )
        for (by, every), dtype in zip(_AMOUNTS.items(), ("float64", "float32") * 2, strict=True)
    ),
    *(
        _case(
            f"assets-{gaps}-{dtype}",
            lambda dtype=dtype: sessions(smaller((7, 300), dtype, nan=0.2, vwap=True), 20_000, 30_000),
            by="time",
            every=1800.0,
            gaps=gaps,
            nan_policy="skip",
        )
        for gaps, dtype in (("omit", "float64"), ("nan", "float32"), ("last", "float64"))
    ),
)  # fmt: skip
