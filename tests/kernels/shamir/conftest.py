"""Every backend there is without a GPU, in turn."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.cudasim.device import EmulatedDevice
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.catalogue import OPERATIONS

# run(operation, parameters, inputs and key) -> the answer, after the validation that a request goes through.
Run = Callable[..., dict[str, Any]]


@pytest.fixture(params=["cpu", "emulated"])
def run(request: pytest.FixtureRequest) -> Run:
    def compute(name: str, params: dict[str, Any], **given: Any) -> dict[str, Any]:
        operation = OPERATIONS[name]
        infos = {key: ArrayInfo(array.dtype.name, array.shape) for key, array in given.items() if key != "key"}
        parsed = operation.validate(params, infos)
        device = {} if request.param == "cpu" else {"device": EmulatedDevice()}
        return operation.implementation("gpu" if device else "cpu")(parsed, **given, **device)

    return compute
