"""The privacy cost of one release, in exact numbers, for each accountant of a budget."""

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Annotated

from pydantic import Field

from warpdesk.models import Neighbouring

BudgetId = Annotated[str, Field(pattern=r"^budget_[0-9a-f]{32}$", description="id of the budget that is charged")]


@dataclass(frozen=True)
class Spend:
    """The privacy cost of one release for each accountant; None for one that cannot express it.

    `pure` is epsilon of pure DP, which Gaussian noise does not have. `approx` is (epsilon, delta), `zcdp` is rho of
    zero-concentrated DP. `neighbouring` is None if the caller declared the sensitivity, and so chose the relation.

    `accuracy_95()` is what the noise on one released number stays below with probability 95 %. None where that depends
    on what is private, as of a mean whose number of records is.
    """

    pure: Fraction | None
    approx: tuple[Fraction, Fraction] | None
    zcdp: Fraction | None
    neighbouring: Neighbouring | None
    accuracy_95: Callable[[], float | None] = field(default=lambda: None, compare=False)
