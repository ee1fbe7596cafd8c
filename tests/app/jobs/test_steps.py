"""Tasks over HTTP: submitted, paused, resumed, and what they report of their steps."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.app.computations import WITH_TASKS
from tests.app.conftest import SCALE, Live, live
from tests.waiting import wait_until
from warpdesk import Client
from warpdesk.models import State
from warpdesk.progress import line
from warpdesk_server.workers.queue import keys
from warpdesk_server.workers.queue.jobs import connect
from warpdesk_server.workers.queue.records import Claim, Ending, Held
from warpdesk_server.workers.store.checkpoints import checkpoint_name

CHAIN = {"operation": "chain", "params": {"steps": 3}, "seed": 7}


@pytest.fixture
def api(tmp_path: Path, redis_url: str) -> Iterator[Live]:
    with live(tmp_path, redis_url, WITH_TASKS, max_live_tasks=2) as running:
        yield running


def claim(api: Live) -> Held:
    batch = api.queue.claim(Claim("a worker of tasks", takes="tasks"))
    assert batch is not None
    return batch.jobs[0]


def ask(api: Live, job_id: str, what: str, method: str = "POST") -> tuple[int, dict[str, Any]]:
    answer = api.http.request(method, f"/v1/jobs/{job_id}/{what}")
    return answer.status_code, answer.json()


def keep(api: Live, held: Held, step: int) -> None:
    """Keep a checkpoint as a worker does."""
    name = checkpoint_name(held.attempt, step)
    api.store.keep_checkpoint(
        f"{held.id}.{held.attempt}", name, lambda file: file.write(b"state") and None, 100, held.token
    )
    assert api.queue.step(held, step, checkpoint=name)


def test_a_task_waits_in_a_lane_of_its_own_with_the_limits_that_it_declares(api: Live) -> None:
    job_id = api.submit(**CHAIN)
    assert api.queue.claim(Claim("a worker of jobs")) is None
    request = claim(api).request
    assert (request.id, request.task, request.long, request.timeout, request.seconds) == (job_id, True, False, 60, None)
    assert request.checkpoint_bytes == 1 << 20


def test_a_task_that_waits_is_paused_and_resumed(api: Live) -> None:
    job_id = api.submit(**CHAIN)
    assert ask(api, job_id, "pause")[1]["status"] == "paused"
    assert ask(api, job_id, "pause")[1]["status"] == "paused"
    assert api.queue.claim(Claim("a worker", takes="tasks")) is None
    assert ask(api, job_id, "resume")[1]["status"] == "queued"
    assert claim(api).id == job_id


def test_paused_tasks_are_counted(api: Live) -> None:
    first, second = api.submit(**CHAIN), api.submit(**CHAIN)
    api.await_metrics("warpdesk_paused_tasks 0.0")
    for job_id in (first, second):
        ask(api, job_id, "pause")
    api.await_metrics("warpdesk_paused_tasks 2.0")
    ask(api, first, "resume")
    api.await_metrics("warpdesk_paused_tasks 1.0")
    ask(api, second, "cancel")
    api.await_metrics("warpdesk_paused_tasks 0.0")


def test_a_task_that_runs_is_paused_when_its_worker_gives_it_back(api: Live) -> None:
    job_id = api.submit(**CHAIN)
    held = claim(api)
    assert api.queue.renew([held]).pausing == []
    assert ask(api, job_id, "pause")[1]["status"] == "running"
    assert api.queue.renew([held]).pausing == [held]
    api.queue.finish([Ending(held, how="returned")])
    assert api.http.get(f"/v1/jobs/{job_id}").json()["status"] == "paused"
    ask(api, job_id, "resume")
    again = claim(api)
    assert (again.id, again.attempt) == (job_id, 2)
    ask(api, job_id, "pause")
    ask(api, job_id, "resume")
    assert api.queue.renew([again]).pausing == []


def test_a_paused_task_is_canceled_or_expires_or_is_erased(api: Live) -> None:
    canceled, late = api.submit(**CHAIN), api.submit(**CHAIN, deadline_s=1.0)
    for job_id in (canceled, late):
        ask(api, job_id, "pause")
    assert ask(api, canceled, "cancel")[1]["status"] == "canceled"
    wait_until(lambda: api.http.get(f"/v1/jobs/{late}").json()["status"] == "expired")
    assert ask(api, late, "resume")[1]["status"] == "expired"
    erased = api.submit(**CHAIN)
    ask(api, erased, "pause")
    assert api.http.delete(f"/v1/jobs/{erased}").status_code == 204
    assert ask(api, erased, "resume")[1]["status"] == "canceled"


@pytest.mark.parametrize(("what", "method"), [("pause", "POST"), ("resume", "POST"), ("progress", "GET")])
def test_a_job_without_steps_has_none_of_it(api: Live, what: str, method: str) -> None:
    job_id = api.submit(**SCALE)
    status, problem = ask(api, job_id, what, method)
    assert (status, problem["code"]) == (409, "not-a-task")
    assert "computes scale, which has no steps" in problem["detail"]
    status, problem = ask(api, "job_" + 32 * "0", what, method)
    assert (status, problem["code"]) == (404, "unknown-job")


def test_the_steps_of_a_task_are_told_page_by_page_and_on_its_stream(api: Live) -> None:
    job_id = api.submit(**CHAIN)
    held = claim(api)
    for step in range(1, 6):
        assert api.queue.step(held, step, step / 8, {"loss": 0.1 + step / 3, "rate": None})
    keep(api, held, 4)
    status, page = ask(api, job_id, "progress?after=1&limit=3", "GET")
    assert (status, page["done"], page["checkpoint"]) == (200, 0.625, 4)
    assert [(row["step"], row["values"]) for row in page["steps"]] == [
        (step, {"loss": 0.1 + step / 3, "rate": None}) for step in (2, 3, 4)
    ]
    assert page["next"] == f"/v1/jobs/{job_id}/progress?after=4&limit=3"
    assert api.http.get(f"/v1/jobs/{job_id}").json()["step"] == 4
    assert [row["step"] for row in api.http.get(page["next"]).json()["steps"]] == [5]
    api.http.post(f"/v1/jobs/{job_id}/cancel")
    with Client(api.url) as client:
        assert [row.step for row in client.steps(job_id)] == [1, 2, 3, 4, 5]
        events = [event for event in client.events(job_id) if event.event == "progress"]
    assert [(event.step, event.progress) for event in events] == [(step, step / 8) for step in range(1, 6)]
    assert events[0].values == {"loss": 0.1 + 1 / 3, "rate": None}
    assert line(events[0], None, 3.2) == ("[####--------------------------]  12 %, step 1, loss 0.433333, rate -, 3 s")


@pytest.mark.parametrize("query", ["after=-1", "after=x", "limit=0", "limit=1001", "before=3"])
def test_a_page_that_cannot_be_is_refused(api: Live, query: str) -> None:
    job_id = api.submit(**CHAIN)
    assert ask(api, job_id, f"progress?{query}", "GET")[0] == 422


def test_a_key_has_so_many_tasks_and_paused_ones_count(api: Live) -> None:
    first, second = api.submit(**CHAIN), api.submit(**CHAIN)
    ask(api, first, "pause")
    answer = api.http.post("/v1/jobs", json=CHAIN)
    assert (answer.status_code, answer.json()["code"]) == (429, "quota-reached")
    assert answer.json()["detail"] == "2 tasks of the key are queued, running or paused; the limit is 2"
    assert api.http.post("/v1/jobs", json=SCALE).status_code == 202, "other jobs are none"
    ask(api, second, "cancel")
    assert api.http.post("/v1/jobs", json=CHAIN).status_code == 202


def test_the_quota_heals_where_the_release_before_ended_a_task_in_part(api: Live) -> None:
    """It knows nothing of the set of live tasks."""
    jobs = [api.submit(**CHAIN), api.submit(**CHAIN)]
    with connect(api.redis_url) as redis:
        redis.srem(f"{keys.LIVE}local", jobs[0])
    assert api.http.post("/v1/jobs", json=CHAIN).status_code == 202
    assert api.http.post("/v1/jobs", json=CHAIN).status_code == 429


def test_a_task_without_a_kernel_for_a_gpu_takes_no_such_wish(api: Live) -> None:
    answer = api.http.post("/v1/jobs", json={**CHAIN, "backend": "gpu"})
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/backend")


def test_checkpoints_stay_as_long_as_a_record_may_run(api: Live) -> None:
    """Also where this release cannot read it, as that of a later one."""
    unreadable, dead, ended = (f"job_{number:032x}" for number in (1, 2, 3))
    with connect(api.redis_url) as redis:
        redis.hset(f"{keys.JOB}{unreadable}", mapping={"state": "dreaming"})
        redis.hset(f"{keys.JOB}{dead}", mapping={"state": "failed", "dead": "1"})
        redis.hset(f"{keys.JOB}{ended}", mapping={"state": "canceled"})
    assert api.queue.may_run([unreadable, dead, ended, "job_unknown"]) == [True, True, False, False]


def test_equal_tasks_are_computed_each_for_itself(api: Live) -> None:
    api.submit(**CHAIN)
    api.submit(**CHAIN)
    assert {claim(api).id, claim(api).id} == {job["id"] for job in api.http.get("/v1/jobs").json()["jobs"]}


@pytest.mark.parametrize("end", ["cancel", "delete"])
def test_the_checkpoints_of_a_task_go_with_it(api: Live, end: str) -> None:
    job_id = api.submit(**CHAIN)
    held = claim(api)
    keep(api, held, 1)
    assert api.store.checkpointed() == [job_id]
    if end == "cancel":
        api.http.post(f"/v1/jobs/{job_id}/cancel")
    else:
        api.http.delete(f"/v1/jobs/{job_id}")
        assert ask(api, job_id, "progress", "GET")[1]["steps"] == []
    wait_until(lambda: api.store.checkpointed() == [], "its checkpoints are still there")
    assert not api.queue.step(held, 2, checkpoint="1.2"), "an attempt that has ended changes nothing"


def test_the_checkpoints_and_the_result_of_a_task_are_reserved_before_it_is_queued(
    tmp_path: Path, redis_url: str
) -> None:
    with live(tmp_path, redis_url, WITH_TASKS, max_stored_bytes_per_key=4 << 20) as small:
        answer = small.http.post("/v1/jobs", json=CHAIN)
        assert (answer.status_code, answer.json()["code"]) == (429, "storage-quota")
        assert small.http.get("/v1/jobs").json()["jobs"] == []


def test_a_task_has_links_of_its_own(api: Live) -> None:
    links = api.http.get(f"/v1/jobs/{api.submit(**CHAIN)}").json()["links"]
    for what in ("pause", "resume"):
        assert api.http.post(links[what]).status_code == 200
    assert api.http.get(links["progress"]).json()["steps"] == []
    other = api.http.get(f"/v1/jobs/{api.submit(**SCALE)}").json()["links"]
    assert [other[what] for what in ("pause", "resume", "progress")] == [None, None, None]


def test_a_task_is_described_like_any_operation(api: Live) -> None:
    described = api.http.get("/v1/operations/chain").json()
    limits = {"step_s": 60.0, "total_s": None, "checkpoint_bytes": 1 << 20, "result_bytes": 1 << 20}
    assert described["task_limits"] == limits
    assert api.http.get("/v1/operations/scale").json()["task_limits"] is None
    assert described["example"] == {"operation": "chain", "params": {"steps": 3}, "inputs": {}}
    assert httpx.post(f"{api.url}/v1/jobs", json=described["example"]).status_code == 202
    assert api.queue.length() == 1
    assert State(api.http.get("/v1/jobs").json()["jobs"][0]["status"]) is State.QUEUED
    assert claim(api).request.operation == "chain"
