"""The opening of a ledger: its key, its database and its anchor belong together, or a sentence says what to do."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Engine

from privacy import anchor
from privacy.anchor import Anchor, Mark
from privacy.database import DatabaseUnavailable, UnusableDatabase, connect, facts
from privacy.ledger import Ledger, LedgerBehind
from privacy.seeds import Ring, Secrets, UnusableKey, WrongKey, alone

log = logging.getLogger("warpdesk.ledger")

LEDGER_ERRORS = (UnusableDatabase, UnusableKey, WrongKey, DatabaseUnavailable)  # whose sentences are for operators


@dataclass(frozen=True)
class Place:
    """Where a ledger is kept. `used`: a service has run in this home before, so that there was a ledger."""

    database: str
    anchor: str
    key_file: Path
    used: bool


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
    if place.database == place.anchor:
        raise UnusableDatabase("WARPDESK_LEDGER_ANCHOR_URL is the ledger's own database: an anchor is kept elsewhere")
    # Several processes of a host may start at once.
    with _connected(place) as (database, anchored), alone(place.key_file.parent):
        found = _Found(anchor.mark(anchored), facts(database), place.key_file.exists())
        _check_key(place, found)
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
    return ledger


def examine(place: Place) -> Ledger | None:
    """The ledger as it is, compared with its anchor; None before the first start. Changes nothing.

    Raises LedgerBehind and all of LEDGER_ERRORS.
    """
    with _connected(place) as (database, anchored):
        found = _Found(anchor.mark(anchored), facts(database), place.key_file.exists())
        _check_key(place, found)
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


def accept_database(place: Place, by: str) -> list[str]:
    """Take the database as it is, though it is older than its anchor, new or another: the ids of the budgets that were
    closed, since what else was charged to them is not known. Raises all of LEDGER_ERRORS."""
    with _connected(place) as (database, anchored), alone(place.key_file.parent):
        found = _Found(anchor.mark(anchored), facts(database), place.key_file.exists())
        _check_key(place, found)
        mark = anchor.begin(anchored)
        ring = Ring(place.key_file)
        ledger = Ledger(database, ring)
        ledger.prepare()
        earlier = Anchor(anchored, Secrets(ring), mark.ledger)
        earlier.check()
        known = found.facts.get("ledger")
        budgets, closed = ledger.accept(earlier.heads(), not found.bound or known not in (None, mark.ledger), by)
        name = known or mark.ledger
        ledger.name(name)
        Anchor(anchored, Secrets(ring), name).replace(budgets)
        database.dispose()
        anchored.dispose()
    return closed


@contextmanager
def _connected(place: Place) -> Iterator[tuple[Engine, Engine]]:
    """The engines of database and anchor, without a connection left where the block raises."""
    engines = connect(place.database), connect(place.anchor)
    try:
        yield engines
    except BaseException:
        for engine in engines:
            engine.dispose()
        raise


def _check_key(place: Place, found: _Found) -> None:
    if not found.key and (found.bound or "key" in found.facts):
        raise UnusableKey(
            f"the ledger's key {place.key_file} is missing, and the ledger cannot be used without it: put the key file "
            "back, or set WARPDESK_LEDGER_KEY_FILE to where it is"
        )


def _missing(place: Place, found: _Found) -> str | None:
    """Which part of a ledger that was used is not there, or None."""
    ledger, mark = found.facts.get("ledger"), found.mark
    if mark is not None and mark.bound:
        if "key" not in found.facts:
            return "the ledger's database is missing or empty, and its anchor is not"
        return None if ledger == mark.ledger else "the ledger's database is another than the one its anchor is of"
    if ledger is not None and (mark is None or ledger != mark.ledger):
        return "the ledger's anchor is missing (ledger.anchor, or WARPDESK_LEDGER_ANCHOR_URL), and its database is not"
    if mark is None and place.used and found.key and "key" not in found.facts:
        return f"the ledger's database is missing or empty, and its key {place.key_file} is not"
    return None
