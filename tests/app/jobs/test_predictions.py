"""What the API predicts that a job takes on a GPU and on the CPU, from all jobs that ended."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.app.computations import work
from tests.app.conftest import unlike
from tests.app.health.test_health import report
from tests.waiting import wait_until
from warpdesk.models import State
from warpdesk_server.app.jobs.predictions import Predictions
from warpdesk_server.workers.predicted_times import Job
from warpdesk_server.workers.queue.protocol import Forecast, JobRequest, Provenance
from warpdesk_server.workers.queue.records import JobRecord

KIND = "rsi float64"
REQUEST = JobRequest(
    id="job_1", owner="a", operation="rsi", params={}, inputs={}, timeout=1, result_ttl=1, work=1000.0,
    forecast=Forecast(kind=KIND),
)  # fmt: skip
DONE = JobRecord(
    REQUEST, State.SUCCEEDED, 1, 90.0, started_at=100.0, ended_at=100.5,
    provenance=Provenance(backend="cpu", device="here", attempt=1),
)  # fmt: skip


def learned(*records: JobRecord) -> Forecast:
    """What is predicted for a job like them after these, each a second after the one before."""
    times = iter(range(len(records)))
    predictions = Predictions(lambda: next(times))
    for record in records:
        predictions.ended(record)
    return predictions.of(Job(KIND, 1000.0))


def test_a_job_is_predicted_to_keep_a_worker_as_long_as_those_like_it_did() -> None:
    on_gpu = replace(DONE, ended_at=100.1, provenance=Provenance(backend="gpu", device="there", attempt=1))

    both, alone = learned(DONE, on_gpu), learned(DONE)
    assert (both.gpu, both.cpu) == (pytest.approx(0.1), pytest.approx(0.5))
    assert (alone.gpu, alone.cpu) == (None, pytest.approx(0.5))


def test_jobs_of_one_launch_share_its_time() -> None:
    together = replace(DONE, provenance=Provenance(backend="cpu", device="here", attempt=1, batch_size=4))

    predicted = learned(together).cpu
    assert predicted is not None
    assert 0.5 / 4 <= predicted < 0.5


@pytest.mark.parametrize(
    "record",
    [
        replace(DONE, state=State.FAILED),
        replace(DONE, request=REQUEST.model_copy(update={"private": True})),
        replace(DONE, request=REQUEST.model_copy(update={"forecast": None})),
        replace(DONE, provenance=Provenance(backend="cpu", device="here", attempt=1, coalesced=True)),
        replace(DONE, ended_at=99.0),
        replace(DONE, provenance=None),
    ],
    ids=["failed", "private", "not to be learned", "answered by another", "the clock was set back", "of no worker"],
)
def test_a_job_that_tells_nothing_or_nothing_that_may_be_kept_teaches_nothing(record: JobRecord) -> None:
    assert learned(record) == Forecast(kind=KIND)


def test_nothing_is_predicted_for_a_job_of_another_size() -> None:
    predictions = Predictions()
    predictions.ended(DONE)

    assert predictions.of(Job(KIND, 1e9)) == Forecast(kind=KIND)


@pytest.mark.parametrize(
    ("backend", "gpu", "cpu", "seconds"),
    [
        ("auto", 1.0, 5.0, (1.0, 5.0)),
        ("auto", 5.0, 1.0, (1.0, 1.0)),  # a worker with a GPU computes it on its CPU
        ("auto", None, 1.0, (None, 1.0)),
        ("auto", 1.0, None, (1.0, None)),
        ("gpu", 5.0, 1.0, (5.0, None)),
        ("cpu", 1.0, 5.0, (5.0, 0.0)),
    ],
)
def test_a_worker_is_kept_by_what_the_job_asks_for(
    backend: Any, gpu: float | None, cpu: float | None, seconds: tuple[float | None, float | None]
) -> None:
    forecast = Forecast(kind=KIND, gpu=gpu, cpu=cpu)
    request = REQUEST.model_copy(update={"backend": backend, "forecast": forecast})

    assert (request.on_gpu, request.on_cpu) == seconds


def test_a_job_has_a_forecast_where_a_worker_has_a_gpu(serve_api: Callable[..., Any]) -> None:
    with serve_api() as api:
        first = api.submit(**unlike())
        work(api.queue, api.store, first)
        worker, admission = report("one with a GPU", "ready", "gpu"), api.app.state.services.admission
        api.queue.report(worker.model_copy(update={"takes": "both"}), ttl=60)
        wait_until(lambda: "gpu" in admission.served)
        second = api.submit(**unlike())
        work(api.queue, api.store, second)

        def predicted() -> Forecast | None:
            record = api.queue.get(api.submit(**unlike()))
            assert record is not None
            forecast: Forecast | None = record.request.forecast
            return forecast if forecast is not None and forecast.cpu is not None else None

        forecast = wait_until(predicted, "nothing was learned from the job")
        before, between = api.queue.records([first, second])

    assert forecast is not None
    assert forecast.kind.startswith("scale float64")
    assert forecast.gpu is None
    assert before is not None
    assert before.request.forecast is None  # and so it taught nothing
    assert between is not None
    assert between.request.forecast == Forecast(kind=forecast.kind)


def test_an_erased_job_tells_no_prediction(serve_api: Callable[..., Any]) -> None:
    with serve_api() as api:
        api.queue.report(report("one with a GPU", "ready", "gpu"), ttl=60)
        wait_until(lambda: "gpu" in api.app.state.services.admission.served)
        job_id = api.submit(**unlike())
        assert api.http.delete(f"/v1/jobs/{job_id}").status_code < 300
        erased = api.queue.get(job_id)

    assert erased is not None
    assert erased.request.forecast is None
