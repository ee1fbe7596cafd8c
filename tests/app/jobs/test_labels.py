"""Labels of a job's inputs: kept in its record, told in its result, erased with it, and no part of what it computes."""

from typing import Any

import numpy as np
import pytest

from tests.app.arrays.test_uploads import NPY, npy
from tests.app.computations import work
from tests.app.conftest import SCALE, Live
from warpdesk_server.app.kit import limits
from warpdesk_server.workers.queue.jobs import connect

LABELS = {"index": [{"name": "day", "values": ["2024-01-02", None, 3, 0.5, True]}], "columns": ["A", "é"]}


def with_labels(labels: Any = LABELS) -> dict[str, Any]:
    return {**SCALE, "inputs": {"values": {**SCALE["inputs"]["values"], "labels": labels}}}


def result(api: Live, job_id: str) -> Any:
    return api.http.get(f"/v1/jobs/{job_id}/result").json()


def test_labels_are_told_in_the_result_as_they_were_sent(api: Live) -> None:
    array = api.http.put("/v1/arrays", content=npy(np.array([1.0, 2.0])), headers=NPY).json()["id"]
    job_id = api.submit(**with_labels())
    stored = api.submit(**{**SCALE, "inputs": {"values": {"array": array, "labels": {"index": [7]}}}})
    work(api.queue, api.store, job_id)
    work(api.queue, api.store, stored)
    assert result(api, job_id)["labels"] == {"values": LABELS}
    assert result(api, stored)["labels"] == {"values": {"index": [7]}}
    assert api.store.find("local", array) is not None


def test_labels_are_no_part_of_what_is_computed(api: Live) -> None:
    plain, one, other = (api.submit(**body) for body in (SCALE, with_labels(), with_labels({"index": [1]})))
    assert api.queue.length() == 1, "one computes for all"
    work(api.queue, api.store, plain)
    assert [result(api, job_id).get("labels") for job_id in (plain, one, other)] == [
        None,
        {"values": LABELS},
        {"values": {"index": [1]}},
    ]


def test_an_idempotency_key_finds_its_job_whatever_the_labels_are(api: Live) -> None:
    key = {"Idempotency-Key": "monday"}
    answers = [
        api.http.post("/v1/jobs", json=body, headers=key) for body in (with_labels(), SCALE, with_labels({"index": []}))
    ]
    assert [answer.headers.get("Idempotent-Replayed") for answer in answers] == [None, "true", "true"]
    (job_id,) = {answer.json()["id"] for answer in answers}
    work(api.queue, api.store, job_id)
    assert result(api, job_id)["labels"] == {"values": LABELS}, "those of the request that made it"


def test_labels_are_erased_with_their_job(api: Live) -> None:
    job_id = api.submit(**with_labels({"index": ["Acme Corporation"]}))
    with connect(api.redis_url) as redis:
        record = redis.hgetall(f"warpdesk:job:{job_id}")
        assert b"Acme" in record[b"request"]
        assert api.http.delete(f"/v1/jobs/{job_id}").status_code == 204
        assert b"Acme" not in b"".join(redis.hgetall(f"warpdesk:job:{job_id}").values())


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        (["A"], "labels should be an object, got a list of 1"),
        ({"index": "x" * limits.LABELS}, f"the labels of a job may have {limits.LABELS} bytes as JSON"),
        ({"index": ["x" * 999] * 66}, f"the labels of a job may have {limits.LABELS} bytes as JSON"),
    ],
)
def test_labels_that_are_none_or_too_large_are_refused(api: Live, labels: Any, says: str) -> None:
    before = api.queued()
    refused = api.http.post("/v1/jobs", json=with_labels(labels))
    assert refused.status_code == 422
    (error,) = refused.json()["errors"]
    assert error["pointer"] == "/inputs/values/labels"
    assert says in error["detail"]
    assert api.queued() == before


def test_the_limit_is_of_all_inputs_of_a_job_together(api: Live) -> None:
    half = {"index": "x" * (limits.LABELS * 2 // 3)}
    body = with_labels(half)
    body["inputs"]["weights"] = {"data": [1, 2, 3], "dtype": "int64", "labels": half}
    refused = api.http.post("/v1/jobs", json=body).json()
    assert [error["pointer"] for error in refused["errors"]] == ["/inputs/weights/labels"]
    del body["inputs"]["weights"]["labels"]
    assert api.http.post("/v1/jobs", json=body).status_code == 202


def test_a_confidential_operation_keeps_no_labels(api: Live) -> None:
    inputs = {"values": {"data": [1.0], "labels": LABELS}}
    refused = api.http.post("/v1/jobs", json={"operation": "hide", "params": {"count": 1}, "inputs": inputs})
    assert refused.status_code == 422
    assert refused.json()["errors"] == [
        {"pointer": "/inputs/values/labels", "detail": "hide is confidential, and keeps no labels"}
    ]
    limits_of = {each["name"]: each["limits"] for each in api.http.get("/v1/operations").json()["operations"]}
    assert [limits_of[name]["label_bytes"] for name in ("hide", "scale")] == [0, limits.LABELS]
