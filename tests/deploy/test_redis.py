"""A service on a Redis as `deploy/redis` sets it up: TLS, and a user with few rights for each role."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from tests.app.conftest import Live, live
from tests.deploy.redis_of_deploy import DEPLOY, UNUSABLE, Secured, secured_redis
from tests.redis_servers import KINDS, server
from tests.workers.conftest import Desk
from tests.workers.operations import OPERATIONS
from warpdesk.models import State
from warpdesk_server.app.access.keys import create_key
from warpdesk_server.workers.queue import scripts
from warpdesk_server.workers.queue.jobs import JobQueue, connect
from warpdesk_server.workers.queue.keys import EVENTS, PROBE, job_key
from warpdesk_server.workers.queue.protocol import CLAIM, JobRequest, digest_of_claim
from warpdesk_server.workers.store.spool import SpoolStore

DENIED = "[Nn]o permissions|can't (run|access)"


def double(value: float) -> dict[str, Any]:
    return {"operation": "double", "inputs": {"values": {"data": [value]}}}


@pytest.fixture(scope="module", params=KINDS)
def secured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured_redis(tmp_path_factory.mktemp("redis"), binary=server(request.param)) as made:
        yield made


@pytest.fixture(scope="module")
def operator(secured: Secured) -> Iterator[redis.Redis]:
    with secured.client("operator") as connected:
        yield connected


@pytest.fixture
def empty(secured: Secured, operator: redis.Redis) -> Secured:
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
        store = SpoolStore(tmp_path / "store")
        made = Desk(empty.url("worker"), tmp_path, JobQueue(connection, store.mac_of), store)
        yield made
        made.close()


def test_a_service_runs_over_tls_with_a_user_for_each_role_and_nothing_is_denied(
    api: Live, desk: Desk, empty: Secured
) -> None:
    def ask(method: str, path: str, **options: Any) -> Any:
        answer = api.http.request(method, path, **options)
        assert answer.is_success, answer.text
        return answer.json() if answer.content else None

    with api.http.stream("GET", "/v1/events") as stream:  # from then on all events are kept for it
        lines = stream.iter_lines()
        assert stream.status_code == 200
        assert [next(lines) for _ in range(3)][-1] == ":"
        assert ask("POST", "/v1/queue/pause")["paused"] is True
        assert ask("POST", "/v1/queue/resume")["paused"] is False
        late = api.submit(**double(0.0), deadline_s=0.01)
        assert json.loads(next(line for line in lines if line.startswith("data: "))[6:])["job"] == late
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


@dataclass
class Attack:
    """Who has a worker's key and a worker's account of Redis, and two owners who do not know each other."""

    api: Live
    redis: redis.Redis
    worker: httpx.Client
    owner: httpx.Client
    other: httpx.Client

    def run(self, job_id: str, **fields: Any) -> None:
        """Write a record of an attempt that runs, by a claim of one's own."""
        mine = {"attempt": 1, "state": "running", "claim": f"1 {digest_of_claim(TOKEN)}", "submitted_at": time.time()}
        self.redis.hset(job_key(job_id), mapping={**mine, **fields})

    def opened(self, job_id: str) -> list[tuple[int, bool]]:
        """How the routes for an input of it answer, and whether with any."""
        name, headers = f"{job_id}.1", {CLAIM: TOKEN}
        alone = self.worker.get(f"/v1/worker/inputs/{name}/values", headers=headers)
        wanted = {"inputs": [[name, "values"]], "claims": {name: TOKEN}}
        together = self.worker.post("/v1/worker/inputs", json=wanted)
        return [(alone.status_code, alone.is_success), (200, b'"arrays":[null]' not in together.content)]


TOKEN, OPEN, SHUT = "f" * 32, [(200, True), (200, True)], [(409, False), (200, False)]


@pytest.fixture
def attack(empty: Secured, tmp_path: Path) -> Iterator[Attack]:
    scopes = ["submit", "read", "cancel"]
    tokens = [create_key(tmp_path, name, given) for name, given in (("w", ["worker"]), ("a", scopes), ("b", scopes))]
    with live(tmp_path, empty.url("api"), OPERATIONS) as api, ExitStack() as clients:
        headers = [{"Authorization": f"Bearer {token}"} for token in tokens]
        https = [
            clients.enter_context(httpx.Client(base_url=api.url, headers=authorization, timeout=30))
            for authorization in headers
        ]
        yield Attack(api, clients.enter_context(empty.client("worker")), *https)


def submitted(owner: httpx.Client, value: float) -> str:
    answer = owner.post("/v1/jobs", json=double(value))
    assert answer.status_code == 202, answer.text
    job_id: str = answer.json()["id"]
    return job_id


def test_a_workers_account_opens_no_input_by_a_record_that_it_writes(attack: Attack) -> None:
    live_one, canceled, erased = (submitted(attack.owner, value) for value in (1.0, 2.0, 3.0))
    record = attack.redis.hgetall(job_key(live_one))
    attack.owner.post(f"/v1/jobs/{canceled}/cancel")
    before = attack.redis.hgetall(job_key(erased))
    attack.owner.delete(f"/v1/jobs/{erased}")
    invented = "job_" + "7" * 32

    attack.run(live_one)
    assert attack.opened(live_one) == OPEN  # a job that it may claim
    attack.run(canceled)
    assert attack.opened(canceled) == SHUT
    attack.run(erased, **{name.decode(): value for name, value in before.items() if name != b"attempt"})
    assert attack.opened(erased) == SHUT
    request = JobRequest.model_validate_json(record[b"request"])
    for mac in ("", record[b"mac"]):  # of nobody, and of another job
        changed = request.model_copy(update={"id": invented}) if not mac else request
        attack.run(invented, request=changed.model_dump_json(), mac=mac)
        assert attack.opened(invented) == SHUT
    secret = submitted(attack.other, 9.0)
    theirs = JobRequest.model_validate_json(attack.redis.hget(job_key(secret), "request") or b"")
    redirected = request.model_copy(update={"owner": theirs.owner, "inputs": theirs.inputs})
    attack.run(live_one, request=redirected.model_dump_json())
    assert attack.opened(live_one) == SHUT


