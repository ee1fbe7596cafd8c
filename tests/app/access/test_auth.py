"""Authentication: keys, their scopes, and what is served while there are no keys."""

import ctypes
import hashlib
import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.app.arrays.test_uploads import NPY, npy
from tests.app.computations import work
from tests.app.conftest import SCALE, connected
from tests.waiting import wait_until
from warpdesk import Client, JobTimeout
from warpdesk.models import State
from warpdesk_server.app.access.keys import UnusableKeys, create_key, read_keys, revoke_key, serve_without_keys
from warpdesk_server.app.access.loopback import is_loopback
from warpdesk_server.app.access.peers import owner
from warpdesk_server.app.main import create_app
from warpdesk_server.app.settings import Settings
from warpdesk_server.workers.queue.records import Claim


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def test_the_key_file_holds_hashes_and_is_private(tmp_path: Path) -> None:
    token = create_key(tmp_path / "new", "desk", ["submit", "read"])

    file = tmp_path / "new" / "keys.json"
    entry = json.loads(file.read_text())["keys"][0]
    assert file.stat().st_mode & 0o777 == 0o600
    assert token.split("_", 2)[2] not in file.read_text()
    assert entry["sha256"] == hashlib.sha256(token.encode()).hexdigest()
    assert (entry["name"], entry["scopes"]) == ("desk", ["submit", "read"])


@pytest.mark.parametrize("scopes", [[], ["root"], ["read", "write"]])
def test_a_key_has_known_scopes(tmp_path: Path, scopes: list[str]) -> None:
    with pytest.raises(ValueError, match="scopes are submit, realtime, read, cancel, metrics, admin, worker"):
        create_key(tmp_path, "desk", scopes)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"keys": [{"id": 1}]}', '{"keys": 3}'])
def test_a_damaged_key_file_stops_the_start(tmp_path: Path, text: str) -> None:
    (tmp_path / "keys.json").write_text(text)
    (tmp_path / "keys.json").chmod(0o600)

    with pytest.raises(UnusableKeys, match="is not a list of keys"):
        create_app(Settings(home=tmp_path))


@pytest.mark.parametrize("scopes", [["read", "root"], ["worker", "read"], [], "read"])
def test_a_scope_that_no_key_can_have_stops_the_start(tmp_path: Path, scopes: Any) -> None:
    create_key(tmp_path, "desk", ["read"])
    file = tmp_path / "keys.json"
    keys = json.loads(file.read_text())
    keys["keys"][0]["scopes"] = scopes
    file.write_text(json.dumps(keys))

    with pytest.raises(UnusableKeys, match=r"a key of the key file .* cannot be used: .*scope"):
        create_app(Settings(home=tmp_path))


def test_a_key_file_that_is_gone_stops_the_start(tmp_path: Path) -> None:
    create_key(tmp_path, "desk", ["read"])
    (tmp_path / "keys.json").unlink()

    for _ in range(2):
        with pytest.raises(UnusableKeys, match=r"there were API keys, and the key file .* is gone.*warpdesk keys open"):
            create_app(Settings(home=tmp_path))

    create_key(tmp_path, "desk", ["read"])
    assert not create_app(Settings(home=tmp_path)).state.gate.open


def test_a_key_file_that_a_service_has_seen_is_missed_wherever_it_lay(tmp_path: Path) -> None:
    create_key(tmp_path / "elsewhere", "desk", ["read"])
    settings = Settings(home=tmp_path / "home", keys_file=tmp_path / "elsewhere" / "keys.json")
    create_app(settings)
    for file in (tmp_path / "elsewhere").iterdir():
        file.unlink()

    with pytest.raises(UnusableKeys, match="is gone"):
        create_app(settings)


def test_a_service_serves_without_keys_again_only_when_told_to(tmp_path: Path) -> None:
    create_key(tmp_path, "desk", ["read"])
    file = tmp_path / "keys.json"
    with pytest.raises(UnusableKeys, match="has 1 keys: revoke them first"):
        serve_without_keys(file, tmp_path)
    for key_id in read_keys(file):
        assert revoke_key(file, key_id)

    serve_without_keys(file, tmp_path)

    assert create_app(Settings(home=tmp_path)).state.gate.open


def test_a_key_file_others_can_read_stops_the_start(tmp_path: Path) -> None:
    create_key(tmp_path, "desk", ["read"])
    (tmp_path / "keys.json").chmod(0o644)

    with pytest.raises(UnusableKeys, match="has mode 0644; run chmod 600"):
        create_app(Settings(home=tmp_path))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org"])  # noqa: S104
