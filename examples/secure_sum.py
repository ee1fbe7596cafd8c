"""Ten desks learn their joint position in twenty stocks, and nobody a single desk's, though two of them die on the way.

    python -m examples.secure_sum            # beside a running service (make run), or one at --url
    python -m examples.secure_sum --serve    # starts a service of its own

Each desk is a process of its own. One is killed before it sends its masked vector, and is left out of the sum; one is
killed after that, and counts. The service learns the sum and no desk's position.
"""

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from examples.demo import position
from examples.prices import stocks
from examples.serving import ROOT, serving
from warpdesk import Client, secagg
from warpdesk.client import RoundResult

DESKS = 10
DIES_BEFORE, DIES_AFTER = 3, 7  # before its masked vector is sent, and after
WHOLE_SHARES = secagg.Quantisation(clip="1000000", scale="1")


def main(arguments: Sequence[str] | None = None) -> RoundResult:
    """Run a round with ten processes; print the sum beside the plain one."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--url", help="of the service; default: WARPDESK_URL or http://127.0.0.1:8000")
    parser.add_argument("--serve", action="store_true", help="start a service for it")
    parser.add_argument("--patience", type=float, default=10.0, help="seconds that the others wait for a dead desk")
    parser.add_argument("--desk", type=int, help=argparse.SUPPRESS)  # this process is one of the ten
    chosen = parser.parse_args(arguments)
    if chosen.desk is not None:
        take_part(chosen.desk, chosen.url, token=sys.stdin.readline().strip())
        raise SystemExit
    if chosen.serve:
        with serving() as url:
            return run(url, chosen.patience)
    return run(chosen.url, chosen.patience)


def take_part(desk: int, url: str | None, token: str) -> None:
    """What a client does, in full. Two of them die."""
    _, _, closes = stocks()
    with secagg.join(url, token) as member:
        member.publish_keys()
        member.send_shares()
        if desk == DIES_BEFORE:
            os.kill(os.getpid(), signal.SIGKILL)
        member.send_vector(position(closes, months=desk + 1))
        if desk == DIES_AFTER:
            os.kill(os.getpid(), signal.SIGKILL)
        member.unmask()


def run(url: str | None, patience: float) -> RoundResult:
    """Make the round, start the desks, fetch the sum."""
    _, symbols, closes = stocks()
    with Client(url) as client:
        made = client.secagg_round(
            clients=DESKS,
            dimension=len(symbols),
            quantisation=WHOLE_SHARES,
            output="int",
            deadlines={"keys_s": 60, "shares_s": 60, "masked_s": patience, "unmask_s": patience},
        )
        desks = [_start(desk, token, url) for desk, token in enumerate(made.tokens)]
        result = client.secagg_result(made, timeout=180)
        ends = [process.wait(60) for process in desks]
    plain = sum(np.rint(position(closes, months=desk + 1)).astype(np.int64) for desk in result.survivors)
    print(f"killed: desks {[desk for desk, end in enumerate(ends) if end == -signal.SIGKILL]}")
    print(f"in the sum: desks {result.survivors}; dropped out: {result.dropped}\n")
    print(f"{'':6} {'secure sum':>12} {'plain sum':>12}  shares")
    for symbol, one, other in zip(symbols, result.sum, plain, strict=True):
        print(f"{symbol:6} {one:>+12,d} {other:>+12,d}")
    print(f"\n{'equal' if np.array_equal(result.sum, plain) else 'DIFFERENT'}. {result.statement}")
    return result


def _start(desk: int, token: str, url: str | None) -> "subprocess.Popen[str]":
    """The token goes through a pipe: everybody on the machine can read a command line."""
    command = [sys.executable, "-m", "examples.secure_sum", "--desk", str(desk), *(["--url", url] if url else [])]
    process = subprocess.Popen(command, cwd=Path(ROOT), stdin=subprocess.PIPE, text=True)
    with process.stdin as pipe:
        pipe.write(f"{token}\n")
    return process


if __name__ == "__main__":
    main()
