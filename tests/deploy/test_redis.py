"""A service on a Redis as `deploy/redis` sets it up: TLS, and a user with few rights for each role."""

import re
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.app.conftest import Live, live
from tests.deploy.redis_of_deploy import DEPLOY, UNUSABLE, Secured, secured_redis
from tests.workers.conftest import Desk
from tests.workers.operations import OPERATIONS
from workers import scripts, slots
from workers.protocol import EVENTS, State
from workers.queue import JobQueue, connect
from workers.store import SpoolStore

DENIED = "no permissions|can't (run|access)"


def double(value: float) -> dict[str, Any]:
    return {"operation": "double", "inputs": {"values": {"data": [value]}}}


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured_redis(tmp_path_factory.mktemp("redis")) as made:
        yield made


@pytest.fixture
def empty(secured: Secured) -> Secured:
    with secured.client("operator") as operator:
        operator.flushall()
        operator.acl_log_reset()
    return secured


@pytest.fixture
def api(empty: Secured, tmp_path: Path) -> Iterator[Live]:
    with live(tmp_path, empty.url("api"), OPERATIONS) as made:
        yield made


@pytest.fixture
def desk(empty: Secured, tmp_path: Path) -> Iterator[Desk]:
    """Workers as the worker's user; the store is that of the API."""
    with connect(empty.url("worker")) as connection:
        made = Desk(empty.url("worker"), tmp_path, JobQueue(connection), SpoolStore(tmp_path / "store"))
        yield made
        made.close()


def test_a_service_runs_over_tls_with_a_user_for_each_role_and_nothing_is_denied(
    api: Live, desk: Desk, empty: Secured
) -> None:
    def ask(method: str, path: str, **options: Any) -> Any:
        answer = api.http.request(method, path, **options)
        assert answer.is_success, answer.text
        return answer.json() if answer.content else None

    late = api.submit(**double(0.0), deadline_s=0.01)
    first = api.submit(**double(1.0), priority="research")
    desk.start_worker()
    assert desk.wait(first).state is State.SUCCEEDED
    assert ask("GET", f"/v1/jobs/{first}/result")["outputs"]["total"] == 2.0
    assert ask("GET", f"/v1/jobs/{late}")["status"] == "expired"

    with desk.gate() as gate:
        napping = api.submit(operation="nap", params={"seconds": 0.0, "marker": str(desk.marker()), "gate": gate})
        desk.napping(desk.marker())
        same = [api.submit(**double(2.0)) for _ in range(3)]  # they wait: one computes for the others
        more = [api.submit(**double(float(number)), priority="realtime") for number in range(3, 9)]
        twice = [ask("POST", "/v1/jobs", json=double(9.0), headers={"Idempotency-Key": "order-7731"}) for _ in range(2)]
        ask("POST", f"/v1/jobs/{napping}/cancel")
    for job_id in (*same, *more, twice[0]["id"]):
        assert desk.wait(job_id).state is State.SUCCEEDED
    assert twice[0]["id"] == twice[1]["id"]
    assert desk.wait(napping).state is State.CANCELED

    desk.marker("died").mkdir()
    died = api.submit(operation="die", params={"times": 3, "marker": str(desk.marker("died"))})
    assert desk.wait(died).dead
    assert [letter["id"] for letter in ask("GET", "/v1/dead-letters")["dead_letters"]] == [died]
    ask("POST", f"/v1/dead-letters/{died}/rerun")
    assert desk.wait(died).state is State.SUCCEEDED

    with api.http.stream("GET", f"/v1/jobs/{first}/events") as events:
        assert "event: succeeded" in "".join(events.iter_text())
    ask("GET", "/v1/jobs?limit=3")
    ask("DELETE", f"/v1/jobs/{first}")
    for path in ("/readyz", "/metrics", "/performance-metrics"):
        assert api.http.get(path).status_code == 200
    array_id = ask("PUT", "/v1/arrays", content=b"1\n2\n", headers={"Content-Type": "text/csv"})["id"]
    ask("DELETE", f"/v1/arrays/{array_id}")
    (worker,) = desk.workers
    worker.terminate()
    assert worker.wait(60) == 0
    assert empty.denied() == []


