"""A ledger beside a model of it in fractions: whatever is asked in whatever order, they agree."""

import hashlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.privacy.ledgers import RELEASE, charge_request, open_budget, spend
from warpdesk_server.privacy.budgets import BudgetClosed
from warpdesk_server.privacy.charges import ChargeChanged, ChargeEnded, KeyReused, NotClaimed, OverBudget
from warpdesk_server.privacy.charging import Released
from warpdesk_server.privacy.ledger import Ledger

UNIT = Fraction(1, 10**12)
TOTAL = Fraction(1)


def rounded_up(epsilon: Fraction) -> Fraction:
    return -(-epsilon // UNIT) * UNIT


@dataclass
class Modelled:
    """A charge as the model has it."""

    id: str
    cost: Fraction
    state: str = "charged"
    key: bytes | None = None
    answer: bytes | None = None
    outcome: str = ""


class Budgets(RuleBasedStateMachine):
    """Requests are numbered 0 to 11; each has one fingerprint, and may be sent again."""

    ledger: Ledger
    datasets: Iterator[int] = itertools.count()

    @initialize()
    def open(self) -> None:
        self.budget = open_budget(self.ledger, f"modelled {next(self.datasets)}").id
        self.spent = Fraction(0)
        self.closed = False
        self.entries = 0
        self.requests: dict[int, Modelled] = {}
        self.charges: list[Modelled] = []

    @rule(
        number=st.integers(0, 11),
        epsilon=st.fractions(Fraction(1, 1000), Fraction(2, 5), max_denominator=1000),
        other=st.booleans(),
    )
    def charge(self, number: int, epsilon: Fraction, other: bool) -> None:
        fingerprint = "another" if other else "a request"
        sent = charge_request(number, idempotency_key=f"{self.budget} {number}", fingerprint=fingerprint)
        earlier = self.requests.get(number)
        try:
            charged = self.ledger.charges.reserve(self.budget, spend(epsilon), sent)
        except KeyReused:
            assert earlier is not None
            assert other
            return
        except BudgetClosed:
            assert self.closed
            assert earlier is None
            return
        except OverBudget as refused:
            assert earlier is None
            assert self.spent + rounded_up(epsilon) > TOTAL
            assert Fraction(refused.remaining["epsilon"]) == TOTAL - self.spent  # noqa: PT017 - one of several ends
            assert Fraction(refused.cost["epsilon"]) == rounded_up(epsilon)  # noqa: PT017
            return
        if earlier is not None:
            assert not other
            assert (charged.charge.id, charged.charge.state, charged.replayed) == (earlier.id, earlier.state, True)
            return
        assert not charged.replayed
        if other:  # from now on that is its fingerprint; the model knows of one
            assert self.ledger.charges.refund(charged.charge.id, "the model knows one request", forget_key=True)
            self.entries += 2
            self.charges.append(Modelled(charged.charge.id, rounded_up(epsilon), "void"))
            return
        self.requests[number] = Modelled(charged.charge.id, rounded_up(epsilon))
        self.charges.append(self.requests[number])
        self.spent += rounded_up(epsilon)
        self.entries += 1

    @precondition(lambda self: self.charges)
    @rule(data=st.data(), changed=st.booleans())
    def claim(self, data: st.DataObject, changed: bool) -> None:
        charge = data.draw(st.sampled_from(self.charges))
        try:
            found = self.ledger.charges.claim(charge.id, **{**RELEASE, **({"inputs": "others"} if changed else {})})
        except ChargeChanged:
            assert changed
        except ChargeEnded as ended:
            assert charge.state == ended.state  # noqa: PT017
            assert charge.state in ("failed", "void")
        else:
            assert not changed
            if isinstance(found, Released):
                assert (charge.state, found.outcome) == ("released", charge.outcome)
            else:
                assert charge.state in ("charged", "claimed")
                assert found.key == (charge.key or found.key)
                charge.state, charge.key = "claimed", found.key

    @precondition(lambda self: self.charges)
    @rule(data=st.data(), answer=st.sampled_from([b"one", b"other"]))
    def release(self, data: st.DataObject, answer: bytes) -> None:
        charge = data.draw(st.sampled_from(self.charges))
        outcome = f'{{"at":"{hashlib.sha256(answer).hexdigest()[:4]}"}}'
        try:
            released = self.ledger.charges.release(charge.id, outcome, answer)
        except NotClaimed:
            assert charge.state == "charged"
        except ChargeEnded:
            assert charge.state in ("failed", "void")
        except ChargeChanged:
            assert charge.state == "released"
            assert charge.answer != answer
        else:
            assert charge.state in ("claimed", "released")
            if charge.state == "claimed":
                charge.state, charge.answer, charge.outcome = "released", answer, outcome
            assert (charge.answer, charge.outcome) == (answer, released.outcome)

    @precondition(lambda self: self.charges)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        charge = data.draw(st.sampled_from(self.charges))
        try:
            self.ledger.charges.fail(charge.id, "the model says so")
        except NotClaimed:
            assert charge.state == "charged"
        except ChargeEnded:
            assert charge.state in ("released", "void")
        else:
            assert charge.state in ("claimed", "failed")
            charge.state = "failed"

    @precondition(lambda self: self.charges)
    @rule(data=st.data(), forget=st.booleans())
    def void(self, data: st.DataObject, forget: bool) -> None:
        charge = data.draw(st.sampled_from(self.charges))
        given_back = self.ledger.charges.refund(charge.id, "the model says so", forget_key=forget)
        assert given_back == (charge.state in ("charged", "void"))
        if charge.state == "charged":
            charge.state = "void"
            self.spent -= charge.cost
            self.entries += 1
        if given_back and forget:
            self.requests = {number: one for number, one in self.requests.items() if one is not charge}

    @rule()
    def close(self) -> None:
        self.ledger.budgets.close(self.budget, "key_admin")
        self.entries += not self.closed
        self.closed = True

    @invariant()
    def they_agree(self) -> None:
        budget = self.ledger.budgets.get(self.budget)
        assert Fraction(budget.spent["epsilon"]) == self.spent
        assert Fraction(budget.remaining["epsilon"]) == TOTAL - self.spent >= 0
        assert (budget.seq, budget.state) == (self.entries, "closed" if self.closed else "open")

    def teardown(self) -> None:
        verified = self.ledger.budgets.verify(self.budget)
        assert (verified.ok, verified.entries) == (True, self.entries)
        live = {charge.id for charge in self.charges if charge.state in ("charged", "claimed")}
        waiting = {one.charge_id for one in self.ledger.charges.open(0, 10**6)}
        assert live == waiting & {charge.id for charge in self.charges}
        keys = [charge.key for charge in self.charges if charge.key is not None]
        assert len(set(keys)) == len(keys)


def test_a_ledger_and_its_model_agree(ledger: Ledger) -> None:
    machine = type("Modelled", (Budgets,), {"ledger": ledger})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=8,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
        ),
    )
