"""The command line, as a user types it."""

import json
import os
import re
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from pydantic import SecretStr

from examples.prices import sp500
from tests.chaos.cluster import Cluster
from tests.conftest import ROOT, Service, serve, wait_until_ready
from tests.redis_servers import server
from warpdesk.cli.main import OF_THE_SERVICE, main
from warpdesk.cli.values import typed
from warpdesk.client import Client
from warpdesk_server.app.main import create_app
from warpdesk_server.app.settings import Settings
from warpdesk_server.cli import COMMANDS
from warpdesk_server.doctor.broker import broker
from warpdesk_server.doctor.ledger import ledger
from warpdesk_server.doctor.replicas import replicas
from warpdesk_server.kernels.catalogue import OPERATIONS
from warpdesk_server.privacy.budgets import NewBudget
from warpdesk_server.privacy.database import connect
from warpdesk_server.privacy.ledger import Ledger
from warpdesk_server.privacy.opening import open_ledger
from warpdesk_server.privacy.seeds import Ring
from warpdesk_server.service.home import UnusableHome, command, make_private
from warpdesk_server.workers.settings import ledger_in
from warpdesk_server.workers.store.spool import SpoolStore


@pytest.fixture
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home for this test; nothing else of the service is configured."""
    for name in [name for name in os.environ if name.startswith("WARPDESK_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WARPDESK_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def warpdesk(home: Path, *arguments: str, **settings: str) -> "subprocess.CompletedProcess[str]":
    clean = {name: value for name, value in os.environ.items() if not name.startswith("WARPDESK_")}
    return subprocess.run(
        [sys.executable, "-m", "warpdesk", *arguments],
        cwd=ROOT,
        env={**clean, "WARPDESK_HOME": str(home), **settings},
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
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("Day,Close\n1,2\n2,4_0\n", "Row 3, column 'Close': '4_0' is not a number"),
        ("Day,Close\n1,2\n2\n", "Row 3 has 1 cells, row 1 has 2 (malformed-csv, HTTP "),
        ("Day,Open\n1,2\n", "/columns: There is no column 'Close'; there are Day, Open (malformed-csv, HTTP "),
    ],
)
def test_submit_shows_what_the_service_refuses_in_a_csv_file(
    content: str, message: str, service: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wait_until_ready(service)
    (tmp_path / "prices.csv").write_text(content)
    request = ["submit", "sma", "-p", "period=1", "-i", f"prices={tmp_path}/prices.csv:Close"]
    assert main([*request, "--url", service.url]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.timeout(500)
def test_submit_reads_a_csv_file_that_begins_with_a_byte_order_mark(
    service: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wait_until_ready(service)
    (tmp_path / "prices.csv").write_text("\ufeffClose,Volume\n1,9\n3,9\n", encoding="utf-8")
    request = ["submit", "sma", "-p", "period=2", "-i", f"prices={tmp_path}/prices.csv:Close"]
    assert main([*request, "--url", service.url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["outputs"]["sma"] == [None, 2.0]


@pytest.mark.timeout(500)
def test_submit_prints_json_that_has_no_numbers_beyond_json(
    service: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wait_until_ready(service)
    np.save(tmp_path / "a.npy", np.array([[1e308, -1e308, 1.0]]))
    np.save(tmp_path / "b.npy", np.array([[1e308], [0.0], [0.0]]))
    np.save(tmp_path / "c.npy", np.array([[0.0], [1e308], [0.0]]))
    request = ["submit", "matmul", "--json", "--url", service.url, "-i", f"a={tmp_path}/a.npy"]
    for right, product in (("b", [["Infinity"]]), ("c", [["-Infinity"]])):
        assert main([*request, "-i", f"b={tmp_path}/{right}.npy"]) == 0
        answer = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
        assert answer["outputs"]["product"] == product


@pytest.mark.timeout(500)
def test_submit_leaves_an_input_that_does_not_exist_to_the_service(
    service: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wait_until_ready(service)
    np.save(tmp_path / "a.npy", np.ones(3))
    (tmp_path / "a.csv").write_text("Close\n1\n2\n")
    for file in ("a.npy", "a.csv:Close"):
        request = ["submit", "sma", "-p", "period=1", "-i", f"price={tmp_path}/{file}", "--url", service.url]
        assert main(request) == 1
        assert "/inputs/price: " in capsys.readouterr().err


@pytest.mark.timeout(500)
def test_submit_sends_priority_and_deadline_and_the_same_key_gets_the_same_job(
    service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    wait_until_ready(service)
    params = "payoff=european option=call spot=100 strike=99 rate=0.05 volatility=0.2 maturity=1 steps=1 paths=1000"
    request = ["submit", "monte_carlo", *(part for param in params.split() for part in ("-p", param))]
    request += ["--width", "2", "--priority", "research", "--deadline", "500"]
    request += ["--idempotency-key", "of the command line", "--url", service.url, "--json"]
    assert [main(request), main(request)] == [0, 0]
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert first == second

    with Client(service.url) as client:
        job = client.job(first["job"])
    assert job.priority == "research"
    assert job.deadline_at is not None
    assert job.shards is not None
    assert job.shards.count == 2


def test_submit_says_what_is_wrong_and_where(service: Service, capsys: pytest.CaptureFixture[str]) -> None:
    wait_until_ready(service)
    assert main(["submit", "matmul", "-p", "precision=half", "--url", service.url]) == 1
    message = capsys.readouterr().err
    assert "/params/precision: " in message
    assert message.count("/inputs/a: ") == 1, "each place is named once"


@pytest.mark.timeout(500)
def test_submit_sends_decimal_strings_as_text(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_until_ready(service)
    send, sent = httpx.Client.send, list[httpx.Request]()

    def noted(client: httpx.Client, request: httpx.Request, **options: Any) -> httpx.Response:
        sent.append(request)
        return send(client, request, **options)

    monkeypatch.setattr(httpx.Client, "send", noted)
    np.save(tmp_path / "values.npy", np.array([1.0, 2.0]))
    request = ["submit", "dp_noise", "-i", f"values={tmp_path}/values.npy", "--url", service.url]
    request += ["-p", "epsilon=1", "-p", 'sensitivity={"norm": "l1", "value": "1"}', "-p", "unaccounted=true"]
    assert main([*request, "-p", "mode=aggregate", "-p", "mechanism=discrete_laplace"]) == 0
    [submission] = [request for request in sent if (request.method, request.url.path) == ("POST", "/v1/jobs")]
    params = json.loads(submission.content)["params"]
    assert (params["epsilon"], params["sensitivity"]) == ("1", {"norm": "l1", "value": "1"})


@pytest.mark.timeout(500)
@pytest.mark.parametrize("name", ["backend", "timeout", "operation", "params"])
def test_submit_leaves_a_parameter_that_is_named_like_an_option_to_the_service(
    service: Service, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wait_until_ready(service)
    np.save(tmp_path / "prices.npy", np.arange(20.0))
    request = ["submit", "rsi", "-i", f"prices={tmp_path}/prices.npy", "-p", "period=14", "-p", f"{name}=1"]
    assert main([*request, "--url", service.url]) == 1
    message = capsys.readouterr().err
    assert message == (
        f"warpdesk: /params/{name}: there is no field '{name}' here; there are period, convention, flat, nan_policy "
        "(invalid-request, HTTP 422)\n"
    )


@pytest.mark.parametrize(
    ("text", "operation", "name", "value"),
    [
        ("1", "dp_noise", "epsilon", "1"),
        ("1e-3", "dp_noise", "rho", "1e-3"),
        ('"2"', "dp_noise", "scale", "2"),
        ("null", "dp_noise", "epsilon", None),
        ("true", "dp_noise", "unaccounted", True),
        ('{"norm": "l1", "value": "1"}', "dp_noise", "sensitivity", {"norm": "l1", "value": "1"}),
        ("14", "rsi", "period", 14),
        ("50", "rsi", "flat", 50),
        ("nan", "rsi", "flat", "nan"),
        ("2.5", "bollinger", "width", 2.5),
        ("null", "matmul", "algorithm", None),
        ("1", "matmul", "no_such_parameter", 1),
    ],
)
def test_what_is_typed_becomes_what_the_schema_takes(text: str, operation: str, name: str, value: object) -> None:
    schema = OPERATIONS[operation].params.model_json_schema()["properties"].get(name, {})
    assert repr(typed(text, schema)) == repr(value)


@pytest.mark.parametrize(
    ("argument", "sentence"),
    [
        (["-i", "timeout=missing.csv:Close"], "No such file"),
        (["-i", "prices=missing.csv:Close"], "No such file"),
        (["-i", "prices=missing.txt"], "expected FILE.npy, FILE.csv:Column"),
        (["-i", "prices=missing.csv"], "No such file"),
        (["-p", "period"], "expected NAME=VALUE"),
        (["-i", "prices"], "expected NAME=FILE"),
        (["-p", "period=2", "-p", "period=3"], "-p period is given twice: 2 and 3"),
        (["-i", "prices=a.npy", "-i", "prices=b.npy"], "-i prices is given twice: a.npy and b.npy"),
        (["-p", "prices=2", "-i", "prices=b.npy"], "prices is given both with -p and with -i"),
    ],
)
def test_submit_refuses_what_it_cannot_read(
    argument: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["submit", "rsi", *argument, "--url", "http://127.0.0.1:9"]) == 1
    assert sentence in capsys.readouterr().err


def test_submit_without_a_service_says_how_to_start_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["submit", "rsi", "--url", "http://127.0.0.1:9"]) == 1  # the discard port: nobody listens
    assert "is `warpdesk serve` running there? Another address is named by --url" in capsys.readouterr().err


def test_doctor_names_the_redis_a_service_would_start(own_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--quick", "--json"]) == 0
    found = {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    assert re.search(r"version \d+\.\d+.*not running", found["redis"]["found"])
    assert not own_home.exists(), "looking changes nothing"


def test_doctor_replays_the_ledger_and_names_what_does_not_fit(
    own_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def looked() -> dict[str, str]:
        main(["doctor", "--quick", "--json"])
        checks = json.loads(capsys.readouterr().out)["checks"]
        found: dict[str, str] = next(check for check in checks if check["name"] == "ledger")
        return found

    assert "it is made at the first start" in looked()["found"]
    own_home.mkdir(parents=True)
    engine = connect(ledger_in(own_home))
    books = Ledger(engine, Ring(own_home / "ledger.key"))
    books.prepare()
    made = books.budgets.open(NewBudget("n", "d", "pure", "add_remove", "local", epsilon="1"))
    assert "1 budgets, 0 entries, every chain fits" in looked()["found"]
    with engine.begin() as connection:
        connection.exec_driver_sql('UPDATE budgets SET spent = \'{"epsilon":"0.5"}\'')
    engine.dispose()
    damaged = looked()
    assert damaged["status"] == "failed"
    assert made.id in damaged["found"]
    (own_home / "ledger.key").rename(own_home / "lost")
    assert "is missing" in looked()["found"]
    assert not (own_home / "ledger.key").exists(), "looking makes no key"


def test_doctor_does_not_bind_an_empty_database_to_the_key_that_is_here(own_home: Path) -> None:
    """Whoever starts first does, and with another key than the API's the API could not start."""
    own_home.mkdir(parents=True)
    Path(own_home / "ledger.db").touch()
    Ring(own_home / "ledger.key")
    looked = ledger(Settings(home=own_home))
    assert (looked.status, "is empty" in looked.found) == ("ok", True)
    engine = connect(ledger_in(own_home))
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM sqlite_master").scalar() == 0
    engine.dispose()
    (own_home / "ledger.key").unlink()
    Ring(own_home / "ledger.key")  # another one
    started = connect(ledger_in(own_home))
    Ledger(started, Ring(own_home / "ledger.key")).prepare()
    started.dispose()
    assert "every chain fits" in ledger(Settings(home=own_home)).found


