"""The attacks of the benchmark `attacks`: each function is one attack, runs in its own process, and ends by itself.

Each attack counts its responses by status and code, such as "429 share-used-up". Attackers share the machine's
processors with the service that they attack, so they pause between requests.
"""

import asyncio
import json
import selectors
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np
from redis import Redis
from redis.exceptions import ResponseError

from warpdesk_server.app.remote.endpoints import RESULTS
from warpdesk_server.benchmarks.overload import Caller
from warpdesk_server.service.redis_server import url as redis_url

PAUSE = 0.05  # seconds between two requests of one sender
SENDERS = 8  # at once, where one alone does no harm
PATIENCE = 120.0  # seconds for an answer
CONNECTIONS_A_SECOND = 1000
NO_ANSWER = "none"  # on a connection that was still open in the end
CLOSED = "closed"  # without an answer

Answers = Counter[str]


@dataclass(frozen=True)
class Target:
    """The attacked service, and the API keys of its users."""

    url: str
    home: Path
    attacker: str = ""
    honest: str = ""
    worker: str = ""

    def client(self, token: str) -> httpx.Client:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return httpx.Client(base_url=self.url, headers=headers, timeout=PATIENCE)

    def head(self, first_line: str, *headers: str) -> bytes:
        """The head of an attacker's HTTP request, up to the empty line."""
        lines = [f"{first_line} HTTP/1.1", f"Host: {urlsplit(self.url).netloc}", *headers]
        lines += [f"Authorization: Bearer {self.attacker}"] if self.attacker else []
        return ("\r\n".join(lines) + "\r\n\r\n").encode()


