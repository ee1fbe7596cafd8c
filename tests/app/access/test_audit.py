"""The audit log: what an admin does is written before it is done."""

import json
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.app.access.test_auth import bearer
from tests.app.conftest import SCALE, Live
from tests.app.jobs.test_dead_letters import dead
from warpdesk_server.app.access.audit import Audit, AuditEntry, AuditUnavailable
from warpdesk_server.app.access.keys import create_key, digest_of, rotate_key

BUDGET = {"name": "a", "dataset": "orders", "accountant": "pure", "neighbouring": "add_remove", "epsilon": "1"}


def audit_lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.fixture
def desk(serve_api: Callable[..., Any], tmp_path: Path) -> Iterator[Live]:
    """An API whose client has an admin's key, "boss"."""
    token = create_key(tmp_path / "home", "boss", ["admin"])
    with serve_api() as api:
        api.http.headers.update(bearer(token))
        yield api


def test_every_route_that_only_an_admin_may_use_leaves_a_line(desk: Live) -> None:
    others = bearer(create_key(desk.settings.home, "others", ["submit", "read", "cancel", "metrics"]))
    paths = desk.http.get("/openapi.json").json()["paths"]
    endless = paths.pop("/v1/events")  # whose answer never ends
    assert endless.keys() == {"get"}
    routes = [(method.upper(), path) for path, methods in paths.items() for method in methods]

    def ask(method: str, path: str, **headers: str) -> int:
        status: int = desk.http.request(method, path.replace("{", "").replace("}", ""), headers=headers).status_code
        return status

    admins = {(method, path) for method, path in routes if ask(method, path, **others) == 403}
    for method, path in routes:
        ask(method, path, **{"X-Request-ID": "walk"})

    lines = [line for line in audit_lines(desk.settings.audit_path) if line["request_id"] == "walk"]
    assert {line["action"] for line in lines} == {f"{method} {path}" for method, path in admins}
    assert {line["who"]["name"] for line in lines} == {"boss"}
    assert len(admins) >= 5


def test_what_an_admin_changes_is_told_with_who_what_and_what_came_of_it(desk: Live) -> None:
    made = desk.http.post("/v1/budgets", json=BUDGET, headers={"X-Request-ID": "the-first"}).json()["id"]
    again = desk.http.post("/v1/budgets", json=BUDGET)
    desk.http.post(f"/v1/budgets/{made}/close")
    job_id = dead(desk)
    desk.http.post(f"/v1/dead-letters/{job_id}/rerun")
    desk.http.get("/v1/dead-letters")

    lines = audit_lines(desk.settings.audit_path)
    assert again.status_code == 409
    assert [(line["action"], line["target"], line["outcome"]) for line in lines] == [
        ("POST /v1/budgets", None, "begun"),
        ("POST /v1/budgets", made, "succeeded"),
        ("POST /v1/budgets", None, "begun"),
        ("POST /v1/budgets", None, "dataset-taken"),
        ("POST /v1/budgets/{budget_id}/close", made, "begun"),
        ("POST /v1/budgets/{budget_id}/close", made, "succeeded"),
        ("POST /v1/dead-letters/{job_id}/rerun", job_id, "begun"),
        ("POST /v1/dead-letters/{job_id}/rerun", job_id, "succeeded"),
        ("GET /v1/dead-letters", None, "read"),
    ]
    assert [line["request_id"] for line in lines[:2]] == ["the-first"] * 2
    assert lines[0]["entry"] == lines[1]["entry"] != lines[2]["entry"]
    assert stat.S_IMODE(desk.settings.audit_path.stat().st_mode) == 0o600
    assert "orders" not in desk.settings.audit_path.read_text()


def test_a_round_that_an_admin_ends_for_another_is_told_and_ones_own_is_not(desk: Live) -> None:
    creator = bearer(create_key(desk.settings.home, "creator", ["submit", "read"]))
    new = {"clients": 3, "min_clients": 3, "dimension": 2, "quantisation": {"clip": "1", "scale": "8"}}

    def ended(headers: dict[str, str], by: dict[str, str]) -> str:
        made: str = desk.http.post("/v1/secagg/rounds", json=new, headers=headers).json()["id"]
        assert desk.http.delete(f"/v1/secagg/rounds/{made}", headers=by).status_code == 204
        return made

    ended(creator, creator)
    assert not desk.settings.audit_path.exists()
    theirs = ended(creator, {})

    assert {(line["target"], line["outcome"]) for line in audit_lines(desk.settings.audit_path)} == {
        (theirs, "begun"), (theirs, "succeeded"),
    }  # fmt: skip


