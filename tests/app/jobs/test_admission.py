"""Admission control: bounds, quotas, memory and deadlines, and what a refusal costs."""

import asyncio
import concurrent.futures
import json
import os
import re
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.app.access.test_auth import bearer
from tests.app.arrays.test_uploads import NPY, npy
from tests.app.computations import work
from tests.app.conftest import SCALE, Live, connected, unlike
from tests.app.health.test_health import redis_pid
from tests.waiting import wait_until
from warpdesk.models import State
from warpdesk_server.app.access.keys import create_key
from warpdesk_server.app.jobs import operations
from warpdesk_server.app.jobs.admission import LOOK_SECONDS, Admission, View, WaitingJobs, _long_workers
from warpdesk_server.app.jobs.throughput import ThroughputEstimate
from warpdesk_server.app.kit.errors import Refusal
from warpdesk_server.app.settings import Settings
from warpdesk_server.service.redis_server import RedisServer
from warpdesk_server.workers.queue.jobs import connect
from warpdesk_server.workers.queue.reports import WorkerReport


def submitted(api: Live, **wishes: Any) -> Any:
    return api.http.post("/v1/jobs", json={**unlike(), **wishes})


def problem(connection: socket.socket) -> str:
    """The response, a problem document. Its head and body may arrive one after the other."""
    answer = ""
    while not answer.endswith("}") and (more := connection.recv(10_000).decode()):
        answer += more
    return answer


def test_a_full_queue_is_refused_before_the_body_is_sent_and_without_asking_redis(
    tmp_path: Path, serve_api: Callable[..., Any]
) -> None:
    with RedisServer(tmp_path / "r") as server, serve_api(server.url, max_queue=2) as api:
        for _ in range(2):
            api.submit(**unlike())
        wait_until(lambda: api.app.state.services.admission.troubles())
        pid = redis_pid(api)
        os.kill(pid, signal.SIGSTOP)
        try:
            with connected(api) as connection:
                connection.sendall(
                    b"POST /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
                    b"Content-Length: 100000\r\n\r\n"
                )
                answer = problem(connection)
        finally:
            os.kill(pid, signal.SIGCONT)

    assert answer.startswith("HTTP/1.1 503")
    assert '"code":"queue-full"' in answer
    assert "The queue is full: 2 jobs may wait" in answer


