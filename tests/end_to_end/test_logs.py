"""What a whole service writes: each line of JSON, a request's id from HTTP to the worker, and no secret anywhere."""

import json
import re
import secrets
import subprocess
import time
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.conftest import free_port, serve, wait_until_ready
from warpdesk_server.app.access.keys import create_key, rotate_key
from warpdesk_server.service.redis_server import find_binary

RSI = {"operation": "rsi", "params": {"period": 3}, "inputs": {"prices": {"data": [44.34, 44.09, 44.15, 43.61, 44.33]}}}


@dataclass(frozen=True)
class Written:
    """Everything a service wrote, the ids of what was asked, and what must be nowhere."""

    lines: tuple[str, ...]
    jobs: dict[str, str]  # by the X-Request-ID it was sent with
    hidden: dict[str, str]
    answers: dict[str, Any]

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines if line.startswith("{")]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """A service with keys and a Redis with a password, which goes away for a moment; secrets in every place."""
    home = tmp_path_factory.mktemp("logged")
    token = create_key(home, "desk", ["admin"])
    second = rotate_key(home / "keys.json", token.split("_")[1], 3600)
    password, join = f"p{secrets.token_hex(12)}", f"wdj_{secrets.token_hex(16)}_0_{secrets.token_urlsafe(32)[:43]}"
    stranger = f"wd_{secrets.token_hex(6)}_{secrets.token_urlsafe(32)}"
    port = free_port()
    server = [find_binary(), "--port", str(port), "--requirepass", password, "--save", "", "--appendonly", "yes"]
    server += ["--dir", str(home), "--maxmemory-policy", "noeviction"]

    def redis() -> "subprocess.Popen[bytes]":
        return subprocess.Popen(server, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)

    running = redis()
    environment = {
        "WARPDESK_REDIS_URL": f"redis://:{password}@127.0.0.1:{port}/0",
        "WARPDESK_LOG_FORMAT": "json",
        "WARPDESK_LOG_LEVEL": "debug",
        "WARPDESK_DURABILITY": "everysec",
        "WARPDESK_DEVICE": "cpu",
    }
    jobs: dict[str, str] = {}
    answers: dict[str, Any] = {}
    service = serve(home, **environment)
    try:
        with service as up, httpx.Client(base_url=up.url, timeout=60) as http:
            http.headers["Authorization"] = f"Bearer {token}"
            trace = secrets.token_hex(16)
            for name, headers in {
                "order-7731": {"X-Request-ID": "order-7731", "Prefer": "wait=30", "Idempotency-Key": "k"},
                trace: {"traceparent": f"00-{trace}-00f067aa0ba902b7-01", "Prefer": "wait=30"},
                second: {"X-Request-ID": second[:64], "X-API-Key": second, "Prefer": "wait=30"},
            }.items():
                answer = http.post("/v1/jobs", json=RSI, headers=headers)
                assert answer.json()["status"] == "succeeded", answer.text
                jobs[name] = answer.json()["id"]
                answers[name] = answer.json()
            again = {"X-Request-ID": "another", "Idempotency-Key": "k"}
            answers["again"] = http.post("/v1/jobs", json=RSI, headers=again).json()
            for path in (f"/v1/jobs?{token}", f"/{stranger}", f"/v1/jobs/{stranger}", f"/v1/arrays/{join}"):
                http.get(path)
            with httpx.Client(base_url=up.url, timeout=60) as nobody:
                for name in (stranger, join, f"Basic {password}"):
                    nobody.get("/v1/jobs", headers={"Authorization": f"Bearer {name}", "X-Request-ID": name[:64]})
                    nobody.get("/v1/secagg/rounds/round_1/roster", headers={"Authorization": f"Bearer {name}"})
            running.terminate()
            running.wait()
            assert http.get("/v1/jobs").status_code == 503
            time.sleep(1.2)
            running = redis()
            wait_until_ready(up)
            text = up.log.read_text()
    finally:
        running.terminate()
        running.wait()
    bare = {"token": token, "rotated": second, "unknown": stranger}
    hidden = {name: value.split("_", 2)[2] for name, value in bare.items()}
    return Written(tuple(text.splitlines()), jobs, {**hidden, "password": password, "join": join[4:]}, answers)


def test_no_secret_is_written(written: Written) -> None:
    text = "\n".join(written.lines)
    assert {name for name, value in written.hidden.items() if value[:20] in text} == set()
    assert "***" in text, "the places were reached"


def test_every_line_of_the_api_and_the_worker_is_an_object_with_its_time_level_and_logger(written: Written) -> None:
    lines = [line for line in written.lines if not line.startswith(("{", "compiling "))]
    assert {line.split(":")[0] for line in lines} <= {
        "Warpdesk is starting at http", "Ready. Documentation to click through", "Try", "API keys of this service",
        "Device and Redis of this machine", "Stopped.",
        *(line.split(":")[0] for line in lines if line.startswith("  ")),
    }  # fmt: skip
    for event in written.events():
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", event["time"])
        assert event["level"] in ("debug", "info", "warning", "error", "critical")
        assert event["logger"]
        assert isinstance(event["message"], str)
    assert {"warpdesk.access", "warpdesk.jobs", "warpdesk.child"} <= {event["logger"] for event in written.events()}


def test_a_requests_id_goes_through_api_queue_and_worker(written: Written) -> None:
    for request_id, job_id in list(written.jobs.items())[:2]:
        events = [event for event in written.events() if event.get("request_id") == request_id]
        [access] = [event for event in events if event["logger"] == "warpdesk.access"]
        [ended] = [event for event in events if event["logger"] == "warpdesk.jobs"]
        assert access["message"].startswith("POST /v1/jobs 200")
        assert (ended["job"], ended["attempt"], ended["operation"]) == (job_id, 1, "rsi")
        assert re.fullmatch(r".+-\d+", ended["worker"])
        assert written.answers[request_id]["request_id"] == request_id


def test_a_replay_tells_of_the_request_that_made_the_job(written: Written) -> None:
    again = written.answers["again"]
    assert (again["id"], again["request_id"]) == (written.jobs["order-7731"], "order-7731")