def test_without_keys_nothing_but_loopback_is_served(tmp_path: Path, host: str) -> None:
    with pytest.raises(UnusableKeys, match="there are no API keys"):
        create_app(Settings(home=tmp_path, host=host))

    create_key(tmp_path, "desk", ["read"])
    create_app(Settings(home=tmp_path, host=host))


@pytest.mark.parametrize(
    ("host", "loopback"), [("localhost", True), ("127.8.8.8", True), ("::1", True), ("10.0.0.1", False)]
)
def test_loopback_is_what_stays_on_this_machine(host: str, loopback: bool) -> None:
    assert is_loopback(host) == loopback


def test_without_keys_a_name_that_only_leads_here_is_refused(api: Any) -> None:
    answer = api.http.get("/v1/jobs", headers={"Host": "evil.example:8000"})

    assert (answer.status_code, answer.json()["code"]) == (403, "foreign-host")


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("Forwarded", "for=192.0.2.60"), ("Via", "1.1 proxy"), ("X-Forwarded-For", "192.0.2.60"),
        ("X-Forwarded-For", "127.0.0.1"), ("X-Forwarded-Host", "desk.example"), ("X-Forwarded-Proto", "https"),
        ("X-Real-IP", "192.0.2.60"), ("CF-Connecting-IP", "192.0.2.60"), ("True-Client-IP", "192.0.2.60"),
        ("Fly-Client-IP", "192.0.2.60"), ("X-Client-IP", ""), ("CDN-Loop", "cdn"), ("X-Forwarded", "for=192.0.2.60"),
        ("Forwarded-For", "192.0.2.60"), ("X-Remote-Addr", "192.0.2.60"), ("X-Remote-IP", "192.0.2.60"),
        ("X-ProxyUser-Ip", "192.0.2.60"), ("X-Azure-ClientIP", "192.0.2.60"), ("X-Amzn-Trace-Id", "Root=1"),
        ("X-ARR-Log-ID", "1"), ("X-AppEngine-User-IP", "192.0.2.60"), ("X-Nginx-Proxy", "true"),
        ("X-Scheme", "https"), ("X-Bluecoat-Via", "1"), ("ClientIP", "192.0.2.60"),
    ],
)  # fmt: skip
def test_without_keys_what_a_proxy_forwards_is_refused(api: Any, header: str, value: str) -> None:
    answer = api.http.get("/v1/jobs", headers={header: value})

    assert (answer.status_code, answer.json()["code"]) == (403, "foreign-host")
    assert f"it has the header {header.lower()!r}" in answer.json()["detail"]
    assert api.http.get("/livez", headers={header: value}).status_code == 200


def test_without_keys_http_1_0_is_refused_as_proxies_speak_it(api: Any) -> None:
    with connected(api) as connection:
        connection.sendall(b"GET /v1/jobs HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")
        answer = b"".join(iter(lambda: connection.recv(65536), b""))

    assert answer.startswith(b"HTTP/1.1 403 ")
    assert b"a proxy may forward this request: it is HTTP/1.0" in answer


_AS_LOCAL = b"GET /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1:8000\r\n\r\n"


@contextmanager
def made_by(user: int) -> Iterator[None]:
    """Context in which the sockets that this thread makes belong to that user."""
    if os.geteuid() != 0:
        pytest.skip("only root can make another user's socket")
    libc = ctypes.CDLL(None)
    libc.setfsuid(user)
    try:
        yield
    finally:
        libc.setfsuid(0)


def test_without_keys_another_user_of_the_machine_is_refused_whatever_is_sent(api: Any) -> None:
    """A request that looks local proves nothing: nginx since 1.29.7 forwards by HTTP/1.1, with the upstream's host and
    no header of its own."""
    with made_by(65534), connected(api) as connection:
        for _ in range(2):
            connection.sendall(_AS_LOCAL)
            answer = connection.recv(65536)
            assert answer.startswith(b"HTTP/1.1 403 ")
            assert b"the user that asks is another (uid 65534)" in answer
    with connected(api) as connection:
        connection.sendall(_AS_LOCAL)
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")


