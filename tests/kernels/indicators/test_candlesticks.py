"""Candlestick patterns beside TA-Lib's, on bars from a coarse grid, where ties and rare patterns are frequent."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.kernels.indicators.test_declared import compute
from warpdesk_server.kernels.catalogue import OPERATIONS
from warpdesk_server.kernels.operation import SameAs

Array = NDArray[Any]
CANDLESTICK = OPERATIONS["candlestick"]


def grid(bars: int, seed: int) -> dict[str, Array]:
    random = np.random.default_rng(seed)
    base = 1000 + np.cumsum(random.integers(-2, 3, bars)).astype(float)
    start = base + random.integers(-6, 7, bars) * (random.random(bars) < 0.7)
    end = base + random.integers(-6, 7, bars)
    up, down = (random.integers(0, 5, bars) * (random.random(bars) < 0.4) for _ in range(2))
    return {"open": start, "high": np.maximum(start, end) + up, "low": np.minimum(start, end) - down, "close": end}


def drawn(*shapes: tuple[float, float, float, float]) -> dict[str, Array]:
    """Bars (open, high, low, close) after twelve ordinary ones."""
    usual = [(100.0, 104.5, 98.5, 103.0), (103.0, 104.5, 98.5, 100.0)] * 6
    columns = np.array([*usual, *shapes]).T
    return dict(zip(("open", "high", "low", "close"), np.ascontiguousarray(columns), strict=True))


RARE = {  # of which the grid has none or few
    "three_stars_in_the_south": drawn((110, 110, 88, 100), (104, 104.2, 90, 99), (95, 95, 94.5, 94.5)),
    "rise_fall_three_methods": drawn(
        (100, 111, 99, 110), (109, 109.5, 107.5, 108), (108, 108.5, 106.5, 107), (107, 107.5, 105.5, 106),
        (107, 112.5, 106.5, 112),
    ),
    "breakaway": drawn(
        (110, 110.5, 99.5, 100), (98, 99, 95, 96), (96, 97, 94, 94.5), (95, 96, 93, 93.5), (94, 99.5, 93.5, 99),
    ),
    "mat_hold": drawn(
        (100, 111, 99, 110), (114, 115, 112.5, 113), (111, 111.5, 109, 109.5), (109, 109.5, 107.5, 108),
        (109, 117, 108.5, 116),
    ),
}  # fmt: skip


COMMON = grid(150_000, 1)


def theirs(twin: SameAs, arrays: dict[str, Array]) -> Array:
    abstract = pytest.importorskip("talib.abstract", reason="TA-Lib is not installed")
    options = {"penetration": 0.3} if twin.parameters else {}
    return np.asarray(abstract.Function(twin.function)(arrays, **options), float)


@pytest.mark.parametrize("twin", CANDLESTICK.same_as, ids=lambda twin: twin.function)
def test_every_pattern_is_found_where_talib_finds_it(twin: SameAs) -> None:
    pattern = twin.fixed["pattern"]
    found = 0
    for arrays in (COMMON, RARE.get(pattern, COMMON)):
        own, expected = (
            compute(CANDLESTICK, arrays, pattern=pattern, penetration=0.3)["candlestick"],
            theirs(twin, arrays),
        )
        shown = ~np.isnan(own)
        assert shown[10:].all()
        shown[:15] = False  # TA-Lib waits for as many bars as any pattern of its kind could need
        assert np.array_equal(own[shown], expected[shown])
        found += int(np.count_nonzero(expected))
    assert found > 0
