"""The charges of the ledger as records: what is asked for, what was charged, and the errors of a transition."""

from dataclasses import dataclass, field
from typing import Literal

from warpdesk_server.privacy.amounts import Name
from warpdesk_server.privacy.chain import Relation
from warpdesk_server.privacy.errors import NoRelease, Refused

State = Literal["charged", "claimed", "released", "failed", "void"]


class UnknownCharge(NoRelease):
    """Raised if the ledger has no charge of this id."""

    code = "charge-ended"


class OverBudget(Refused):
    """Raised if a release costs more than the ledger has left in a privacy budget, which stays unchanged.

    `cost` and `remaining` are exact decimal strings by name.
    """

    code = "budget-exceeded"
    pointer = ""

    def __init__(self, budget_id: str, cost: dict[Name, str], remaining: dict[Name, str]) -> None:
        super().__init__(f"the release costs {_sentence(cost)}; of {budget_id} there remains {_sentence(remaining)}")
        self.cost = cost
        self.remaining = remaining


class KeyReused(Refused):
    """Raised if the idempotency key of a charge to a privacy budget was used for another request."""

    code = "idempotency-key-reused"


class ChargeChanged(NoRelease):
    """Raised if a release differs from what the ledger charged; `what` names the parts that differ."""

    code = "charge-changed"

    def __init__(self, charge_id: str, what: tuple[str, ...]) -> None:
        super().__init__(
            f"{', '.join(what)} of {charge_id} changed since it was charged: nothing may be released on it"
        )
        self.what = what


class NotClaimed(NoRelease):
    """Raised if an answer arrives for a charge in the ledger whose noise key was never claimed."""

    code = "charge-ended"


class ChargeEnded(NoRelease):
    """Raised if a charge in the ledger has ended, in `state`, and has no noise key any more."""

    code = "charge-ended"

    def __init__(self, charge_id: str, state: State, reason: str | None) -> None:
        super().__init__(f"{charge_id} is {state}" + (f": {reason}" if reason else ""))
        self.state = state
        self.reason = reason


@dataclass(frozen=True)
class ChargeRequest:
    """The request for a charge in the ledger: the job that will draw noise. params, inputs and job are JSON texts;
    version is the sampler's."""

    owner: str
    idempotency_key: str
    fingerprint: str
    operation: str
    params: str = field(repr=False)
    inputs: str = field(repr=False)
    version: str
    job_id: str
    job: str = field(repr=False)


@dataclass(frozen=True)
class Charge:
    """A charge of a release to a privacy budget.

    `hash` is the hash of its chain entry. `outcome`, set once released, says where the answer is stored.
    """

    id: str
    budget_id: str
    seq: int
    hash: str
    state: State
    amounts: dict[Name, str]
    relation: Relation
    owner: str
    operation: str
    job_id: str
    at: int
    reason: str | None
    outcome: str | None


@dataclass(frozen=True)
class OpenCharge:
    """A row of the ledger's outbox: a charge that has not ended, and its job, which may not have been queued."""

    charge_id: str
    budget_id: str
    state: State
    job_id: str
    job: str = field(repr=False)
    at: int


def _sentence(amounts: dict[Name, str]) -> str:
    return " and ".join(f"{name} {amount}" for name, amount in amounts.items())