def test_rq_shows_the_service_to_the_monitor(api: Live, empty: Secured) -> None:
    api.submit(**double(1.0))
    shown = subprocess.run(
        [sys.executable, "-m", "rq.cli", "info", "--url", empty.url("monitor")],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert "1 jobs total" in shown.stdout, shown.stdout + shown.stderr
    assert empty.denied() == []


@pytest.mark.parametrize(
    ("user", "command"),
    [
        ("worker", "CONFIG GET maxmemory"),
        ("worker", "FLUSHALL"),
        ("worker", "KEYS *"),
        ("worker", "SCAN 0"),
        ("worker", "ACL LIST"),
        ("worker", "SHUTDOWN"),
        ("worker", "SAVE"),
        ("worker", "MONITOR"),
        ("worker", "GET warpdesk:idempotency:local:order-7731"),
        ("worker", "SET other 1"),
        ("worker", "SUBSCRIBE others"),
        ("worker", "EVAL return(redis.call('flushall')) 0"),
        ("worker", "EVAL return(redis.call('del','other')) 0"),
        ("api", "CONFIG SET appendfsync no"),
        ("api", "FLUSHDB"),
        ("api", "KEYS *"),
        ("api", "GET other"),
        ("monitor", "HGETALL warpdesk:job:job_1"),
        ("monitor", "ZREMRANGEBYSCORE warpdesk:leases -inf +inf"),
        ("monitor", "SET rq:queues 1"),
        ("monitor", "CONFIG GET requirepass"),
        ("monitor", "EVAL return(1) 0"),
    ],
)
def test_a_user_cannot_do_what_its_role_does_not(empty: Secured, user: str, command: str) -> None:
    with empty.client("operator") as operator:
        operator.set("other", "kept")
    with empty.client(user) as client, pytest.raises(redis.ResponseError, match=DENIED):
        client.execute_command(*command.split())
    with empty.client("operator") as operator:
        assert operator.get("other") == b"kept"


def test_nobody_enters_without_tls_a_password_and_the_right_authority(secured: Secured) -> None:
    system = re.sub(r"[?]ssl_ca_certs=.*", "", secured.url("worker"))
    with redis.Redis.from_url(system) as stranger, pytest.raises(redis.ConnectionError, match="CERTIFICATE_VERIFY"):
        stranger.ping()
    plain = secured.url("worker").replace("rediss:", "redis:").partition("?")[0]
    with redis.Redis.from_url(plain, socket_timeout=5) as stranger, pytest.raises(redis.RedisError):
        stranger.ping()
    nameless = re.sub(r"//worker:[^@]*@", "//", secured.url("worker"))
    with redis.Redis.from_url(nameless) as stranger, pytest.raises(redis.AuthenticationError):
        stranger.ping()
    wrong = secured.url("worker").replace("password-of-worker", "password-of-api")
    with redis.Redis.from_url(wrong) as stranger, pytest.raises(redis.AuthenticationError):
        stranger.ping()


def test_the_files_let_nobody_in_before_passwords_are_set() -> None:
    users = (DEPLOY / "users.acl").read_text().splitlines()
    assert users[0].startswith("user default off ")
    assert all(UNUSABLE in user for user in users[1:])
    assert "nopass" not in "".join(users)


OF_THE_API = {
    "ENQUEUE", "CANCEL", "ERASE", "FORBID", "POSITION", "EXPIRE_IF_OVERDUE", "RERUN", "WAITING_BY_OWNER",
    "QUEUES", "COUNT", "LAUNCHES",
}  # fmt: skip
OF_WORKERS = {
    "CLAIM",
    "LEAVE",
    "RENEW",
    "FINISH",
    "REAP",
    "PROGRESS",
    "CANCEL",
    "COUNT",
    "LAUNCHES",
    "TAKE_SLOT",
    "LEAVE_SLOT",
}


@pytest.mark.parametrize(("user", "names"), [("api", OF_THE_API), ("worker", OF_WORKERS)])
def test_every_command_and_key_of_a_roles_scripts_is_allowed_to_it(user: str, names: set[str]) -> None:
    named = [*vars(scripts).items(), *vars(slots).items()]
    texts = {name: text for name, text in named if isinstance(text, str) and "redis.call" in text}
    assert {name for name in texts if not name.startswith("_")} == OF_THE_API | OF_WORKERS
    (line,) = (line for line in (DEPLOY / "users.acl").read_text().splitlines() if line.startswith(f"user {user} "))
    allowed = {word[1:] for word in line.split() if word[0] == "+"}
    patterns = [word[1:] for word in line.split() if word[0] == "~"]
    called = {
        command.lower()
        for name in names
        for call in re.findall(r"redis\.call\(([^,)]*)", texts[name])
        for command in re.findall(r"'(\w+)'", call)
    }
    assert called <= allowed
    named = {key for name in names for key in re.findall(r"'((?:warpdesk|rq):[^']*)'", texts[name])}
    channels = {key for key in named if "%" in key or "pubsub" in key or key == EVENTS}
    unknown = [key for key in named - channels if not any(fnmatchcase(key, pattern) for pattern in patterns)]
    assert unknown == []
