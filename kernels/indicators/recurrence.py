"""The tile scheme of EMA and RSI: affine maps over segments and tiles, composed in an order that belongs to the answer.

Both indicators run y <- beta y + u from bar to bar. A segment of 32 bars is run from y = 0 and becomes the map (A, b);
the 64 segments of a tile are composed by a Kogge-Stone scan; the state before a tile comes from the maps of the tiles
before it, oldest first; and each segment is then run again from its exact state. Nothing is cut off: of earlier tiles
only those are left out whose factor is exactly zero.

Where too few of them are zero, no tile is left out. With 64 tiles to a group, 64 groups to a span and maps composed
oldest first, the state before a tile is then that before its span, through the groups before its own in the span as one
map, through the tiles before it in the group as another. A row has one span in 8,388,608 bars, so that hardly anything
has to be done one after another.
"""

from dataclasses import dataclass
from typing import Any

SEGMENT = 32  # bars that one thread runs through
SEGMENTS = 64  # threads of a block
TILE = SEGMENT * SEGMENTS
GROUP = 64  # tiles of a group, and groups of a span
LOOK_BACK_LIMIT = 64  # tiles; a longer memory goes through all tiles, by groups and spans


@dataclass(frozen=True)
class Recurrence:
    """What drives an EMA or RSI: decay, and the bars of a run of prices without a gap that only fill the seed.

    Bars of a run are counted from 1. Bar 1 clears the state; up to bar `warm` the state gathers, later it decays;
    the first number shown is that of bar `valid`.
    """

    beta: float
    warm: int
    valid: int
    first: float = 1.0  # RSI: the weight of a change that the seed gathers

    @property
    def settled(self) -> int:
        """Bars after which every further bar decays the state and shows a number."""
        return max(self.warm, self.valid - 1, 1)


def ema_recurrence(period: int, convention: str) -> Recurrence:
    """EMA with alpha = 2 / (period + 1); `talib` starts from the mean of the first bars, `tradingview` from bar 1.

    With beta = 0 it is the price itself, and is not computed: 0 times a difference that overflowed would be no number.
    """
    warm = period if convention == "talib" else 1
    return Recurrence(beta=(period - 1) / (period + 1), warm=warm, valid=warm)


def rsi_recurrence(period: int, convention: str) -> Recurrence:
    """RSI state as gains and losses divided by alpha, since only their ratio counts.

    Wilder's seed, the mean of the first `period` changes, is then their plain sum. The `ema` convention starts from the
    first change alone, with alpha = 2 / (period + 1).
    """
    if convention == "ema":
        return Recurrence((period - 1) / (period + 1), warm=2, valid=period + 1, first=(period + 1) / 2)
    return Recurrence((period - 1) / period, warm=period + 1, valid=period + 1)


def look_back(recurrence: Recurrence, itemsize: int) -> int:
    """Tiles to go back until what lies before them is multiplied by zero; 0 means through all tiles.

    A tile may also be filling a seed, which does not decay: the run it belongs to starts within `settled` bars.
    """
    smallest = 5e-324 if itemsize == 8 else 2.0**-126  # float32 has no subnormals on a GPU
    decay, tiles = recurrence.beta**TILE, 1
    while decay**tiles >= smallest:
        tiles += 1
        if tiles > LOOK_BACK_LIMIT:
            return 0
    tiles += -(-recurrence.settled // TILE) + 1
    return tiles if tiles <= LOOK_BACK_LIMIT else 0


def negligible(itemsize: int) -> float:
    """The sum of gains and losses up to which they have decayed to nothing and an RSI stands still.

    In exact arithmetic bars without a change never move an RSI, since both averages shrink alike; in floating point
    both lose their digits near the smallest positive number.
    """
    return 2.0**-1000 if itemsize == 8 else 2.0**-100


def decay(beta: float, real: Any) -> Any:
    """The factor of a settled segment, rounded as one is run: `real` is the type of the prices (numpy.float64)."""
    factor = step = real(beta)
    for _ in range(SEGMENT - 1):
        factor = factor * step
    return factor
