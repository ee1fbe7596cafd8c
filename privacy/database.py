"""The SQL store of budgets and rounds: SQLite for one machine, PostgreSQL for several.

Every statement goes through `reading` or `writing`. A writer has the database (SQLite) or the rows it locks with
FOR UPDATE (PostgreSQL) to itself, and what it wrote is on the disk when the block is left.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, MetaData, create_engine, event, make_url, text

TABLES = MetaData()  # ledger and rounds add theirs

_BUSY_SECONDS = 30  # how long a writer of SQLite waits for the others
_ANSWER_SECONDS = 10  # how long PostgreSQL may take to connect, to lock a row, to answer


class UnusableDatabase(ValueError):
    """The URL names a database this cannot be kept in; the message says what to do."""


def connect(url: str) -> Engine:
    """Return an engine for `sqlite:////path/to/file` or `postgresql://user@host/name`; connects at the first use.

    Raises UnusableDatabase for any other URL.
    """
    try:
        parsed = make_url(url)
    except Exception as error:
        raise UnusableDatabase("WARPDESK_LEDGER_URL is not a database URL") from error
    backend = parsed.get_backend_name()
    if backend == "sqlite":
        if not parsed.database or parsed.database == ":memory:" or "mode=memory" in parsed.database:
            raise UnusableDatabase("a ledger in memory would forget what was spent: name a file, sqlite:////path")
        return _sqlite(url)
    if backend == "postgresql":
        options = f"-c statement_timeout={_ANSWER_SECONDS}s -c lock_timeout={_ANSWER_SECONDS}s -c synchronous_commit=on"
        return create_engine(
            parsed.set(drivername="postgresql+psycopg"),
            pool_pre_ping=True,
            connect_args={"connect_timeout": _ANSWER_SECONDS, "options": options},
            hide_parameters=True,  # wrapped seeds and shares are parameters
        )
    raise UnusableDatabase(f"a ledger is kept in sqlite or postgresql, not in {backend}")


def is_local(url: str) -> bool:
    """Whether only processes of this machine can share it."""
    return make_url(url).get_backend_name() == "sqlite"


def create_tables(engine: Engine) -> None:
    """Make the tables that are missing; many processes may start at once."""
    with writing(engine) as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(8172645)"))
        TABLES.create_all(connection)


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """One transaction that may write: committed when the block is left, undone when it raises."""
    with engine.begin() as connection:
        yield connection


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """One consistent look, beside writers."""
    level = {"isolation_level": "REPEATABLE READ"} if engine.dialect.name == "postgresql" else {}
    with engine.connect().execution_options(reads=True, **level) as connection, connection.begin():
        yield connection


def truncate_log(engine: Engine) -> None:
    """Move what was written into the database file and empty the write-ahead log, so that what was erased is in
    neither. While somebody reads it does less; the next one does it then."""
    if engine.dialect.name == "sqlite":
        with engine.connect() as connection:
            connection.connection.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _sqlite(url: str) -> Engine:
    engine = create_engine(url, connect_args={"timeout": _BUSY_SECONDS}, hide_parameters=True)

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # begin is ours, below: Python's module would begin without a lock
        cursor = connection.cursor()
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "secure_delete=ON"):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # A transaction that reads first and writes then would fail where another wrote in between.
        reads = connection.get_execution_options().get("reads", False)
        connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")

    return engine
