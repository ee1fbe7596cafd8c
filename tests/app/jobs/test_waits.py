"""Requests that wait for a job, and event streams: how many a key may have, and what they cost."""

import asyncio
import concurrent.futures
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.app.access.test_auth import bearer
from tests.app.conftest import SCALE, Live, connected, unlike
from tests.waiting import wait_until
from warpdesk_server.app.access.keys import create_key, revoke_key, rotate_key
from warpdesk_server.app.jobs.queue import Queue
from warpdesk_server.app.kit.errors import Refusal
from warpdesk_server.workers.queue.jobs import JobQueue, connect

WAIT = {"Prefer": "wait=50"}


@contextmanager
def waiting(api: Live, job_id: str, number: int, token: str = "") -> Iterator[None]:
    """Context with this number of requests that wait for a job. The job is canceled at the end."""
    watches = api.app.state.services.completions._watches
    head = f"GET /v1/jobs/{job_id} HTTP/1.1\r\nHost: 127.0.0.1\r\nPrefer: wait=50\r\n"
    if token:
        head += f"Authorization: Bearer {token}\r\n"
    with ExitStack() as stack:
        for _ in range(number):
            stack.enter_context(connected(api)).sendall(f"{head}\r\n".encode())
        wait_until(lambda: len(watches.get(job_id, ())) == number)
        yield
        api.queue.cancel(job_id)
        wait_until(lambda: job_id not in watches)


def test_a_key_has_so_many_waits_and_another_key_waits_all_the_same(
    serve_api: Callable[..., Any], tmp_path: Path
) -> None:
    busy, calm = (create_key(tmp_path / "home", name, ["submit", "read", "cancel"]) for name in ("busy", "calm"))
    with serve_api(max_waits=2) as api:
        api.http.headers.update(bearer(busy))
        job_id = api.submit(**unlike())
        with waiting(api, job_id, 2, busy):
            refused = api.http.get(f"/v1/jobs/{job_id}", headers=WAIT)
            taken = api.http.post("/v1/jobs", json=unlike(), headers=WAIT)
            plain = api.http.get(f"/v1/jobs/{job_id}")
            other = httpx.post(f"{api.url}/v1/jobs", json=SCALE, headers={**bearer(calm), "Prefer": "wait=1"})

        assert (refused.status_code, refused.json()["code"]) == (429, "share-used-up")
        assert "one key may hold 2 at once; it holds 2" in refused.json()["detail"]
        assert refused.headers["Retry-After"] == "1"
        assert plain.status_code == 200

        # The submitted job is queued, and only its wait is skipped.
        assert (taken.status_code, taken.headers.get("Preference-Applied")) == (202, None)
        assert (other.status_code, other.headers["Preference-Applied"]) == (202, "wait=1")
        assert api.app.state.services.waits.held() == 0


def test_a_key_has_so_many_streams_and_another_key_reads_all_the_same(
    serve_api: Callable[..., Any], tmp_path: Path
) -> None:
    busy, calm = (create_key(tmp_path / "home", name, ["submit", "read"]) for name in ("busy", "calm"))
    with serve_api(max_streams=1) as api:
        paths = {}
        for token in (busy, calm):
            job_id = api.http.post("/v1/jobs", json=SCALE, headers=bearer(token)).json()["id"]
            paths[token] = f"/v1/jobs/{job_id}/events"
        with api.http.stream("GET", paths[busy], headers=bearer(busy)) as first:
            refused = api.http.get(paths[busy], headers=bearer(busy))
            with api.http.stream("GET", paths[calm], headers=bearer(calm)) as other:
                assert (first.status_code, other.status_code) == (200, 200)

        assert (refused.status_code, refused.json()["code"]) == (429, "share-used-up")
        assert refused.headers["Retry-After"] == "1"
        wait_until(lambda: api.app.state.services.streams.held() == 0)
        for path, status in ((f"/v1/jobs/job_{'0' * 32}/events", 404), (paths[calm], 400)):
            answer = api.http.get(path, headers={**bearer(calm), "Last-Event-ID": "77"})  # no event has this number
            assert answer.status_code == status
        wait_until(lambda: api.app.state.services.streams.held() == 0)


