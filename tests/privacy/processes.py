"""Real processes over one ledger, forked from one that has everything imported; a test may have them killed anywhere.

A task is a list of calls of the ledger, made one after another: ["charge", number], ["claim", charge id], and so on.
A killed process ends by SIGKILL at its nth step: before each statement, before each commit, after each transaction.
"""

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

Call = list[Any]


@dataclass(frozen=True)
class Ended:
    """What a process was told by the ledger until it ended: for each call that returned, its answer, or the refusal."""

    killed: bool
    answers: list[Any]


class Processes:
    def __init__(self) -> None:
        self._parent = subprocess.Popen(
            [sys.executable, "-m", "tests.privacy.processes"],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._parent.communicate(timeout=60)
        assert self._parent.returncode == 0

    def run(
        self,
        url: str,
        key: bytes,
        tasks: Sequence[Sequence[Call]],
        die_at: int | None = None,
        anchor: str | None = None,
    ) -> list[Ended]:
        """One process for each task, all at once; with the anchor at that URL."""
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        self._parent.stdin.write(json.dumps([url, key.hex(), tasks, die_at, anchor]) + "\n")
        self._parent.stdin.flush()
        return [Ended(*ended) for ended in json.loads(self._parent.stdout.readline())]

    def one(self, url: str, key: bytes, *calls: Call, die_at: int | None = None, anchor: str | None = None) -> Ended:
        [ended] = self.run(url, key, [calls], die_at, anchor)
        return ended


def _fork(
    url: str, key: str, tasks: Sequence[Sequence[Call]], die_at: int | None, anchor: str | None
) -> list[tuple[bool, list[Any]]]:
    start, go = os.pipe()
    connected, there = os.pipe()
    children = []
    for calls in tasks:
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                os.close(go)
                _work((url, anchor), bytes.fromhex(key), calls, die_at, (there, start), writer)
                status = 0
            finally:
                os._exit(status)
        os.close(writer)
        children.append((pid, reader))
    for _ in children:
        os.read(connected, 1)
    for end in (go, start, connected, there):
        os.close(end)
    ended = []
    for pid, reader in children:
        with os.fdopen(reader) as stream:
            answers = [json.loads(line) for line in stream]
        _, status = os.waitpid(pid, 0)
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        assert killed or status == 0, f"a process ended with {status}"
        ended.append((killed, answers))
    return ended


def _work(
    place: tuple[str, str | None],
    key: bytes,
    calls: Sequence[Call],
    die_at: int | None,
    gate: tuple[int, int],
    writer: int,
) -> None:
    from warpdesk_server.privacy.anchor import Anchor
    from warpdesk_server.privacy.database import connect
    from warpdesk_server.privacy.ledger import Ledger
    from warpdesk_server.privacy.seeds import Secrets

    engines = [connect(url) for url in place if url is not None]
    anchor = Anchor(engines[1], Secrets(key), "ledger_tested") if len(engines) > 1 else None
    ledger = Ledger(engines[0], key, anchor)
    for engine in engines:
        with engine.connect():
            pass
    if die_at is not None:
        _die(engines, die_at)
    os.write(gate[0], b".")
    os.read(gate[1], 1)  # all begin together
    with os.fdopen(writer, "w", buffering=1) as answers:
        for name, *arguments in calls:
            answers.write(json.dumps(_call(ledger, name, arguments)) + "\n")


def _call(ledger: Any, name: str, arguments: list[Any]) -> Any:
    from tests.privacy import ledgers
    from warpdesk_server.privacy.charging import NoiseKey

    try:
        if name == "prepare":
            return ledger.prepare()
        if name == "charge":
            budget_id, number, epsilon = arguments
            made = ledger.charges.reserve(budget_id, ledgers.spend(epsilon), ledgers.charge_request(number))
            return [made.charge.id, made.replayed]
        if name == "claim":
            found = ledger.charges.claim(arguments[0], **ledgers.RELEASE)
            return found.key.hex() if isinstance(found, NoiseKey) else found.outcome
        if name == "release":
            return ledger.charges.release(arguments[0], arguments[1], bytes.fromhex(arguments[2])).outcome
        if name == "fail":
            return ledger.charges.fail(arguments[0], "a test")
        if name == "void":
            return ledger.charges.refund(arguments[0], "a test", forget_key=arguments[1])
    except (ValueError, LookupError) as refused:
        return {"refused": type(refused).__name__}
    raise AssertionError(name)


def _die(engines: Sequence[Any], step: int) -> None:
    from sqlalchemy import event

    steps = itertools.count(1)

    def pass_by(*_: Any, **__: Any) -> None:
        if next(steps) == step:
            os.kill(os.getpid(), signal.SIGKILL)

    for engine, point in itertools.product(engines, ("before_cursor_execute", "commit", "checkin")):
        event.listen(engine, point, pass_by)


def main() -> None:
    import tests.privacy.ledgers  # noqa: F401 - once, for all of them
    from warpdesk_server.privacy.database import connect

    for url in ("sqlite:////nowhere", "postgresql:///nowhere"):
        connect(url)  # imports what it needs, and connects to nothing

    for line in sys.stdin:
        sys.stdout.write(json.dumps(_fork(*json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
