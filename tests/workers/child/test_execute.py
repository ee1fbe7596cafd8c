"""One attempt, run in this process: what is decoded, where it runs, what is written, what a failure says."""

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.stand_ins.faults import FaultyDevice, parse
from tests.workers.device import PaperDevice, PaperMemory, UncompiledDevice
from tests.workers.operations import OPERATIONS
from warpdesk_server.kernels.gpu.contract import Times
from warpdesk_server.kernels.gpu.faults import DeviceLost, LaunchFailed
from warpdesk_server.workers.child import codec, execute
from warpdesk_server.workers.child.device import Probe, probe, without_gpu
from warpdesk_server.workers.queue.protocol import (
    ArrayOutput,
    Failed,
    JobRequest,
    ResultDocument,
    Succeeded,
    ValueOutput,
)
from warpdesk_server.workers.queue.reports import DeviceReport
from warpdesk_server.workers.store.spool import SpoolStore

OWNER = "key_a"
CPU = without_gpu("no NVIDIA driver")


@pytest.fixture
def store(tmp_path: Path) -> SpoolStore:
    return SpoolStore(tmp_path / "store")


def gpu(faults: str = "") -> Probe:
    device = FaultyDevice(PaperDevice(), parse(faults))
    device.arm()
    return Probe(DeviceReport(backend="gpu", name="paper"), device)


def array(store: SpoolStore, values: Any, dtype: str = "float64") -> str:
    numbers = np.asarray(values, dtype)
    with store.writer(OWNER, dtype, numbers.shape, 60) as writer:  # type: ignore[arg-type]
        writer.take(numbers.tobytes())
        return writer.commit(has_nan=bool(np.isnan(numbers).any()), has_inf=False).id


def request(operation: str, inputs: dict[str, str] | None = None, **fields: Any) -> JobRequest:
    values: dict[str, Any] = {"params": {}, "timeout": 10.0, "result_ttl": 60.0, **fields}
    return JobRequest(id="job_1", owner=OWNER, operation=operation, inputs=inputs or {}, **values)


def run(
    store: SpoolStore, wanted: JobRequest, found: Probe = CPU, attempt: int = 1, keep_off_gpu: str | None = None
) -> Succeeded | Failed:
    (outcome,) = execute.run([(wanted, attempt)], store, found, OPERATIONS, keep_off_gpu)
    return outcome


def double(store: SpoolStore, found: Probe = CPU, values: Any = (1.0, 2.0), **fields: Any) -> Succeeded | Failed:
    return run(store, request("double", {"values": array(store, values)}, **fields), found)


def document(store: SpoolStore, outcome: Succeeded | Failed) -> ResultDocument:
    assert isinstance(outcome, Succeeded), outcome
    return ResultDocument.model_validate_json((store.result(outcome.result) / "result.json").read_bytes())


def test_a_result_is_a_document_and_an_npy_file_per_array(store: SpoolStore) -> None:
    outcome = double(store, values=[1.0, np.nan, 3.0])
    written = document(store, outcome)
    assert isinstance(outcome, Succeeded)
    file = store.result(outcome.result) / "doubled.npy"
    np.testing.assert_array_equal(np.load(file, allow_pickle=False), [2.0, np.nan, 6.0])
    doubled = np.array([2.0, np.nan, 6.0])
    assert written.outputs == {
        "doubled": ArrayOutput(
            file="doubled.npy",
            dtype="float64",
            shape=(3,),
            id=store.digest(OWNER, "float64", (3,), doubled.tobytes()),
            has_nan=True,
            has_inf=False,
        ),
        "total": ValueOutput(value=None),  # NaN is null in JSON
    }
    assert list(written.outputs) == ["doubled", "total"]


def test_a_large_output_has_the_id_of_the_same_upload(store: SpoolStore) -> None:
    values = np.arange(200_000.0)  # hashed beside the writing
    doubled = document(store, double(store, values=values)).outputs["doubled"]
    assert isinstance(doubled, ArrayOutput)
    assert doubled.id == array(store, values * 2)


