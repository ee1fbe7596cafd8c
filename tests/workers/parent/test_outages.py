"""A worker without Redis: before it is there, while it is away, when it comes back."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.workers.conftest import Desk, alive
from warpdesk.models import State
from warpdesk_server.service.redis_server import RedisServer
from warpdesk_server.workers.queue.jobs import JobQueue, connect
from warpdesk_server.workers.store.spool import SpoolStore


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    """This test's own Redis, which comes and goes."""
    server = RedisServer(tmp_path / "r")
    yield server
    server.stop()


@pytest.fixture
def away(server: RedisServer, tmp_path: Path) -> Iterator[Desk]:
    """A desk at that Redis, which is not there yet."""
    connection = connect(server.url)
    store = SpoolStore(tmp_path / "store")
    desk = Desk(server.url, tmp_path, JobQueue(connection, store.mac_of), store)
    yield desk
    desk.close()
    connection.close()


def test_a_worker_waits_for_a_redis_that_is_not_there_yet(away: Desk, server: RedisServer) -> None:
    away.start_worker(ready=False)
    away.until(lambda: "does not answer" in away.log(), "the worker did not miss Redis")
    server.start()
    assert away.doubled(away.wait(away.submit())) == [2.0, 4.0, 6.0]


def test_a_worker_that_waits_for_redis_can_be_stopped(away: Desk) -> None:
    away.start_worker(ready=False)
    away.until(lambda: "does not answer" in away.log(), "the worker did not miss Redis")
    away.workers[0].terminate()
    assert away.workers[0].wait(20) == 0


@pytest.mark.parametrize("end", ["stopped", "killed"])
def test_a_result_is_delivered_when_redis_comes_back(away: Desk, server: RedisServer, end: str) -> None:
    server.start()
    away.start_worker()
    with away.gate() as gate:
        job_id, _ = away.nap(gate=gate)
        time.sleep(1.1 if end == "killed" else 0)  # the append-only file is written once a second
        if end == "killed":
            assert server.pid is not None
            os.kill(server.pid, signal.SIGKILL)
        server.stop()
    away.until(lambda: any(Path(away.home, "store", "results").glob("*/result.json")) or None, "no result")
    time.sleep(1.0)
    server.start()
    record = away.wait(job_id)
    assert (record.state, record.attempt) == (State.SUCCEEDED, 1)
    assert away.workers[0].poll() is None
    assert away.doubled(away.wait(away.submit())) == [2.0, 4.0, 6.0]
    away.until(lambda: away.queue.workers(), "the worker does not report")


def test_an_idle_worker_survives_an_outage_and_hears_cancels_again(away: Desk, server: RedisServer) -> None:
    server.start()
    away.start_worker()
    server.stop()
    time.sleep(2.0)
    server.start()
    job_id, child = away.nap()
    away.queue.cancel(job_id)
    away.until(lambda: not alive(child), "the child lives")
    assert away.workers[0].poll() is None


@pytest.mark.parametrize(
    ("refuse", "take"),
    [
        ("CONFIG SET maxmemory 1mb", "CONFIG SET maxmemory 0"),
        ("CONFIG SET min-replicas-to-write 1", "CONFIG SET min-replicas-to-write 0"),
        ("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE"),
    ],
)
def test_a_worker_whose_redis_takes_no_writes_for_a_while_waits_and_delivers(
    away: Desk, server: RedisServer, refuse: str, take: str
) -> None:
    server.start()
    away.start_worker()
    with connect(server.url) as connection:
        with away.gate() as gate:
            job_id, _ = away.nap(gate=gate)
            waiting = away.submit()
            connection.execute_command(*refuse.split())
        away.until(lambda: "or refuses" in away.log(), "it was not refused")
        connection.execute_command(*take.split())
    record = away.wait(job_id)
    assert (record.state, record.attempt) == (State.SUCCEEDED, 1)
    assert away.wait(waiting).state is State.SUCCEEDED
    assert away.workers[0].poll() is None


def test_a_redis_that_is_full_takes_results(away: Desk, server: RedisServer) -> None:
    server.start()
    away.start_worker()
    with connect(server.url) as connection:
        with away.gate() as gate:
            job_id, _ = away.nap(gate=gate)
            connection.config_set("maxmemory", "1mb")
        assert away.wait(job_id).state is State.SUCCEEDED