def test_a_workers_account_makes_no_result_another_owners(attack: Attack, desk: Desk) -> None:
    mine, theirs = submitted(attack.owner, 1.0), submitted(attack.other, 2.0)
    desk.start_worker()
    for job_id in (mine, theirs):
        assert desk.wait(job_id).state is State.SUCCEEDED
    attack.redis.hset(job_key(mine), "result", f"{theirs}.1")
    assert attack.owner.get(f"/v1/jobs/{mine}/result").json()["code"] == "result-gone"
    assert attack.owner.get(f"/v1/jobs/{mine}/result/doubled").json()["code"] == "result-gone"
    assert attack.owner.delete(f"/v1/jobs/{mine}").status_code == 204
    assert attack.other.get(f"/v1/jobs/{theirs}/result").json()["outputs"]["total"] == 4.0


def test_jobs_that_a_release_without_macs_queued_are_signed_once(
    attack: Attack, empty: Secured, operator: redis.Redis
) -> None:
    leader, follower = submitted(attack.owner, 1.0), submitted(attack.owner, 1.0)
    for job_id in (leader, follower):
        operator.hdel(job_key(job_id), "mac")
    attack.run(leader)
    assert attack.opened(leader) == SHUT
    with live(attack.api.settings.home, empty.url("api"), OPERATIONS):  # it has signed before
        assert attack.opened(leader) == SHUT
    (attack.api.settings.store_directory / "records-signed").unlink()
    with live(attack.api.settings.home, empty.url("api"), OPERATIONS):
        assert attack.opened(leader) == OPEN
    assert attack.redis.hget(job_key(follower), "mac")


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
        ("worker", "DEL warpdesk:closed:job_1"),
        ("worker", "SET other 1"),
        ("worker", "SUBSCRIBE others"),
        ("worker", "EVAL return(1) 0"),
        ("worker", "SCRIPT LOAD return(1)"),
        ("worker", "SCRIPT KILL"),
        ("worker", "SCRIPT FLUSH"),
        ("api", "EVAL return(1) 0"),
        ("api", "SCRIPT FLUSH"),
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
def test_a_user_cannot_do_what_its_role_does_not(
    empty: Secured, operator: redis.Redis, user: str, command: str
) -> None:
    operator.set("other", "kept")
    with empty.client(user) as client, pytest.raises(redis.ResponseError, match=DENIED):
        client.execute_command(*command.split())
    assert operator.get("other") == b"kept"


@pytest.mark.parametrize("text", ["return redis.call('flushall')", "return redis.call('del', 'other')"])
@pytest.mark.parametrize("user", ["api", "worker"])
def test_a_script_can_do_no_more_than_the_user_that_calls_it(
    empty: Secured, operator: redis.Redis, user: str, text: str
) -> None:
    operator.set("other", "kept")
    digest = operator.script_load(text)
    with empty.client(user) as client, pytest.raises(redis.ResponseError, match=DENIED):
        client.evalsha(digest, 0)
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
    assert users[0] == "user default off resetpass ~* &* +@all"  # off, and Redis 7 loads its file by these rights
    assert all(UNUSABLE in user for user in users[1:])
    assert "nopass" not in "".join(users)


OF_THE_API = {
    "ENQUEUE", "CANCEL_AND_CLOSE", "ERASE", "FORBID", "POSITION", "EXPIRE_IF_OVERDUE", "RERUN", "WAITING_BY_OWNER",
    "QUEUES", "COUNT", "LAUNCHES", "SIGN", "PAUSE", "RESUME",
}  # fmt: skip
OF_WORKERS = {
    "CLAIM",
    "CLAIM_SHARD",
    "WAITING_TASKS",
    "LEAVE",
    "RENEW",
    "FINISH",
    "REAP",
    "PROGRESS",
    "STEP",
    "CANCEL",
    "COUNT",
    "LAUNCHES",
    "TAKE_SLOT",
    "LEAVE_SLOT",
}


@pytest.mark.parametrize(("user", "names"), [("api", OF_THE_API), ("worker", OF_WORKERS)])
def test_every_command_and_key_of_a_roles_scripts_is_allowed_to_it(user: str, names: set[str]) -> None:
    texts = {name: text for name, text in vars(scripts).items() if isinstance(text, str) and "redis.call" in text}
    complete = {name: text for name, text in texts.items() if not name.startswith("_")}
    assert complete.keys() == OF_THE_API | OF_WORKERS
    assert {*complete.values(), scripts.MAY} == {*scripts.SCRIPTS}
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


def test_the_accounts_may_confirm_changes_once_they_have_what_the_page_says(tmp_path: Path) -> None:
    page = (DEPLOY / "README.md").read_text()
    given = [line.split() for line in page.splitlines() if line.startswith("ACL SETUSER")]
    confirming = [("WAITAOF", 1, 1, 1), ("SET", PROBE, "", "EX", 10)]

    def may(operator: redis.Redis, user: str) -> bool:
        return all(operator.execute_command("ACL", "DRYRUN", user, *command) == b"OK" for command in confirming)

    with secured_redis(tmp_path, binary=server("valkey")) as secured, secured.client("operator") as operator:
        before = [may(operator, user) for user in ("api", "worker")]
        for line in given:
            operator.execute_command(*line)

        assert (before, [may(operator, user) for user in ("api", "worker")]) == ([False, False], [True, True])
