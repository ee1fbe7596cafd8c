"""Rotation of keys: a key with a new token stays the same owner, and during the overlap both tokens are accepted."""

import json
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.app.access.test_auth import bearer
from tests.app.arrays.test_uploads import NPY, npy
from tests.app.conftest import SCALE
from tests.clocks import HOUR, Clock
from tests.conftest import ROOT
from tests.waiting import wait_until
from warpdesk_server.app.access.keys import UnknownKey, create_key, read_keys, revoke_key, rotate_key
from warpdesk_server.service.processes import module, spawn, stop


def test_a_rotated_key_owns_what_it_owned(serve_api: Callable[..., Any], tmp_path: Path) -> None:
    old = create_key(tmp_path / "home", "desk", ["submit", "read", "cancel"])
    file, key_id = tmp_path / "home" / "keys.json", old.split("_")[1]
    with serve_api() as api:
        array = api.http.put("/v1/arrays", content=npy(np.arange(3.0)), headers={**NPY, **bearer(old)}).json()["id"]
        sent = {"json": SCALE, "headers": {**bearer(old), "Idempotency-Key": "one"}}
        job = api.http.post("/v1/jobs", **sent).json()["id"]

        new = rotate_key(file, key_id, 3600)

        assert new != old
        assert new.split("_")[1] == key_id
        for token in (new, old, new):
            assert api.http.get(f"/v1/jobs/{job}", headers=bearer(token)).status_code == 200
            assert api.http.get(f"/v1/arrays/{array}", headers=bearer(token)).status_code == 200
        again = api.http.post("/v1/jobs", json=SCALE, headers={**bearer(new), "Idempotency-Key": "one"})
        same = api.http.put("/v1/arrays", content=npy(np.arange(3.0)), headers={**NPY, **bearer(new)})
        assert (again.json()["id"], again.headers["Idempotent-Replayed"]) == (job, "true")
        assert same.json()["id"] == array
        assert new.split("_", 2)[2] not in file.read_text()


def test_rotation_under_load_refuses_nobody(serve_api: Callable[..., Any], tmp_path: Path) -> None:
    """Eight callers send requests without a pause, four with the first token and four with the newest one."""
    tokens = [create_key(tmp_path / "home", "desk", ["submit", "read"])]
    file, key_id = tmp_path / "home" / "keys.json", tokens[0].split("_")[1]
    answers: list[tuple[int, int]] = []
    over = threading.Event()

    def ask(which: int) -> None:
        with httpx.Client(base_url=api.url, timeout=30) as http:
            while not over.is_set():
                number = len(tokens)
                answers.append((number, http.get("/v1/jobs", headers=bearer(tokens[which])).status_code))

    with serve_api() as api:
        threads = [threading.Thread(target=ask, args=(which,)) for which in (0, -1) * 4]
        for thread in threads:
            thread.start()
        try:
            for _ in range(5):
                enough = len(answers) + 40
                wait_until(lambda enough=enough: len(answers) >= enough)
                tokens.append(rotate_key(file, key_id, 3600))
            enough = len(answers) + 40
            wait_until(lambda: len(answers) >= enough)
        finally:
            over.set()
            for thread in threads:
                thread.join()

    assert {status for _, status in answers} == {200}
    assert {number for number, _ in answers} == {1, 2, 3, 4, 5, 6}


def test_a_token_whose_overlap_is_over_is_refused_and_told_why(serve_api: Callable[..., Any], tmp_path: Path) -> None:
    old = create_key(tmp_path / "home", "desk", ["read"])
    file, key_id = tmp_path / "home" / "keys.json", old.split("_")[1]
    with serve_api() as api:
        new = rotate_key(file, key_id, 3.0)
        assert api.http.get("/v1/jobs", headers=bearer(new)).status_code == 200
        assert api.http.get("/v1/jobs", headers=bearer(old)).status_code == 200
        wait_until(lambda: time.time() > read_keys(file)[key_id].earlier[0].expires_at)

        refused = api.http.get("/v1/jobs", headers=bearer(old))

        assert (refused.status_code, refused.json()["code"]) == (401, "unauthorized")
        assert "was rotated" in refused.json()["detail"]
        assert api.http.get("/v1/jobs", headers=bearer(new)).status_code == 200


