"""A whole service whose parts can be killed, stopped and cut off: Redis, the API, workers, each a real process.

What dies is started again at once, as a supervisor does, but only while somebody calls `tend` or `pause`.
"""

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
from redis.exceptions import RedisError

from tests.cables import Cable
from tests.chaos.cluster import Cluster
from tests.chaos.history import History
from tests.chaos.proxy import Proxy
from tests.clocks import Clock
from tests.conftest import ROOT, processes_of
from tests.waiting import wait_until
from warpdesk_server.app.access.keys import create_key
from warpdesk_server.service.processes import module, spawn
from warpdesk_server.service.redis_server import RedisServer, find_binary, socket_path
from warpdesk_server.workers.queue.jobs import JobQueue, connect
from warpdesk_server.workers.queue.keys import LEASES, job_key
from warpdesk_server.workers.queue.reports import WorkerReport

OPERATIONS = "tests.chaos.operations:OPERATIONS"
ABLE = ("ready", "busy")
START_PATIENCE = 240.0  # seconds: on an empty cache the first worker compiles
END_PATIENCE = 40.0  # seconds: a worker may drain for 20


@dataclass(eq=False)
class Part:
    """One process of the service; `asked` when it was told to end."""

    name: str
    launch: Callable[[], "subprocess.Popen[bytes]"]
    process: "subprocess.Popen[bytes]"
    requested: bool = False
    killed: bool = False

    @property
    def pid(self) -> int:
        return self.process.pid