def test_more_at_once_than_one_process_can_take_are_refused_before_their_bodies_are_sent(
    tmp_path: Path, serve_api: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("warpdesk_server.app.kit.limits.SUBMISSIONS", 3)  # while nobody else has any
    with RedisServer(tmp_path / "r") as server, serve_api(server.url) as api:
        wait_until(lambda: submitted(api).status_code == 202)
        admission, pid = api.app.state.services.admission, redis_pid(api)
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            os.kill(pid, signal.SIGSTOP)
            try:
                held = [pool.submit(httpx.post, f"{api.url}/v1/jobs", json=unlike(), timeout=60) for _ in range(3)]
                wait_until(lambda: _raised(lambda: admission.require_turn("local")) is not None)
                with connected(api) as connection:
                    connection.sendall(
                        b"POST /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
                        b"Content-Length: 100000\r\n\r\n"
                    )
                    answer = problem(connection)
            finally:
                os.kill(pid, signal.SIGCONT)
            assert [post.result().status_code for post in held] == [202] * 3

        assert answer.startswith("HTTP/1.1 503")
        assert '"code":"busy"' in answer
        assert "3 submissions of the key are in progress, which is its share at the moment" in answer
        assert submitted(api).status_code == 202


def test_a_job_whose_deadline_passes_while_it_waits_for_its_turn_is_refused_and_gives_the_turn_back(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("warpdesk_server.app.kit.limits.TURNS", 1)
    monkeypatch.setattr("warpdesk_server.app.kit.limits.SPARE_TURNS", 0)
    estimate = ThroughputEstimate()
    estimate.recent_lower_bound = 1000.0
    admission = Admission(Settings(home=tmp_path, redis_url=redis_url), estimate)

    async def late() -> None:
        async with admission.turn("a", "batch", 0.3):
            raise AssertionError

    async def wait() -> Refusal:
        async with admission.turn("b", "batch", None):
            waiting = asyncio.create_task(late())
            await asyncio.sleep(0.5)
        with pytest.raises(Refusal) as refused:
            await waiting
        async with admission.turn("a", "batch", 60.0):
            return refused.value

    refusal = asyncio.run(wait())
    admission.close()

    assert refusal.code == "deadline-unreachable"


def test_a_job_that_has_its_turn_is_not_refused_for_those_that_came_after_it(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("warpdesk_server.app.kit.limits.TURNS", 1)
    monkeypatch.setattr("warpdesk_server.app.kit.limits.SPARE_TURNS", 0)
    estimate = ThroughputEstimate()
    estimate.recent_lower_bound = 10.0
    admission = Admission(Settings(home=tmp_path, redis_url=redis_url), estimate)

    async def take(deadline_s: float | None) -> None:
        async with admission.turn("a", "batch", deadline_s):
            pass

    async def wait() -> None:
        async with admission.turn("a", "batch", None):
            # The event loop starts tasks in the order in which they were made.
            waiting = [asyncio.create_task(take(deadline_s)) for deadline_s in (5.0, *[None] * 100)]
            await asyncio.sleep(2 * LOOK_SECONDS)
        await asyncio.gather(*waiting)

    asyncio.run(wait())
    admission.close()


def _raised(call: Callable[[], None]) -> Refusal | None:
    try:
        call()
    except Refusal as refusal:
        return refusal
    return None


def test_a_queue_that_was_full_takes_jobs_again(serve_api: Callable[..., Any]) -> None:
    with serve_api(max_queue=1) as api:
        job_id = api.submit(**unlike())
        assert submitted(api).json()["code"] == "queue-full"
        assert api.http.get("/health").json()["status"] == "unavailable"  # no worker

        api.queue.cancel(job_id)

        wait_until(lambda: submitted(api).status_code == 202)


def test_a_key_has_so_many_live_jobs_and_other_keys_are_served(serve_api: Callable[..., Any], tmp_path: Path) -> None:
    busy, calm = (create_key(tmp_path / "home", name, ["admin"]) for name in ("busy", "calm"))
    with serve_api(max_live_jobs=2) as api:
        api.http.headers.update(bearer(busy))
        first, _ = api.submit(**unlike()), api.submit(**unlike())
        before = api.queued()

        refused = [submitted(api) for _ in range(2)]

        for answer in refused:
            assert (answer.status_code, answer.json()["code"]) == (429, "quota-reached")
            assert answer.json()["detail"] == "2 jobs of the key are queued or running; the limit is 2"
            assert answer.json()["retryable"]
            assert int(answer.headers["Retry-After"]).bit_count() == 1
        assert api.queued() == before
        assert api.http.post("/v1/jobs", json=SCALE, headers=bearer(calm)).status_code == 202
        api.http.post(f"/v1/jobs/{first}/cancel")
        wait_until(lambda: submitted(api).status_code == 202)


def test_keys_share_the_queue_and_one_that_comes_later_finds_room(
    serve_api: Callable[..., Any], tmp_path: Path
) -> None:
    tokens = [create_key(tmp_path / "home", name, ["submit", "read"]) for name in "abcdefg"]
    with serve_api(max_queue=60) as api:

        def fill(token: str) -> tuple[int, httpx.Response]:
            for taken in range(60):
                answer = api.http.post("/v1/jobs", json=unlike(), headers=bearer(token))
                if answer.status_code != 202:
                    return taken, answer
            raise AssertionError("nothing was refused")

        filled = [fill(token) for token in tokens]

        assert [taken for taken, _ in filled] == [30, 15, 8, 4, 1, 1, 1]
        codes = [(answer.status_code, answer.json()["code"]) for _, answer in filled]
        assert codes == [(429, "quota-reached")] * 6 + [(503, "queue-full")]
        detail = "30 jobs of the key are queued or running; that is its share at the moment of a queue of 60"
        assert filled[0][1].json()["detail"] == detail
        assert int(filled[0][1].headers["Retry-After"]).bit_count() == 1


def test_a_burst_of_one_key_does_not_take_the_turns_of_another(
    serve_api: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy, calm = (create_key(tmp_path / "home", name, ["submit", "read"]) for name in ("busy", "calm"))
    free, real = threading.Event(), operations.check

    def check(desk: Any, body: Any, sources: Any) -> Any:
        if sources.owner == busy.split("_")[1]:  # checking a submission of the busy key takes long
            assert free.wait(60)
        return real(desk, body, sources)

    monkeypatch.setattr("warpdesk_server.app.jobs.operations.check", check)
    with serve_api() as api, concurrent.futures.ThreadPoolExecutor(20) as pool:

        def send(token: str) -> httpx.Response:
            return httpx.post(f"{api.url}/v1/jobs", json=unlike(), headers=bearer(token), timeout=60)

        try:
            held = [pool.submit(send, busy) for _ in range(20)]
            wait_until(lambda: api.app.state.services.admission._turns.present.total() == 20)
            assert send(calm).status_code == 202
            assert not any(post.done() for post in held)
        finally:
            free.set()
        assert {post.result().status_code for post in held} == {202}


def test_redis_near_its_limit_takes_no_new_job_and_finishes_old_ones(
    tmp_path: Path, serve_api: Callable[..., Any]
) -> None:
    with RedisServer(tmp_path / "r") as server, serve_api(server.url) as api, connect(server.url) as redis:
        wait_until(lambda: api.http.get("/v1/jobs").status_code == 200)
        job_id = api.submit(**SCALE)
        redis.setrange("ballast", 20_000_000, b"x")  # so much that changes of the server's own memory do not matter
        redis.config_set("maxmemory", int(redis.info("memory")["used_memory"] / 0.9))
        wait_until(lambda: api.app.state.services.admission.troubles())

        refused = submitted(api)
        work(api.queue, api.store, job_id)
        done = api.http.get(f"/v1/jobs/{job_id}/result")
        redis.config_set("maxmemory", 0)

        assert (refused.status_code, refused.json()["code"]) == (503, "queue-memory")
        assert "Retry-After" in refused.headers
        detail = "Redis is too full for new jobs: they are accepted below 80% of its memory"
        assert refused.json()["detail"] == detail
        assert done.status_code == 200
        wait_until(lambda: submitted(api).status_code == 202)


def test_a_redis_without_memory_is_no_fault_of_ours(tmp_path: Path, serve_api: Callable[..., Any]) -> None:
    with RedisServer(tmp_path / "r") as server, serve_api(server.url) as api, connect(server.url) as redis:
        wait_until(lambda: api.http.get("/v1/jobs").status_code == 200)
        redis.setrange("ballast", 2_000_000, b"x")
        redis.config_set("maxmemory", "1mb")

        refused = [submitted(api) for _ in range(3)]  # by Redis, then by the last look at Redis
        redis.config_set("maxmemory", 0)

        assert {(answer.status_code, answer.json()["code"]) for answer in refused} == {(503, "queue-memory")}


def test_while_redis_is_known_to_hang_nobody_waits_for_it(tmp_path: Path, serve_api: Callable[..., Any]) -> None:
    with RedisServer(tmp_path / "r") as server, serve_api(server.url, redis_patience=1.0) as api:
        desk = api.app.state.services
        wait_until(lambda: submitted(api).status_code == 202)
        pid = redis_pid(api)
        os.kill(pid, signal.SIGSTOP)
        try:
            submitted(api)
            wait_until(lambda: desk.admission.away is not None and not desk.queue.usable)
            refused = api.http.post("/v1/jobs", json=SCALE, headers={"Idempotency-Key": "a"})
            durability = desk.admission.durability
        finally:
            os.kill(pid, signal.SIGCONT)

        assert (refused.status_code, refused.json()["code"]) == (503, "queue-unavailable")
        assert refused.json()["detail"] == "Redis cannot be used: TimeoutError"  # found by the last look
        assert (refused.headers["Retry-After"], durability) == ("1", "unknown")
        wait_until(lambda: submitted(api).status_code == 202)


def test_a_redis_that_is_back_for_one_is_back_for_all(tmp_path: Path, serve_api: Callable[..., Any]) -> None:
    server = RedisServer(tmp_path / "r")
    with serve_api(server.url) as api:
        wait_until(lambda: api.app.state.services.admission.away is not None)
        assert api.http.get("/v1/jobs").status_code == submitted(api).status_code == 503
        with server:
            wait_until(lambda: api.http.get("/v1/jobs").status_code == 200)

            assert submitted(api).status_code == 202


def test_a_deadline_that_passes_while_others_are_computed_is_refused(serve_api: Callable[..., Any]) -> None:
    with serve_api() as api:
        done = api.queue.get(api.submit(**unlike()))
        estimate = api.app.state.services.admission.throughput
        for _ in range(20):
            estimate.ended(replace(done, state=State.SUCCEEDED, started_at=100.0, ended_at=102.0))
        for _ in range(20):
            submitted(api, priority="batch")
        wait_until(lambda: estimate.rate is not None)

        late, patient = submitted(api, deadline_s=5), submitted(api, deadline_s=600_000)
        first, last = (
            submitted(api, deadline_s=5, priority="realtime"),
            submitted(api, deadline_s=5, priority="research"),
        )

        assert (late.status_code, late.json()["code"]) == (503, "deadline-unreachable")
        assert re.fullmatch(
            "2[0-9] quick jobs of the key wait before it, and its deadline would pass before it is computed, "
            "as quick jobs ended lately: that is 5 seconds away",
            late.json()["detail"],
        )
        assert 32 <= int(late.headers["Retry-After"]) <= 64
        assert patient.status_code == first.status_code == 202
        assert last.json()["code"] == "deadline-unreachable"


def test_a_deadline_is_tried_while_nothing_is_known_and_where_nobody_is_ahead(serve_api: Callable[..., Any]) -> None:
    with serve_api() as api:
        assert submitted(api, deadline_s=0.5).status_code == 202
        assert submitted(api, deadline_s=0.5).status_code == 202


@pytest.fixture
def apart(serve_api: Callable[..., Any]) -> Iterator[Live]:
    """An API of which some worker takes long jobs. Of SCALE, those with a window of 3 are long."""
    from tests.app.health.test_health import report

    with serve_api(long_seconds=5e-8) as api:
        api.queue.report(report("one", "ready").model_copy(update={"takes": "both"}), ttl=600)
        wait_until(lambda: "long" in api.app.state.services.admission.served)
        yield api


def of_window(api: Live, window: int, **wishes: Any) -> Any:
    params = {**unlike()["params"], "window": window}
    return submitted(api, params=params, **wishes)


def backed_up(api: Live, *, long: bool) -> None:
    """Have jobs of a kind wait, of which each took two seconds lately."""
    done = api.queue.get(of_window(api, 3 if long else 1, priority="research").json()["id"])
    assert done.request.long is long
    admission = api.app.state.services.admission
    for _ in range(20):
        admission.ended(replace(done, state=State.SUCCEEDED, started_at=100.0, ended_at=102.0))
    for _ in range(20):
        assert of_window(api, 3 if long else 1).status_code == 202
    estimate = admission.long_throughput if long else admission.throughput
    wait_until(lambda: estimate.rate is not None)


@pytest.mark.parametrize("long", [True, False])
def test_a_deadline_is_judged_by_the_jobs_of_the_same_kind(apart: Live, long: bool) -> None:
    backed_up(apart, long=long)

    same, other = (of_window(apart, window, deadline_s=5) for window in ((3, 1) if long else (1, 3)))

    assert (same.status_code, same.json()["code"]) == (503, "deadline-unreachable")
    kind = "long" if long else "quick"
    assert re.fullmatch(
        f"2[0-9] {kind} jobs of the key wait before it, and its deadline would pass before it is computed, "
        f"as {kind} jobs ended lately: that is (5|[0-4].[0-9]+) seconds away",  # less what the request took until here
        same.json()["detail"],
    )
    assert 32 <= int(same.headers["Retry-After"]) <= 64
    assert other.status_code == 202  # nothing of its kind waits, or is known
    assert int(other.headers["Retry-After"]) == 1


def test_a_deadline_that_neither_kind_meets_is_refused_before_the_job_is_looked_at(apart: Live) -> None:
    for long in (True, False):
        backed_up(apart, long=long)

    refused = of_window(apart, 0, deadline_s=5)  # no such window

    assert refused.json()["code"] == "deadline-unreachable"


@pytest.mark.parametrize(
    ("quick", "long", "seconds"), [(0, 9, 64), (9, 0, 2), (9, 9, 2), (0, 0, 1)], ids=["long", "quick", "both", "none"]
)
def test_places_of_a_full_queue_get_free_as_quick_and_long_jobs_leave_it(
    redis_url: str, tmp_path: Path, quick: int, long: int, seconds: int
) -> None:
    admission = Admission(Settings(home=tmp_path, redis_url=redis_url), ThroughputEstimate())
    admission.throughput.rate, admission.long_throughput.rate = 250.0, 0.1
    waiting = (WaitingJobs({"batch": {"a": count}} if count else {}) for count in (quick, long))
    admission._view = View(10_000, *waiting)

    assert int(admission.full(10_000).headers["Retry-After"]) == seconds
    admission.close()


def test_a_companion_and_its_worker_compute_one_long_job_at_a_time() -> None:
    from tests.app.health.test_health import report

    def worker(name: str, takes: str, pid: int, started_by: int = 1) -> WorkerReport:
        return report(name, "ready").model_copy(update={"takes": takes, "pid": pid, "started_by": started_by})

    both, companion = worker("a", "both", 10), worker("b", "long", 11, started_by=10)
    alone, quick = worker("c", "long", 12), worker("d", "quick", 13)
    assert [_long_workers(workers) for workers in ([], [both], [both, companion], [companion])] == [0, 1, 1, 1]
    assert _long_workers([both, companion, alone, quick]) == 2


@pytest.mark.parametrize(
    ("owner", "priority", "ahead"),
    [
        ("a", "realtime", 2),
        ("b", "realtime", 1),
        ("a", "batch", 2 + 100 + 3),  # its own jobs, and all of the key that has fewer
        ("b", "batch", 2 + 3 + 4),  # of the burst as many jobs as it has itself, and one more
        ("c", "batch", 2 + 1 + 1),
        ("c", "research", 2 + 103),
    ],
)
def test_owners_wait_for_higher_priorities_and_take_turns_in_their_own(owner: str, priority: Any, ahead: int) -> None:
    waiting = WaitingJobs({"realtime": {"a": 2}, "batch": {"a": 100, "b": 3}})

    assert waiting.ahead(owner, priority) == ahead


def test_health_says_why_new_jobs_are_refused(serve_api: Callable[..., Any]) -> None:
    from tests.app.health.test_health import report

    with serve_api(max_queue=1) as api:
        api.queue.report(report("one", "ready"), ttl=60)
        api.submit(**SCALE)

        wait_until(lambda: api.http.get("/readyz").json()["status"] == "degraded")

        answer = api.http.get("/readyz")
        assert (answer.status_code, answer.json()["reasons"]) == (200, ["The queue is full: 1 jobs may wait"])


def test_refusals_and_replays_are_counted(serve_api: Callable[..., Any]) -> None:
    with serve_api(max_live_jobs=1) as api:
        for _ in range(2):
            api.http.post("/v1/jobs", json=SCALE, headers={"Idempotency-Key": "a"})
        submitted(api)
        api.await_metrics('warpdesk_refusals_total{code="quota-reached"} 1.0', "warpdesk_jobs_replayed_total 1.0")


# --- what a power cut leaves


def durabilities(api: Live) -> tuple[str, str]:
    array = api.http.put("/v1/arrays", content=npy(np.arange(3.0)), headers=NPY)
    job = submitted(api)
    return array.headers["Warpdesk-Durability"], job.headers["Warpdesk-Durability"]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"appendfsync": "always"}, "always"),
        ({"appendfsync": "everysec"}, "everysec"),
        ({"appendfsync": "no"}, "none"),
        ({"appendfsync": "always", "no-appendfsync-on-rewrite": "yes"}, "none"),
        ({"appendonly": "no"}, "none"),
    ],
    ids=str,
)
def test_an_answer_says_what_the_connected_redis_does(
    tmp_path: Path, serve_api: Callable[..., Any], settings: dict[str, str], expected: str
) -> None:
    with RedisServer(tmp_path / "r") as server, connect(server.url) as redis:
        for name, value in settings.items():
            redis.config_set(name, value)
        with serve_api(server.url) as api:
            wait_until(lambda: api.app.state.services.admission.durability == expected)

            assert durabilities(api) == (expected, expected)


