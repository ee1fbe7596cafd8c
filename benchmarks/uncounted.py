"""Run a module of the service so that it can stop counting, for `instrumentation`: `python -m benchmarks.uncounted
MODULE ...`. SIGUSR1 takes counting out, SIGUSR2 puts it back.

The lines that count are removed from the Redis scripts. A process records no metrics and sends none to Redis. The rest
is small: two times that are passed with each job, and a tuple for each request.
"""

import re
import runpy
import signal
import sys

from warpdesk_server.workers.parent import endings
from warpdesk_server.workers.queue import scripts
from warpdesk_server.workers.queue.counts import Tally, note_endings
from warpdesk_server.workers.queue.jobs import JobQueue
from warpdesk_server.workers.queue.scripts import assembly

# Calls that count, alone on their line; what is left of a function that did nothing else is empty, or never called.
_COUNTS = re.compile(
    r"^ *(?:if [^\n]* then )?"
    r"(?:pcall\(keep_counts\)|count_(?:ending|enqueued)\(|count\('|note_times\()[^\n]*\n",
    re.MULTILINE,
)


def bare_scripts() -> dict[str, str]:
    """The Redis scripts without their counting lines. Raises if a script counts in a form that is not known here."""
    found = {}
    for name, text in vars(scripts).items():
        if name.isupper() and isinstance(text, str) and "pcall(keep_counts)" in text:
            definitions, own = assembly.read(name.lower())
            found[name] = assembly.link([_COUNTS.sub("", lua) for lua in definitions], _COUNTS.sub("", f"{own}\n"))
            if "keep_counts" in found[name]:
                raise SystemExit(f"{name} still counts: {found[name][found[name].index('keep_counts') - 80 :][:160]}")
    if not {"FINISH", "ENQUEUE", "CLAIM"} <= found.keys():
        raise SystemExit(f"FINISH, ENQUEUE and CLAIM count no more, only {sorted(found)}")
    return found


def switch() -> None:
    """Install the two signal handlers in this process; its metrics are on until the first signal."""
    bare = bare_scripts()
    counting = {name: getattr(scripts, name) for name in bare}
    add, later, count = Tally.add, Tally.later, JobQueue.count

    def turn(number: int, _: object) -> None:
        on = number == signal.SIGUSR2
        for name, text in (counting if on else bare).items():
            setattr(scripts, name, text)
        vars(endings)["note_endings"] = note_endings if on else _nothing
        Tally.add, Tally.later = (add, later) if on else (_nothing, _nothing)  # type: ignore[method-assign]
        JobQueue.count = count if on else _nothing  # type: ignore[method-assign]

    signal.signal(signal.SIGUSR1, turn)
    signal.signal(signal.SIGUSR2, turn)


def _nothing(*_: object, **__: object) -> None:
    pass


if __name__ == "__main__":
    switch()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
