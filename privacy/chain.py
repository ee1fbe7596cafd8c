"""The hash chain of a privacy budget: its entries, and how they are hashed.

The hash of an entry is the SHA-256 of a JSON object (keys sorted, no blanks, ASCII) of all its fields but that hash.
Among them is `prev`, the hash of the entry before; for the first it is that of what the budget was created with. Anyone
who keeps a head hash can detect a change of any entry up to it, without the ledger's key.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

from warpdesk_server.privacy.amounts import Name
from warpdesk_server.privacy.tables import CREATED_WITH, Row

Relation = Literal["add_remove", "replace_one", "declared"]


@dataclass(frozen=True)
class Entry:
    """An entry of a privacy budget's hash chain.

    Times are whole microseconds since 1970; params, inputs, version, request and job are keyed digests.
    """

    budget_id: str
    seq: int
    kind: Literal["charge", "refund", "close", "rules"]
    charge_id: str  # of "close": the budget's own id; of "rules": an id of its own
    owner: str  # of "close" and "rules": the administrator
    operation: str
    amounts: dict[Name, str]
    relation: Relation  # between the neighbours that the release protects; declared: by who declared its sensitivity
    params: str
    inputs: str
    version: str
    request: str
    job: str
    job_id: str
    reason: str
    at: int
    prev: str
    hash: str = ""

    @classmethod
    def of(cls, row: Row) -> "Entry":
        return cls(**{**row, "amounts": json.loads(row["amounts"])})

    @property
    def text(self) -> str:
        """The canonical JSON of a chain entry, which is hashed."""
        fields = asdict(self)
        del fields["hash"]
        return canonical(fields)

    def hashed(self) -> str:
        return _sha256(self.text)


def canonical(value: Any) -> str:
    """The canonical text of a ledger entry: JSON with sorted keys, without blanks, in ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def genesis(budget: Row) -> str:
    """The hash of the fields that a privacy budget was created with: `prev` of its chain's first entry."""
    return _sha256(canonical({name: budget[name] for name in CREATED_WITH}))


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
