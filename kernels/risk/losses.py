"""What a value at risk needs of the losses of some portfolios, whichever backend holds them."""

from typing import Any, Protocol

from numpy.typing import NDArray

Array = NDArray[Any]


class Losses(Protocol):
    """The losses (portfolios, scenarios) of some portfolios on a backend. Masses are the scenarios' integer weights."""

    def ranked(self, masses: list[int]) -> Array:
        """The least loss such that it and smaller ones have so much mass together, (portfolios, len(masses))."""

    def tails(self, thresholds: Array) -> tuple[Array, Array]:
        """For thresholds (portfolios, m): sums of mass * (loss - threshold) and of mass * (loss - threshold)^2 over
        larger losses, float64 (portfolios, m, 2); the masses of larger and of equal losses, uint64 of that shape."""

    def moments(self, centres: Array) -> Array:
        """For centres (portfolios): sums of mass * (loss - centre)^k for k = 1 to 4, (portfolios, 4)."""

    def combined(self, pieces: Array) -> Array:
        """For pieces (portfolios, m, spec.PIECES): sums of the scenarios' rows, (portfolios, m, assets).

        A scenario with loss L counts mass * (inside + beyond). With pieces (low, high, above, centre, c0, c1, c2, c3),
        inside is c0 + c1 d + c2 d^2 + c3 d^3, d = L - centre, where low <= L <= high; beyond is above where L > high.
        """
