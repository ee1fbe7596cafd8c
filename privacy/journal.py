"""The ledger's journal: the hash chains of all privacy budgets. An append locks, seals, and notes the head in the
anchor."""

import hmac
import time
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, Engine, insert, select, update

from warpdesk_server.privacy.anchor import Anchor, Head
from warpdesk_server.privacy.chain import Entry, canonical
from warpdesk_server.privacy.database import DatabaseUnavailable, reading
from warpdesk_server.privacy.errors import Refused, Tampered
from warpdesk_server.privacy.seeds import Ring, Secrets
from warpdesk_server.privacy.tables import BUDGETS, ENTRIES, Row


class UnknownBudget(Refused):
    """Raised if the ledger has no budget of this id."""

    code = "unknown-budget"
    pointer = ""


class LedgerBehind(DatabaseUnavailable):
    """Raised if the ledger's database is older than its anchor, empty, or another one. The message says what to do."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what}: put the newest copy of the ledger's database back, or run `warpdesk ledger accept`, which closes "
            "every budget whose later charges are not known"
        )


class Journal:
    """The hash chains in one ledger database, with the secrets that seal them. Appending needs an anchor; workers have
    none."""

    def __init__(self, engine: Engine, key: Ring | bytes, anchor: Anchor | None) -> None:
        self.engine = engine
        self.secrets = Secrets(key)
        self.anchor = anchor
        self._last_at_start: dict[str, int] | None = None  # number of each budget's last entry at the first comparison

    def compare(self, *, note: bool = True) -> None:
        """Compare every budget's chain with the anchor, and note there the entries that a crash left out.

        Raises LedgerBehind.
        """
        if self.anchor is None:
            return
        heads = self.anchor.heads()  # before the database, which goes on meanwhile
        with reading(self.engine) as connection:
            rows = {row["id"]: row for row in connection.execute(select(BUDGETS)).mappings()}
            for head in heads.values():
                if misfit := misfit_of(connection, head, rows.get(head.budget_id)):
                    raise LedgerBehind(misfit)
        if self._last_at_start is None:
            self._last_at_start = {budget_id: row["seq"] for budget_id, row in rows.items()}
        for row in rows.values() if note else ():
            if row["id"] not in heads or row["seq"] > heads[row["id"]].seq:
                self.anchor.note(row)

    def precedes_start(self, entry: Entry) -> bool:
        """Whether an entry of a budget's chain existed when this process opened the ledger. Without an anchor that is
        unknown, so False."""
        return self._last_at_start is not None and entry.seq <= self._last_at_start.get(entry.budget_id, 0)

    def lock(self, connection: Connection, budget_id: str) -> Row:
        """Lock a budget's row, and check that it continues its anchored head. It is the first step of every append."""
        row = _row_of(connection, budget_id, lock=True)
        head = None if self.anchor is None else self.anchor.head(budget_id)
        if head is not None and (misfit := misfit_of(connection, head, row)):
            raise LedgerBehind(misfit)
        if row is None:
            raise UnknownBudget(f"there is no budget {budget_id}")
        self.require_seal("budget", row)
        return row

    def append(self, connection: Connection, budget: Row, changes: dict[str, Any], **fields: Any) -> tuple[Entry, Row]:
        """Append the next entry to the chain of a locked budget, and update the budget's row."""
        entry = Entry(budget_id=budget["id"], seq=budget["seq"] + 1, at=now(), prev=budget["head"], **fields)
        entry = replace(entry, hash=entry.hashed())
        connection.execute(insert(ENTRIES).values({**vars(entry), "amounts": canonical(entry.amounts)}))
        changes |= {"seq": entry.seq, "head": entry.hash}
        changes["seal"] = self.secrets.seal("budget", {**budget, **changes})
        connection.execute(update(BUDGETS).where(BUDGETS.c.id == budget["id"]).values(changes))
        return entry, {**budget, **changes}

    def note(self, budget: Row) -> None:
        """Write the head of a committed budget row to the ledger's anchor."""
        if self.anchor is not None:
            self.anchor.note(budget)

    def require_seal(self, kind: str, row: Row) -> None:
        """Raise Tampered if a row was changed without the ledger's key."""
        if not hmac.compare_digest(row["seal"], self.secrets.seal(kind, row)):
            raise Tampered(f"{row['id']} was changed by somebody without the ledger's key: verify its budget")


def budget_row(connection: Connection, budget_id: str) -> Row:
    """The row of a privacy budget. Raises UnknownBudget."""
    row = _row_of(connection, budget_id)
    if row is None:
        raise UnknownBudget(f"there is no budget {budget_id}")
    return row


def misfit_of(connection: Connection, head: Head, budget: Row | None) -> str | None:
    """The reason why a budget's chain does not continue its anchored head; None if it does."""
    if budget is None:
        return f"{head.budget_id} is missing, of which {head.seq} entries were written"
    if budget["seq"] < head.seq:
        return f"{budget['id']} has {budget['seq']} entries, and {head.seq} were written"
    hash_there = budget["head"]
    if budget["seq"] > head.seq:
        following = (ENTRIES.c.budget_id == budget["id"]) & (ENTRIES.c.seq == head.seq + 1)
        hash_there = connection.scalar(select(ENTRIES.c.prev).where(following))
    if hash_there != head.head:
        return f"entry {head.seq} of {budget['id']} is another than was written"
    return None


def now() -> int:
    """The current time of a ledger entry, in whole microseconds since 1970."""
    return time.time_ns() // 1000


def _row_of(connection: Connection, budget_id: str, *, lock: bool = False) -> Row | None:
    query = select(BUDGETS).where(BUDGETS.c.id == budget_id)
    return connection.execute(query.with_for_update() if lock else query).mappings().one_or_none()
