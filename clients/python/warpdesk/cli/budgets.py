"""`warpdesk budgets`: what privacy budgets have spent, their chains of charges, and whether these hold."""

import argparse
from typing import TYPE_CHECKING, Any

from warpdesk.cli.asking import add_service, pages, print_fields, print_json, print_table
from warpdesk.cli.command import Subcommands, fail

if TYPE_CHECKING:
    from warpdesk.client import Client


def add(commands: Subcommands) -> None:
    budgets = commands.add_parser("budgets", help="what privacy budgets have spent, and their chains").add_subparsers(
        required=True, metavar="ACTION"
    )
    listed = budgets.add_parser("list", help="list all budgets: for administrators")
    listed.add_argument("--limit", type=int, default=100, metavar="N", help="at most so many (default: %(default)s)")
    add_service(listed, _list)
    for action, what, run in (
        ("show", "show what a budget has spent and what remains", _show),
        ("history", "list a budget's charges", _history),
        ("verify", "check a budget's whole chain: exit code 1 if it does not hold", _verify),
        ("close", "close a budget: nothing more is charged to it; for administrators", _close),
    ):
        command = budgets.add_parser(action, help=what)
        command.add_argument("budget", help="its id")
        add_service(command, run)


def _list(client: "Client", chosen: argparse.Namespace) -> int:
    found = pages(client, "/v1/budgets?limit=200", "budgets", chosen.limit)
    if chosen.json:
        print_json(found)
        return 0
    rows = [
        [each["id"], each["dataset"], each["state"], _amounts(each["spent"]), _amounts(each["total"]), each["entries"]]
        for each in found
    ]
    print_table(["budget", "dataset", "state", "spent", "of", "entries"], rows, "There are no budgets.")
    return 0


def _amounts(amounts: dict[str, str | None]) -> str:
    return ", ".join(f"{name} {value}" for name, value in amounts.items() if value is not None)


def _show(client: "Client", chosen: argparse.Namespace) -> int:
    return _print(client.call("GET", f"/v1/budgets/{chosen.budget}"), chosen)


def _print(found: dict[str, Any], chosen: argparse.Namespace) -> int:
    if chosen.json:
        print_json(found)
    else:
        amounts = {name: _amounts(found[name]) for name in ("total", "spent", "remaining") if name in found}
        print_fields(found | amounts)
    return 0


def _history(client: "Client", chosen: argparse.Namespace) -> int:
    found = pages(client, f"/v1/budgets/{chosen.budget}/history?limit=1000", "entries", 1_000_000)
    if chosen.json:
        print_json(found)
        return 0
    rows = [
        [
            each["number"],
            each["at"],
            each["kind"],
            _amounts(each["amounts"]),
            each["operation"] or "",
            each["job"] or "",
        ]
        for each in found
    ]
    print_table(["number", "at", "kind", "amounts", "operation", "job"], rows, "Nothing was charged to it.")
    return 0


def _verify(client: "Client", chosen: argparse.Namespace) -> int:
    verdict = client.call("GET", f"/v1/budgets/{chosen.budget}/verify")
    if chosen.json:
        print_json(verdict)
    elif verdict["valid"]:
        print(f"All {verdict['entries']} entries hold; the head is {verdict['head']}")
    else:
        return fail(f"entry {verdict['first_bad']} does not hold: {verdict['reason']}")
    return 0 if verdict["valid"] else 1


def _close(client: "Client", chosen: argparse.Namespace) -> int:
    return _print(client.call("POST", f"/v1/budgets/{chosen.budget}/close"), chosen)