def test_without_keys_a_sender_who_has_gone_is_nobody(api: Any) -> None:
    """For a closed socket the kernel names root as its user."""
    before = api.queued()
    body = json.dumps(SCALE).encode()
    head = f"POST /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    for _ in range(20):
        with made_by(65534), connected(api) as connection:
            connection.sendall(head + body)
    assert api.http.get("/v1/jobs").status_code == 200
    assert api.queued() == before


@pytest.mark.parametrize(
    ("listening", "asking", "to"),
    [
        (socket.AF_INET, socket.AF_INET, "127.0.0.1"),
        (socket.AF_INET6, socket.AF_INET6, "::1"),
        (socket.AF_INET, socket.AF_INET6, "::ffff:127.0.0.1"),
    ],
)
def test_the_user_of_a_connections_other_end_is_the_kernels_word(listening: int, asking: int, to: str) -> None:
    with socket.socket(listening) as server, socket.socket(asking) as client:
        server.bind(("::1" if listening == socket.AF_INET6 else "127.0.0.1", 0))
        server.listen()
        client.connect((to, server.getsockname()[1]))
        accepted, there = server.accept()
        here = accepted.getsockname()[:2]
        assert owner(there[:2], here) == os.geteuid()
        client.close()
        assert owner(there[:2], here) is None
        accepted.close()


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_without_keys_a_page_of_another_site_is_refused(api: Any, headers: dict[str, str]) -> None:
    before = api.queued()
    for method, path in (("GET", "/v1/jobs"), ("POST", "/v1/jobs")):
        answer = api.http.request(method, path, json=SCALE, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (403, "foreign-host")
    assert api.queued() == before


def test_without_keys_the_services_own_page_is_served(api: Any) -> None:
    of_the_page = {"Origin": api.url, "Sec-Fetch-Site": "same-origin", "Referer": f"{api.url}/docs"}

    assert api.http.post("/v1/jobs", json=SCALE, headers=of_the_page).status_code == 202
    assert api.http.get("/v1/jobs", headers={"Sec-Fetch-Site": "none"}).status_code == 200


def test_with_keys_proxies_and_pages_are_not_asked_about(serve_api: Callable[..., Any], tmp_path: Path) -> None:
    token = create_key(tmp_path / "home", "desk", ["read"])
    with serve_api() as api:
        forwarded = {"X-Forwarded-For": "192.0.2.60", "Via": "1.1 proxy", "Origin": "https://desk.example"}
        assert api.http.get("/v1/jobs", headers={**bearer(token), **forwarded}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        bearer("wd_000000000000_" + "A" * 43),
        bearer("nonsense"),
        {"Authorization": "Basic d2Q6d2Q="},
        {"Authorization": b"Bearer \xff\xfe"},
        {"X-API-Key": "wd_"},
    ],
)
def test_a_missing_or_wrong_key_is_refused_everywhere(
    serve_api: Callable[..., Any], tmp_path: Path, headers: Any
) -> None:
    create_key(tmp_path / "home", "desk", ["admin"])
    with serve_api() as api:
        before = api.queued()
        requests = [
            ("POST", "/v1/jobs"), ("GET", "/v1/jobs"), ("GET", "/v1/jobs/job_1"), ("DELETE", "/v1/jobs/job_1"),
            ("PUT", "/v1/arrays"), ("GET", "/v1/arrays/x"), ("DELETE", "/v1/arrays/x"), ("GET", "/metrics"),
            ("GET", "/gpu-health"), ("GET", "/gpu-memory"), ("GET", "/performance-metrics"),
            ("POST", "/v1/jobs/job_1/cancel"), ("GET", "/v1/jobs/job_1/result"),
        ]  # fmt: skip

        answers = [api.http.request(method, path, headers=headers) for method, path in requests]

        assert {answer.status_code for answer in answers} == {401}
        assert {answer.json()["code"] for answer in answers} == {"unauthorized"}
        assert all(answer.headers["WWW-Authenticate"].startswith("Bearer") for answer in answers)
        assert [api.http.get(path).status_code for path in ("/livez", "/v1/operations", "/openapi.json")] == [200] * 3
        assert api.queued() == before


