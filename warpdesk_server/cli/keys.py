"""`warpdesk keys`: create, list, rotate or revoke API keys, or let a service start without keys."""

import argparse
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from warpdesk.cli.command import Subcommands, fail
from warpdesk_server.cli import rotate_ledger
from warpdesk_server.cli.audit import audit_log, not_written
from warpdesk_server.cli.environment import read

if TYPE_CHECKING:
    from warpdesk_server.app.access.audit import AuditEntry
    from warpdesk_server.app.settings import Settings


_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def add(commands: Subcommands) -> None:
    keys = commands.add_parser("keys", help="create, list, rotate or revoke keys, or serve without").add_subparsers(
        required=True, metavar="ACTION"
    )
    create = keys.add_parser("create", help="create a key and print it, once")
    create.add_argument("name", help="whose it is")
    create.add_argument(
        "--scopes",
        default="submit,read,cancel",
        help="of submit, realtime (to submit with that priority), read, cancel, metrics (what the service does for "
        "all keys), admin (all of these and more); or worker alone (default: %(default)s)",
    )
    create.set_defaults(run=_create_key)
    keys.add_parser("list", help="list the keys").set_defaults(run=_list_keys)
    rotate = keys.add_parser(
        "rotate",
        help="give a key a new token and print it, once",
        description="The key keeps its id, so its jobs, arrays, rounds and charges stay its own. Until the overlap is "
        "over both tokens are taken. A running service knows the new one at once.",
    )
    rotate.add_argument("key", help="its id, or its name if no other key has that")
    rotate.add_argument(
        "--overlap",
        type=_duration,
        default="24h",
        metavar="TIME",
        help="for how long the tokens before are taken: 90s, 30m, 24h, 7d, 0s (default: %(default)s)",
    )
    rotate.set_defaults(run=_rotate_key)
    rotate_ledger.add(keys)
    revoke = keys.add_parser("revoke", help="revoke a key with all its tokens")
    revoke.add_argument("key", help="its id, or its name if no other key has that")
    revoke.set_defaults(run=_revoke_key)
    keys.add_parser(
        "open",
        help="let the service start without keys again",
        description="A service that ever had keys does not start without its key file. This removes a key file "
        "that has no key left, and the note that there were keys. From the next start whoever connects from this "
        "machine as the service's user is admin.",
    ).set_defaults(run=_open_service)


def _create_key(chosen: argparse.Namespace) -> int:
    from warpdesk_server.app.access.keys import create_key
    from warpdesk_server.app.settings import Settings

    settings = read(Settings)

    def create(entry: "AuditEntry") -> str:
        token = create_key(settings.home, chosen.name, chosen.scopes.split(","), file=settings.keys_path)
        entry.target = token.split("_")[1]
        return token

    return _show_token(settings, f"keys create {chosen.scopes}", None, create)


def _rotate_key(chosen: argparse.Namespace) -> int:
    from warpdesk_server.app.access.keys import UnknownKey, UnusableKeys, rotate_key
    from warpdesk_server.app.settings import Settings

    settings = read(Settings)
    action = f"keys rotate --overlap {chosen.overlap:g}s"
    try:
        key = _id_of(settings, chosen.key)
    except (UnknownKey, UnusableKeys) as error:
        return fail(str(error))
    return _show_token(settings, action, key, lambda _: rotate_key(settings.keys_path, key, chosen.overlap))


def _id_of(settings: "Settings", text: str) -> str:
    """The id of the key that has this id or, alone, this name. Raises UnknownKey, and UnusableKeys."""
    from warpdesk_server.app.access.keys import UnknownKey, read_keys

    keys = read_keys(settings.keys_path)
    named = [key.id for key in keys.values() if key.name == text]
    if text in keys or not named:
        return text  # what there is not is refused where it is looked for
    if len(named) > 1:
        raise UnknownKey(f"{len(named)} keys are named {text!r}: {', '.join(named)}; give an id")
    return named[0]


def _show_token(settings: "Settings", action: str, target: str | None, make: "Callable[[AuditEntry], str]") -> int:
    from warpdesk_server.app.access.audit import AuditEntry, AuditUnavailable, user
    from warpdesk_server.app.access.keys import UnknownKey, UnusableKeys

    try:
        with audit_log(settings).record(AuditEntry(user(), action, target)) as entry:
            token = make(entry)
    except (AuditUnavailable, UnusableKeys, UnknownKey, ValueError) as error:
        return fail(str(error))
    except OSError as error:
        return fail(not_written(error))
    print(token)
    print("Keep it: it is stored as a hash and shown only now. Send it as `Authorization: Bearer …`.", file=sys.stderr)
    return 0


def _list_keys(_: argparse.Namespace) -> int:
    from warpdesk_server.app.access.keys import UnusableKeys, read_keys
    from warpdesk_server.app.settings import Settings

    try:
        keys = read_keys(read(Settings).keys_path)
    except UnusableKeys as error:
        return fail(str(error))
    for key in keys.values():
        created = datetime.fromtimestamp(key.created_at, UTC)
        print(f"{key.id}  {created:%Y-%m-%d}  {','.join(key.scopes):<20}  {key.name}")
        for one in key.earlier:
            until = datetime.fromtimestamp(one.expires_at, UTC)
            ends = "expires" if one.expires_at > time.time() else "expired"
            print(f"{'':<12}  an earlier token {ends} {until:%Y-%m-%d %H:%M} UTC")
    return 0


def _revoke_key(chosen: argparse.Namespace) -> int:
    from warpdesk_server.app.access.audit import AuditEntry, AuditUnavailable, user
    from warpdesk_server.app.access.keys import UnknownKey, UnusableKeys, revoke_key
    from warpdesk_server.app.settings import Settings

    settings = read(Settings)
    try:
        key = _id_of(settings, chosen.key)
        with audit_log(settings).record(AuditEntry(user(), "keys revoke", key)):
            if not revoke_key(settings.keys_path, key):
                raise UnknownKey(f"there is no key {chosen.key}")
    except (AuditUnavailable, UnusableKeys, UnknownKey) as error:
        return fail(str(error))
    except OSError as error:
        return fail(not_written(error))
    return 0


def _open_service(_: argparse.Namespace) -> int:
    from warpdesk_server.app.access.audit import AuditEntry, AuditUnavailable, user
    from warpdesk_server.app.access.keys import UnusableKeys, serve_without_keys
    from warpdesk_server.app.settings import Settings

    settings = read(Settings)
    try:
        with audit_log(settings).record(AuditEntry(user(), "keys open", str(settings.keys_path))):
            serve_without_keys(settings.keys_path, settings.home)
    except (AuditUnavailable, UnusableKeys) as error:
        return fail(str(error))
    except OSError as error:
        return fail(not_written(error))
    print("From its next start the service serves its own user on this machine, and nobody else, without keys")
    return 0


def _duration(text: str) -> float:
    """Parse a duration in the command line of `warpdesk keys` to seconds."""
    number, unit = text[:-1], text[-1:]
    if not number.isdecimal() or unit not in _UNITS or int(number) * _UNITS[unit] > 366 * _UNITS["d"]:
        raise argparse.ArgumentTypeError(f"{text!r} is no time of a year at most, such as 90s, 30m, 24h or 7d")
    return float(int(number) * _UNITS[unit])
