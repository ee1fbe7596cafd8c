"""Shared parts of all commands: exit codes, and the error message of a failed command."""

import argparse
import sys
from typing import TypeAlias

Subcommands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

INTERRUPTED = 130  # the exit code of what Ctrl-C ended, as shells count


class Misconfigured(Exception):
    """A WARPDESK_ environment variable is invalid, or options of the command contradict each other; the message says
    which."""


def fail(sentence: str) -> int:
    """Print why the command `warpdesk` failed; returns its exit code."""
    print(f"warpdesk: {sentence}", file=sys.stderr)
    return 1
