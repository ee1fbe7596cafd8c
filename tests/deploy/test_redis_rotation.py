"""Passwords, certificates and authorities of Redis are changed under a service that runs, and no job is lost."""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import redis

from tests.app.conftest import Live, live
from tests.deploy.redis_of_deploy import Secured, certificates, password, secured_redis
from tests.waiting import wait_until
from tests.workers.conftest import Desk
from tests.workers.operations import OPERATIONS
from warpdesk.models import State
from warpdesk_server.app.settings import Settings
from warpdesk_server.doctor.broker import broker
from warpdesk_server.workers.queue.jobs import JobQueue, connect
from warpdesk_server.workers.store.spool import SpoolStore


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Secured]:
    folder = tmp_path / "redis"
    folder.mkdir()
    with secured_redis(folder) as made:
        if made.plain_port is not None:
            pytest.skip("this Redis was built without TLS")
        yield made


@pytest.fixture
def running(secured: Secured, tmp_path: Path) -> Iterator[tuple[Live, Desk]]:
    """An API and a worker, each by its own user."""
    with live(tmp_path, secured.url("api"), OPERATIONS) as api, connect(secured.url("operator")) as connection:
        store = SpoolStore(tmp_path / "store")
        desk = Desk(secured.url("worker"), tmp_path, JobQueue(connection, store.mac_of), store)
        desk.start_worker()
        yield api, desk
        desk.close()


def submitted(api: Live, *values: float) -> list[str]:
    body: dict[str, Any] = {"operation": "double"}
    return [api.submit(**body, inputs={"values": {"data": [value]}}) for value in values]


def hang_up(operator: "redis.Redis") -> None:
    """End every connection but this one: whoever wants to go on has to be let in again."""
    for kind in ("normal", "pubsub"):
        operator.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")


def test_passwords_are_changed_under_a_service_that_runs(
    running: tuple[Live, Desk], secured: Secured, tmp_path: Path
) -> None:
    api, desk = running
    jobs = submitted(api, 1.0, 2.0)
    with secured.client("operator") as operator, ExitStack() as others:
        for user in ("api", "worker"):
            operator.execute_command("ACL", "SETUSER", user, ">another-" + user)
        operator.execute_command("ACL", "SAVE")
        jobs += submitted(api, 3.0)

        def renewed(user: str) -> str:
            return secured.url(user).replace(password(user), f"another-{user}")

        desk.start_worker(url=renewed("worker"))
        second = others.enter_context(live(tmp_path, renewed("api"), OPERATIONS))
        jobs += submitted(second, 4.0) + submitted(api, 5.0)
        desk.workers[0].terminate()
        assert desk.workers[0].wait(60) == 0
        for user in ("api", "worker"):
            operator.execute_command("ACL", "SETUSER", user, "<" + password(user))
        operator.execute_command("ACL", "SAVE")
        jobs += submitted(second, 6.0)
        hang_up(operator)
        wait_until(lambda: second.http.get("/readyz").status_code == 200)
        jobs += submitted(second, 7.0, 8.0)

        assert [desk.wait(job).state for job in jobs] == [State.SUCCEEDED] * 8
        with secured.client("worker") as old, pytest.raises(redis.AuthenticationError):
            old.ping()


def test_certificate_and_authority_are_changed_under_a_service_that_runs(
    running: tuple[Live, Desk], secured: Secured, tmp_path: Path
) -> None:
    api, desk = running
    new = tmp_path / "new"
    new.mkdir()
    certificates(new, secured.host, "Another CA")  # of the same name, the first of the two would be tried alone
    jobs = submitted(api, 1.0)
    old_authority, new_authority = secured.ca.read_text(), (new / "ca.crt").read_text()
    with secured.client("operator") as operator:
        secured.ca.write_text(old_authority + new_authority)  # whoever connects anew trusts both
        changed = ("tls-cert-file", new / "redis.crt", "tls-key-file", new / "redis.key")
        operator.execute_command("CONFIG", "SET", *map(str, changed))
        jobs += submitted(api, 2.0)
        hang_up(operator)
        wait_until(lambda: api.http.get("/readyz").status_code == 200)
        jobs += submitted(api, 3.0)
        secured.ca.write_text(new_authority)
        hang_up(operator)
        wait_until(lambda: api.http.get("/readyz").status_code == 200)
        jobs += submitted(api, 4.0)

        assert [desk.wait(job).state for job in jobs] == [State.SUCCEEDED] * 4
        (tmp_path / "old.crt").write_text(old_authority)
        stale = secured.url("worker").replace(quote(str(secured.ca)), quote(str(tmp_path / "old.crt")))
        with redis.Redis.from_url(stale) as stranger, pytest.raises(redis.ConnectionError, match="CERTIFICATE_VERIFY"):
            stranger.ping()


def test_a_redis_that_wants_certificates_of_clients_gets_them_from_api_worker_and_doctor(
    secured: Secured, tmp_path: Path
) -> None:
    with secured.client("operator") as operator:
        operator.config_set("tls-auth-clients", "yes")
    tls = secured.ca.parent

    def certified(user: str) -> str:
        own = f"&ssl_certfile={quote(str(tls / 'redis.crt'))}&ssl_keyfile={quote(str(tls / 'redis.key'))}"
        return secured.url(user) + own

    assert broker(Settings(home=tmp_path, redis_url=secured.url("api"))).status == "failed"
    assert broker(Settings(home=tmp_path, redis_url=certified("worker"))).status == "ok"
    with live(tmp_path, certified("api"), OPERATIONS) as api, connect(certified("worker")) as connection:
        store = SpoolStore(tmp_path / "store")
        desk = Desk(certified("worker"), tmp_path, JobQueue(connection, store.mac_of), store)
        desk.start_worker()
        (job,) = submitted(api, 1.0)
        assert desk.wait(job).state is State.SUCCEEDED
        desk.close()


def test_the_wrong_authority_is_named_by_api_worker_and_doctor(secured: Secured, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    certificates(other, secured.host)

    def distrusted(user: str) -> str:
        return secured.url(user).replace(quote(str(secured.ca)), quote(str(other / "ca.crt")))

    check = broker(Settings(home=tmp_path, redis_url=distrusted("worker")))
    assert (check.status, "certificate" in check.found.lower(), "ssl_ca_certs" in check.remedy) == (
        "failed",
        True,
        True,
    )
    assert password("worker") not in check.found
    with live(tmp_path, distrusted("api"), OPERATIONS) as api:
        refused = api.http.get("/v1/jobs")
        assert (refused.status_code, refused.json()["code"]) == (503, "queue-unavailable")
    store = SpoolStore(tmp_path / "store")
    desk = Desk(distrusted("worker"), tmp_path, JobQueue(connect(distrusted("worker")), store.mac_of), store)
    desk.start_worker(ready=False)
    log = tmp_path / "worker.log"
    wait_until(lambda: "CERTIFICATE_VERIFY_FAILED" in log.read_text())
    desk.close()
    assert password("worker") not in log.read_text()
    shutil.rmtree(other)
