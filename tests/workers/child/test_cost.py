"""Predictions of what operations take, and choices by them, on a machine whose true times are known."""

import json
import logging
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.workers.child import timed
from tests.workers.child.timed import Clock, Truth
from tests.workers.device import PaperDevice
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.catalogue import OPERATIONS
from warpdesk_server.kernels.gpu.faults import LaunchFailed
from warpdesk_server.kernels.operation import Backend
from warpdesk_server.workers.child import execute
from warpdesk_server.workers.child.calibrate import calibrate, sizes
from warpdesk_server.workers.child.cost import Costs, costs_of
from warpdesk_server.workers.child.device import Probe, without_gpu
from warpdesk_server.workers.predicted_times import Job, Line, job_of
from warpdesk_server.workers.queue.protocol import JobRequest, Succeeded
from warpdesk_server.workers.queue.reports import DeviceReport
from warpdesk_server.workers.settings import WorkerSettings
from warpdesk_server.workers.store.spool import SpoolStore

GPU = DeviceReport(backend="gpu", name="paper", uuid="GPU-1", driver="570")
JOB = Job("crunch", 1e5)

# Seconds on the CPU and on the GPU. The GPU has a launch and two copies to make up for.
LIGHT: dict[Backend, Truth] = {"cpu": lambda work: 2e-6 + 3e-9 * work, "gpu": lambda work: 150e-6 + 2e-10 * work}
COPIED: dict[Backend, Truth] = {"cpu": lambda work: 5e-6 + 8e-10 * work, "gpu": lambda work: 80e-6 + 4e-10 * work}
HEAVY: dict[Backend, Truth] = {"cpu": lambda work: 1e-5 + 1e-7 * work, "gpu": lambda work: 1e-4 + 1e-9 * work}
HOPELESS: dict[Backend, Truth] = {"cpu": lambda work: 2e-6 + 1e-9 * work, "gpu": lambda work: 1e-4 + 2e-9 * work}
# A CPU whose caches end at a million numbers.
BENT: dict[Backend, Truth] = {
    "cpu": lambda work: 2e-6 + (1e-9 if work < 1e6 else 3e-9) * work,
    "gpu": lambda work: 150e-6 + 4e-10 * work,
}


def line(truth: Truth, works: list[float]) -> Line:
    made = Line()
    for work in works:
        made.learn(work, truth(work))
    return made


def test_a_line_finds_the_overhead_and_the_rate_of_what_ran() -> None:
    fitted = line(LIGHT["gpu"], [10.0**at for at in range(1, 8)])
    assert fitted.a == pytest.approx(150e-6, rel=1e-3)
    assert fitted.b == pytest.approx(2e-10, rel=1e-3)
    for work in (10, 3e4, 5e5, 2e7):
        assert fitted.seconds(work) == pytest.approx(LIGHT["gpu"](work), rel=0.01)


def test_neither_overhead_nor_rate_falls_below_zero() -> None:
    convex = line(lambda work: 1e-9 * work**1.2, [1e3, 1e4, 1e5])
    shrinking = line(lambda work: 1 / work, [1e3, 1e4, 1e5])
    assert (convex.a, shrinking.b) == (0.0, 0.0)
    assert convex.b > 0
    assert shrinking.a > 0


def test_above_what_ran_time_grows_with_the_work_and_below_it_shrinks_with_it() -> None:
    once = line(LIGHT["gpu"], [1e5])
    assert once.seconds(1e5) == pytest.approx(LIGHT["gpu"](1e5))
    far = once.seconds(4e5)
    assert once.seconds(4e9) == pytest.approx(1e4 * far)
    assert once.seconds(1) < once.seconds(1e5) / 1000
    assert once.covers(4e5)
    assert not once.covers(5e5)
    assert not once.covers(2e4)


def test_one_odd_measurement_counts_for_little_and_a_lasting_change_is_learned_in_twenty_jobs() -> None:
    curve = line(LIGHT["cpu"], [1e5] * 10)
    before = curve.seconds(1e5)
    curve.learn(1e5, before * 1000)
    assert curve.seconds(1e5) < 2 * before
    for _ in range(20):
        curve.learn(1e5, 2 * before)
    assert curve.seconds(1e5) == pytest.approx(2 * before, rel=0.05)