def test_doctor_shows_no_password_of_the_ledger(own_home: Path) -> None:
    url = SecretStr("postgresql://me:hush@127.0.0.1:1/n?password=hush")
    looked = ledger(Settings(home=own_home, ledger_url=url, ledger_anchor_url=url))
    assert looked.status == "failed"
    assert "hush" not in looked.found


def test_doctor_fails_where_the_configured_redis_does_not_answer(
    own_home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WARPDESK_REDIS_URL", "redis://127.0.0.1:9/0")
    assert main(["doctor", "--quick"]) == 1
    output = capsys.readouterr().out
    assert re.search(r"^redis +FAILED +WARPDESK_REDIS_URL=redis://127.0.0.1:9/0, no answer", output, re.MULTILINE)
    assert "to mend it: start it, or correct or unset WARPDESK_REDIS_URL" in output


@pytest.mark.parametrize(
    "url",
    [
        "redis://someone:secret@127.0.0.1:9/0",
        "redis://:secret@127.0.0.1:9/0",
        "redis://127.0.0.1:9/0?password=secret",
        "redis://127.0.0.1:9/0?db=0&Password=secret&client_name=x",
        "unix://someone:secret@/nowhere.sock?password=secret",
        "redis://:a/secret@127.0.0.1:9/0",
        "redis://:secret/b?c#d@127.0.0.1:9/0",
        "redis://:secret@[127.0.0.1:9/0",
        "redis://:a@b:secret@127.0.0.1:9/0",
    ],
)
def test_doctor_does_not_show_the_password_of_redis(
    url: str, own_home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WARPDESK_REDIS_URL", url)
    assert main(["doctor", "--quick"]) == 1
    output = capsys.readouterr().out
    assert "***" in output
    assert "secret" not in output


@pytest.mark.parametrize("command", [["serve", "--no-worker", "--port", "0"], ["worker"]])
@pytest.mark.parametrize(
    "url",
    [
        "redis://worker:se/cret@127.0.0.1:9/0",
        "http://worker:se@127.0.0.1:9/0",
        "redis+sentinel://worker:se/cret@127.0.0.1:9/main/0",
        "redis+sentinel://worker:se@127.0.0.1:9",
    ],
)
def test_a_url_of_redis_that_cannot_be_read_is_not_told(
    command: list[str], url: str, own_home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WARPDESK_REDIS_URL", url)
    assert main(command) == 2
    message = capsys.readouterr().err
    assert "WARPDESK_REDIS_URL is not one such as" in message
    assert "'se" not in message


def test_serve_and_worker_refuse_a_redis_that_cannot_replicate(
    own_home: Path, oldest_redis: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WARPDESK_DURABILITY", "replicated")
    assert main(["serve", "--no-worker", "--port", "0"]) == 1
    assert "WARPDESK_DURABILITY is replicated, and the service's own Redis has no replica" in capsys.readouterr().err

    monkeypatch.setenv("WARPDESK_REDIS_URL", oldest_redis)
    assert main(["serve", "--no-worker", "--port", "0"]) == 1
    assert "WARPDESK_DURABILITY=replicated needs Redis 7.2 or later" in capsys.readouterr().err
    refused = warpdesk(own_home, "worker", WARPDESK_REDIS_URL=oldest_redis, WARPDESK_DURABILITY="replicated")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "WARPDESK_DURABILITY=replicated needs Redis 7.2 or later" in refused.stderr


def test_doctor_has_a_change_confirmed_by_replicas(own_home: Path, tmp_path: Path) -> None:
    with Cluster(tmp_path / "cluster", server("valkey")) as cluster:
        settings = Settings(redis_url=cluster.url, durability="replicated")
        assert broker(settings).status == "ok"
        assert (found := replicas(settings)).status == "ok", found

        with cluster.primary().client() as primary:
            primary.config_set("min-replicas-to-write", 0)
        assert replicas(settings).remedy == (
            "redis-cli CONFIG SET min-replicas-to-write 1, and the same in each server's redis.conf"
        )
        missing = replicas(settings.model_copy(update={"replicas": 3}))
        assert (missing.status, missing.found.partition(",")[0]) == (
            "failed",
            "a change is not confirmed: 2 of 3 replicas have it on the disk",
        )


def test_doctor_asks_a_running_redis_for_its_policy(
    own_home: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import redis

    monkeypatch.setenv("WARPDESK_REDIS_URL", redis_url)
    assert main(["doctor", "--quick"]) == 0
    assert "answers" in capsys.readouterr().out
    with redis.Redis.from_url(redis_url, socket_timeout=5) as connection:
        connection.config_set("maxmemory-policy", "allkeys-lru")
        try:
            assert main(["doctor", "--quick"]) == 1
        finally:
            connection.config_set("maxmemory-policy", "noeviction")
    assert "to mend it: redis-cli CONFIG SET maxmemory-policy noeviction" in capsys.readouterr().out


def test_a_rotated_key_is_listed_with_the_end_of_its_overlap_and_all_is_written_down(
    own_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["keys", "create", "alice"]) == 0
    first = capsys.readouterr().out.strip()
    key_id = first.split("_")[1]
    assert main(["keys", "rotate", key_id, "--overlap", "24h"]) == 0
    second = capsys.readouterr().out.strip()
    assert second.startswith(f"wd_{key_id}_")
    assert second != first
    assert main(["keys", "list"]) == 0
    assert "an earlier token expires 20" in capsys.readouterr().out
    assert main(["keys", "rotate", "0123456789ab"]) == 1
    assert main(["keys", "revoke", key_id]) == 0

    lines = [json.loads(line) for line in (own_home / "audit.jsonl").read_text().splitlines()]
    assert [(line["action"], line["target"], line["outcome"]) for line in lines] == [
        ("keys create submit,read,cancel", None, "begun"),
        ("keys create submit,read,cancel", key_id, "succeeded"),
        ("keys rotate --overlap 86400s", key_id, "begun"),
        ("keys rotate --overlap 86400s", key_id, "succeeded"),
        ("keys rotate --overlap 86400s", "0123456789ab", "begun"),
        ("keys rotate --overlap 86400s", "0123456789ab", "failed: UnknownKey"),
        ("keys revoke", key_id, "begun"),
        ("keys revoke", key_id, "succeeded"),
    ]
    assert {line["who"]["uid"] for line in lines} == {os.getuid()}
    assert second.split("_", 2)[2] not in str(lines)


def test_a_key_is_rotated_and_revoked_by_its_name_if_no_other_has_it(
    own_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = []
    for name in ("alice", "bob", "bob"):
        assert main(["keys", "create", name]) == 0
        ids.append(capsys.readouterr().out.split("_")[1])
    assert main(["keys", "rotate", "alice"]) == 0
    assert capsys.readouterr().out.startswith(f"wd_{ids[0]}_")
    for action in ("rotate", "revoke"):
        assert main(["keys", action, "bob"]) == 1
        assert f"2 keys are named 'bob': {ids[1]}, {ids[2]}; give an id" in capsys.readouterr().err
    assert main(["keys", "revoke", "alice"]) == 0
    assert main(["keys", "revoke", "alice"]) == 1
    assert "there is no key alice" in capsys.readouterr().err


def test_a_key_is_not_made_where_that_cannot_be_written_down(
    own_home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WARPDESK_AUDIT_FILE", "/dev/full")
    assert main(["keys", "create", "alice"]) == 1
    assert "cannot be written: No space left on device" in capsys.readouterr().err
    assert not (own_home / "keys.json").exists()


def test_root_makes_no_key_that_the_service_could_not_read(
    own_home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own_home.mkdir()
    if os.geteuid() == 0:
        os.chown(own_home, 10001, 10001)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    owner = own_home.stat().st_uid
    for arguments in (["create", "alice"], ["rotate", "0123456789ab"], ["revoke", "0123456789ab"]):
        assert main(["keys", *arguments]) == 2
        assert f"belongs to the user {owner}, who could not read what root writes there" in capsys.readouterr().err
    assert list(own_home.iterdir()) == []


def test_a_key_file_that_cannot_be_written_is_told_in_a_sentence(
    own_home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WARPDESK_KEYS_FILE", "/proc/keys.json")  # root cannot write there either
    assert main(["keys", "create", "alice"]) == 1
    assert capsys.readouterr().err == "warpdesk: /proc/.keys.json.lock cannot be used: No such file or directory\n"


def test_the_ledgers_key_is_rotated_by_a_command(own_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "rotate-ledger"]) == 1
    file = own_home / "ledger.key"
    own_home.mkdir(exist_ok=True)
    before = Ring(file).keys()
    assert main(["keys", "rotate-ledger", "--to", str(own_home / "new")]) == 0
    assert (Ring(file).keys(), len(Ring(own_home / "new").keys())) == (before, 2)
    for taken in ("new", "ledger.key"):  # with what it holds: a ring that was copied to hosts, or the one that is used
        assert main(["keys", "rotate-ledger", "--to", str(own_home / taken)]) == 1
        assert f"{own_home / taken} exists" in capsys.readouterr().err
    assert (Ring(file).keys(), len(Ring(own_home / "new").keys())) == (before, 2)
    lines = [json.loads(line) for line in (own_home / "audit.jsonl").read_text().splitlines()]
    assert [(line["action"], line["target"], line["outcome"]) for line in lines] == [
        ("keys rotate-ledger --to", str(own_home / "new"), "begun"),
        ("keys rotate-ledger --to", str(own_home / "new"), "succeeded"),
    ]
    assert main(["keys", "rotate-ledger", "--to", str(own_home / "none" / "new")]) == 1
    assert "No such file or directory" in capsys.readouterr().err
    assert main(["keys", "rotate-ledger"]) == 0
    assert "0 seeds of open charges" in capsys.readouterr().out
    assert Ring(file).keys()[0] == before[0]
    assert len(Ring(file).keys()) == 2
    assert main(["keys", "rotate-ledger", "--rewrap"]) == 0
    assert len(Ring(file).keys()) == 2


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


def test_a_service_that_lost_its_key_file_is_refused_until_somebody_opens_it(
    own_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["keys", "create", "alice"]) == 0
    assert main(["keys", "open"]) == 1
    assert "has 1 keys: revoke them first" in capsys.readouterr().err
    (own_home / "keys.json").unlink()
    refused = warpdesk(own_home, "serve", "--port", "0")
    assert refused.returncode == 1
    assert f"the key file {own_home / 'keys.json'} is gone" in refused.stderr
    assert "Traceback" not in refused.stderr

    assert main(["keys", "open"]) == 0

    assert create_app(Settings()).state.gate.open
    lines = [json.loads(line) for line in (own_home / "audit.jsonl").read_text().splitlines()]
    outcomes = [line["outcome"] for line in lines if line["action"] == "keys open"]
    assert outcomes == ["begun", "failed: UnusableKeys", "begun", "succeeded"]


def test_serve_refuses_a_store_without_its_secret(tmp_path: Path) -> None:
    store = SpoolStore(tmp_path / "home" / "store")
    with store.writer("a key", "float64", (1,), 60.0) as writer:
        writer.take(bytes(8))
        writer.commit(has_nan=False, has_inf=False)
    (tmp_path / "home" / "store" / "secret").unlink()

    ran = warpdesk(tmp_path / "home", "serve", "--port", "0")

    assert ran.returncode == 1
    assert "the store's secret" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_nothing_is_accepted_and_nothing_made_where_there_is_no_ledger(tmp_path: Path) -> None:
    ran = warpdesk(tmp_path / "wrong", "ledger", "accept")
    assert ran.returncode == 0
    assert "there is nothing to accept" in ran.stdout
    assert not list(tmp_path.glob("wrong/*"))


def test_a_ledger_that_was_put_back_is_refused_until_an_admin_accepts_it(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    place = Settings(home=home).ledger_place
    books = open_ledger(place)
    new = NewBudget("a name", "a dataset", "pure", "add_remove", "key_admin", epsilon="1")
    budgets = [books.budgets.open(replace(new, dataset=dataset)) for dataset in ("restored", "lost")]
    books.dispose()
    (home / "ledger.db").unlink()

    ran = warpdesk(home, "serve", "--port", "0")
    assert (ran.returncode, "Traceback" in ran.stderr) == (1, False)
    assert "the ledger's database is missing or empty, and its anchor is not" in ran.stderr
    assert "run `warpdesk ledger accept`" in ran.stderr
    assert not (home / "ledger.db").exists()
    looked = ledger(Settings(home=home))
    assert looked.status == "failed"
    assert "is missing or empty, and its anchor is not" in looked.found

    assert warpdesk(home, "ledger", "accept").returncode == 0
    lines = [json.loads(line) for line in (home / "audit.jsonl").read_text().splitlines()]
    assert [(line["action"], line["outcome"]) for line in lines] == [
        ("ledger accept", "begun"),
        ("ledger accept", "succeeded"),
    ]
    assert [set(line["target"].split(",")) for line in lines] == [{budget.id for budget in budgets}] * 2
    assert warpdesk(home, "ledger", "accept").returncode == 0, "there is nothing to accept any more"
    assert len((home / "audit.jsonl").read_text().splitlines()) == 2
    assert ledger(Settings(home=home)).status == "ok"
    books = open_ledger(place)
    assert {budget.state for budget in books.budgets.page(9)} == {"closed"}
    books.dispose()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda home: (home / "ledger.key").unlink(), "the ledger's key"),
        (lambda home: (home / "ledger.key").write_text("ab" * 16), "does not hold the 64 hexadecimal digits"),
        (lambda home: (home / "ledger.db").write_bytes(b"something else" * 1000), "put its newest backup in its place"),
    ],
    ids=["lost key", "short key", "damaged database"],
)
def test_serve_says_in_a_sentence_what_is_wrong_with_the_ledger(
    tmp_path: Path, spoil: Callable[[Path], object], message: str
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    open_ledger(Settings(home=home).ledger_place).dispose()
    spoil(home)
    ran = warpdesk(home, "serve", "--port", "0")
    assert ran.returncode == 1
    assert message in ran.stderr
    assert "Traceback" not in ran.stderr


def test_serve_says_when_the_port_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ran = warpdesk(tmp_path / "home", "serve", "--port", str(port))
    assert ran.returncode == 1
    assert f"cannot listen on 127.0.0.1 port {port}" in ran.stderr
    assert "choose another --port" in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("port", ["99999", "65536", "-1", "http"])
def test_serve_refuses_what_is_no_port(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["serve", "--port", port])
    assert end.value.code == 2
    assert f"'{port}' is not a port: ports are 0 to 65535" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "name", "value"),
    [
        (["serve", "--port", "0"], "WARPDESK_MAX_ARRAY", "abc"),
        (["serve", "--port", "0"], "WARPDESK_DRAIN_SECONDS", "-1"),
        (["worker"], "WARPDESK_DRAIN_SECONDS", "soon"),
        (["doctor"], "WARPDESK_MAX_ARRAY", "abc"),
        (["keys", "list"], "WARPDESK_METRICS_PORT", "abc"),
    ],
)
def test_a_variable_that_cannot_be_used_is_named_in_one_sentence(
    arguments: list[str],
    name: str,
    value: str,
    own_home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(name, value)
    assert main(arguments) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"warpdesk: {name} is '{value}': ")
    assert not own_home.exists(), "nothing was started"


@pytest.mark.parametrize("seconds", ["0", "-1", "inf", "nan", "soon"])
def test_a_limit_of_a_worker_is_a_number_of_seconds(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("--idle-exit", "--max-seconds"):
        with pytest.raises(SystemExit) as end:
            main(["worker", option, seconds])
        assert end.value.code == 2
        assert f"'{seconds}' is not a number of seconds above 0" in capsys.readouterr().err


def test_a_worker_is_told_its_limits_by_options_and_ends_with_0(redis_url: str, tmp_path: Path) -> None:
    arguments = ["worker", "--idle-exit", "600", "--max-seconds", "1.5"]
    ran = warpdesk(tmp_path, *arguments, WARPDESK_REDIS_URL=redis_url, WARPDESK_DEVICE="cpu")
    assert ran.returncode == 0, ran.stderr


def test_a_home_of_this_user_is_closed_to_others(tmp_path: Path) -> None:
    for folder in (tmp_path / "new" / "home", tmp_path):
        tmp_path.chmod(0o755)
        make_private(folder)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_folder_of_all_users_is_left_open_and_no_home(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    with pytest.raises(UnusableHome, match="is shared by all users: set WARPDESK_HOME"):
        make_private(tmp_path)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o1777
    (tmp_path / "file").touch()
    with pytest.raises(UnusableHome, match="file cannot hold the service's state: File exists"):
        make_private(tmp_path / "file")


def test_the_service_closes_its_home_and_shows_the_commands_for_it() -> None:
    home = Path(tempfile.mkdtemp(prefix="warpdesk-test-"))
    home.chmod(0o755)
    with serve(home, "--no-worker", ready=False) as running:
        deadline = time.monotonic() + 60
        while "keys create" not in running.log.read_text() and time.monotonic() < deadline:
            time.sleep(0.1)
        log = running.log.read_text()
        assert f"its state is in {home}" in log
        assert stat.S_IMODE(home.stat().st_mode) == 0o700
        [line] = [line for line in log.splitlines() if line.endswith("keys create NAME")]
        made = subprocess.run(["bash", "-c", line], cwd=ROOT, capture_output=True, text=True, timeout=60)
        assert made.returncode == 0, made.stderr
        assert (home / "keys.json").exists(), "the key is one of this service's"
    shutil.rmtree(home)


def test_a_command_names_a_home_that_is_not_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert command(tmp_path / ".warpdesk", "doctor").startswith("WARPDESK_HOME=.warpdesk ")
    assert "WARPDESK_HOME" not in command(tmp_path / "state" / "warpdesk", "doctor")


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
    output = capsys.readouterr().out
    assert all(command in output for command in ("serve", "worker", "submit", "doctor", "warm", "keys"))


def test_a_client_alone_says_what_to_install_for_a_command_of_the_service(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert {*OF_THE_SERVICE} == {command.__name__.rpartition(".")[2] for command in COMMANDS}
    monkeypatch.setattr("warpdesk.cli.main.entry_points", lambda group: ())
    assert main(["serve", "--port", "0"]) == 2
    assert capsys.readouterr().err.endswith("pip install warpdesk-server\n")
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    assert end.value.code == 0
    assert "submit" in (output := capsys.readouterr().out)
    assert "`pip install warpdesk-server` adds serve, worker" in output


def test_variables_that_contradict_each_other_are_told_and_no_secret_is(tmp_path: Path) -> None:
    settings = {"WARPDESK_LEDGER_URL": "postgresql://budgets:hunter2@db/w", "WARPDESK_API_URL": "http://127.0.0.1:1"}
    ended = warpdesk(tmp_path, "worker", **settings)
    assert ended.returncode == 2
    assert ended.stderr == (
        "warpdesk: WARPDESK_API_URL is set and WARPDESK_API_KEY is not: create a key with the scope worker\n"
    )