def test_a_wait_does_not_end_because_its_job_is_not_enqueued_yet(api: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs with waiters are read now and then, and a submission starts to wait before its job is in the queue."""
    monkeypatch.setattr("warpdesk_server.app.jobs.completions.SAFETY_POLL", 0.01)
    completions = api.app.state.services.completions
    reads = []
    read = JobQueue.records

    def records(jobs: JobQueue, wanted: list[str]) -> Any:
        found = read(jobs, wanted)
        reads.extend(found)
        return found

    monkeypatch.setattr(JobQueue, "records", records)
    with connect(api.redis_url) as redis, concurrent.futures.ThreadPoolExecutor() as threads:
        wait_until(lambda: not completions._watches)
        redis.execute_command("CLIENT", "PAUSE", 30_000, "WRITE")
        answer = threads.submit(api.http.post, "/v1/jobs", json=unlike(), headers=WAIT)
        wait_until(lambda: len(reads) > 3)
        assert not any(reads)
        redis.execute_command("CLIENT", "UNPAUSE")
        wait_until(lambda: any(reads))
        [job_id] = completions._watches
        assert not answer.done()
        api.queue.cancel(job_id)
        assert (answer.result().status_code, answer.result().json()["status"]) == (200, "canceled")


@pytest.mark.parametrize("how", ["GET", "POST"])
def test_a_wait_ends_when_its_client_goes(serve_api: Callable[..., Any], how: str) -> None:
    with serve_api(max_wait=600) as api:
        waits, body = api.app.state.services.waits, json.dumps(unlike()).encode()
        path = "/v1/jobs" if how == "POST" else f"/v1/jobs/{api.submit(**SCALE)}"
        head = f"{how} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nPrefer: wait=600\r\nContent-Type: application/json\r\n"
        with connected(api) as connection:
            if how == "POST":
                connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            else:
                connection.sendall(f"{head}\r\n".encode())
            wait_until(lambda: waits.held() == 1)

        wait_until(lambda: waits.held() == 0)  # sooner than the wait would end by itself


def test_a_job_that_many_wait_for_is_read_once_for_all_of_them(
    serve_api: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("warpdesk_server.app.jobs.completions.SAFETY_POLL", 0.1)
    with serve_api(max_waits=200) as api, connect(api.redis_url) as redis:

        def reads() -> int:
            return int(redis.info("commandstats")["cmdstat_hgetall"]["calls"])

        def seldom() -> bool:  # each request reads the job once when it arrives
            before = reads()
            time.sleep(0.3)
            return reads() - before < 10

        job_id = api.submit(**SCALE)
        with waiting(api, job_id, 200):
            wait_until(seldom)
            before, began = reads(), time.monotonic()
            wait_until(lambda: reads() >= before + 5 and time.monotonic() > began + 1.0)
            polls = (time.monotonic() - began) / 0.1

            assert reads() - before <= 2 * polls + 10


def test_a_wait_ends_when_its_job_is_forgotten(serve_api: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warpdesk_server.app.jobs.completions.SAFETY_POLL", 0.1)
    with serve_api() as api, connect(api.redis_url) as redis, concurrent.futures.ThreadPoolExecutor(1) as pool:
        job_id = api.submit(**SCALE)
        reply = pool.submit(api.http.get, f"/v1/jobs/{job_id}", headers=WAIT)
        wait_until(lambda: api.app.state.services.completions._watches)
        redis.flushall()

        assert reply.result(20).status_code in (202, 404)  # depends on whether the job was read before the flush


def test_threads_that_are_all_taken_are_no_sign_that_redis_is_away(redis_url: str) -> None:
    async def ask() -> tuple[Refusal, bool]:
        queue, free, taken = Queue(redis_url, 30.0, lambda text: ""), threading.Event(), itertools.count(1)
        started = asyncio.Event()
        loop = asyncio.get_running_loop()

        def hold() -> None:
            if next(taken) == 32:
                loop.call_soon_threadsafe(started.set)
            free.wait(60)

        holders = [asyncio.create_task(queue.after(hold, JobQueue.length)) for _ in range(32)]
        await started.wait()
        queue._patience = 0.3  # for later callers only: those with threads keep their 30 s on a busy machine
        try:
            with pytest.raises(Refusal) as refused:
                await queue(lambda jobs: jobs.length())
        finally:
            free.set()
        assert await asyncio.gather(*holders) == [0] * 32
        usable = queue.usable
        queue.close()
        return refused.value, usable

    refusal, usable = asyncio.run(ask())

    assert refusal.detail == "None of 32 threads was free to ask Redis within 0.3 seconds"
    assert usable


@pytest.mark.parametrize("how", ["revoked", "rotated", "first key"])
def test_waits_and_streams_end_when_their_key_is_revoked_their_token_expires_or_keys_are_needed(
    serve_api: Callable[..., Any], tmp_path: Path, how: str
) -> None:
    token = "" if how == "first key" else create_key(tmp_path / "home", "desk", ["submit", "read"])
    with serve_api() as api, concurrent.futures.ThreadPoolExecutor(2) as pool:
        if token:
            api.http.headers.update(bearer(token))
        job_id = api.submit(**SCALE)
        waits = [
            pool.submit(api.http.get, f"/v1/jobs/{job_id}", headers=WAIT),
            pool.submit(api.http.post, "/v1/jobs", json=unlike(), headers=WAIT),
        ]
        with api.http.stream("GET", f"/v1/jobs/{job_id}/events") as stream:
            wait_until(lambda: api.app.state.services.waits.held() == 2)
            if how == "first key":
                create_key(tmp_path / "home", "desk", ["read"])
            elif how == "revoked":
                revoke_key(tmp_path / "home" / "keys.json", token.split("_")[1])
            else:
                rotate_key(tmp_path / "home" / "keys.json", token.split("_")[1], overlap=0.5)
            events = "".join(stream.iter_text())  # until the stream ends
        answers = [wait.result(25) for wait in waits]

    assert [line for line in events.splitlines() if line.startswith("event:")] == ["event: queued"]
    assert [(answer.status_code, answer.json()["code"]) for answer in answers] == [(401, "unauthorized")] * 2
    assert "while the request waited" in answers[0].json()["detail"]


def test_the_time_of_a_private_job_is_not_told_by_a_wait_that_is_refused(
    serve_api: Callable[..., Any], tmp_path: Path
) -> None:
    token = create_key(tmp_path / "home", "desk", ["submit", "read"])
    hide = {"operation": "hide", "params": {"count": 1}, "inputs": {"values": {"data": [1.0]}}}
    with serve_api() as api, concurrent.futures.ThreadPoolExecutor(2) as pool:
        api.http.headers.update(bearer(token))
        job_id = api.submit(**hide)
        waits = [
            pool.submit(api.http.get, f"/v1/jobs/{job_id}", headers=WAIT),
            pool.submit(api.http.post, "/v1/jobs", json=hide, headers=WAIT),
        ]
        wait_until(lambda: api.app.state.services.waits.held() == 2)
        revoke_key(tmp_path / "home" / "keys.json", token.split("_")[1])
        answers = [wait.result(25) for wait in waits]
        assert "server-timing" in api.http.get("/v1/jobs").headers  # this refusal reveals no job
    assert [(answer.status_code, "server-timing" in answer.headers) for answer in answers] == [(401, False)] * 2