def test_a_slowdown_at_one_size_is_believed_of_the_others() -> None:
    curve = line(LIGHT["gpu"], [10.0**at for at in range(1, 8)] * 4)
    for _ in range(40):
        curve.learn(1e7, 2 * LIGHT["gpu"](1e7))
    assert curve.seconds(1e6) > 1.2 * LIGHT["gpu"](1e6)


def sweep(
    machine: dict[Backend, Truth], *, seed: int, noise: float, slower_from: int | None = None, calibrated: bool = False
) -> float:
    """How much longer 600 jobs of 10 to 10^7 took than with an oracle; the first 60 are not counted."""
    dice, costs = random.Random(seed), Costs(GPU)
    if calibrated:
        for work in (10.0, 1e3, 1e5, 1e7):
            for backend, truth in machine.items():
                costs.add(backend, Job("crunch", work), truth(work))
    ours = best = 0.0
    for number in range(600):
        job = Job("crunch", 10 ** dice.uniform(1, 7))
        true = {backend: truth(job.work) for backend, truth in machine.items()}
        if slower_from is not None and number >= slower_from:
            true["gpu"] *= 2
        backend = costs.pick(job).backend
        odd = 20.0 if dice.random() < 0.01 else 1.0
        costs.learn(backend, job, true[backend] * math.exp(dice.gauss(0, noise)) * odd)
        if number >= 60:
            ours += true[backend]
            best += min(true.values())
    return ours / best - 1


MACHINES = pytest.mark.parametrize(
    "machine", [LIGHT, COPIED, HEAVY, HOPELESS, BENT], ids=["light", "copied", "heavy", "hopeless", "bent"]
)


def regrets(machine: dict[Backend, Truth], **conditions: Any) -> list[float]:
    return [sweep(machine, seed=seed, **conditions) for seed in range(10)]


@pytest.mark.parametrize("noise", [0.0, 0.1, 0.3])
@MACHINES
def test_the_regret_against_an_oracle_is_small(machine: dict[Backend, Truth], noise: float) -> None:
    found = regrets(machine, noise=noise, calibrated=True)
    assert sum(found) / len(found) < 0.02
    assert max(found) < 0.04


@MACHINES
def test_the_regret_stays_small_when_the_gpu_slows_down_by_half(machine: dict[Backend, Truth]) -> None:
    found = regrets(machine, noise=0.1, calibrated=True, slower_from=330)
    assert sum(found) / len(found) < 0.03
    assert max(found) < 0.06


@MACHINES
def test_without_calibration_jobs_teach_as_much_and_cost_little_more(machine: dict[Backend, Truth]) -> None:
    found = regrets(machine, noise=0.1)
    assert sum(found) / len(found) < 0.03
    assert max(found) < 0.1


def test_the_gpu_is_taken_until_both_are_known_and_large_jobs_never_try_an_unknown_cpu() -> None:
    costs, large = Costs(GPU), Job("crunch", 1e9)
    for _ in range(200):
        assert costs.pick(large) == costs.pick(large)
        assert costs.pick(large).backend == "gpu"
        costs.learn("gpu", large, HEAVY["gpu"](large.work))
    small = Job("crunch", 100.0)
    assert costs.pick(small).backend == "gpu"
    costs.learn("gpu", small, HEAVY["gpu"](small.work))
    tried = costs.pick(small)
    assert tried.backend == "cpu"
    assert tried.reason == "to measure it: 0.1 ms on the GPU, not known on the CPU"


def test_the_slower_one_is_measured_again_every_so_many_jobs_where_that_is_cheap() -> None:
    costs = Costs(GPU)
    for backend, truth in LIGHT.items():
        costs.add(backend, JOB, truth(JOB.work))
    picks = []
    for _ in range(200):
        backend = costs.pick(JOB).backend
        picks.append(backend)
        costs.learn(backend, JOB, LIGHT[backend](JOB.work))
    assert set(picks[:31]) == {"gpu"}
    assert 2 <= picks.count("cpu") <= 6


def test_what_is_picked_says_by_what_prediction() -> None:
    costs = Costs(GPU)
    costs.add("cpu", JOB, 0.002)
    costs.add("gpu", JOB, 1.5)
    assert costs.pick(JOB).reason == "predicted 2 ms on the CPU, 1.5 s on the GPU"


# What is kept between processes.


def costs_at(directory: Path, report: DeviceReport = GPU, cpu: str = "a CPU") -> Costs:
    return Costs(report, directory, cpu)


