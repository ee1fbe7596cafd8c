"""Whoever changes what the ledger wrote is found, in whatever row and field."""

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Connection, Delete, Engine, Insert, Table, Update, delete, insert, select, update

from tests.privacy.ledgers import charge_request, charged, claimed, open_budget, spend
from warpdesk_server.privacy.budgets import Budget
from warpdesk_server.privacy.chain import Entry
from warpdesk_server.privacy.database import writing
from warpdesk_server.privacy.errors import Tampered
from warpdesk_server.privacy.ledger import Ledger
from warpdesk_server.privacy.seeds import Secrets
from warpdesk_server.privacy.tables import BUDGETS, CHARGES, ENTRIES, OUTBOX, REQUESTS, SEEDS, Row
from warpdesk_server.privacy.verify import Verified, verify

TABLES = (BUDGETS, ENTRIES, CHARGES, SEEDS, OUTBOX, REQUESTS)
# 1 is released, 2 failed, 3 void, 4 its refund, 5 claimed, 6 charged.
COUNT = 6


@pytest.fixture
def budget(ledger: Ledger) -> Budget:
    """A budget whose charges are in every state there is."""
    budget = open_budget(ledger)
    released, failed, void = (charged(ledger, budget, number) for number in (1, 2, 3))
    claimed(ledger, released)
    ledger.charges.release(released.id, '{"result":"here"}', b"answer")
    claimed(ledger, failed)
    ledger.charges.fail(failed.id, "a test")
    ledger.charges.refund(void.id, "a test", forget_key=False)
    claimed(ledger, charged(ledger, budget, 4))
    charged(ledger, budget, 5)
    return ledger.budgets.get(budget.id)


@pytest.fixture
def vandal(engine: Engine, budget: Budget) -> Iterator[Connection]:
    """A transaction of the database's owner, who can take its guards away; nothing of it stays."""
    with engine.connect() as connection, connection.begin() as transaction:
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql("SET LOCAL session_replication_role = replica")
        else:
            connection.exec_driver_sql("PRAGMA defer_foreign_keys = ON")
            for [name] in connection.exec_driver_sql("SELECT name FROM sqlite_master WHERE type = 'trigger'").all():
                connection.exec_driver_sql(f"DROP TRIGGER {name}")
        yield connection
        transaction.rollback()


def found_by(change: Update | Delete | Insert, vandal: Connection, budget: Budget, key: bytes) -> Verified:
    """What `verify` says once something was changed, which is undone."""
    with vandal.begin_nested() as point:
        changed = vandal.execute(change).rowcount
        assert changed == 1 or isinstance(change, Insert)  # of which PostgreSQL does not say it
        row = vandal.execute(select(BUDGETS).where(BUDGETS.c.id == budget.id)).mappings().one_or_none()
        verified = Verified(False, 0, "", 0) if row is None else verify(vandal, row, Secrets(key))
        point.rollback()
    return verified


def other(value: Any) -> Any:
    """What somebody might put there instead."""
    if isinstance(value, bytes):
        return value[:-1] + bytes([value[-1] ^ 1])
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1000
    if value is None:
        return "told"
    likely = {"open": "closed", "charge": "refund", "charged": "claimed", "claimed": "charged", "released": "void"}
    return likely.get(value, value[:-1] + ("0" if value[-1:] != "0" else "1"))


