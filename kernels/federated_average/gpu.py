"""Federated averaging on a GPU: chunk by chunk, updates are summed, then the average is made and the model updated."""

from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from warpdesk.models import DType
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.dp_noise.gpu import add_noise
from warpdesk_server.kernels.federated_average import spec
from warpdesk_server.kernels.federated_average.averaging import Averaging, prepare
from warpdesk_server.kernels.federated_average.params import FederatedAverage
from warpdesk_server.kernels.federated_average.plan import LOG2_SCALE
from warpdesk_server.kernels.federated_average.spec import BLOCK
from warpdesk_server.kernels.gpu import chunks
from warpdesk_server.kernels.gpu.contract import Device
from warpdesk_server.kernels.gpu.occupancy import resident
from warpdesk_server.kernels.gpu.private import PrivateMemory, private_memory
from warpdesk_server.kernels.gpu.source import Source

_FILE = Path(__file__).with_name("federated_average.cu")
_SOURCE = {4: Source(_FILE, {"FLOAT": 32}), 8: Source(_FILE, {"FLOAT": 64})}  # by the bytes of a number
SOURCES: tuple[Source, ...] = tuple(_SOURCE.values())

_THREADS = 128  # as in federated_average.cu
_LEAST_ROWS = 8  # clients that are worth a block of their own
_GRID_Y = 65_535  # CUDA's most blocks along y


def federated_average(
    params: FederatedAverage,
    updates: NDArray[Any] | None = None,
    weights: NDArray[Any] | None = None,
    sum: NDArray[np.int64] | None = None,  # noqa: A002 (the name of the input)
    model: NDArray[Any] | None = None,
    first_moment: NDArray[Any] | None = None,
    second_moment: NDArray[Any] | None = None,
    *,
    key: bytes,
    device: Device,
) -> dict[str, Any]:
    """Average clients' updates (n, d), or the sum (d,) of a round, and update the model; `key` is 32 random bytes.

    Raises InvalidRequest for numbers that are not finite, and if no grid for the noise is safe.
    """
    given = {"updates": updates, "weights": weights, "sum": sum, "model": model}
    given |= {"first_moment": first_moment, "second_moment": second_moment}
    work = _Work(prepare(params, given), key, device)
    infos = {
        name: ArrayInfo(cast(DType, array.dtype.name), array.shape)
        for name, array in given.items()
        if array is not None
    }
    try:
        chunks.run(device, spec.grid(params, infos), work.do)
    finally:
        work.total.fill(0)  # the answer without its noise
    return work.job.answer(work.average, work.model, work.first, work.second)


