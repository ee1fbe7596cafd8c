"""Reports beside published figures and the closed form of optimal composition."""

import importlib.util
import math
from fractions import Fraction

import pytest

from tests.privacy.ledgers import charge_request, charged, claimed, open_budget, spend
from warpdesk_server.privacy.ledger import Ledger
from warpdesk_server.privacy.report import NoReport, Report, report, zcdp_epsilon

INSTALLED = importlib.util.find_spec("dp_accounting") is not None
needs_dp_accounting = pytest.mark.skipif(not INSTALLED, reason="dp-accounting (the extra `reports`) is not installed")


# By dp-accounting's RDP accountant at all orders and by mpmath: conversion of Canonne, Kamath and Steinke (2020),
# proposition 12; the last column is the exact epsilon of a Gaussian of that rho (Balle and Wang 2018).
@pytest.mark.parametrize(
    ("rho", "delta", "epsilon", "exact"),
    [
        ("0.5", "1e-5", 4.728386984943314, 4.3771780956812245),
        ("0.2", "1e-5", 2.813632189331966, 2.594383380527607),
        ("1.25", "1e-6", 8.845889348462379, 8.306225049954728),
    ],
)
def test_rho_is_told_as_epsilon_at_a_delta(rho: str, delta: str, epsilon: float, exact: float) -> None:
    bound = float(zcdp_epsilon(rho, delta))
    assert bound == pytest.approx(epsilon, rel=1e-9)
    assert bound >= exact


def test_a_report_of_a_zcdp_budget_needs_no_library(ledger: Ledger) -> None:
    budget = open_budget(ledger, accountant="zcdp", rho="1")
    for number in range(5):
        ledger.charges.reserve(budget.id, spend(zcdp=Fraction(1, 10)), charge_request(number))
    assert report(ledger, budget.id, "1e-5") == Report("1e-5", zcdp_epsilon("0.5", "1e-5"), "zcdp", 5)


def test_nothing_spent_is_epsilon_nothing(ledger: Ledger) -> None:
    budget = open_budget(ledger)
    ledger.charges.refund(charged(ledger, budget).id, "a test", forget_key=True)
    assert report(ledger, budget.id, "1e-6") == Report("1e-6", "0", "sum", 0)


@pytest.mark.skipif(INSTALLED, reason="dp-accounting is installed")
def test_without_dp_accounting_a_report_says_what_is_missing(ledger: Ledger) -> None:
    budget = open_budget(ledger)
    charged(ledger, budget)
    with pytest.raises(NoReport, match=r"needs dp-accounting: pip install 'warpdesk\[reports\]'"):
        report(ledger, budget.id, "1e-6")


@needs_dp_accounting
def test_many_small_releases_are_worth_what_optimal_composition_says(ledger: Ledger) -> None:
    budget = open_budget(ledger, epsilon="10")
    for number in range(60):
        charge = charged(ledger, budget, number, "0.1")
    claimed(ledger, charge)  # what is claimed counts as what is not
    ledger.charges.refund(charged(ledger, budget, 60, "0.1").id, "a test", forget_key=True)
    answer = report(ledger, budget.id, "1e-6")
    assert (answer.method, answer.releases) == ("pld", 60)
    assert _kairouz(0.1, 60, 1e-6) <= float(answer.epsilon or 0) <= _kairouz(0.1, 60, 1e-6) * 1.01
    assert float(answer.epsilon or 0) < 0.8 * float(ledger.budgets.get(budget.id).spent["epsilon"])


@needs_dp_accounting
def test_a_report_is_never_more_than_the_sum_and_none_where_delta_is_spent(ledger: Ledger) -> None:
    budget = open_budget(ledger, accountant="approx", epsilon="10", delta="1e-5")
    for number in range(2):
        ledger.charges.reserve(budget.id, spend(approx=(Fraction(1), Fraction("1e-6"))), charge_request(number))
    answer = report(ledger, budget.id, "2e-6")
    assert 1.9 < float(answer.epsilon or 0) <= 2
    assert report(ledger, budget.id, "1.9e-6") == Report("1.9e-6", None, "sum", 2)


def _kairouz(epsilon: float, count: int, delta: float) -> float:
    """The least (count - 2i) epsilon that k-fold composition of epsilon-DP allows at delta (their theorem 3.3), made
    continuous between them as the hockey-stick divergence of randomised responses is."""

    def delta_of(total: float) -> float:
        weights = [
            math.comb(count, wrong) * max(0.0, math.exp((count - wrong) * epsilon) - math.exp(total + wrong * epsilon))
            for wrong in range(count + 1)
        ]
        return math.fsum(weights) / (1 + math.exp(epsilon)) ** count

    low, high = 0.0, count * epsilon
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_of(middle) > delta else (low, middle)
    return high
