"""The SQL tables of the privacy ledger. Settled facts are in rows that nobody may change; current state is beside them.

A budget's entries are its chain: each holds the hash of the one before. The database itself refuses to change or delete
them, and so it does what a budget was created with. That guards against mistakes alone. A change by someone who may
drop a trigger is found by `Budgets.verify`.
"""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    ForeignKey,
    Index,
    LargeBinary,
    String,
    Table,
    Text,
    UniqueConstraint,
    event,
)

from warpdesk_server.privacy.database import TABLES

Row = Mapping[Any, Any]  # of any of them, by the names of its columns

# Times are whole microseconds since 1970, amounts JSON objects of exact decimal strings, digests hexadecimal.

BUDGETS = Table(
    "budgets",
    TABLES,
    Column("id", String(40), primary_key=True),
    Column("name", Text, nullable=False),
    Column("dataset", Text, nullable=False),
    Column("accountant", String(10), nullable=False),
    Column("neighbouring", String(20), nullable=False),
    Column("total", Text, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    # What changes:
    Column("state", String(10), nullable=False),  # open, closed
    Column("spent", Text, nullable=False),
    Column("seq", BigInteger, nullable=False),  # of the last entry
    Column("head", String(64), nullable=False),  # its hash; of a budget without one the hash of what created it
    Column("seal", String(64), nullable=False),  # keyed digest of the state
)
CREATED_WITH = ("id", "name", "dataset", "accountant", "neighbouring", "total", "created_by", "created_at")

Index(
    "budgets_open",
    BUDGETS.c.dataset,
    unique=True,
    sqlite_where=BUDGETS.c.state == "open",
    postgresql_where=BUDGETS.c.state == "open",
)

ENTRIES = Table(
    "budget_entries",
    TABLES,
    Column("budget_id", String(40), ForeignKey(BUDGETS.c.id), primary_key=True),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),  # 1, 2, ...
    Column("kind", String(10), nullable=False),  # charge, refund, close, rules
    Column("charge_id", String(40), nullable=False),
    Column("owner", Text, nullable=False),
    Column("operation", Text, nullable=False),
    Column("amounts", Text, nullable=False),
    Column("relation", String(20), nullable=False),  # of neighbours: add_remove, replace_one, declared
    Column("params", String(64), nullable=False),  # keyed digests, from here
    Column("inputs", String(64), nullable=False),
    Column("version", String(64), nullable=False),
    Column("request", String(64), nullable=False),
    Column("job", String(64), nullable=False),  # to here
    Column("job_id", Text, nullable=False),
    Column("reason", Text, nullable=False),  # of a refund or close; of rules: their JSON
    Column("at", BigInteger, nullable=False),
    Column("prev", String(64), nullable=False),
    Column("hash", String(64), nullable=False),
    UniqueConstraint("charge_id", "kind"),  # one refund, one close
)

_IS_RULES = ENTRIES.c.kind == "rules"
Index(  # each charge looks for the last one
    "budget_rules", ENTRIES.c.budget_id, ENTRIES.c.seq, sqlite_where=_IS_RULES, postgresql_where=_IS_RULES
)

CHARGES = Table(
    "charges",
    TABLES,
    Column("id", String(40), primary_key=True),
    Column("budget_id", String(40), ForeignKey(BUDGETS.c.id), nullable=False, index=True),
    Column("state", String(10), nullable=False),  # charged, claimed, released, failed, void
    Column("reason", Text),  # of failed and void
    Column("outcome", Text),  # of released: where the answer lies
    Column("answer", String(64)),  # keyed digest of it
    Column("forgotten", Boolean, nullable=False),  # whether its idempotency key may be used anew
    Column("seal", String(64), nullable=False),  # keyed digest of all of these
)

SEEDS = Table(
    "charge_seeds",
    TABLES,
    Column("charge_id", String(40), ForeignKey(CHARGES.c.id), primary_key=True),
    Column("wrapped", LargeBinary, nullable=False),
)

OUTBOX = Table(
    "charge_outbox",
    TABLES,
    Column("charge_id", String(40), ForeignKey(CHARGES.c.id), primary_key=True),
    Column("job_id", Text, nullable=False),
    Column("job", Text, nullable=False),
    Column("at", BigInteger, nullable=False, index=True),
)

REQUESTS = Table(
    "charge_requests",
    TABLES,
    Column("owner", Text, primary_key=True),
    Column("idempotency_key", String(64), primary_key=True),  # keyed digest
    Column("fingerprint", String(64), nullable=False),  # keyed digest
    Column("charge_id", String(40), ForeignKey(CHARGES.c.id), nullable=False, unique=True),
)


def _refuse(table: Table, what: str, change: str) -> None:
    """Add a trigger to a ledger table that refuses a change: "DELETE", or "UPDATE OF column, ..."."""
    name = f"{table.name}_{change.split()[0].lower()}"
    before = f"CREATE TRIGGER {name} BEFORE {change} ON {table.name}"

    def create(_table: Table, connection: Connection, **_: Any) -> None:
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql(
                f"CREATE OR REPLACE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS "
                f"$$ BEGIN RAISE EXCEPTION '{what}' USING ERRCODE = 'integrity_constraint_violation'; END $$"
            )
            connection.exec_driver_sql(f"{before} FOR EACH STATEMENT EXECUTE FUNCTION {name}()")
        elif change != "TRUNCATE":  # which SQLite does not know
            connection.exec_driver_sql(f"{before} BEGIN SELECT RAISE(ABORT, '{what}'); END")

    event.listen(table, "after_create", create)


for _change in ("UPDATE", "DELETE", "TRUNCATE"):
    _refuse(ENTRIES, "entries of a budget are never changed", _change)
for _change in (f"UPDATE OF {', '.join(CREATED_WITH)}", "DELETE", "TRUNCATE"):
    _refuse(BUDGETS, "what a budget was created with is never changed", _change)
