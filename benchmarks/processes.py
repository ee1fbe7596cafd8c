"""The server processes of the benchmarks, each with its own home: starts and stops them."""

import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx

from warpdesk_server.service.processes import free_port
from warpdesk_server.service.redis_server import RedisServer
from warpdesk_server.workers.child.warmup import stamp
from warpdesk_server.workers.settings import WorkerSettings

ROOT = Path(__file__).resolve().parent.parent


@contextmanager
def redis() -> Iterator[str]:
    """Run a Redis as the service embeds it; gives its URL."""
    with tempfile.TemporaryDirectory(prefix="warpdesk-bench-") as home, RedisServer(Path(home)) as server:
        yield server.url


@contextmanager
def service(
    redis_url: str, patience: float = 300.0, *, home: Path | None = None, files: int | None = None, **settings: str
) -> Iterator[str]:
    """Run `warpdesk serve` on that Redis ("": its own), and wait until everything is compiled; gives its URL.

    The service may open `files` files.
    """
    with ExitStack() as stack:
        if home is None:
            home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="warpdesk-bench-")))
        port, log = free_port(), home / "serve.log"
        settings = {"WARPDESK_HOME": str(home), "WARPDESK_REDIS_URL": redis_url, **settings}
        command = ["-m", "warpdesk", "serve", "--port", str(port)]
        process = stack.enter_context(_running(command, log, settings))
        if files is not None:
            resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (files, files))
        url = f"http://127.0.0.1:{port}"
        _wait(f"{url}/readyz", process, patience, log)
        compiled(WorkerSettings(), patience)
        yield url


@contextmanager
def starting(home: Path) -> Iterator[str]:
    """Run `warpdesk serve` with its own Redis in that home, and do not wait for it; gives its URL."""
    port = free_port()
    with _running(["-m", "warpdesk", "serve", "--port", str(port)], home / "serve.log", {"WARPDESK_HOME": str(home)}):
        yield f"http://127.0.0.1:{port}"


@contextmanager
def api(redis_url: str, home: Path, patience: float = 60.0, **settings: str) -> Iterator[str]:
    """Run the API alone, over a home that workers share; gives its URL."""
    port = free_port()
    settings = {"WARPDESK_HOME": str(home), "WARPDESK_REDIS_URL": redis_url, **settings}
    command = ["-m", "warpdesk", "serve", "--no-worker", "--port", str(port)]
    with _running(command, home / "api.log", settings) as process:
        _wait(f"http://127.0.0.1:{port}/livez", process, patience, home / "api.log")
        yield f"http://127.0.0.1:{port}"


@contextmanager
def worker(redis_url: str, home: Path, settings: dict[str, str], through: Sequence[str] = ()) -> Iterator[None]:
    """Run one worker in that home, started by the module `through` if given; it may not be ready yet."""
    environment = {"WARPDESK_HOME": str(home), "WARPDESK_REDIS_URL": redis_url, **settings}
    with _running(["-m", *through, "warpdesk_server.workers.parent.main"], home / "worker.log", environment):
        yield


@contextmanager
def api_process(redis_url: str, home: Path, through: Sequence[str] = (), patience: float = 60.0) -> Iterator[str]:
    """Run the API process without its supervisor, started by the module `through`; gives its URL."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        environment = {"WARPDESK_HOME": str(home), "WARPDESK_REDIS_URL": redis_url}
        command = ["-m", *through, "warpdesk_server.service.api", "--fd", str(listening.fileno())]
        with _running(command, home / "api.log", environment, (listening.fileno(),)) as process:
            url = f"http://127.0.0.1:{listening.getsockname()[1]}"
            _wait(f"{url}/livez", process, patience, home / "api.log")
            yield url


def compiled(settings: WorkerSettings, patience: float = 300.0) -> None:
    """Wait until a worker's background compiler has finished, which may be later than the worker is ready."""
    file, deadline = stamp(settings), time.monotonic() + patience
    while not file.exists():
        if time.monotonic() > deadline:
            raise SystemExit(f"there is no {file} after {patience:.0f} s")
        time.sleep(0.1)


API, PARENT, CHILD = "service.api", "workers.parent.main", "workers.child.main"  # processes, by their modules


def process_of_api(home: Path) -> int:
    """The id of the API process of the service of that home."""
    return process_of(home, API)


def process_of(home: Path, module: str) -> int:
    """The id of the first process of the service of that home that runs a module."""
    for folder in Path("/proc").iterdir():
        try:
            command, own = (folder / "cmdline").read_bytes(), (folder / "environ").read_bytes()
        except OSError:  # no process, another's, or gone
            continue
        if f"\0warpdesk_server.{module}\0".encode() in command and f"WARPDESK_HOME={home}".encode() in own.split(b"\0"):
            return int(folder.name)
    raise SystemExit(f"there is no process {module} of {home}")


def processor_seconds(process: int) -> float:
    """The processor time that a process has taken, by the kernel."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory(process: int, kind: str) -> int:
    """The memory of a process in bytes, by the kernel: VmRSS, or VmHWM for its peak."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{kind}:"))


@contextmanager
def rq_worker(redis_url: str, queue: str, kind: str) -> Iterator[None]:
    """A plain RQ worker: `kind` is rq.Worker, which forks for each job, or rq.SimpleWorker, which does not."""
    with tempfile.TemporaryDirectory(prefix="warpdesk-bench-") as home:
        command = ["-m", "rq.cli", "worker", "--url", redis_url, "--worker-class", kind, "--quiet", queue]
        with _running(command, Path(home) / "rq.log", {}):
            yield


@contextmanager
def uvicorn(factory: str) -> Iterator[str]:
    """Run another application under the service's server settings; gives its URL."""
    with tempfile.TemporaryDirectory(prefix="warpdesk-bench-") as home:
        port = free_port()
        command = ["-m", "uvicorn", factory, "--factory", "--port", str(port), "--no-access-log", "--no-server-header"]
        command += ["--log-level", "warning", "--ws", "none"]
        with _running(command, Path(home) / "uvicorn.log", {}) as process:
            url = f"http://127.0.0.1:{port}"
            _wait(f"{url}/openapi.json", process, 30.0, Path(home) / "uvicorn.log")
            yield url


@contextmanager
def _running(
    command: list[str], log: Path, settings: dict[str, str], inherited: Sequence[int] = ()
) -> Iterator["subprocess.Popen[bytes]"]:
    # As a user's shell has it: without settings, and with Python's own cache of compiled modules.
    unset = "WARPDESK_", "PYTHONDONTWRITEBYTECODE"
    clean = {name: value for name, value in os.environ.items() if not name.startswith(unset)}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, *command], cwd=ROOT, env={**clean, **settings}, stdout=output, stderr=subprocess.STDOUT,
            pass_fds=inherited,
        )  # fmt: skip
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(url: str, process: "subprocess.Popen[bytes]", patience: float, log: Path) -> None:
    deadline = time.monotonic() + patience
    answer = "no answer"
    while time.monotonic() < deadline and process.poll() is None:
        try:
            response = httpx.get(url, timeout=5)
        except httpx.TransportError as error:
            answer = repr(error)
        else:
            if response.status_code == 200:
                return
            answer = f"{response.status_code} {response.text[:500]}"
        time.sleep(0.1)
    raise SystemExit(f"{url} is not ready after {patience:.0f} s: {answer}\n{log.read_text()[-4000:]}")
