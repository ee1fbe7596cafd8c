"""The matrix product on a GPU: by cuBLAS if CuPy can load it, or by matmul.cu."""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from warpdesk_server.kernels.gpu import chunks
from warpdesk_server.kernels.gpu.contract import Device
from warpdesk_server.kernels.gpu.cupy_device import CupyDevice
from warpdesk_server.kernels.gpu.faults import LaunchFailed, NoDevice, OutOfMemory
from warpdesk_server.kernels.gpu.source import Source
from warpdesk_server.kernels.matmul.precision import nearest, ratio, sampled, squares
from warpdesk_server.kernels.matmul.spec import Dimensions, MatmulParams, Piece, Precision, cut, dimensions
from warpdesk_server.kernels.problems import InvalidRequest

_FILE = Path(__file__).parent / "matmul.cu"
_SOURCE = {"float32": Source(_FILE, {"REAL": "f32"}), "float64": Source(_FILE, {"REAL": "f64"})}
SOURCES: tuple[Source, ...] = tuple(_SOURCE.values())

# The kernels of matmul.cu: rows and columns of a tile by the size of a number, threads of a block, and an estimate of
# its speed, since a smaller tile reads more shared memory for each product.
_TILES: dict[str, tuple[dict[int, tuple[int, int]], int, float]] = {
    "matmul_large": ({4: (128, 128), 8: (128, 64)}, 256, 1.0),
    "matmul_medium": ({4: (64, 64), 8: (64, 64)}, 256, 0.7),
    "matmul_small": ({4: (32, 32), 8: (32, 32)}, 64, 0.5),
}
_MOST_BLOCKS_Z = 65_535  # CUDA C++ Programming Guide, technical specifications
_MOST_CUBLAS = 2**31 - 1  # its dimensions are 32-bit integers
_ALLOC_FAILED = 3  # cublasStatus_t

Matrices = NDArray[Any]  # (batch or 1, rows, columns)
Squares = dict[tuple[int, ...], tuple[float, float]]  # results of precision.squares, by the start of a chunk


class NoLibrary(NoDevice):
    """Raised if a matrix product needs cuBLAS, which cannot be loaded. The CPU can compute it: it has a BLAS."""


def matmul(params: MatmulParams, a: NDArray[Any], b: NDArray[Any], *, device: Device) -> dict[str, Any]:
    """The matrix product a @ b, (m, k) or (batch, m, k) by (k, n) or (batch, k, n), its algorithm, reason and error.

    Raises InvalidRequest if shapes do not match, or if a reduced precision cannot hold an input. Raises NoLibrary if a
    reduced precision is requested on a device without cuBLAS.
    """
    size = dimensions(a.shape, b.shape)
    cublas, reason = (None, "requested") if params.algorithm == "kernel" else _library(params, size, device)
    if cublas is None and params.precision != "ieee":
        raise NoLibrary(f"precision {params.precision} needs cuBLAS on the GPU: {reason}")
    whole = cut(size, a.itemsize)
    grid = whole.grid(a.itemsize, params.precision)
    left = a.reshape(1 if whole.size.one_a else whole.size.batch, whole.size.m, size.k)
    right = b.reshape(1 if size.one_b else size.batch, size.k, size.n)
    product = np.empty((whole.size.batch, whole.size.m, size.n), a.dtype)
    error = None
    if cublas is None:
        multiply = partial(_by_kernel, left, right, product, device)
        chunks.run(device, grid, lambda first, end: multiply(whole.joined(first, end)), overlap=True)
    else:
        library = _Library(cublas, params.precision, device, {"a": a, "b": b})
        rows = sampled(*product.shape[:2]) if params.precision != "ieee" else {}
        squared: Squares = {}
        multiply = partial(library.multiply, left, right, product, rows, squared)
        chunks.run(device, grid, lambda first, end: multiply(whole.pieces(first, end)))
        error = ratio(squared[chunk] for chunk in sorted(squared)) if rows else None
    return {
        "product": product.reshape(size.product),
        "algorithm": "kernel" if cublas is None else "library",
        "algorithm_reason": reason,
        "precision": params.precision,
        "relative_error": error,
    }


