"""Many at once with one Idempotency-Key, at two API processes on one Redis: one job, and its inputs stay.

STORM_ROUNDS=100 runs the long form. Who is told 503, because so many at once are more than Redis answers in time, asks
again with the same key.
"""

import asyncio
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Service, serve, wait_until_ready
from warpdesk_server.workers.queue.jobs import JobQueue, connect
from warpdesk_server.workers.store.spool import SpoolStore

ROUNDS = int(os.environ.get("STORM_ROUNDS", "3"))
AT_ONCE = 200

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.mark.timeout(120 + 10 * ROUNDS)
def test_two_hundred_at_once_with_one_key_are_one_job(redis_url: str, tmp_path: Path) -> None:
    shared = {"WARPDESK_REDIS_URL": redis_url, "WARPDESK_STORE": str(tmp_path / "store")}
    with (
        serve(tmp_path / "one", "--no-worker", ready=False, **shared) as one,
        serve(tmp_path / "other", "--no-worker", ready=False, **shared) as other,
        connect(redis_url) as connection,
    ):
        for service in (one, other):
            wait_until_ready(service, path="/livez")
        queue, store = JobQueue(connection), SpoolStore(tmp_path / "store")

        rounds = asyncio.run(_storms(one, other))

        for number, answers in enumerate(rounds):
            assert Counter(status for status, _, _ in answers) == {202: AT_ONCE}, number
            assert len({job["id"] for _, _, job in answers}) == 1, number
            assert [replayed for _, replayed, _ in answers].count(False) <= 1, number  # 0: its maker was told 503
        jobs = queue.jobs("local", ROUNDS + 1)[0]
        assert {record.request.id for record in jobs} == {answers[0][2]["id"] for answers in rounds}
        assert queue.length() == len(jobs) == ROUNDS
        for record in jobs:
            assert store.find("local", record.request.inputs["prices"]) is not None


async def _storms(*services: Service) -> list[list[tuple[int, bool, Any]]]:
    """Status, whether it was replayed, and the job of each answer, for each round; connections are opened before."""
    ports = [int(service.url.rpartition(":")[2]) for service in services]
    connections = [await asyncio.open_connection("127.0.0.1", ports[number % len(ports)]) for number in range(AT_ONCE)]
    rounds = []
    for number in range(ROUNDS):
        body = {"operation": "rsi", "params": {"period": 2}, "inputs": {"prices": {"data": [1.0, 2.0, float(number)]}}}
        content = json.dumps(body).encode()
        request = (
            "POST /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            f"Idempotency-Key: storm-{number}\r\nContent-Length: {len(content)}\r\n\r\n"
        ).encode() + content
        rounds.append(await asyncio.gather(*(_send(connection, request) for connection in connections)))
    for _, writer in connections:
        writer.close()
    return rounds


async def _send(connection: Connection, request: bytes) -> tuple[int, bool, Any]:
    while (answer := await _ask(connection, request))[0] == 503:
        await asyncio.sleep(1.0)
    return answer


async def _ask(connection: Connection, request: bytes) -> tuple[int, bool, Any]:
    reader, writer = connection
    writer.write(request)
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    headers = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if line)
    body = json.loads(await reader.readexactly(int(headers["content-length"])))
    return int(head.split()[1]), "idempotent-replayed" in headers, body
