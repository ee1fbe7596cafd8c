"""Where a ledger is kept: for its owner alone, written through to the disk, and erased where it was erased."""

import stat
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import Engine, inspect, select, text

from tests.conftest import ROOT
from tests.privacy.ledgers import charged, claimed, open_budget
from warpdesk_server.privacy.database import (
    FACTS,
    SCHEMA,
    TABLES,
    DatabaseUnavailable,
    UnusableDatabase,
    connect,
    create_tables,
    reading,
    truncate_log,
    writing,
)
from warpdesk_server.privacy.ledger import Ledger
from warpdesk_server.privacy.tables import SEEDS


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def sqlite(file: Path) -> Engine:
    return connect(f"sqlite:///{file}")


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("", "not a database URL"),
        ("a file", "not a database URL"),
        ("sqlite://", "not in memory"),
        ("sqlite:///:memory:", "sqlite:////path/to/it, not :memory:"),
        ("sqlite:///here.db", "a file that every process finds"),
        ("sqlite:///file:/tmp/x?mode=memory&uri=true", "a file that every process finds"),
        ("mysql://root@localhost/ledger", "sqlite or postgresql, not in mysql"),
    ],
)
def test_a_place_that_forgets_or_that_not_every_process_finds_is_refused(url: str, why: str) -> None:
    with pytest.raises(UnusableDatabase, match=why):
        connect(url)


def test_connecting_makes_nothing(sqlite: Engine, file: Path) -> None:
    assert not file.exists()


def test_tables_are_made_once_and_know_their_version(empty_database: str) -> None:
    engine = connect(empty_database)
    for _ in range(2):
        create_tables(engine)
        assert set(inspect(engine).get_table_names()) == set(TABLES.tables)
        with reading(engine) as connection:
            assert connection.execute(select(FACTS)).all() == [("schema", str(SCHEMA))]
    engine.dispose()


def test_an_sqlite_file_and_its_log_are_for_their_owner_alone(sqlite: Engine, file: Path) -> None:
    create_tables(sqlite)
    with writing(sqlite) as connection:
        connection.execute(text("INSERT INTO facts VALUES ('a', 'b')"))
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in file.parent.iterdir()}
    assert modes == {"ledger.db": 0o600, "ledger.db-wal": 0o600, "ledger.db-shm": 0o600}
    sqlite.dispose()
    file.chmod(0o644)
    again = connect(f"sqlite:///{file}")
    with reading(again):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    again.dispose()


def test_sqlite_forces_each_commit_and_overwrites_what_it_deletes(sqlite: Engine) -> None:
    with reading(sqlite) as connection:
        pragmas = {
            pragma: connection.exec_driver_sql(f"PRAGMA {pragma}").scalar()
            for pragma in ("journal_mode", "synchronous", "secure_delete", "foreign_keys")
        }
    assert pragmas == {"journal_mode": "wal", "synchronous": 2, "secure_delete": 1, "foreign_keys": 1}
    sqlite.dispose()


def test_postgresql_waits_for_its_disk(postgres_server: str) -> None:
    engine = connect(postgres_server)
    with reading(engine) as connection:
        assert connection.scalar(text("SHOW synchronous_commit")) == "on"
        assert connection.scalar(text("SHOW transaction_isolation")) == "repeatable read"
    with writing(engine) as connection:
        assert connection.scalar(text("SHOW transaction_isolation")) == "read committed"
    engine.dispose()


def test_a_writer_that_raises_has_written_nothing(ledger: Ledger, engine: Engine) -> None:
    with pytest.raises(ZeroDivisionError), writing(engine) as connection:  # noqa: PT012
        connection.execute(text("INSERT INTO facts VALUES ('a', 'b')"))
        raise ZeroDivisionError
    with reading(engine) as connection:
        assert connection.scalar(select(FACTS.c.value).where(FACTS.c.name == "a")) is None


def test_a_reader_sees_one_moment(ledger: Ledger, engine: Engine) -> None:
    with reading(engine) as connection:
        before = connection.execute(select(FACTS)).all()
        with writing(engine) as other:
            other.execute(text("INSERT INTO facts VALUES ('a', 'b')"))
        assert connection.execute(select(FACTS)).all() == before
    with reading(engine) as connection:
        assert len(connection.execute(select(FACTS)).all()) == len(before) + 1


