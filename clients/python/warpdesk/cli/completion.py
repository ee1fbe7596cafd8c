"""`warpdesk completion`: what a shell needs to complete commands and options."""

import argparse
import sys

from warpdesk.cli.command import Subcommands, fail

SHELLS = ("bash", "zsh", "tcsh")


def add(commands: Subcommands, parser: argparse.ArgumentParser) -> None:
    completion = commands.add_parser(
        "completion",
        help="print what a shell needs to complete commands and options",
        description="Print a script for a shell. For bash: warpdesk completion bash "
        ">~/.local/share/bash-completion/completions/warpdesk",
    )
    completion.add_argument("shell", choices=SHELLS)
    completion.set_defaults(run=lambda chosen: _completion(parser, chosen.shell))


def _completion(parser: argparse.ArgumentParser, shell: str) -> int:
    try:
        import shtab
    except ModuleNotFoundError:
        fail(f"completion needs shtab: {sys.executable} -m pip install shtab")
        return 2
    print(shtab.complete(parser, shell))
    return 0
