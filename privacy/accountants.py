"""The accountants of privacy budgets: the rules that add up the costs of a budget's releases.

There are three: pure epsilon, (epsilon, delta), or rho of zero-concentrated DP. Each is a sum of what single releases
cost, fixed before the release runs. Such sums hold where a caller chooses each release after seeing the ones before (a
privacy filter: Rogers et al. 2016, Whitehouse et al. 2023). Tighter accounts do not, and are reports
(`privacy.report`).
"""

from collections.abc import Mapping
from typing import get_args

from warpdesk.models import Accountant, Neighbouring
from warpdesk_server.kernels.spend import Spend
from warpdesk_server.privacy.amounts import PLACES, Name, NotAnAmount, exactly, rounded_up
from warpdesk_server.privacy.errors import Refused

AMOUNTS: dict[Accountant, tuple[Name, ...]] = {"pure": ("epsilon",), "approx": ("epsilon", "delta"), "zcdp": ("rho",)}


class NotHeld(Refused):
    """Raised if a privacy budget's accountant cannot count the release, however much of the budget remains."""

    code = "not-accountable"
    pointer = ""


def total(accountant: Accountant, given: Mapping[Name, str | None]) -> dict[Name, int]:
    """The total of a new privacy budget, by its accountant. Raises NotAnAmount for an extra or missing amount, or a
    delta of 1 or more."""
    names = AMOUNTS[accountant]
    for name in get_args(Name):
        if (given.get(name) is None) == (name in names):
            raise NotAnAmount(name, f"a budget of the accountant {accountant} is given by {' and '.join(names)}")
    amounts = {name: exactly(name, str(given[name])) for name in names}
    if amounts.get("delta", 0) >= 10 ** PLACES["delta"]:
        raise NotAnAmount("delta", f"delta {given['delta']} is not below 1: it would promise nothing")
    return amounts


def cost(accountant: Accountant, neighbouring: Neighbouring, spend: Spend) -> dict[Name, int]:
    """The cost of a release by a privacy budget's accountant, rounded up. Raises NotHeld.

    A sensitivity that the caller declared is taken to be for the budget's definition of neighbours.
    """
    if spend.neighbouring not in (None, neighbouring):
        raise NotHeld(
            f"the release protects neighbours by {spend.neighbouring}, the budget counts those by {neighbouring}"
        )
    held = {"pure": spend.pure, "approx": spend.approx, "zcdp": spend.zcdp}[accountant]
    if held is None:
        fit = [kind for kind in AMOUNTS if getattr(spend, kind) is not None]
        raise NotHeld(f"the accountant {accountant} cannot hold this release; {' and '.join(fit) or 'none'} can")
    values = dict(zip(AMOUNTS[accountant], held if isinstance(held, tuple) else (held,), strict=True))
    if min(values.values()) < 0 or not any(values.values()):
        raise ValueError(f"a release costs something, not {' and '.join(map(str, values.values()))}")
    return {name: rounded_up(name, value) for name, value in values.items()}