def test_provenance_says_how_an_answer_was_computed(store: SpoolStore) -> None:
    on_cpu, on_gpu = double(store, CPU, backend="cpu"), double(store, gpu())
    assert isinstance(on_cpu, Succeeded)
    assert isinstance(on_gpu, Succeeded)
    assert (on_cpu.provenance.backend, on_cpu.provenance.fallback_reason) == ("cpu", None)
    assert on_cpu.provenance.compute_seconds is not None
    assert (on_cpu.provenance.copy_seconds, on_cpu.provenance.kernel_seconds) == (None, None)
    assert (on_gpu.provenance.backend, on_gpu.provenance.device) == ("gpu", "paper")
    assert (on_gpu.provenance.copy_seconds, on_gpu.provenance.kernel_seconds) == (0.25, 0.5)
    assert document(store, on_cpu).outputs == document(store, on_gpu).outputs


def test_what_a_launch_on_the_gpu_copied_is_told_unless_the_job_is_private(store: SpoolStore) -> None:
    def times(found: Probe, operation: str = "double", **fields: Any) -> list[Times]:
        launches: list[Times] = []
        inputs = {"values": array(store, [1.0])} if operation == "double" else {"secret": array(store, [5], "int64")}
        execute.run([(request(operation, inputs, **fields), 1)], store, found, OPERATIONS, took=launches.append)
        return launches

    assert times(gpu()) == [PaperDevice().times()]
    assert times(gpu(), private=True) == times(gpu(), "whisper") == times(gpu(), backend="cpu") == times(CPU) == []


def test_without_a_gpu_an_auto_job_runs_on_the_cpu_and_says_why(store: SpoolStore) -> None:
    outcome = double(store)
    assert isinstance(outcome, Succeeded)
    assert outcome.provenance.fallback_reason == "no NVIDIA driver"


def test_without_a_gpu_a_gpu_job_fails_and_may_be_tried_again(store: SpoolStore) -> None:
    outcome = double(store, backend="gpu")
    assert outcome == Failed(
        code="no-gpu-worker", message="backend gpu was asked for, but: no NVIDIA driver", retryable=True
    )


@pytest.mark.parametrize("fault", ["oom@1", "launch@1"])
def test_after_a_recoverable_fault_the_same_job_completes_on_the_cpu(store: SpoolStore, fault: str) -> None:
    outcome = double(store, gpu(fault))
    assert isinstance(outcome, Succeeded)
    assert outcome.provenance.backend == "cpu"
    assert outcome.provenance.fallback_reason is not None
    assert "planned fault" in outcome.provenance.fallback_reason
    if fault == "oom@1":
        assert "needed 3221225472 bytes, free 2147483648" in outcome.provenance.fallback_reason
    assert document(store, outcome).outputs == document(store, double(store)).outputs


def test_where_no_kernel_compiles_a_job_completes_on_the_cpu_unless_it_insists(store: SpoolStore) -> None:
    found = Probe(DeviceReport(backend="gpu", name="paper"), UncompiledDevice())
    outcome = double(store, found)
    assert isinstance(outcome, Succeeded)
    assert (outcome.provenance.backend, outcome.provenance.fallback_reason) == ("cpu", "Failed to find CUDA headers")
    failed = double(store, found, backend="gpu")
    assert isinstance(failed, Failed)
    assert (failed.code, failed.message, failed.retryable) == ("device-fault", "Failed to find CUDA headers", True)


@pytest.mark.parametrize(("fault", "code"), [("oom@1", "out-of-memory"), ("launch@1", "device-fault")])
def test_a_job_that_insists_on_the_gpu_gets_the_fault_instead(store: SpoolStore, fault: str, code: str) -> None:
    outcome = double(store, gpu(fault), backend="gpu")
    assert isinstance(outcome, Failed)
    assert (outcome.code, outcome.retryable) == (code, True)


def test_a_fallback_says_how_soon_the_cpu_took_over_and_other_answers_do_not(store: SpoolStore) -> None:
    fallen, straight = double(store, gpu("launch@1")), double(store, gpu())
    assert isinstance(fallen, Succeeded)
    assert isinstance(straight, Succeeded)
    assert fallen.provenance.fallback_seconds is not None
    assert fallen.provenance.fallback_seconds > 0
    assert straight.provenance.fallback_seconds is None


class Counted(np.ndarray):
    """A device array that is counted as long as it lives."""

    life: Any


