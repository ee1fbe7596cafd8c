"""Child processes of a service: they die with their parent, and are stopped with their whole process group."""

import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from warpdesk_server.workers.process import tie_to

_MOST_FILES = 1 << 20  # some systems allow so many that a program which loops over all of them does not end


def spawn(
    command: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    log: Path | None = None,
    pass_fds: Sequence[int] = (),
    death: signal.Signals = signal.SIGKILL,
) -> "subprocess.Popen[bytes]":
    """Start a child process of the service in a process group of its own. It gets the signal `death` when the calling
    thread ends.

    Linux ties the signal to the *thread*, so call this from a thread that lives as long as the child should (the main
    one). A group of its own keeps a terminal's Ctrl-C away from the child: its parent decides the order of stopping.
    With `log`, standard output and error are appended to that file.
    """
    output = log.open("ab") if log is not None else None
    try:
        return subprocess.Popen(
            [str(part) for part in command],
            env=dict(env) if env is not None else None,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT if output is not None else None,
            pass_fds=tuple(pass_fds),
            process_group=0,
            preexec_fn=tie_to(os.getpid(), death),
        )
    finally:
        if output is not None:
            output.close()


def module(name: str, *arguments: str) -> tuple[list[str], dict[str, str]]:
    """The command that runs a Python module of the service, and the environment variables to add.

    It runs the same code as this process, even if the working directory has a folder named `app` (hence -P).
    """
    here = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))
    return [sys.executable, "-P", "-m", name, *arguments], {"PYTHONPATH": path}


def stop(process: "subprocess.Popen[bytes]", patience: float = 10.0) -> int:
    """Stop a child process of the service: SIGTERM, SIGKILL after `patience` seconds, then kill its group; returns the
    exit code."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            process.kill()
    code = process.wait()
    # Children of the child that outlived it are still in its group.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    return code


def alive(pid: int) -> bool:
    """Whether a process of the service exists and is not a zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def free_port() -> int:
    """A TCP port of 127.0.0.1 that a service can listen on: nobody does now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def raise_file_limit() -> None:
    """Raise the HTTP server's limit of open files, which includes connections, to the most this process may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
