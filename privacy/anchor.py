"""The ledger's anchor: a copy of the last entry of each budget's chain, kept outside the ledger's database.

A database that lacks an anchored entry is an older copy or another database, and nothing may be charged to it. The
anchor is written after the database and before the caller is answered. So a crash leaves the database ahead, never
behind.

Rows are sealed with the ledger's key. The anchor is an SQL database of its own, so that several API hosts can share it.
"""

import hmac
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import (
    BigInteger,
    Column,
    Engine,
    MetaData,
    String,
    Table,
    Text,
    delete,
    insert,
    inspect,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from warpdesk_server.privacy.chain import canonical
from warpdesk_server.privacy.database import DatabaseUnavailable, exists, reading, writing
from warpdesk_server.privacy.seeds import Secrets, WrongKey
from warpdesk_server.privacy.tables import CREATED_WITH, Row

_TABLES = MetaData()

_MARK = Table(
    "anchor",
    _TABLES,
    Column("name", String(10), primary_key=True),  # "ledger": the only row
    Column("ledger", String(40), nullable=False),
    Column("seal", String(64), nullable=False),  # empty until the ledger's database exists and has this id
)

_HEADS = Table(
    "anchor_heads",
    _TABLES,
    Column("budget_id", String(40), primary_key=True),
    Column("created", Text, nullable=False),  # JSON of what the budget was created with
    Column("seq", BigInteger, nullable=False),
    Column("head", String(64), nullable=False),
    Column("seal", String(64), nullable=False),
)


class WrongAnchor(WrongKey, DatabaseUnavailable):
    """Raised if a row of the ledger's anchor was not written with the ledger's key. A running service then reports the
    ledger as unavailable."""


@dataclass(frozen=True)
class Mark:
    """The anchor's mark: the id of the ledger that it belongs to. It is bound once that ledger's database has been
    made."""

    ledger: str
    bound: bool


@dataclass(frozen=True)
class Head:
    """The head of a budget's chain in the ledger: its last entry. Before the first entry, `seq` is 0 and `head` is the
    hash of `created`."""

    budget_id: str
    created: str
    seq: int
    head: str


def mark(engine: Engine) -> Mark | None:
    """Read the mark of the ledger's anchor; None if there is no anchor. Creates nothing."""
    if not exists(engine):
        return None
    with reading(engine) as connection:
        if not inspect(connection).has_table(_MARK.name):
            return None
        row = connection.execute(select(_MARK)).mappings().one_or_none()
    return None if row is None else Mark(row["ledger"], row["seal"] != "")


def begin(engine: Engine) -> Mark:
    """Create the ledger's anchor with a new ledger id that is not bound yet. If there is an anchor, return its mark."""
    with writing(engine) as connection:
        _TABLES.create_all(connection)
        mine = {"name": "ledger", "ledger": f"ledger_{secrets.token_hex(16)}", "seal": ""}
        connection.execute(_insert(engine, _MARK).values(mine).on_conflict_do_nothing())
    made = mark(engine)
    assert made is not None  # noqa: S101
    return made


class Anchor:
    """The anchor of one privacy ledger. Methods raise WrongAnchor, and DatabaseUnavailable."""

    def __init__(self, engine: Engine, secrets: Secrets, ledger: str) -> None:
        self._engine = engine
        self._secrets = secrets
        self._ledger = ledger

    def check(self) -> None:
        """Raise WrongAnchor if the ledger's bound anchor was written with another key."""
        with reading(self._engine) as connection:
            row = connection.execute(select(_MARK)).mappings().one()
        if row["seal"] and not hmac.compare_digest(row["seal"], self._seal_of_mark()):
            raise self._wrong()

    def bind(self) -> None:
        """Seal the mark of the ledger's anchor. From now on a missing ledger database is an error."""
        with writing(self._engine) as connection:
            connection.execute(update(_MARK).values(ledger=self._ledger, seal=self._seal_of_mark()))

    def heads(self) -> dict[str, Head]:
        """The anchored heads of all budgets' chains, by budget id."""
        with reading(self._engine) as connection:
            return {row["budget_id"]: self._head(row) for row in connection.execute(select(_HEADS)).mappings()}

    def head(self, budget_id: str) -> Head | None:
        """The anchored head of one budget's chain; None if there is none."""
        with reading(self._engine) as connection:
            row = connection.execute(select(_HEADS).where(_HEADS.c.budget_id == budget_id)).mappings().one_or_none()
        return None if row is None else self._head(row)

    def note(self, budget: Row) -> None:
        """Write the head of a budget's chain to the anchor. It is on the disk on return, and never replaces a later
        head."""
        with reading(self._engine) as connection:
            noted = connection.scalar(select(_HEADS.c.seq).where(_HEADS.c.budget_id == budget["id"]))
        if noted is not None and noted >= budget["seq"]:
            return  # of several writers at once one has noted a later head, which covers this one
        values = self._row(budget)
        with writing(self._engine) as connection:
            statement = _insert(self._engine, _HEADS).values(values)
            newer = statement.excluded
            connection.execute(
                statement.on_conflict_do_update(
                    index_elements=["budget_id"],
                    set_={"seq": newer.seq, "head": newer.head, "seal": newer.seal},
                    where=newer.seq > _HEADS.c.seq,
                )
            )

    def replace(self, budgets: Sequence[Row]) -> None:
        """Replace all heads in the anchor by those of a ledger database that an administrator accepted."""
        with writing(self._engine) as connection:
            connection.execute(delete(_HEADS))
            for budget in budgets:
                connection.execute(insert(_HEADS).values(self._row(budget)))
            connection.execute(update(_MARK).values(ledger=self._ledger, seal=self._seal_of_mark()))

    def dispose(self) -> None:
        self._engine.dispose()

    def _row(self, budget: Row) -> dict[str, str | int]:
        head = Head(
            budget["id"], canonical({name: budget[name] for name in CREATED_WITH}), budget["seq"], budget["head"]
        )
        return {**vars(head), "seal": self._seal(head)}

    def _head(self, row: Row) -> Head:
        head = Head(row["budget_id"], row["created"], row["seq"], row["head"])
        if not hmac.compare_digest(row["seal"], self._seal(head)):
            raise self._wrong()
        return head

    def _seal(self, head: Head) -> str:
        return self._secrets.digest("anchor", head.budget_id, head.created, str(head.seq), head.head)

    def _seal_of_mark(self) -> str:
        return self._secrets.digest("anchor of", self._ledger)

    def _wrong(self) -> WrongAnchor:
        place = self._engine.url.render_as_string(hide_password=True)
        return WrongAnchor(
            f"the ledger's anchor {place} was not written with this ledger's key: put back the key or the anchor that "
            "belongs to it"
        )


def _insert(engine: Engine, table: Table) -> sqlite.Insert | postgresql.Insert:
    """An INSERT statement of the ledger's anchor: that of its SQL dialect, which supports ON CONFLICT."""
    return postgresql.insert(table) if engine.dialect.name == "postgresql" else sqlite.insert(table)
