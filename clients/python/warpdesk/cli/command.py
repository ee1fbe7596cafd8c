"""The parts that all commands share: their exit codes, and how a command says that it failed."""

import argparse
import sys
from typing import TypeAlias

Subcommands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

INTERRUPTED = 130  # the exit code of what Ctrl-C ended, as shells count


class Misconfigured(Exception):
    """An environment variable of ours holds what cannot be used, or options contradict each other; the message says."""


def fail(sentence: str) -> int:
    """Print why the command failed; returns its exit code."""
    print(f"warpdesk: {sentence}", file=sys.stderr)
    return 1