class CountingDevice(PaperDevice):
    """Keeps an account of its arrays, and holds on to the first `leaks` of them."""

    def __init__(self, leaks: int = 0, fault: type[Exception] | None = None) -> None:
        self.leaks, self.fault = leaks, fault
        self.memory = PaperMemory()
        self.kept: list[np.ndarray] = []

    def kernel(self, source: Any, name: str) -> Any:
        if self.fault is not None:
            raise self.fault(f"{name} is refused")
        return super().kernel(source, name)

    def to_device(self, array: Any) -> Any:
        return self._counted(np.array(array))

    def empty(self, shape: Any, dtype: Any) -> Any:
        return self._counted(np.empty(shape, dtype))

    def _counted(self, array: np.ndarray) -> np.ndarray:
        counted = array.view(Counted)
        counted.life = self.memory.born(array.nbytes, f"{array.dtype}{list(array.shape)}")  # type: ignore[attr-defined]
        if len(self.kept) < self.leaks:
            self.kept.append(counted)
        return counted


def counting(**behaviour: Any) -> Probe:
    return Probe(DeviceReport(backend="gpu", name="paper"), CountingDevice(**behaviour))


def test_an_attempt_ends_with_nothing_of_it_on_the_device(store: SpoolStore, caplog: pytest.LogCaptureFixture) -> None:
    found = counting()
    with found.device.memory.job() as account:  # type: ignore[union-attr]
        assert isinstance(double(store, found), Succeeded)
    assert account.left == ()
    assert "left" not in caplog.text


def test_what_an_attempt_leaves_on_the_device_is_told_by_its_shape_not_by_its_numbers(
    store: SpoolStore, caplog: pytest.LogCaptureFixture
) -> None:
    assert isinstance(double(store, counting(leaks=1), values=[271828.0, 1.0]), Succeeded)
    assert "double of job_1 left 1 blocks of 16 bytes on the device: float64[2] in 16 bytes" in caplog.text
    assert "271828" not in caplog.text


