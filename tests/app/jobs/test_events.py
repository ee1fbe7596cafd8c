"""A job's events as a stream: whole, in order, each once, resumable, and ended with the job or with the API."""

import asyncio
import concurrent.futures
import itertools
import json
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.app.conftest import SCALE, Live, connected, unlike
from tests.waiting import wait_until
from warpdesk_server.app.access.keys import create_key
from warpdesk_server.app.jobs import completions as completions_
from warpdesk_server.service.processes import module, spawn, stop
from warpdesk_server.service.redis_server import RedisServer
from warpdesk_server.workers.queue.jobs import JobQueue, connect
from warpdesk_server.workers.queue.keys import EVENTS, events_key, job_key
from warpdesk_server.workers.queue.protocol import Event, Failed
from warpdesk_server.workers.queue.records import Claim, Ending, Held

FAILED = Failed(code="operation-error", message="it failed after 3 steps")


@dataclass(frozen=True)
class StreamEvent:
    """One event as a client receives it."""

    id: str
    event: str
    data: dict[str, Any]


class Stream:
    """An open stream, read line by line as the standard says."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self.comments = 0
        self.lines = response.iter_lines()

    def __iter__(self) -> Iterator[StreamEvent]:
        fields: dict[str, str] = {}
        for line in self.lines:
            name, _, value = line.partition(":")
            if line and not name:
                self.comments += 1
            elif line:
                fields[name] = value.removeprefix(" ")
            elif "data" in fields:
                yield StreamEvent(fields["id"], fields["event"], json.loads(fields["data"]))
                fields = {}

    def take(self, count: int) -> list[StreamEvent]:
        return list(itertools.islice(self, count))

    def comment(self) -> None:
        """Read until the next line that is not empty, which must be a comment."""
        before = self.comments
        for line in self.lines:
            if line:
                assert line.startswith(":"), line
                self.comments += 1
                break
        assert self.comments == before + 1


@contextmanager
def opened(api: Live, job_id: str, last: int | None = None) -> Iterator[Stream]:
    headers = {} if last is None else {"Last-Event-ID": str(last)}
    with api.http.stream("GET", f"/v1/jobs/{job_id}/events", headers=headers) as response:
        assert response.status_code == 200, response.read()
        yield Stream(response)


def claim(queue: JobQueue) -> Held:
    batch = queue.claim(Claim("a worker"))
    assert batch is not None
    return batch.jobs[0]


def end(queue: JobQueue, held: Held) -> None:
    assert queue.finish([Ending(held, FAILED)])[0] == ["done"]


def names(events: list[StreamEvent]) -> list[tuple[str, str]]:
    return [(event.id, event.event) for event in events]


def test_a_stream_tells_what_was_and_what_happens_and_ends_with_the_job(api: Live) -> None:
    job_id = api.submit(**SCALE)

    with opened(api, job_id) as stream:
        assert stream.response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        assert stream.response.headers["Cache-Control"] == "no-store"
        assert stream.response.headers["X-Accel-Buffering"] == "no"
        events = stream.take(1)
        held = claim(api.queue)
        events += stream.take(1)
        api.queue.progress(job_id, held.attempt, 0.25)
        events += stream.take(1)
        end(api.queue, held)
        events += list(stream)

    assert names(events) == [("1", "queued"), ("2", "running"), ("3", "progress"), ("4", "failed")]
    assert [event.data["progress"] for event in events] == [None, None, 0.25, None]
    for event in events:
        assert {**event.data, "at": None, "progress": None} == {
            "job": job_id,
            "number": int(event.id),
            "event": event.event,
            "at": None,
            "attempt": 0 if event.event == "queued" else 1,
            "progress": None,
            "reason": None,
            "step": None,
            "values": None,
            "operation": None,
        }
    record = api.queue.get(job_id)
    assert record is not None
    assert record.ended_at is not None
    ended = datetime.fromisoformat(events[-1].data["at"].replace("Z", "+00:00"))
    assert ended.timestamp() == pytest.approx(record.ended_at, abs=1e-3)


@pytest.mark.parametrize("last", range(4))
def test_a_stream_goes_on_after_the_last_event_that_was_read(api: Live, last: int) -> None:
    job_id = api.submit(**SCALE)
    held = claim(api.queue)
    api.queue.progress(job_id, held.attempt, 0.5)

    with opened(api, job_id, last) as stream:
        events = stream.take(3 - last)
        end(api.queue, held)
        events += list(stream)
    with opened(api, job_id, last) as stream:
        again = list(stream)

    assert [int(event.id) for event in events] == list(range(last + 1, 5))
    assert again == events


def test_a_reader_who_has_had_the_end_is_told_that_there_is_no_more(api: Live) -> None:
    job_id = api.submit(**SCALE)
    api.queue.cancel(job_id)

    answers = [
        api.http.get(f"/v1/jobs/{job_id}/events", headers={"Last-Event-ID": last}) for last in ("2", "1", "", "3")
    ]

    assert [answer.status_code for answer in answers] == [204, 200, 200, 400]
    assert [answer.text.count("event:") for answer in answers] == [0, 1, 2, 0]


@pytest.mark.parametrize("last", ["x", "-1", "1.0", "0x1", "9" * 16, "1-0", "²", "5"])
def test_an_id_that_no_event_had_is_refused(api: Live, last: str) -> None:
    job_id = api.submit(**SCALE)

    answer = api.http.get(f"/v1/jobs/{job_id}/events", headers={"Last-Event-ID": last.encode("latin-1")})

    assert (answer.status_code, answer.json()["code"]) == (400, "bad-request")


def test_a_stream_is_given_to_those_who_take_one(api: Live) -> None:
    job_id = api.submit(**SCALE)
    api.queue.cancel(job_id)

    answers = {
        accept: api.http.get(f"/v1/jobs/{job_id}/events", headers={"Accept": accept}).status_code
        for accept in ("text/event-stream", "*/*", "text/*", "application/json")
    }

    assert answers == {"text/event-stream": 200, "*/*": 200, "text/*": 200, "application/json": 406}


def test_a_job_of_another_key_an_erased_one_and_none_have_no_events(
    serve_api: Callable[..., Any], tmp_path: Path
) -> None:
    ours, theirs = (create_key(tmp_path / "home", name, ["submit", "read", "cancel"]) for name in ("a", "b"))
    blind = create_key(tmp_path / "home", "c", ["submit"])
    with serve_api() as api:
        api.http.headers["Authorization"] = f"Bearer {ours}"
        job_id, erased = api.submit(**SCALE), api.submit(**SCALE)
        api.http.delete(f"/v1/jobs/{erased}")

        def code(job_id: str, token: str) -> tuple[int, str]:
            answer = api.http.get(f"/v1/jobs/{job_id}/events", headers={"Authorization": f"Bearer {token}"})
            return answer.status_code, answer.json()["code"]

        assert code(job_id, theirs) == (404, "unknown-job")
        assert code(job_id, blind) == (403, "missing-scope")
        assert code(erased, ours) == (404, "unknown-job")
        assert code("job_" + "0" * 32, ours) == (404, "unknown-job")
        assert code("nonsense", ours) == (404, "unknown-job")


def test_the_events_of_a_private_job_tell_no_time_that_its_noise_shows_in(api: Live) -> None:
    job_id = api.submit(operation="hide", params={"count": 1}, inputs={"values": {"data": [1.0]}})
    end(api.queue, claim(api.queue))

    with opened(api, job_id) as stream:
        events = list(stream)

    assert names(events) == [("1", "queued"), ("2", "failed")]
    for event in events:
        assert datetime.fromisoformat(event.data["at"].replace("Z", "+00:00")).microsecond == 0


def test_a_comment_comes_while_nothing_happens(serve_api: Callable[..., Any]) -> None:
    with serve_api(event_comment_seconds=0.05) as api:
        job_id = api.submit(**SCALE)
        with opened(api, job_id) as stream:
            stream.take(1)
            stream.comment()
            stream.comment()
            api.queue.cancel(job_id)
            assert names(list(stream)) == [("2", "canceled")]


def test_a_job_past_its_deadline_ends_its_stream_where_no_worker_is_alive(serve_api: Callable[..., Any]) -> None:
    with serve_api(event_comment_seconds=0.05) as api:
        job_id = api.submit(**SCALE, deadline_s=0.2)
        with opened(api, job_id) as stream:
            assert names(list(stream)) == [("1", "queued"), ("2", "expired")]


def test_many_events_reach_many_readers_in_order_and_each_once(api: Live) -> None:
    job_id = api.submit(**SCALE)
    held = claim(api.queue)

    def read(late: float) -> list[int]:
        time.sleep(late)
        with opened(api, job_id) as stream:
            return [int(event.id) for event in stream]

    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        readers = [pool.submit(read, number / 50) for number in range(12)]
        for done in range(150):
            api.queue.progress(job_id, held.attempt, done / 150)
            time.sleep(0.002)
        end(api.queue, held)
        numbers = [reader.result(30) for reader in readers]

    assert numbers == [list(range(1, 154))] * 12


def test_a_reader_that_is_slow_misses_nothing_and_fills_no_memory(api: Live) -> None:
    job_id = api.submit(**SCALE)
    completions = api.app.state.services.completions
    with connected(api) as connection:
        connection.sendall(f"GET /v1/jobs/{job_id}/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        wait_until(lambda: completions._feeds.get(job_id))
        (feed,) = completions._feeds[job_id]
        with connect(api.redis_url) as redis:
            for number in range(2, 402):  # more than the sockets and buffers hold
                name = "progress" if number < 401 else "canceled"
                event = {"job": job_id, "number": number, "event": name, "at": 1.0, "attempt": 1, "reason": "x" * 65536}
                redis.xadd(events_key(job_id), {"event": json.dumps(event)}, id=f"{number}-0")
                redis.publish(EVENTS, json.dumps(event))
        wait_until(lambda: feed.behind)
        assert feed.fresh == []

        received = b""
        while not received.endswith(b"\r\n0\r\n\r\n"):  # the last chunk
            received += connection.recv(1 << 20)

    numbers = [int(line.removeprefix(b"id: ")) for line in received.split(b"\n") if line.startswith(b"id: ")]
    assert numbers == list(range(1, 402))


def test_readers_and_waiters_of_one_process_share_one_subscription(api: Live) -> None:
    job_id = api.submit(**SCALE)

    with concurrent.futures.ThreadPoolExecutor(24) as pool, connect(api.redis_url) as redis:

        def read() -> list[tuple[str, str]]:
            with opened(api, job_id) as stream:
                return names(list(stream))

        readers = [pool.submit(read) for _ in range(12)]
        waiters = [pool.submit(api.http.get, f"/v1/jobs/{job_id}", headers={"Prefer": "wait=30"}) for _ in range(12)]
        completions = api.app.state.services.completions
        wait_until(lambda: len(completions._feeds[job_id]) == len(completions._watches[job_id]) == 12)
        assert redis.pubsub_numsub(EVENTS) == [(EVENTS.encode(), 1)]
        api.queue.cancel(job_id)

        assert [reader.result(20) for reader in readers] == [[("1", "queued"), ("2", "canceled")]] * 12
        assert {waiter.result(20).json()["status"] for waiter in waiters} == {"canceled"}
    wait_until(lambda: (completions._feeds, completions._watches) == ({}, {}))


def test_who_goes_away_is_forgotten(api: Live) -> None:
    job_id = api.submit(**SCALE)
    completions = api.app.state.services.completions

    with opened(api, job_id) as stream:
        stream.take(1)
        assert completions._feeds

    wait_until(lambda: not completions._feeds)


def test_what_happens_while_the_subscription_is_cut_is_told_when_it_is_back(api: Live) -> None:
    """redis-py connects and subscribes again silently. What was published meanwhile is lost to it."""
    first, second = api.submit(**SCALE), api.submit(**SCALE)

    with (
        concurrent.futures.ThreadPoolExecutor(1) as pool,
        connect(api.redis_url) as redis,
        opened(api, first) as stream,
    ):
        events = stream.take(1)
        waiter = pool.submit(api.http.get, f"/v1/jobs/{second}", headers={"Prefer": "wait=50"})
        wait_until(lambda: api.app.state.services.completions._watches.get(second))
        with redis.pipeline() as pipe:  # the pipeline leaves no time to subscribe again before the jobs end
            pipe.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
            pipe.execute()
        for job_id in (first, second):
            api.queue.cancel(job_id)
        events += list(stream)
        answer = waiter.result(20)

    assert names(events) == [("1", "queued"), ("2", "canceled")]
    assert answer.json()["status"] == "canceled"


def test_a_stream_whose_job_was_forgotten_while_the_subscription_was_cut_ends(api: Live) -> None:
    job_id = api.submit(**SCALE)

    with connect(api.redis_url) as redis, opened(api, job_id) as stream:
        stream.take(1)
        with redis.pipeline() as pipe:
            pipe.delete(events_key(job_id), job_key(job_id))
            pipe.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
            pipe.execute()

        assert list(stream) == []


def test_a_stream_outlives_its_redis(serve_api: Callable[..., Any], tmp_path: Path) -> None:
    with RedisServer(tmp_path / "redis") as server, serve_api(server.url, event_comment_seconds=0.05) as api:
        job_id = api.submit(**SCALE)
        with opened(api, job_id) as stream:
            events = stream.take(1)
            server.stop()
            stream.comment()
            server.start()
            wait_until(lambda: api.queue.cancel(job_id))
            events += list(stream)

    assert names(events) == [("1", "queued"), ("2", "canceled")]


def test_streams_end_at_once_when_the_api_is_told_to_stop(redis_url: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        command, needed = module("warpdesk_server.service.api", "--fd", str(listening.fileno()))
        environment = {**os.environ, **needed, "WARPDESK_HOME": str(tmp_path), "WARPDESK_REDIS_URL": redis_url}
        log = tmp_path / "api.log"
        process = spawn(command, env=environment, log=log, pass_fds=(listening.fileno(),))
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{listening.getsockname()[1]}", timeout=30) as http:
                job_id = http.post("/v1/jobs", json={"operation": "sum", "inputs": {"x": {"data": [1.0]}}}).json()["id"]
                with http.stream("GET", f"/v1/jobs/{job_id}/events") as response:
                    stream = Stream(response)
                    assert names(stream.take(1)) == [("1", "queued")]
                    process.send_signal(signal.SIGTERM)
                    assert list(stream) == []  # ended by the last chunk, not cut off
        finally:
            assert stop(process, 20) in (0, -signal.SIGTERM)
    assert "Cancel" not in log.read_text()  # uvicorn's message for a request it had to cancel


def counted(api: Live, operation: str) -> bool:
    """Whether one job of the operation was counted as canceled."""
    labels = f'operation="{operation}",queue="batch",reason="",state="canceled"'
    line = f"warpdesk_jobs_finished_total{{{labels}}} 1.0"
    return line in api.http.get("/metrics").text


def test_a_record_that_cannot_be_read_keeps_nobody_else_from_being_told(serve_api: Callable[..., Any]) -> None:
    """For example a record that a later release wrote."""
    with serve_api(event_comment_seconds=3600) as api, connect(api.redis_url) as redis:
        odd, job_id = api.submit(**SCALE), api.submit(**unlike())
        redis.hset(job_key(odd), mapping={"state": "succeeded", "attempt": "first"})
        event = Event(job=odd, number=2, event="succeeded", at=time.time(), attempt=1).model_dump_json()
        with opened(api, job_id) as stream:
            stream.take(1)
            redis.publish(EVENTS, event)
            redis.publish(EVENTS, f'{event}\n{{"state": "succeeded"}}')
            wait_until(lambda: not api.app.state.services.completions._any_to_read.is_set())
            api.queue.cancel(job_id)
            assert names(list(stream)) == [("2", "canceled")]
        wait_until(lambda: counted(api, "scale"))


def test_a_disk_that_fails_at_the_end_of_one_job_keeps_nobody_else_from_being_told(
    serve_api: Callable[..., Any],
) -> None:
    with serve_api(event_comment_seconds=3600) as api:
        inputs = {"values": {"data": [1.0]}, "seeds": {"data": [1.0]}}
        secret, job_id = api.submit(operation="hide", params={"count": 1}, inputs=inputs), api.submit(**SCALE)
        record = api.queue.get(secret)
        assert record is not None
        description = api.store.path("local", record.request.inputs["seeds"]).with_suffix(".json")
        description.unlink()
        description.mkdir()
        with opened(api, job_id) as stream:
            stream.take(1)
            api.queue.cancel(secret)
            api.queue.cancel(job_id)
            assert names(list(stream)) == [("2", "canceled")]
        wait_until(lambda: counted(api, "scale") and counted(api, "hide"))


def test_a_connection_that_breaks_while_the_api_ends_does_not_keep_it(
    api: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error took the place of the cancellation, so that the API subscribed anew and never ended."""

    @asynccontextmanager
    async def breaks(_: object) -> AsyncIterator[None]:
        try:
            yield
        finally:
            raise ConnectionError("it broke")

    monkeypatch.setattr(completions_, "_ended", breaks)
    completions = completions_.Completions(api.redis_url, api.queue)

    async def ends() -> bool:
        task = asyncio.create_task(completions.hear())
        await asyncio.wait_for(completions._any_to_read.wait(), 60)  # it is subscribed
        task.cancel()
        done, _ = await asyncio.wait([task], timeout=5)
        task.cancel()
        return bool(done) and task.cancelled()

    assert asyncio.run(ends())
