"""Several jobs in one call of the client: results in order, with the bytes that each job has by itself."""

import asyncio
import time
from typing import Any

import httpx
import numpy as np
import pandas as pd
import pytest

from warpdesk import AsyncClient, Call, Client, JobFailed, JobTimeout, RequestRefused
from warpdesk.client import Job
from warpdesk.exchange import LONGEST_DELAY, LONGEST_PAUSE, LONGEST_SILENCE, PAUSE, Exchange
from warpdesk.models import JobDescription, State

pytestmark = pytest.mark.timeout(500)

CLOSE = np.random.default_rng(5).normal(100, 1, 300)
SLOW: dict[str, Any] = {
    "payoff": "european", "option": "call", "spot": 100.0, "strike": 100.0, "volatility": 0.2, "maturity": 1.0,
    "steps": 1000, "paths": 20_000_000,
}  # fmt: skip


@pytest.fixture
def requests(client: Client) -> list[str]:
    """What the client sends and the service does not put off: methods and paths."""
    sent: list[str] = []

    def note(response: httpx.Response) -> None:
        if response.status_code not in (429, 503):  # a machine that is busy
            sent.append(f"{response.request.method} {response.request.url.path}")

    client._http.event_hooks["response"] = [note]
    return sent


def test_results_are_in_order_with_the_bytes_of_single_jobs_and_come_in_one_request(
    client: Client, requests: list[str]
) -> None:
    client.operations()
    calls = [
        *(Call("rsi", close=CLOSE, period=period) for period in range(2, 30)),
        Call("macd", params={"close": CLOSE.astype(np.float32)}, fast=5),
        Call("sum", x=[1.0, 2.0], priority="realtime"),
    ]
    for call in calls[-3:]:  # so that no job of the request waits for a compiler
        client.run(call.operation, params=call.fields)
    requests.clear()
    results = client.run_many(calls)
    assert requests == ["PUT /v1/arrays", "POST /v1/jobs/batch"]  # the array of many jobs, once

    for call, result in zip(calls, results, strict=True):
        alone = client.run(call.operation, params=call.fields)
        assert result.job.operation == call.operation
        assert {name: np.asarray(value).dtype for name, value in result.items()} == {
            name: np.asarray(value).dtype for name, value in alone.items()
        }
        for name, value in result.items():
            assert np.asarray(value).tobytes() == np.asarray(alone[name]).tobytes()
    assert results[-1].job.priority == "realtime"
    results[0]["rsi"][0] = 1.0  # it is the caller's


def test_a_frame_that_jobs_read_in_several_ways_is_sent_in_each(client: Client, requests: list[str]) -> None:
    frame, one = pd.DataFrame(CLOSE.reshape(75, 4)), pd.DataFrame(CLOSE.reshape(300, 1))
    client.operations()
    requests.clear()
    _, product, square, beta = client.run_many(
        [
            Call("rsi", close=frame, period=3),
            Call("matmul", a=frame, b=np.eye(4)),
            Call("matmul", a=frame, b=frame.to_numpy().T),
            Call("performance", returns=one, benchmark=one),
        ]
    )
    assert requests.count("PUT /v1/arrays") == 4  # the frame turned and as it is, the other as a table and as a series
    np.testing.assert_array_equal(product["product"], frame)
    assert square["product"].shape == (75, 75)
    assert beta.job.status is State.SUCCEEDED


def test_a_job_that_fails_says_which_it_is_and_the_others_are_not_lost(client: Client) -> None:
    calls = [Call("sum", x=[1.0]), Call("covariance", returns=[[1e200, -1e200]]), Call("sum", x=[2.0])]
    with pytest.raises(JobFailed, match=r"jobs\[1\], covariance: .*its square overflows") as failed:
        client.run_many(calls)
    assert failed.value.place == 1
    assert isinstance(failed.value.job, Job)
    assert failed.value.job.refresh().status is State.FAILED
    first, second, third = client.run_many(calls, return_exceptions=True)
    assert isinstance(second, JobFailed)
    assert not isinstance(first, JobFailed)
    assert not isinstance(third, JobFailed)
    assert (first["sum"], third["sum"]) == (1.0, 2.0)


def test_what_is_wrong_is_told_with_its_place_and_none_is_queued(client: Client) -> None:
    before = next(client.list(1)).id
    with pytest.raises(RequestRefused) as refused:
        client.submit_many([Call("rsi", close=CLOSE, period=5), Call("rsi", close=CLOSE, period=0), Call("none")])
    assert [error.pointer for error in refused.value.errors] == ["/jobs/1/params/period", "/jobs/2/operation"]
    assert next(client.list(1)).id == before