def test_no_more_is_promised_than_the_profile_asks_for(tmp_path: Path, serve_api: Callable[..., Any]) -> None:
    with RedisServer(tmp_path / "r") as server, serve_api(server.url, durability="everysec") as api:
        wait_until(lambda: api.app.state.services.admission.durability == "everysec")

        assert durabilities(api) == ("everysec", "everysec")


def test_a_redis_that_does_not_tell_is_unknown_and_serves(tmp_path: Path, serve_api: Callable[..., Any]) -> None:
    with RedisServer(tmp_path / "r") as server, connect(server.url) as redis:
        redis.execute_command("ACL", "SETUSER", "default", "on", "nopass", "~*", "&*", "+@all", "-config", "-info")
        with serve_api(server.url) as api:
            wait_until(lambda: submitted(api).status_code == 202)
            wait_until(lambda: api.app.state.services.admission.away is None)

            assert durabilities(api) == ("unknown", "unknown")


def test_what_is_documented_of_a_submission_is_what_may_come(api: Live) -> None:
    document = api.http.get("/openapi.json").json()["paths"]["/v1/jobs"]["post"]
    answers = document["responses"]

    assert {"Warpdesk-Durability", "Idempotent-Replayed", "Location", "Retry-After"} <= answers["202"]["headers"].keys()
    assert "quota-reached" in answers["429"]["description"]
    for code in ("queue-full", "queue-memory", "deadline-unreachable"):
        assert code in answers["503"]["description"]
    assert "Idempotency-Key" in json.dumps(document["parameters"])
