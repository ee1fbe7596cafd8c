"""The cuBLAS path of gpu.py, against a stand-in for the device: NumPy arrays and a gemm by the BLAS's definition.

The stand-in reads and writes columns first through raw addresses, as cuBLAS does, so that a wrong order of factors,
leading dimension, stride or format gives a wrong product.
"""

import ctypes
from types import SimpleNamespace

import numpy as np
import pytest

from tests.cudasim.device import EmulatedDevice, EmulatedMemory
from warpdesk_server.kernels.gpu.faults import LaunchFailed, NoDevice, OutOfMemory
from warpdesk_server.kernels.gpu.rows import check_out
from warpdesk_server.kernels.matmul import cpu, gpu, spec
from warpdesk_server.kernels.matmul.spec import MatmulParams
from warpdesk_server.kernels.problems import InvalidRequest

# Values of cublasOperation_t, cublasComputeType_t, cublasGemmAlgo_t and cudaDataType in CUDA 12's headers.
OP_N, COMPUTE_32F, COMPUTE_32F_FAST_TF32, COMPUTE_64F, GEMM_DEFAULT = 0, 68, 77, 70, -1
R_32F, R_64F, R_16F, R_16BF = 0, 1, 2, 14

HANDLE = 4711


class DeviceArray(np.ndarray):
    @property
    def data(self):
        return SimpleNamespace(ptr=self.ctypes.data)


def read(address, count, kind):
    stored = {R_32F: np.float32, R_64F: np.float64, R_16F: np.float16, R_16BF: np.uint16}[kind]
    raw = (ctypes.c_char * (count * np.dtype(stored).itemsize)).from_address(address)
    values = np.frombuffer(raw, stored)
    if kind == R_16BF:
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values


class ColumnMajorBlas:
    CUBLAS_OP_N, CUBLAS_GEMM_DEFAULT = OP_N, GEMM_DEFAULT
    CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_FAST_TF32, CUBLAS_COMPUTE_64F = (
        COMPUTE_32F,
        COMPUTE_32F_FAST_TF32,
        COMPUTE_64F,
    )

    class CUBLASError(RuntimeError):
        def __init__(self, status):
            super().__init__(f"status {status}")
            self.status = status

    def __init__(self, status=0):
        self.calls = []
        self.shapes = []
        self.status = status

    def getVersion(self, handle):  # CuPy's names and order of arguments, as of CuPy 14
        assert handle == HANDLE
        return 120902

    def gemmStridedBatchedEx(
        self, handle, transa, transb, m, n, k, alpha, A, a_type, lda, stride_a, B, b_type, ldb, stride_b, beta,
        C, c_type, ldc, stride_c, batch, compute, algorithm,
    ):  # fmt: skip
        assert handle == HANDLE
        assert (transa, transb, algorithm) == (OP_N, OP_N, GEMM_DEFAULT)
        assert lda >= m
        assert ldb >= k
        assert ldc >= m
        if self.status:
            raise self.CUBLASError(self.status)
        self.calls.append(((a_type, b_type, c_type), compute))
        self.shapes.append((batch, n, m, k))  # of the row-major product
        scalar = R_64F if compute == COMPUTE_64F else R_32F
        assert (read(alpha, 1, scalar)[0], read(beta, 1, scalar)[0]) == (1, 0)
        width = np.dtype(np.float64 if c_type == R_64F else np.float32)
        a_width, b_width = ({R_32F: 4, R_64F: 8, R_16F: 2, R_16BF: 2}[kind] for kind in (a_type, b_type))
        for z in range(batch):
            left = read(A + z * stride_a * a_width, lda * k, a_type).reshape(k, lda)[:, :m].T
            right = read(B + z * stride_b * b_width, ldb * n, b_type).reshape(n, ldb)[:, :k].T
            result = left.astype(width) @ right.astype(width)
            target = (ctypes.c_char * (ldc * n * width.itemsize)).from_address(C + z * stride_c * width.itemsize)
            np.frombuffer(target, width).reshape(n, ldc)[:, :m] = result.T


class Numbers:
    """NumPy under CuPy's name, with the corners of CuPy that lead to cuBLAS."""

    def __init__(self, blas):
        runtime = SimpleNamespace(CUDA_R_32F=R_32F, CUDA_R_64F=R_64F, CUDA_R_16F=R_16F, CUDA_R_16BF=R_16BF)
        self.cuda = SimpleNamespace(
            cublas=blas, runtime=runtime, device=SimpleNamespace(get_cublas_handle=lambda: HANDLE)
        )

    def __getattr__(self, name):
        return getattr(np, name)


