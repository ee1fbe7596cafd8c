"""A release with exact noise on a GPU: chunk by chunk, records are summed, counted or clipped, then noise is added."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.dp_noise import spec
from warpdesk_server.kernels.dp_noise.params import DpNoise
from warpdesk_server.kernels.dp_noise.plan import Plan, plan
from warpdesk_server.kernels.dp_noise.release import (
    COUNT_DOMAIN,
    DOMAIN,
    NORM,
    answer,
    as_bits,
    refused_as_out_of_range,
)
from warpdesk_server.kernels.gpu import chunks
from warpdesk_server.kernels.gpu.contract import Device
from warpdesk_server.kernels.gpu.occupancy import resident
from warpdesk_server.kernels.gpu.private import PrivateMemory, private_memory
from warpdesk_server.kernels.gpu.source import Source

_SOURCE = Source(Path(__file__).with_name("dp_noise.cu"))
SOURCES: tuple[Source, ...] = (_SOURCE,)

_THREADS, _MOST_ROUNDS = 128, 8  # as in dp_noise.cu
_LEAST_ROWS = 256  # records that are worth a block of their own
_GRID_Y = 65_535  # CUDA's most blocks along y
_BINS = 4096  # as in dp_noise.cu: counts of a block
_LEAST_VALUES = 8 * _BINS  # values that are worth a block's bins


def dp_noise(params: DpNoise, values: NDArray[Any], *, key: bytes, device: Device) -> dict[str, Any]:
    """The noisy query of records (n,) or (n, d), or a noisy statistic (d,) or (n, d); `key` is 32 random bytes.

    Raises InvalidRequest for values that are not finite or too large for the grid, and if no grid is safe.
    """
    made = plan(params, values.shape)
    bits = as_bits(values, clipped=params.mode == "records")
    release = _Release(params, made, bits, key, device)
    grid = spec.grid(params, {"values": ArrayInfo("float64", values.shape)})
    try:
        chunks.run(device, grid, release.work, overlap=release.total.size == 0)
        if release.out_of_range:
            raise refused_as_out_of_range(made)
    finally:
        release.total.fill(0)  # the answer without its noise
    return answer(params, made, values.shape, release.noisy, release.noisy_count)


class _Release:
    """The chunks of one noisy release on a GPU. A repeated chunk has the same noise, by its key and elements."""

    def __init__(self, params: DpNoise, made: Plan, bits: NDArray[np.uint64], key: bytes, device: Device) -> None:
        self._cut = spec.cut(params, bits.shape)
        self.noisy = np.empty(made.width)
        self.noisy_count: float | None = None
        self.total = np.zeros(made.width if self._cut.summing else 0, np.uint64)  # the bits of int64
        self.out_of_range = False
        self._params, self._made, self._device = params, made, device
        # A row for each record, or the elements of a statistic.
        self._bits = bits.reshape(-1) if params.mode == "aggregate" else bits.reshape(len(bits), -1)
        self._key = np.frombuffer(key, "<u4")
        self._summed = 0  # chunks of records that are in the total already; they are added in order

    def work(self, first: int, end: int) -> None:
        """Compute the chunks first to end: chunks of records come first, then noise, and a noisy count last."""
        summing, noising = self._cut.summing, self._cut.summing + self._cut.noising
        if max(first, self._summed) < min(end, summing):
            self._sum(max(first, self._summed), min(end, summing))
        if max(first, summing) < min(end, noising):
            self._add_noise(max(first, summing) - summing, min(end, noising) - summing)
        if end > noising:
            self._count()

    def _sum(self, first: int, end: int) -> None:
        """Add the records of the chunks first to end to the total: their clipped values, or their counts."""
        rows = self._bits[first * self._cut.rows : end * self._cut.rows]
        part = np.empty(self._made.width, np.uint64)
        try:
            with private_memory(self._device) as memory:
                total, bits = memory.zeros(part.size, np.uint64), memory.to_device(rows)
                if self._params.bins is not None:
                    self._count_rows(bits, memory.to_device(np.array(self._params.bins.boundaries())), total)
                else:
                    self._sum_rows(bits, self._norms(memory, bits), total)
                self._device.to_host(total, part)
            if self._params.bins is not None:
                part *= np.uint64(self._made.bound)
            np.add(self.total, part, out=self.total)
        finally:
            part.fill(0)
        self._summed = end

    def _clipping(self) -> tuple[Any, ...]:
        assert self._params.clip is not None  # noqa: S101 (the validator has seen to it)
        made, norm = self._made, NORM[self._params.clip.norm]
        return (*_step(made), np.uint64(made.saturation), np.int32(norm), np.uint64(made.bound))

    def _norms(self, memory: PrivateMemory, bits: Any) -> Any:
        """The norms of records, by which they are clipped before noise is added."""
        assert self._params.clip is not None  # noqa: S101
        if self._params.clip.norm == "linf":
            return bits  # a placeholder: each coordinate is cut by itself, without norms
        n, d = bits.shape
        norms = memory.empty(n, np.uint64)
        self._device.kernel(_SOURCE, "row_norms")(
            (-(-n // 4),), (32, 4), (bits, np.uint64(n), np.uint64(d), *self._clipping(), norms)
        )
        return norms

    def _sum_rows(self, bits: Any, norms: Any, total: Any) -> None:
        n, d = bits.shape
        kernel = self._device.kernel(_SOURCE, "sum_rows")
        width = min(_THREADS, 1 << (d - 1).bit_length())
        columns = -(-d // width)
        # No more blocks than fill the device, since each adds to the total once.
        blocks = max(1, min(-(-n // _LEAST_ROWS), 2 * resident(self._device, kernel, _THREADS) // columns, _GRID_Y))
        rows = -(-n // blocks)
        kernel(
            (columns, -(-n // rows)),
            (_THREADS,),
            (bits, np.uint64(n), np.uint64(d), *self._clipping(), norms, np.uint32(width), np.uint64(rows), total),
        )

    def _count_rows(self, bits: Any, edges: Any, counts: Any) -> None:
        kernel = self._device.kernel(_SOURCE, "count_values")
        # As many blocks as the device holds, but each with enough values to be worth its bins.
        windows = -(-counts.size // _BINS)
        blocks = max(1, min(-(-bits.size // _LEAST_VALUES), resident(self._device, kernel, _THREADS) // windows))
        each = -(-bits.size // blocks)
        kernel(
            (-(-bits.size // each), windows),
            (_THREADS,),
            (bits, np.uint64(bits.size), edges, np.uint32(counts.size), np.uint64(each), counts),
        )

    def _add_noise(self, first: int, end: int) -> None:
        made, params = self._made, self._params
        part = slice(first * self._cut.elements, end * self._cut.elements)
        statistic, identity = params.mode == "aggregate", params.query == "identity"
        with private_memory(self._device) as memory:
            if identity:
                rows = self._bits[first * self._cut.rows : end * self._cut.rows]
                numbers = self._clip_rows(memory, memory.to_device(rows))
            else:
                numbers = memory.to_device(self._bits[part] if statistic else self.total[part])
            flag = memory.zeros(1, np.uint32)
            add_noise(
                self._device,
                memory.to_device(self._key),
                params.mechanism,
                made.log2_scale,
                float(made.grid),
                numbers,
                part.start,
                flag,
                values=_step(made) if statistic else None,
            )
            self._device.to_host(numbers, self.noisy[part].view(np.uint64).reshape(numbers.shape))
            found = self._device.to_host(flag)
        if found[0]:
            self.out_of_range = True

    def _clip_rows(self, memory: PrivateMemory, bits: Any) -> Any:
        n, d = bits.shape
        norms = self._norms(memory, bits)
        self._device.kernel(_SOURCE, "clip_rows")(
            (-(-bits.size // _THREADS),), (_THREADS,), (bits, np.uint64(n), np.uint64(d), *self._clipping(), norms)
        )
        return bits

    def _count(self) -> None:
        """Draw the noisy count of records, which a noisy mean is divided by."""
        made = self._made.count
        assert made is not None  # noqa: S101 (there is a chunk of it)
        with private_memory(self._device) as memory:
            counted = memory.to_device(np.array([len(self._bits) * made.bound], np.uint64))
            add_noise(
                self._device,
                memory.to_device(self._key),
                self._params.mechanism,
                made.log2_scale,
                float(made.grid),
                counted,
                0,
                memory.zeros(1, np.uint32),
                domains=COUNT_DOMAIN,
            )
            noisy = self._device.to_host(counted)
        self.noisy_count = float(noisy.view(np.float64)[0])


def add_noise(
    device: Device, key: Any, mechanism: str, k: int, grid: float, numbers: Any, first: int, flag: Any,
    values: tuple[Any, Any] | None = None, domains: Mapping[str, int] = DOMAIN,
) -> None:  # fmt: skip
    """Add noise to numbers[n] (uint64) on the GPU: each becomes the float64 (numbers[i] + noise[first + i]) * grid.

    The numbers are sums in steps (int64). With `values`, mantissa and exponent of the steps, they are the bits of
    float64 values that are rounded to the grid; flag[1] (uint32) is set if one exceeds 2**62 steps. The noise has the
    scale 2**k; key[8] is uint32.
    """
    kernel = device.kernel(_SOURCE, "laplace_noise" if mechanism == "discrete_laplace" else "gaussian_noise")
    # All blocks are resident at once if possible. With more elements in a block, fewer of its threads are idle while it
    # repeats the elements that ran out of random words.
    rounds = min(_MOST_ROUNDS, -(-numbers.size // (_THREADS * resident(device, kernel, _THREADS))))
    mantissa, exponent = values or (np.uint64(0), np.int32(0))
    kernel(
        (-(-numbers.size // (_THREADS * rounds)),),
        (_THREADS,),
        (
            key,
            np.uint32(domains[mechanism]),
            np.int32(k),
            numbers,
            np.int32(values is not None),
            mantissa,
            exponent,
            np.float64(grid),
            np.uint64(first),
            np.uint64(numbers.size),
            np.uint32(rounds),
            flag,
        ),
    )


def _step(made: Plan) -> tuple[Any, Any]:
    return np.uint64(made.mantissa), np.int32(made.exponent)
