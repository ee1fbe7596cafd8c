"""Process identities, which stay unique when a process number is used again, and the tie of a child to its parent."""

import ctypes
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

_PR_SET_PDEATHSIG = 1  # <sys/prctl.h>


def identity(pid: int | None = None) -> str:
    """A process' identity: host, process number and start time, as "host|pid|start". No two processes share one.

    The host is the kernel's boot and the PID namespace, not only a name: containers share names and reuse numbers.
    """
    pid = os.getpid() if pid is None else pid
    return f"{_host()}|{pid}|{_started(pid)}"


def is_dead(process: str) -> bool:
    """Whether the process of this identity ran on this host and has ended. False for a process of another host."""
    host, _, rest = process.rpartition("|")[0].rpartition("|")
    pid, start = rest, process.rpartition("|")[2]
    if host != _host() or not pid.isdigit():
        return False
    return _started(int(pid)) != start


def die_with(parent: int) -> None:
    """Have Linux kill this child process when the thread of the process `parent` that started it ends."""
    tie_to(parent, signal.SIGKILL)()


def tie_to(parent: int, death: signal.Signals) -> Callable[[], None]:
    """A function that ties the child process calling it to `parent`, as `die_with` does, by the signal `death`.

    The C library is loaded here and not in that function: a child forked from a threaded process must load nothing.
    """
    prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None

    def tie() -> None:
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, death, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)  # the parent died before the line above

    return tie


def yield_to_others(*, on_gpu: bool) -> None:
    """Have this process, with all its threads, compute only where no other process wants the processor.

    With a GPU it keeps a tenth, since its answers to questions about the device have a time limit.
    """
    if sys.platform != "linux":
        return
    for entry in Path("/proc/self/task").iterdir():  # Linux has both for each thread, and new ones take after theirs
        thread = int(entry.name)
        with suppress(OSError):  # it has ended, or this system does not let it
            if on_gpu:
                os.setpriority(os.PRIO_PROCESS, thread, 10)
            else:
                os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))


def available_memory() -> int | None:
    """The bytes of memory that this machine has for new work, by Linux' own estimate; None where it does not say."""
    with suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        return 1024 * int(next(line.split()[1] for line in lines if line.startswith("MemAvailable:")))
    return None


def python() -> list[str]:
    """The command line with which a child process of Python is started, importing from where this one does.

    It has -P where this process has it: the current directory is then not imported from.
    """
    return [sys.executable, "-P"] if sys.flags.safe_path else [sys.executable]


@cache
def _host() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = Path("/proc/self/ns/pid").readlink().name
    except OSError:
        boot = namespace = ""
    return f"{socket.gethostname()} {boot} {namespace}"


def _started(pid: int) -> str:
    """A process' start time in clock ticks since boot; empty for a dead process or a zombie.

    Source: field 22 of /proc/<pid>/stat.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]
