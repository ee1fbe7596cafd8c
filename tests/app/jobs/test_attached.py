"""Small inputs in a request's body go with their job into Redis, and leave it as the job ends."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.app.computations import work
from tests.app.conftest import SCALE, Live
from tests.app.health.test_health import report
from tests.claims import finish, take
from tests.waiting import wait_until
from warpdesk.models import State
from warpdesk_server.kernels.problems import InvalidRequest
from warpdesk_server.workers.child import codec
from warpdesk_server.workers.queue.jobs import connect
from warpdesk_server.workers.queue.keys import job_key
from warpdesk_server.workers.queue.protocol import MAX_STRIKES, Kind
from warpdesk_server.workers.queue.records import GIVEN_UP, Claim


def has_workers(api: Live, *of_this_release: bool) -> None:
    """Have workers report that they are of this release, or of the one before."""
    reports = [report(f"worker {number}", "ready") for number in range(len(of_this_release))]
    for each, new in zip(reports, of_this_release, strict=True):
        api.queue.report(each.model_copy(update={"takes": "quick" if new else ""}), ttl=60)
    admission = api.app.state.services.admission
    wait_until(lambda: all(admission.able_lately(each, 60) for each in reports))


@pytest.fixture
def able(serve_api: Callable[..., Any]) -> Iterator[Live]:
    """An API one of whose workers reads inputs from job records."""
    with serve_api() as api:
        has_workers(api, True, False)
        yield api


def attached(api: Live, job_id: str) -> dict[str, Any]:
    with connect(api.redis_url) as connection:
        return dict(json.loads(connection.hget(job_key(job_id), "attached") or "{}"))  # type: ignore[arg-type]


def stored(api: Live) -> list[Any]:
    return list(api.http.get("/v1/arrays").json()["arrays"])


class OlderClaim(Claim):
    """A claim as workers of the release before make it."""

    @property
    def kinds(self) -> list[Kind]:
        return ["any", "gpu"]


def test_a_worker_of_the_release_before_is_given_no_job_whose_inputs_it_would_miss(able: Live) -> None:
    waits = OlderClaim("an older worker", waits=True)
    assert able.queue.claim(waits) is None
    job_id = able.submit(**SCALE)

    assert able.queue.leave(waits) is None  # it was not handed over
    assert able.queue.claim(OlderClaim("an older worker")) is None
    assert take(able.queue, job_id).attached


def test_a_small_input_is_in_the_record_until_the_job_has_ended_and_never_in_the_store(able: Live) -> None:
    job_id = able.submit(**SCALE)

    assert attached(able, job_id)["values"]["shape"] == [3]
    assert stored(able) == []
    work(able.queue, able.store, job_id)
    result = able.http.get(f"/v1/jobs/{job_id}/result").json()
    assert result["outputs"]["scaled"] == [2.0, None, 6.0]
    assert attached(able, job_id) == {}


def test_both_ways_give_one_answer_and_one_digest_of_the_request(able: Live) -> None:
    first = able.submit(**SCALE)
    has_workers(able, False, False)
    wait_until(lambda: "attached" not in able.app.state.services.admission.served)
    second = able.submit(**SCALE)  # one job computes for both
    followed = able.queue.get(second)

    assert followed is not None
    assert attached(able, first) != {}
    assert attached(able, second) == {}
    one = able.queue.get(first)
    assert one is not None
    assert one.request.inputs == followed.request.inputs
    work(able.queue, able.store, first)
    wait_until(lambda: (found := able.queue.get(second)) is not None and found.state is State.SUCCEEDED)


@pytest.mark.parametrize("workers", [(), (False,)])
def test_where_every_worker_looks_into_the_store_alone_inputs_are_there(
    serve_api: Callable[..., Any], workers: tuple[bool, ...]
) -> None:
    with serve_api() as api:
        has_workers(api, *workers)
        job_id = api.submit(**SCALE)

        assert attached(api, job_id) == {}
        assert len(stored(api)) == 1


@pytest.mark.parametrize(("most", "there"), [(23, 1), (24, 0)])
def test_larger_inputs_are_stored(serve_api: Callable[..., Any], most: int, there: int) -> None:
    with serve_api(max_attached_bytes=most) as api:
        has_workers(api, True)
        api.submit(**SCALE)

        assert len(stored(api)) == there


def test_nothing_confidential_is_in_a_record(able: Live) -> None:
    job_id = able.submit(operation="hide", params={"count": 3}, inputs={"values": {"data": [1.0]}})

    assert attached(able, job_id) == {}
    assert len(stored(able)) == 1


def test_a_canceled_or_erased_job_keeps_no_input(able: Live) -> None:
    canceled, erased = (able.submit(**{**SCALE, "params": {"factor": factor}}) for factor in (3.0, 4.0))
    assert attached(able, canceled)
    able.http.post(f"/v1/jobs/{canceled}/cancel").raise_for_status()
    able.http.delete(f"/v1/jobs/{erased}").raise_for_status()

    assert [attached(able, job_id) for job_id in (canceled, erased)] == [{}, {}]


def test_a_dead_letter_keeps_its_inputs_and_is_run_again_with_them(able: Live) -> None:
    job_id = able.submit(**SCALE)
    for _ in range(MAX_STRIKES):
        ended = finish(able.queue, take(able.queue, job_id), how="struck", failure=GIVEN_UP)
    assert ended == "dead"
    assert attached(able, job_id)
    able.http.post(f"/v1/dead-letters/{job_id}/rerun").raise_for_status()
    work(able.queue, able.store, job_id)

    assert able.http.get(f"/v1/jobs/{job_id}/result").json()["outputs"]["total"] == 8.0
    assert attached(able, job_id) == {}


def changed(text: str, **fields: Any) -> str:
    inputs = json.loads(text)
    inputs["values"].update(fields)
    return json.dumps(inputs)


@pytest.mark.parametrize(
    "forge",
    [
        lambda _: "",
        lambda _: "{}",
        lambda _: "no JSON",
        lambda text: changed(text, data="AAAAAAAA8D8AAAAAAAAAQAAAAAAAAAhA"),
        lambda text: changed(text, data="AAAA"),
        lambda text: changed(text, data="?"),
        lambda text: changed(text, shape=[3, 1]),
        lambda text: changed(text, shape=[-3]),
    ],
    ids=["gone", "empty", "malformed", "other", "short", "no base64", "other shape", "negative"],
)
def test_a_worker_computes_with_no_input_that_was_changed_in_redis(able: Live, forge: Callable[[str], str]) -> None:
    job = take(able.queue, able.submit(**SCALE))
    operation = able.app.state.services.operations["scale"]
    _, right = codec.decode(operation, job.request, able.store, {}, job.attached)
    np.testing.assert_array_equal(right["values"], [1.0, np.nan, 3.0])
    with pytest.raises(InvalidRequest, match="is not what the service wrote there"):
        codec.decode(operation, job.request, able.store, {}, forge(job.attached))


@pytest.mark.parametrize("data", [[[1, 2], [3, 4]], [0.5]])
def test_every_shape_and_dtype_arrives_as_it_was_sent(able: Live, data: list[Any]) -> None:
    dtype = "float32" if np.ndim(data) == 2 else "float64"
    body = {**SCALE, "inputs": {"values": {"data": data, "dtype": dtype}}}
    job = take(able.queue, able.submit(**body))
    _, inputs = codec.decode(able.app.state.services.operations["scale"], job.request, able.store, {}, job.attached)

    assert (inputs["values"].dtype, inputs["values"].tolist()) == (np.dtype(dtype), data)
    assert inputs["values"].flags.writeable
