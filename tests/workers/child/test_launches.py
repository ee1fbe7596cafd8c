"""Several jobs in one call of `execute.run`: one launch for those that are alike, and an outcome for each."""

import errno
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cudasim.device import EmulatedDevice
from warpdesk_server.kernels.catalogue import OPERATIONS
from warpdesk_server.kernels.gpu.faults import DeviceLost, LaunchFailed, OutOfMemory
from warpdesk_server.kernels.operation import Example
from warpdesk_server.kernels.vector import cpu, gpu
from warpdesk_server.workers.child import execute
from warpdesk_server.workers.child.cost import Costs
from warpdesk_server.workers.child.device import Probe, without_gpu
from warpdesk_server.workers.queue.protocol import Failed, JobRequest, ResultDocument, Succeeded
from warpdesk_server.workers.queue.reports import DeviceReport
from warpdesk_server.workers.store.spool import SpoolStore

OWNER = "key_a"
CPU = without_gpu("no NVIDIA driver")
GPU = DeviceReport(backend="gpu", name="emulated")
Jobs = list[tuple[JobRequest, int]]
Outcomes = list[Succeeded | Failed]


@pytest.fixture
def store(tmp_path: Path) -> SpoolStore:
    return SpoolStore(tmp_path / "store")


def array(store: SpoolStore, values: Any) -> str:
    numbers = np.asarray(values)
    with store.writer(OWNER, numbers.dtype.name, numbers.shape, 60) as writer:  # type: ignore[arg-type]
        writer.take(numbers.tobytes())
        return writer.commit(has_nan=False, has_inf=False).id


def request(number: int, operation: str, inputs: Mapping[str, str], **fields: Any) -> JobRequest:
    values: dict[str, Any] = {"params": {}, "timeout": 10.0, "result_ttl": 60.0, **fields}
    return JobRequest(id=f"job_{number}", owner=OWNER, operation=operation, inputs=dict(inputs), **values)


def sums(store: SpoolStore, count: int, **fields: Any) -> Jobs:
    """Job number i sums i, i + 1 and i + 2, in its attempt i + 1."""
    return [
        (request(number, "sum", {"x": array(store, [number, number + 1.0, number + 2.0])}, **fields), number + 1)
        for number in range(count)
    ]


def run(store: SpoolStore, jobs: Jobs, found: Probe = CPU, **options: Any) -> Outcomes:
    return execute.run(jobs, store, found, OPERATIONS, **options)


def answers(store: SpoolStore, outcomes: Outcomes, output: str = "sum") -> list[Any]:
    """What each job got: a list of numbers, or the code of its failure."""
    return [
        np.load(store.result(outcome.result) / f"{output}.npy").tolist()
        if isinstance(outcome, Succeeded)
        else outcome.code
        for outcome in outcomes
    ]


def sizes(outcomes: Outcomes) -> list[int]:
    return [outcome.provenance.batch_size for outcome in outcomes if isinstance(outcome, Succeeded)]


@dataclass
class Watched:
    """An implementation of `sum` that keeps how many rows each call had, and may fail."""

    real: Callable[..., dict[str, Any]]
    fails: Callable[[np.ndarray], Exception | None] = lambda x: None
    calls: list[int] = field(default_factory=list)

    def __call__(self, params: Any, x: np.ndarray, **where: Any) -> dict[str, Any]:
        self.calls.append(len(x) if x.ndim == 2 else 1)
        if (failure := self.fails(x)) is not None:
            raise failure
        return self.real(params, x, **where)


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> Watched:
    watched = Watched(cpu.sum)
    monkeypatch.setattr(cpu, "sum", watched)
    return watched


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> Watched:
    watched = Watched(gpu.sum)
    monkeypatch.setattr(gpu, "sum", watched)
    return watched