def learned(directory: Path) -> None:
    costs = costs_at(directory)
    for work in (1e3, 1e5, 1e7):
        for backend, truth in LIGHT.items():
            costs.add(backend, Job("crunch", work), truth(work))
    costs.save()


def test_what_was_learned_is_known_to_the_next_process_of_the_same_device(tmp_path: Path) -> None:
    learned(tmp_path)
    costs = costs_at(tmp_path)
    for backend, truth in LIGHT.items():
        assert costs.seconds(backend, JOB) == pytest.approx(truth(JOB.work), rel=0.01)
    assert sorted(path.name[:4] for path in tmp_path.iterdir()) == ["cpu-", "gpu-"]


@pytest.mark.parametrize(
    ("report", "cpu"),
    [(replace_report, "a CPU") for replace_report in (
        GPU.model_copy(update={"uuid": "GPU-2"}), GPU.model_copy(update={"driver": "580"}))]
    + [(GPU, "another CPU")],
)  # fmt: skip
def test_what_another_device_driver_or_cpu_took_is_not_believed(tmp_path: Path, report: DeviceReport, cpu: str) -> None:
    learned(tmp_path)
    costs = costs_at(tmp_path, report, cpu)
    unknown = "gpu" if report != GPU else "cpu"
    assert costs.seconds(unknown, JOB) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"format": 1}',
        '{"format": 1, "device": "DEVICE", "lines": {"crunch": []}}',
        '{"format": 1, "device": "DEVICE", "lines": {"crunch": [{"work": 1.0, "seconds": -1.0, "jobs": 1}]}}',
        '{"format": 1, "device": "DEVICE", "lines": {"crunch": [{"work": 0.0, "seconds": 1.0, "jobs": 1}]}}',
        '{"format": 1, "device": "DEVICE", "lines": {"crunch": [{"work": NaN, "seconds": 1.0, "jobs": 1}]}}',
        '{"format": 1, "device": "DEVICE", "lines": {"crunch": [{"work": "x", "seconds": 1.0, "jobs": 1}]}}',
        '{"format": 1, "device": "DEVICE", "lines": {"crunch": [{"speed": 1.0}]}}',
        '{"format": 1, "device": "DEVICE", "lines": 3}',
    ],
)
def test_a_broken_file_is_ignored_with_a_line_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    learned(tmp_path)
    for file in tmp_path.iterdir():
        file.write_text(text.replace("DEVICE", json.loads(file.read_text())["device"]))
    with caplog.at_level(logging.WARNING):
        costs = costs_at(tmp_path)
    assert costs.seconds("gpu", JOB) is None
    assert "learned anew" in caplog.text
    costs.add("gpu", JOB, 1.0)
    costs.save()
    assert costs_at(tmp_path).seconds("gpu", JOB) == pytest.approx(1.0)


def test_a_directory_that_cannot_be_written_costs_nothing_but_what_was_learned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    costs = costs_at(tmp_path / "file" / "costs")
    costs.add("gpu", JOB, 1.0)
    with caplog.at_level(logging.WARNING):
        costs.save()
    assert "could not be written" in caplog.text


def test_two_processes_that_write_one_file_lose_nothing_of_each_other(tmp_path: Path) -> None:
    """A worker's child learns small sizes, and its companion's large ones."""
    small, large, other = Job("kind", 1e3), Job("kind", 1e9), Job("another", 1.0)
    quick, long = costs_at(tmp_path), costs_at(tmp_path)
    quick.add("gpu", small, 0.001)
    long.add("gpu", large, 60.0)
    long.add("gpu", other, 3.0)
    quick.save()
    long.save()
    quick.add("cpu", small, 0.002)
    quick.save()

    for costs in (quick, costs_at(tmp_path)):
        seconds = [costs.seconds("gpu", job) for job in (small, large, other)]
        assert seconds == [pytest.approx(0.001, rel=0.1), pytest.approx(60.0, rel=0.1), pytest.approx(3.0)]
    assert long.seconds("gpu", small) == pytest.approx(0.001, rel=0.1)
    assert costs_at(tmp_path).seconds("cpu", small) == pytest.approx(0.002)