def wide_csv(target: Target, seconds: float, size: int) -> Answers:
    """Upload CSV files of one row with very many columns."""
    body = b"1," * (size // 2 - 1) + b"1"
    with target.client(target.attacker) as client:
        return _again(seconds, lambda: client.put("/v1/arrays", content=body, headers={"Content-Type": "text/csv"}))


def large_results(target: Target, seconds: float, side: int) -> Answers:
    """Submit outer products, whose results are `side` / 2 times as large as both inputs."""
    with target.client(target.attacker) as client:
        column, row = (_upload(client, np.ones(shape)) for shape in ((side, 1), (1, side)))
        inputs = {"a": {"array": column}, "b": {"array": row}}
        taken: list[str] = []

        def ask() -> httpx.Response:
            # Each has a different result lifetime, so that no two jobs are identical.
            body = {"operation": "matmul", "inputs": inputs, "result_ttl_s": 1000.0 + len(taken)}
            answer = client.post("/v1/jobs", json=body)
            if answer.status_code == 202:
                taken.append(answer.json()["id"])
            return answer

        answers = _until_refused("429 storage-quota", ask) + _again(seconds, ask)
        for job in taken:
            _wait(client, job)
            assert client.delete(f"/v1/jobs/{job}").status_code == 204
        return answers


def forged_results(target: Target, times: int) -> Answers:
    """Use a worker's key to send and delete the result of an attempt that another worker has committed."""
    values = np.array([3.0, -4.0, 12.0])
    with target.client(target.attacker) as owner, target.client(target.worker) as worker:
        body = {"operation": "sum", "inputs": {"x": {"data": values.tolist()}}}
        job = owner.post("/v1/jobs", json=body).json()["id"]
        _wait(owner, job)
        before = owner.get(f"/v1/jobs/{job}/result").json()
        attempt = f"{job}.{before['provenance']['attempt']}"
        forged = _npy(np.zeros(1))
        output = {"file": "sum.npy", "dtype": "float64", "shape": [1], "id": "", "has_nan": False, "has_inf": False}
        document = {"job": job, "operation": "sum", "outputs": {"sum": output}, "expires_at": 1.0}
        head = json.dumps({"results": [{"name": attempt, "claim": "0" * 32, "document": document}]}).encode()
        answers: Answers = Counter()
        for _ in range(times):
            content = struct.pack(">I", len(head)) + head + forged
            sent = worker.post("/v1/worker/results", content=content, headers={"Content-Type": RESULTS})
            refused = sent.json().get("refused", {}).get(attempt, {})
            answers[f"{sent.status_code} {refused.get('code', '')}".strip()] += 1
            answers[_status(worker.delete(f"/v1/worker/results/{attempt}"))] += 1
            time.sleep(PAUSE)
        answers["the same result"] += owner.get(f"/v1/jobs/{job}/result").json() == before
        return answers


def endless_script(target: Target) -> Answers:
    """Run an endless Lua script in Redis, by an account that may send any script."""
    with Redis.from_url(redis_url(target.home), socket_timeout=PATIENCE) as connection:
        try:
            connection.eval("while true do end", 0)
        except ResponseError as error:
            return Counter({"ended by the service" if "killed by user" in str(error) else str(error): 1})
    return Counter({"not ended": 1})


def rooms_of_rounds(target: Target, seconds: float, dimension: int) -> Answers:
    """Create secure aggregation rounds of the longest duration until they are refused; then another key creates one."""
    params: dict[str, Any] = {
        "clients": 4,
        "min_clients": 3,
        "dimension": dimension,
        "quantisation": {"clip": "8", "scale": "65536"},
        "deadlines": {"keys_s": 3600, "shares_s": 3600, "masked_s": 604800},
    }
    with target.client(target.attacker) as client, target.client(target.honest) as other:
        made: list[str] = []

        def ask(**changes: Any) -> httpx.Response:
            answer = client.post("/v1/secagg/rounds", json={**params, **changes})
            if answer.status_code == 201:
                made.append(answer.json()["id"])
            return answer

        answers = _again(0, lambda: ask(deadlines={"keys_s": 604800}))
        answers += _until_refused("429 storage-quota", ask) + _again(seconds, ask)
        theirs = other.post("/v1/secagg/rounds", json=params)
        answers[f"another key: {_status(theirs)}"] += 1
        for round_id in made:
            client.delete(f"/v1/secagg/rounds/{round_id}")
        if theirs.status_code == 201:
            other.delete(f"/v1/secagg/rounds/{theirs.json()['id']}")
        return answers


def costly_json(target: Target, seconds: float, kind: str, count: int) -> Answers:
    """Send several JSON bodies at once that are below the size limit but slow to parse."""
    keys = ",".join(f'"k{number}":{{}}' for number in range(count)) if "unknown" in kind else ""
    body = {
        "unknown inputs": f'{{"operation":"sum","inputs":{{{keys}}}}}',
        "unknown keys": f"{{{keys}}}".replace("{}", "0"),
        "empty lists": '{"operation":"sum","inputs":{"x":{"data":[' + "[]," * count + "[]]}}}",
        "nested lists": "[" * count + "]" * count,
    }[kind].encode()
    headers = {"Content-Type": "application/json"}
    with target.client(target.attacker) as client:
        return _at_once(lambda: _again(seconds, lambda: client.post("/v1/jobs", content=body, headers=headers)))


def half_sent(target: Target, seconds: float, count: int, media_type: str, size: int, sent: int) -> Answers:
    """Send request bodies that announce `size` bytes, and stop after `sent`."""
    path = "POST /v1/jobs" if media_type == "application/json" else "PUT /v1/arrays"
    head = target.head(path, f"Content-Type: {media_type}", f"Content-Length: {size}")
    begun = head + _beginning(media_type, size, sent)
    with _connections(target, [begun] * count) as opened:
        return _hear(opened, seconds)


def idle(target: Target, seconds: float, count: int) -> Answers:
    """Open connections and send no byte."""
    with _connections(target, [b""] * count) as opened:
        return _hear(opened, seconds)


def half_open(target: Target, seconds: float, count: int, bodies: int) -> Answers:
    """Open connections with no request, a part of one, or an empty line; and half-sent bodies beside them."""
    heads = (b"", b"GET /v1/jobs HTTP/1.1\r\nHost: loc", b"\r\n")
    kinds = ("text/csv", "application/json", "application/x-npy")
    sent = [heads[number % 3] for number in range(count)]
    for number in range(bodies):
        kind, size = kinds[number % 3], 2 << 20
        path = "POST /v1/jobs" if kind == "application/json" else "PUT /v1/arrays"
        head = target.head(path, f"Content-Type: {kind}", f"Content-Length: {size}")
        sent.append(head + _beginning(kind, size, size // 8))
    with _connections(target, sent) as opened:
        return _hear(opened, seconds)


def waits(target: Target, seconds: float, count: int) -> Answers:
    """Send requests that wait for one job, which no worker computes meanwhile."""
    return _of_a_job(target, seconds, count, "", "Prefer: wait=50")


def streams(target: Target, seconds: float, count: int) -> Answers:
    """Open event streams of one job, which no worker computes meanwhile."""
    return _of_a_job(target, seconds, count, "/events")


def live_jobs(target: Target, count: int) -> Answers:
    """Submit different jobs, which no worker computes meanwhile."""
    answers: Answers = Counter()

    async def send() -> None:
        caller, left = Caller(target.url), iter(range(count))

        async def one() -> None:
            for number in left:
                body = json.dumps({"operation": "sum", "inputs": {"x": {"data": [float(number), 0.5]}}})
                length = f"Content-Length: {len(body)}"
                head = target.head("POST /v1/jobs", "Content-Type: application/json", length)
                answer = await caller.send(head + body.encode())
                answers[CLOSED if answer is None else _named(answer.status, answer.body)] += 1

        await asyncio.gather(*(one() for _ in range(SENDERS)))
        caller.close()

    asyncio.run(send())
    return answers


def forwarded(target: Target, seconds: float) -> Answers:
    """Send requests with a proxy's or another site's headers to a service without API keys."""
    lines = [
        *({name: "203.0.113.7"} for name in ("X-Forwarded-For", "X-Real-IP", "Forwarded", "Via", "X-Forwarded-Host")),
        *({name: "203.0.113.7"} for name in ("X-Client-IP", "CF-Connecting-IP", "Fly-Client-IP", "True-Client-IP")),
        {"Origin": "https://example.com"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Host": "example.com"},
    ]
    with target.client("") as client:
        return _again(
            seconds, *(lambda headers=headers: client.get("/v1/budgets", headers=headers) for headers in lines)
        )


# --- helpers of the attacks


def _again(seconds: float, *asks: Callable[[], httpx.Response]) -> Answers:
    """Send each request once, then repeat them in turn until the seconds are over."""
    answers: Answers = Counter()
    end = time.monotonic() + seconds
    while True:
        for ask in asks:
            answers[_status(ask())] += 1
            time.sleep(PAUSE)
        if time.monotonic() >= end:
            return answers


def _until_refused(how: str, ask: Callable[[], httpx.Response]) -> Answers:
    answers: Answers = Counter()
    while not answers[how] and answers.total() < 100:
        answers += _again(0, ask)
    return answers


def _at_once(send: Callable[[], Answers]) -> Answers:
    with ThreadPoolExecutor(SENDERS) as threads:
        return sum((sent.result() for sent in [threads.submit(send) for _ in range(SENDERS)]), Counter())


def _status(answer: httpx.Response) -> str:
    return _named(answer.status_code, answer.content)


def _named(status: int, body: bytes) -> str:
    return f"{status} {json.loads(body)['code']}" if status >= 400 else str(status)


def _npy(array: Any) -> bytes:
    file = BytesIO()
    np.save(file, array)
    return file.getvalue()


def _upload(client: httpx.Client, array: Any) -> str:
    answer = client.put("/v1/arrays", content=_npy(array), headers={"Content-Type": "application/x-npy"})
    return str(answer.raise_for_status().json()["id"])


def _wait(client: httpx.Client, job: str) -> None:
    while client.get(f"/v1/jobs/{job}").json()["status"] in ("queued", "running"):
        time.sleep(PAUSE)


def _of_a_job(target: Target, seconds: float, count: int, path: str, *headers: str) -> Answers:
    with target.client(target.attacker) as client:
        job = client.post("/v1/jobs", json={"operation": "sum", "inputs": {"x": {"data": [1.0]}}}).json()["id"]
        with _connections(target, [target.head(f"GET /v1/jobs/{job}{path}", *headers)] * count) as opened:
            answers = _hear(opened, seconds)
        client.post(f"/v1/jobs/{job}/cancel")
        return answers


def _beginning(media_type: str, size: int, sent: int) -> bytes:
    if media_type == "text/csv":
        return b"1\n" * (sent // 2)
    if media_type == "application/json":
        return b'{"operation":"sum","inputs":{"x":{"data":[' + b"1," * (sent // 2)
    whole = _npy(np.zeros((size - 128) // 8))  # with a head of 128 bytes
    return whole[:sent]


@contextmanager
def _connections(target: Target, requests: list[bytes]) -> Iterator[list[socket.socket]]:
    """Open one connection per request at a limited rate, and send the request's bytes on it."""
    address = urlsplit(target.url)
    with ExitStack() as stack:
        opened = []
        began = time.monotonic()
        for number, request in enumerate(requests):
            time.sleep(max(0.0, began + number / CONNECTIONS_A_SECOND - time.monotonic()))
            connection = socket.create_connection((address.hostname or "", address.port or 0), PATIENCE)
            opened.append(stack.enter_context(connection))
            with suppress(ConnectionError):  # refused before it had sent all
                connection.sendall(request)
        yield opened


def _hear(opened: list[socket.socket], seconds: float) -> Answers:
    """Read the first response of each connection, until all have one or nothing has arrived for `seconds`."""
    answers: Answers = Counter()
    with selectors.DefaultSelector() as selector:
        for connection in opened:
            connection.setblocking(False)
            selector.register(connection, selectors.EVENT_READ, bytearray())
        while selector.get_map() and (ready := selector.select(seconds)):
            for key, _ in ready:
                assert isinstance(key.fileobj, socket.socket)
                try:
                    piece = key.fileobj.recv(1 << 16)
                except ConnectionError:
                    piece = b""
                key.data.extend(piece)
                answer = _first(bytes(key.data)) if piece else CLOSED
                if answer is not None:
                    answers[answer] += 1
                    selector.unregister(key.fileobj)
        answers[NO_ANSWER] += len(selector.get_map())
    return +answers


def _first(received: bytes) -> str | None:
    """The status of a received response, and a refusal's code, once enough bytes have arrived."""
    head, _, body = received.partition(b"\r\n\r\n")
    status = int(head.split()[1]) if body else 0
    if not status or (status >= 400 and not body.endswith(b"}")):
        return None
    return _named(status, body)
