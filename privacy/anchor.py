"""The anchor: the last entry of each budget's chain, kept outside the ledger's database.

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
    """A row was not written with the ledger's key. To a running service the ledger is unavailable then."""


@dataclass(frozen=True)
class Mark:
    """The id of the ledger that an anchor belongs to. It is not bound until that ledger's database has been made."""

    ledger: str
    bound: bool


@dataclass(frozen=True)
class Head:
    """The last entry of a chain; seq 0 and the hash of `created` where there is none yet."""

    budget_id: str
    created: str
    seq: int
    head: str


def mark(engine: Engine) -> Mark | None:
    """The mark of an anchor, None where there is no anchor. Creates nothing."""
    if not exists(engine):
        return None
    with reading(engine) as connection:
        if not inspect(connection).has_table(_MARK.name):
            return None
        row = connection.execute(select(_MARK)).mappings().one_or_none()
    return None if row is None else Mark(row["ledger"], row["seal"] != "")


def begin(engine: Engine) -> Mark:
    """Make an anchor with a new ledger id that is not bound yet, or return the mark of the one that is there."""
    with writing(engine) as connection:
        _TABLES.create_all(connection)
        mine = {"name": "ledger", "ledger": f"ledger_{secrets.token_hex(16)}", "seal": ""}
        connection.execute(_insert(engine, _MARK).values(mine).on_conflict_do_nothing())
    made = mark(engine)
    assert made is not None  # noqa: S101
    return made


class Anchor:
    """The anchor of one ledger. Methods raise WrongAnchor, and DatabaseUnavailable."""

    def __init__(self, engine: Engine, secrets: Secrets, ledger: str) -> None:
        self._engine = engine
        self._secrets = secrets
        self._ledger = ledger

    def check(self) -> None:
        """Raise WrongAnchor where a bound anchor was written with another key."""
        with reading(self._engine) as connection:
            row = connection.execute(select(_MARK)).mappings().one()
        if row["seal"] and not hmac.compare_digest(row["seal"], self._seal_of_mark()):
            raise self._wrong()

    def bind(self) -> None:
        """Seal the mark: the ledger's database exists, and may not be missing from now on."""
        with writing(self._engine) as connection:
            connection.execute(update(_MARK).values(ledger=self._ledger, seal=self._seal_of_mark()))

    def heads(self) -> dict[str, Head]:
        """By budget id."""
        with reading(self._engine) as connection:
            return {row["budget_id"]: self._head(row) for row in connection.execute(select(_HEADS)).mappings()}

    def head(self, budget_id: str) -> Head | None:
        with reading(self._engine) as connection:
            row = connection.execute(select(_HEADS).where(_HEADS.c.budget_id == budget_id)).mappings().one_or_none()
        return None if row is None else self._head(row)

    def note(self, budget: Row) -> None:
        """Write the head of a budget's row, on the disk when this returns. A later head stays."""
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
        """Replace all heads by those of a database that was accepted."""
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
    """An INSERT that can say what a row does that is there."""
    return postgresql.insert(table) if engine.dialect.name == "postgresql" else sqlite.insert(table)
