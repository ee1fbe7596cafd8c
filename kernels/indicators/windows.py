"""The scheme of an indicator's sums over windows, the same on every backend, at a cost independent of the window.

Every row is cut into blocks of `period` bars, from its bar 0. A window of `period` bars is the end of one block and the
beginning of the next (van Herk 1992; Gil and Werman 1993, for maxima), and the first price c of the later block is
always in it. With u = x - c, for a window that ends k bars into the later block,

    S[k] = sum of u over the earlier block's bars k + 1 ... period - 1      (none for k = period - 1)
    P[k] = sum of u over the later block's bars 0 ... k
    mean = c + (S[k] + P[k]) / period

and the same sums of u * u give the variance, (sum of u u - (sum of u)^2 / period) / period. No price outside the window
enters, there is no running total, and equal prices give exactly 0. c lies in the window, so it is at most
sqrt(period - 1) deviations from the mean. The difference loses a factor of `period` in the worst case, in which a
single outlier is the anchor c; in a trend it loses a factor of 4. Cutler's RSI needs no anchor: it sums gains and
losses.

The order of additions belongs to the answer, and suits processors that add many numbers at once. The bars of a block
are taken in eights. Within an eight, partial sums reach 1, 2 and 4 bars (Hillis and Steele 1986). The totals of earlier
eights are added in order: within a group of 16 eights (e), within 16 groups (g), and the rest (h). A bar's sum is
((h + g) + e) + its sum within the eight. S is the mirror image: from the last eight to the first, within an eight
towards the left, and bars beyond the block count as 0.

Windows of up to 12 bars are added bar by bar, from the newest to the oldest, with the newest price as c.
"""

from typing import Any

SHORT = 12  # the longest window that is added bar by bar
EIGHT = 8  # bars within which partial sums double
GROUP = 16  # eights of a group, and groups of a group of groups
STRETCH = EIGHT * GROUP * GROUP  # bars; on a GPU longer windows are summed by stretches, and then these


def totals(period: int, rows: int, time: int, sums: int) -> int:
    """How many sums of stretches an indicator's windows leave in device memory, of each kind over both blocks."""
    return rows * -(-time // period) * -(-period // STRETCH) * 2 * sums if period > STRETCH else 0


def share(period: int, dtype: Any) -> Any:
    """The weight of one bar in the mean of an indicator's window: 1 / period, rounded in the computation's NumPy
    dtype."""
    real = dtype.type
    return real(1) / real(period)
