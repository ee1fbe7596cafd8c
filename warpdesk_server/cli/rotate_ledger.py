"""`warpdesk keys rotate-ledger`: give the ledger a new key and wrap the seeds of open charges with it."""

import argparse
import os
from pathlib import Path

from warpdesk.cli.command import Subcommands, fail
from warpdesk_server.cli.audit import audit_log, not_written
from warpdesk_server.cli.environment import read


def add(keys: Subcommands) -> None:
    ledger = keys.add_parser(
        "rotate-ledger",
        help="give the ledger a new key and wrap the seeds of open charges with it",
        description="The key file becomes a ring: the newest key wraps, those before it still open, the first one keys "
        "digests for ever. Processes that run read the file again by themselves. Where other hosts have a copy, make "
        "the ring with --to, copy it to the workers' hosts, then to the API's, then run --rewrap.",
    )
    how = ledger.add_mutually_exclusive_group()
    how.add_argument("--to", type=Path, metavar="FILE", help="write the new ring there, and change nothing")
    how.add_argument("--rewrap", action="store_true", help="make no key, wrap what is open with the newest")
    ledger.set_defaults(run=_rotate_ledger)


def _rotate_ledger(chosen: argparse.Namespace) -> int:
    from warpdesk_server.app.access.audit import AuditEntry, AuditUnavailable, user
    from warpdesk_server.app.settings import Settings
    from warpdesk_server.privacy.opening import LEDGER_ERRORS, open_ledger
    from warpdesk_server.privacy.seeds import Ring

    settings = read(Settings)
    path = settings.ledger_key_path
    try:
        if not path.exists():
            return fail(f"there is no key {path}: the service makes one at its first start")
        ring = Ring(path)
        if chosen.to is not None:
            if os.path.lexists(chosen.to):
                return fail(f"{chosen.to} exists: the new keys are written to a new file, and none is replaced")
            with audit_log(settings).record(AuditEntry(user(), "keys rotate-ledger --to", str(chosen.to))):
                ring.grow(chosen.to, forget=False)
            print(f"{chosen.to} has a new key: copy it to {path} of the workers' hosts first, then of the API's")
            return 0
        books = open_ledger(settings.ledger_place)
        try:
            with audit_log(settings).record(AuditEntry(user(), "keys rotate-ledger", str(path))):
                wrapped = books.charges.rewrap()  # after it no seed needs a key but the first and the newest
                if not chosen.rewrap:
                    ring.grow(path, forget=True)
                    wrapped = books.charges.rewrap()
        finally:
            books.dispose()
    except (AuditUnavailable, *LEDGER_ERRORS) as error:
        return fail(str(error))
    except OSError as error:
        return fail(not_written(error))
    print(f"{wrapped} seeds of open charges are wrapped with the newest key of {path}")
    return 0
