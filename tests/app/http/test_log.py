"""What the API writes to its log: every request by its id when asked, a fault with its id, Redis when it changes."""

import logging
import os
import re
import signal
import socket
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.waiting import wait_until
from warpdesk_server.app.kit import errors
from warpdesk_server.service.processes import module, spawn, stop
from warpdesk_server.service.redis_server import RedisServer


def log_of_the_api(home: Path, redis_url: str, level: str | None, *ids: str) -> str:
    """What the API process writes while it answers one request of each id."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        command, needed = module("warpdesk_server.service.api", "--fd", str(listening.fileno()))
        settings = {"WARPDESK_HOME": str(home), "WARPDESK_REDIS_URL": redis_url}
        settings |= {} if level is None else {"WARPDESK_LOG_LEVEL": level}
        environment = {name: value for name, value in os.environ.items() if name != "WARPDESK_LOG_LEVEL"}
        log = home / "api.log"
        process = spawn(command, env={**environment, **settings, **needed}, log=log, pass_fds=(listening.fileno(),))
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{listening.getsockname()[1]}", timeout=30) as http:
                for request_id in ids:
                    answer = http.get("/v1/jobs", headers={"X-Request-ID": request_id})
                    assert (answer.status_code, answer.headers["X-Request-ID"]) == (200, request_id)
        finally:
            assert stop(process, 20) in (0, -signal.SIGTERM)
    return log.read_text()


def test_each_request_is_written_with_its_id_when_asked(tmp_path: Path, redis_url: str) -> None:
    lines = log_of_the_api(tmp_path, redis_url, "info", "one", "two").splitlines()

    when = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}"
    assert len(lines) == 2
    for line, request_id in zip(lines, ("one", "two"), strict=True):
        assert re.fullmatch(rf"{when} INFO warpdesk\.access: GET /v1/jobs 200 \d+\.\d ms id={request_id}", line), line


def test_a_service_that_is_not_asked_writes_nothing_of_requests(tmp_path: Path, redis_url: str) -> None:
    assert log_of_the_api(tmp_path, redis_url, None, "one", "two") == ""


def test_an_api_in_a_process_leaves_the_log_handlers_of_others_open(serve_api: Any, tmp_path: Path) -> None:
    handler = logging.FileHandler(tmp_path / "log")
    stream = handler.stream
    with serve_api():
        pass
    assert not stream.closed
    handler.close()


def test_a_level_that_does_not_exist_stops_the_start(tmp_path: Path) -> None:
    command, needed = module("warpdesk_server.service.api", "--fd", "0")
    environment = {**os.environ, **needed, "WARPDESK_HOME": str(tmp_path), "WARPDESK_LOG_LEVEL": "loud"}
    with socket.create_server(("127.0.0.1", 0)) as listening:
        ended = subprocess.run(
            command, env=environment, stdin=listening, capture_output=True, text=True, timeout=60, check=False
        )

    assert ended.returncode != 0
    assert "log_level" in ended.stderr


class BrokenStore:
    def find(self, *_: Any) -> None:
        raise RuntimeError("a reason")


def test_a_fault_is_written_with_its_trace_and_the_id_of_its_request(
    serve_api: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    with serve_api() as api:
        api.app.state.services = replace(api.app.state.services, store=BrokenStore())
        path = "/v1/arrays/blake3:" + "0" * 64

        answer = api.http.get(path)

    (fault,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert answer.status_code == 500
    assert fault.getMessage() == f"GET {path} failed"
    assert fault.exc_info is not None


def test_a_redis_that_goes_and_comes_back_is_written_once_each(
    tmp_path: Path, serve_api: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    def redis_messages() -> list[str]:
        texts = [record.getMessage() for record in caplog.records]
        return [text.partition(":")[0] for text in texts if text.startswith("Redis")]

    server = RedisServer(tmp_path / "r")
    with serve_api(server.url) as api:
        assert [api.http.get("/v1/jobs").status_code for _ in range(5)] == [503] * 5
        assert redis_messages() == ["Redis cannot be used"]
        server.start()
        try:
            wait_until(lambda: api.http.get("/v1/jobs").status_code == 200)
            assert [api.http.get("/v1/jobs").status_code for _ in range(5)] == [200] * 5
        finally:
            server.stop()

    assert redis_messages() == ["Redis cannot be used", "Redis can be used again"]


def test_a_path_makes_no_line_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "warpdesk.api"):
        errors.unforeseen("GET", "/v1/jobs/x\nwarpdesk.audit: nothing happened", RuntimeError())
    assert caplog.messages == ["GET /v1/jobs/x%0Awarpdesk.audit:%20nothing%20happened failed"]
