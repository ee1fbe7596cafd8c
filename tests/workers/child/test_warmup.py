"""What is compiled before the first job, what beside it, and what a worker says of examples that fail."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import ROOT
from tests.cudasim.device import EmulatedDevice
from tests.workers.device import BrokenDevice, PaperDevice, UncompiledDevice
from tests.workers.operations import OPERATIONS as MISBEHAVING
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.catalogue import OPERATIONS
from warpdesk_server.kernels.gpu.compile import describe, sources
from warpdesk_server.kernels.gpu.faults import DeviceLost
from warpdesk_server.kernels.gpu.source import Source
from warpdesk_server.kernels.indicators.declared import DECLARED
from warpdesk_server.kernels.indicators.expression import EXPRESSION
from warpdesk_server.kernels.operation import Operation
from warpdesk_server.workers.child import warmup
from warpdesk_server.workers.child.device import Probe, without_gpu
from warpdesk_server.workers.child.warmup import (
    Trial,
    choices,
    documented,
    stamp,
    start_second_compiler,
    variants,
    warm_up,
)
from warpdesk_server.workers.queue.reports import DeviceReport, FailedExample
from warpdesk_server.workers.settings import WorkerSettings

CPU = without_gpu("a test")


def on(device: Any) -> Probe:
    return Probe(DeviceReport(backend="gpu", name=device.name), device)


def numba_usage(what: str) -> Any:
    """What `tests.workers.child.first_use` prints, run in a process of its own as a worker's are."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("WARPDESK_")}
    ran = subprocess.run(
        [sys.executable, "-m", "tests.workers.child.first_use", what],
        cwd=ROOT,
        env=clean,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    return json.loads(ran.stdout)


@pytest.mark.timeout(300)
def test_after_the_warm_up_no_request_waits_for_numba() -> None:
    """Nothing compiles in a fresh process, and nothing is used that the warm-up did not use: so the cache the requests
    read, which the other tests write to as well, would hold it all if it had been empty before the warm-up."""
    warmed, needed = numba_usage("warm-up"), numba_usage("requests")
    assert needed["compiled"] == []
    assert {
        function: sorted(set(types) - set(warmed["used"].get(function, [])))
        for function, types in needed["used"].items()
        if not set(types) <= set(warmed["used"].get(function, []))
    } == {}
    assert len(needed["used"]) >= len(OPERATIONS) - len(DECLARED)  # those share one loop


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=lambda operation: operation.name)
def test_every_example_and_variant_runs(operation: Operation) -> None:
    assert warm_up([*documented([operation]), *variants([operation])], CPU) == ()


class Watched:
    """A device that remembers which sources were compiled for it."""

    def __init__(self, device: Any) -> None:
        self.device = device
        self.compiled: set[tuple[Path, tuple[tuple[str, str | int], ...]]] = set()

    def kernel(self, source: Source, name: str) -> Any:
        self.compiled.add((source.path, tuple(source.defines.items())))
        return self.device.kernel(source, name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.device, name)


def test_on_a_gpu_examples_and_variants_compile_every_source() -> None:
    device = Watched(EmulatedDevice())
    trials = [*documented(OPERATIONS.values()), *variants(OPERATIONS.values())]
    assert warm_up(map(quicker, trials), on(device)) == ()
    wanted = {
        (source.path, tuple(source.defines.items())): describe(source)
        for family, source in sources()
        if family != "device"  # what opening a device compiles
    }
    assert {name for source, name in wanted.items() if source not in device.compiled} == set()


def quicker(trial: Trial) -> Trial:
    """The same with fewer paths: they are walked one thread at a time here."""
    params = trial.example.params
    few = {"steps": 4, "paths": 4096 if params.get("sampling") == "sobol" else 300, "policy_paths": 300}
    chosen = {name: few.get(name, value) for name, value in params.items()}
    return replace(trial, example=replace(trial.example, params=chosen))


def test_choices_and_dtypes_tell_every_variant_apart() -> None:
    for operation in OPERATIONS.values():
        signatures = [
            (choices(trial), {name: given["dtype"] for name, given in trial.example.inputs.items()})
            for trial in [*documented([operation]), *variants([operation])]
        ]
        assert [one for one in signatures if signatures.count(one) > 1] == []


def test_variants_differ_from_the_documented_example_and_are_told_apart() -> None:
    for operation in OPERATIONS.values():
        labels = [trial.variant for trial in variants([operation])]
        assert None not in labels
        assert len(set(labels)) == len(labels), labels
    assert [str(trial) for trial in variants([OPERATIONS["rsi"]])] == [
        "rsi (float32)",
        "rsi (convention cutler)",
        "rsi (convention cutler, float32)",
    ]
    assert "matmul (algorithm kernel, float32)" in map(str, variants([OPERATIONS["matmul"]]))
    assert "secure_aggregation (modulus_bits 64)" in map(str, variants([OPERATIONS["secure_aggregation"]]))


