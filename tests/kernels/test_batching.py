"""Jobs that run together get the very bytes that each would have got alone, and only jobs that are alike do."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from tests.kernels.families import all_cases
from tests.kernels.parity import Case
from tests.kernels.test_splits import REQUEST
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.batching import Batching
from warpdesk_server.kernels.catalogue import OPERATIONS
from warpdesk_server.kernels.gpu.contract import Device
from warpdesk_server.kernels.operation import Operation
from warpdesk_server.kernels.params import Params

pytestmark = pytest.mark.timeout(600)  # the emulator compiles and runs kernels, also on a busy machine

TOGETHER = [name for name, operation in OPERATIONS.items() if operation.batching and operation.batching.alike]
Random = np.random.Generator
Arrays = dict[str, "np.ndarray[Any, Any]"]


def parsed(operation: Operation, params: Mapping[str, Any]) -> Params:
    return operation.params.model_validate(dict(params), strict=False)


def infos(inputs: Mapping[str, "np.ndarray[Any, Any]"]) -> dict[str, ArrayInfo]:
    return {name: ArrayInfo(array.dtype.name, array.shape) for name, array in inputs.items()}


def shuffled(inputs: Arrays, random: Random) -> Arrays:
    """Other numbers of the same shapes: the same ones, NaN among them, in other places."""
    return {name: random.permutation(array.reshape(-1)).reshape(array.shape) for name, array in inputs.items()}


def drawn(name: str, random: Random) -> tuple[Params, Arrays]:
    given = REQUEST[name](random)
    inputs = {field: given.pop(field) for field in tuple(given) if isinstance(given[field], np.ndarray)}
    if OPERATIONS[name].package.endswith("indicators") and random.random() < 0.3:
        inputs = {field: rows[0] for field, rows in inputs.items()}
    elif OPERATIONS[name].package.endswith("indicators") and len(inputs) > 1 and random.random() < 0.3:
        last = next(reversed(inputs))
        inputs |= {last: inputs[last][0]}  # one series for all assets
    return parsed(OPERATIONS[name], given), inputs


def assert_as_alone(operation: Operation, params: Params, jobs: list[Arrays], device: Device | None = None) -> None:
    compute = operation.implementation("cpu" if device is None else "gpu")
    where = {} if device is None else {"device": device}
    joint = operation.join(params, jobs)
    assert joint is not None
    answers = joint.parts(compute(joint.params, **joint.inputs, **where))
    assert len(answers) == len(jobs)
    for job, answer in zip(jobs, answers, strict=True):
        alone = compute(params, **job, **where)
        assert list(answer) == list(alone)
        for name, value in alone.items():
            got = answer[name]
            if not isinstance(value, np.ndarray):
                assert got == value
                continue
            assert (got.dtype, got.shape) == (value.dtype, value.shape), name
            assert got.tobytes() == value.tobytes(), f"{name} differs at {np.flatnonzero(got != value)[:5]}"


@pytest.mark.parametrize("name", TOGETHER)
def test_on_the_cpu_jobs_of_one_call_have_the_bytes_of_jobs_alone(name: str) -> None:
    random = np.random.default_rng(list(name.encode()))
    for _ in range(25):
        params, inputs = drawn(name, random)
        jobs = [inputs, *(shuffled(inputs, random) for _ in range(int(random.integers(1, 12))))]
        assert_as_alone(OPERATIONS[name], params, jobs)


@pytest.mark.parametrize("name", TOGETHER)
def test_on_a_device_jobs_of_one_call_have_the_bytes_of_jobs_alone(name: str, device: Device) -> None:
    random = np.random.default_rng(list(name.encode()))
    for _ in range(4):
        params, inputs = drawn(name, random)
        jobs = [inputs, *(shuffled(inputs, random) for _ in range(int(random.integers(1, 4))))]
        assert_as_alone(OPERATIONS[name], params, jobs, device)


CASES = [case for _, case in all_cases() if case.operation in TOGETHER and case.params.get("algorithm", "kernel")]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_case_has_the_bytes_it_has_alone_when_others_run_with_it(case: Case) -> None:
    operation, inputs = OPERATIONS[case.operation], case.inputs()
    params, random = parsed(operation, case.params), np.random.default_rng(1)
    jobs = [shuffled(inputs, random), inputs, shuffled(inputs, random)]
    assert_as_alone(operation, params, jobs)


def key(name: str, params: Mapping[str, Any], **shapes: tuple[int, ...]) -> str | None:
    operation, dtype = OPERATIONS[name], params.get("dtype", "float64")
    given = {field: value for field, value in params.items() if field != "dtype"}
    return operation.batch_key(
        parsed(operation, given), {field: ArrayInfo(dtype, shape) for field, shape in shapes.items()}
    )


def test_jobs_that_are_alike_have_one_key_however_their_parameters_were_written() -> None:
    assert key("bollinger", {}, prices=(1000,)) == key("bollinger", {"width": 2, "period": 20}, prices=(1000,))
    wanted = key("rsi", {"period": 14}, prices=(1000,))
    assert wanted is not None
    assert json.loads(wanted)[:2] == ["rsi", {"prices": ["float64", [1000]]}]


@pytest.mark.parametrize(
    ("name", "params", "shape"),
    [
        ("sma", {"period": 14}, (1000,)),
        ("rsi", {"period": 15}, (1000,)),
        ("rsi", {"period": 14, "flat": "nan"}, (1000,)),
        ("rsi", {"period": 14}, (1001,)),
        ("rsi", {"period": 14}, (1, 1000)),
        ("rsi", {"period": 14, "dtype": "float32"}, (1000,)),
    ],
)
def test_another_operation_parameter_shape_or_dtype_has_another_key(
    name: str, params: dict[str, Any], shape: tuple[int, ...]
) -> None:
    assert key(name, params, prices=shape) != key("rsi", {"period": 14}, prices=(1000,))


def test_jobs_that_run_one_after_another_need_not_be_alike() -> None:
    option = {"payoff": "european", "option": "call", "spot": 100.0, "strike": 90.0, "volatility": 0.2, "maturity": 1.0}
    assert key("monte_carlo", {**option, "paths": 1000}) == key("monte_carlo", {**option, "strike": 110.0, "steps": 2})
    assert OPERATIONS["monte_carlo"].join(parsed(OPERATIONS["monte_carlo"], option), [{}, {}]) is None


def test_a_blas_library_computes_one_product_at_a_time() -> None:
    factors = {"a": np.eye(2), "b": np.eye(2)}
    for algorithm in (None, "library"):
        assert OPERATIONS["matmul"].join(parsed(OPERATIONS["matmul"], {"algorithm": algorithm}), [factors] * 2) is None


def test_a_job_that_takes_long_runs_alone() -> None:
    assert key("rsi", {"period": 14}, prices=(888_888,)) is not None
    assert key("rsi", {"period": 14}, prices=(888_889,)) is None  # 2.25 steps at each bar
    assert key("sum", {}, x=(2_000_000,)) is not None
    assert key("add", {}, x=(1_500_000, 2), y=(1_500_000, 2)) is None
    assert key("matmul", {"algorithm": "kernel"}, a=(3_000_000, 1), b=(1, 1)) is not None
    assert key("matmul", {"algorithm": "kernel"}, a=(5_000_000, 1), b=(1, 1)) is None  # by its bytes


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=lambda operation: operation.name)
def test_small_jobs_of_every_operation_have_company(operation: Operation) -> None:
    example = operation.example
    inputs = {
        name: ArrayInfo(given["dtype"], np.asarray(given["data"]).shape) for name, given in example.inputs.items()
    }
    assert isinstance(operation.batching, Batching)
    quick = {**example.params, "paths": 1000} if operation.name == "monte_carlo" else example.params
    assert operation.batch_key(parsed(operation, quick), inputs) is not None


def test_what_is_private_or_random_is_never_one_call_and_what_is_private_never_answers_two_jobs() -> None:
    private = {"dp_noise", "federated_average", "secure_aggregation", "shamir_share", "shamir_reconstruct"}
    assert {name for name in OPERATIONS if OPERATIONS[name].confidential} == private
    for name, operation in OPERATIONS.items():
        assert operation.coalescible == (name not in private)
        if operation.confidential or operation.randomness != "none":
            assert name not in TOGETHER


def test_the_comparison_finds_a_byte_that_differs() -> None:
    operation = OPERATIONS["sum"]
    params = parsed(operation, {"axis": "last"})
    ones, twos = {"x": np.ones((2, 3))}, {"x": np.full((2, 3), 2.0)}
    assert_as_alone(operation, params, [ones, twos])
    joint = operation.join(params, [ones, twos])
    assert joint is not None
    swapped = joint.parts({"sum": np.array([6.0, 6.0, 3.0, 3.0])})
    assert [part["sum"].tolist() for part in swapped] == [[6.0, 6.0], [3.0, 3.0]]
    with pytest.raises(AssertionError, match="sum differs at"):
        assert_as_alone(Swapping(**vars(operation)), params, [ones, twos])


class Swapping(Operation):
    """Gives each job what another one asked for."""

    def join(self, params: Params, jobs: Any) -> Any:
        return super().join(params, jobs[::-1])
