"""An input that got another name: requests may use both, and a job is the same by either."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.app.conftest import Live, live
from tests.conftest import emptied, redis_of_its_own
from warpdesk_server.app.jobs.idempotency import canonical, identity
from warpdesk_server.kernels.catalogue import OPERATIONS

CLOSES = [44.34, 44.09, 44.15, 43.61, 44.33]
RENAMED = ("sma", "ema", "rsi", "bollinger")


def body(name: str, operation: str = "rsi", **fields: Any) -> dict[str, Any]:
    return {"operation": operation, "params": {"period": 3}, "inputs": {name: {"data": CLOSES}}, **fields}


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """An API with all operations."""
    with redis_of_its_own() as url, live(tmp_path_factory.mktemp("home"), url, OPERATIONS) as api:
        yield api


@pytest.fixture
def api(desk: Live) -> Live:
    emptied(desk.redis_url)
    return desk


@pytest.mark.parametrize("operation", RENAMED)
@pytest.mark.parametrize("name", ["close", "prices"])
def test_a_record_has_the_name_that_workers_of_earlier_releases_know(api: Live, name: str, operation: str) -> None:
    record = api.queue.get(api.submit(**body(name, operation)))

    assert record is not None
    assert list(record.request.inputs) == ["prices"]


def test_jobs_that_differ_in_the_name_alone_are_computed_once_and_share_batches(api: Live) -> None:
    ids = [api.submit(**body("close")), api.submit(**body("prices"))]
    assert api.queue.length() == 1

    ids.append(api.submit(**{**body("close"), "inputs": {"close": {"data": CLOSES[::-1]}}}))
    records = [api.queue.get(job_id) for job_id in ids]
    assert len({record.request.together.key for record in records if record and record.request.together}) == 1


@pytest.mark.parametrize("names", [("prices", "close"), ("close", "prices")])
def test_an_idempotency_key_is_answered_with_its_job_by_either_name(api: Live, names: tuple[str, str]) -> None:
    first, second = (
        api.http.post("/v1/jobs", json=body(name), headers={"Idempotency-Key": "order-1"}) for name in names
    )

    assert (first.status_code, second.status_code) == (202, 202)
    assert second.headers["Idempotent-Replayed"] == "true"
    assert second.json()["id"] == first.json()["id"]


def test_an_idempotency_key_with_both_names_at_once_is_refused(api: Live) -> None:
    key = {"Idempotency-Key": "order-1"}
    assert api.http.post("/v1/jobs", json=body("prices"), headers=key).status_code == 202
    both = {**body("prices"), "inputs": {"close": {"data": [1.0]}, "prices": {"data": CLOSES}}}

    assert api.http.post("/v1/jobs", json=both, headers=key).json()["code"] == "idempotency-key-reused"
    refused = api.http.post("/v1/jobs", json=both).json()
    assert [error["pointer"] for error in refused["errors"]] == ["/inputs/prices"]


def test_what_an_earlier_release_noted_of_a_request_is_still_that_of_the_request() -> None:
    for operation in RENAMED:
        noted = canonical(body("prices", operation))
        assert identity(OPERATIONS, body("prices", operation)) == noted
        assert identity(OPERATIONS, body("close", operation)) == noted
    for other in ({"operation": "macd", "inputs": {"close": {"data": CLOSES}}}, {"operation": "rsi", "inputs": 3}, [1]):
        assert identity(OPERATIONS, other) == canonical(other)


@pytest.mark.parametrize("operation", RENAMED)
def test_descriptions_show_the_new_name_and_say_of_which_input_the_earlier_one_is(api: Live, operation: str) -> None:
    found = api.http.get(f"/v1/operations/{operation}").json()
    schemas = api.http.get("/openapi.json").json()["components"]["schemas"]

    shown = [(each["name"], each["required"], each["alias_of"]) for each in found["inputs"]]
    assert shown == [("close", True, None), ("prices", False, "close")]
    assert list(found["example"]["inputs"]) == ["close"]
    assert {name for twin in found["same_as"] for name in twin["inputs"]} == {"close"}
    inputs = schemas[f"{operation}_job"]["properties"]["inputs"]
    assert (list(inputs["properties"]), inputs["required"]) == (["close"], ["close"])


def test_no_input_is_renamed_to_the_name_of_another() -> None:
    for operation in OPERATIONS.values():
        names = [*(each.shown for each in operation.inputs), *(each.name for each in operation.inputs if each.renamed)]
        assert len(set(names)) == len(names), operation.name


@pytest.mark.parametrize("name", ["close", "prices"])
def test_a_gap_is_refused_at_the_name_that_the_request_has(api: Live, name: str) -> None:
    params = {"period": 3, "nan_policy": "error"}
    refused = api.http.post("/v1/jobs", json=body(name, params=params, inputs={name: {"data": [1.0, None, 2.0, 3.0]}}))

    assert refused.json()["errors"] == [
        {"pointer": f"/inputs/{name}", "detail": 'close holds a NaN and nan_policy is "error"'}
    ]
