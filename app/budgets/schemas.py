"""Schemas of privacy budgets: their amounts and rules, the chain of entries, quotes and charges."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from warpdesk.models import Amounts, Body, Budget, ChargeArrays, ChargeKeys, Reply

BUDGET_ID = r"^budget_[0-9a-f]{32}$"


class BudgetRules(Body):
    """Who may charge a budget, and what."""

    charge_keys: ChargeKeys = None
    arrays: ChargeArrays = None


class BudgetPage(Reply):
    budgets: list[Budget]
    next: Annotated[str | None, Field(description="URL of the next, later page")]


class Quote(Reply):
    """What a job would take from a budget. Others may charge it before you do."""

    fits: bool
    cost: Amounts
    remaining: Annotated[Amounts, Field(description="After the job; now, where it does not fit")]
    accuracy_95: Annotated[
        float | None,
        Field(
            description="With probability 95 % the noise moves one released number by less than this; clipping is not "
            "in it. null for a mean whose number of records is private"
        ),
    ]


_OWN = "Null for a key without the scope `admin`, unless it is its own"


class BudgetEntry(Reply):
    """A link of a budget's chain."""

    number: int
    kind: Literal["charge", "refund", "close", "rules"]
    charge: Annotated[str | None, Field(description=f"Of a charge or refund. {_OWN}")]
    owner: Annotated[str | None, Field(description=f"Id of the API key, or of the administrator. {_OWN}")]
    operation: Annotated[str | None, Field(description=f"Of a charge or refund. {_OWN}")]
    job: Annotated[str | None, Field(description=f"Of a charge or refund. {_OWN}")]
    amounts: Amounts
    relation: Annotated[
        str, Field(description="Of neighbours the release protects; `declared`: the caller vouches for the sensitivity")
    ]
    reason: Annotated[str | None, Field(description=f"Why; of `rules` the rules, as JSON. {_OWN}")]
    at: datetime
    previous: Annotated[str, Field(description="Hash of the entry before, or of what the budget was created with")]
    hash: Annotated[str, Field(description="SHA-256 of `text`, in hexadecimal")]
    text: Annotated[
        str | None,
        Field(description=f"The entry as it is hashed: canonical JSON, with digests of what was asked for. {_OWN}"),
    ]


class BudgetHistory(Reply):
    entries: list[BudgetEntry]
    next: Annotated[str | None, Field(description="URL of the next, later page")]


class Verified(Reply):
    """The result of verifying a budget's chain: whether every hash and the amounts spent are right."""

    valid: bool
    entries: int
    head: str
    first_bad: Annotated[int | None, Field(description="Number of the first entry that does not fit")]
    reason: str | None


class Charge(Reply):
    """What a release was charged, and what became of it."""

    id: str
    budget: str
    job: str
    operation: str
    amounts: Amounts
    state: Annotated[
        Literal["charged", "claimed", "released", "failed", "void"],
        Field(description="claimed: a worker has the noise; failed: spent and not answered; void: refunded"),
    ]
    reason: Annotated[str | None, Field(description="Of failed and void")]
    number: Annotated[int, Field(description="Of its entry in the budget's chain")]
    head: Annotated[str, Field(description="Hash of that entry")]
    at: datetime
