"""The devices that kernel tests run on: the emulation everywhere, CUDA where there is a GPU.

Imports nothing beyond NumPy, pytest and the project, so that `make test-gpu` runs on a machine with little else.
"""

import os

import pytest

from kernels.cuda import Device, NoDevice, open_device
from tests.cudasim.device import EmulatedDevice


@pytest.fixture(scope="session")
def cuda() -> Device:
    """The first GPU. Without one, skip with the reason, or fail where WARPDESK_REQUIRE_GPU=1 promised it."""
    try:
        return open_device()
    except NoDevice as reason:
        if os.environ.get("WARPDESK_REQUIRE_GPU") == "1":
            pytest.fail(f"WARPDESK_REQUIRE_GPU=1, but: {reason}", pytrace=False)
        pytest.skip(f"no GPU: {reason}")


@pytest.fixture(params=["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Device:
    """Every device there is, in turn."""
    return EmulatedDevice() if request.param == "emulated" else request.getfixturevalue("cuda")