def test_an_overlap_ends_at_a_time_that_a_clock_may_pass_and_come_back_to(redis_url: str, tmp_path: Path) -> None:
    home, clock = tmp_path / "home", Clock(tmp_path / "clock")
    old = create_key(home, "desk", ["read"])
    new = rotate_key(home / "keys.json", old.split("_")[1], HOUR / 2)
    listening = socket.create_server(("127.0.0.1", 0))
    command, needed = module("warpdesk_server.service.api", "--fd", str(listening.fileno()))
    settings = {**needed, **clock.environment, "WARPDESK_HOME": str(home), "WARPDESK_REDIS_URL": redis_url}
    log = tmp_path / "api.log"
    clean = {name: value for name, value in os.environ.items() if not name.startswith("WARPDESK_")}
    api = spawn(command, env={**clean, **settings}, cwd=ROOT, log=log, pass_fds=[listening.fileno()])

    def status_and_hint(token: str) -> tuple[int, bool]:
        answer = httpx.get(f"http://127.0.0.1:{port}/v1/jobs", headers=bearer(token), timeout=60)
        return answer.status_code, "was rotated" in answer.text

    try:
        port = listening.getsockname()[1]
        for ahead, of_old in ((0.0, (200, False)), (HOUR, (401, True)), (-HOUR, (200, False))):
            clock.set_ahead(ahead)
            assert [status_and_hint(old), status_and_hint(new)] == [of_old, (200, False)], log.read_text()
    finally:
        listening.close()
        stop(api)


def test_a_leaked_token_is_ended_at_once_by_an_overlap_of_nothing(
    serve_api: Callable[..., Any], tmp_path: Path
) -> None:
    first = create_key(tmp_path / "home", "desk", ["read"])
    file, key_id = tmp_path / "home" / "keys.json", first.split("_")[1]
    with serve_api() as api:
        second = rotate_key(file, key_id, 3600)
        third = rotate_key(file, key_id, 0)  # ends the overlap of the token before it as well
        assert api.http.get("/v1/jobs", headers=bearer(third)).status_code == 200

        statuses = [api.http.get("/v1/jobs", headers=bearer(token)).status_code for token in (first, second)]

        assert statuses == [401, 401]
        revoke_key(file, key_id)
        wait_until(lambda: api.http.get("/v1/jobs", headers=bearer(third)).status_code == 401)


def test_a_workers_key_is_rotated_like_any_other(serve_api: Callable[..., Any], tmp_path: Path) -> None:
    old = create_key(tmp_path / "home", "host-7", ["worker"])
    with serve_api() as api:
        new = rotate_key(tmp_path / "home" / "keys.json", old.split("_")[1], 3600)

        greeted = [api.http.get("/v1/worker", headers=bearer(token)).status_code for token in (old, new)]

        assert greeted == [204, 204]
        assert api.http.get("/v1/jobs", headers=bearer(new)).status_code == 403


def test_keys_that_are_changed_at_once_are_all_kept(tmp_path: Path) -> None:
    ids = [create_key(tmp_path, "one", ["read"]).split("_")[1] for _ in range(2)]
    file = tmp_path / "keys.json"
    jobs: list[Callable[[], object]] = [
        *(lambda: create_key(tmp_path, "more", ["read"]) for _ in range(10)),
        *(lambda key_id=key_id: rotate_key(file, key_id, 60) for key_id in ids * 5),
    ]
    threads = [threading.Thread(target=job) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    keys = read_keys(file)
    assert len(keys) == 12
    assert [len(keys[key_id].earlier) for key_id in ids] == [5, 5]


def test_a_key_that_is_not_there_is_not_rotated(tmp_path: Path) -> None:
    create_key(tmp_path, "one", ["read"])
    with pytest.raises(UnknownKey, match="there is no key 0123456789ab"):
        rotate_key(tmp_path / "keys.json", "0123456789ab", 60)


def test_a_key_that_was_never_rotated_is_written_as_earlier_releases_read_it(tmp_path: Path) -> None:
    create_key(tmp_path, "a", ["read"])
    (entry,) = json.loads((tmp_path / "keys.json").read_text())["keys"]
    assert entry.keys() == {"id", "name", "scopes", "sha256", "created_at"}
