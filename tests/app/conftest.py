"""A live API (uvicorn, real HTTP, real Redis, real files) without workers."""

import itertools
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import uvicorn

from tests.app.computations import COMPUTATIONS
from tests.conftest import emptied, free_port, redis_of_its_own
from tests.waiting import wait_until
from warpdesk_server.app.http.reception import reception
from warpdesk_server.app.jobs.throughput import ThroughputEstimate
from warpdesk_server.app.main import create_app
from warpdesk_server.app.settings import Settings
from warpdesk_server.kernels.operation import Computation
from warpdesk_server.workers.queue.jobs import JobQueue, connect
from warpdesk_server.workers.store.protocol import Store
from warpdesk_server.workers.store.spool import SpoolStore

# A submission whose result is an array and a number.
SCALE = {"operation": "scale", "params": {"factor": 2.0}, "inputs": {"values": {"data": [1.0, None, 3.0]}}}

_factors = itertools.count(3)


def unlike() -> dict[str, Any]:
    """A `SCALE` with a factor of its own. Equal jobs that are not done yet would be computed once."""
    return {**SCALE, "params": {"factor": float(next(_factors))}}


@dataclass(frozen=True)
class Live:
    """A running API, with the queue and the store that a worker of it would use."""

    http: httpx.Client
    url: str
    app: Any
    queue: JobQueue
    store: Store
    settings: Settings
    redis_url: str

    def queued(self) -> tuple[int, list[bytes]]:
        """The queue's length and every job key in Redis."""
        with connect(self.redis_url) as redis:
            return self.queue.length(), sorted([*redis.keys("warpdesk:job*"), *redis.keys("rq:job*")])

    def submit(self, **body: Any) -> str:
        answer = self.http.post("/v1/jobs", json=body)
        assert answer.status_code == 202, answer.text
        job_id: str = answer.json()["id"]
        return job_id

    def await_metrics(self, *lines: str) -> None:
        """Wait until the page of metrics has the lines: it leaves out what a busy Redis has not told in time."""
        pages = [""]

        def shown() -> bool:
            pages[0] = self.http.get("/metrics").text
            return all(line in pages[0] for line in lines)

        wait_until(shown, lambda: f"there is no {next(line for line in lines if line not in pages[0])} in {pages[0]}")


@contextmanager
def live(
    home: Path, redis_url: str, operations: Mapping[str, Computation] = COMPUTATIONS, **settings: Any
) -> Iterator[Live]:
    """Serve the API in a thread of this process. It waits 30 s for Redis, because the machine may be busy."""
    port = free_port()
    chosen = Settings(home=home, redis_url=redis_url, **{"redis_patience": 30.0, **settings})
    app = create_app(chosen, operations)
    # log_config=None: uvicorn's own configuration closes every log handler of the process. Where a test imported absl,
    # which dp-accounting brings, its handler closes its stream too, and that stream is pytest's capture.
    config = uvicorn.Config(
        app, http=reception(chosen), port=port, log_config=None, log_level="warning", access_log=False, ws="none"
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 60
        while not server.started:
            assert thread.is_alive(), "the API ended while it started"
            assert time.monotonic() < deadline, "the API did not start within 60 seconds"
            time.sleep(0.005)
        with httpx.Client(base_url=url, timeout=30) as http, connect(redis_url) as connection:
            store = SpoolStore(chosen.store_directory)
            yield Live(http, url, app, JobQueue(connection, store.mac_of), store, chosen, redis_url)
    finally:
        server.should_exit = True
        thread.join(120)
        assert not thread.is_alive()


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """One API with small limits for all tests that need no settings of their own."""
    home = tmp_path_factory.mktemp("home")
    limits = {"max_body": 200_000, "max_csv": 100_000, "max_array": 1_000_000, "max_inline_numbers": 1000,
              "max_result_numbers": 500, "max_job_bytes": 100_000_000}  # fmt: skip
    with redis_of_its_own() as url, live(home, url, **limits, sweep_every=3600) as api:
        yield api


@pytest.fixture
def api(running: Live) -> Live:
    """The shared API with an empty Redis, which has not measured what the jobs of other tests took."""
    emptied(running.redis_url)
    running.app.state.services.admission.throughput = ThroughputEstimate()
    return running


@pytest.fixture
def serve_api(redis_url: str, tmp_path: Path) -> Callable[..., Any]:
    """Start an API with settings of its own: `with serve_api(max_queue=1) as api`."""
    return lambda url=redis_url, **settings: live(tmp_path / "home", url, **settings)


@contextmanager
def connected(api: Live) -> Iterator[socket.socket]:
    """A connection to the API, for bytes that no client would send."""
    url = urlsplit(api.url)
    with socket.create_connection((url.hostname or "", url.port or 0), timeout=20) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield connection
