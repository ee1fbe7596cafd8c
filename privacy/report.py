"""Reports of a privacy budget's total loss, as an epsilon at a chosen delta. They charge and refuse nothing.

They may be less than what the ledger counts, and hold where amounts were settled in advance. Optimal composition is no
privacy filter: a caller who chooses what to spend by earlier answers is covered by the ledger's own sums alone. Slow:
not for the path of a request.
"""

import importlib
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction

from warpdesk_server.kernels.dp_noise.calibration import epsilon_of_rho
from warpdesk_server.privacy.amounts import PLACES, exactly, rounded_up, shown
from warpdesk_server.privacy.ledger import Ledger

_CELLS = 1 << 18  # of the grid on which losses are added, over the whole epsilon
_AT_A_TIME = 1000


class NoReport(Exception):
    """Raised if a package that privacy reports need is not installed."""


@dataclass(frozen=True)
class Report:
    """A privacy-loss report in decimal strings, rounded up. `epsilon` is None if the releases' own delta is more than
    `delta`."""

    delta: str
    epsilon: str | None
    method: str  # sum: what the ledger counts; zcdp: converted from rho; pld: optimal composition
    releases: int


def zcdp_epsilon(rho: str, delta: str) -> str:
    """The epsilon to report for a budget in rho-zCDP: the least known at this delta (Canonne, Kamath, Steinke 2020)."""
    exact = Fraction(exactly("rho", rho), 10 ** PLACES["rho"]), Fraction(exactly("delta", delta), 10 ** PLACES["delta"])
    return shown({"epsilon": rounded_up("epsilon", epsilon_of_rho(*exact))})["epsilon"]


def report(ledger: Ledger, budget_id: str, delta: str) -> Report:
    """Report the total privacy loss, at this delta, of a budget's releases that were not refunded.

    Raises UnknownBudget, NotAnAmount, and NoReport if dp-accounting (the extra `reports`) is not installed; budgets of
    the accountant zcdp need none.
    """
    allowed = Fraction(exactly("delta", delta), 10 ** PLACES["delta"])
    budget = ledger.budgets.get(budget_id)
    spends = _spends(ledger, budget_id)
    releases = spends.total()
    if releases == 0:
        return Report(delta, "0", "sum", 0)
    if budget.accountant == "zcdp":
        return Report(delta, zcdp_epsilon(budget.spent["rho"], delta), "zcdp", releases)
    if sum(own * count for (_, own), count in spends.items()) > allowed:
        return Report(delta, None, "sum", releases)
    summed = exactly("epsilon", budget.spent["epsilon"])
    composed = rounded_up("epsilon", Fraction(_composed(spends, float(allowed))))
    method = "pld" if composed < summed else "sum"
    return Report(delta, shown({"epsilon": min(composed, summed)})["epsilon"], method, releases)


def _spends(ledger: Ledger, budget_id: str) -> Counter[tuple[Fraction, Fraction]]:
    """How many releases of a privacy budget spent each (epsilon, delta) and were not refunded."""
    spends: Counter[tuple[Fraction, Fraction]] = Counter()
    after = 0
    while entries := ledger.budgets.history(budget_id, after, _AT_A_TIME):
        for entry in entries:
            if entry.kind in ("close", "rules"):
                continue
            amounts = tuple(Fraction(entry.amounts.get(name, "0")) for name in ("epsilon", "delta"))
            spends[amounts[0], amounts[1]] += 1 if entry.kind == "charge" else -1
        after = entries[-1].seq
    return +spends


def _composed(spends: Counter[tuple[Fraction, Fraction]], delta: float) -> float:
    """The epsilon of all releases from a privacy budget together, by optimal composition.

    Kairouz, Oh and Viswanath (2015): each release is no worse than a randomised response of its parameters.
    """
    try:
        common = importlib.import_module("dp_accounting.pld.common")
        pld = importlib.import_module("dp_accounting.pld.privacy_loss_distribution")
    except ImportError as error:
        raise NoReport("optimal composition needs dp-accounting: pip install 'warpdesk-server[reports]'") from error
    cell = float(sum(epsilon * count for (epsilon, _), count in spends.items())) / _CELLS
    together = pld.identity(cell)
    for (epsilon, own), count in spends.items():
        one = pld.from_privacy_parameters(common.DifferentialPrivacyParameters(float(epsilon), float(own)), cell)
        together = together.compose(one.self_compose(count))
    return float(together.get_epsilon_for_delta(delta))