def test_jobs_that_are_alike_are_one_launch_and_each_has_its_own_answer(store: SpoolStore, on_cpu: Watched) -> None:
    outcomes = run(store, sums(store, 5))
    assert on_cpu.calls == [5]
    assert answers(store, outcomes) == [[3.0 * number + 3] for number in range(5)]
    for number, outcome in enumerate(outcomes):
        assert isinstance(outcome, Succeeded)
        assert outcome.result == f"job_{number}.{number + 1}"
        assert (outcome.provenance.attempt, outcome.provenance.batch_size) == (number + 1, 5)
        assert (outcome.provenance.fallback_reason, outcome.provenance.batch_reason) == ("no NVIDIA driver", None)


def documents(store: SpoolStore, outcomes: Outcomes) -> list[ResultDocument]:
    found = []
    for outcome in outcomes:
        assert isinstance(outcome, Succeeded), outcome
        read = ResultDocument.model_validate_json((store.result(outcome.result) / "result.json").read_bytes())
        found.append(read.model_copy(update={"expires_at": 0.0}))
    return found


@pytest.mark.parametrize("found", [CPU, Probe(GPU, EmulatedDevice())], ids=["cpu", "emulated"])
@pytest.mark.parametrize("name", ["rsi", "bollinger", "matmul", "norm", "axpy", "monte_carlo", "secure_aggregation"])
def test_every_job_has_the_document_it_would_have_alone(store: SpoolStore, found: Probe, name: str) -> None:
    operation = OPERATIONS[name]
    example: Example = operation.variants[0] if name == "matmul" else operation.example  # by our own kernel
    given = {field: array(store, np.array(values["data"], values["dtype"])) for field, values in example.inputs.items()}
    params = {**example.params, **({"paths": 500} if name == "monte_carlo" else {})}
    jobs: Jobs = [(request(number, name, given, params=params, seed=number), 1) for number in range(3)]
    together = run(store, jobs, found)
    documents_together = documents(store, together)
    for outcome in together:
        assert isinstance(outcome, Succeeded)
        store.delete_result(outcome.result)
    assert documents_together == documents(store, [run(store, [job], found)[0] for job in jobs])
    alike = operation.batching is not None and operation.batching.alike
    assert sizes(together) == ([3] * 3 if alike else [1] * 3)


def test_a_job_whose_input_has_gone_fails_alone(store: SpoolStore, on_cpu: Watched) -> None:
    jobs = sums(store, 4)
    store.delete(OWNER, jobs[2][0].inputs["x"])
    outcomes = run(store, jobs)
    assert answers(store, outcomes) == [[3.0], [6.0], "invalid-input", [12.0]]
    assert on_cpu.calls == [3]


def test_an_operation_that_is_not_here_fails_its_jobs_alone(store: SpoolStore) -> None:
    outcomes = run(store, [(request(9, "melt", {}), 1), *sums(store, 2)])
    assert answers(store, outcomes) == ["invalid-input", [3.0], [6.0]]