def test_a_key_does_what_its_scopes_say(serve_api: Callable[..., Any], tmp_path: Path) -> None:
    home = tmp_path / "home"
    submit, read, admin = (create_key(home, name, [name]) for name in ("submit", "read", "admin"))
    with serve_api() as api:
        accepted = api.http.post("/v1/jobs", json=SCALE, headers={"X-API-Key": submit})
        at = accepted.headers["Location"]

        assert accepted.status_code == 202
        assert api.http.post("/v1/jobs", json=SCALE, headers=bearer(admin)).status_code == 202
        for token, method, path in [
            (read, "POST", "/v1/jobs"),
            (submit, "GET", at),
            (submit, "POST", f"{at}/cancel"),
            (read, "DELETE", at),
            (read, "PUT", "/v1/arrays"),
        ]:
            answer = api.http.request(method, path, headers=bearer(token))
            assert (answer.status_code, answer.json()["code"]) == (403, "missing-scope"), (method, path)


def test_only_a_key_with_the_scope_submits_realtime_jobs(serve_api: Callable[..., Any], tmp_path: Path) -> None:
    home, urgent = tmp_path / "home", {**SCALE, "priority": "realtime"}
    plain, quick, admin = (
        create_key(home, "key", scopes) for scopes in (["submit"], ["submit", "realtime"], ["admin"])
    )
    with serve_api() as api:
        refused = api.http.post("/v1/jobs", json=urgent, headers=bearer(plain))

        assert (refused.status_code, refused.json()["code"]) == (403, "missing-scope")
        assert refused.json()["detail"] == "The priority 'realtime' needs the scope 'realtime'; the key has submit"
        assert api.queued()[0] == 0
        assert api.http.post("/v1/jobs", json=SCALE, headers=bearer(plain)).status_code == 202
        for token in (quick, admin):
            assert api.http.post("/v1/jobs", json=urgent, headers=bearer(token)).status_code == 202


def test_what_the_service_does_for_all_keys_is_told_to_those_with_the_scope(
    serve_api: Callable[..., Any], tmp_path: Path
) -> None:
    scopes = ["submit", "read", "cancel"], ["metrics"], ["admin"], ["worker"]
    plain, watcher, admin, worker = (create_key(tmp_path / "home", "key", given) for given in scopes)
    with serve_api() as api:
        for path in ("/metrics", "/performance-metrics"):
            answers = [api.http.get(path, headers=bearer(token)) for token in (plain, watcher, admin, worker)]

            assert [answer.status_code for answer in answers] == [403, 200, 200, 403]
            assert answers[0].json()["code"] == "missing-scope"
            detail = "This needs the scope 'metrics'; the key has submit, read, cancel"
            assert answers[0].json()["detail"] == detail
        assert api.http.get("/v1/jobs", headers=bearer(watcher)).status_code == 403
        open_to_all = [api.http.get(path).status_code for path in ("/livez", "/readyz", "/health")]
        assert open_to_all == [200, 503, 503]  # there is no worker


def test_a_key_of_a_release_before_the_scope_submits_realtime_jobs_and_a_new_one_beside_it_does_not(
    tmp_path: Path,
) -> None:
    file = tmp_path / "keys.json"
    old, reader = (create_key(tmp_path, name, scopes) for name, scopes in (("old", ["submit"]), ("reader", ["read"])))
    written = json.loads(file.read_text())
    del written["version"]
    file.write_text(json.dumps(written))

    new = create_key(tmp_path, "new", ["submit"])

    scopes = {token: read_keys(file)[token.split("_")[1]].scopes for token in (old, reader, new)}
    assert scopes == {old: ("submit", "realtime"), reader: ("read",), new: ("submit",)}


def test_a_key_that_may_not_read_is_not_told_that_its_job_runs(serve_api: Callable[..., Any], tmp_path: Path) -> None:
    home = tmp_path / "home"
    submit, both = create_key(home, "a", ["submit"]), create_key(home, "b", ["submit", "read"])
    with serve_api() as api:

        def status_and_attempt(token: str) -> tuple[str, int]:
            assert api.queue.claim(Claim("a worker", waits=True)) is None
            job = api.http.post("/v1/jobs", json=SCALE, headers=bearer(token)).json()
            record = api.queue.get(job["id"])
            assert record is not None
            assert record.state is State.RUNNING
            return job["status"], job["attempt"]

        assert (status_and_attempt(submit), status_and_attempt(both)) == (("queued", 0), ("running", 1))


def test_a_key_that_may_not_read_gets_no_result_by_waiting(serve_api: Callable[..., Any], tmp_path: Path) -> None:
    token = create_key(tmp_path / "home", "desk", ["submit"])
    with serve_api() as api:
        answer = api.http.post("/v1/jobs", json=SCALE, headers={**bearer(token), "Prefer": "wait=30"})

        assert answer.status_code == 202
        assert "Preference-Applied" not in answer.headers