@pytest.mark.parametrize("url", ["sqlite:////nowhere/ledger.db", "postgresql://warpdesk@/none?host=/nowhere"])
def test_a_database_that_does_not_answer_is_named_without_what_was_asked(url: str) -> None:
    engine = connect(url)
    for use in (reading, writing):
        with pytest.raises(DatabaseUnavailable) as refused, use(engine) as connection:
            connection.execute(text("SELECT :secret"), {"secret": "4711"})
        assert "4711" not in str(refused.value)
        assert "SELECT" not in str(refused.value)


def test_a_file_that_is_no_database_is_named_and_kept(sqlite: Engine, file: Path) -> None:
    file.write_bytes(b"something else" * 100)
    with pytest.raises(DatabaseUnavailable, match=r"ledger.db is damaged \(file is not a database\): put its newest"):
        create_tables(sqlite)
    assert not truncate_log(sqlite)
    assert file.read_bytes() == b"something else" * 100


def test_a_seed_is_in_no_file_once_its_charge_has_ended(sqlite: Engine, file: Path, key: bytes) -> None:
    ledger = Ledger(sqlite, key)
    ledger.prepare()
    budget = open_budget(ledger, epsilon="1000")
    charges = [charged(ledger, budget, number) for number in range(300)]  # some pages of seeds
    with reading(sqlite) as connection:
        seeds = {row.charge_id: row.wrapped for row in connection.execute(select(SEEDS))}
    assert len(seeds) == 300
    before = _bytes(file)
    assert all(wrapped in before for wrapped in seeds.values())
    endings = [
        lambda charge: (claimed(ledger, charge), ledger.charges.release(charge.id, "{}", b"answer")),
        lambda charge: (claimed(ledger, charge), ledger.charges.fail(charge.id, "a test")),
        lambda charge: ledger.charges.refund(charge.id, "a test", forget_key=True),
    ]
    ended = charges[::7] + charges[100:180] + charges[-20:]
    for number, charge in enumerate({charge.id: charge for charge in ended}.values()):
        endings[number % 3](charge)
        assert seeds[charge.id] not in _bytes(file)
    left = _bytes(file)
    gone = {charge.id for charge in ended}
    assert not any(seeds[charge_id] in left for charge_id in gone)
    assert all(seeds[charge.id] in left for charge in charges if charge.id not in gone)
    sqlite.dispose()


def test_a_seed_that_a_reader_kept_in_the_log_goes_with_the_next_look(sqlite: Engine, file: Path, key: bytes) -> None:
    ledger = Ledger(sqlite, key)
    ledger.prepare()
    charge = charged(ledger, open_budget(ledger))
    with reading(sqlite) as connection:
        wrapped = connection.scalar(select(SEEDS.c.wrapped))
        assert ledger.charges.refund(charge.id, "a test", forget_key=True)
        assert not ledger.charges.erase()
        assert wrapped in _bytes(file)
    assert ledger.charges.erase()
    assert wrapped not in _bytes(file)
    assert file.with_name("ledger.db-wal").stat().st_size == 0
    sqlite.dispose()


def _bytes(file: Path) -> bytes:
    """What a reader of the disk finds of a database: the file, its log, the log's index."""
    return b"".join(path.read_bytes() for path in sorted(file.parent.glob(f"{file.name}*")))


_VISIT = """
import sys
from warpdesk_server.privacy.database import connect
from warpdesk_server.privacy.ledger import Ledger
engine = connect(sys.argv[1])
print(Ledger(engine, bytes(range(32))).budgets.get(sys.argv[2]).seq)
engine.dispose()
"""


def test_who_comes_and_goes_takes_nothing_from_those_who_stay(sqlite: Engine, file: Path) -> None:
    """Whoever closes a file ends all locks its process has on it (POSIX): a process that only looked in would be the
    last one by what SQLite sees, and delete the log under those who write."""
    ledger = Ledger(sqlite, bytes(range(32)))
    ledger.prepare()
    budget = open_budget(ledger)
    with reading(sqlite) as one, reading(sqlite) as other:  # two requests at once, and so two connections
        one.scalar(text("SELECT 1"))
        other.scalar(text("SELECT 1"))

    def visit() -> int:
        command = [sys.executable, "-c", _VISIT, str(sqlite.url), budget.id]
        return int(subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout)

    for number in range(1, 4):
        assert visit() == number - 1
        charged(ledger, budget, number)
        assert file.with_name("ledger.db-wal").exists()
    assert visit() == 3
