"""Opening the privacy ledger. If key, database and anchor do not belong together, it refuses and says what to do."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Engine

from warpdesk.durable import force
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
from warpdesk_server.privacy.seeds import Ring, Secrets, UnusableKey, WrongKey, alone

log = logging.getLogger("warpdesk.ledger")

LEDGER_ERRORS = (UnusableDatabase, UnusableKey, WrongKey, DatabaseUnavailable)  # whose sentences are for operators


@dataclass(frozen=True)
class Place:
    """The location of a privacy ledger. The file `note` exists from the first start on, even if the other parts are
    lost."""

    database: str
    anchor: str
    key_file: Path
    note: Path


@dataclass(frozen=True)
class _Inventory:
    """The parts of a privacy ledger that exist before anything is created."""

    mark: Mark | None
    facts: dict[str, str]
    key: bool

    @property
    def bound(self) -> bool:
        return self.mark is not None and self.mark.bound


def open_ledger(place: Place) -> Ledger:
    """Open the privacy ledger for an API process. Creates it at the first start, compares it with its anchor at later
    ones.

    Raises LedgerBehind and all of LEDGER_ERRORS.
    """
    # Several processes of a host may start at once.
    with _connected(place) as (database, anchored), alone(place.key_file.parent):
        inventory = _Inventory(anchor.mark(anchored), facts(database), place.key_file.exists())
        _check_key(place.key_file, inventory)
        if (missing := _missing(place, inventory)) is not None:
            raise LedgerBehind(missing)
        if inventory.mark is None and "key" in inventory.facts:
            log.warning("the ledger gets its anchor: from now on an older copy of its database is detected")
        # Before the key: after a crash here the next start is the first again.
        mark = inventory.mark or anchor.begin(anchored)
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
    """Open the privacy ledger without changing it, and compare it with its anchor; None before the first start.

    Raises LedgerBehind and all of LEDGER_ERRORS.
    """
    with _connected(place) as (database, anchored):
        inventory = _Inventory(anchor.mark(anchored), facts(database), place.key_file.exists())
        _check_key(place.key_file, inventory)
        if (missing := _missing(place, inventory)) is not None:
            raise LedgerBehind(missing)
        if "key" not in inventory.facts:
            return None
        ring = Ring(place.key_file)
        heads = Anchor(anchored, Secrets(ring), inventory.mark.ledger) if inventory.mark is not None else None
        ledger = Ledger(database, ring, heads)
        ledger.check_key(inventory.facts["key"])
        if heads is not None:
            heads.check()
            ledger.compare(note=False)
        return ledger


def examine_as_worker(database: str, key_file: Path) -> Ledger | None:
    """Open the privacy ledger without its anchor, as workers use it; None before the first start. Changes nothing.

    Raises all of LEDGER_ERRORS.
    """
    engine = connect(database)
    try:
        inventory = _Inventory(None, facts(engine), key_file.exists())
        _check_key(key_file, inventory)
        if "key" not in inventory.facts:
            engine.dispose()
            return None
        ledger = Ledger(engine, Ring(key_file))
        ledger.check_key(inventory.facts["key"])
    except BaseException:
        engine.dispose()
        raise
    return ledger


def accept_database(place: Place, by: str, announce: Callable[[list[str]], None]) -> list[str]:
    """Accept a ledger database that is older than its anchor, new, or another one. Returns the ids of the budgets it
    closes.

    They are closed since later charges to them may be lost. `announce` is given the ids first: if it raises, or the
    process ends, nothing is accepted. Raises all of LEDGER_ERRORS.
    """
    with _connected(place) as (database, anchored), alone(place.key_file.parent):
        inventory = _Inventory(anchor.mark(anchored), facts(database), place.key_file.exists())
        _check_key(place.key_file, inventory)
        mark = anchor.begin(anchored)
        ring = Ring(place.key_file)
        earlier = Anchor(anchored, Secrets(ring), mark.ledger)
        earlier.check()
        ledger_id = inventory.facts.get("ledger")
        name = ledger_id or mark.ledger
        ledger = Ledger(database, ring, Anchor(anchored, Secrets(ring), name))
        ledger.prepare()
        others = not inventory.bound or ledger_id != mark.ledger
        closed = ledger.accept(earlier.heads(), name, by, announce, others=others)
        _remember(place)
        ledger.dispose()
    return closed


def _remember(place: Place) -> None:
    """Create the note file which says that a privacy ledger exists."""
    if not place.note.exists():
        try:
            place.note.touch(mode=0o600)
            force(place.note.parent)
        except OSError as error:  # a full disk must not keep the service from starting
            log.warning("the note that a ledger exists cannot be written: %s", error)


@contextmanager
def _connected(place: Place) -> Iterator[tuple[Engine, Engine]]:
    """Connect to the ledger's database and anchor. Closes their connections if the block raises."""
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
    """Refuse an anchor in the ledger's own database, which is restored together with it.

    Also refuse a file as the anchor of a PostgreSQL ledger, since each host would have its own.
    """
    if database.dialect.name == "postgresql" != anchored.dialect.name:
        raise UnusableDatabase(
            "the ledger is in PostgreSQL, which API hosts share, and its anchor is a file: set "
            "WARPDESK_LEDGER_ANCHOR_URL to another database in PostgreSQL, the same for all of them"
        )
    if database.dialect.name == anchored.dialect.name and identity(database) == identity(anchored):
        raise UnusableDatabase("WARPDESK_LEDGER_ANCHOR_URL is the ledger's own database: an anchor is kept elsewhere")


def _check_key(key_file: Path, inventory: _Inventory) -> None:
    if not inventory.key and (inventory.bound or "key" in inventory.facts):
        raise UnusableKey(
            f"the ledger's key {key_file} is missing, and the ledger cannot be used without it: put the key file "
            "back, or set WARPDESK_LEDGER_KEY_FILE to where it is"
        )


def _missing(place: Place, inventory: _Inventory) -> str | None:
    """The sentence for a missing or foreign part of a ledger that was used before; None if all parts fit."""
    ledger, mark = inventory.facts.get("ledger"), inventory.mark
    if mark is not None and mark.bound:
        if "key" not in inventory.facts:
            return "the ledger's database is missing or empty, and its anchor is not"
        return None if ledger == mark.ledger else "the ledger's database is another than the one its anchor is of"
    noted = place.note.exists()  # an anchor that is not bound is younger than the note
    if (ledger is not None and (mark is None or ledger != mark.ledger)) or (noted and "key" in inventory.facts):
        return "the ledger's anchor is missing (ledger.anchor, or WARPDESK_LEDGER_ANCHOR_URL), and its database is not"
    if noted:
        return f"the ledger's database and anchor are missing or empty, and there was a ledger ({place.note} says so)"
    return None
