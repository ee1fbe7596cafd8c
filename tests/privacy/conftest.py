"""The databases a ledger is kept in: every test of one runs over a real SQLite file and a real PostgreSQL."""

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import URL, Engine, make_url

from tests.privacy.processes import Processes
from warpdesk_server.benchmarks.postgres import NoPostgres, postgres
from warpdesk_server.privacy.database import connect
from warpdesk_server.privacy.ledger import Ledger

KEY = bytes(range(32))

# Not in tests/tiers.py: of a fixture's parameter no name says that it asks for `postgres_server`.
KINDS = ["sqlite", pytest.param("postgresql", marks=pytest.mark.service)]

_names = itertools.count(1)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The URL of one real PostgreSQL for the whole session."""
    try:
        with postgres("fsync=off") as url:  # nothing here cuts its power
            yield url
    except NoPostgres as reason:
        pytest.skip(f"no PostgreSQL: {reason}")


@pytest.fixture(scope="session")
def prepared_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An SQLite file with all tables and nothing in them."""
    file = tmp_path_factory.mktemp("prepared") / "ledger.db"
    _prepare(f"sqlite:///{file}")
    return file


@pytest.fixture(scope="session")
def prepared_server(postgres_server: str) -> URL:
    """A PostgreSQL that has the database `prepared`, with all tables and nothing in them."""
    server = make_url(postgres_server)
    _run(server, "CREATE DATABASE prepared")
    _prepare(server.set(database="prepared").render_as_string())
    return server


@pytest.fixture(params=KINDS)
def empty_database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database of each kind without a table."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/empty.db"
    return create_database(make_url(request.getfixturevalue("postgres_server")), "template0")


@pytest.fixture(params=KINDS)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database of each kind with all tables, and nothing in them."""
    if request.param == "sqlite":
        shutil.copy(request.getfixturevalue("prepared_file"), tmp_path / "ledger.db")
        return f"sqlite:///{tmp_path}/ledger.db"
    return create_database(request.getfixturevalue("prepared_server"), "prepared")


@pytest.fixture
def engine(database: str) -> Iterator[Engine]:
    engine = connect(database)
    yield engine
    engine.dispose()


@pytest.fixture
def key() -> bytes:
    return KEY


@pytest.fixture
def ledger(engine: Engine, key: bytes) -> Ledger:
    """A ledger without a budget."""
    return Ledger(engine, key)


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    """Real processes over a ledger, many at once, which can be killed at any of its steps."""
    with Processes() as processes:
        yield processes


def create_database(server: URL, template: str) -> str:
    name = f"test_{next(_names)}"
    _run(server, f"CREATE DATABASE {name} TEMPLATE {template}")
    return server.set(database=name).render_as_string()


def _run(server: URL, statement: str) -> None:
    engine = connect(server.render_as_string())
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql(statement)
    engine.dispose()


def _prepare(url: str) -> None:
    engine = connect(url)
    Ledger(engine, KEY).prepare()
    engine.dispose()
