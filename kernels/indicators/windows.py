"""How a window of any length is put together from windows of 1, 2, 4, 8, ... bars, on every backend alike.

A window of h bars that ends at bar t is kept as two numbers relative to its newest price x[t]:

    D = mean(x[t-h+1 .. t]) - x[t]        V = population variance of the same bars

Two neighbouring windows, `new` (its last bar is t) and `old` (its last bar is t - lag), make a longer one. With w the
share of the old bars among all (Chan, Golub and LeVeque 1979, eq. 2.1, written in means):

    delta = (D_old + (x[t-lag] - x[t])) - D_new
    D     = D_new + w delta
    V     = ((1 - w) V_new + w V_old) + w (1 - w) delta^2

A window of 20 = 4 + 16 bars takes five such joins. Nothing is ever subtracted from a running total, so a value outside
the window cannot leave a trace; V is a sum of terms that are not negative, and of equal prices exactly 0; and the
result at a bar depends on the bars of its window alone, in an order fixed by the period: neither tiles nor chunks nor
threads show in it.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """One join: of the level with itself `lag` bars earlier, or of what is gathered so far with the level."""

    gather: bool
    lag: int
    old_share: float
    take: bool = False  # the first part gathered: a copy of the level, no arithmetic


def steps(period: int) -> tuple[Step, ...]:
    """The joins that lead from single bars to windows of `period` bars, newest parts first."""
    plan: list[Step] = []
    gathered, length = 0, 1
    while True:
        if period & length:
            share = length / (gathered + length)
            plan.append(Step(gather=True, lag=gathered, old_share=share, take=gathered == 0))
            gathered += length
        if gathered == period:
            return tuple(plan)
        plan.append(Step(gather=False, lag=length, old_share=0.5))
        length *= 2
