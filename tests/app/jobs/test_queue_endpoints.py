"""The queue as an administrator sees it, and the pause of all workers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.app.access.test_auth import bearer
from tests.app.computations import fail
from tests.app.conftest import SCALE, Live, unlike
from tests.app.jobs.test_events import claim, end
from warpdesk_server.app.access.keys import create_key
from warpdesk_server.workers.queue.records import Claim


def test_what_waits_and_runs_is_told_by_lane_and_key_with_the_oldest(api: Live) -> None:
    fail(api.queue, api.submit(**unlike()))
    jobs = [api.submit(**unlike(), priority="realtime")]
    held = claim(api.queue)
    jobs += [api.submit(**unlike()) for _ in range(7)]

    state = api.http.get("/v1/queue").json()

    lanes = {lane["priority"]: lane for lane in state["lanes"]}
    assert list(lanes) == ["realtime", "batch", "research"]
    assert (lanes["realtime"]["running"], lanes["realtime"]["queued"]) == (1, 0)
    assert (lanes["batch"]["running"], lanes["batch"]["queued"], lanes["batch"]["queued_by_key"]) == (
        0,
        7,
        {"local": 7},
    )
    assert [job["id"] for job in state["oldest"]] == jobs[1:6]
    assert state["oldest"][0]["submitted_at"] == lanes["batch"]["oldest_at"]
    assert (state["paused"], state["dead_letters"], state["workers"]) == (False, 0, 0)
    end(api.queue, held)


def test_in_a_pause_jobs_are_taken_and_wait_and_go_to_workers_after_it(api: Live) -> None:
    assert api.http.post("/v1/queue/pause").json()["paused"] is True
    assert api.http.post("/v1/queue/pause").json()["paused"] is True
    job = api.submit(**SCALE)
    assert api.queue.suspended(), "which a worker looks at before it claims"
    assert api.http.get(f"/v1/jobs/{job}").json()["status"] == "queued"
    assert api.queue.leave(Claim("a worker that waits")) is None, "nothing was handed to it"

    assert api.http.post("/v1/queue/resume").json()["paused"] is False
    assert claim(api.queue).id == job


def test_only_an_administrator_sees_or_pauses_the_queue(serve_api: Callable[..., Any], tmp_path: Path) -> None:
    trader = create_key(tmp_path / "home", "a", ["submit", "read", "cancel", "metrics"])
    with serve_api() as api:
        for method, path in (("GET", ""), ("POST", "/pause"), ("POST", "/resume")):
            answer = api.http.request(method, f"/v1/queue{path}", headers=bearer(trader))
            assert (answer.status_code, answer.json()["code"]) == (403, "missing-scope")
        assert not api.queue.suspended()
