"""The tile scheme of the indicators EMA and RSI: affine maps of segments and tiles, composed in a fixed order.

The order decides the last bits, so it belongs to the answer. Both indicators run y <- beta y + u from bar to bar.
1. A segment of 32 bars is run from y = 0 and becomes the map (A, b).
2. The 64 segments of a tile are composed by a Kogge-Stone scan.
3. The state before a tile comes from the maps of the tiles before it, oldest first.
4. Each segment is run again from its exact state.
Nothing is cut off: an earlier tile is left out only if its factor is exactly zero.

If too few factors are zero, no tile is left out. Then 64 tiles make a group, 64 groups make a span, and maps are
composed oldest first. The state before a tile is the state before its span, mapped through the earlier groups of the
span as one map, then through the earlier tiles of the group as another. A row has one span in 8,388,608 bars, so hardly
any work is sequential.
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
    """The recurrence of an EMA or RSI: its decay, and how many bars after a gap only fill the seed.

    Bars of a run, which has no gap, are counted from 1. Bar 1 clears the state. Up to bar `warm` the state gathers,
    later it decays. The first number shown is that of bar `valid`. All of this happens `late` bars later: an EMA leaves
    out so many bars of a run.
    """

    beta: float
    warm: int
    valid: int
    first: float = 1.0  # RSI: the weight of a change that the seed gathers
    late: int = 0

    @property
    def settled(self) -> int:
        """The number of bars after which every bar decays the indicator's state and shows a number."""
        return self.late + max(self.warm, self.valid - 1, 1)


def ema_recurrence(period: int, convention: str) -> Recurrence:
    """The recurrence of an EMA, alpha = 2 / (period + 1). `talib` starts at the mean of bars, `tradingview` at bar 1.

    With beta = 0 the EMA is the price itself and is not computed: 0 times an overflowed difference would be NaN.
    """
    warm = period if convention == "talib" else 1
    return Recurrence(beta=(period - 1) / (period + 1), warm=warm, valid=warm)


def rsi_recurrence(period: int, convention: str) -> Recurrence:
    """The recurrence of an RSI. Its state is gains and losses divided by alpha, since only their ratio counts.

    Wilder's seed, the mean of the first `period` changes, is then their plain sum. The `ema` convention starts from the
    first change alone, with alpha = 2 / (period + 1).
    """
    if convention == "ema":
        return Recurrence((period - 1) / (period + 1), warm=2, valid=period + 1, first=(period + 1) / 2)
    return Recurrence((period - 1) / period, warm=period + 1, valid=period + 1)


def look_back(recurrence: Recurrence, itemsize: int) -> int:
    """The number of earlier tiles an EMA or RSI depends on, since older ones are multiplied by zero; 0 means all tiles.

    A tile may also be filling a seed, which does not decay: its run starts within `settled` bars.
    """
    smallest = 5e-324 if itemsize == 8 else 2.0**-126  # float32 has no subnormals on a GPU
    decay, tiles = recurrence.beta**TILE, 1
    while decay**tiles >= smallest:
        tiles += 1
        if tiles > LOOK_BACK_LIMIT:
            return 0
    tiles += -(-recurrence.settled // TILE) + 1
    return tiles if tiles <= LOOK_BACK_LIMIT else 0


@dataclass(frozen=True)
class Board:
    """What the blocks of an indicator's launch leave for each other in device memory.

    `flags` and `numbers` in all; of each row the states of `groups` of tiles and of `spans` of groups, where none is
    left out.
    """

    flags: int
    numbers: int
    groups: int
    spans: int


def board(recurrence: Recurrence, states: int, rows: int, tiles: int, itemsize: int) -> Board:
    """The board of an EMA (one state) or RSI (two) of rows of so many tiles."""
    groups, spans = (0, 0) if look_back(recurrence, itemsize) else (-(-tiles // GROUP), tiles // GROUP**2 + 1)
    flags = 1 + rows * (3 * tiles + groups + spans)
    numbers = rows * ((2 + states) * tiles + (1 + states) * groups + states * spans)
    return Board(flags, numbers, groups, spans)


def negligible(itemsize: int) -> float:
    """The sum of gains and losses up to which they count as zero, so that the RSI does not change.

    In exact arithmetic bars without a change never move an RSI, since both averages shrink alike. In floating point
    both lose their digits near the smallest positive number.
    """
    return 2.0**-1000 if itemsize == 8 else 2.0**-100


def decay(beta: float, real: Any) -> Any:
    """The factor of an indicator's settled segment, rounded as when it is run; `real` is the type of the prices
    (numpy.float64)."""
    factor = step = real(beta)
    for _ in range(SEGMENT - 1):
        factor = factor * step
    return factor
