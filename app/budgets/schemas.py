"""Schemas of privacy budgets: their amounts and rules, the chain of entries, quotes and charges."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from warpdesk_server.app.arrays.schemas import ARRAY_ID
from warpdesk_server.app.kit.schemas import Body, Reply
from warpdesk_server.kernels.amount import Amount
from warpdesk_server.kernels.spend import Neighbouring
from warpdesk_server.privacy.accountants import Accountant

BUDGET_ID = r"^budget_[0-9a-f]{32}$"
_NO_CONTROLS = r"^[^\x00-\x1f\x7f]+$"  # PostgreSQL keeps no text with a NUL

_ChargeKeys = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=40)]] | None,
    Field(max_length=100, description="Ids of the API keys that may charge it; null: every key that may submit"),
]

_ChargeArrays = Annotated[
    list[Annotated[str, Field(pattern=ARRAY_ID)]] | None,
    Field(
        max_length=1000,
        description="Ids of the arrays that may be charged to it, all inputs of a job among them; null: all arrays. An "
        "array's id is its owner's alone, and the result of a round of secure aggregation has none beforehand",
    ),
]


class NewBudget(Body):
    """A privacy budget for a dataset. Amounts are decimal strings, or numbers, which are taken as they are written."""

    name: Annotated[str, Field(min_length=1, max_length=200, pattern=_NO_CONTROLS)]
    dataset: Annotated[
        str,
        Field(
            min_length=1,
            max_length=200,
            pattern=_NO_CONTROLS,
            description="Whose privacy it is; one open budget each. Names that differ in case, blanks or Unicode's "
            "compatible forms alone are one; characters that cannot be seen are refused",
        ),
    ]
    accountant: Annotated[
        Accountant,
        Field(
            description="How releases add up: epsilon; epsilon and delta; rho of zero-concentrated DP. Laplace noise "
            "fits each, Gaussian noise the last, and `approx` where it is asked for by epsilon and delta"
        ),
    ]
    neighbouring: Annotated[
        Neighbouring, Field(description="What one person's data is: a record more or less, or another record")
    ]
    epsilon: Amount | None = None
    delta: Amount | None = None
    rho: Amount | None = None
    charge_keys: _ChargeKeys = None
    arrays: _ChargeArrays = None


class BudgetRules(Body):
    """Who may charge a budget, and what."""

    charge_keys: _ChargeKeys = None
    arrays: _ChargeArrays = None


class Amounts(Reply):
    """Exact decimals; null where the accountant has no such amount."""

    epsilon: str | None = None
    delta: str | None = None
    rho: str | None = None


class Budget(Reply):
    """A privacy budget and what remains of it."""

    id: str
    name: str
    dataset: str
    accountant: Accountant
    neighbouring: Neighbouring
    state: Literal["open", "closed"]
    total: Amounts
    spent: Amounts
    remaining: Amounts
    entries: Annotated[int, Field(description="Charges and refunds so far")]
    head: Annotated[str, Field(description="Hash of the last entry, which covers all before it")]
    created_by: Annotated[str, Field(description="Id of the API key")]
    created_at: datetime


class BudgetPage(Reply):
    budgets: list[Budget]
    next: Annotated[str | None, Field(description="URL of the next, later page")]


class Quote(Reply):
    """What a job would take from a budget. Others may charge it before you do."""

    fits: bool
    cost: Amounts
    remaining: Annotated[Amounts, Field(description="After the job; now, where it does not fit")]


_OWN = "Null for a key without the scope `admin`, unless it is its own"


class Entry(Reply):
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


class History(Reply):
    entries: list[Entry]
    next: Annotated[str | None, Field(description="URL of the next, later page")]


class Verified(Reply):
    """Whether a chain fits: every hash, and what was spent."""

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
