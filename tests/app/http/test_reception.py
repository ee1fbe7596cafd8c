"""Requests whose bytes arrive in pieces, cut wherever a client may cut them."""

import json
import logging
import re
import select
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import numpy as np
import pytest

from tests.app.arrays.test_uploads import NPY, fetch, npy
from tests.app.conftest import SCALE, Live, connected, live
from tests.waiting import wait_until
from warpdesk_server.app.http.reception import MAX_HEAD
from warpdesk_server.app.kit.errors import MEDIA_TYPE


def upload(framing: str) -> bytes:
    """The head of an upload that asks for the connection to be closed afterwards."""
    head = "PUT /v1/arrays HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-npy\r\n"
    return f"{head}{framing}\r\nConnection: close\r\n\r\n".encode()


def all_of(connection: socket.socket) -> bytes:
    return b"".join(iter(lambda: connection.recv(65536), b""))


@pytest.mark.parametrize(
    "request_bytes",
    [
        pytest.param(b"what is this\r\n\r\n", id="no HTTP"),
        pytest.param(b"BREW /v1/jobs HTTP/1.1\r\nHost: localhost\r\n\r\n", id="unknown method"),
        pytest.param(b"GET /livez HTTP/1.1\r\nContent-Length: ten\r\n\r\n", id="length that is no number"),
        pytest.param(
            b"PUT /v1/arrays HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-npy\r\n"
            b"Transfer-Encoding: chunked\r\n\r\nnot hexadecimal\r\n",
            id="malformed chunk",
        ),
        pytest.param(b"GET /livez HTTP/1.1\r\n\r\n", id="no host"),
        pytest.param(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n", id="two hosts"),
        pytest.param(b"GET /livez HTTP/1.0\r\nHost: localhost\r\nhost: b\r\n\r\n", id="two hosts in HTTP/1.0"),
        pytest.param(
            b"POST /v1/jobs HTTP/1.0\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
            id="chunks in HTTP/1.0",
        ),
        pytest.param(
            b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n"
            b"Content-Length: 2\r\n\r\n{}",
            id="upgrade with a body",
        ),
    ],
)
def test_what_is_no_http_is_refused_with_a_problem_document(running: Live, request_bytes: bytes) -> None:
    with connected(running) as connection:
        connection.sendall(request_bytes)
        head, _, body = all_of(connection).partition(b"\r\n\r\n")
    lines = head.decode().lower().split("\r\n")
    assert lines[0].startswith("http/1.1 400 ")
    assert f"content-type: {MEDIA_TYPE}" in lines
    assert f"content-length: {len(body)}" in lines
    assert "connection: close" in lines
    assert "x-content-type-options: nosniff" in lines
    assert {line.partition(":")[0] for line in lines} >= {"date", "x-request-id"}
    problem = json.loads(body)
    assert (problem["code"], problem["status"], problem["retryable"]) == ("bad-request", 400, False)
    assert httpx.get(f"{running.url}{problem['type']}").status_code == 200


@pytest.mark.parametrize(
    "head", [b"GET /livez HTTP/1.1\r\nX: ", b"GET /", b"GET /livez HTTP/1.1\r\n" + b"X: 1\r\n" * 999]
)
def test_a_head_that_does_not_end_is_refused(running: Live, head: bytes) -> None:
    with connected(running) as connection:
        connection.sendall(head + b"x" * (MAX_HEAD - len(head)))
        assert select.select([connection], [], [], 0.2)[0] == [], "so much may wait for its end"
        connection.sendall(b"x")
        answer = all_of(connection)
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["code"] == "head-too-large"


def test_what_follows_a_request_never_ends_up_in_its_answer(
    tmp_path: Path, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    body = npy(np.random.default_rng(0).normal(size=5_000_000))  # more than the sockets' buffers hold
    with live(tmp_path, redis_url) as api, caplog.at_level(logging.INFO, "warpdesk.access"):
        put = api.http.put("/v1/arrays", content=body, headers=NPY)
        request = f"GET /v1/arrays/{put.json()['id']} HTTP/1.1\r\nHost: localhost\r\nAccept: application/x-npy\r\n\r\n"
        with connected(api) as connection:
            connection.sendall(request.encode())
            answer = connection.recv(1000)
            connection.sendall(b"no request\r\n\r\n")
            wait_until(lambda: "refused before its path was read" in caplog.text)
            with suppress(ConnectionError):
                while piece := connection.recv(65536):
                    answer += piece
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.count(b"HTTP/1.1 ") == 1
    assert len(answer) < len(body)


def test_many_requests_in_a_row_wait_their_turn(running: Live) -> None:
    request = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with connected(running) as connection:
        connection.sendall(request * 5000 + request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        assert all_of(connection).count(b"HTTP/1.1 200 ") == 5001


@pytest.mark.parametrize("protocol", ["h2c", "websocket"])
def test_an_upgrade_that_is_offered_is_not_taken_and_nothing_is_logged_of_it(
    running: Live, protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    request = f"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: {protocol}\r\n\r\n"
    with connected(running) as connection:
        connection.sendall(request.encode())
        answered = all_of(connection)
    assert answered.startswith(b"HTTP/1.1 200 ")
    assert b"\r\nconnection: close\r\n" in answered  # what follows an upgrade is not parsed
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_http_1_0_needs_no_host(running: Live) -> None:
    with connected(running) as connection:
        connection.sendall(b"GET /livez HTTP/1.0\r\n\r\n")
        assert all_of(connection).startswith(b"HTTP/1.1 200 ")


def test_many_small_requests_in_one_packet_are_no_large_head(running: Live) -> None:
    request = b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 900 + b"\r\n"
    with connected(running) as connection:
        connection.sendall((request + b"\r\n") * 99 + request + b"Connection: close\r\n\r\n")
        assert all_of(connection).count(b"HTTP/1.1 200 ") == 100


@pytest.mark.parametrize("chunk", [1, 16, 65_536])
def test_a_body_in_chunks_arrives_whole(running: Live, chunk: int) -> None:
    prices = np.random.default_rng(chunk).normal(size=2000 if chunk == 1 else 100_000)
    body = npy(prices)
    parts = [body[start : start + chunk] for start in range(0, len(body), chunk)]
    with connected(running) as connection:
        connection.sendall(upload("Transfer-Encoding: chunked"))
        connection.sendall(b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in [*parts, b""]))
        answer = all_of(connection).partition(b"\r\n\r\n")[2]
    assert np.array_equal(fetch(running, json.loads(answer)["id"]), prices)


@pytest.mark.parametrize("cut", [1, 7, 4096, 300_001])
def test_a_body_arrives_as_it_was_sent_however_it_is_cut(running: Live, cut: int) -> None:
    prices = np.random.default_rng(cut).normal(size=100 if cut == 1 else 100_000)
    body = npy(prices)
    request = upload(f"Content-Length: {len(body)}") + body
    with connected(running) as connection:
        for start in range(0, len(request), cut):
            connection.sendall(request[start : start + cut])
        head, _, answer = all_of(connection).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 201 "), head
    assert np.array_equal(fetch(running, json.loads(answer)["id"]), prices)


def test_two_requests_in_one_packet_are_both_answered_in_order(running: Live) -> None:
    first = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
    second = b"GET /v1/operations/none HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with connected(running) as connection:
        connection.sendall(first + second)
        answers = all_of(connection)
    assert re.findall(rb"HTTP/1\.1 (\d+) ", answers) == [b"200", b"404"]


def test_bodies_of_connections_that_take_turns_are_kept_apart(running: Live) -> None:
    series = [np.full(50_000, float(seed)) for seed in range(3)]
    bodies = [npy(prices) for prices in series]
    with ExitStack() as stack:
        connections = [stack.enter_context(connected(running)) for _ in bodies]
        for connection, body in zip(connections, bodies, strict=True):
            connection.sendall(upload(f"Content-Length: {len(body)}"))
        for start in range(0, len(bodies[0]), 9999):
            for connection, body in zip(connections, bodies, strict=True):
                connection.sendall(body[start : start + 9999])
        answers = [all_of(connection).partition(b"\r\n\r\n")[2] for connection in connections]
    for answer, prices in zip(answers, series, strict=True):
        assert np.array_equal(fetch(running, json.loads(answer)["id"]), prices)


REFUSED = 1_000_000  # bytes of a body that is over the limit, and over what sockets hold


def refused(framing: str = "") -> bytes:
    """The head of a submission that is refused before its body is read."""
    return (
        f"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {REFUSED}\r\n{framing}\r\n"
    ).encode()


def send_in_pieces(connection: socket.socket, body: bytes, piece: int = 50_000) -> None:
    """Send a body without reading meanwhile, so slowly that the response is there before the end of the body."""
    for start in range(0, len(body), piece):
        connection.sendall(body[start : start + piece])
        time.sleep(0.005)


def one_answer(connection: socket.socket) -> tuple[bytes, bytes]:
    """The head and the body of the next response."""
    reader = connection.makefile("rb")
    head = b"".join(iter(reader.readline, b"\r\n"))
    length = re.search(rb"(?i)content-length: (\d+)", head)
    assert length is not None
    return head, reader.read(int(length[1]))


@pytest.mark.parametrize(("version", "code"), [(b"HTTP/1.1", "body-too-large"), (b"HTTP/1.0", "foreign-host")])
@pytest.mark.parametrize("framing", ["", "Connection: close\r\n"])
def test_who_sends_a_body_to_its_end_reads_the_refusal_that_came_before_it(
    running: Live, framing: str, version: bytes, code: str
) -> None:
    with connected(running) as connection:
        connection.sendall(refused(framing).replace(b"HTTP/1.1", version))
        send_in_pieces(connection, b"x" * REFUSED)
        head, body = one_answer(connection)
        stays_open = not framing and version == b"HTTP/1.1"
        if not stays_open:
            assert b"connection: close" in head.lower()
            assert connection.recv(1) == b""
    assert head.startswith(b"HTTP/1.1 4")
    assert json.loads(body)["code"] == code


@pytest.mark.parametrize("way", ["length", "chunks"])
def test_after_a_body_that_nobody_read_the_connection_goes_on(running: Live, way: str) -> None:
    body = b"x" * REFUSED
    if way == "chunks":
        head = refused().replace(f"Content-Length: {REFUSED}".encode(), b"Transfer-Encoding: chunked")
        body = b"%x\r\n%s\r\n0\r\n\r\n" % (REFUSED, body)
    else:
        head = refused()
    with connected(running) as connection:
        for _ in range(2):
            connection.sendall(head)
            send_in_pieces(connection, body)
            assert one_answer(connection)[0].startswith(b"HTTP/1.1 413 ")
        connection.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert one_answer(connection)[0].startswith(b"HTTP/1.1 200 ")
        assert connection.recv(1) == b""


def test_the_next_request_may_come_in_one_packet_with_the_rest_of_a_refused_body(running: Live) -> None:
    follows = b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with connected(running) as connection:
        connection.sendall(refused() + b"x" * 10)
        assert one_answer(connection)[0].startswith(b"HTTP/1.1 413 ")
        connection.sendall(b"x" * (REFUSED - 10) + follows)
        assert all_of(connection).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("framing", ["", "Connection: close\r\n"])
def test_a_refused_body_that_never_ends_ends_the_connection(
    running: Live, framing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("warpdesk_server.app.http.reception.DROP_SECONDS", 0.3)
    with connected(running) as connection:
        connection.sendall(refused(framing))
        assert all_of(connection).startswith(b"HTTP/1.1 413 ")
        with pytest.raises(ConnectionError):
            send_in_pieces(connection, b"x" * 10_000, piece=1)


def test_who_sends_what_is_no_http_to_its_end_reads_why_it_was_refused(running: Live) -> None:
    chunked = upload("Transfer-Encoding: chunked") + b"no length\r\n"
    for start in (b"no request\r\n", b"GET /" + b"x" * (MAX_HEAD + 1), chunked):
        with connected(running) as connection:
            send_in_pieces(connection, start + b"x" * REFUSED)
            answer = all_of(connection)
        assert re.match(rb"HTTP/1\.1 4(00|31) ", answer), start[:40]
        assert answer.count(b"HTTP/1.1 ") == 1


def test_a_body_that_is_refused_before_it_was_asked_for_is_an_error_of_nobody(
    running: Live, caplog: pytest.LogCaptureFixture
) -> None:
    with connected(running) as connection:
        connection.sendall(upload("Transfer-Encoding: chunked\r\nExpect: 100-continue") + b"not hexadecimal\r\n")
        answers = all_of(connection)
    wait_until(lambda: running.app.state.services.under_way.held() == 0)

    assert re.findall(rb"HTTP/1.1 (\d+)", answers) == [b"400"]
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_a_chunk_that_is_none_in_a_refused_body_gets_no_second_answer(running: Live) -> None:
    head = refused().replace(f"Content-Length: {REFUSED}".encode(), b"Transfer-Encoding: chunked")
    with connected(running) as connection:
        connection.sendall(head + b"%x\r\n%s\r\n" % (REFUSED, b"x" * REFUSED))
        answered = one_answer(connection)[0]
        connection.sendall(b"no length\r\n")
        with suppress(ConnectionError):
            assert all_of(connection) == b""
    assert answered.startswith(b"HTTP/1.1 413 ")


LIVEZ = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n"


@pytest.mark.parametrize(
    "start", [b"GET /livez HTTP/1.1\r\nHost: loc", b"\r\n", LIVEZ + b"\r\n" + LIVEZ], ids=["half", "empty", "second"]
)
def test_a_head_that_is_not_whole_in_time_is_refused(serve_api: Callable[..., Live], start: bytes) -> None:
    with serve_api(head_seconds=0.4) as api, connected(api) as connection:
        connection.sendall(start)
        answers = all_of(connection)
    *before, last = answers.split(b"HTTP/1.1 ")[1:]
    assert [answer[:3] for answer in before] == [b"200"] * start.count(b"\r\n\r\n")
    assert last.startswith(b"408 ")
    problem = json.loads(last.partition(b"\r\n\r\n")[2])
    assert (problem["code"], problem["retryable"]) == ("too-slow", True)
    assert problem["detail"].endswith("not complete after 0.4 seconds")


@pytest.mark.parametrize("before", [b"", LIVEZ + b"\r\n"], ids=["new", "answered"])
def test_a_connection_on_which_nothing_comes_is_closed(serve_api: Callable[..., Live], before: bytes) -> None:
    with serve_api(idle_seconds=1.0) as api, connected(api) as connection:
        connection.sendall(before)
        assert all_of(connection).count(b"HTTP/1.1 ") == bool(before)


@pytest.mark.parametrize(
    ("media_type", "framing"),
    [
        ("application/json", "Content-Length: 100000"),
        ("text/csv", "Transfer-Encoding: chunked"),
        ("application/x-npy", "Content-Length: 100000"),
    ],
)
def test_a_body_that_stops_is_refused_and_nothing_of_it_is_kept(
    serve_api: Callable[..., Live], media_type: str, framing: str
) -> None:
    method = "POST /v1/jobs" if media_type == "application/json" else "PUT /v1/arrays"
    head = f"{method} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {media_type}\r\n{framing}\r\n\r\n"
    half = npy(np.zeros(12_484))[:50_000] if media_type == "application/x-npy" else b"1\n" * 25_000
    sent = half if "Length" in framing else b"%x\r\n%s\r\n" % (len(half), half)
    with serve_api(body_seconds=0.4, max_inline_numbers=100) as api:
        with connected(api) as connection:
            connection.sendall(head.encode() + sent)
            answer = all_of(connection)
        assert api.http.get("/livez").status_code == 200
        wait_until(lambda: api.app.state.services.buffers.held() == 0)
        wait_until(lambda: [*(api.settings.store_directory / "uploads").iterdir()] == [])
    assert answer.startswith(b"HTTP/1.1 408 ")
    problem = json.loads(answer.partition(b"\r\n\r\n")[2])
    assert problem["code"] == "too-slow"
    assert "16384 bytes a second, over 0.4 seconds" in problem["detail"]


def test_a_body_that_keeps_the_least_rate_may_take_its_time(serve_api: Callable[..., Live]) -> None:
    body = npy(np.arange(4000.0))
    with serve_api(body_seconds=2.0, body_rate=500) as api, connected(api) as connection:
        connection.sendall(upload(f"Content-Length: {len(body)}"))
        for start in range(0, len(body), 2000):
            connection.sendall(body[start : start + 2000])
            time.sleep(0.15)
        assert all_of(connection).startswith(b"HTTP/1.1 201 ")


def test_time_in_which_the_service_answers_is_not_the_next_head_s(serve_api: Callable[..., Live]) -> None:
    with serve_api(head_seconds=0.4) as api, connected(api) as connection:
        job = api.submit(**SCALE)
        wait = f"GET /v1/jobs/{job} HTTP/1.1\r\nHost: localhost\r\nPrefer: wait=1\r\n\r\n".encode()
        connection.sendall(wait + LIVEZ)
        answers = all_of(connection)
    assert re.findall(rb"HTTP/1\.1 (\d+) ", answers) == [b"202", b"408"]


def test_the_head_of_a_stream_does_not_wait_for_its_first_event(running: Live) -> None:
    job_id = running.submit(**SCALE)
    with connected(running) as connection:
        head = f"GET /v1/jobs/{job_id}/events HTTP/1.1\r\nHost: localhost\r\nLast-Event-ID: 1\r\n\r\n"
        connection.sendall(head.encode())  # its one event was read before
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("end", ["keep-alive", "close"])
def test_an_answer_without_a_body_has_its_head(running: Live, end: str) -> None:
    job_id = running.submit(**SCALE)
    request = f"DELETE /v1/jobs/{job_id} HTTP/1.1\r\nHost: localhost\r\nConnection: {end}\r\n\r\n"
    with connected(running) as connection:
        connection.sendall(request.encode())
        assert connection.recv(65536).startswith(b"HTTP/1.1 204 ")


def test_the_continue_that_a_client_waits_for_comes_before_its_body_and_the_answer_after_it(running: Live) -> None:
    body = json.dumps(SCALE).encode()
    head = "POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
    with connected(running) as connection:
        connection.sendall(f"{head}Expect: 100-continue\r\nContent-Length: {len(body)}\r\n\r\n".encode())
        assert connection.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(body)
        assert all_of(connection).startswith(b"HTTP/1.1 202 ")