@pytest.mark.parametrize("first", [0, 1])
def test_of_a_size_that_both_processes_know_the_one_that_ran_it_more_often_is_believed(
    tmp_path: Path, first: int
) -> None:
    writers = [costs_at(tmp_path), costs_at(tmp_path)]
    for _ in range(20):
        writers[0].add("gpu", JOB, 1.0)
    for _ in range(2):
        writers[1].add("gpu", JOB, 9.0)
    for place in (first, 1 - first):
        writers[place].save()

    assert costs_at(tmp_path).seconds("gpu", JOB) == pytest.approx(1.0)


def test_a_setting_takes_the_gpu_whatever_is_known(tmp_path: Path) -> None:
    assert costs_of(WorkerSettings(home=tmp_path, auto="gpu"), GPU) is None
    assert costs_of(WorkerSettings(home=tmp_path), DeviceReport(backend="cpu", name="c")) is None
    assert costs_of(WorkerSettings(home=tmp_path), GPU) is not None


# What a job is.


def test_a_kind_of_job_is_its_operation_its_dtypes_and_what_chooses_code() -> None:
    matmul = OPERATIONS["matmul"]
    infos = {name: ArrayInfo("float32", (64, 64)) for name in ("a", "b")}
    jobs = [job_of(matmul, matmul.validate(params, infos), infos) for params in ({}, {"algorithm": "kernel"})]
    assert jobs[0].kind != jobs[1].kind
    assert jobs[0].kind.startswith("matmul float32 float32 ")
    assert jobs[0].work == 64**3
    larger = {name: ArrayInfo("float32", (128, 128)) for name in ("a", "b")}
    assert job_of(matmul, matmul.validate({}, larger), larger) == replace(jobs[0], work=128.0**3)


def test_no_word_of_a_caller_is_in_a_kind() -> None:
    aggregation = OPERATIONS["secure_aggregation"]
    for operation in OPERATIONS.values():
        for name, field in operation.params.model_fields.items():
            if field.annotation is str:
                example = {**operation.example.params, name: operation.example.params.get(name, "1")}
                assert example[name] not in job_kind(operation, example).split()
    assert "example" not in job_kind(aggregation, dict(aggregation.example.params)).split()


def job_kind(operation: Any, params: dict[str, Any]) -> str:
    import numpy as np

    arrays = {name: np.asarray(one["data"], one["dtype"]) for name, one in operation.example.inputs.items()}
    infos = {name: ArrayInfo(array.dtype.name, array.shape) for name, array in arrays.items()}
    return job_of(operation, operation.validate(params, infos), infos).kind


# Through a worker's execution, with a device whose clock the test reads.


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock(LIGHT)
    monkeypatch.setattr(timed, "CLOCK", made)
    return made


def answer(
    costs: Costs | None, store: SpoolStore, operation: str, size: int, found: Probe | None = None, backend: str = "auto"
) -> Any:
    request = JobRequest(
        id=f"job_{size}", owner="key_a", operation=operation, params={"size": size}, inputs={}, backend=backend,  # type: ignore[arg-type]
        timeout=10.0, result_ttl=60.0,
    )  # fmt: skip
    found = found or Probe(GPU, PaperDevice())
    (outcome,) = execute.run([(request, 1)], store, found, timed.OPERATIONS, None, costs)
    assert isinstance(outcome, Succeeded), outcome
    store.delete_result(outcome.result)
    return outcome.provenance


def test_whoever_waits_for_a_job_is_told_what_its_size_took_on_the_gpu(tmp_path: Path, clock: Clock) -> None:
    store, costs, expectations = SpoolStore(tmp_path / "store"), Costs(GPU, clock=clock), list[float]()

    def run(size: int) -> None:
        request = JobRequest(
            id=f"job_{size}", owner="key_a", operation="crunch", params={"size": size}, inputs={}, backend="gpu",
            timeout=10.0, result_ttl=60.0,
        )  # fmt: skip
        found = Probe(GPU, PaperDevice())
        (outcome,) = execute.run([(request, 1)], store, found, timed.OPERATIONS, None, costs, expectations.append)
        assert isinstance(outcome, Succeeded), outcome
        store.delete_result(outcome.result)

    run(1000)
    run(1_000_000_000)  # of this size none ran before
    assert expectations == []
    run(1000)
    assert expectations == [pytest.approx(LIGHT["gpu"](1000), rel=0.1)]


