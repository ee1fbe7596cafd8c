"""The command line, as a user types it."""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from examples.prices import sp500
from tests.conftest import ROOT, Service, wait_until_ready
from warpdesk.cli import main


@pytest.fixture
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home for this test; nothing else of the service is configured."""
    for name in [name for name in os.environ if name.startswith("WARPDESK_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WARPDESK_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def warpdesk(home: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    clean = {name: value for name, value in os.environ.items() if not name.startswith("WARPDESK_")}
    return subprocess.run(
        [sys.executable, "-m", "warpdesk", *arguments],
        cwd=ROOT,
        env={**clean, "WARPDESK_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.timeout(500)
def test_submit_sends_a_column_of_a_csv_file(
    service: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wait_until_ready(service)
    close = sp500().close[:50]
    file = tmp_path / "prices.csv"
    file.write_text("Day,Close\n" + "".join(f"{day},{price}\n" for day, price in enumerate(close)))
    request = ["submit", "sma", "-p", "period=3", "-i", f"prices={file}:Close", "--url", service.url]
    assert main([*request, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["outputs"]["sma"][:2] == [None, None]
    assert answer["outputs"]["sma"][-1] == pytest.approx(close[-3:].mean(), rel=1e-12)
    assert main(request) == 0
    printed = capsys.readouterr().out
    assert re.search(r"^sma +50 float64, … ", printed, re.MULTILINE)
    assert re.search(r"^backend +(cpu|gpu)$", printed, re.MULTILINE)


@pytest.mark.timeout(500)
def test_submit_says_what_is_wrong_and_where(service: Service, capsys: pytest.CaptureFixture[str]) -> None:
    wait_until_ready(service)
    assert main(["submit", "matmul", "-p", "precision=half", "--url", service.url]) == 1
    said = capsys.readouterr().err
    assert "/params/precision: " in said
    assert "/inputs/a: " in said


@pytest.mark.parametrize(
    ("argument", "sentence"),
    [
        (["-i", "prices=missing.csv:Close"], "No such file"),
        (["-i", "prices=missing.txt"], "expected FILE.npy or FILE.csv:Column"),
        (["-p", "period"], "expected NAME=VALUE"),
    ],
)
def test_submit_refuses_what_it_cannot_read(
    argument: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["submit", "rsi", *argument, "--url", "http://127.0.0.1:9"]) == 1
    assert sentence in capsys.readouterr().err


def test_submit_without_a_service_says_how_to_start_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["submit", "rsi", "--url", "http://127.0.0.1:9"]) == 1  # the discard port: nobody listens
    assert "is `warpdesk serve` running?" in capsys.readouterr().err


def test_doctor_names_device_redis_and_home(own_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["healthy"] is True
    assert found["home"] == str(own_home)
    assert found["device"]["backend"] == "gpu" or found["device"]["reason"]
    assert re.search(r"version \d+\.\d+.*not running", found["redis"]["detail"])
    assert not own_home.exists(), "looking changes nothing"


def test_doctor_fails_where_the_configured_redis_does_not_answer(
    own_home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WARPDESK_REDIS_URL", "redis://someone:secret@127.0.0.1:9/0")
    assert main(["doctor"]) == 1
    said = capsys.readouterr().out
    assert "FAILED" in said
    assert "secret" not in said


def test_doctor_asks_a_running_redis_for_its_policy(
    own_home: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import redis

    monkeypatch.setenv("WARPDESK_REDIS_URL", redis_url)
    assert main(["doctor"]) == 0
    assert "answers" in capsys.readouterr().out
    with redis.Redis.from_url(redis_url, socket_timeout=5) as connection:
        connection.config_set("maxmemory-policy", "allkeys-lru")
        try:
            assert main(["doctor"]) == 1
        finally:
            connection.config_set("maxmemory-policy", "noeviction")
    assert "set it to noeviction" in capsys.readouterr().out


def test_keys_are_created_listed_and_revoked(own_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "create", "alice"]) == 0
    token = capsys.readouterr().out.strip()
    assert re.fullmatch(r"wd_[0-9a-f]{12}_\S{43}", token)
    assert main(["keys", "list"]) == 0
    [line] = capsys.readouterr().out.splitlines()
    key_id = line.split()[0]
    assert line.endswith("alice")
    assert token.split("_")[1] == key_id
    assert token not in (own_home / "keys.json").read_text()
    assert main(["keys", "revoke", key_id]) == 0
    assert main(["keys", "revoke", key_id]) == 1
    assert main(["keys", "list"]) == 0
    assert capsys.readouterr().out == ""
    assert main(["keys", "create", "bob", "--scopes", "everything"]) == 1


def test_serve_says_when_the_port_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ran = warpdesk(tmp_path / "home", "serve", "--port", str(port))
    assert ran.returncode == 1
    assert f"cannot listen on 127.0.0.1 port {port}" in ran.stderr
    assert "choose another --port" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_serve_refuses_to_be_reachable_without_keys(tmp_path: Path) -> None:
    ran = warpdesk(tmp_path / "home", "serve", "--host", "0.0.0.0", "--port", "0")  # noqa: S104
    assert ran.returncode == 1
    assert "warpdesk keys create" in ran.stderr
    assert not (tmp_path / "home" / "redis").exists(), "nothing was started"


def test_serve_says_when_another_service_has_the_home(service: Service) -> None:
    ran = warpdesk(service.home, "serve", "--port", "0", "--no-worker")
    assert ran.returncode == 1
    assert f"{service.home} is in use by another service (process {service.process.pid})" in ran.stderr


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    assert end.value.code == 0
    said = capsys.readouterr().out
    assert all(command in said for command in ("serve", "worker", "submit", "doctor", "keys"))