def test_what_fails_of_many_is_found_by_halves_and_alone_has_its_own_error(
    store: SpoolStore, on_cpu: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    on_cpu.fails = lambda x: ZeroDivisionError("6.5 is told to nobody") if (x == 6.0).any() else None
    jobs: Jobs = [(request(number, "sum", {"x": array(store, [number + 0.0])}), 1) for number in range(8)]
    outcomes = run(store, jobs)
    assert outcomes[6] == Failed(code="operation-error", message="sum failed with ZeroDivisionError")
    assert answers(store, outcomes[:6] + outcomes[7:]) == [[float(number)] for number in (0, 1, 2, 3, 4, 5, 7)]
    assert on_cpu.calls == [8, 4, 4, 2, 2, 1, 1]
    assert sizes(outcomes) == [4, 4, 4, 4, 2, 2, 1]
    assert "job_6" in caplog.text
    assert "job_5" not in caplog.text
    assert "6.5" not in caplog.text


def test_where_all_fail_each_has_its_own_error(store: SpoolStore, on_cpu: Watched) -> None:
    on_cpu.fails = lambda x: ValueError()
    assert answers(store, run(store, sums(store, 5))) == ["operation-error"] * 5


def test_a_launch_that_the_cpu_has_no_memory_for_is_made_in_halves(store: SpoolStore, on_cpu: Watched) -> None:
    on_cpu.fails = lambda x: MemoryError() if x.ndim == 2 and len(x) > 2 else None
    outcomes = run(store, sums(store, 5))
    assert answers(store, outcomes) == [[3.0 * number + 3] for number in range(5)]
    assert on_cpu.calls == [5, 3, 2, 1, 2]
    assert sizes(outcomes) == [2, 2, 1, 2, 2]


@pytest.mark.parametrize("fault", [OutOfMemory("needed 3 bytes, free 2"), LaunchFailed("sum is refused")])
def test_after_a_fault_of_the_gpu_all_of_a_launch_completes_on_the_cpu(
    store: SpoolStore, on_cpu: Watched, on_gpu: Watched, fault: Exception
) -> None:
    on_gpu.fails = lambda x: fault
    outcomes = run(store, sums(store, 3), Probe(GPU, EmulatedDevice()))
    assert (on_gpu.calls, on_cpu.calls) == ([3], [3])
    assert answers(store, outcomes) == [[3.0], [6.0], [9.0]]
    for outcome in outcomes:
        assert isinstance(outcome, Succeeded)
        assert (outcome.provenance.backend, outcome.provenance.fallback_reason) == ("cpu", str(fault))
        assert outcome.provenance.fallback_seconds is not None


def test_jobs_that_insist_on_the_gpu_try_it_in_halves_when_memory_is_short(
    store: SpoolStore, on_cpu: Watched, on_gpu: Watched
) -> None:
    on_gpu.fails = lambda x: OutOfMemory("needed 3 bytes, free 2") if len(x) > 2 else None
    outcomes = run(store, sums(store, 4, backend="gpu"), Probe(GPU, EmulatedDevice()))
    assert (on_gpu.calls, on_cpu.calls) == ([4, 2, 2], [])
    assert answers(store, outcomes) == [[3.0], [6.0], [9.0], [12.0]]


def test_a_lost_device_is_not_survived_by_any_of_a_launch(store: SpoolStore, on_gpu: Watched) -> None:
    on_gpu.fails = lambda x: DeviceLost("gone", 700)
    with pytest.raises(DeviceLost):
        run(store, sums(store, 3), Probe(GPU, EmulatedDevice()))
    assert on_gpu.calls == [3]


def test_jobs_that_are_not_alike_are_computed_one_by_one(store: SpoolStore, on_cpu: Watched) -> None:
    other = request(7, "sum", {"x": array(store, [1.0, 2.0])})
    outcomes = run(store, [*sums(store, 2), (other, 1)])
    assert answers(store, outcomes) == [[3.0], [6.0], [3.0]]
    assert on_cpu.calls == [1, 1, 1]


def test_options_share_a_claim_and_each_has_its_own_seed_and_parameters(store: SpoolStore) -> None:
    market = {"payoff": "european", "option": "call", "spot": 100.0, "volatility": 0.2, "maturity": 1.0, "paths": 500}
    jobs: Jobs = [
        (request(number, "monte_carlo", {}, params={**market, "strike": 90.0 + number, "steps": 1}, seed=number), 1)
        for number in range(3)
    ]
    outcomes = run(store, jobs)
    assert documents(store, outcomes) == documents(store, [run(store, [job])[0] for job in jobs])
    provenances = [outcome.provenance for outcome in outcomes if isinstance(outcome, Succeeded)]
    assert [(how.seed, how.batch_size) for how in provenances] == [(0, 1), (1, 1), (2, 1)]


class Forgetful(EmulatedDevice):
    forgotten = 0

    def forget(self) -> None:
        super().forget()
        self.forgotten += 1


def test_private_jobs_of_one_claim_have_noise_of_their_own_and_no_times_and_leave_nothing(store: SpoolStore) -> None:
    device = Forgetful()
    given, params = {"values": array(store, [1.0, 2.0, 3.0])}, OPERATIONS["dp_noise"].example.params
    jobs: Jobs = [(request(number, "dp_noise", given, params=params), 1) for number in range(6)]
    outcomes = run(store, jobs, Probe(GPU, device), tell=pytest.fail)
    assert len({tuple(noisy) for noisy in answers(store, outcomes, "noisy")}) > 1
    for outcome in outcomes:
        assert isinstance(outcome, Succeeded)
        assert (outcome.provenance.compute_seconds, outcome.provenance.kernel_seconds) == (None, None)
    assert device.forgotten == 1


def test_a_result_that_cannot_be_written_fails_its_own_job(tmp_path: Path) -> None:
    class Full(SpoolStore):
        def new_result(self, job_id: str, attempt: int, files: Sequence[str] = ()) -> Path:
            directory = super().new_result(job_id, attempt, files)
            if job_id == "job_1":
                (directory / "result.json").symlink_to("/dev/full")
            return directory

    store = Full(tmp_path / "store")
    assert answers(store, run(store, sums(store, 3))) == [[3.0], "storage-full", [9.0]]


def test_results_are_kept_together_and_one_that_cannot_be_kept_fails_its_own_job(tmp_path: Path) -> None:
    class Refusing(SpoolStore):
        calls: list[Sequence[str]] = []  # noqa: RUF012

        def finish_results(self, names: Sequence[str]) -> Mapping[str, OSError]:
            self.calls.append(names)
            return {"job_1.2": OSError(errno.ENOSPC, "no space left")}

    store = Refusing(tmp_path / "store")
    assert answers(store, run(store, sums(store, 3))) == [[3.0], "storage-full", [9.0]]
    assert store.calls == [["job_0.1", "job_1.2", "job_2.3"]]


def test_a_lone_job_tells_how_far_it_is_and_one_of_several_does_not(store: SpoolStore) -> None:
    progress: list[float] = []
    large: Jobs = [(request(0, "sum", {"x": array(store, np.ones(500_000))}), 1)]
    run(store, large, tell=progress.append)
    assert progress
    assert progress == sorted(set(progress))
    run(store, sums(store, 2), tell=pytest.fail)


def test_nobody_hears_how_far_a_private_job_is(store: SpoolStore) -> None:
    given, params = {"values": array(store, np.ones(50_000))}, OPERATIONS["dp_noise"].example.params
    (outcome,) = run(store, [(request(0, "dp_noise", given, params=params), 1)], tell=pytest.fail)
    assert isinstance(outcome, Succeeded)


def test_a_launch_is_to_the_predictions_a_job_of_all_its_work(store: SpoolStore) -> None:
    device, expectations, costs = Probe(GPU, EmulatedDevice()), list[float](), Costs(GPU)
    run(store, sums(store, 4, backend="gpu"), device, costs=costs, expect=expectations.append)
    ((backend, kind, line),) = costs.table()
    assert (backend, kind, [mean.work for mean in line.means.values()]) == ("gpu", "sum float64 all", [12.0])
    assert expectations == []
    run(store, sums(store, 4, backend="gpu"), device, costs=costs, expect=expectations.append)
    assert len(expectations) == 1


def test_no_job_is_no_work(store: SpoolStore) -> None:
    assert run(store, []) == []


def test_small_inputs_and_large_ones_are_memory_that_may_be_written_and_no_file_changes(
    store: SpoolStore, on_cpu: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    def scribble(x: np.ndarray) -> None:
        x[...] = -1

    on_cpu.fails = scribble
    with caplog.at_level(logging.WARNING):
        for size in (3, 100_000):
            array_id = array(store, np.ones(size))
            (outcome,) = run(store, [(request(size, "sum", {"x": array_id}), 1)])
            assert answers(store, [outcome]) == [[-float(size)]]
            np.testing.assert_array_equal(np.load(store.path(OWNER, array_id)), np.ones(size))
    assert caplog.text == ""
