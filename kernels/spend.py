"""The privacy cost of one release, in exact numbers, for each accountant of a budget."""

from dataclasses import dataclass
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
    """

    pure: Fraction | None
    approx: tuple[Fraction, Fraction] | None
    zcdp: Fraction | None
    neighbouring: Neighbouring | None