class World:
    """Use it from one thread: processes die with the thread that started them."""

    def __init__(
        self,
        history: History,
        *,
        workers: int = 4,
        proxied: bool = False,
        clocked: bool = False,
        servers: Path | None = None,
        sources: Path = ROOT,
        cables: Sequence[Cable] = (),
    ) -> None:
        """With `clocked` every process has a clock that can be set: Redis, the API, and each worker with its child.
        With `servers`, the binary of a Redis, there are three of it, and each change is replicated. `sources` is the
        root of the release that parts run when they are started, and may be changed. With `cables` each worker is on a
        host of its own, reaches Redis and the API by its cable, and has no store."""
        self.history = history
        self.home = Path(tempfile.mkdtemp(prefix="warpdesk-test-"))
        names = ("redis", "api", *(f"worker {number + 1}" for number in range(workers)))
        self.clocks = {name: Clock(self.home / f"{name}.clock") for name in names} if clocked else {}
        binary = self.clocks["redis"].under(find_binary()) if clocked else None
        self.cluster = None if servers is None else Cluster(self.home, servers)
        self.redis = RedisServer(self.home, durability="always", binary=binary)
        self._servers: Cluster | RedisServer = self.cluster or self.redis
        self.own_exits: list[tuple[str, int]] = []  # what ended by itself, and its exit code
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=2048)
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        ends = [*(cable.here for cable in cables), *(["127.0.0.1"] * (workers + 1 - len(cables)))]
        self._proxies = [Proxy(socket_path(self.home), at=end) for end in ends if proxied or cables]
        self._cables = cables
        self._doors = [Proxy(self._listening.getsockname(), at=cable.here) for cable in cables]
        self.token = create_key(self.home, "clients", ["submit", "read", "cancel", "realtime"]) if cables else ""
        self._worker_token = create_key(self.home, "workers", ["worker"]) if cables else ""
        self._count = workers
        self.sources = sources
        self._log_sizes: dict[Path, int] = {}
        self.parts: list[Part] = []

    # Its parts.

    @property
    def workers(self) -> list[Part]:
        return [part for part in self.parts if part.name != "api"]

    @property
    def api(self) -> Part:
        return next(part for part in self.parts if part.name == "api")

    @property
    def links(self) -> list[Proxy]:
        """The network between Redis and each worker, then that between Redis and the API."""
        return self._proxies

    def able(self) -> list[tuple[Part, int]]:
        """The workers that could run a job, and the process that computes for each."""
        children = {pid: report.child_pid for pid, report in self.reports().items() if report.state in ABLE}
        found = ((worker, children.get(worker.pid)) for worker in self.workers)
        return [(worker, child) for worker, child in found if child is not None and _parent(child) == worker.pid]

    def reports(self) -> dict[int, WorkerReport]:
        """What the living workers said of late, by process."""
        return {report.pid: report for report in self.queue.workers()}

    def held(self, worker: Part) -> list[tuple[str, int]]:
        """The jobs and attempts that a worker has claimed."""
        return [(name, attempt) for name, attempt in self.claims(worker) if ":" not in name]

    def claims(self, worker: Part) -> list[tuple[str, int]]:
        """The same, with shards of jobs."""
        found = []
        for entry in self.connection.zrange(LEASES, 0, -1):  # type: ignore[union-attr]
            name, attempt = self.connection.hmget(job_key(entry.decode()), "worker", "attempt")  # type: ignore[misc]
            if name is not None and f"-{worker.pid}-" in name.decode():
                found.append((entry.decode(), int(attempt)))
        return found

    # Life.

    def start(self) -> None:
        """Start everything, and wait until it is ready."""
        try:
            self._start()
        except BaseException:
            self._stop()
            raise

    def close(self, failed: bool = False) -> None:
        """End everything; leave no process, and no file of a world that did well."""
        left = self._stop()
        if not failed:
            assert left == [], f"left behind: {left}"
            shutil.rmtree(self.home)

    def attend(self, history: History) -> None:
        """From now on this is the history of what happens."""
        self.history = history
        self.own_exits = []
        self._log_sizes = {file: file.stat().st_size for file in self.home.glob("*.log")}

    def tend(self) -> None:
        """Start again what has ended."""
        for number, part in enumerate(self.parts):
            code = part.process.poll()
            if code is None:
                continue
            if not part.killed and not part.requested:
                self.own_exits.append((part.name, code))
            self.history.add("exit", part.name, detail=f"{code}{', killed' if part.killed else ''}")
            self.parts[number] = self._launched(part.name, part.launch)

    def pause(self, seconds: float) -> None:
        """Tend for so long."""
        until = time.monotonic() + seconds
        while True:
            self.tend()
            left = until - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(0.05, left))

    def until(self, true: Callable[[], object], otherwise: str, patience: float = START_PATIENCE) -> None:
        """Tend until something is true; what Redis or the API does not say is not true."""
        wait_until(
            true,
            lambda: f"{otherwise}; the workers said:\n{self.log()[-6000:]}",
            patience,
            unknown=(RedisError, OSError, httpx.HTTPError),
            pause=self.pause,
        )

    def ready(self) -> bool:
        """Whether every worker could run a job, and the API would take one."""
        return len(self.able()) == len(self.workers) and httpx.get(f"{self.url}/readyz").status_code == 200

    def log(self, part: str = "worker") -> str:
        """What the processes of a kind said since the history began."""
        files = sorted(self.home.glob(f"{part}*.log"))
        return "".join(file.read_bytes()[self._log_sizes.get(file, 0) :].decode(errors="replace") for file in files)

    # How it starts and ends.

    def _start(self) -> None:
        self._servers.start()
        self.connection = connect(self._servers.url)
        self.queue = JobQueue(self.connection)
        for proxy in (*self._proxies, *self._doors):
            proxy.start()
        for number in range(self._count):
            environment = {
                **self._durability,
                "WARPDESK_OPERATIONS": OPERATIONS,
                "WARPDESK_DEVICE": "cpu",
                "WARPDESK_LOG_LEVEL": "info",
                "NUMBA_NUM_THREADS": "1",
                "WARPDESK_REDIS_URL": self._redis_url(number),
            }
            name, prefix = f"worker {number + 1}", ()
            if self._cables:
                environment |= {
                    "WARPDESK_API_URL": f"http://{self._cables[number].here}:{self._doors[number].port}",
                    "WARPDESK_API_KEY": self._worker_token,
                    "WARPDESK_HOME": str(self.home / f"host {number + 1}"),
                }
                prefix = ("ip", "netns", "exec", self._cables[number].namespace)
            launch = self._launcher(name, environment, "warpdesk_server.workers.parent.main", prefix=prefix)
            self.parts.append(self._launched(name, launch))
        descriptor = self._listening.fileno()
        environment = {
            **self._durability,
            "WARPDESK_REDIS_URL": self._redis_url(-1),
            "WARPDESK_SWEEP_EVERY": "1",
            "WARPDESK_MAX_LIVE_TASKS": "100",
        }
        launch = self._launcher("api", environment, "tests.chaos.api", "--fd", str(descriptor), fds=(descriptor,))
        self.parts.append(self._launched("api", launch))
        self.until(self.ready, "the service did not become ready")

    @property
    def _durability(self) -> dict[str, str]:
        return {} if self.cluster is None else {"WARPDESK_DURABILITY": "replicated"}

    def _redis_url(self, number: int) -> str:
        return self._proxies[number].url if self._proxies else self._servers.url

    def _launcher(
        self,
        name: str,
        environment: Mapping[str, str],
        *what: str,
        fds: tuple[int, ...] = (),
        prefix: tuple[str, ...] = (),
    ) -> Callable[[], "subprocess.Popen[bytes]"]:
        command, needed = module(*what)
        clean = {key: value for key, value in os.environ.items() if not key.startswith("WARPDESK_")}
        kept = {key: os.environ[key] for key in ("WARPDESK_KERNEL_CACHE",) if key in os.environ}
        clock = self.clocks[name].environment if self.clocks else {}
        environment = {**clean, **kept, **needed, "WARPDESK_HOME": str(self.home), **environment, **clock}
        environment["WARPDESK_TEST_RUN"] = str(self.home)
        log = self.home / f"{name}.log"
        return lambda: spawn([*prefix, *command], env=environment | self._path(), cwd=ROOT, log=log, pass_fds=fds)

    def _path(self) -> dict[str, str]:
        """The environment in which a part runs the sources; its own are those of this process."""
        if self.sources == ROOT:
            return {}
        return {"PYTHONPATH": f"{self.sources}{os.pathsep}{self.sources / 'clients' / 'python'}"}

    def _launched(self, name: str, launch: Callable[[], "subprocess.Popen[bytes]"]) -> Part:
        return Part(name, launch, launch())

    def _stop(self) -> list[str]:
        for part in self.parts:
            if part.process.poll() is None:
                part.process.terminate()
        deadline = time.monotonic() + END_PATIENCE
        for part in self.parts:
            try:
                part.process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                part.process.kill()
                part.process.wait()
        for proxy in (*self._proxies, *self._doors):
            proxy.stop()
        if hasattr(self, "connection"):
            self.connection.close()
        self._servers.stop()
        self._listening.close()
        deadline = time.monotonic() + 15
        while (left := processes_of(self.home)) and time.monotonic() < deadline:
            time.sleep(0.05)
        return [f"{pid} {command}" for pid, command in left.items()]


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0
