"""The rules of a budget: which API keys may charge it, and which arrays may be charged to it."""

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass

from warpdesk_server.privacy.chain import canonical
from warpdesk_server.privacy.errors import Refused


class NotAllowed(Refused):
    """The budget's rules exclude who asks, or an input."""

    code = "charge-forbidden"
    pointer = ""


@dataclass(frozen=True)
class Rules:
    """Ids of keys and of arrays; None excludes nothing. The last entry of the kind "rules" of a chain holds them."""

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
        """Raise NotAllowed."""
        if self.charge_keys is not None and owner not in self.charge_keys:
            raise NotAllowed(f"the key {owner} may not charge {budget_id}: an administrator can add it to its rules")
        if self.arrays is None:
            return
        for array in inputs:
            if array not in self.arrays:
                raise NotAllowed(f"{array} may not be charged to {budget_id}: an administrator can add it to its rules")


NO_RULES = Rules()
