"""How many connections one address and all may have, and who is served when all places are taken."""

import json
import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPResponse
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import numpy as np
import pytest

from tests.app.access.test_auth import bearer
from tests.app.arrays.test_uploads import NPY, npy
from tests.app.conftest import Live, connected
from tests.conftest import Service, processes_of, serve, wait_until_ready
from tests.waiting import wait_until
from warpdesk_server.app.access.keys import create_key
from warpdesk_server.service.processes import raise_file_limit

LIVEZ = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
MIB = 1 << 20


@contextmanager
def connections(url: str, count: int, source: str = "127.0.0.1") -> Iterator[list[socket.socket]]:
    address = urlsplit(url)
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                socket.create_connection((address.hostname or "", address.port or 0), 20, source_address=(source, 0))
            )
            for _ in range(count)
        ]


def answer(connection: socket.socket, request: bytes = b"") -> tuple[int, bytes]:
    """The status and the body of the next answer; status 0 where the connection was closed instead."""
    with suppress(ConnectionError):
        connection.sendall(request)
        response = HTTPResponse(connection)
        response.begin()
        return response.status, response.read()
    return 0, b""


def test_an_address_has_so_many_connections_and_a_proxy_has_more(serve_api: Callable[..., Live]) -> None:
    with serve_api(max_connections_per_address=3) as api:
        with connections(api.url, 3, "127.0.0.2") as taken, connections(api.url, 1, "127.0.0.2") as (more,):
            assert [answer(connection, LIVEZ)[0] for connection in taken] == [200] * 3
            status, body = answer(more)
            with connections(api.url, 1, "127.0.0.3") as (other,), connections(api.url, 10) as behind_a_proxy:
                served = [answer(connection, LIVEZ)[0] for connection in (other, *behind_a_proxy)]
        with connections(api.url, 3, "127.0.0.2") as again:
            wait_until(lambda: answer(again[0], LIVEZ)[0] == 200)

    problem = json.loads(body)
    assert (status, problem["code"]) == (429, "share-used-up")
    assert problem["detail"] == "Connections: one address may hold 3 at once; it holds 3 and needs 1 more"
    assert served == [200] * 11


def test_where_all_places_are_taken_a_connection_without_a_request_makes_room(serve_api: Callable[..., Live]) -> None:
    with serve_api(max_connections=3) as api, connections(api.url, 3) as (active, first, second):
        assert answer(active, LIVEZ)[0] == 200
        with connections(api.url, 2) as newcomers:
            assert [answer(newcomer, LIVEZ)[0] for newcomer in newcomers] == [200, 200]
            assert [answer(closed)[0] for closed in (first, second)] == [0, 0]
            assert answer(active, LIVEZ)[0] == 200
            with connections(api.url, 1) as (third,):  # where all had a request, the longest idle one makes room
                assert answer(third, LIVEZ)[0] == 200
            assert [answer(newcomer, LIVEZ)[0] for newcomer in newcomers] == [0, 200]
            assert answer(active, LIVEZ)[0] == 200


def test_where_all_connections_have_a_request_a_newcomer_is_told_to_come_back(
    serve_api: Callable[..., Live], tmp_path: Path
) -> None:
    keys = [create_key(tmp_path / "home", name, ["submit"]) for name in ("a", "b")]
    with serve_api(max_connections=2) as api, connections(api.url, 2) as busy:
        for connection, key in zip(busy, keys, strict=True):
            connection.sendall(half_of("text/csv", 4, b"", key))
        wait_until(lambda: api.app.state.services.buffers.held() == 8)
        with connections(api.url, 1) as (newcomer,):
            status, body = answer(newcomer)
        created = [answer(connection, b"1\n2\n")[0] for connection in busy]
        with connections(api.url, 1) as (newcomer,):
            assert answer(newcomer, LIVEZ)[0] == 200

    assert (status, json.loads(body)["code"]) == (503, "busy")
    assert created == [201, 201]


