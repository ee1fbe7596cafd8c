"""What a job's body tells of its request, and lists of jobs by state, operation, time and owner."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.app.access.test_auth import bearer
from tests.app.computations import fail
from tests.app.conftest import SCALE, Live, unlike
from warpdesk_server.app.access.keys import create_key
from warpdesk_server.app.kit import limits
from warpdesk_server.workers.queue import view


def _ids(api: Live, **query: Any) -> list[str]:
    answer = api.http.get("/v1/jobs", params=query)
    assert answer.status_code == 200, answer.text
    return [job["id"] for job in answer.json()["jobs"]]


def test_the_body_of_a_job_has_its_params_and_inputs(api: Live) -> None:
    array_id = api.http.put("/v1/arrays", content="1\n2\n", headers={"Content-Type": "text/csv"}).json()["id"]
    job_id = api.submit(operation="scale", params={"factor": 3.0}, inputs={"values": {"array": array_id}})

    body = api.http.get(f"/v1/jobs/{job_id}").json()
    waited = api.http.get(f"/v1/jobs/{job_id}", headers={"Prefer": "wait=0"}).json()

    assert body["params"] == waited["params"] == {"factor": 3.0}
    assert body["inputs"] == waited["inputs"] == {"values": {"array": array_id, "dtype": None}}
    assert api.http.get("/v1/jobs").json()["jobs"][0]["params"] is None, "a list is short"


def test_of_an_erased_job_and_of_a_confidential_operation_nothing_is_said(api: Live) -> None:
    erased = api.submit(**SCALE)
    api.http.delete(f"/v1/jobs/{erased}")
    private = api.submit(operation="hide", params={"count": 3}, inputs={"values": {"data": [1.0]}})

    for job_id in (erased, private):
        body = api.http.get(f"/v1/jobs/{job_id}").json()
        assert (body["params"], body["inputs"]) == (None, None)


def test_what_a_job_read_of_datasets_is_shown_until_it_is_erased(api: Live) -> None:
    api.http.put("/v1/datasets/prices", json={"columns": {"close": "float64"}})
    rows = {"times": ["2026-01-05T00:00:00Z"], "assets": ["A"], "columns": {"close": [[1.0]]}}
    assert api.http.post("/v1/datasets/prices/rows", json=rows).status_code == 200
    part = {"dataset": "prices", "column": "close"}
    plain = api.submit(operation="scale", params={"factor": 2.0}, inputs={"values": part})
    private = api.submit(operation="hide", params={"count": 3}, inputs={"values": {**part, "assets": "A"}})

    assert api.http.get(f"/v1/jobs/{plain}").json()["datasets"]["values"]["as_of"] == 1
    api.http.delete(f"/v1/jobs/{plain}")
    for job_id in (plain, private):
        assert api.http.get(f"/v1/jobs/{job_id}").json()["datasets"] == {}
    assert "prices" not in api.http.get("/v1/jobs").text
    record = api.queue.get(plain)
    assert record is not None
    assert record.request.datasets == {}, "Redis has nothing of it either"
    api.http.delete("/v1/datasets/prices")


def test_more_than_redis_should_keep_of_a_request_is_refused(api: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RECORD", 10)
    answer = api.http.post("/v1/jobs", json=SCALE)
    assert (answer.status_code, answer.json()["code"]) == (422, "job-too-large")


def test_jobs_are_listed_by_state_operation_and_time(api: Live) -> None:
    before = datetime.now(UTC)
    failed, queued, drawn = (
        api.submit(**unlike()),
        api.submit(**unlike()),
        api.submit(operation="draw", params={"count": 3}),
    )
    fail(api.queue, failed)

    assert _ids(api, status="failed") == [failed]
    assert _ids(api, status=["failed", "queued"]) == [drawn, queued, failed]
    assert _ids(api, status="queued", operation="scale") == [queued]
    assert _ids(api, operation="nonsense") == []
    assert _ids(api, since=before.isoformat()) == [drawn, queued, failed]
    assert _ids(api, until=before.isoformat()) == []
    assert _ids(api, since=(before + timedelta(hours=1)).isoformat()) == []


def test_pages_of_a_filtered_list_join_also_where_few_of_many_fit(api: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "SCANNED", 4)
    jobs = [api.submit(**unlike()) for _ in range(11)]
    for place in (0, 1, 9):
        fail(api.queue, jobs[place])

    found, pages, url = [], 0, "/v1/jobs?status=failed&limit=1"
    while url:
        answer = api.http.get(url)
        page = answer.json()
        assert (page["next"] is None) == ("Link" not in answer.headers)
        assert len(page["jobs"]) <= 1
        found += [job["id"] for job in page["jobs"]]
        pages, url = pages + 1, page["next"]

    assert found == [jobs[9], jobs[1], jobs[0]]
    assert pages <= 6


@pytest.mark.parametrize(
    ("query", "pointer"),
    [
        ({"status": "done"}, "/query/status/0"),
        ({"since": "yesterday"}, "/query/since"),
        ({"since": "2026-01-05T09:30:00"}, "/query/since"),  # in which time zone
        ({"operation": "x" * 65}, "/query/operation"),
    ],
)
def test_a_filter_that_cannot_be_read_is_refused_by_name(api: Live, query: dict[str, str], pointer: str) -> None:
    answer = api.http.get("/v1/jobs", params=query)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid-request")
    assert [error["pointer"] for error in answer.json()["errors"]] == [pointer]


def test_only_an_administrator_lists_the_jobs_of_another_key(serve_api: Callable[..., Any], tmp_path: Path) -> None:
    trader, boss = (create_key(tmp_path / "home", name, [scope]) for name, scope in (("a", "submit"), ("b", "admin")))
    reader = create_key(tmp_path / "home", "c", ["read"])
    with serve_api() as api:
        job_id = api.http.post("/v1/jobs", json=SCALE, headers=bearer(trader)).json()["id"]
        owner = trader.split("_")[1]
        query = {"owner": owner}

        refused = api.http.get("/v1/jobs", params=query, headers=bearer(reader))
        listed = api.http.get("/v1/jobs", params=query, headers=bearer(boss))

        assert (refused.status_code, refused.json()["code"]) == (403, "missing-scope")
        assert [job["id"] for job in listed.json()["jobs"]] == [job_id]
        entry = api.http.get("/v1/audit", headers=bearer(boss)).json()["entries"][0]
        assert (entry["action"], entry["target"], entry["who"]["name"]) == ("GET /v1/jobs", owner, "b")
        # The other key's id says nothing to a reader that asks for its own.
        assert (
            api.http.get("/v1/jobs", params={"owner": reader.split("_")[1]}, headers=bearer(reader)).json()["jobs"]
            == []
        )