class _Work:
    """The chunks of one federated average on a GPU. A repeated chunk has the same noise, by its key and elements."""

    def __init__(self, job: Averaging, key: bytes, device: Device) -> None:
        self.job = job
        self.average = np.empty(job.width)
        self.model, self.first, self.second = (
            np.empty(0 if given is None else job.width) for given in (job.model, job.first_moment, job.second_moment)
        )
        self._key, self._device = np.frombuffer(key, "<u4"), device
        self._cut = spec.cut(job.params, job.clients, job.width)
        self._source = _SOURCE[8 if job.updates is None else job.updates.itemsize]
        self._summed = 0  # chunks of updates that are in the total already; they are added in order
        if job.sum is None:
            self.total = np.zeros(job.width, np.uint64)  # the bits of int64
        elif job.made is None:
            self.total = job.sum.view(np.uint64).copy()
        else:
            self.total = job.sum.astype(np.float64).view(np.uint64)  # the kernel brings it to the noise's grid

    def do(self, first: int, end: int) -> None:
        """Compute chunks first to end of a federated average; chunks of updates come before chunks of the average."""
        summing = self._cut.summing
        if max(first, self._summed) < min(end, summing):
            self._sum(max(first, self._summed), min(end, summing))
        if end > summing:
            self._finish(max(first, summing) - summing, end - summing)

    def _sum(self, first: int, end: int) -> None:
        job = self.job
        assert job.updates is not None  # noqa: S101 (else there are no such chunks)
        begin, last = first * self._cut.rows, min(end * self._cut.rows, job.clients)
        rows = job.updates[begin:last]
        part = np.empty(job.width, np.uint64)
        try:
            with private_memory(self._device) as memory:
                total = memory.zeros(job.width, np.uint64)
                bits = memory.to_device(rows.view(f"u{rows.itemsize}"))
                squares = None if job.made is None else self._squares(memory, bits, float(job.factors[0]))
                factors = memory.to_device(job.factors[begin:last])
                ratios = memory.to_device(job.ratios(squares, begin, last))
                kernel = self._device.kernel(self._source, "add_up")
                columns = -(-job.width // _THREADS)
                shares = max(1, min(len(rows) // _LEAST_ROWS, resident(self._device, kernel, _THREADS) // columns))
                share = -(-len(rows) // min(shares, _GRID_Y))
                lengths = np.uint64(len(rows)), np.uint64(job.width)
                kernel(
                    (columns, -(-len(rows) // share)),
                    (_THREADS,),
                    (bits, *lengths, factors, ratios, np.uint64(share), total),
                )
                self._device.to_host(total, part)
            np.add(self.total, part, out=self.total)
        finally:
            part.fill(0)
        self._summed = end

    def _squares(self, memory: PrivateMemory, bits: Any, factor: float) -> NDArray[np.uint64]:
        rows, width = bits.shape
        blocks = -(-width // BLOCK)
        squares = memory.empty((rows, blocks, 3), np.uint64)
        self._device.kernel(self._source, "add_squares")(
            (rows * blocks,), (_THREADS,), (bits, np.uint64(width), np.uint64(blocks), np.float64(factor), squares)
        )
        found: NDArray[np.uint64] = self._device.to_host(squares)
        return found

    def _finish(self, first: int, end: int) -> None:
        job = self.job
        part = slice(first * spec.CHUNK, end * spec.CHUNK)
        with private_memory(self._device) as memory:
            numbers = memory.to_device(self.total[part])
            if job.made is None:
                self._each("average", numbers, np.float64(job.divisor), np.float64(job.unit))
            else:
                # `prepare` has checked that no sum exceeds the grid.
                flag, key = memory.zeros(1, np.uint32), memory.to_device(self._key)
                step = np.uint64(job.made.mantissa), np.int32(job.made.exponent)
                add_noise(
                    self._device,
                    key,
                    "discrete_gaussian",
                    LOG2_SCALE,
                    float(job.made.grid),
                    numbers,
                    part.start,
                    flag,
                    values=None if job.sum is None else step,
                )
            self._move(memory, numbers, part)
            self._device.to_host(numbers, self.average[part].view(np.uint64))

    def _move(self, memory: PrivateMemory, average: Any, part: slice) -> None:
        job, rate = self.job, np.float64(self.job.params.learning_rate)
        if job.model is None:
            return
        model = memory.to_device(job.model[part])
        if job.first_moment is None or job.second_moment is None:
            self._each("descend", average, rate, model)
        else:
            first, second = memory.to_device(job.first_moment[part]), memory.to_device(job.second_moment[part])
            beta1, beta2, tau = job.params.decay
            decay = (np.float64(number) for number in (beta1, 1 - beta1, beta2, 1 - beta2, tau))
            self._each("adapt", average, rate, *decay, model, first, second)
            self._device.to_host(first, self.first[part])
            self._device.to_host(second, self.second[part])
        self._device.to_host(model, self.model[part])

    def _each(self, name: str, numbers: Any, *args: Any) -> None:
        """Launch a kernel of the federated average with a GPU thread for each of the numbers."""
        blocks = -(-numbers.size // _THREADS)
        self._device.kernel(self._source, name)((blocks,), (_THREADS,), (numbers, np.uint64(numbers.size), *args))
