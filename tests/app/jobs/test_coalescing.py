"""Identical jobs of one key that are not done yet are computed once, and each caller sees a job of its own."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.app.access.test_auth import bearer
from tests.app.arrays.test_uploads import NPY, npy
from tests.app.computations import fail, work
from tests.app.conftest import SCALE, Live
from warpdesk_server.app.access.keys import create_key

DRAW = {"operation": "draw", "params": {"count": 3}}
HIDE = {"operation": "hide", "params": {"count": 1}, "inputs": {"values": {"data": [1.0]}}}


def pair(api: Live, first: dict[str, Any] = SCALE, second: dict[str, Any] | None = None) -> tuple[str, str]:
    return api.submit(**first), api.submit(**(first if second is None else second))


def test_identical_jobs_are_computed_once_and_answer_each_caller(api: Live) -> None:
    first, second = pair(api)
    assert (first != second, api.queue.length()) == (True, 1)

    work(api.queue, api.store, first)

    jobs = [api.http.get(f"/v1/jobs/{job_id}").json() for job_id in (first, second)]
    results = [api.http.get(f"/v1/jobs/{job_id}/result").json() for job_id in (first, second)]
    assert [job["status"] for job in jobs] == ["succeeded", "succeeded"]
    assert [job["provenance"]["coalesced"] for job in jobs] == [False, True]
    assert results[0]["outputs"] == results[1]["outputs"] == {"scaled": [2.0, None, 6.0], "total": 8.0}
    assert [result["job"] for result in results] == [first, second]
    assert api.queue.length() == 0


def test_a_parameter_written_out_as_its_default_makes_no_other_job(api: Live) -> None:
    pair(api, SCALE, {**SCALE, "params": {"window": 1, "factor": 2}})

    assert api.queue.length() == 1


def test_an_uploaded_array_is_the_same_as_one_in_the_body(api: Live) -> None:
    array = api.http.put("/v1/arrays", content=npy(np.array([1.0, np.nan, 3.0])), headers=NPY).json()["id"]
    pair(api, SCALE, {**SCALE, "inputs": {"values": {"array": array}}})

    assert api.queue.length() == 1


@pytest.mark.parametrize(
    "change",
    [
        {"params": {"factor": 2.5}},
        {"inputs": {"values": {"data": [1.0, 2.0, 3.0]}}},
        {"inputs": {"values": {"data": [1.0, None, 3.0], "dtype": "float32"}}},
        {"priority": "research"},
        {"backend": "cpu"},
        {"result_ttl_s": 60},
    ],
    ids=str,
)
def test_jobs_that_differ_in_anything_are_two(api: Live, change: dict[str, Any]) -> None:
    pair(api, SCALE, {**SCALE, **change})

    assert api.queue.length() == 2


def test_a_seed_that_the_service_drew_makes_a_job_like_no_other(api: Live) -> None:
    pair(api, DRAW)
    assert api.queue.length() == 2

    pair(api, {**DRAW, "seed": 5})
    assert api.queue.length() == 3


def test_private_noise_is_drawn_for_each_job(api: Live) -> None:
    pair(api, HIDE)

    assert api.queue.length() == 2


def test_what_one_key_computes_answers_no_other(serve_api: Callable[..., Any], tmp_path: Path) -> None:
    mine, theirs = (create_key(tmp_path / "home", name, ["admin"]) for name in ("mine", "theirs"))
    with serve_api() as api:
        for token in (mine, theirs):
            assert api.http.post("/v1/jobs", json=SCALE, headers=bearer(token)).status_code == 202

        assert api.queue.length() == 2


def test_canceling_one_leaves_the_other_to_run(api: Live) -> None:
    first, second = pair(api)

    api.http.post(f"/v1/jobs/{first}/cancel")

    assert api.queue.length() == 1
    work(api.queue, api.store, second)
    assert api.http.get(f"/v1/jobs/{first}").json()["status"] == "canceled"


def test_a_failure_is_that_of_all(api: Live) -> None:
    first, second = pair(api)
    fail(api.queue, first)

    assert api.http.get(f"/v1/jobs/{second}").json()["error"]["message"] == "it failed after 3 steps"


def test_erasing_one_leaves_the_others_result_and_the_last_one_deletes_it(api: Live) -> None:
    first, second = pair(api)
    work(api.queue, api.store, first)

    api.http.delete(f"/v1/jobs/{first}")
    kept = api.http.get(f"/v1/jobs/{second}/result")
    gone = api.http.get(f"/v1/jobs/{first}/result")
    api.http.delete(f"/v1/jobs/{second}")

    assert (kept.status_code, gone.status_code) == (200, 410)
    assert not list(api.settings.store_directory.glob(f"results/{first}*"))


def test_the_next_identical_job_is_computed_again(api: Live) -> None:
    first, _ = pair(api)
    work(api.queue, api.store, first)

    api.submit(**SCALE)

    assert api.queue.length() == 1


def test_metrics_count_jobs_that_another_was_computed_for(serve_api: Callable[..., Any]) -> None:
    with serve_api() as api:
        first, _ = pair(api)
        work(api.queue, api.store, first)
        finished = 'operation="scale",queue="batch",reason="",state="succeeded"'
        api.await_metrics(
            f"warpdesk_jobs_finished_total{{{finished}}} 2.0",
            'warpdesk_jobs_coalesced_total{operation="scale"} 1.0',
            'warpdesk_batches_total{operation="scale",trigger="alone"} 1.0',
            'warpdesk_batch_size_count{operation="scale"} 1.0',
            'warpdesk_jobs_computed_total{backend="cpu",operation="scale"} 1.0',
        )
