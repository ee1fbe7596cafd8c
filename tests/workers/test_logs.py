"""What is hidden in lines of log, whoever wrote them."""

import json
import logging
import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from warpdesk_server.workers import logs
from warpdesk_server.workers.queue.protocol import JobRequest

TOKEN = "wd_0123456789ab_" + "Ab-_" * 10 + "xyz"
JOIN = "wdj_" + "0" * 32 + "_7_" + "Ab-_" * 10 + "xyz"


@contextmanager
def as_a_process(form: logs.LogFormat = "json") -> Iterator[logging.Logger]:
    """A logger of a library, whose lines go where those of a process of ours go."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    hooks = sys.excepthook, threading.excepthook
    try:
        logs.configure(form, worker="here-1")
        logging.captureWarnings(capture=False)
        yield logging.getLogger("rq.worker")
    finally:
        root.handlers[:] = before
        root.setLevel(level)
        logging.getLogger("warpdesk").setLevel(logging.NOTSET)
        sys.excepthook, threading.excepthook = hooks


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"the key {TOKEN} is", "the key wd_0123456789ab_*** is"),
        (f"member {JOIN}", "member wdj_***"),
        ("redis://:pass@word@host:6379/0", "redis://***@host:6379/0"),
        ("postgresql://me@db:pass@host/name", "postgresql://***@host/name"),
        ("redis://api:pa'ss\"word@host:6379/0", "redis://***@host:6379/0"),
        ("?token=pass&limit=3", "?token=***&limit=3"),
        ("rediss://api:pass@redis:6379/0?ssl_ca_certs=/ca.crt", "rediss://***@redis:6379/0?ssl_ca_certs=/ca.crt"),
        ("postgresql://user:pass@host/name and more", "postgresql://***@host/name and more"),
        ("host=db password=pass user=x", "host=db password=*** user=x"),
        ("{'password': 'pass', 'user': 'x'}", "{'password': '***', 'user': 'x'}"),
        (r'"{\"password\": \"pass\"}"', r'"{\"password\": \"***\"}"'),
        ("Authorization: Bearer pass-word-of-ours", "Authorization: ***"),
        ("{'authorization': 'Basic cGFzc3dvcmQ='}", "{'authorization': '***'}"),
        ("[(b'x-api-key', b'pass')]", "[(b'x-api-key', b'***')]"),
        ("sent Bearer cGFzc3dvcmQ= twice", "sent Bearer *** twice"),
        ("http://127.0.0.1:8000/v1/jobs?limit=3", "http://127.0.0.1:8000/v1/jobs?limit=3"),
        ("10:20 mail me@host.example", "10:20 mail me@host.example"),
    ],
)
def test_secrets_are_starred_and_the_rest_is_left(text: str, shown: str) -> None:
    assert logs.scrub(text) == shown


@pytest.mark.parametrize("part", ["://a:", "://:", ":", "password", "authorization:", "bearer "])
def test_no_line_takes_long_to_scrub(part: str) -> None:
    began = time.perf_counter()
    logs.scrub("://" + part * (200_000 // len(part)))
    assert time.perf_counter() - began < 2  # it took 30 s where the time grew with the square of the length


def test_a_traceback_of_a_library_is_scrubbed_too(capsys: pytest.CaptureFixture[str]) -> None:
    with as_a_process() as library:
        try:
            raise ConnectionError(f"redis://:secret-word@host says no to {TOKEN}")
        except ConnectionError:
            library.exception("lost %s", JOIN, extra={"request_id": TOKEN})

    line = json.loads(capsys.readouterr().err)
    assert line["message"] == "lost wdj_***"
    assert (line["level"], line["logger"], line["worker"]) == ("error", "rq.worker", "here-1")
    assert line["exception"].endswith("ConnectionError: redis://***@host says no to wd_0123456789ab_***\n")
    assert line["request_id"] == "wd_0123456789ab_***"


def test_what_nobody_caught_is_a_line_without_its_secrets(capsys: pytest.CaptureFixture[str]) -> None:
    with as_a_process():
        thread = threading.Thread(target=lambda: int(TOKEN))
        thread.start()
        thread.join()
        sys.excepthook(ValueError, ValueError(JOIN), None)

    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["message"] for line in lines] == ["nobody caught ValueError"] * 2
    assert "wd_0123456789ab_***" in lines[0]["exception"]
    assert "wdj_***" in lines[1]["exception"]


def test_a_line_that_cannot_be_formatted_does_not_show_its_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    with as_a_process() as library:
        library.warning("%d jobs", TOKEN)

    assert capsys.readouterr().err.startswith("a line of rq.worker at test_logs.py:")


@pytest.mark.parametrize("form", ["text", "json"])
def test_the_time_of_a_line_about_a_private_job_is_a_whole_second(
    form: logs.LogFormat, capsys: pytest.CaptureFixture[str]
) -> None:
    request = JobRequest(
        id="job_1", owner="local", operation="dp_noise", params={}, inputs={}, timeout=1, result_ttl=1, private=True
    )
    with as_a_process(form) as library:
        for _ in range(20):
            library.warning("done", extra=logs.about(request, 1))
            time.sleep(0.002)

    written = capsys.readouterr().err.splitlines()
    assert len(written) == 20
    assert all(re.search(r"\d\d:\d\d:\d\d[,.]000", line) for line in written)


def test_a_line_about_a_job_says_which(capsys: pytest.CaptureFixture[str]) -> None:
    request = JobRequest(
        id="job_1", owner="local", operation="rsi", params={}, inputs={}, timeout=1, result_ttl=1, request_id="r"
    )
    with as_a_process() as library:
        library.warning("late", extra=logs.about(request, 2))
        library.warning("late", extra=logs.about(request.model_copy(update={"request_id": None})))

    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [{name: line.get(name) for name in ("job", "attempt", "operation", "request_id")} for line in lines] == [
        {"job": "job_1", "attempt": 2, "operation": "rsi", "request_id": "r"},
        {"job": "job_1", "attempt": None, "operation": "rsi", "request_id": None},
    ]
