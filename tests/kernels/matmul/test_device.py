"""matmul on a device: tiles, chunks and memory, what it answers without a library, and cuBLAS on a real GPU."""

import numpy as np
import pytest

from tests.cudasim.device import EmulatedDevice
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.gpu.faults import NoDevice, OutOfMemory
from warpdesk_server.kernels.matmul import cpu, gpu, spec
from warpdesk_server.kernels.matmul.spec import OPERATION, MatmulParams

KERNEL = MatmulParams(algorithm="kernel")


def normal(seed, *shape, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def product(a, b, device=None):
    if device is None:
        return cpu.matmul(KERNEL, a, b)["product"].tobytes()
    return gpu.matmul(KERNEL, a, b, device=device)["product"].tobytes()


# No tile changes a byte: each of the three kernels alone, at its own edges and at those of the others.


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kernel", ["matmul_large", "matmul_medium", "matmul_small"])
@pytest.mark.parametrize("length", [1, 7, 33, 65, 127, 128, 129, 257])
def test_every_kernel_gives_the_cpus_bytes_at_every_edge(monkeypatch, kernel, length, dtype):
    monkeypatch.setattr(gpu, "_TILES", {kernel: gpu._TILES[kernel]})
    device = EmulatedDevice()

    for m, k, n in ((length, 5, 9), (9, length, 5), (5, 9, length), (length, 12, 8)):
        a, b = normal(length, m, k, dtype=dtype), normal(length + 1, k, n, dtype=dtype)
        assert product(a, b, device) == product(a, b)

    assert {name for _, name in device.launches} == {kernel}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_lies_past_the_end_of_k_leaves_a_sum_of_minus_zero(dtype):
    tiny = np.float32(2.0**-100) if dtype == np.float32 else 2.0**-600
    a, b = np.full((3, 1), -tiny, dtype), np.full((1, 3), tiny, dtype)

    answer = gpu.matmul(KERNEL, a, b, device=EmulatedDevice())["product"]

    assert np.all(np.signbit(answer))
    assert answer.tobytes() == product(a, b)


def test_a_sum_over_nothing_is_zero_on_the_device_too():
    answer = gpu.matmul(KERNEL, np.zeros((3, 0)), np.zeros((0, 2)), device=EmulatedDevice())

    assert answer["product"].tolist() == [[0, 0]] * 3


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_factor_that_is_not_finite_spoils_its_own_row_or_column_alone(dtype):
    a, b = normal(1, 40, 20, dtype=dtype), normal(2, 20, 40, dtype=dtype)
    a[3, 4], a[33, 0], b[7, 11], b[19, 39] = np.nan, np.inf, np.inf, -np.inf

    answer = gpu.matmul(KERNEL, a, b, device=EmulatedDevice())["product"]

    on_cpu = cpu.matmul(KERNEL, a, b)["product"]
    assert np.array_equal(answer, on_cpu, equal_nan=True)
    spoilt = np.zeros((40, 40), bool)
    spoilt[[3, 33]] = spoilt[:, [11, 39]] = True
    assert np.array_equal(~np.isfinite(answer), spoilt)


def test_a_small_product_gets_small_tiles_and_a_large_one_large_ones():
    picked = {n: gpu._tile(4, 1, n, n, 132)[0] for n in (100, 300, 1024, 2048, 8192)}

    assert picked == {
        100: "matmul_small",
        300: "matmul_small",
        1024: "matmul_medium",
        2048: "matmul_large",
        8192: "matmul_large",
    }
    assert gpu._tile(8, 10_000, 16, 16, 132)[0] == "matmul_small"


# Chunks: cut by the shapes, computed as many at a time as there is memory for.

SHAPES = [
    ((50, 30), (30, 41)),
    ((6, 50, 30), (30, 41)),
    ((50, 30), (6, 30, 41)),
    ((6, 50, 30), (6, 30, 41)),
    ((40, 3, 5), (40, 5, 2)),
    ((3, 5), (40, 5, 2)),
    ((1, 700), (700, 1)),
]


def grid_of(a, b, **params):
    infos = {name: ArrayInfo(array.dtype.name, array.shape) for name, array in (("a", a), ("b", b))}
    return OPERATION.grid(MatmulParams(**params), infos)


@pytest.mark.parametrize("panel", [700, 3000, 20_000])
@pytest.mark.parametrize(("a_shape", "b_shape"), SHAPES)
def test_a_product_has_the_same_bytes_however_many_chunks_are_in_memory(monkeypatch, panel, a_shape, b_shape):
    a, b = normal(1, *a_shape), normal(2, *b_shape)
    whole = product(a, b)
    monkeypatch.setattr(spec, "PANEL_BYTES", panel)
    grid = grid_of(a, b)

    for resident in (1, 2, grid.chunks):
        device = EmulatedDevice(memory=grid.fixed + grid.each * resident)
        assert product(a, b, device) == whole
        assert device.memory.report().used == 0


@pytest.mark.parametrize("panel", [900, 3000, 20_000, 1 << 20])
@pytest.mark.parametrize(("a_shape", "b_shape"), SHAPES)
def test_the_grid_says_what_a_job_takes_of_the_device(monkeypatch, panel, a_shape, b_shape):
    monkeypatch.setattr(spec, "PANEL_BYTES", panel)
    a, b = normal(1, *a_shape, dtype=np.float64), normal(2, *b_shape, dtype=np.float64)
    grid = grid_of(a, b)
    device = EmulatedDevice(memory=grid.fixed + grid.each)

    product(a, b, device)

    assert device.memory.report().peak == grid.fixed + grid.each
    with pytest.raises(OutOfMemory):
        product(a, b, EmulatedDevice(memory=grid.fixed + grid.each - 1))


def test_a_job_is_cut_by_its_shapes_into_panels_of_whole_tiles():
    def cut(a_shape, b_shape):
        pieces = spec.cut(spec.dimensions(a_shape, b_shape), 4)
        return pieces.chunks, pieces.items, pieces.rows, pieces.columns

    assert cut((1024, 1024), (1024, 1024)) == (1, 1, 1024, 1024)
    assert cut((8192, 8192), (8192, 8192)) == (8, 1, 1024, 8192)
    assert cut((20_000, 20_000), (20_000, 20_000)) == (7 * 32, 1, 640, 3328)
    assert cut((100_000, 16, 16), (100_000, 16, 16)) == (5, 21845, 16, 16)
    assert cut((100_000, 16, 16), (16, 16)) == (4, 1, 524_288, 16)


def test_no_chunk_is_missing_from_a_cut_and_none_is_there_twice(monkeypatch):
    monkeypatch.setattr(spec, "PANEL_BYTES", 3000)
    for a_shape, b_shape in SHAPES:
        whole = spec.cut(spec.dimensions(a_shape, b_shape), 4)
        for first, end in ((0, whole.chunks), (whole.chunks // 3, whole.chunks)):
            visits = [np.zeros((whole.size.batch, whole.size.m, whole.size.n), int) for _ in range(2)]
            for piece in whole.pieces(first, end):
                visits[0][piece.place] += 1
            for piece in whole.joined(first, end):
                visits[1][piece.place] += 1
            assert np.array_equal(*visits)
            assert visits[0].max() == 1
            assert (visits[0].min() == 1) == (first == 0)


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
