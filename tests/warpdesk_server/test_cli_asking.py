"""The commands that ask a service: lists, jobs, arrays, budgets, the queue, inputs and outputs as files."""

import argparse
import gzip
import io
import itertools
import json
import re
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.app.conftest import live
from tests.conftest import Service, wait_until_ready
from tests.waiting import wait_until
from warpdesk import Client, JobEvent
from warpdesk.cli import queue
from warpdesk.cli.main import main
from warpdesk_server.app.access.keys import create_key
from warpdesk_server.workers.queue.jobs import connect
from warpdesk_server.workers.queue.keys import FOLLOWED

pytestmark = pytest.mark.timeout(500)
CLOSES = [44.0, 44.5, 44.25, 43.5, 44.75, 45.0]


@pytest.fixture
def ask(
    service: Service, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str, str]]:
    """Run a command against the service; returns its exit code and what it printed."""
    wait_until_ready(service)
    monkeypatch.setenv("WARPDESK_URL", service.url)

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


Ask = Callable[..., tuple[int, str, str]]


@pytest.fixture
def closes(tmp_path: Path) -> Path:
    file = tmp_path / "closes.csv"
    file.write_text("Day,Close\n" + "".join(f"{day},{close}\n" for day, close in enumerate(CLOSES)))
    return file


def standard_input(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


def test_operations_are_listed_searched_and_explained(ask: Ask) -> None:
    code, listed, _ = ask("operations")
    assert code == 0
    assert re.search(r"^rsi +\S", listed, re.MULTILINE)
    assert {line.split()[0] for line in ask("operations", "cross_")[1].splitlines()[1:]} == {
        "cross_rank",
        "cross_zscore",
    }
    explained = ask("operations", "rsi")[1]
    assert re.search(r"^-p period +integer\|array +required", explained, re.MULTILINE)
    assert re.search(r"^-i close +float64/float32 +required", explained, re.MULTILINE)
    assert "warpdesk submit rsi -p period=14 -i close=FILE.csv:COLUMN" in explained
    assert json.loads(ask("operations", "rsi", "--json")[1])["name"] == "rsi"
    assert "there is no operation 'rsii'; near are rsi" in ask("operations", "rsii")[2]
    assert ask("operations", "nonsense")[::2] == (
        1,
        f"warpdesk: there is no operation 'nonsense'; `warpdesk operations` lists all {len(listed.splitlines()) - 1}\n",
    )


def test_a_job_is_sent_without_waiting_watched_shown_listed_and_its_answer_written(
    ask: Ask, closes: Path, tmp_path: Path
) -> None:
    job = ask("submit", "sma", "-p", "period=2", "-i", f"close={closes}:Close", "--detach")[1].strip()

    code, watched, _ = ask("jobs", "watch", job)
    assert code == 0
    assert [line.split()[2] for line in watched.splitlines()] == ["queued", "running", "succeeded"]
    shown = ask("jobs", "show", job)[1]
    assert re.search(r'^params +\{"period": 2\}$', shown, re.MULTILINE)
    assert re.search(r'^inputs +\{"close": \{"array": "blake3:', shown, re.MULTILINE)
    rows = ask("jobs", "list", "--status", "succeeded", "--operation", "sma", "--limit", "1")[1].splitlines()
    assert [row.split()[:3] for row in rows] == [["job", "operation", "status"], [job, "sma", "succeeded"]]
    assert ask("jobs", "result", job, "-o", tmp_path / "sma.npy", "-o", tmp_path / "sma.csv")[0] == 0
    means = [(one + two) / 2 for one, two in itertools.pairwise(CLOSES)]
    np.testing.assert_array_equal(np.load(tmp_path / "sma.npy"), [np.nan, *means])
    assert (tmp_path / "sma.csv").read_text().splitlines() == ["sma", "nan", *map(str, means)]
    assert ask("jobs", "cancel", job)[1].splitlines()[1].split() == [job, "succeeded"]
    assert ask("jobs", "erase", job)[0] == 0
    assert "result-gone" in ask("jobs", "result", job)[2]


def test_inputs_come_packed_or_by_standard_input_or_from_the_store(
    ask: Ask, closes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = tmp_path / "closes.csv.gz"
    packed.write_bytes(gzip.compress(closes.read_bytes()))
    binary = io.BytesIO()
    np.save(binary, np.array(CLOSES))
    stored = ask("arrays", "upload", f"{closes}:Close")[1].strip()

    answers = []
    for place, content in (
        (f"{closes}:Close", b""),
        (f"{packed}:Close", b""),
        ("-:Close", closes.read_bytes()),
        ("-", binary.getvalue()),
        (stored, b""),
    ):
        standard_input(monkeypatch, content)
        code, out, err = ask("submit", "sma", "-p", "period=2", "-i", f"close={place}", "--json")
        assert code == 0, err
        answers.append(json.loads(out)["outputs"]["sma"])

    assert answers == [answers[0]] * 5


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["-i", "close=a.txt"], "expected FILE.npy, FILE.csv:Column, FILE.csv.gz:Column, - for standard input"),
        (["-i", "high=-", "-i", "low=-"], "standard input can be one input alone"),
        (["-o", "answer.xlsx"], "-o answer.xlsx: expected FILE.npy, FILE.csv or FILE.json"),
        (["-o", "missing/answer.npy"], "there is no folder missing"),
        (["-o", "answer.npy", "--detach"], "--detach does not wait for an answer that -o could write"),
    ],
)
def test_what_cannot_be_read_or_written_is_refused_before_anything_is_sent(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["submit", "rsi", *arguments, "--url", "http://127.0.0.1:9"]) == 1
    assert sentence in capsys.readouterr().err


