"""The privacy cost of one release, exact, for each accountant."""

from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated

from pydantic import Field

from warpdesk.models import Neighbouring

BudgetId = Annotated[str, Field(pattern=r"^budget_[0-9a-f]{32}$", description="id of the budget that is charged")]


@dataclass(frozen=True)
class Spend:
    """None where an accountant cannot hold the release: a Gaussian's noise has no pure epsilon.

    `pure` is epsilon of pure DP, `approx` (epsilon, delta), `zcdp` rho of zero-concentrated DP. `neighbouring` is None
    where the caller declared the sensitivity and so the relation it holds for.
    """

    pure: Fraction | None
    approx: tuple[Fraction, Fraction] | None
    zcdp: Fraction | None
    neighbouring: Neighbouring | None
