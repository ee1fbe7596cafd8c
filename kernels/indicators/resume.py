"""Bars as they come: a program gives its state after a bar as bytes, and goes on from it with the same bytes.

A state is what the loops carry from chunk to chunk (`program_cpu.run`), and the bars since the last whole chunk, at
most 2,047 or as many as a step looks back. Those bars are run again: their sums and scans depend on the bar's place in
its chunk, so nothing less has the same bytes.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdesk_server.kernels.indicators import program_cpu
from warpdesk_server.kernels.indicators.gaps import close_gaps, whole_gap
from warpdesk_server.kernels.indicators.plan import Program
from warpdesk_server.kernels.indicators.spec import NanPolicy

Array = NDArray[Any]
_DIGEST = 16  # bytes
_FORM = 1  # of a state; another where the loops carry other numbers


class StateMismatch(ValueError):
    """Raised for a state that is damaged, or of another program, dtype, gap policy or number of rows."""


@dataclass
class _State:
    """The state of a program's rows.

    `bars` (rows) counts the bars that each row has had, without those that `skip` leaves out. `numbers` (rows, size)
    is the state before the last unfinished chunk, `tails` (inputs, rows, bars) that chunk's bars, left-aligned, and
    `last` (inputs, rows) the last prices, for `ffill`.
    """

    bars: NDArray[np.int64]
    numbers: Array
    tails: Array
    last: Array


def go_on(
    program: Program, policy: NanPolicy, inputs: Mapping[str, Array], state: bytes | None = None
) -> tuple[Array, bytes]:
    """The outputs (outputs, rows, time) of a program for the next bars of its inputs (rows, time), and the state after
    them; without a state they are the first bars.

    However the bars are divided, the outputs have the bytes of one run over all of them. Raises StateMismatch for a
    state that does not fit, InvalidRequest for a NaN under the policy `error`.
    """
    arrays = np.stack(np.broadcast_arrays(*(inputs[name] for name in program.inputs)))
    _, rows, time = arrays.shape
    size, chunk = program_cpu.state_of(program, arrays.dtype)
    identity = _identity(program, policy, arrays.dtype)
    before = _start(rows, size, arrays) if state is None else _decoded(state, identity, rows, size, arrays)
    present = _closed(arrays, before.last, policy)
    outputs = np.full((len(program.outputs), rows, time), np.nan, arrays.dtype)
    after = _State(before.bars + present.sum(axis=1), before.numbers.copy(), before.tails, before.last)
    after.tails = np.zeros((len(arrays), rows, int((after.bars % chunk).max(initial=0))), arrays.dtype)
    for bars, count in np.unique(np.stack([before.bars, after.bars - before.bars], axis=1), axis=0):
        here = np.flatnonzero((before.bars == bars) & (after.bars - before.bars == count))
        begun, left = bars % chunk, (bars + count) % chunk
        new = arrays[:, here][:, present[here]].reshape(len(arrays), len(here), count)
        series = np.concatenate([before.tails[:, here, :begun], new], axis=2)
        if count:
            numbers = before.numbers[here]
            given = dict(zip(program.inputs, series, strict=True))
            found = program_cpu.run(program, given, numbers, int(bars - begun))
            shown = outputs[:, here]
            shown[:, present[here]] = found[:, :, begun:].reshape(len(outputs), -1)
            outputs[:, here], after.numbers[here] = shown, numbers
        after.tails[:, here, :left] = series[:, :, begun + count - left :]
    return outputs, _encoded(after, identity)


def _closed(arrays: Array, last: Array, policy: NanPolicy) -> NDArray[np.bool_]:
    """Close the gaps of inputs in place, and keep their last prices; returns which bars (rows, time) count."""
    present = np.ones(arrays.shape[1:], np.bool_)
    if policy == "skip":
        present = ~np.isnan(whole_gap(dict(enumerate(arrays))))  # type: ignore[arg-type]
    elif policy == "error":
        for array in arrays:
            close_gaps(array, policy)
    elif policy == "ffill" and arrays.shape[2]:
        for array, before in zip(arrays, last, strict=True):
            array[...] = close_gaps(np.concatenate([before[:, None], array], axis=1), policy)[:, 1:]
            before[...] = array[:, -1]
    return present


def _start(rows: int, size: int, arrays: Array) -> _State:
    inputs, dtype = len(arrays), arrays.dtype
    none = np.full((inputs, rows), np.nan, dtype)
    return _State(np.zeros(rows, np.int64), np.zeros((rows, size), dtype), np.empty((inputs, rows, 0), dtype), none)


def _identity(program: Program, policy: NanPolicy, dtype: Any) -> bytes:
    layout = _FORM, *program_cpu.state_of(program, dtype), str(dtype), policy
    text = repr((layout, program.steps, program.constants, program.outputs))
    return hashlib.blake2b(text.encode(), digest_size=_DIGEST).digest()


def _encoded(state: _State, identity: bytes) -> bytes:
    rows = np.array([len(state.bars)])
    body = identity + b"".join(
        np.ascontiguousarray(part).tobytes() for part in (rows, state.bars, state.last, state.numbers, state.tails)
    )
    return hashlib.blake2b(body, digest_size=_DIGEST).digest() + body


def _decoded(data: bytes, identity: bytes, rows: int, size: int, arrays: Array) -> _State:
    body = data[_DIGEST:]
    if hashlib.blake2b(body, digest_size=_DIGEST).digest() != data[:_DIGEST]:
        raise StateMismatch(f"the state of {len(data)} bytes is damaged")
    if body[:_DIGEST] != identity:
        raise StateMismatch("the state is of another indicator, other parameters, another dtype or gap policy")
    inputs, dtype, at = len(arrays), arrays.dtype, _DIGEST

    def part(kind: Any, *shape: int) -> Array:
        nonlocal at
        taken = np.frombuffer(body, kind, int(np.prod(shape)), at).reshape(shape).copy()
        at += taken.nbytes
        return taken

    if (held := int(part(np.int64, 1)[0])) != rows:
        raise StateMismatch(f"the state has {held} rows, and the bars {rows}")
    left = (len(body) - at) // dtype.itemsize - 8 * rows // dtype.itemsize - rows * (inputs + size)
    return _State(
        part(np.int64, rows), last=part(dtype, inputs, rows), numbers=part(dtype, rows, size),
        tails=part(dtype, inputs, rows, left // (inputs * rows or 1)),
    )  # fmt: skip
