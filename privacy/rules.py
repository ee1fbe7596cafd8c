"""The rules of a privacy budget: which API keys may charge it, and which arrays may be charged to it."""

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass

from warpdesk_server.privacy.chain import canonical
from warpdesk_server.privacy.errors import Refused


class NotAllowed(Refused):
    """Raised if a privacy budget's rules exclude the API key, or an input array."""

    code = "charge-forbidden"
    pointer = ""


@dataclass(frozen=True)
class Rules:
    """The rules of a privacy budget: ids of keys and of arrays; None excludes nothing.

    The last chain entry of the kind "rules" holds them.
    """

    charge_keys: tuple[str, ...] | None = None
    arrays: tuple[str, ...] | None = None

    @classmethod
    def of(cls, text: str) -> "Rules":
        found = json.loads(text)
        return cls(**{name: None if found[name] is None else tuple(found[name]) for name in ("charge_keys", "arrays")})

    @property
    def text(self) -> str:
        return canonical(asdict(self))

    def check(self, budget_id: str, owner: str, inputs: Collection[str]) -> None:
        """Check a charge to a privacy budget against these rules. Raises NotAllowed."""
        if self.charge_keys is not None and owner not in self.charge_keys:
            raise NotAllowed(f"the key {owner} may not charge {budget_id}: an administrator can add it to its rules")
        if self.arrays is None:
            return
        for array in inputs:
            if array not in self.arrays:
                raise NotAllowed(f"{array} may not be charged to {budget_id}: an administrator can add it to its rules")


NO_RULES = Rules()
