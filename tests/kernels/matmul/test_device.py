"""matmul on a device without a library: what it answers, and batches longer than a grid."""

import numpy as np
import pytest

from kernels.cuda import NoDevice
from kernels.matmul import cpu, gpu
from kernels.matmul.spec import MatmulParams
from tests.cudasim.device import EmulatedDevice


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("algorithm", [None, "library"])
def test_without_a_library_the_kernel_answers_and_says_why(algorithm):
    a, b = normal(1, 20, 30), normal(2, 30, 10)

    answer = gpu.matmul(MatmulParams(algorithm=algorithm), a, b, device=EmulatedDevice())

    assert answer["algorithm"] == "kernel"
    assert answer["algorithm_reason"] == "cuBLAS is reached through CuPy, which does not drive CUDA emulation"
    on_cpu = cpu.matmul(MatmulParams(algorithm="kernel"), a, b)
    assert answer["product"].tobytes() == on_cpu["product"].tobytes()


def test_a_reduced_precision_needs_a_library_on_the_device():
    a = normal(1, 3, 3)

    with pytest.raises(NoDevice, match="precision tf32 needs cuBLAS on the GPU"):
        gpu.matmul(MatmulParams(precision="tf32"), a, a, device=EmulatedDevice())


def test_a_batch_longer_than_the_grid_is_computed_whole(monkeypatch):
    monkeypatch.setattr(gpu, "_MOST_BLOCKS_Z", 2)  # CUDA's is 65,535; the loop over the rest is the same
    params = MatmulParams(algorithm="kernel")
    a, b = normal(1, 5, 4, 6), normal(2, 5, 6, 3)

    answer = gpu.matmul(params, a, b, device=EmulatedDevice())

    assert answer["product"].tobytes() == cpu.matmul(params, a, b)["product"].tobytes()
