"""What every test may ask for: a real Redis, a running service. Optional packages are imported only when asked for.

On a machine with only NumPy, Numba, pydantic and pytest this file still loads, so the kernel tests run there.
"""

import gc
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import tiers
from tests.waiting import wait_until
from warpdesk_server.kernels.fingerprint import fingerprint
from warpdesk_server.service.processes import free_port as free_port  # for tests below

if TYPE_CHECKING:
    from warpdesk import Client

ROOT = Path(__file__).resolve().parent.parent

# Before anything imports Numba: compiled code is kept between test runs, and never beside the sources.
os.environ.setdefault("NUMBA_CACHE_DIR", str(ROOT / ".cache" / "numba" / fingerprint()))
os.environ.setdefault("WARPDESK_KERNEL_CACHE", str(ROOT / ".cache" / "kernels"))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Ten thousand tests are no garbage: none is looked for meanwhile, nor among them later, a tenth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function):
            tiers.mark(item)


@dataclass(frozen=True)
class Service:
    """A `warpdesk serve` that answers: its base URL, its WARPDESK_HOME, the process and where its output goes."""

    url: str
    home: Path
    process: "subprocess.Popen[bytes]"
    log: Path


@contextmanager
def redis_of_its_own(name: str | None = None) -> Iterator[str]:
    """The URL of a real Redis that nothing else uses, for what lives longer than a test; of the server that tests run
    on, or the one of this name."""
    from tests.redis_servers import chosen, server
    from warpdesk_server.service.redis_server import RedisServer

    with (
        tempfile.TemporaryDirectory(prefix="warpdesk-test-") as home,
        RedisServer(Path(home), binary=chosen() if name is None else server(name)) as made,
    ):
        yield made.url


@pytest.fixture(scope="session")
def redis_server() -> Iterator[str]:
    """The URL of the Redis that tests share, one after another: ask for `redis_url`."""
    with redis_of_its_own() as url:
        yield url


@pytest.fixture(scope="session")
def oldest_redis() -> Iterator[str]:
    """The same of the oldest release that the service runs on, 6.2."""
    with redis_of_its_own("bundled") as url:
        yield url


@pytest.fixture
def redis_url(request: pytest.FixtureRequest) -> str:
    """The URL of a real, empty Redis; of another one than `redis_server` where a test names it as the parameter."""
    return emptied(request.getfixturevalue(getattr(request, "param", "redis_server")))


def emptied(url: str) -> str:
    """The same URL, of a Redis in which nothing is left."""
    import redis

    with redis.Redis.from_url(url, socket_timeout=5) as connection:
        connection.flushall()
    return url


@pytest.fixture(scope="session")
def service() -> Iterator[Service]:
    """A whole service (Redis, API, worker) on a free port with a home of its own; leaves no process behind."""
    home = Path(tempfile.mkdtemp(prefix="warpdesk-test-"))
    with serve(home) as running:
        yield running
    shutil.rmtree(home)


@pytest.fixture
def client(service: Service) -> "Iterator[Client]":
    """The Python client of that service."""
    from warpdesk import Client

    wait_until_ready(service)  # a test before may have killed a part of it
    with Client(service.url) as connected:
        yield connected


class serve:  # noqa: N801 (used as a verb: `with serve(home) as service`)
    """Run `warpdesk serve` as a user would, wait until it is ready, stop it and check that nothing of it is left."""

    python: str | Path = sys.executable
    cwd = ROOT

    def __init__(self, home: Path, *arguments: str, ready: bool = True, **environment: str) -> None:
        self.home = home
        self.arguments = arguments
        self.ready = ready
        self.environment = environment

    def __enter__(self) -> Service:
        from tests.redis_servers import chosen
        from tests.stand_ins import through

        port = free_port()
        log = self.home.parent / f"{self.home.name}.log"
        # Settings of the developer's shell must not reach the service under test. Unless told otherwise it is patient
        # with the Redis of a busy machine.
        clean = {name: value for name, value in os.environ.items() if not name.startswith("WARPDESK_")}
        if "TEST_REDIS" in clean:
            clean["WARPDESK_REDIS_SERVER"] = str(chosen())
        modules = (*through(self.environment), "warpdesk")
        with log.open("ab") as output:
            process = subprocess.Popen(
                [self.python, "-m", *modules, "serve", "--port", str(port), *self.arguments],
                cwd=self.cwd,
                env={
                    **clean,
                    "WARPDESK_HOME": str(self.home),
                    "WARPDESK_TEST_RUN": str(self.home),
                    "WARPDESK_REDIS_PATIENCE": "30",
                    **self.environment,
                },
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self.service = Service(f"http://127.0.0.1:{port}", self.home, process, log)
        try:
            if self.ready:
                wait_until_ready(self.service)
        except BaseException:
            self._stop()
            raise
        return self.service

    def __exit__(self, *error: object) -> None:
        left = self._stop()
        assert left == [], f"left behind: {left}; the service said:\n{self.service.log.read_text()[-4000:]}"
        self.service.log.unlink()

    def _stop(self) -> list[str]:
        process = self.service.process
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        return self._left()

    def _left(self) -> list[str]:
        # Children die by signals of the kernel when their parent is killed: that takes a moment.
        deadline = time.monotonic() + 15
        while (left := processes_of(self.home)) and time.monotonic() < deadline:
            time.sleep(0.05)
        return [f"{pid} {command}" for pid, command in left.items()]


def processes_of(run: Path) -> dict[int, str]:
    """The living processes that inherited WARPDESK_TEST_RUN=`run`, with their command lines.

    Redis writes its title over its environment; the title names the socket, which is below `run`.
    """
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
            marked = f"WARPDESK_TEST_RUN={run}".encode() in (folder / "environ").read_bytes().split(b"\0")
        except OSError:  # ended meanwhile, or someone else's
            continue
        if marked or f"unixsocket:{run}/" in command:
            found[int(folder.name)] = command
    return found


def wait_until_ready(service: Service, patience: float = 240.0, path: str = "/readyz") -> None:
    """Wait for 200 from /readyz: the API answers and a worker has run each operation once. From /livez: it answers."""
    import httpx

    answer = "no answer yet"

    def failure() -> str:
        return f"not ready: {answer}; the service said:\n{service.log.read_text()[-4000:]}"

    def ready() -> bool:
        nonlocal answer
        if service.process.poll() is not None:
            answer = f"the service ended with exit code {service.process.returncode}"
            raise AssertionError(failure())
        response = client.get(path)
        answer = f"{response.status_code} {response.text}"
        return response.status_code == 200

    with httpx.Client(base_url=service.url, timeout=5) as client:  # each client reads the machine's certificates
        wait_until(ready, failure, patience, unknown=(httpx.TransportError,))
