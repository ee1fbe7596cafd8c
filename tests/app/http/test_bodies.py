"""How many bytes of bodies one key and all keys may hold, with bodies that stop in the middle."""

import json
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.app.access.test_auth import bearer
from tests.app.arrays.test_uploads import NPY, npy
from tests.app.conftest import SCALE, Live, connected
from tests.waiting import wait_until
from warpdesk_server.app.access.keys import create_key

CSV = {"Content-Type": "text/csv"}
SIZE = 100_000  # bytes of a body


@contextmanager
def half_sent(api: Live, key: str, count: int, framing: str) -> Iterator[list[socket.socket]]:
    """Connections that have sent half of a CSV."""
    head = f"PUT /v1/arrays HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\nContent-Type: text/csv\r\n"
    half = b"1\n" * (SIZE // 4)
    sent = half if "Length" in framing else b"%x\r\n%s\r\n" % (len(half), half)
    with ExitStack() as stack:
        connections = [stack.enter_context(connected(api)) for _ in range(count)]
        for connection in connections:
            connection.sendall(f"{head}{framing}\r\n\r\n".encode() + sent)
        yield connections


def answer(connection: socket.socket) -> tuple[int, dict[str, Any]]:
    with connection.makefile("rb") as reply:
        lines = iter(reply.readline, b"\r\n")
        head = b"".join(lines)
        length = re.search(rb"(?i)content-length: (\d+)", head)
        assert length is not None
        body = reply.read(int(length[1]))
    status = re.match(rb"HTTP/1\.1 (\d+) ", head)
    assert status is not None
    assert b"\r\nretry-after: 1\r\n" in head.lower()
    return int(status[1]), json.loads(body)


def held(api: Live) -> int:
    bytes_held: int = api.app.state.services.buffers.held()
    return bytes_held


@pytest.mark.parametrize(
    ("framing", "bytes_each"),
    [
        pytest.param(f"Content-Length: {SIZE}", SIZE, id="declared"),
        pytest.param("Transfer-Encoding: chunked", SIZE // 2, id="chunked"),
    ],
)
def test_half_sent_bodies_of_a_key_hold_its_share_and_another_key_is_served(
    serve_api: Callable[..., Any], tmp_path: Path, framing: str, bytes_each: int
) -> None:
    greedy, calm = (create_key(tmp_path / "home", name, ["submit", "read"]) for name in ("greedy", "calm"))
    share = 3 * bytes_each
    with serve_api(max_csv=SIZE, max_body=SIZE, max_buffered_per_key=share, max_buffered=10 * share) as api:
        with half_sent(api, greedy, 3, framing):
            wait_until(lambda: held(api) == share)
            with half_sent(api, greedy, 5, framing) as more:
                refused = [answer(connection) for connection in more]
            submitted = api.http.post("/v1/jobs", json=SCALE, headers=bearer(greedy))
            others = [
                api.http.put("/v1/arrays", content=b"1\n2\n", headers={**CSV, **bearer(calm)}),
                api.http.post("/v1/jobs", json=SCALE, headers=bearer(calm)),
            ]
            assert held(api) == share
        wait_until(lambda: held(api) == 0)
        after = api.http.put("/v1/arrays", content=b"1\n2\n", headers={**CSV, **bearer(greedy)})

    assert {(status, problem["code"]) for status, problem in refused} == {(429, "share-used-up")}
    assert f"Bytes of bodies: one key may hold {share} at once" in refused[0][1]["detail"]
    assert (submitted.status_code, submitted.json()["code"]) == (429, "share-used-up")
    assert [other.status_code for other in others] == [201, 202]
    assert after.status_code == 201


def test_where_all_keys_together_hold_too_much_another_key_is_told_to_come_back(
    serve_api: Callable[..., Any], tmp_path: Path
) -> None:
    keys = [create_key(tmp_path / "home", name, ["submit", "read"]) for name in ("a", "b", "c")]
    with serve_api(max_csv=SIZE, max_body=SIZE, max_buffered_per_key=SIZE, max_buffered=2 * SIZE) as api:
        with ExitStack() as stack:
            for key in keys[:2]:
                stack.enter_context(half_sent(api, key, 1, f"Content-Length: {SIZE}"))
            wait_until(lambda: held(api) == 2 * SIZE)
            refused = api.http.post("/v1/jobs", json=SCALE, headers=bearer(keys[2]))
            streamed = api.http.put("/v1/arrays", content=npy([1.0, 2.0]), headers={**NPY, **bearer(keys[2])})
        wait_until(lambda: held(api) == 0)

    assert (refused.status_code, refused.json()["code"], refused.headers["Retry-After"]) == (503, "busy", "1")
    assert str(2 * SIZE) in refused.json()["detail"]
    assert streamed.status_code == 201
