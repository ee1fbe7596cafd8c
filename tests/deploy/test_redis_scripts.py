"""Workers may load no script, and a service heals where Redis lost its scripts or one of them does not end."""

import gc
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.app.conftest import live
from tests.deploy.redis_of_deploy import Secured, secured_redis
from tests.redis_servers import KINDS, server
from tests.waiting import wait_until
from tests.workers.conftest import Desk
from tests.workers.operations import OPERATIONS
from warpdesk.models import State
from warpdesk_server.app.jobs import watchdog
from warpdesk_server.workers.parent.redis_retry import RetryUntilStopped, StoppableBackoff
from warpdesk_server.workers.queue import lua, scripts
from warpdesk_server.workers.queue.jobs import JobQueue, connect
from warpdesk_server.workers.queue.records import Claim
from warpdesk_server.workers.store.spool import SpoolStore

DOUBLE: dict[str, Any] = {"operation": "double", "inputs": {"values": {"data": [1.0]}}}


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Secured]:
    folder = tmp_path / "redis"
    folder.mkdir()
    with secured_redis(folder) as made:
        yield made


@pytest.fixture(params=KINDS)
def each(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Secured]:
    """Each server there is, with little patience for scripts that do not end."""
    monkeypatch.setattr(watchdog, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(watchdog, "BUSY_SECONDS", 0.4)
    folder = tmp_path / "redis"
    folder.mkdir()
    with secured_redis(folder, binary=server(request.param)) as made:
        with made.client("operator") as operator:
            operator.config_set("lua-time-limit", 20)
        yield made


@pytest.fixture
def desk(secured: Secured, tmp_path: Path) -> Iterator[Desk]:
    """Nobody here may load a script: neither the workers nor who looks at them."""
    with connect(secured.url("worker")) as connection:
        store = SpoolStore(tmp_path / "store")
        made = Desk(secured.url("worker"), tmp_path, JobQueue(connection, store.mac_of), store)
        yield made
        made.close()


def test_a_worker_waits_for_an_api_that_loads_the_scripts(desk: Desk, secured: Secured, tmp_path: Path) -> None:
    with pytest.raises(redis.ConnectionError, match="an API process of this release has to load it"):
        desk.queue.claim(Claim("w1"))
    desk.start_worker(ready=False)
    desk.until(lambda: "Redis lacks a script" in desk.log(), "no worker missed a script")
    with live(tmp_path, secured.url("api"), OPERATIONS) as api:
        assert desk.wait(api.submit(**DOUBLE)).state is State.SUCCEEDED


def test_a_restart_of_redis_heals_although_only_a_worker_is_busy(desk: Desk, secured: Secured, tmp_path: Path) -> None:
    with live(tmp_path, secured.url("api"), OPERATIONS) as api:
        desk.start_worker()
        with desk.gate() as gate:
            params = {"seconds": 0.0, "marker": str(desk.marker()), "gate": gate}
            napping = api.submit(operation="nap", params=params)
            desk.napping(desk.marker())
            secured.kill()
            secured.start()
        assert desk.wait(napping).state is State.SUCCEEDED
        assert desk.wait(api.submit(**DOUBLE)).state is State.SUCCEEDED


def test_one_script_that_is_missing_is_loaded_though_nobody_calls_it(each: Secured, tmp_path: Path) -> None:
    with live(tmp_path, each.url("api"), OPERATIONS), each.client("operator") as operator:
        wait_until(lambda: not lua.missing(operator))
        with operator.pipeline() as pipe:  # in one step: whoever looked in between would load all
            pipe.script_flush()
            for script in scripts.SCRIPTS:
                if script is not scripts.ERASE:
                    pipe.script_load(script)
            pipe.execute()
        wait_until(lambda: not lua.missing(operator))


def runaway(secured: Secured, script: str) -> Future[Any]:
    """Send it as `api`; returns once Redis refuses others or has ended it, with what will become of the call."""
    with secured.client("api") as connection:
        digest = connection.script_load(script)
    ends: Future[Any] = Future()

    def run() -> None:
        with secured.client("api") as connection:
            try:
                ends.set_result(connection.evalsha(digest, 0))
            except redis.RedisError as error:
                ends.set_exception(error)

    threading.Thread(target=run).start()
    with secured.client("operator") as operator:

        def refused() -> bool:
            try:
                return not operator.ping()
            except redis.ResponseError as error:
                return str(error).startswith("BUSY")

        wait_until(lambda: ends.done() or refused())  # the API may have been quicker
    return ends


def test_a_script_that_does_not_end_is_ended_by_the_api_and_workers_wait_for_that(
    each: Secured, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with live(tmp_path, each.url("api"), OPERATIONS) as api:
        ends = runaway(each, "while true do end")
        with connect(each.url("worker"), RetryUntilStopped(StoppableBackoff())) as connection:
            assert JobQueue(connection).claim(Claim("w1")) is None
        with pytest.raises(redis.ResponseError, match="killed by user"):
            ends.result(60)
        wait_until(lambda: "it was ended by SCRIPT KILL" in caplog.text)
        assert api.http.post("/v1/jobs", json=DOUBLE).status_code == 202


# Python's ssl leaves a socket open that is reset between its connect and its handshake, as one to a Redis that ends.
@pytest.mark.filterwarnings("ignore:Exception ignored in. <ssl.SSLSocket:pytest.PytestUnraisableExceptionWarning")
def test_where_a_script_has_written_the_log_says_what_to_do_and_that_keeps_the_jobs(
    each: Secured, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with live(tmp_path, each.url("api"), OPERATIONS) as api:
        job = api.submit(**DOUBLE)
        with caplog.at_level(logging.ERROR, "warpdesk.api"):
            ends = runaway(each, "redis.call('set', 'warpdesk:probe', 'half') while true do end")
            wait_until(lambda: "run SHUTDOWN NOSAVE as `operator`" in caplog.text)
        with each.client("operator") as operator:
            operator.shutdown(nosave=True)
        assert isinstance(ends.exception(60), redis.RedisError)
        each.kill()
        each.start()
        wait_until(lambda: api.http.get(f"/v1/jobs/{job}").status_code == 200)
        with each.client("operator") as operator:
            assert operator.get("warpdesk:probe") != b"half"
    gc.collect()  # here, not in the next test


def test_an_api_that_may_not_load_scripts_says_what_it_lacks(
    secured: Secured, caplog: pytest.LogCaptureFixture
) -> None:
    with secured.client("operator") as operator:
        operator.execute_command("ACL", "SETUSER", "api", "-script")  # 6.2 takes no "-script|load"
    dog = watchdog.Watchdog(secured.url("api"), 10.0)
    dog.look()
    dog.close()
    assert "give the API's account the line `user api` of deploy/redis/users.acl" in caplog.text