def test_what_cannot_be_written_down_is_not_done(serve_api: Callable[..., Any], tmp_path: Path) -> None:
    token = create_key(tmp_path / "home", "boss", ["admin"])
    with serve_api(audit_file=Path("/dev/full")) as api:  # a disk without room
        api.http.headers.update(bearer(token))
        job_id = dead(api)
        answers = [
            api.http.post("/v1/budgets", json=BUDGET),
            api.http.post(f"/v1/dead-letters/{job_id}/rerun"),
            api.http.get("/v1/dead-letters"),
        ]

        assert [(answer.status_code, answer.json()["code"]) for answer in answers] == [(503, "audit-unavailable")] * 3
        assert all(answer.headers["Retry-After"] == "60" for answer in answers)
        assert api.http.get(f"/v1/jobs/{job_id}").json()["status"] == "failed"
        assert api.http.post("/v1/jobs", json=SCALE).status_code == 202


def test_the_log_is_read_over_http_page_by_page_and_then_as_it_grows(desk: Live) -> None:
    for _ in range(3):
        desk.http.post("/v1/budgets", json={**BUDGET, "epsilon": "-1"})
    with desk.settings.audit_path.open("a") as file:
        file.write('{"at":"2026-\n')  # a full disk cut it off

    last = desk.http.get("/v1/audit", params={"limit": 2}).json()
    found, url = [], "/v1/audit?after=0&limit=3"
    while page := desk.http.get(url).json()["entries"]:
        found += page
        url = desk.http.get(url).json()["next"]
        if len(found) > 20:
            break

    assert [line["outcome"] for line in last["entries"]] == ["read"], "the cut line is left out"
    assert [line["outcome"] for line in found[:6]] == ["begun", "invalid-request"] * 3
    assert found[0]["who"]["name"] == "boss"
    fresh = desk.http.get(last["next"]).json()["entries"]
    assert {line["action"] for line in fresh} == {"GET /v1/audit"}


def test_a_log_that_was_renamed_is_read_from_its_new_beginning(tmp_path: Path) -> None:
    audit = Audit(tmp_path / "audit.jsonl")
    assert audit.lines(None, 10) == ([], 0)
    audit.begin(AuditEntry({"user": "root"}, "keys revoke", "abc"))
    (line,), position = audit.lines(None, 10)
    assert audit.lines(position, 10) == ([], position)
    assert audit.lines(position + 1, 10) == ([line], position)


def test_keys_are_listed_without_what_their_tokens_could_be_known_by(desk: Live) -> None:
    token = create_key(desk.settings.home, "trader", ["submit"])
    rotated = rotate_key(desk.settings.keys_path, token.split("_")[1], 60.0)
    desk.http.get("/v1/jobs", headers=bearer(rotated))  # from then on it is known here

    answer = desk.http.get("/v1/keys")

    boss, trader = answer.json()["keys"]
    assert (boss["name"], boss["scopes"], boss["rotated_at"]) == ("boss", ["admin"], None)
    assert (trader["id"], trader["scopes"]) == (token.split("_")[1], ["submit"])
    assert trader["earlier_tokens_until"] > trader["rotated_at"]
    for secret in (token, rotated, digest_of(token), digest_of(rotated)):
        assert secret.rpartition("_")[2] not in answer.text


def test_a_line_after_one_that_a_full_disk_cut_off_is_whole(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    file.write_text('{"at":"2026-')

    Audit(file).begin(AuditEntry({"user": "root"}, "keys revoke", "abc"))

    torn, line = file.read_text().splitlines()
    assert torn == '{"at":"2026-'
    assert json.loads(line)["outcome"] == "begun"


def test_a_log_that_was_renamed_goes_on_in_a_new_file(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    audit = Audit(file)
    with audit.record(AuditEntry({"user": "root"}, "keys create", None)) as entry:
        file.rename(tmp_path / "audit.jsonl.1")
        entry.target = "abc"

    assert [line["outcome"] for line in audit_lines(tmp_path / "audit.jsonl.1")] == ["begun"]
    assert [(line["outcome"], line["target"]) for line in audit_lines(file)] == [("succeeded", "abc")]
    with pytest.raises(AuditUnavailable, match="cannot be written: Is a directory"):
        Audit(tmp_path).begin(entry)


def test_the_first_line_of_a_file_forces_its_name_to_the_disk_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forced: list[bool] = []
    monkeypatch.setattr(
        "warpdesk_server.app.access.audit.os.fsync", lambda found: forced.append(stat.S_ISDIR(os.fstat(found).st_mode))
    )
    audit = Audit(tmp_path / "audit.jsonl")
    for _ in range(2):
        audit.begin(AuditEntry({"user": "root"}, "keys revoke", "abc"))
    assert forced == [False, True, False]
