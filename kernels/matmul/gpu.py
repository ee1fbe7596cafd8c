"""Multiply matrices on a device: cuBLAS where CuPy can load it, or matmul.cu."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from kernels.cuda import Device, LaunchFailed, NoDevice, OutOfMemory, Source
from kernels.cupy_device import CupyDevice
from kernels.matmul.precision import nearest, relative_error
from kernels.matmul.spec import Dimensions, MatmulParams, Precision, dimensions

_FILE = Path(__file__).parent / "matmul.cu"
_SOURCE = {"float32": Source(_FILE, {"REAL": "f32"}), "float64": Source(_FILE, {"REAL": "f64"})}
SOURCES: tuple[Source, ...] = tuple(_SOURCE.values())

TILE = 64  # as in matmul.cu
_MOST_BLOCKS_Z = 65_535  # CUDA C++ Programming Guide, technical specifications
_MOST_CUBLAS = 2**31 - 1  # its dimensions are 32-bit integers
_ALLOC_FAILED = 3  # cublasStatus_t


class NoLibrary(NoDevice):
    """cuBLAS cannot be had, and what was asked needs it: the CPU, which always has a BLAS, can compute it."""


def matmul(params: MatmulParams, a: NDArray[Any], b: NDArray[Any], *, device: Device) -> dict[str, Any]:
    """Return a @ b, shapes (m, k) or (batch, m, k) by (k, n) or (batch, k, n), with what ran, why, and its error.

    Raises InvalidRequest when shapes do not match or a reduced precision cannot hold an input, NoLibrary when a
    reduced precision is asked of a device without cuBLAS.
    """
    size = dimensions(a.shape, b.shape)
    cublas, reason = (None, "requested") if params.algorithm == "kernel" else _library(params, size, device)
    if cublas is None and params.precision != "ieee":
        raise NoLibrary(f"precision {params.precision} needs cuBLAS on the GPU: {reason}")
    left, right = device.to_device(a), device.to_device(b)
    error = None
    if cublas is None:
        product = _kernel(left, right, size, device)
    else:
        product = _guarded(cublas, device, lambda: _gemm(cublas, left, right, size, params.precision, device))
        if params.precision != "ieee":
            factors = _with_batch(left), _with_batch(right)
            error = _guarded(cublas, device, lambda: relative_error(device.cupy, *factors, product))
    return {
        "product": device.to_host(product).reshape(size.product),
        "algorithm": "kernel" if cublas is None else "library",
        "algorithm_reason": reason,
        "precision": params.precision,
        "relative_error": error,
    }


def _kernel(a: Any, b: Any, size: Dimensions, device: Device) -> Any:
    product = device.empty((size.batch, size.m, size.n), a.dtype)
    rows, columns = -(-size.m // TILE), -(-size.n // TILE)
    a_stride, b_stride = _strides(a, b)
    lengths = (size.m, size.n, size.k, a_stride, b_stride, size.batch, columns)
    device.kernel(_SOURCE[a.dtype.name], "matmul")(
        (rows * columns, 1, min(size.batch, _MOST_BLOCKS_Z)),
        (16, 16),
        (a, b, product, *(np.int64(length) for length in lengths)),
    )
    return product


def _gemm(cublas: Any, a: Any, b: Any, size: Dimensions, precision: Precision, device: Device) -> Any:
    """Multiply through cublasGemmStridedBatchedEx (cuBLAS documentation, section 2.8).

    cuBLAS reads and writes columns first. A row-major matrix is its transpose read that way, and
    product^T = b^T a^T: so b is the left factor, and nothing is transposed or copied.
    """
    xp: Any = device.cupy
    kind, compute = _formats(cublas, xp.cuda.runtime, a.dtype, precision, device.architecture)
    if precision != "ieee":
        a, b = (_stored(xp, nearest(xp, x, precision, name), kind) for x, name in ((a, "a"), (b, "b")))
    product = device.empty((size.batch, size.m, size.n), np.float64 if a.dtype == np.float64 else np.float32)
    one, zero = np.ones(1, product.dtype), np.zeros(1, product.dtype)
    a_stride, b_stride = _strides(a, b)
    cublas.gemmStridedBatchedEx(
        xp.cuda.device.get_cublas_handle(),
        cublas.CUBLAS_OP_N,
        cublas.CUBLAS_OP_N,
        *(size.n, size.m, size.k),
        one.ctypes.data,
        *(b.data.ptr, kind, size.n, b_stride),
        *(a.data.ptr, kind, size.k, a_stride),
        zero.ctypes.data,
        *(product.data.ptr, xp.cuda.runtime.CUDA_R_64F if product.dtype == np.float64 else xp.cuda.runtime.CUDA_R_32F),
        *(size.n, size.m * size.n),
        size.batch,
        compute,
        cublas.CUBLAS_GEMM_DEFAULT,
    )
    return product


def _formats(cublas: Any, runtime: Any, dtype: Any, precision: Precision, architecture: str) -> tuple[int, int]:
    """Return cuBLAS's names for how factors are stored and products formed; sums are in the product's dtype."""
    tensor_cores = int("".join(filter(str.isdigit, architecture))) >= 80  # for tf32 and bf16: Ampere and later
    if dtype == np.float64:
        return runtime.CUDA_R_64F, cublas.CUBLAS_COMPUTE_64F
    if precision == "fp16":
        return runtime.CUDA_R_16F, cublas.CUBLAS_COMPUTE_32F
    if precision == "bf16" and tensor_cores:
        return runtime.CUDA_R_16BF, cublas.CUBLAS_COMPUTE_32F
    if precision == "tf32" and tensor_cores:
        return runtime.CUDA_R_32F, cublas.CUBLAS_COMPUTE_32F_FAST_TF32
    # An older GPU multiplies the rounded factors in float32: the same numbers, without the speed.
    return runtime.CUDA_R_32F, cublas.CUBLAS_COMPUTE_32F


def _stored(xp: Any, rounded: Any, kind: int) -> Any:
    """Lay rounded float32 values out as cuBLAS reads them; nothing is rounded a second time."""
    if kind == xp.cuda.runtime.CUDA_R_16F:
        return rounded.astype(xp.float16)
    if kind == xp.cuda.runtime.CUDA_R_16BF:
        return (rounded.view(xp.uint32) >> xp.uint32(16)).astype(xp.uint16)
    return rounded


def _library(params: MatmulParams, size: Dimensions, device: Device) -> tuple[Any | None, str]:
    """Return CuPy's binding of cuBLAS and why it was chosen, or None and why not."""
    if device.cupy is None:
        return None, f"cuBLAS is reached through CuPy, which does not drive {device.name}"
    longest = max(size.batch, size.m, size.k, size.n)
    if longest > _MOST_CUBLAS:
        return None, f"cuBLAS takes at most {_MOST_CUBLAS} rows or columns, and one axis has {longest}"
    try:
        cublas = device.cupy.cuda.cublas  # loads the library when first named
    except ImportError as error:
        return None, f"cuBLAS cannot be loaded (install warpdesk[gpu-blas]): {error}"
    handle = device.cupy.cuda.device.get_cublas_handle
    try:
        version = _guarded(cublas, device, lambda: cublas.getVersion(handle()))
    except (LaunchFailed, OutOfMemory) as error:
        if params.algorithm == "library":
            raise
        return None, f"cuBLAS cannot be started: {error}"
    name = f"cuBLAS {version // 10000}.{version // 100 % 100}"
    return cublas, f"requested: {name}" if params.algorithm else f"default: {name}"


def _guarded(cublas: Any, device: Device, work: Callable[[], Any]) -> Any:
    """Return what `work` returns; whatever cuBLAS or CuPy raise in it becomes a fault of the device."""
    library = cast(CupyDevice, device).library  # what has a `cupy` is one, or stands before one
    try:
        try:
            return library(work)
        except cublas.CUBLASError as error:
            if error.status != _ALLOC_FAILED:
                raise
            # cuBLAS allocates past CuPy's pool, whose free blocks it cannot use.
            device.times()
            device.forget()
            return library(work)
    except cublas.CUBLASError as error:
        device.times()  # waits for the device: if the context is lost, that is raised here
        if error.status == _ALLOC_FAILED:
            raise OutOfMemory(f"cuBLAS found no memory for its workspace: {error}", 2) from error
        raise LaunchFailed(f"cuBLAS refused: {error}") from error


def _strides(a: Any, b: Any) -> tuple[int, int]:
    """Return the elements from one matrix of each batch to the next, 0 for a factor that serves them all."""
    return tuple(x.shape[-2] * x.shape[-1] if x.ndim == 3 else 0 for x in (a, b))  # type: ignore[return-value]


def _with_batch(array: Any) -> Any:
    return array.reshape(-1, *array.shape[-2:])
