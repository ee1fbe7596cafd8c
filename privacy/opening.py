"""The opening of a ledger: its key, its database and its anchor belong together, or a sentence says what to do."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Engine

from warpdesk_server.privacy import anchor
from warpdesk_server.privacy.anchor import Anchor, Mark
from warpdesk_server.privacy.database import (
    DamagedDatabase,
    DatabaseUnavailable,
    UnusableDatabase,
    connect,
    facts,
    identity,
)
from warpdesk_server.privacy.journal import LedgerBehind
from warpdesk_server.privacy.ledger import Ledger
from warpdesk_server.privacy.seeds import Ring, Secrets, UnusableKey, WrongKey, alone, force

log = logging.getLogger("warpdesk.ledger")

LEDGER_ERRORS = (UnusableDatabase, UnusableKey, WrongKey, DatabaseUnavailable)  # whose sentences are for operators


@dataclass(frozen=True)
class Place:
    """Where a ledger is kept. `note` is a file that is there once there was a ledger, whatever became of the rest."""

    database: str
    anchor: str
    key_file: Path
    note: Path


@dataclass(frozen=True)
class _Found:
    """What is there before anything is created."""

    mark: Mark | None
    facts: dict[str, str]
    key: bool

    @property
    def bound(self) -> bool:
        return self.mark is not None and self.mark.bound


def open_ledger(place: Place) -> Ledger:
    """The ledger of an API process: created at the first start, compared with its anchor at every later one.

    Raises LedgerBehind and all of LEDGER_ERRORS.
    """
    # Several processes of a host may start at once.
    with _connected(place) as (database, anchored), alone(place.key_file.parent):
        found = _Found(anchor.mark(anchored), facts(database), place.key_file.exists())
        _check_key(place.key_file, found)
        if (wrong := _missing(place, found)) is not None:
            raise LedgerBehind(wrong)
        if found.mark is None and "key" in found.facts:
            log.warning("the ledger gets its anchor: from now on an older copy of its database is noticed")
        mark = found.mark or anchor.begin(anchored)  # before the key: a start that is cut off here goes on as the first
        ring = Ring(place.key_file)
        heads = Anchor(anchored, Secrets(ring), mark.ledger)
        heads.check()
        ledger = Ledger(database, ring, heads)
        ledger.prepare()
        ledger.compare()
        if not mark.bound:
            ledger.name(mark.ledger)
            heads.bind()
        _remember(place)
    return ledger


def examine(place: Place) -> Ledger | None:
    """The ledger as it is, compared with its anchor; None before the first start. Changes nothing.

    Raises LedgerBehind and all of LEDGER_ERRORS.
    """
    with _connected(place) as (database, anchored):
        found = _Found(anchor.mark(anchored), facts(database), place.key_file.exists())
        _check_key(place.key_file, found)
        if (wrong := _missing(place, found)) is not None:
            raise LedgerBehind(wrong)
        if "key" not in found.facts:
            return None
        ring = Ring(place.key_file)
        heads = Anchor(anchored, Secrets(ring), found.mark.ledger) if found.mark is not None else None
        ledger = Ledger(database, ring, heads)
        ledger.check_key(found.facts["key"])
        if heads is not None:
            heads.check()
            ledger.compare(note=False)
        return ledger


def examine_as_worker(database: str, key_file: Path) -> Ledger | None:
    """The ledger without an anchor, which workers have none of; None before the first start. Changes nothing.

    Raises all of LEDGER_ERRORS.
    """
    engine = connect(database)
    try:
        found = _Found(None, facts(engine), key_file.exists())
        _check_key(key_file, found)
        if "key" not in found.facts:
            engine.dispose()
            return None
        ledger = Ledger(engine, Ring(key_file))
        ledger.check_key(found.facts["key"])
    except BaseException:
        engine.dispose()
        raise
    return ledger


def accept_database(place: Place, by: str, tell: Callable[[list[str]], None]) -> list[str]:
    """Take the database as it is, though it is older than its anchor, new or another: the ids of the budgets that were
    closed, since what else was charged to them is not known. They are told before anything is accepted: where `tell`
    raises, or the process ends, nothing is. Raises all of LEDGER_ERRORS."""
    with _connected(place) as (database, anchored), alone(place.key_file.parent):
        found = _Found(anchor.mark(anchored), facts(database), place.key_file.exists())
        _check_key(place.key_file, found)
        mark = anchor.begin(anchored)
        ring = Ring(place.key_file)
        earlier = Anchor(anchored, Secrets(ring), mark.ledger)
        earlier.check()
        known = found.facts.get("ledger")
        name = known or mark.ledger
        ledger = Ledger(database, ring, Anchor(anchored, Secrets(ring), name))
        ledger.prepare()
        closed = ledger.accept(earlier.heads(), name, by, tell, others=not found.bound or known != mark.ledger)
        _remember(place)
        ledger.dispose()
    return closed


def _remember(place: Place) -> None:
    """Note that there is a ledger."""
    if not place.note.exists():
        try:
            place.note.touch(mode=0o600)
            force(place.note.parent)
        except OSError as error:  # a full disk must not keep the service from starting
            log.warning("it cannot be noted that there is a ledger: %s", error)


@contextmanager
def _connected(place: Place) -> Iterator[tuple[Engine, Engine]]:
    """The engines of database and anchor, without a connection left where the block raises."""
    engines = database, anchored = connect(place.database), connect(place.anchor, "WARPDESK_LEDGER_ANCHOR_URL")
    try:
        _check_apart(database, anchored)
        yield engines
    except BaseException as error:
        for engine in engines:
            engine.dispose()
        if isinstance(error, DamagedDatabase) and error.file == anchored.url.database:
            remedy = "put it elsewhere, with the service stopped, and run `warpdesk ledger accept`"
            raise DamagedDatabase(error.file, error.cause, f"{remedy}, which closes every open budget") from error
        raise


def _check_apart(database: Engine, anchored: Engine) -> None:
    """What goes back with the ledger's database is no anchor of it, and neither is one that each host has."""
    if database.dialect.name == "postgresql" != anchored.dialect.name:
        raise UnusableDatabase(
            "the ledger is in PostgreSQL, which API hosts share, and its anchor is a file: set "
            "WARPDESK_LEDGER_ANCHOR_URL to another database in PostgreSQL, the same for all of them"
        )
    if database.dialect.name == anchored.dialect.name and identity(database) == identity(anchored):
        raise UnusableDatabase("WARPDESK_LEDGER_ANCHOR_URL is the ledger's own database: an anchor is kept elsewhere")


def _check_key(key_file: Path, found: _Found) -> None:
    if not found.key and (found.bound or "key" in found.facts):
        raise UnusableKey(
            f"the ledger's key {key_file} is missing, and the ledger cannot be used without it: put the key file "
            "back, or set WARPDESK_LEDGER_KEY_FILE to where it is"
        )


def _missing(place: Place, found: _Found) -> str | None:
    """Which part of a ledger that was used is not there, or None."""
    ledger, mark = found.facts.get("ledger"), found.mark
    if mark is not None and mark.bound:
        if "key" not in found.facts:
            return "the ledger's database is missing or empty, and its anchor is not"
        return None if ledger == mark.ledger else "the ledger's database is another than the one its anchor is of"
    noted = place.note.exists()  # an anchor that is not bound was begun after that
    if (ledger is not None and (mark is None or ledger != mark.ledger)) or (noted and "key" in found.facts):
        return "the ledger's anchor is missing (ledger.anchor, or WARPDESK_LEDGER_ANCHOR_URL), and its database is not"
    if noted:
        return f"the ledger's database and anchor are missing or empty, and there was a ledger ({place.note} says so)"
    return None