class StandIn:
    name, multiprocessors, lanes = "a stand-in", 1, 1
    frees = False  # whether the memory cuBLAS asks for is there once the pool has given back its own

    def __init__(self, blas, architecture="sm_90"):
        self.cupy, self.architecture, self.memory = Numbers(blas), architecture, EmulatedMemory(1 << 30)

    def to_device(self, array):
        return np.array(array, order="C").view(DeviceArray)

    def empty(self, shape, dtype):
        return np.full(shape, np.nan, dtype).view(DeviceArray)

    def to_host(self, array, out=None):
        check_out(array, out)
        np.copyto(out, array)
        return out

    def library(self, work):
        return work()

    def times(self):
        self.waited = True

    def forget(self):
        self.forgotten = True
        if self.cupy.cuda.cublas.status == 3 and self.frees:
            self.cupy.cuda.cublas.status = 0


def normal(seed, *shape, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(
    ("a_shape", "b_shape"),
    [
        ((3, 5), (5, 7)),
        ((4, 3, 5), (4, 5, 7)),
        ((4, 3, 5), (5, 7)),
        ((3, 5), (4, 5, 7)),
        ((1, 1), (1, 1)),
        ((9, 1), (1, 2)),
    ],
)
def test_cublas_is_given_row_major_matrices_in_its_own_terms(dtype, a_shape, b_shape):
    a, b = normal(1, *a_shape, dtype=dtype), normal(2, *b_shape, dtype=dtype)

    answer = gpu.matmul(MatmulParams(), a, b, device=StandIn(ColumnMajorBlas()))

    assert np.allclose(answer["product"], a @ b, rtol=0, atol=10 * np.finfo(dtype).eps)
    assert answer["product"].shape == (a @ b).shape
    assert answer["product"].dtype == dtype
    assert (answer["algorithm"], answer["algorithm_reason"]) == ("library", "default: cuBLAS 12.9")


@pytest.mark.parametrize(
    ("precision", "architecture", "stored", "compute"),
    [
        ("tf32", "sm_90", R_32F, COMPUTE_32F_FAST_TF32),
        ("bf16", "sm_90", R_16BF, COMPUTE_32F),
        ("fp16", "sm_90", R_16F, COMPUTE_32F),
        ("tf32", "sm_75", R_32F, COMPUTE_32F),
        ("bf16", "sm_70", R_32F, COMPUTE_32F),
        ("fp16", "sm_70", R_16F, COMPUTE_32F),
    ],
)
def test_reduced_precisions_multiply_the_same_rounded_factors_as_the_cpu(precision, architecture, stored, compute):
    a, b = normal(1, 2, 20, 30), normal(2, 2, 30, 10)
    blas = ColumnMajorBlas()
    params = MatmulParams(precision=precision)

    answer = gpu.matmul(params, a, b, device=StandIn(blas, architecture))

    on_cpu = cpu.matmul(params, a, b)
    assert blas.calls == [((stored, stored, R_32F), compute)]
    assert np.allclose(answer["product"], on_cpu["product"], rtol=0, atol=1e-5)
    assert answer["relative_error"] == pytest.approx(on_cpu["relative_error"], rel=1e-2)
    assert answer["precision"] == precision


@pytest.mark.parametrize("precision", ["ieee", "bf16"])
@pytest.mark.parametrize(
    ("a_shape", "b_shape"), [((60, 30), (30, 50)), ((6, 40, 30), (30, 50)), ((40, 3, 5), (40, 5, 7))]
)
def test_cublas_multiplies_chunk_by_chunk_in_shapes_that_do_not_depend_on_memory(
    monkeypatch, precision, a_shape, b_shape
):
    a, b = normal(1, *a_shape), normal(2, *b_shape)
    params = MatmulParams(precision=precision)
    on_cpu = cpu.matmul(params, a, b)
    monkeypatch.setattr(spec, "PANEL_BYTES", 3000)
    chunks = spec.cut(spec.dimensions(a_shape, b_shape), 4).chunks
    answers, shapes = [], []

    for memory in (1, 1 << 40):
        device = StandIn(ColumnMajorBlas())
        device.memory.limit = memory
        answers.append(gpu.matmul(params, a, b, device=device))
        shapes.append(device.cupy.cuda.cublas.shapes)

    assert shapes[0] == shapes[1]
    assert len(shapes[0]) == chunks > 1
    assert answers[0]["product"].tobytes() == answers[1]["product"].tobytes()
    assert answers[0]["relative_error"] == answers[1]["relative_error"]
    assert np.allclose(answers[0]["product"], on_cpu["product"], rtol=0, atol=1e-5)
    assert answers[0]["relative_error"] == (None if precision == "ieee" else pytest.approx(on_cpu["relative_error"]))


def test_a_value_fp16_cannot_hold_is_refused_on_the_device_too_by_its_place_in_the_whole_input(monkeypatch):
    monkeypatch.setattr(spec, "PANEL_BYTES", 100)
    a, b = np.ones((4, 5, 6), np.float32), np.ones((6, 7), np.float32)
    a[3, 4, 5] = 1e5

    with pytest.raises(InvalidRequest, match=r"fp16 holds at most 65504 in magnitude and a\[3, 4, 5\] is beyond that"):
        gpu.matmul(MatmulParams(precision="fp16"), a, b, device=StandIn(ColumnMajorBlas()))


# CUBLAS_STATUS_ALLOC_FAILED is 3, NOT_SUPPORTED 15. Both are faults after which the CPU can take the job.
@pytest.mark.parametrize(("status", "fault"), [(3, OutOfMemory), (15, LaunchFailed)])
def test_a_failing_cublas_is_a_fault_of_the_device_once_the_device_has_been_asked(status, fault):
    device = StandIn(ColumnMajorBlas(status))
    a = normal(1, 3, 3)

    with pytest.raises(fault, match=f"status {status}"):
        gpu.matmul(MatmulParams(), a, a, device=device)

    assert device.waited


def test_memory_that_cupy_keeps_for_reuse_is_given_to_cublas_when_it_asks():
    device = StandIn(ColumnMajorBlas(3))
    device.frees = True
    a = normal(1, 3, 3)

    answer = gpu.matmul(MatmulParams(), a, a, device=device)

    assert device.forgotten
    assert np.allclose(answer["product"], a @ a, rtol=0, atol=1e-6)


# CUBLAS_STATUS_NOT_INITIALIZED is 1, what cublasCreate gives where it cannot start.
def test_a_cublas_that_does_not_start_leaves_an_exact_product_to_our_kernel_unless_it_was_asked_for(monkeypatch):
    device = EmulatedDevice()
    blas = ColumnMajorBlas()
    cupy = Numbers(blas)

    def get_cublas_handle():
        raise blas.CUBLASError(1)

    cupy.cuda.device.get_cublas_handle = get_cublas_handle
    monkeypatch.setattr(device, "cupy", cupy)
    monkeypatch.setattr(device, "library", lambda work: work(), raising=False)
    a = normal(1, 3, 3)

    answer = gpu.matmul(MatmulParams(), a, a, device=device)

    assert answer["algorithm"] == "kernel"
    assert answer["algorithm_reason"] == "cuBLAS cannot be started: cuBLAS refused: status 1"
    assert answer["product"].tobytes() == cpu.matmul(MatmulParams(algorithm="kernel"), a, a)["product"].tobytes()
    with pytest.raises(LaunchFailed, match="status 1"):
        gpu.matmul(MatmulParams(algorithm="library"), a, a, device=device)
    with pytest.raises(NoDevice, match="precision bf16 needs cuBLAS on the GPU: cuBLAS cannot be started"):
        gpu.matmul(MatmulParams(precision="bf16"), a, a, device=device)


class Missing:
    """CuPy's `cuda` module where the library is absent: naming `cublas` raises."""

    @property
    def cublas(self):
        raise ImportError("No such file: libcublas.so.12")


def test_a_reduced_precision_without_cublas_leaves_the_job_to_the_cpu():
    device = StandIn(None)
    device.cupy.cuda = Missing()
    a = normal(1, 3, 3)

    with pytest.raises(NoDevice, match="precision bf16 needs cuBLAS on the GPU: cuBLAS cannot be loaded"):
        gpu.matmul(MatmulParams(precision="bf16"), a, a, device=device)
