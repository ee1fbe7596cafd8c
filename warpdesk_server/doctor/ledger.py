"""The doctor's checks of the privacy ledger: whether this machine's key opens it, and its hash chains hold."""

from collections.abc import Callable

from sqlalchemy import make_url

from warpdesk_server.app.settings import Settings
from warpdesk_server.doctor.check import Check
from warpdesk_server.privacy.database import DamagedDatabase, DatabaseUnavailable, UnusableDatabase
from warpdesk_server.privacy.journal import LedgerBehind
from warpdesk_server.privacy.ledger import Ledger
from warpdesk_server.privacy.opening import examine, examine_as_worker
from warpdesk_server.privacy.seeds import UnusableKey, WrongKey
from warpdesk_server.workers.logs import scrub

_PAGE = 100  # budgets read at a time


def ledger(settings: Settings) -> Check:
    """The doctor's check of the ledger: compare it with its anchor, and replay every hash chain.

    A missing SQLite file is not created.
    """
    return _look(settings, lambda: examine(settings.ledger_place))


def ledger_of_worker(settings: Settings) -> Check:
    """The doctor's check of the ledger with a worker's settings: replay every hash chain. Workers have no anchor."""
    return _look(settings, lambda: examine_as_worker(settings.ledger, settings.ledger_key_path))


def _look(settings: Settings, look: Callable[[], Ledger | None]) -> Check:
    try:
        place = make_url(settings.ledger)
    except Exception:  # noqa: BLE001 - of a URL, whose text may hold a password
        return _failed("WARPDESK_LEDGER_URL is not a database URL", "write it as postgresql://user@host/name")
    shown = scrub(place.render_as_string(hide_password=True))  # one may be in the query too
    try:
        books = look()
        if books is None:
            found = f"{shown} is empty: it is made at the first start, with the key {settings.ledger_key_path}"
            return Check("ledger", "ok", found)
        try:
            return _verified(books, shown)
        finally:
            books.dispose()
    except (UnusableDatabase, UnusableKey, WrongKey) as error:
        return _failed(f"{shown}: {error}", "correct WARPDESK_LEDGER_URL, _ANCHOR_URL or _KEY_FILE")
    except (LedgerBehind, DamagedDatabase) as error:
        what, _, remedy = str(error).rpartition(": put ")
        return _failed(f"{shown}: {what}", f"put {remedy}")
    except DatabaseUnavailable as error:
        return _failed(f"{shown}: {error}", "start the database, or correct WARPDESK_LEDGER_URL")


def _verified(books: Ledger, shown: str) -> Check:
    budgets = entries = 0
    last = None
    while page := books.budgets.page(_PAGE, last):
        for budget in page:
            verdict = books.budgets.verify(budget.id)
            if not verdict.ok:
                found = f"{shown}: {budget.id} does not fit at entry {verdict.first_bad}: {verdict.reason}"
                return _failed(found, "close this budget, and compare with a backup or with heads that callers noted")
            budgets, entries, last = budgets + 1, entries + verdict.entries, budget.id
    return Check("ledger", "ok", f"{shown}: {budgets} budgets, {entries} entries, every chain fits")


def _failed(found: str, remedy: str) -> Check:
    return Check("ledger", "failed", found, remedy)
