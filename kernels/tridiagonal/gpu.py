"""The operations on tridiagonal systems on a GPU, by chunks of systems, with the same bytes as on the CPU."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdesk_server.kernels.cpu.pages import empty
from warpdesk_server.kernels.gpu import chunks
from warpdesk_server.kernels.gpu.contract import Device
from warpdesk_server.kernels.gpu.occupancy import Shape, best
from warpdesk_server.kernels.gpu.source import Source
from warpdesk_server.kernels.operation import Operation
from warpdesk_server.kernels.tridiagonal import spec
from warpdesk_server.kernels.tridiagonal.answer import (
    before_repetitions,
    infos_of,
    inverse_answer,
    lines_of,
    solve_answer,
)
from warpdesk_server.kernels.tridiagonal.spec import STATES, Shift, Systems, systems_of

Array = NDArray[Any]

_FILE = Path(__file__).with_name("tridiagonal.cu")
_SOURCE = {"float64": Source(_FILE, {"REAL": "f64"}), "float32": Source(_FILE, {"REAL": "f32", "FLOAT32": 1})}
SOURCES: tuple[Source, ...] = tuple(_SOURCE.values())

_SIDE, _SIDE_ROWS = 32, 4  # as in tridiagonal.cu


def tridiagonal_solve(
    params: Shift, lower: Array, diagonal: Array, upper: Array, rhs: Array, *, device: Device
) -> dict[str, Any]:
    """Solve (T - z I) x = rhs on a GPU for each tridiagonal system of (systems, rows), float64 or float32, real or
    complex."""

    def work(chunk: _Chunk, lower: Any, diagonal: Any, upper: Any, rhs: Any) -> Any:
        ratios, forward = chunk.empty(chunk.numbers), chunk.empty(chunk.numbers)
        chunk.launch("solve", lower, diagonal, upper, rhs, *chunk.shift, *chunk.shape, ratios, forward, chunk.state)
        return rhs

    given = {"lower": lower, "diagonal": diagonal, "upper": upper, "rhs": rhs}
    return solve_answer(params, given, *_by_chunk(spec.TRIDIAGONAL_SOLVE, params, device, work, given))


def tridiagonal_inverse_diagonal(
    params: Shift, lower: Array, diagonal: Array, upper: Array, *, device: Device
) -> dict[str, Any]:
    """The diagonal of (T - z I)^-1 on a GPU for each tridiagonal matrix of (systems, rows), float64 or float32, real or
    complex."""

    def work(chunk: _Chunk, lower: Any, diagonal: Any, upper: Any) -> Any:
        pivots, errors = chunk.empty(chunk.numbers), chunk.empty(chunk.systems.rows)
        nan = np.float64(np.nan)
        arguments = (*chunk.shift, *chunk.shape, nan, pivots, errors, chunk.state)
        chunk.launch("inverse", lower, diagonal, upper, *arguments)
        return diagonal

    given = {"lower": lower, "diagonal": diagonal, "upper": upper}
    return inverse_answer(params, given, *_by_chunk(spec.TRIDIAGONAL_INVERSE_DIAGONAL, params, device, work, given))


class _Chunk:
    """Some systems of a job on a device, side by side."""

    def __init__(self, device: Device, params: Shift, systems: Systems, count: int) -> None:
        self.systems, self.count = systems, count
        self.numbers = systems.rows * systems.parts
        self.shape = np.uint64(count), np.uint32(systems.rows)
        self.shift = np.float64(params.shift), np.float64(params.shift_imaginary)
        self.state = device.empty((STATES, count), np.float64)
        self._device, self._source = device, _SOURCE[systems.dtype]

    def empty(self, numbers: int) -> Any:
        """Memory for so many float64 of each system."""
        return self._device.empty(numbers * self.count, np.float64)

    def side_by_side(self, lines: Array, first_row: int) -> Any:
        """Numbers (systems, rows, parts) with systems side by side; 0 for imaginary parts and rows there are none
        of."""
        parts = self.systems.parts
        out = self._device.zeros(self.numbers * self.count, lines.dtype)
        if lines.size:
            apart = parts // lines.shape[2]
            self._turn(self._device.to_device(lines), lines[0].size, self.count, first_row * parts, apart, out)
        return out

    def apart(self, numbers: Any) -> Any:
        """The systems one after another, of numbers side by side."""
        out = self._device.empty((self.count, self.systems.rows, self.systems.parts), self.systems.dtype)
        self._turn(numbers, self.count, self.numbers, 0, 1, out)
        return out

    def launch(self, name: str, *args: Any) -> None:
        """Launch a kernel that has a thread for each system."""
        kind = ("real", "complex")[self.systems.parts - 1]
        kernel = self._device.kernel(self._source, f"{name}_{kind}")
        shapes = [Shape(-(-self.count // threads), threads, threads) for threads in (32, 64, 128)]
        shape = best(self._device, kernel, shapes)
        kernel((shape.blocks,), (shape.threads,), args)

    def _turn(self, given: Any, columns: int, rows: int, start: int, apart: int, out: Any) -> None:
        squares = -(-rows // _SIDE) * -(-columns // _SIDE)
        size = np.uint64(rows), np.uint64(columns), np.uint32(start), np.uint32(apart)
        self._device.kernel(self._source, "turn")((squares,), (_SIDE, _SIDE_ROWS), (given, *size, out))


def _by_chunk(
    operation: Operation, params: Shift, device: Device, work: Callable[..., Any], given: dict[str, Array]
) -> tuple[Array, Array]:
    """What `work` makes of systems side by side, (systems, rows, parts), and the state (STATES, systems)."""
    infos = infos_of(given)
    systems = systems_of(params, infos)
    lines = lines_of(given, systems)
    out = empty((systems.count, systems.rows, systems.parts), systems.dtype)
    state = np.empty((STATES, systems.count))

    def run(first_chunk: int, end_chunk: int) -> None:
        first, end = first_chunk * systems.per_chunk, min(end_chunk * systems.per_chunk, systems.count)
        chunk = _Chunk(device, params, systems, end - first)
        columns = [chunk.side_by_side(array[first:end], int(name == "lower")) for name, array in lines.items()]
        answer = chunk.apart(work(chunk, *columns))
        device.to_host(answer, out[first:end])
        device.to_host(chunk.state, state[:, first:end])

    with before_repetitions():
        chunks.run(device, operation.grid(params, infos), run, overlap=True)
    return out, state