def test_what_nobody_touched_is_valid(ledger: Ledger, budget: Budget) -> None:
    assert ledger.budgets.verify(budget.id) == Verified(True, COUNT, budget.head)
    fresh = open_budget(ledger, "another")
    assert ledger.budgets.verify(fresh.id) == Verified(True, 0, fresh.head)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_a_change_of_any_field_of_any_row_is_found(
    vandal: Connection, budget: Budget, key: bytes, table: Table
) -> None:
    rows = vandal.execute(select(table)).mappings().all()
    assert rows
    for row in rows:
        this = [column == row[column.name] for column in table.primary_key]
        for name in row:
            if table is ENTRIES and name == "kind" and row["seq"] in (3, 4):
                continue  # a second charge, or refund, of the same id: refused by the database itself
            verified = found_by(update(table).where(*this).values({name: other(row[name])}), vandal, budget, key)
            assert not verified.ok, f"{name} of {row}"
            assert verified.first_bad == _place(vandal, table, row), f"{name} of {row}: {verified}"


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_a_row_that_is_gone_is_found(vandal: Connection, budget: Budget, key: bytes, table: Table) -> None:
    for row in vandal.execute(select(table)).mappings().all():
        this = [column == row[column.name] for column in table.primary_key]
        verified = found_by(delete(table).where(*this), vandal, budget, key)
        assert (verified.ok, verified.first_bad) == (False, _place(vandal, table, row)), row


def _place(vandal: Connection, table: Table, row: Row) -> int:
    """The number of the entry that a row belongs to; 0 for the budget's own."""
    if table is BUDGETS:
        return 0
    if table is ENTRIES:
        return int(row["seq"])
    charge_id = row["id"] if table is CHARGES else row["charge_id"]
    entry = select(ENTRIES.c.seq).where(ENTRIES.c.charge_id == charge_id, ENTRIES.c.kind == "charge")
    return int(vandal.execute(entry).scalar_one())


def test_rows_that_nobody_paid_for_are_found(vandal: Connection, budget: Budget, key: bytes) -> None:
    charge = vandal.execute(select(CHARGES)).mappings().first()
    entry = vandal.execute(select(ENTRIES).where(ENTRIES.c.seq == COUNT)).mappings().one()
    assert charge is not None
    made = insert(CHARGES).values({**charge, "id": "charge_" + "0" * 32})
    assert found_by(made, vandal, budget, key).reason == "there are charges without an entry"
    appended = Entry.of({**entry, "seq": COUNT + 1, "prev": entry["hash"], "charge_id": "charge_" + "0" * 32})
    values = {**entry, **{name: getattr(appended, name) for name in ("seq", "prev", "charge_id")}}
    made = insert(ENTRIES).values({**values, "hash": appended.hashed()})
    assert found_by(made, vandal, budget, key).first_bad == COUNT + 1


def test_a_chain_that_was_written_anew_is_found(vandal: Connection, budget: Budget, key: bytes) -> None:
    """Its hashes can be computed by anyone. The head in the budget's row is sealed, and callers have it too."""
    [cheap] = [{"amounts": '{"epsilon":"0.01"}', "budget_id": budget.id}]
    rows = vandal.execute(select(ENTRIES).order_by(ENTRIES.c.seq)).mappings().all()
    prev = rows[0]["prev"]
    for row in rows:
        entry = Entry.of({**row, **cheap, "prev": prev})
        prev = entry.hashed()
        forged = {**cheap, "prev": entry.prev, "hash": prev}
        vandal.execute(update(ENTRIES).where(ENTRIES.c.seq == row["seq"]).values(forged))
    change = update(BUDGETS).values(head=prev, spent='{"epsilon":"0.04"}')
    verified = found_by(change, vandal, budget, key)
    assert (verified.ok, verified.first_bad, verified.reason) == (False, 0, "the budget's row was changed")


def test_nothing_is_charged_to_a_budget_that_somebody_changed(ledger: Ledger, engine: Engine, budget: Budget) -> None:
    charge = ledger.charges.reserve(budget.id, spend(), charge_request(9)).charge
    with writing(engine) as connection:  # no trigger guards what may change
        connection.execute(update(BUDGETS).values(spent='{"epsilon":"0"}'))
        connection.execute(update(CHARGES).where(CHARGES.c.id == charge.id).values(state="void"))
    with pytest.raises(Tampered, match=f"{budget.id} was changed by somebody without the ledger's key"):
        charged(ledger, budget, 10)
    with pytest.raises(Tampered, match=charge.id):
        claimed(ledger, charge)