def _by_kernel(a: Matrices, b: Matrices, product: Matrices, device: Device, pieces: Iterable[Piece]) -> None:
    for piece in pieces:
        left = device.to_device(_of(a, piece.items)[:, piece.rows])
        right = device.to_device(_of(b, piece.items)[:, :, piece.columns])
        out = device.empty(product[piece.place].shape, product.dtype)
        launch(left, right, out, device)
        device.to_host(out, product[piece.place])
        del left, right, out  # freed before the next piece's are made


def launch(a: Any, b: Any, out: Any, device: Device) -> None:
    """Multiply matrices (batch or 1, rows, columns) in device memory by our kernel, into out (batch, rows, columns)."""
    batch, m, n = out.shape
    name, rows, columns, threads = _tile(out.itemsize, batch, m, n, device.multiprocessors)
    across = -(-n // columns)
    lengths = (m, n, a.shape[2], *_strides(a, b), across)
    kernel = device.kernel(_SOURCE[out.dtype.name], name)
    for first in range(0, batch, _MOST_BLOCKS_Z):
        some = slice(first, min(first + _MOST_BLOCKS_Z, batch))
        kernel(
            (-(-m // rows) * across, 1, some.stop - first),
            (threads,),
            (_of(a, some), _of(b, some), out[some], *(np.int64(length) for length in lengths)),
        )


def _tile(itemsize: int, batch: int, m: int, n: int, multiprocessors: int) -> tuple[str, int, int, int]:
    """The fastest kernel for a matrix product, by estimate: its name, tile sides and threads. No byte depends on it."""

    def time(name: str) -> float:
        sides, _, rate = _TILES[name]
        rows, columns = sides[itemsize]
        tiles = batch * -(-m // rows) * -(-n // columns)
        return -(-tiles // multiprocessors) * rows * columns / rate

    name = min(_TILES, key=time)
    sides, threads, _ = _TILES[name]
    return name, *sides[itemsize], threads


class _Library:
    """The matrix product of one job by cuBLAS. `given` are the whole inputs, for the error if one cannot be rounded."""

    def __init__(self, cublas: Any, precision: Precision, device: Device, given: dict[str, NDArray[Any]]) -> None:
        self._cublas = cublas
        self._precision = precision
        self._device = device
        self._given = given
        self._xp = cast(Any, device.cupy)
        dtype = given["a"].dtype
        self._formats = _formats(cublas, self._xp.cuda.runtime, dtype, precision, device.architecture)

    def multiply(
        self,
        a: Matrices,
        b: Matrices,
        product: Matrices,
        rows: dict[int, list[int]],
        squared: Squares,
        pieces: Iterable[Piece],
    ) -> None:
        """Compute chunks of the matrix product, and measure the error of the `rows` in them.

        Each chunk is a call of its own, even if several are in memory. cuBLAS chooses its kernel by the shape, which
        decides the last bits, so the shape must depend on the job and not on free memory.
        """
        device = self._device
        shared: tuple[slice, slice] | None = None
        right = formed = None
        for piece in pieces:
            if shared != (piece.items, piece.columns):
                shared, right, formed = (piece.items, piece.columns), None, None
                right = device.to_device(_of(b, piece.items)[:, :, piece.columns])
                formed = self._stored(right, "b")
            here = piece.within(rows)
            error = self._chunk(_of(a, piece.items)[:, piece.rows], right, formed, product[piece.place], here)
            if here:
                squared[tuple(part.start for part in piece.place)] = error

    def _chunk(
        self, a: Matrices, right: Any, formed: Any, product: Matrices, rows: dict[int, list[int]]
    ) -> tuple[float, float]:
        """Compute one chunk of the matrix product, and return precision.squares of its `rows`."""
        left = self._device.to_device(a)
        batch = max(left.shape[0], right.shape[0])
        out = self._device.empty((batch, left.shape[1], right.shape[2]), left.dtype)
        self._gemm(self._stored(left, "a"), formed, out)
        error: tuple[float, float] = self._guarded(partial(squares, self._xp, left, right, out, rows))
        self._device.to_host(out, product)
        return error

    def _gemm(self, a: Any, b: Any, out: Any) -> None:
        """Multiply matrices by cublasGemmStridedBatchedEx (cuBLAS documentation, section 2.8).

        cuBLAS is column-major, so it reads a row-major matrix as its transpose. Since product^T = b^T a^T, b is passed
        as the left factor, and nothing is transposed or copied.
        """
        cublas, runtime = self._cublas, self._xp.cuda.runtime
        kind, compute = self._formats
        (batch, m, n), k = out.shape, a.shape[2]
        one, zero = np.ones(1, out.dtype), np.zeros(1, out.dtype)
        a_stride, b_stride = _strides(a, b)
        self._guarded(
            lambda: cublas.gemmStridedBatchedEx(
                self._xp.cuda.device.get_cublas_handle(),
                cublas.CUBLAS_OP_N,
                cublas.CUBLAS_OP_N,
                *(n, m, k),
                one.ctypes.data,
                *(b.data.ptr, kind, n, b_stride),
                *(a.data.ptr, kind, k, a_stride),
                zero.ctypes.data,
                *(out.data.ptr, runtime.CUDA_R_64F if out.dtype == np.float64 else runtime.CUDA_R_32F),
                *(n, m * n),
                batch,
                compute,
                cublas.CUBLAS_GEMM_DEFAULT,
            )
        )

    def _stored(self, values: Any, name: str) -> Any:
        """The factors of the product as cuBLAS reads them: unchanged, or rounded."""
        if self._precision == "ieee":
            return values
        try:
            rounded = self._guarded(lambda: nearest(self._xp, values, self._precision, name))
        except InvalidRequest:
            for each in self._given:
                nearest(np, self._given[each], self._precision, each)  # its error names the place in the whole input
            raise
        return self._guarded(lambda: _stored(self._xp, rounded, self._formats[0]))

    def _guarded(self, work: Callable[[], Any]) -> Any:
        return _guarded(self._cublas, self._device, work)


def _formats(cublas: Any, runtime: Any, dtype: Any, precision: Precision, architecture: str) -> tuple[int, int]:
    """cuBLAS's constants for the type of matrix factors and the way to compute; sums are in the product's dtype."""
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
    """Rounded float32 values of a matrix factor in the type that cuBLAS reads; they are not rounded a second time."""
    if kind == xp.cuda.runtime.CUDA_R_16F:
        return rounded.astype(xp.float16)
    if kind == xp.cuda.runtime.CUDA_R_16BF:
        return (rounded.view(xp.uint32) >> xp.uint32(16)).astype(xp.uint16)
    return rounded


def _library(params: MatmulParams, size: Dimensions, device: Device) -> tuple[Any | None, str]:
    """CuPy's binding of cuBLAS for a matrix product and the reason to use it, or None and the reason not to."""
    if device.cupy is None:
        return None, f"cuBLAS is reached through CuPy, which does not drive {device.name}"
    longest = max(size.batch, size.m, size.k, size.n)
    if longest > _MOST_CUBLAS:
        return None, f"cuBLAS takes at most {_MOST_CUBLAS} rows or columns, and one axis has {longest}"
    try:
        cublas = device.cupy.cuda.cublas  # loads the library when first named
    except ImportError as error:
        return None, f"cuBLAS cannot be loaded (install warpdesk-server[gpu-blas]): {error}"
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
    """Call `work` for a matrix product and return its result. An error of cuBLAS or CuPy in it becomes a fault of the
    device."""
    library = cast(CupyDevice, device).library  # a device with `cupy` is a CupyDevice, or wraps one
    try:
        try:
            return library(work)
        except cublas.CUBLASError as error:
            if error.status != _ALLOC_FAILED:
                raise
            # cuBLAS does not allocate from CuPy's pool, so it cannot use the pool's free blocks.
            device.times()
            device.forget()
            return library(work)
    except cublas.CUBLASError as error:
        device.times()  # waits for the device: a lost context raises its fault here
        if error.status == _ALLOC_FAILED:
            raise OutOfMemory(f"cuBLAS found no memory for its workspace: {error}", 2) from error
        raise LaunchFailed(f"cuBLAS refused: {error}") from error


def _strides(a: Any, b: Any) -> tuple[int, int]:
    """The strides from one matrix of a product's batch to the next, in elements; 0 for a factor that serves the whole
    batch."""
    return tuple(x.shape[1] * x.shape[2] if x.shape[0] > 1 else 0 for x in (a, b))  # type: ignore[return-value]


def _of(factor: Any, items: slice) -> Any:
    """The matrices of a factor for some matrix products of the batch."""
    return factor if factor.shape[0] == 1 else factor[items]
