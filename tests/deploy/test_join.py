"""`warpdesk doctor --join` walks a worker's way to the service, and names what is broken on it and what mends it."""

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.app.conftest import Live, live
from tests.conftest import free_port
from tests.deploy.redis_of_deploy import DEPLOY, Secured, secured_redis
from tests.redis_servers import server
from tests.workers.operations import OPERATIONS
from warpdesk.cli.main import main
from warpdesk_server.app.access.keys import create_key
from warpdesk_server.app.settings import Settings
from warpdesk_server.doctor import join
from warpdesk_server.doctor.check import Check, Findings
from warpdesk_server.workers.queue import lua
from warpdesk_server.workers.settings import WorkerSettings


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured_redis(tmp_path_factory.mktemp("redis")) as made:
        yield made


@pytest.fixture(scope="module")
def api(secured: Secured, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    home = tmp_path_factory.mktemp("home")
    create_key(home, "owner", ["submit", "read"])
    with live(home, secured.url("api"), OPERATIONS) as made:
        yield made


@pytest.fixture(scope="module")
def key(api: Live) -> str:
    made = create_key(api.settings.home, "far", ["worker"])
    api.app.state.gate.reload()
    return made


@pytest.fixture
def settings(secured: Secured, api: Live, key: str, tmp_path: Path) -> dict[str, Any]:
    return {"home": tmp_path, "redis_url": secured.url("worker"), "api_url": api.url, "api_key": key}


@pytest.fixture
def worker_user(secured: Secured) -> Iterator[Any]:
    """Change the rights of `worker` by ACL rules; they are as in the file again afterwards."""
    with secured.client("operator") as operator:
        yield lambda *rules: operator.execute_command("ACL", "SETUSER", "worker", *rules)
        operator.execute_command("ACL", "LOAD")


@pytest.fixture
def acl_rights(secured: Secured) -> None:
    """Skip where Redis cannot say what a user may do: before release 7."""
    with secured.client("operator") as operator:
        version = operator.info("server")["redis_version"]
    if int(version.partition(".")[0]) < 7:
        pytest.skip(f"Redis {version} cannot be asked what a user may do: redis.acl_check_cmd came with 7")


def looked(settings: dict[str, Any]) -> Findings:
    return join.join(WorkerSettings(**settings), Settings(home=settings["home"]))


def failed(settings: dict[str, Any]) -> Check:
    """The only check that failed."""
    [check] = [check for check in looked(settings).checks if check.status == "failed"]
    return check


def test_a_way_that_is_whole_is_told_step_by_step_and_leaves_nothing(
    settings: dict[str, Any], secured: Secured, api: Live, acl_rights: None
) -> None:
    with secured.client("operator") as operator:
        before = set(operator.keys())
        operator.acl_log_reset()
        findings = looked(settings)
        assert {key for key in set(operator.keys()) - before if b"waits" not in key} == set()
    assert secured.denied() == [], "nothing is tried that is not allowed"
    assert {check.name: check.status for check in findings.checks} == {
        "redis name": "ok", "redis connection": "ok", "redis tls": "warning", "redis user": "ok", "redis rights": "ok",
        "redis least rights": "ok", "redis server": "ok", "redis round trip": "ok", "clock": "ok",
        "api name": "ok", "api connection": "ok", "api tls": "ok", "api key": "ok", "api read": "ok",
        "api write": "ok", "versions": "ok", "ledger": "absent",
    }  # fmt: skip
    assert "for 127.0.0.1, valid for 1 more days" in findings.named("redis tls").found
    assert findings.healthy
    assert not list(Path(api.settings.store_directory).rglob("*doctor*"))


def test_the_command_prints_it_and_its_exit_code_says_whether_to_join(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(f"WARPDESK_{name}".upper(), str(value))
    assert main(["doctor", "--join", "--json"]) == 0
    output = capsys.readouterr().out
    assert json.loads(output)["healthy"] is True
    monkeypatch.setenv("WARPDESK_REDIS_URL", settings["redis_url"].replace("password-of", "PASSWORD-of"))
    assert main(["doctor", "--join"]) == 1
    output += capsys.readouterr().out
    assert "to mend it: correct the user and password of WARPDESK_REDIS_URL" in output
    assert "password-of" not in output.lower().replace("user and password of", "")
    assert settings["api_key"] not in output
    assert main(["doctor", "--join", "--quick"]) == 2


def changed(url: str, old: str, new: str) -> str:
    assert old in url
    return url.replace(old, new)


def test_what_is_wrong_with_the_redis_url_is_named(settings: dict[str, Any], secured: Secured, tmp_path: Path) -> None:
    url, port = settings["redis_url"], f":{secured.port}/"
    broken = {
        changed(url, "127.0.0.1", "no-such-host.invalid"): ("redis name", "has no address"),
        changed(url, port, f":{free_port()}/"): ("redis connection", "cannot be reached: Connection refused"),
        re.sub(r"[?]ssl_ca_certs=.*", "", url): ("redis tls", "is refused: "),
        re.sub(r"certs=.*", "certs=/no/such", url): ("redis tls", "authority's certificate cannot be read"),
        changed(url, "127.0.0.1", "localhost"): ("redis tls", "is refused: Hostname mismatch"),
        changed(url, "rediss:", "redis:").partition("?")[0]: ("redis user", "no answer to PING"),
        changed(url, "worker:the", "nobody:the"): ("redis user", "nobody is not let in"),
        "unix:///tmp/redis.sock": ("redis", "of this machine alone"),
        "http://somewhere": ("redis", "is not a URL of a Redis"),
    }
    for wrong, (name, found) in broken.items():
        check = failed({**settings, "redis_url": wrong})
        assert (check.name, found in check.found) == (name, True), check


@pytest.mark.parametrize("right", ["-blpop", "-evalsha", "-zadd", "-publish", "-info", "-hsetnx"])
def test_a_command_that_the_user_lacks_is_named(
    settings: dict[str, Any], worker_user: Any, right: str, acl_rights: None
) -> None:
    worker_user(right)
    check = failed(settings)
    assert check.name == "redis rights"
    assert right[1:] in check.found
    assert "deploy/redis/users.acl" in str(check.remedy)


def test_each_key_of_the_role_is_needed_and_its_absence_is_named(
    secured: Secured, api: Live, worker_user: Any, acl_rights: None
) -> None:
    [line] = [line for line in (DEPLOY / "users.acl").read_text().splitlines() if line.startswith("user worker ")]
    patterns = [word for word in line.split() if word[0] == "~"]
    assert len(patterns) > 20
    for missing in patterns:
        worker_user("resetkeys", *(pattern for pattern in patterns if pattern != missing))
        with secured.client("worker") as connection:
            check = next(join._rights(connection, "worker"))
        assert check.status == "failed", missing
        assert any(denied.split()[1].startswith(missing[1:].rstrip("*")) for denied in check.details["missing"]), (
            missing
        )


def test_scripts_that_no_api_has_loaded_are_named(settings: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "another"
    folder.mkdir()
    with secured_redis(folder) as without_api:
        check = next(check for check in looked({**settings, "redis_url": without_api.url("worker")}).checks
                     if check.name == "redis scripts")  # fmt: skip
    assert (check.status, "start the API" in str(check.remedy)) == ("failed", True)


def test_a_redis_that_gets_no_fixes_is_a_warning_with_the_remedy(settings: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "old"
    folder.mkdir()
    with secured_redis(folder, binary=server("bundled")) as old, old.client("api") as connection:
        lua.load(connection)
        findings = looked({**settings, "redis_url": old.url("worker")})
    assert [
        (findings.named(name).status, findings.named(name).remedy) for name in ("redis rights", "redis server")
    ] == [
        ("warning", "use Redis 7 or Valkey: deploy/redis is made for them"),
        ("warning", "run Redis 7 or later, or Valkey, there: it reads the file of the old one"),
    ]


def test_a_user_that_may_more_than_a_worker_needs_is_a_warning(
    settings: dict[str, Any], secured: Secured, acl_rights: None
) -> None:
    findings = looked({**settings, "redis_url": secured.url("operator")})
    check = findings.named("redis least rights")
    assert (check.status, findings.healthy) == ("warning", True)
    assert len(check.details["beyond"]) == 21


def test_a_server_that_forgets_is_named(settings: dict[str, Any], secured: Secured) -> None:
    with secured.client("operator") as operator:
        try:
            operator.config_set("maxmemory-policy", "allkeys-lru")
            assert failed(settings).name == "redis server"
            operator.config_set("maxmemory-policy", "noeviction")
            operator.config_set("appendonly", "no")
            assert looked(settings).named("redis server").status == "warning"
        finally:
            operator.config_set("maxmemory-policy", "noeviction")
            operator.config_set("appendonly", "yes")


def test_a_clock_that_is_wrong_is_a_warning_with_the_seconds(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = join.time.time
    monkeypatch.setattr(join.time, "time", lambda: real() - 30)
    check = looked(settings).named("clock")
    assert check.status == "warning"
    assert check.found.startswith(("this machine is 30.0", "this machine is 29.9"))
    assert "behind Redis" in check.found


def test_a_redis_that_is_far_away_is_a_warning_with_the_milliseconds(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(join, "_FAR", 0.0)  # nobody is nearer than that
    check = looked(settings).named("redis round trip")
    assert check.status == "warning"
    assert re.match(r"\d+\.\d ms, at worst \d+\.\d ms of 20", check.found)


def test_what_is_wrong_with_the_api_is_named(settings: dict[str, Any], api: Live, key: str) -> None:
    caller = create_key(api.settings.home, "caller", ["submit", "read", "cancel", "admin"])
    api.app.state.gate.reload()
    broken: list[tuple[dict[str, str], str, str]] = [
        ({"api_url": "", "api_key": ""}, "api", "WARPDESK_API_URL is not set"),
        ({"api_url": "ftp://somewhere"}, "api", "is no URL"),
        ({"api_url": "http://no-such-host.invalid"}, "api name", "has no address"),
        ({"api_url": f"http://127.0.0.1:{free_port()}"}, "api connection", "cannot be reached"),
        ({"api_url": api.url.replace("http:", "https:")}, "api tls", "does not speak TLS"),
        ({"api_url": api.url + "/elsewhere"}, "api key", "/v1/worker is answered with 404"),
        ({"api_key": "wd_000000000000_" + "x" * 43}, "api key", "the API does not know WARPDESK_API_KEY"),
        ({"api_key": caller}, "api key", "has not the scope worker"),
    ]
    for wrong, name, found in broken:
        check = failed({**settings, **wrong})
        assert (check.name, found in check.found) == (name, True), check


def test_a_proxy_that_takes_no_large_bodies_is_named(settings: dict[str, Any], api: Live) -> None:
    with narrow(api) as url:
        check = failed({**settings, "api_url": url})
    assert (check.name, "answered with 413" in check.found) == ("api write", True)
    assert "client_max_body_size" in str(check.remedy)


@contextmanager
def narrow(api: Live) -> Iterator[str]:
    """A proxy before the API that refuses bodies above 1 MiB, as some do unless they are told otherwise."""

    class Proxy(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            size = int(self.headers.get("Content-Length", 0))
            body = self.rfile.read(size)
            if size > 1 << 20:
                self.send_response(413)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            kept = {name: self.headers[name] for name in ("Authorization", "Content-Type") if name in self.headers}
            answer = api.http.request(self.command, self.path, content=body, headers=kept)
            self.send_response(answer.status_code)
            for name in ("Content-Type", "Warpdesk-Version"):
                if name in answer.headers:
                    self.send_header(name, answer.headers[name])
            if answer.status_code != 204:
                self.send_header("Content-Length", str(len(answer.content)))
            self.end_headers()
            self.wfile.write(answer.content)

        do_POST = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_ledger_that_cannot_be_reached_is_named(settings: dict[str, Any], tmp_path: Path) -> None:
    url = f"postgresql://user@127.0.0.1:{free_port()}/warpdesk"
    (tmp_path / "ledger.key").write_text("ab" * 32)
    (tmp_path / "ledger.key").chmod(0o600)
    wanted = {**settings, "ledger_url": url}
    findings = join.join(WorkerSettings(**wanted), Settings(home=tmp_path, ledger_url=url))
    assert findings.named("ledger").status == "failed"
    assert not findings.healthy


def test_another_release_is_a_warning(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join.metadata, "version", lambda name: "9.9.9")
    check = looked(settings).named("versions")
    assert check.status == "warning"
    assert "9.9.9 here" in check.found