def test_every_operation_on_real_numbers_that_takes_float32_is_run_in_it_too() -> None:
    single = {
        trial.operation.name: trial
        for trial in variants(OPERATIONS.values())
        if any(given["dtype"] == "float32" for given in trial.example.inputs.values())
    }
    vectors = {"add", "multiply", "axpy", "dot", "sum", "norm", "min", "max"}
    others = {"bars", "covariance", "matmul", "dp_noise", "federated_average", "shamir_share"}
    across = {"cross_rank", "cross_zscore", "winsorise", "neutralise"}
    across |= {"tridiagonal_solve", "tridiagonal_inverse_diagonal"}
    desk = {"value_at_risk", "var_backtest", "performance", "backtest_sweep", "backtest", "overfitting"}
    indicators = {operation.name for operation in (*DECLARED, EXPRESSION)}
    assert others | vectors | across | desk | indicators == set(single)
    for trial in single.values():
        infos = {
            name: ArrayInfo(given["dtype"], np.shape(given["data"])) for name, given in trial.example.inputs.items()
        }
        assert "float64" not in {info.dtype for info in infos.values()}
        trial.operation.validate(trial.example.params, infos)


def test_a_failing_example_is_told_and_the_others_run() -> None:
    stumble, double = MISBEHAVING["stumble"], MISBEHAVING["double"]
    (failure,) = warm_up(documented([stumble, double]), CPU)
    assert failure == FailedExample(
        operation="stumble", backend="cpu", error="RuntimeError", message="the caller's number is 1.0"
    )
    assert failure.disables


def test_an_example_that_the_cpu_ran_instead_of_the_gpu_is_told_as_a_fallback() -> None:
    (failure,) = warm_up(documented([MISBEHAVING["double"]]), on(UncompiledDevice()))
    assert failure == FailedExample(
        operation="double",
        backend="gpu",
        error="CompileFailed",
        message="Failed to find CUDA headers",
        fallback=True,
    )
    assert not failure.disables


def test_an_error_on_the_gpu_that_is_a_bug_is_no_fallback() -> None:
    (failure,) = warm_up(documented([MISBEHAVING["stumble"]]), on(PaperDevice()))
    assert (failure.backend, failure.fallback, failure.disables) == ("gpu", False, True)


def test_a_lost_device_ends_the_warm_up() -> None:
    with pytest.raises(DeviceLost):
        warm_up(documented([MISBEHAVING["double"]]), on(BrokenDevice()))


def test_the_second_compiler_runs_until_it_has_gone_through_the_catalogue_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "numba"))
    monkeypatch.setenv("WARPDESK_OPERATIONS", "tests.workers.operations:SOUND")
    settings = WorkerSettings()
    first = start_second_compiler(settings)
    assert first is not None
    first.kill()
    first.wait()
    again = start_second_compiler(settings)
    assert again is not None, "what was killed has not finished"
    assert again.wait(60) == 0
    assert start_second_compiler(settings) is None
    monkeypatch.setenv("WARPDESK_OPERATIONS", "tests.workers.operations:SMA_ALONE")
    other = start_second_compiler(WorkerSettings())
    assert other is not None, "another catalogue is compiled by itself"
    other.kill()
    other.wait()


def test_a_catalogue_is_not_taken_for_compiled_when_sources_changed_or_an_example_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("WARPDESK_OPERATIONS", "tests.workers.operations:OPERATIONS")  # two of them fail
    settings = WorkerSettings()
    failing = start_second_compiler(settings)
    assert failing is not None
    assert failing.wait(60) == 0
    assert list(tmp_path.glob("complete-*")) == []
    before = stamp(settings)
    before.touch()
    assert start_second_compiler(settings) is None
    monkeypatch.setattr(warmup, "fingerprint", lambda: "0123456789ab")
    assert stamp(settings) != before


def test_operations_that_compile_the_same_code_wait_for_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes would compile it twice otherwise, each by way of another operation."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    locks = {}
    for name in ("sma", "macd", "expression", "bars"):
        with warmup._alone(Trial(OPERATIONS[name], OPERATIONS[name].example)):
            (locks[name],) = {path.name for path in tmp_path.iterdir()} - set(locks.values()) or {locks["sma"]}
    assert locks["sma"] == locks["macd"] == locks["expression"] != locks["bars"]
    assert len(list(tmp_path.iterdir())) == 2
