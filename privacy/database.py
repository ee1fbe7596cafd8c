"""The SQL database of the privacy ledger and of rounds: SQLite for one machine, PostgreSQL for several.

Every statement goes through `reading` or `writing`. A writer has the database (SQLite) or the rows it locks with FOR
UPDATE (PostgreSQL) to itself, and what it wrote is on the disk when the block is left.
"""

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import (
    URL,
    Column,
    Connection,
    Engine,
    MetaData,
    String,
    Table,
    create_engine,
    delete,
    event,
    insert,
    inspect,
    make_url,
    select,
    text,
    update,
)
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

TABLES = MetaData()  # ledger and rounds add theirs

# Facts about the database as a whole: the version of its tables, a digest by its key, the id of its ledger.
FACTS = Table(
    "facts", TABLES, Column("name", String(40), primary_key=True), Column("value", String(200), nullable=False)
)

SCHEMA = 3  # of all tables; a release that changes them raises it and brings older ones up to it in `create_tables`

_BUSY_SECONDS = 30  # how long a writer of SQLite waits for the others
_CHECKPOINT_SECONDS = 1  # how long emptying its log does
_ANSWER_SECONDS = 10  # how long PostgreSQL may take to connect, to lock a row, to answer
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_CREATING = 8172645  # key of the advisory lock in PostgreSQL for making tables and budgets


class UnusableDatabase(ValueError):
    """Raised for a URL that cannot hold a ledger database, or tables of a newer release. The message says how to fix
    it."""


class DatabaseUnavailable(Exception):
    """Raised if the ledger's database did not answer in time. A write is done whole or not at all: try again."""


class DamagedDatabase(DatabaseUnavailable):
    """Raised if the ledger's file is damaged or not an SQLite database. The message says which file and what to do."""

    def __init__(
        self, file: str, cause: str, remedy: str = "put its newest backup in its place, with the service stopped"
    ) -> None:
        super().__init__(f"{file} is damaged ({cause}): {remedy}")
        self.file = file
        self.cause = cause


def connect(url: str, setting: str = "WARPDESK_LEDGER_URL") -> Engine:
    """Return the SQL engine for a ledger's `sqlite:////path` or `postgresql://user@host/name`; connects at first use.

    Raises UnusableDatabase for any other URL; the message names `setting`.
    """
    try:
        parsed = make_url(url)
        backend = parsed.get_backend_name()
    except Exception as error:
        raise UnusableDatabase(f"{setting} is not a database URL") from error
    if backend == "sqlite":
        if not (parsed.database or "").startswith("/"):
            raise UnusableDatabase(
                f"{setting}: it is kept in a file that every process finds: sqlite:////path/to/it, "
                f"not {parsed.database or 'in memory'}"
            )
        return _sqlite(parsed)
    if backend == "postgresql":
        # A client that hangs within a transaction must not lock a budget for all others.
        limits = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
        options = " ".join(f"-c {limit}={_ANSWER_SECONDS}s" for limit in limits)
        network = {"keepalives_idle": _ANSWER_SECONDS, "keepalives_interval": 2, "keepalives_count": 3}
        return create_engine(
            parsed.set(drivername="postgresql+psycopg"),
            pool_pre_ping=True,
            connect_args={
                "connect_timeout": _ANSWER_SECONDS,
                "options": f"{options} -c synchronous_commit=on",
                "tcp_user_timeout": 1000 * _ANSWER_SECONDS,
                **network,
            },
            hide_parameters=True,  # wrapped seeds and shares are parameters
        )
    raise UnusableDatabase(f"{setting}: it is kept in sqlite or postgresql, not in {backend}")


def create_tables(engine: Engine) -> None:
    """Create the missing tables of the ledger and of rounds; many processes may start at once.

    Raises UnusableDatabase for tables of a newer release, before it changes any of them.
    """
    with writing(engine) as connection:
        one_at_a_time(connection)
        version = None
        if inspect(connection).has_table(FACTS.name):
            version = connection.scalar(select(FACTS.c.value).where(FACTS.c.name == "schema"))
        if version is not None and int(version) > SCHEMA:
            raise UnusableDatabase(
                f"the database holds tables of version {version}, this release knows {SCHEMA} and older ones: "
                "run the release that wrote it, or a newer one"
            )
        TABLES.create_all(connection)
        if version is None:
            connection.execute(insert(FACTS).values(name="schema", value=str(SCHEMA)))
        elif int(version) < SCHEMA:  # version 1 has no entries of the kind "close", version 2 none of "rules"
            for table in TABLES.tables.values():
                for index in table.indexes:
                    index.create(connection, checkfirst=True)
            connection.execute(update(FACTS).where(FACTS.c.name == "schema").values(value=str(SCHEMA)))


def one_at_a_time(connection: Connection) -> None:
    """Hold the ledger's lock for making tables and budgets until the transaction ends. SQLite has one writer anyway."""
    if connection.dialect.name == "postgresql":
        connection.execute(text(f"SELECT pg_advisory_xact_lock({_CREATING})"))


def exists(engine: Engine) -> bool:
    """Whether the ledger's SQL database exists. False only for a missing SQLite file, which connecting would create."""
    return engine.dialect.name != "sqlite" or Path(str(engine.url.database)).exists()


def identity(engine: Engine) -> tuple[str, ...]:
    """The identity of a ledger's SQL database: equal for two URLs of the same database, and for no others. Creates
    nothing."""
    if engine.dialect.name == "sqlite":
        return (str(Path(str(engine.url.database)).resolve()),)
    with reading(engine) as connection:
        name, since = connection.execute(text("SELECT current_database(), pg_postmaster_start_time()")).one()
    return name, str(since)


