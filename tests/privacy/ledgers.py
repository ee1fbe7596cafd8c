"""Budgets, releases and requests for tests of the ledger."""

from fractions import Fraction
from typing import Any

from warpdesk_server.kernels.spend import Spend
from warpdesk_server.privacy.budgets import Budget, NewBudget
from warpdesk_server.privacy.charges import Charge, ChargeRequest
from warpdesk_server.privacy.charging import NoiseKey
from warpdesk_server.privacy.ledger import Ledger

RELEASE = {"operation": "dp_noise", "params": '{"epsilon":"0.1"}', "inputs": '{"values":"blake3:00"}', "version": "1"}


def open_budget(ledger: Ledger, dataset: str = "a dataset", **given: Any) -> Budget:
    """Pure, of epsilon 1, unless told otherwise."""
    given = {"accountant": "pure", "neighbouring": "add_remove", "epsilon": "1.0", **given}
    if given["accountant"] == "zcdp":
        del given["epsilon"]
    return ledger.budgets.open(NewBudget(name="a budget", dataset=dataset, created_by="key_admin", **given))


def spend(epsilon: str | Fraction = "0.1", **fields: Any) -> Spend:
    """What exact Laplace noise costs."""
    pure = Fraction(epsilon)
    return Spend(
        **{"pure": pure, "approx": (pure, Fraction(0)), "zcdp": pure * pure / 2, "neighbouring": None, **fields}
    )


def charge_request(number: int = 1, **fields: Any) -> ChargeRequest:
    values: dict[str, Any] = {
        "owner": "key_a",
        "idempotency_key": f"request {number}",
        "fingerprint": "a request",
        **RELEASE,
        "job_id": f"job_{number:04d}",
        "job": f'{{"id":"job_{number:04d}"}}',
        **fields,
    }
    return ChargeRequest(**values)


def charged(ledger: Ledger, budget: Budget, number: int = 1, epsilon: str = "0.1", **fields: Any) -> Charge:
    return ledger.charges.reserve(budget.id, spend(epsilon), charge_request(number, **fields)).charge


def claimed(ledger: Ledger, charge: Charge, **changes: str) -> bytes:
    """The noise key."""
    found = ledger.charges.claim(charge.id, **{**RELEASE, **changes})
    assert isinstance(found, NoiseKey), found
    return found.key
