"""The command `warpdesk`: its argument parser, with the commands of installed distributions, and its main function."""

import argparse
import logging
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, entry_points, version

from warpdesk.cli import arrays, budgets, completion, datasets, jobs, operations, queue, submit
from warpdesk.cli.command import Misconfigured, fail

GROUP = "warpdesk.commands"  # of entry points: each is a function that adds commands to the parser

# What the distribution `warpdesk-server` adds.
OF_THE_SERVICE = ("serve", "worker", "doctor", "health", "warm", "bench", "keys", "ledger")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command of `warpdesk`; returns its exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments and arguments[0] in OF_THE_SERVICE and not entry_points(group=GROUP):
        fail(f"`{arguments[0]}` comes with the service, which is not installed: pip install warpdesk-server")
        return 2
    chosen = parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # httpx reports each request at this level.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    command: Callable[[argparse.Namespace], int] = chosen.run
    try:
        return command(chosen)
    except Misconfigured as error:
        fail(str(error))
        return 2


def parser() -> argparse.ArgumentParser:
    """The argument parser of `warpdesk`, with the client's commands and those of installed distributions."""
    result = argparse.ArgumentParser(prog="warpdesk", description="A self-hosted GPU compute service.")
    result.add_argument("--version", action="version", version=f"warpdesk {_version()}")
    commands = result.add_subparsers(required=True, metavar="COMMAND")
    for command in (submit, operations, jobs, arrays, datasets, budgets, queue):
        command.add(commands)
    added = entry_points(group=GROUP)
    for entry in added:
        entry.load()(commands)
    completion.add(commands, result)
    if not added:
        result.epilog = f"`pip install warpdesk-server` adds {', '.join(OF_THE_SERVICE)}."
    return result


def _version() -> str:
    try:
        return version("warpdesk")
    except PackageNotFoundError:  # run from the sources
        return "(not installed)"
