"""One body for every backend: run a case on the CPU or on a device and compare what comes out."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from warpdesk_server.kernels.catalogue import OPERATIONS
from warpdesk_server.kernels.gpu.contract import Device

Answer = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Case:
    """A request whose answer must not depend on where it is computed.

    `rtol` None means that bytes must be equal; a tolerance (of each output's largest magnitude) needs a `reason`.
    `small` cases also run in other thread orders and under the sanitizers: at most about 4,096 threads in all.
    """

    operation: str
    params: Mapping[str, Any] = field(default_factory=dict)
    inputs: Callable[[], dict[str, "np.ndarray[Any, Any]"]] = dict
    seed: int | None = None
    key: bytes | None = None
    rtol: float | None = None
    reason: str = ""
    small: bool = True
    name: str = ""

    def __post_init__(self) -> None:
        if self.rtol is not None and not self.reason:
            raise ValueError(f"{self}: a tolerance needs its reason")

    def __str__(self) -> str:
        values = "-".join(f"{name}={value}" for name, value in self.params.items())
        return self.name or f"{self.operation}-{values}"

    def in_float32(self) -> bool:
        """Whether an input is of float32, or the operation draws its normals in float32."""
        return self.operation in ("monte_carlo", "basket_option") or any(
            array.dtype == np.float32 for array in self.inputs().values()
        )

    def run(self, device: Device | None = None) -> Answer:
        """The answer of the CPU, or of a device."""
        operation = OPERATIONS[self.operation]
        params = operation.params.model_validate(dict(self.params), strict=False)
        options: dict[str, Any] = {}
        if operation.randomness == "seed":
            options["seed"] = self.seed
        if operation.randomness == "private":
            options["key"] = self.key
        if device is None:
            return operation.implementation("cpu")(params, **self.inputs(), **options)
        return operation.implementation("gpu")(params, **self.inputs(), **options, device=device)


def assert_same(case: Case, expected: Mapping[str, Any], got: Mapping[str, Any]) -> None:
    """Assert that two answers have the same outputs, types, shapes and bytes, or values within the tolerance."""
    assert list(got) == list(expected), f"{case}: outputs {list(got)}, expected {list(expected)}"
    for name, value in expected.items():
        other = got[name]
        if not isinstance(value, np.ndarray):
            _assert_same_value(case, name, value, other)
            continue
        assert isinstance(other, np.ndarray), f"{case}: {name} is a {type(other).__name__}, expected an array"
        assert other.dtype == value.dtype, f"{case}: {name} has dtype {other.dtype}, expected {value.dtype}"
        assert other.shape == value.shape, f"{case}: {name} has shape {other.shape}, expected {value.shape}"
        if case.rtol is None or value.dtype.kind in "iub":
            _assert_same_bytes(case, name, value, other)
        else:
            _assert_close(case, name, value, other)


def _assert_same_bytes(case: Case, name: str, value: Any, other: Any) -> None:
    # Two NaNs are one answer: their payload is the hardware's choice.
    wrong = (value != other) & ~((value != value) & (other != other))
    if value.dtype.kind == "f":
        wrong |= (np.signbit(value) != np.signbit(other)) & (value == value)
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise AssertionError(
            f"{case}: {name} differs at {int(wrong.sum())} of {value.size} places, first at {at}: "
            f"CPU {value[at]!r}, device {other[at]!r}"
        )


def _assert_close(case: Case, name: str, value: Any, other: Any) -> None:
    assert np.array_equal(np.isnan(value), np.isnan(other)), f"{case}: {name} has NaN at different places"
    scale = np.nanmax(np.abs(value), initial=0.0)
    error = np.nanmax(np.abs(value - other), initial=0.0)
    assert case.rtol is not None
    assert error <= case.rtol * scale, (
        f"{case}: {name} differs by {error / scale if scale else error:.3g} of its largest value, "
        f"allowed is {case.rtol:.3g} ({case.reason})"
    )


def _assert_same_value(case: Case, name: str, value: Any, other: Any) -> None:
    if isinstance(value, float) and case.rtol is not None:
        _assert_close(case, name, np.float64(value), np.float64(other))
    elif isinstance(value, list | tuple):
        assert len(other) == len(value), f"{case}: {name} has {len(other)} entries, expected {len(value)}"
        for index, (one, two) in enumerate(zip(value, other, strict=True)):
            _assert_same_value(case, f"{name}[{index}]", one, two)
    elif isinstance(value, dict):
        assert list(other) == list(value), f"{case}: {name} has keys {list(other)}, expected {list(value)}"
        for key, one in value.items():
            _assert_same_value(case, f"{name}[{key!r}]", one, other[key])
    else:
        both_nan = isinstance(value, float) and value != value and other != other
        assert both_nan or (type(other) is type(value) and other == value), (
            f"{case}: {name} is {other!r}, expected {value!r}"
        )
