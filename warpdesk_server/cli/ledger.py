"""`warpdesk ledger`: continue after the privacy ledger was restored from a copy, or lost."""

import argparse
from contextlib import suppress

from warpdesk.cli.command import Subcommands, fail
from warpdesk_server.cli.audit import audit_log, not_written
from warpdesk_server.cli.environment import read


def add(commands: Subcommands) -> None:
    accept = commands.add_parser("ledger", help="manage the ledger of privacy budgets").add_subparsers(
        required=True, metavar="ACTION"
    )
    accept.add_parser(
        "accept",
        help="go on with a ledger that was restored from a copy, or lost",
        description="A service refuses a ledger whose database is missing, older than its anchor or another one. This "
        "command takes the database as it is. Every budget that may have been charged since is closed for ever, and is "
        "listed, in the audit log before anything is done. Stop the service before.",
    ).set_defaults(run=_accept_ledger)


def _accept_ledger(_: argparse.Namespace) -> int:
    from warpdesk_server.app.access.audit import AuditEntry, AuditUnavailable, user
    from warpdesk_server.app.settings import Settings
    from warpdesk_server.privacy.journal import LedgerBehind
    from warpdesk_server.privacy.opening import LEDGER_ERRORS, accept_database, examine

    settings = read(Settings)
    place, who = settings.ledger_place, user()
    entry = AuditEntry(who, "ledger accept", None)

    def begin(closed: list[str]) -> None:
        entry.target = ",".join(closed) or None
        audit_log(settings).begin(entry)

    try:
        with suppress(LedgerBehind):
            if (books := examine(place)) is None:
                print(f"there is no ledger in {settings.home} yet: there is nothing to accept")
                return 0
            books.dispose()
            print("the ledger fits its anchor: there is nothing to accept")
            return 0
        closed = accept_database(place, f"user {who.get('user', who['uid'])}", begin)
        audit_log(settings).end(entry, "succeeded")
    except (AuditUnavailable, *LEDGER_ERRORS) as error:
        return fail(str(error))
    except OSError as error:
        return fail(not_written(error))
    for budget in closed:
        print(f"{budget} is closed")
    print(f"the ledger's database is accepted as it is; {len(closed)} budgets were closed")
    return 0