def test_a_call_that_is_sent_again_under_its_key_gets_the_same_jobs(client: Client) -> None:
    calls = [Call("sum", x=[float(number)]) for number in range(5)]
    jobs = client.submit_many(calls, idempotency_key="five sums")
    assert [job.result()["sum"] for job in jobs] == [0.0, 1.0, 2.0, 3.0, 4.0]
    again = client.run_many(calls, idempotency_key="five sums")
    assert [result.job.id for result in again] == [job.id for job in jobs]


def test_nothing_to_do_is_done(client: Client) -> None:
    assert client.run_many([]) == []
    assert [*client.submit_many([])] == []


def test_more_than_the_body_holds_is_uploaded_and_more_than_the_answer_holds_is_fetched(
    client: Client, requests: list[str]
) -> None:
    rng = np.random.default_rng(6)
    calls = [Call("sma", close=rng.normal(size=4000), period=3) for _ in range(20)]
    requests.clear()
    results = client.run_many(calls)
    assert requests.count("PUT /v1/arrays") == 4  # of 65,536 numbers 16 times 4,000 are in the body
    for call, result in zip(calls, results, strict=True):
        assert result["sma"][2:] == pytest.approx(np.convolve(call.fields["close"], np.ones(3) / 3, "valid"))


def test_progress_counts_and_a_timeout_names_what_has_not_ended(client: Client) -> None:
    counts: list[tuple[int, int]] = []
    calls = [Call("sum", x=[3.0]), Call("monte_carlo", **SLOW, seed=1), Call("monte_carlo", **SLOW, seed=2)]
    with pytest.raises(JobTimeout, match="had not ended by the timeout, and was canceled") as late:
        client.run_many(calls, timeout=2.5, on_timeout="cancel", progress=lambda done, of: counts.append((done, of)))
    assert counts[-1] == (1, 3)
    assert [job.status for job in late.value.unfinished] == [State.CANCELED] * 2


def test_an_asynchronous_client_does_alike(client: Client) -> None:
    async def several() -> list[float]:
        async with AsyncClient(client._exchange.url) as connected:
            jobs = await connected.submit_many([Call("sum", x=[1.0])])
            results = await connected.run_many([Call("sum", x=[2.0]), Call("sum", x=[3.0])])
            return [(await jobs[0].result())["sum"], *(result["sum"] for result in results)]

    assert asyncio.run(several()) == [1.0, 2.0, 3.0]


def test_a_service_that_does_not_wait_is_asked_again_when_it_says() -> None:
    required = [name for name, field in JobDescription.model_fields.items() if field.is_required()]
    texts = {"id": "a job", "operation": "sum", "status": "queued", "backend": "auto", "priority": "batch"}
    links = dict.fromkeys(("self", "result", "events", "cancel"), "")
    numbers = {"attempt": 0, "erased": False, "submitted_at": "2026-01-05T00:00:00Z"}
    job = {**dict.fromkeys(required), **texts, **numbers, "links": links}

    def pauses(progress: Any, timeout: float | None, *retry_after: str) -> list[float]:
        deadline = None if timeout is None else time.monotonic() + timeout
        steps = Exchange("http://127.0.0.1:9", None, 1.0).run_many([Call("sum", x=[1.0])], "key", deadline, progress)
        request, found = next(steps), []
        while request.method == "GET":
            request = steps.send(httpx.Response(200, json={"operations": []}))
        for seconds in retry_after:
            headers = {"Retry-After": seconds} if seconds else {}
            request = steps.send(httpx.Response(202, json={"jobs": [job]}, headers=headers))
            found.append(request.extensions[PAUSE])
        steps.close()
        return found

    assert pauses(None, None, "4", "64", "") == [4, LONGEST_DELAY, LONGEST_PAUSE]
    assert pauses(lambda *_: None, None, "1", "64") == [1, LONGEST_SILENCE]
    assert pauses(None, 5.0, "64") == [pytest.approx(5.0, abs=3)]


def test_a_lost_answer_makes_no_second_jobs(client: Client) -> None:
    lost = [True]

    def lose(_: httpx.Response) -> None:
        if lost.pop() if lost else False:
            raise httpx.ReadError("the answer is lost")

    client._http.event_hooks["response"] = [lose]
    before = sum(1 for _ in client.list())
    results = client.run_many([Call("sum", x=[float(number)]) for number in range(3)])
    assert [result["sum"] for result in results] == [0.0, 1.0, 2.0]
    assert sum(1 for _ in client.list()) - before == 3
