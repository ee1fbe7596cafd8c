"""Shared parts of the commands that talk to a service: its address, errors as sentences, tables, times."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from warpdesk.cli.command import INTERRUPTED, fail

if TYPE_CHECKING:
    from warpdesk.client import Client

Command = Callable[["Client", argparse.Namespace], int]


def add_service(command: argparse.ArgumentParser, run: Command) -> None:
    """Give a command the options of the service that it talks to, and the function that runs it."""
    command.add_argument("--url", help="the service (default: WARPDESK_URL or http://127.0.0.1:8000)")
    command.add_argument("--json", action="store_true", help="print what the service answers as JSON")
    command.set_defaults(run=lambda chosen: run_with_client(chosen, run))


def run_with_client(chosen: argparse.Namespace, run: Command) -> int:
    """Run a command with a client of the service; returns its exit code. Errors are printed as sentences."""
    from warpdesk.client import Client, Unreachable, WarpdeskError

    try:
        with Client(chosen.url) as client:
            return run(client, chosen)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # as of `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Unreachable as error:
        return fail(f"{error}; is `warpdesk serve` running there? Another address is named by --url or WARPDESK_URL")
    except WarpdeskError as error:
        return fail(with_key_hint(error))
    except (OSError, ValueError) as error:
        return fail(str(error))


def with_key_hint(error: Exception) -> str:
    """The sentence of a refusal, with the variable to set if the service wants an API key."""
    from warpdesk.client import Unauthorized

    if not isinstance(error, Unauthorized) or error.status != 401:
        return str(error)
    if os.environ.get("WARPDESK_API_KEY"):
        return f"{error}; the key comes from WARPDESK_API_KEY"
    return f"{error}; set WARPDESK_API_KEY to a key: `warpdesk keys create NAME` on the service's machine makes one"


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=1))


def print_table(header: Sequence[str], rows: Sequence[Sequence[Any]], empty: str) -> None:
    """Print rows under a header in aligned columns; the sentence `empty` to stderr if there are none."""
    if not rows:
        print(empty, file=sys.stderr)
        return
    texts = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[place]) for row in texts) for place in range(len(header))]
    for row in texts:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def print_fields(fields: Mapping[str, Any]) -> None:
    """Print names and values, one a line; what is None is left out."""
    for name, value in fields.items():
        if value is not None:
            print(f"{name:<20} {value if isinstance(value, str) else json.dumps(value)}")


def since(text: str | None) -> str:
    """How long ago a time of the service's JSON is, in the largest whole unit."""
    if text is None:
        return "-"
    seconds = max(0.0, (datetime.now(UTC) - datetime.fromisoformat(text)).total_seconds())
    for unit, length in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{seconds // length:.0f}{unit}"
    return f"{seconds:.0f}s"


def pages(client: "Client", path: str, field: str, limit: int) -> list[dict[str, Any]]:
    """The first `limit` entries of a list of the service, page by page."""
    found: list[dict[str, Any]] = []
    place: str | None = path
    while place is not None and len(found) < limit:
        page = client.call("GET", place)
        found += page[field]
        place = page["next"]
    return found[:limit]