def test_a_key_has_so_many_requests_under_way_and_another_key_is_served(
    serve_api: Callable[..., Live], tmp_path: Path
) -> None:
    greedy, calm = (create_key(tmp_path / "home", name, ["submit", "read"]) for name in ("greedy", "calm"))
    upload = npy(np.arange(1000.0))
    half = half_of("application/x-npy", len(upload), upload[:1000], greedy)
    with serve_api(max_requests_per_key=3) as api:
        under_way = api.app.state.services.under_way
        with connections(api.url, 3) as uploads:
            for connection in uploads:
                connection.sendall(half)
            wait_until(lambda: under_way.held() == 3)
            refused = api.http.get("/v1/jobs", headers=bearer(greedy))
            served = api.http.get("/v1/jobs", headers=bearer(calm))
            assert answer(uploads[0], upload[1000:])[0] == 201
            wait_until(lambda: api.http.get("/v1/jobs", headers=bearer(greedy)).status_code == 200)
        wait_until(lambda: under_way.held() == 0)

    assert (refused.status_code, refused.json()["code"], refused.headers["Retry-After"]) == (429, "share-used-up", "1")
    assert refused.json()["detail"] == "Requests under way: one key may hold 3 at once; it holds 3 and needs 1 more"
    assert served.status_code == 200


def test_workers_have_a_share_of_requests_of_their_own(serve_api: Callable[..., Live], tmp_path: Path) -> None:
    worker, calm = (create_key(tmp_path / "home", scope, [scope]) for scope in ("worker", "read"))
    half = (
        f"POST /v1/worker/results HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {worker}\r\n"
        "Content-Type: application/octet-stream\r\nContent-Length: 9\r\n\r\n"
    )
    with serve_api(max_connections=8) as api:
        under_way = api.app.state.services.under_way_of_workers
        with connections(api.url, 2) as results:
            for connection in results:
                connection.sendall(half.encode())
            wait_until(lambda: under_way.held() == 2)
            refused = api.http.get("/v1/worker", headers=bearer(worker))
            served = api.http.get("/v1/jobs", headers=bearer(calm))
        wait_until(lambda: under_way.held() == 0)

    assert (refused.status_code, refused.json()["code"]) == (429, "share-used-up")
    assert refused.json()["detail"].startswith("Requests of workers under way: one key may hold 2 at once")
    assert served.status_code == 200


def test_an_answer_that_nobody_reads_is_given_up(serve_api: Callable[..., Live]) -> None:
    body = npy(np.zeros(8_000_000))  # more than the sockets' buffers hold
    with serve_api(idle_seconds=0.3) as api:
        put = api.http.put("/v1/arrays", content=body, headers=NPY).json()["id"]
        request = f"GET /v1/arrays/{put} HTTP/1.1\r\nHost: localhost\r\nAccept: application/x-npy\r\n\r\n"
        with connected(api) as connection:
            connection.sendall(request.encode())
            wait_until(lambda: not has_both_ends(connection))
            received = 0
            with suppress(ConnectionError):
                while piece := connection.recv(MIB):
                    received += len(piece)
    assert received < len(body)


