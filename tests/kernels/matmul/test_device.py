"""matmul on a device: what it answers without a library, batches longer than a grid, and cuBLAS on a real GPU."""

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


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["ieee", "tf32", "bf16", "fp16"])
def test_cublas_agrees_with_the_cpu_within_the_rounding_of_float32_sums(cuda, precision):
    a, b = normal(1, 3, 100, 300), normal(2, 3, 300, 50)
    params = MatmulParams(algorithm="library", precision=precision)

    try:
        answer = gpu.matmul(params, a, b, device=cuda)
    except gpu.NoLibrary as reason:
        pytest.skip(str(reason))

    on_cpu = cpu.matmul(params, a, b)
    # Each side may be off by k u |a| |b|; tensor cores cut bits off where others round, which doubles u there.
    bound = 3 * 300 * 2.0**-24 * (np.abs(a).astype(np.float64) @ np.abs(b)) * (1 + 2.0**-7)
    assert np.all(np.abs(answer["product"] - on_cpu["product"].astype(np.float64)) <= bound)
    assert answer["precision"] == precision