def test_jobs_go_where_they_end_sooner_and_the_answer_says_why(tmp_path: Path, clock: Clock) -> None:
    store, costs = SpoolStore(tmp_path / "store"), Costs(GPU, clock=clock)
    for number in range(80):
        answer(costs, store, "crunch", 10 ** (number % 8))
    small, large = answer(costs, store, "crunch", 100), answer(costs, store, "crunch", 10_000_000)
    assert (small.backend, large.backend) == ("cpu", "gpu")
    assert small.backend_reason.startswith("predicted 0.00")
    assert small.backend_reason.endswith("ms on the GPU")
    assert small.fallback_reason is None  # chosen as the quicker, which is no fallback


def test_what_asks_for_a_backend_gets_it_whatever_is_predicted(tmp_path: Path, clock: Clock) -> None:
    store, costs = SpoolStore(tmp_path / "store"), Costs(GPU, clock=clock)
    for backend in ("cpu", "gpu"):
        for size in (100, 10_000_000):
            for _ in range(5):
                provenance = answer(costs, store, "crunch", size, backend=backend)
                assert (provenance.backend, provenance.backend_reason) == (backend, None)
    assert answer(costs, store, "crunch", 100).backend == "cpu"


def test_the_times_of_private_operations_are_not_learned(tmp_path: Path, clock: Clock) -> None:
    store, costs = SpoolStore(tmp_path / "store"), Costs(GPU, tmp_path / "costs", clock=clock)
    for _ in range(50):
        provenance = answer(costs, store, "murmur", 100)
        assert (provenance.backend, provenance.backend_reason) == ("gpu", None)
    costs.save()
    assert list(costs.table()) == []
    assert not (tmp_path / "costs").exists()


def test_a_job_that_fell_back_teaches_what_the_cpu_took(tmp_path: Path, clock: Clock) -> None:
    from tests.workers.child.timed import gpu

    def refuse(params: Any, device: Any) -> Any:
        clock.now += 5.0
        raise LaunchFailed("no")

    store, costs = SpoolStore(tmp_path / "store"), Costs(GPU, clock=clock)
    real, gpu.crunch = gpu.crunch, refuse
    try:
        provenance = answer(costs, store, "crunch", 1000, Probe(GPU, PaperDevice()))
    finally:
        gpu.crunch = real
    assert (provenance.backend, provenance.fallback_reason, provenance.backend_reason) == ("cpu", "no", None)
    assert provenance.fallback_seconds == 0.0  # by this clock, which only operations turn
    assert costs.seconds("gpu", Job("crunch", 1000.0)) is None
    assert costs.seconds("cpu", Job("crunch", 1000.0)) == pytest.approx(LIGHT["cpu"](1000))


# Calibration.


def test_calibration_measures_both_backends_at_sizes_on_both_sides_of_the_crossing(clock: Clock) -> None:
    costs, messages = Costs(GPU), list[str]()
    calibrate(timed.OPERATIONS.values(), Probe(GPU, PaperDevice()), costs, messages.append, clock)
    for kind in ("crunch", "murmur"):
        assert costs.pick(Job(kind, 100.0)).backend == "cpu"
        assert costs.pick(Job(kind, 1e7)).backend == "gpu"
    assert len(messages) == 4


def test_a_private_operation_is_predicted_by_its_calibration_alone(tmp_path: Path, clock: Clock) -> None:
    store, costs = SpoolStore(tmp_path / "store"), Costs(GPU, clock=clock)
    calibrate(timed.OPERATIONS.values(), Probe(GPU, PaperDevice()), costs, clock=clock)
    before = list(costs.table())[-1][2].jobs
    provenance = answer(costs, store, "murmur", 100)
    assert (provenance.backend, provenance.compute_seconds) == ("cpu", None)
    assert list(costs.table())[-1][2].jobs == before


def test_without_a_gpu_calibration_measures_the_cpu(clock: Clock) -> None:
    costs = Costs(DeviceReport(backend="cpu", name="c"))
    calibrate([timed.CRUNCH], without_gpu("none"), costs, clock=clock)
    assert [backend for backend, _, _ in costs.table()] == ["cpu"]


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_every_operation_is_made_larger_from_its_example(operation: Any) -> None:
    works = [job.work for job, _, _ in sizes(operation)]
    assert len(works) >= 4
    assert works == sorted(works)
    assert works[-1] >= 100 * works[0]
