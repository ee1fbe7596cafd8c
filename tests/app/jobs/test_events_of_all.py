"""The stream of all events of a key: in order, each once, resumable, and honest about what it no longer has."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.app.access.test_auth import bearer
from tests.app.conftest import SCALE, Live, unlike
from tests.app.jobs.test_events import Stream, StreamEvent, claim, end
from warpdesk_server.app.access.keys import create_key
from warpdesk_server.app.jobs import events as events_
from warpdesk_server.workers.queue.jobs import connect
from warpdesk_server.workers.queue.keys import FEED, FOLLOWED


@contextmanager
def stream_of_all(api: Live, last: str | None = None, token: str = "") -> Iterator[Stream]:
    headers = {} if last is None else {"Last-Event-ID": last}
    with api.http.stream("GET", "/v1/events", headers=headers | (bearer(token) if token else {})) as response:
        assert response.status_code == 200, response.read()
        stream = Stream(response)
        if last is None:
            assert next(stream.lines) == f"retry: {events_.RETRY}"
            stream.comment()  # from here on nothing is missed
        yield stream


def pairs(events: list[StreamEvent]) -> list[tuple[str, str]]:
    return [(event.data["job"], event.event) for event in events]


def test_what_happens_to_any_job_is_told_in_order_and_each_event_once(api: Live) -> None:
    with stream_of_all(api) as stream:
        one, two = api.submit(**unlike()), api.submit(operation="draw", params={"count": 2})
        held = claim(api.queue)
        end(api.queue, held)
        api.http.post(f"/v1/jobs/{two}/cancel")
        events = stream.take(5)

    assert pairs(events) == [(one, "queued"), (two, "queued"), (one, "running"), (one, "failed"), (two, "canceled")]
    assert [event.data["operation"] for event in events] == ["scale", "draw", "scale", "scale", "draw"]
    assert [event.data["number"] for event in events] == [1, 1, 2, 3, 2], "of each job"
    first = int(events[0].id)
    assert [int(event.id) for event in events] == list(range(first, first + 5)), "of the stream"


def test_a_reader_that_comes_back_gets_what_it_missed(api: Live) -> None:
    with stream_of_all(api) as stream:
        jobs = [api.submit(**unlike())]
        (first,) = stream.take(1)
    jobs += [api.submit(**unlike()) for _ in range(3)]

    with stream_of_all(api, first.id) as stream:
        events = stream.take(3)
        jobs.append(api.submit(**unlike()))
        events += stream.take(1)

    assert pairs(events) == [(job, "queued") for job in jobs[1:]]


def test_more_events_than_are_read_at_once_come_in_order(api: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events_, "_PAGE", 3)
    with stream_of_all(api) as stream:
        jobs = [api.submit(**unlike()) for _ in range(10)]
        assert pairs(stream.take(10)) == [(job, "queued") for job in jobs]


def test_a_reader_is_told_of_events_that_are_no_longer_kept(api: Live) -> None:
    with stream_of_all(api) as stream:
        api.submit(**unlike())
        (first,) = stream.take(1)
    api.submit(**unlike())
    with connect(api.redis_url) as redis:
        redis.delete(f"{FEED}local", f"{FOLLOWED}local")  # a day has passed

    with stream_of_all(api, first.id) as stream:
        (gap,) = stream.take(1)
        job = api.submit(**unlike())
        events = stream.take(1)

    assert (gap.event, int(gap.id) > int(first.id)) == ("gap", True)
    assert pairs(events) == [(job, "queued")]


def test_the_events_of_another_key_are_not_told(serve_api: Callable[..., Any], tmp_path: Path) -> None:
    mine, others = (create_key(tmp_path / "home", name, ["submit", "read"]) for name in ("a", "b"))
    with serve_api() as api, stream_of_all(api, token=mine) as stream:
        api.http.post("/v1/jobs", json=SCALE, headers=bearer(others))
        own = api.http.post("/v1/jobs", json=unlike(), headers=bearer(mine)).json()["id"]
        assert pairs(stream.take(1)) == [(own, "queued")]


def test_of_a_private_job_neither_its_start_nor_a_fraction_of_a_second_is_told(api: Live) -> None:
    with stream_of_all(api) as stream:
        api.submit(operation="hide", params={"count": 3}, inputs={"values": {"data": [1.0]}})
        end(api.queue, claim(api.queue))
        events = stream.take(2)

    assert [event.event for event in events] == ["queued", "failed"]
    assert all("." not in event.data["at"] for event in events)


def test_the_events_of_an_erased_job_are_told_no_more(api: Live) -> None:
    with stream_of_all(api):
        pass
    with connect(api.redis_url) as redis:
        before = redis.hget(f"{FOLLOWED}local", "number").decode()
    erased, kept = api.submit(**unlike()), api.submit(**unlike())
    api.http.delete(f"/v1/jobs/{erased}")

    with stream_of_all(api, before) as stream:
        assert pairs(stream.take(1)) == [(kept, "queued")]
        api.http.post(f"/v1/jobs/{kept}/cancel")
        assert pairs(stream.take(1)) == [(kept, "canceled")], "and no gap"


def test_nothing_is_kept_for_a_key_that_nobody_follows(api: Live) -> None:
    api.submit(**SCALE)
    with connect(api.redis_url) as redis:
        assert not redis.exists(f"{FEED}local")


def test_what_is_no_number_of_an_event_is_refused(api: Live) -> None:
    answer = api.http.get("/v1/events", headers={"Last-Event-ID": "yesterday"})
    assert (answer.status_code, answer.json()["code"]) == (400, "bad-request")
