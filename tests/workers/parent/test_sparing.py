"""Workers without a GPU beside one that has one: a job is computed where it is predicted to end sooner."""

import signal

import pytest

from tests.app.metrics.test_gpu_metrics import condition, worker
from tests.workers.conftest import Desk
from warpdesk.models import State
from warpdesk_server.workers.parent.sparing import gpu_workers
from warpdesk_server.workers.queue.protocol import NO_GPU_WAS_FREE, SOONER_ON_CPU, Forecast
from warpdesk_server.workers.queue.reports import WarmUp, WorkerReport

PAPER = {"WARPDESK_DEVICE": "tests.workers.device:PaperDevice"}
BESIDE = {"WARPDESK_AUTO": "quicker"}  # on the CPU


def test_while_the_gpu_is_busy_a_job_is_computed_on_the_cpu_and_says_why(desk: Desk) -> None:
    desk.start_worker(**PAPER)
    with desk.gate() as gate:
        long, _ = desk.nap(gate=gate, backend="gpu", forecast=Forecast(kind="nap", gpu=600.0))
        desk.start_worker(**BESIDE)
        record = desk.wait(desk.submit(forecast=Forecast(kind="double", gpu=0.001, cpu=2.0)))
    assert desk.doubled(record) == [2.0, 4.0, 6.0]
    assert record.provenance is not None
    assert (record.provenance.backend, record.provenance.fallback_reason) == ("cpu", None)
    reason = record.provenance.backend_reason
    assert reason is not None
    assert reason.startswith(f"{SOONER_ON_CPU}: predicted 2 s, and 1 ms on the GPU after ")
    assert desk.wait(long).state is State.SUCCEEDED


def test_jobs_that_end_sooner_on_a_free_gpu_are_left_to_it(desk: Desk) -> None:
    desk.start_worker(**PAPER)
    desk.start_worker(**BESIDE)
    jobs = [desk.submit(forecast=Forecast(kind="double", gpu=0.001, cpu=900.0)) for _ in range(30)]
    records = [desk.wait(job_id) for job_id in jobs]
    assert {record.provenance.backend for record in records if record.provenance is not None} == {"gpu"}
    assert [record.attempt for record in records] == [1] * 30


def test_a_job_that_is_quicker_on_the_cpu_says_so_and_one_of_which_nothing_is_predicted_too(desk: Desk) -> None:
    desk.start_worker(**PAPER)
    with desk.gate() as gate:
        desk.nap(gate=gate, backend="gpu", forecast=Forecast(kind="nap", gpu=600.0))
        desk.start_worker(**BESIDE)
        forecasts = Forecast(kind="double", gpu=0.004, cpu=0.002), Forecast(kind="double"), None
        records = [desk.wait(desk.submit(forecast=forecast)) for forecast in forecasts]
        hows = [record.provenance for record in records]
        reasons = [(how.backend_reason, how.fallback_reason) for how in hows if how is not None]
    assert reasons == [("predicted 2 ms on the CPU, 4 ms on the GPU", None), *[(NO_GPU_WAS_FREE, None)] * 2]


def test_when_the_worker_with_the_gpu_dies_the_others_take_its_jobs(desk: Desk) -> None:
    desk.start_worker(**PAPER)
    with desk.gate() as gate:
        nap, _ = desk.nap(gate=gate, backend="gpu", forecast=Forecast(kind="nap", gpu=1.0))
        desk.start_worker(**BESIDE)
        left = desk.submit(forecast=Forecast(kind="double", gpu=0.001, cpu=90_000.0))
        record = desk.queue.get(left)
        assert record is not None
        assert record.state is State.QUEUED
        desk.workers[0].send_signal(signal.SIGKILL)
        ended = desk.wait(left)
    assert ended.provenance is not None
    assert (ended.provenance.backend, ended.provenance.backend_reason) == ("cpu", None)
    desk.queue.cancel(nap)


GPU = worker(1, condition(None), name="gpu", takes="both", state="busy")


@pytest.mark.parametrize(
    ("takes", "other", "counts"),
    [
        ("both", GPU, True),
        ("all", GPU, True),
        ("quick", GPU, True),
        ("long", GPU, False),  # its companion would take long jobs
        ("long", GPU.model_copy(update={"takes": "long"}), True),
        ("both", GPU.model_copy(update={"takes": "long"}), False),
        ("both", GPU.model_copy(update={"takes": "all"}), True),
        ("both", GPU.model_copy(update={"state": "restarting"}), False),
        ("both", GPU.model_copy(update={"warm_up": WarmUp(done=1, of=2)}), False),
        ("both", GPU.model_copy(update={"gpu": condition(None).model_copy(update={"state": "quarantined"})}), False),
        ("both", GPU.model_copy(update={"gpu": condition(None).model_copy(update={"state": "degraded"})}), True),
        ("both", GPU.model_copy(update={"gpu": condition(None).model_copy(update={"state": "absent"})}), False),
        ("both", GPU.model_copy(update={"gpu": None}), False),
    ],
)
def test_a_worker_counts_on_those_that_compute_on_a_gpu_now(takes: object, other: WorkerReport, counts: bool) -> None:
    assert gpu_workers(takes, [other]) == (("gpu",) if counts else ())  # type: ignore[arg-type]
