"""The commands of a service, one module each, which the command `warpdesk` finds by an entry point."""

from warpdesk.cli.command import Subcommands
from warpdesk_server.cli import bench, doctor, health, keys, ledger, serve, warm, worker

COMMANDS = (serve, worker, doctor, health, warm, bench, keys, ledger)  # in the order of `warpdesk --help`


def add(commands: Subcommands) -> None:
    """Add every command of a service to the parser."""
    for command in COMMANDS:
        command.add(commands)