def test_a_packed_file_that_is_cut_off_is_refused(ask: Ask, closes: Path, tmp_path: Path) -> None:
    packed = tmp_path / "closes.csv.gz"
    packed.write_bytes(gzip.compress(closes.read_bytes())[:-9])
    assert "is no whole gzip file" in ask("submit", "sma", "-p", "period=2", "-i", f"close={packed}:Close")[2]


def test_arrays_are_listed_shown_downloaded_and_deleted(ask: Ask, closes: Path, tmp_path: Path) -> None:
    array = ask("arrays", "upload", f"{closes}:Close")[1].strip()
    listed = ask("arrays", "list", "--limit", "3")[1]
    assert re.search(rf"^{array} +float64 +6 +\d+ ", listed, re.MULTILINE)
    assert re.search(r"^stored: [\d,]+ of [\d,]+ bytes$", listed, re.MULTILINE)
    assert re.search(r"^shape +\[6\]$", ask("arrays", "show", array)[1], re.MULTILINE)
    assert ask("arrays", "download", array, "-o", tmp_path / "back.npy")[0] == 0
    np.testing.assert_array_equal(np.load(tmp_path / "back.npy"), CLOSES)
    assert ask("arrays", "delete", array)[0] == 0
    assert "unknown-array" in ask("arrays", "show", array)[2]