def facts(engine: Engine) -> dict[str, str]:
    """All rows of the ledger's table FACTS; empty if its database or the table does not exist. Creates nothing."""
    if not exists(engine):
        return {}
    with reading(engine) as connection:
        if not inspect(connection).has_table(FACTS.name):
            return {}
        return {row.name: row.value for row in connection.execute(select(FACTS))}


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """Open a transaction of the ledger that may write: committed when the block is left, rolled back when it raises.

    Raises DatabaseUnavailable.
    """
    with _answering(engine), engine.begin() as connection:
        yield connection


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """Open a transaction of the ledger that reads one consistent state, beside writers. Raises DatabaseUnavailable."""
    level = {"isolation_level": "REPEATABLE READ"} if engine.dialect.name == "postgresql" else {}
    with (
        _answering(engine),
        engine.connect().execution_options(reads=True, **level) as connection,
        connection.begin(),
    ):
        yield connection


def rewrite(connection: Connection, table: Table) -> None:
    """Write a table of the ledger's SQLite file anew, so that no copy of a deleted row is left in its pages.

    SQLite overwrites the row that it deletes. It does not overwrite where a row lay before it was moved, which happens
    when others beside it are deleted. A table that is emptied gives up all its pages, and these are overwritten whole.
    """
    if connection.dialect.name != "sqlite":
        return
    # The copy is a table of the same file, whose pages are overwritten in turn; a temporary one would be another file.
    copy, names = f"{table.name}_anew", ", ".join(table.columns.keys())
    connection.exec_driver_sql(f"CREATE TABLE {copy} AS SELECT {names} FROM {table.name}")  # noqa: S608 - our own names
    connection.execute(delete(table))
    connection.exec_driver_sql(f"INSERT INTO {table.name} ({names}) SELECT {names} FROM {copy}")  # noqa: S608
    connection.exec_driver_sql(f"DROP TABLE {copy}")


def truncate_log(engine: Engine) -> bool:
    """Move SQLite's write-ahead log into the ledger's file and empty it, so that erased rows are in neither.

    Returns whether that was done: a reader prevents it, and the next call does it. PostgreSQL has no such call: its log
    and dead rows are the server's.
    """
    if engine.dialect.name != "sqlite":
        return True
    try:
        connection = engine.raw_connection()
    except (OperationalError, PoolTimeout, DatabaseUnavailable):
        return False
    try:
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout={_CHECKPOINT_SECONDS * 1000}")
        cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        [(prevented, _, _)] = cursor.fetchall()
        cursor.execute(f"PRAGMA busy_timeout={_BUSY_SECONDS * 1000}")
        cursor.close()
    except sqlite3.OperationalError:  # another checkpoint runs, or the disk is full
        connection.invalidate()
        return False
    finally:
        connection.close()
    return not prevented


@contextmanager
def _answering(engine: Engine) -> Iterator[None]:
    """Translate errors of the ledger's SQL driver into DatabaseUnavailable or DamagedDatabase."""
    try:
        yield
    except (OperationalError, PoolTimeout) as error:
        raise DatabaseUnavailable(f"the ledger's database does not answer: {_cause(error)}") from error
    except DBAPIError as error:
        if _is_damage(error.orig):
            raise _damaged(engine.url, error) from error
        if not error.connection_invalidated:
            raise
        raise DatabaseUnavailable(f"the connection to the ledger's database was lost: {_cause(error)}") from error


def _is_damage(error: BaseException | None) -> bool:
    return isinstance(error, sqlite3.DatabaseError) and getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGED


def _damaged(url: URL, error: Exception) -> DamagedDatabase:
    return DamagedDatabase(str(url.database), _cause(error))


def _cause(error: Exception) -> str:
    """The first line of an error of the ledger's SQL driver, without the statement and its parameters."""
    return (str(getattr(error, "orig", None) or error).splitlines() or ["no reason given"])[0]


def _sqlite(url: URL) -> Engine:
    engine = create_engine(url, connect_args={"timeout": _BUSY_SECONDS}, hide_parameters=True)
    file = str(url.database)

    @event.listens_for(engine, "do_connect")
    def create_private(*_: Any) -> None:
        # SQLite gives its log the mode of the file, and the file that of the umask. A file that is there must not be
        # opened here: to close it again would end every lock this process has on it (POSIX), SQLite's too.
        try:
            os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        except FileExistsError:
            _make_private(file)
        except OSError as error:
            raise DatabaseUnavailable(f"{file} cannot be opened: {error.strerror}") from error

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # begin is ours, below: Python's module would begin without a lock
        cursor = connection.cursor()
        try:
            _use_write_ahead_log(cursor)
            for pragma in ("synchronous=FULL", "foreign_keys=ON", "secure_delete=ON"):
                cursor.execute(f"PRAGMA {pragma}")
        except sqlite3.DatabaseError as error:
            if _is_damage(error):
                raise _damaged(url, error) from error
            raise DatabaseUnavailable(f"{file} cannot be used: {error}") from error
        finally:
            cursor.close()

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # A transaction that reads before it writes would fail where another wrote in between.
        reads = connection.get_execution_options().get("reads", False)
        connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")

    return engine


def _make_private(file: str) -> None:
    try:
        if Path(file).stat().st_mode & 0o077:
            Path(file).chmod(0o600)
    except OSError as error:
        raise DatabaseUnavailable(f"others may read the ledger's file, and that cannot be changed: {error}") from error


def _use_write_ahead_log(cursor: sqlite3.Cursor) -> None:
    """Switch the ledger's SQLite file to a write-ahead log. If two processes switch a new file at once, one fails
    without waiting and tries again."""
    deadline = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