def test_another_keys_jobs_and_arrays_do_not_exist(serve_api: Callable[..., Any], tmp_path: Path) -> None:
    mine, theirs = (create_key(tmp_path / "home", name, ["submit", "read", "cancel"]) for name in ("mine", "theirs"))
    with serve_api() as api:
        content = npy(np.arange(3.0))
        array = api.http.put("/v1/arrays", content=content, headers={**NPY, **bearer(mine)}).json()["id"]
        same = api.http.put("/v1/arrays", content=content, headers={**NPY, **bearer(theirs)}).json()["id"]
        at = api.http.post("/v1/jobs", json=SCALE, headers=bearer(mine)).headers["Location"]
        work(api.queue, api.store, at.rsplit("/", 1)[1])
        before = api.queued()

        answers = [
            api.http.request(method, path, headers=bearer(theirs))
            for method, path in [
                ("GET", at), ("GET", f"{at}/result"), ("GET", f"{at}/result/scaled"), ("POST", f"{at}/cancel"),
                ("DELETE", at), ("GET", f"/v1/arrays/{array}"), ("DELETE", f"/v1/arrays/{array}"),
            ]
        ]  # fmt: skip
        foreign = api.http.post(
            "/v1/jobs", json={**SCALE, "inputs": {"values": {"array": array}}}, headers=bearer(theirs)
        )

        assert array != same
        assert [answer.status_code for answer in answers] == [404] * 7
        assert foreign.status_code == 422
        assert foreign.json()["errors"] == [
            {"pointer": "/inputs/values/array", "detail": f"there is no array {array!r}"}
        ]
        assert api.http.get("/v1/jobs", headers=bearer(theirs)).json() == {"jobs": [], "next": None}
        assert api.queued() == before


def test_a_new_key_works_at_once_and_a_revoked_one_soon_does_not(serve_api: Callable[..., Any], tmp_path: Path) -> None:
    file = tmp_path / "home" / "keys.json"
    create_key(tmp_path / "home", "first", ["read"])
    with serve_api() as api:
        token = create_key(tmp_path / "home", "second", ["read"])
        assert api.http.get("/v1/jobs", headers=bearer(token)).status_code == 200

        for key_id in read_keys(file):
            assert revoke_key(file, key_id)

        wait_until(lambda: api.http.get("/v1/jobs", headers=bearer(token)).status_code != 200)
        assert api.http.get("/v1/jobs", headers=bearer(token)).status_code == 401
        # An emptied file does not open a service that had keys.
        assert httpx.get(f"{api.url}/v1/jobs").status_code == 401


def test_a_service_whose_last_key_was_revoked_stays_closed_when_it_starts_again(
    serve_api: Callable[..., Any], tmp_path: Path
) -> None:
    create_key(tmp_path / "home", "only", ["read"])
    file = tmp_path / "home" / "keys.json"
    for key_id in read_keys(file):
        assert revoke_key(file, key_id)

    with serve_api() as api:
        assert api.http.get("/v1/jobs").status_code == 401
        assert api.http.post("/v1/jobs", json=SCALE).status_code == 401


def test_the_first_key_closes_a_service_that_was_open(serve_api: Callable[..., Any], tmp_path: Path) -> None:
    with serve_api() as api:
        assert api.http.get("/v1/jobs").status_code == 200
        create_key(tmp_path / "home", "first", ["read"])

        wait_until(lambda: api.http.get("/v1/jobs").status_code != 200)
        assert api.http.get("/v1/jobs").status_code == 401


@pytest.mark.parametrize("scopes", [["submit", "read"], ["submit", "read", "cancel"]])
def test_the_client_runs_a_job_with_a_key_that_has_no_more_than_it_needs(
    serve_api: Callable[..., Any], tmp_path: Path, scopes: list[str]
) -> None:
    token = create_key(tmp_path / "home", "desk", scopes)
    with serve_api() as api, Client(api.url, token) as client:
        with pytest.raises(JobTimeout) as late:  # there is no worker
            client.run("scale", values=[1.0, 2.0], factor=2.0, timeout=0.1, on_timeout="cancel")

        hint = "needs the scope 'cancel'"
        assert any(hint in note for note in getattr(late.value, "__notes__", [])) == ("cancel" not in scopes)
        job = late.value.job if isinstance(late.value.job, str) else late.value.job.id
        assert client.job(job).status == ("canceled" if "cancel" in scopes else "queued")