def test_a_dataset_is_made_from_csv_files_appended_read_and_computed_with(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "close.csv"
    days = [f"2026-01-0{day}T00:00:00Z" for day in (5, 6, 7)]
    file.write_text(f"time,A,B\n{days[0]},1,2\n{days[1]},3,\n")
    assert ask("datasets", "create", "stocks", "--column", "close")[0] == 0
    assert "2 rows: 2 added, 0 corrected, 0 unchanged" in ask("datasets", "append", "stocks", f"close={file}")[1]
    standard_input(monkeypatch, f"time,A,B\n{days[1]},3,\n{days[2]},5,6\n".encode())
    assert "3 rows: 1 added, 0 corrected, 1 unchanged" in ask("datasets", "append", "stocks", "close=-")[1]
    printed = ask("datasets", "rows", "stocks", "close", "--from", days[1])[1]
    assert printed == f"time,A,B\n{days[1]},3.0,\n{days[2]},5.0,6.0\n"
    assert re.search(r"^stocks +close +2 +3 +2026-01-07T", ask("datasets", "list")[1], re.MULTILINE)
    answer = ask("submit", "sma", "-p", "period=2", "-i", "close=dataset:stocks/close", "--json")[1]
    assert json.loads(answer)["outputs"]["sma"][0] == [None, 2.0, 4.0]
    assert "time is no column of numbers" in ask("datasets", "rows", "stocks", "time")[2]
    file.write_text(f"time,A\n{days[0]},x\n")
    assert "row 2: could not convert string to float: 'x'" in ask("datasets", "append", "stocks", f"close={file}")[2]
    assert ask("datasets", "delete", "stocks")[0] == 0
    assert "unknown-dataset" in ask("datasets", "show", "stocks")[2]


def test_a_packed_csv_of_more_numbers_than_a_body_takes_is_appended(ask: Ask, tmp_path: Path) -> None:
    assert ask("datasets", "create", "many", "--column", "close")[0] == 0
    minutes = np.datetime64("2026-02-01T00:00") + np.arange(5000)
    lines = ["time," + ",".join("ABCDEFGHIJKLMN"), *(f"{minute}Z{',1.5' * 14}" for minute in minutes)]
    packed = tmp_path / "many.csv.gz"
    packed.write_bytes(gzip.compress("\n".join(lines).encode()))
    assert "5000 rows: 5000 added" in ask("datasets", "append", "many", f"close={packed}")[1]
    assert "expected COLUMN=FILE.csv" in ask("datasets", "append", "many", "close=prices.xlsx")[2]
    assert ask("datasets", "delete", "many")[0] == 0


def test_an_administrator_sees_and_pauses_the_queue_and_reads_the_audit_log(ask: Ask, closes: Path) -> None:
    assert ask("queue", "drain", "--timeout", "60")[0] == 0
    job = ask("submit", "sma", "-p", "period=2", "-i", f"close={closes}:Close", "--detach")[1].strip()
    try:
        shown = ask("queue", "show")[1]
        assert "PAUSED: no worker takes a job." in shown
        assert re.search(rf"^{job} +local +sma +batch ", shown, re.MULTILINE)
    finally:
        assert "PAUSED" not in ask("queue", "resume")[1]
    assert ask("jobs", "watch", job)[0] == 0
    assert ask("queue", "dead-letters")[0] == 0
    lines = ask("audit", "--limit", "10")[1]
    assert re.search(r"POST /v1/queue/pause +succeeded", lines)


def test_a_drain_looks_less_and_less_often_until_its_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    now, pauses, state = [0.0], list[float](), {"lanes": [{"running": 1}]}

    class Queue:
        def call(self, *_: str) -> Any:
            return state

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(queue, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    assert queue._drain(Queue(), argparse.Namespace(timeout=200.0)) == 1  # type: ignore[arg-type]
    assert (pauses[0], max(pauses), sum(pauses)) == (1.0, 30.0, 200.0)
    assert pauses[:-1] == sorted(pauses[:-1])


def test_budgets_are_listed_shown_and_verified(ask: Ask, service: Service) -> None:
    with Client(service.url) as client:
        budget = client.create_budget("b", dataset="d", accountant="pure", neighbouring="add_remove", epsilon="1").id
    assert re.search(rf"^{budget} +d +open +epsilon 0 +epsilon 1 +0$", ask("budgets", "list")[1], re.MULTILINE)
    assert re.search(r"^remaining +epsilon 1$", ask("budgets", "show", budget)[1], re.MULTILINE)
    assert ask("budgets", "history", budget)[2] == "Nothing was charged to it.\n"
    code, verdict, _ = ask("budgets", "verify", budget)
    assert (code, verdict.startswith("All 0 entries hold; the head is ")) == (0, True)
    assert re.search(r"^state +closed$", ask("budgets", "close", budget)[1], re.MULTILINE)


def test_a_service_that_wants_a_key_is_told_by_the_variable_to_set(
    redis_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    token = create_key(tmp_path / "home", "a", ["read"])
    monkeypatch.delenv("WARPDESK_API_KEY", raising=False)
    with live(tmp_path / "home", redis_url) as api:
        for command in (["jobs", "list"], ["submit", "draw", "-p", "count=3"]):
            assert main([*command, "--url", api.url]) == 1
            assert "set WARPDESK_API_KEY to a key" in capsys.readouterr().err
        monkeypatch.setenv("WARPDESK_API_KEY", token[:-3] + "AAA")
        assert main(["jobs", "list", "--url", api.url]) == 1
        assert "the key comes from WARPDESK_API_KEY" in capsys.readouterr().err
        monkeypatch.setenv("WARPDESK_API_KEY", token)
        assert main(["jobs", "list", "--url", api.url]) == 0
        assert capsys.readouterr().err == "There are no such jobs.\n"


def test_the_client_follows_all_jobs_of_the_key(redis_url: str, tmp_path: Path) -> None:
    with (
        live(tmp_path / "home", redis_url) as api,
        Client(api.url) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        reading = pool.submit(lambda: list(itertools.islice(client.follow(timeout=60), 4)))
        with connect(api.redis_url) as redis:
            wait_until(lambda: redis.exists(f"{FOLLOWED}local"))
        jobs = [api.submit(operation="draw", params={"count": count}) for count in (1, 2, 3)]
        api.http.post(f"/v1/jobs/{jobs[1]}/cancel")
        events = reading.result(60)
        pairs = [(event.job, event.event, event.operation) for event in events if isinstance(event, JobEvent)]
        assert pairs == [*((job, "queued", "draw") for job in jobs), (jobs[1], "canceled", "draw")]
        with pytest.raises(TimeoutError, match="followed is over"):
            list(client.follow(timeout=0.3))


def test_a_shell_gets_a_script_that_completes_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    assert all(word in script for word in ("submit", "operations", "jobs", "queue", "--detach", "dead-letters"))