def test_before_the_cpu_takes_over_nothing_is_left_on_the_device(
    store: SpoolStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.workers.misbehaving import cpu

    found = counting(fault=LaunchFailed)
    real, observations = cpu.double, []

    def looking(params: Any, values: np.ndarray) -> dict[str, Any]:
        with found.device.memory.job() as account:  # type: ignore[union-attr]
            pass
        memory = found.device.memory  # type: ignore[union-attr]
        observations.append((account.left, memory._made_since(-1)))
        return real(params, values)

    monkeypatch.setattr(cpu, "double", looking)
    outcome = double(store, found)
    assert isinstance(outcome, Succeeded)
    assert outcome.provenance.backend == "cpu"
    assert observations == [((), ())]


def test_no_fallback_waits_until_garbage_is_collected_and_its_arrays_are_gone_all_the_same(
    store: SpoolStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.workers.misbehaving import cpu, gpu

    found, real, observations = counting(), cpu.double, []
    memory = found.device.memory  # type: ignore[union-attr]

    def failing(params: Any, values: np.ndarray, device: Any) -> None:
        given = device.to_device(values)

        def launch() -> None:  # whose frame, in the traceback, holds what it sees
            raise LaunchFailed(f"{given.size} values are refused")

        launch()

    def looking(params: Any, values: np.ndarray) -> dict[str, Any]:
        observations.append(memory._made_since(-1))  # type: ignore[attr-defined]
        return real(params, values)

    monkeypatch.setattr(gpu, "double", failing)
    monkeypatch.setattr(cpu, "double", looking)
    monkeypatch.setattr("gc.collect", lambda: observations.append("collected"))
    outcome = double(store, found)
    assert isinstance(outcome, Succeeded)
    assert outcome.provenance.fallback_reason == "2 values are refused"
    assert observations == [()]


def test_a_lost_device_is_not_survived(store: SpoolStore) -> None:
    with pytest.raises(DeviceLost):
        double(store, gpu("lost@1"))


def test_a_job_that_killed_two_workers_keeps_off_the_gpu_unless_it_insists(store: SpoolStore) -> None:
    inputs = {"values": array(store, [1.0])}
    reason = "2 attempts on the GPU ended with the worker's death"
    careful = run(store, request("double", inputs), gpu(), 3, reason)
    insisting = run(store, request("double", inputs, backend="gpu"), gpu(), 4, reason)
    assert isinstance(careful, Succeeded)
    assert isinstance(insisting, Succeeded)
    assert (careful.provenance.backend, careful.provenance.fallback_reason) == ("cpu", reason)
    assert insisting.provenance.backend == "gpu"


def test_a_bug_in_an_operation_fails_the_job_without_telling_the_data(
    store: SpoolStore, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = request("stumble", {"values": array(store, [271828.0])})
    with caplog.at_level(logging.INFO):
        outcome = run(store, wanted)
    assert outcome == Failed(code="operation-error", message="stumble failed with RuntimeError")
    assert "stumble" in caplog.text
    assert "misbehaving" in caplog.text  # where it failed
    assert "271828" not in caplog.text  # not on what


def test_running_out_of_memory_on_the_cpu_says_so(store: SpoolStore) -> None:
    outcome = run(store, request("hoard"))
    assert isinstance(outcome, Failed)
    assert (outcome.code, outcome.retryable) == ("out-of-memory", True)
    assert "TiB" in outcome.message


def test_a_result_is_written_into_what_was_made_ahead_of_it(store: SpoolStore) -> None:
    files = codec.files(OPERATIONS["double"])
    store.make_ahead(files)
    for number in (1, 2):
        outcome = double(store)
        assert isinstance(outcome, Succeeded)
        directory = store.result(outcome.result)
        assert sorted(path.name for path in directory.iterdir()) == ["doubled.npy", "result.json"]
        assert np.load(directory / "doubled.npy").tolist() == [2.0, 4.0]
        assert document(store, outcome).outputs["doubled"].shape == (2,), number


class FullStore(SpoolStore):
    """A store whose disk has no room for a result's document."""

    def new_result(self, job_id: str, attempt: int, files: Sequence[str] = ()) -> Path:
        directory = super().new_result(job_id, attempt, files)
        (directory / "result.json").symlink_to("/dev/full")
        return directory


def test_a_full_disk_is_told_as_such_and_the_job_may_be_tried_again(tmp_path: Path) -> None:
    outcome = double(FullStore(tmp_path / "store"))
    assert outcome == Failed(code="storage-full", message="the disk that holds results is full", retryable=True)


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (request("melt"), "this worker has no operation 'melt'"),
        (request("double"), "/inputs/values: double needs the input 'values': numbers"),
        (
            request("double", {"values": "blake3:" + "0" * 64}),
            "/inputs/values: the array was erased, or its time was over",
        ),
        (request("double", params={"period": 3}), "/params/period: there is no field"),
    ],
)
def test_a_request_that_became_invalid_is_refused_with_the_reason(
    store: SpoolStore, wanted: JobRequest, message: str
) -> None:
    outcome = run(store, wanted)
    assert isinstance(outcome, Failed)
    assert outcome.code == "invalid-input"
    assert message in outcome.message


def test_an_operations_own_check_is_applied_by_the_worker_too(store: SpoolStore) -> None:
    outcome = double(store, values=np.zeros(1_000_001))
    assert outcome == Failed(code="invalid-input", message="/inputs/values: 1000001 numbers, at most 1000000 are taken")


def test_an_operation_never_writes_into_a_stored_input(store: SpoolStore, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.workers.misbehaving import cpu

    def scribble(params: Any, values: np.ndarray) -> dict[str, Any]:
        values[:] = -1
        return {"doubled": values, "total": 0}

    monkeypatch.setattr(cpu, "double", scribble)
    array_id = array(store, [1.0, 2.0])
    assert isinstance(run(store, request("double", {"values": array_id})), Succeeded)
    np.testing.assert_array_equal(np.load(store.path(OWNER, array_id)), [1.0, 2.0])


@pytest.mark.parametrize(
    ("returned", "reason"),
    [
        ({"doubled": np.zeros(2)}, "TypeError"),
        ({"doubled": np.zeros(2), "total": 1.0, "extra": 2.0}, "TypeError"),
        ({"doubled": np.zeros(2, dtype="complex128"), "total": 1.0}, "TypeError"),
        ({"doubled": np.zeros(2), "total": object()}, "TypeError"),
    ],
)
def test_an_operation_that_returns_what_it_does_not_declare_fails(
    store: SpoolStore, monkeypatch: pytest.MonkeyPatch, returned: dict[str, Any], reason: str
) -> None:
    from tests.workers.misbehaving import cpu

    monkeypatch.setattr(cpu, "double", lambda params, values: returned)
    outcome = double(store)
    assert outcome == Failed(code="operation-error", message=f"double failed with {reason}")


def test_values_become_plain_json(store: SpoolStore, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.workers.misbehaving import cpu

    value = {"a": np.float64(1.5), "b": [np.int32(2), (float("inf"), np.bool_(True))], "c": np.array([1.0, np.nan])}
    monkeypatch.setattr(cpu, "double", lambda params, values: {"doubled": np.float64(3.0), "total": value})
    written = document(store, double(store))
    assert written.outputs["total"] == ValueOutput(value={"a": 1.5, "b": [2, [None, True]], "c": [1.0, None]})
    doubled = written.outputs["doubled"]
    assert isinstance(doubled, ArrayOutput)
    assert doubled.shape == ()


def test_private_noise_is_fresh_in_each_attempt_and_its_time_is_not_told(store: SpoolStore) -> None:
    secret = array(store, [5, 6], "int64")
    outcomes = [run(store, request("whisper", {"secret": secret}), attempt=attempt) for attempt in (1, 2)]
    noisy = []
    for outcome in outcomes:
        assert isinstance(outcome, Succeeded)
        provenance = outcome.provenance
        assert (provenance.copy_seconds, provenance.kernel_seconds, provenance.compute_seconds) == (None, None, None)
        assert provenance.seed is None
        noisy.append(np.load(store.result(outcome.result) / "noisy.npy").tolist())
    assert noisy[0] != noisy[1]


def test_a_device_forgets_what_a_private_job_left_even_when_it_failed_and_no_other_job(store: SpoolStore) -> None:
    found = gpu()
    secret = array(store, [5, 6], "int64")
    for given, operation, forgotten in ((secret, "whisper", 1), ("absent", "whisper", 2)):
        run(store, request(operation, {"secret": given}), found)
        assert found.device.forgotten == forgotten  # type: ignore[union-attr]
    assert isinstance(double(store, found), Succeeded)
    assert found.device.forgotten == 2  # type: ignore[union-attr]


def test_the_key_of_private_noise_is_kept_nowhere(
    store: SpoolStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    marker = tmp_path / "key"
    secret = array(store, [5, 6], "int64")
    with caplog.at_level(logging.DEBUG):
        outcome = run(store, request("whisper", {"secret": secret}, params={"marker": str(marker)}))
    key = marker.read_bytes()
    assert len(key) == 32
    marker.unlink()
    assert isinstance(outcome, Succeeded)
    for file in tmp_path.rglob("*"):
        if file.is_file():
            assert key not in file.read_bytes()
            assert key.hex() not in file.read_text(errors="replace")
    assert key.hex() not in caplog.text + outcome.model_dump_json()


def test_a_probe_without_a_gpu_is_a_value_with_a_reason() -> None:
    found = probe("cpu")
    assert found.device is None
    assert (found.report.backend, found.report.reason) == ("cpu", "the setting WARPDESK_DEVICE is cpu")
    assert "core" in found.report.name


def test_a_probe_opens_a_named_stand_in() -> None:
    found = probe("tests.workers.device:PaperDevice")
    assert isinstance(found.device, PaperDevice)
    assert found.report == DeviceReport(backend="gpu", name="paper", architecture="sm_00")


def test_a_probe_that_cannot_open_the_device_is_a_value_with_the_devices_reason() -> None:
    found = probe("tests.workers.device:absent")
    assert found.device is None
    assert (found.report.backend, found.report.reason) == ("cpu", "the device is held by another process")


def test_a_probe_never_raises() -> None:
    found = probe("tests.workers.device:broken")
    assert found.device is None
    assert found.report.reason == "looking for a GPU failed with RuntimeError: a library of another version"


def test_a_document_is_readable_without_numpy() -> None:
    document = ResultDocument(job="j", owner="k", operation="o", outputs={}, expires_at=1.0)
    assert json.loads(document.model_dump_json()) == {
        "job": "j",
        "owner": "k",
        "operation": "o",
        "outputs": {},
        "expires_at": 1.0,
        "steps": None,
    }
