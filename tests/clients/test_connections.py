"""The client on connections that fail: nothing is done twice, nothing is missed, and no one waits longer than asked."""

import asyncio
import json
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.app.computations import work
from tests.app.conftest import Live, live
from tests.waiting import wait_until
from warpdesk import AsyncClient, Client, Unreachable, WarpdeskError
from warpdesk.client import JobEvent
from warpdesk.event_reader import Reading
from warpdesk.event_stream import EventStream, Message
from warpdesk.exchange import TRIES, Exchange
from warpdesk.models import Gap
from warpdesk_server.workers.queue.records import Claim, Held

VALUES = {"factor": 2.0, "values": [1.0, 2.0]}


class Road(socketserver.ThreadingTCPServer):
    """A way to the API on which replies are lost and connections are cut."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, api: Live) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.beyond = (httpx.URL(api.url).host, httpx.URL(api.url).port or 0)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.to_lose: bytes | None = None  # the reply to the next request that begins so
        self.carried: list[bytes] = []  # the first line of each request
        self.open: set[socket.socket] = set()

    def cut(self) -> None:
        for connection in list(self.open):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class _Connection(socketserver.BaseRequestHandler):
    server: Road

    def handle(self) -> None:
        with socket.create_connection(self.server.beyond) as there:
            self.server.open |= {self.request, there}
            self.losing = False
            back = threading.Thread(target=self._carry, args=(there, self.request, self._reply))
            back.start()
            self._carry(self.request, there, self._requested)
            back.join()
            self.server.open -= {self.request, there}

    def _carry(self, source: socket.socket, sink: socket.socket, passes: Callable[[bytes], bool]) -> None:
        with suppress(OSError):
            while (data := source.recv(1 << 16)) and passes(data):
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _requested(self, data: bytes) -> bool:
        if b" HTTP/1.1\r\n" in data:
            self.server.carried.append(data.partition(b"\r\n")[0])
            if self.server.to_lose is not None and data.startswith(self.server.to_lose):
                self.server.to_lose, self.losing = None, True
        return True

    def _reply(self, _: bytes) -> bool:
        return not self.losing


@pytest.fixture
def api(redis_url: str, tmp_path: Any) -> Iterator[Live]:
    with live(tmp_path / "home", redis_url, event_comment_seconds=0.2) as running:
        yield running


@pytest.fixture
def road(api: Live) -> Iterator[Road]:
    with Road(api) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.cut()
        server.shutdown()
        thread.join()


def claim(api: Live) -> Held:
    batch = api.queue.claim(Claim("a worker"))
    assert batch is not None
    return batch.jobs[0]


def jobs(api: Live) -> list[str]:
    return [record.request.id for record in api.queue.jobs("local", 100)[0]]


def test_a_submission_whose_reply_is_lost_makes_one_job(api: Live, road: Road) -> None:
    with Client(road.url) as client:
        client.operations()
        road.to_lose = b"POST /v1/jobs "
        job = client.submit("scale", **VALUES)

    assert sum(line.startswith(b"POST") for line in road.carried) == 2
    assert jobs(api) == [job.id]


def test_the_asynchronous_client_sends_a_lost_submission_again_too(api: Live, road: Road) -> None:
    async def submitted() -> str:
        async with AsyncClient(road.url) as client:
            await client.operations()
            road.to_lose = b"POST /v1/jobs "
            return (await client.submit("scale", **VALUES)).id

    assert [asyncio.run(submitted())] == jobs(api)


def test_whatever_is_asked_is_asked_again_when_its_reply_is_lost(api: Live, road: Road) -> None:
    array = np.arange(6.0)
    with Client(road.url) as client:
        for request in (b"GET /v1/operations", b"PUT /v1/arrays", b"GET /v1/arrays/", b"POST /v1/jobs/", b"DELETE"):
            road.to_lose = request
            client.operations()
            kept = client.upload(array)
            assert client.download(kept).tobytes() == array.tobytes()
            job = client.submit("scale", **VALUES)
            assert client.cancel(job).status == "canceled"
            client.delete(job)
            assert client.job(job).erased
            assert road.to_lose is None


def test_each_call_is_a_job_of_its_own_unless_the_caller_says_otherwise(api: Live) -> None:
    with Client(api.url) as client:
        first, second = (client.submit("scale", **VALUES) for _ in range(2))
        third, again = (client.submit("scale", idempotency_key="Märzlauf 7", **VALUES) for _ in range(2))
        with pytest.raises(WarpdeskError) as refused:
            client.submit("scale", idempotency_key="Märzlauf 7", factor=3.0, values=[1.0])

    assert len({first.id, second.id, third.id}) == 3
    assert again.id == third.id
    assert (refused.value.status, refused.value.code) == (422, "idempotency-key-reused")


def test_a_service_that_is_gone_is_asked_so_many_times_and_then_reported() -> None:
    requests: list[httpx.Request] = []
    with Client("http://127.0.0.1:9") as client:  # the discard port: nobody listens
        client._http.event_hooks["request"] = [requests.append]
        with pytest.raises(Unreachable):
            client.operations()
        with pytest.raises(Unreachable):
            list(client.events("job_" + "0" * 32))

    assert len(requests) == 2 * TRIES


def test_a_submission_that_is_refused_for_now_is_sent_again_when_the_service_says(
    redis_url: str, tmp_path: Any
) -> None:
    with (
        live(tmp_path / "home", redis_url, max_queue=1) as api,
        Client(api.url) as client,
        ThreadPoolExecutor() as pool,
    ):
        first = client.submit("scale", **VALUES)
        answers: list[httpx.Response] = []
        client._http.event_hooks["response"] = [answers.append]
        second = pool.submit(client.submit, "scale", **VALUES)
        wait_until(lambda: any(answer.status_code == 503 for answer in answers))
        api.queue.cancel(first.id)

        assert second.result(30).status == "queued"
        assert [answer.status_code for answer in answers][-1] == 202


def test_a_refusal_that_lasts_longer_than_the_caller_waits_is_raised_at_once(redis_url: str, tmp_path: Any) -> None:
    with live(tmp_path / "home", redis_url, max_queue=1) as api, Client(api.url) as client:
        client.submit("scale", **VALUES)
        answers: list[httpx.Response] = []
        client._http.event_hooks["response"] = [answers.append]
        with pytest.raises(WarpdeskError) as refused:
            client.run("scale", timeout=0.9, **VALUES)

    assert (refused.value.status, refused.value.code, len(answers)) == (503, "queue-full", 1)


def numbers(events: list[JobEvent]) -> list[tuple[int, str]]:
    return [(event.number, event.event) for event in events]


def test_events_come_whole_and_in_order_over_connections_that_are_cut(api: Live, road: Road) -> None:
    events: list[JobEvent] = []
    with Client(road.url) as client:
        job = client.submit("scale", **VALUES)
        held = claim(api)
        for event in client.events(job):
            events.append(event)
            if event.number in (2, 4, 7):
                road.cut()
            if event.number == 9:
                api.queue.cancel(job.id)
            elif event.number > 1:
                api.queue.progress(job.id, held.attempt, event.number / 10)

    assert numbers(events) == [
        (1, "queued"),
        (2, "running"),
        *((number, "progress") for number in range(3, 10)),
        (10, "canceled"),
    ]
    assert [event.progress for event in events[2:9]] == [number / 10 for number in range(2, 9)]
    assert sum(line.endswith(b"/events HTTP/1.1") for line in road.carried) == 4


def test_the_asynchronous_client_reads_the_same_events(api: Live, road: Road) -> None:
    async def read() -> list[JobEvent]:
        events = []
        async with AsyncClient(road.url) as client:
            job = await client.submit("scale", **VALUES)
            async for event in client.events(job):
                events.append(event)
                road.cut()
                await asyncio.to_thread(claim if event.number == 1 else lambda api: api.queue.cancel(job.id), api)
        return events

    assert numbers(asyncio.run(read())) == [(1, "queued"), (2, "running"), (3, "canceled")]


def test_events_of_a_job_that_is_done_are_all_told_and_end(api: Live) -> None:
    with Client(api.url) as client:
        job = client.submit("scale", **VALUES)
        client.cancel(job)
        assert numbers(list(client.events(job.id))) == [(1, "queued"), (2, "canceled")]
        client.delete(job)
        with pytest.raises(WarpdeskError) as refused:
            next(client.events(job))

    assert (refused.value.status, refused.value.code) == (404, "unknown-job")


@pytest.mark.parametrize("timeout", [0.05, 0.7])
def test_events_end_with_the_time_of_who_reads_them(api: Live, timeout: float) -> None:
    events: list[JobEvent] = []

    async def read(job: str) -> None:
        async with AsyncClient(api.url) as client:
            events.extend([event async for event in client.events(job, timeout)])

    with Client(api.url) as client:
        job = client.submit("scale", **VALUES)
        with pytest.raises(TimeoutError, match=f"{job.id} is still queued"):
            events.extend(client.events(job, timeout))
        with pytest.raises(TimeoutError, match=f"{job.id} is still queued"):
            asyncio.run(read(job.id))
        assert {*numbers(events)} <= {(1, "queued")}
        claim(api)
        with pytest.raises(TimeoutError, match=f"{job.id} is still running"):
            client.result(job, 3.0, progress=events.append)


def test_progress_is_told_of_what_is_run_and_waited_for(api: Live) -> None:
    events: list[JobEvent] = []

    def tell(event: JobEvent) -> None:
        events.append(event)
        if event.number == 1:
            work(api.queue, api.store, event.job)

    async def run() -> Any:
        async with AsyncClient(api.url) as client:
            return await client.run("scale", progress=tell, timeout=30, **VALUES)

    with Client(api.url) as client:
        results = [
            client.run("scale", progress=tell, **VALUES),
            client.result(client.submit("scale", **VALUES), progress=tell),
            asyncio.run(run()),
        ]
        assert client.wait(client.submit("scale", **VALUES), progress=tell).status == "succeeded"

    assert [result["total"] for result in results] == [6.0] * 3
    assert numbers(events) == [(1, "queued"), (2, "running"), (3, "succeeded")] * 4


def test_who_follows_all_jobs_hears_of_events_after_a_gap_whose_numbers_are_lower() -> None:
    reading = Reading(Exchange("http://127.0.0.1:9", None, 1.0), None, None)

    def events(number: int, text: str) -> list[Any]:
        return [*reading.take(f"id: {number}\n{text}\n\n".encode())]

    def event(number: int) -> list[Any]:
        fields = {"job": "a job", "number": 1, "event": "queued", "at": "2026-01-05T00:00:00Z", "attempt": 0}
        return events(number, "data: " + json.dumps({**fields, "progress": None, "reason": None}))

    assert (len(event(900)), len(event(900))) == (1, 0)
    (gap,) = events(850, 'event: gap\ndata: {"event": "gap", "detail": "Events were lost"}')
    assert isinstance(gap, Gap)
    with reading.attempt() as request:
        assert request.headers["Last-Event-ID"] == "850"
    assert (len(event(851)), len(event(851)), len(event(852))) == (1, 0, 1)


@given(st.data())
def test_events_are_the_same_however_the_stream_is_cut_into_pieces(data: st.DataObject) -> None:
    end = st.sampled_from([b"\n", b"\r\n"])
    lines = [
        b":a comment", b"retry: 2500", b"id: 1", b"event: queued", b'data: {"at":', b"data:1}", b"", b"id: 2", b"",
        b"data", b"data: \xe2\x80\xa8x", b"nonsense: 5", b"", b"id: 3", b"event: lost",
    ]  # fmt: skip
    stream = b"".join(line + data.draw(end) for line in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    reader = EventStream()
    pieces = [stream[begin:until] for begin, until in zip([0, *cuts], [*cuts, len(stream)], strict=True)]

    messages = [message for piece in pieces for message in reader.take(piece)]

    assert messages == [Message("1", "queued", '{"at":\n1}'), Message("2", "message", "\n\u2028x")]
    assert reader.retry == 2.5


def test_lines_may_end_in_a_carriage_return_alone() -> None:
    assert list(EventStream().take(b"id: 1\rdata: x\r\r\r")) == [Message("1", "message", "x")]