def has_both_ends(connection: socket.socket) -> bool:
    """Whether the server's end is open. It may be closed while bytes are still on their way to this one."""
    ends = [f":{address[1]:04X}" for address in (connection.getpeername(), connection.getsockname())]
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
    return any(line[1].endswith(ends[0]) and line[2].endswith(ends[1]) and line[3] == "01" for line in lines)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service of 150 connections at most, without a worker, started with a low soft limit of open files."""
    raise_file_limit()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    home = tmp_path_factory.mktemp("small") / "home"
    for name in ("greedy", "calm"):
        (home.parent / name).write_text(create_key(home, name, ["submit", "read"]))
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 400), hard))
    try:
        started = serve(
            home,
            "--no-worker",
            ready=False,  # without a worker it never becomes ready
            WARPDESK_MAX_CONNECTIONS="150",
            WARPDESK_MAX_CSV=str(4 * MIB),
            WARPDESK_MAX_BUFFERED_PER_KEY=str(8 * MIB),
        )
        with started as service:
            wait_until_ready(service, path="/livez")
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            yield service
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def token(service: Service, name: str) -> str:
    return (service.home.parent / name).read_text()


def api_process(service: Service) -> int:
    return next(pid for pid, command in processes_of(service.home).items() if "warpdesk_server.service.api" in command)


def memory(pid: int) -> int:
    """The peak memory of a process, in bytes."""
    (line,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def test_a_service_and_its_api_may_open_as_many_files_as_the_hard_limit_lets_them(small: Service) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for pid in (small.process.pid, api_process(small)):
        assert resource.prlimit(pid, resource.RLIMIT_NOFILE) == (min(hard, 1 << 20), hard)


def test_half_open_connections_and_half_sent_bodies_keep_nobody_from_being_served(small: Service) -> None:
    greedy, calm = token(small, "greedy"), token(small, "calm")
    csv = half_of("text/csv", 4 * MIB, b"1\n" * (3 * MIB // 2), greedy)
    array = half_of("application/x-npy", 4 * MIB + 128, npy(np.zeros(MIB // 2))[: 15 * MIB // 8], greedy)
    before = memory(api_process(small))
    with connections(small.url, 300) as half_open, connections(small.url, 120) as half_sent:
        for number, connection in enumerate(half_open):
            with suppress(ConnectionError):  # a connection that was closed to make room
                connection.sendall((b"", b"GET /v1/jobs HTTP/1.1\r\nHost: loc", b"\r\n")[number % 3])
        for number, connection in enumerate(half_sent):
            connection.sendall((csv, array)[number % 2])

        with httpx.Client(base_url=small.url, headers=bearer(calm), timeout=60) as client:
            answers = [
                client.get("/livez"),
                client.put("/v1/arrays", content=npy(np.arange(300_000.0)), headers=NPY),
                client.put("/v1/arrays", content=b"1\n2\n", headers={"Content-Type": "text/csv"}),
                client.post("/v1/jobs", json={"operation": "rsi", "params": {"period": 2},
                                              "inputs": {"prices": {"data": [1.0, 2.0, 3.0, 4.0]}}}),
                client.get("/v1/jobs"),
            ]  # fmt: skip
        for connection in half_sent:
            connection.setblocking(False)
        refused = [status for connection in half_sent if (status := status_of(connection))]

    assert [answered.status_code for answered in answers] == [200, 201, 201, 202, 200]
    assert set(refused) == {429}
    assert len(refused) == 58, "two of 4 MiB are the key's share"
    assert memory(api_process(small)) - before < 110 * MIB  # 290 MiB were sent
    assert "all 150 connections are taken" in small.log.read_text()


def half_of(media_type: str, length: int, half: bytes, key: str) -> bytes:
    head = (
        f"PUT /v1/arrays HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: {media_type}\r\nContent-Length: {length}\r\n\r\n"
    )
    return head.encode() + half


def status_of(connection: socket.socket) -> int:
    """The status of the response, or 0 while there is none."""
    with suppress(BlockingIOError, ConnectionError):
        return int(connection.recv(65536).split()[1])
    return 0


def test_a_request_that_can_open_no_file_is_told_to_come_back_and_it_is_logged(small: Service) -> None:
    pid = api_process(small)
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    upload = npy(np.arange(1000.0))
    with httpx.Client(base_url=small.url, headers={**bearer(token(small, "calm")), **NPY}, timeout=60) as client:
        assert client.put("/v1/arrays", content=upload).status_code == 201
        taken = {int(number.name) for number in Path(f"/proc/{pid}/fd").iterdir()}
        first_free = next(number for number in range(len(taken) + 1) if number not in taken)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (first_free, limits[1]))
        try:
            refused = client.put("/v1/arrays", content=upload)
            alive = client.get("/livez")
        finally:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
        again = client.put("/v1/arrays", content=upload)

    assert (refused.status_code, refused.json()["code"], refused.headers["Retry-After"]) == (503, "busy", "1")
    assert alive.status_code == 200
    assert again.status_code == 201
    assert "no more files can be opened: Too many open files" in small.log.read_text()
