"""Numbers on their way in and out: .npy, CSV and JSON lists become arrays, arrays become JSON.

Everything here runs in threads, but for what receives an upload. It is the one module of the API that uses NumPy.
"""

import ast
import json
import math
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict
from itertools import chain
from typing import Any

import numpy as np

from warpdesk_server.app.arrays import table
from warpdesk_server.app.kit import limits
from warpdesk_server.app.kit.errors import Refusal, refuse_at
from warpdesk_server.kernels.array import DTYPES, ITEMSIZE, ArrayInfo, DType
from warpdesk_server.workers.store import npy
from warpdesk_server.workers.store.protocol import ArrayWriter, Store, StoredArray

Numbers = np.ndarray[Any, Any]
OpenWriter = Callable[[DType, tuple[int, ...]], ArrayWriter]

MAX_NPY_HEADER = 10_000  # NumPy's own limit (numpy.lib.format._MAX_HEADER_SIZE)
MAX_RANK = 8
MAX_EXTENT = 2**63 - 1  # what an array's sizes are counted with
BLOCK = 1 << 20  # bytes of a column-major array that are turned at once, and of a CSV's numbers that are taken

_MAGIC = b"\x93NUMPY"
_LETTERS = {
    "f8": "float64",
    "f4": "float32",
    "i8": "int64",
    "i4": "int32",
    "u8": "uint64",
    "u4": "uint32",
    "u1": "uint8",
}


def describe(numbers: Numbers) -> ArrayInfo:
    """What a validator needs to know of an array."""
    has_nan, has_inf = _oddities(numbers)
    return ArrayInfo(_dtype_name(numbers.dtype), numbers.shape, has_nan, has_inf)


def store(
    into: Store, owner: str, numbers: Numbers, info: ArrayInfo, ttl: float, *, unique: bool = False
) -> StoredArray:
    """Put an array that is in memory into the store; a unique one under an id that no other array has."""
    with into.writer(owner, info.dtype, info.shape, ttl, unique=unique) as writer:
        writer.take(_bytes(numbers))
        return writer.commit(has_nan=info.has_nan, has_inf=info.has_inf)


# --- .npy (NumPy Enhancement Proposal 1, format versions 1.0, 2.0 and 3.0)


class NpyUpload:
    """An .npy file that arrives in pieces and goes to the store as it comes; no more is held than is not yet written.

    `take` only computes, so that an event loop may call it; `flush`, `finish` and `discard` wait for the disk and
    belong in a thread. Big-endian numbers are swapped and Fortran order is turned into C order (through a scratch
    file), so that what is stored is always C-ordered and little-endian. Whoever does not finish it must discard it.
    """

    def __init__(self, open_writer: OpenWriter, limit: int, length: int | None) -> None:
        self._open_writer = open_writer
        self._limit = limit
        self._length = length
        self.end: int | None = None  # bytes of the whole file, known once its header has come
        self._head = b""
        self._writer: ArrayWriter | _Turned | None = None
        self._rest = b""  # a number cut in two by the end of a piece
        self._received = 0  # bytes of numbers
        self._has_nan = self._has_inf = False

    def take(self, piece: bytes) -> None:
        """Take the next bytes of the file: look at them and hash them, now that the processor has them at hand."""
        if self._writer is None:
            self._head += piece
            start = _header_end(self._head)
            if start is None:
                return
            self._writer = self._open(start)
            piece, self._head = self._head[start:], b""
        self._received += len(piece)
        if self._received > self._bytes:
            raise self.overlong()
        numbers = memoryview(piece)
        looked_at = [self._look(whole) for whole in self._whole_numbers(numbers)]
        for chunk in looked_at if self._swap else [numbers]:
            self._writer.take(chunk)

    def flush(self) -> None:
        """Write what was taken. One thread may do so while another takes more."""
        if self._writer is not None:
            self._writer.flush()

    def finish(self, flushing: "Future[None] | None" = None) -> StoredArray:
        """Write the last bytes, once those being flushed are, and publish; refuses a file that ended early."""
        if flushing is not None:
            flushing.result()
        if self._writer is None:
            start = "starts with" if self._head.startswith(_MAGIC[: len(self._head)]) else "does not start with"
            raise _malformed(
                f"the body ends after {len(self._head)} bytes inside the npy header; it {start} the magic string"
            )
        if self._received < self._bytes:
            raise _malformed(
                f"the header declares {self._declared}, {self._bytes} bytes of numbers; the body holds {self._received}"
            )
        stored = self._writer.commit(has_nan=self._has_nan, has_inf=self._has_inf)
        self.discard()
        return stored

    def overlong(self) -> Refusal:
        return _malformed(f"the header declares {self._declared}, {self._bytes} bytes of numbers; the body holds more")

    def discard(self) -> None:
        """Delete what came, unless it was published."""
        if self._writer is not None:
            self._writer.__exit__(None, None, None)

    def _open(self, start: int) -> "ArrayWriter | _Turned":
        self._dtype, self._swap, fortran, shape = _parse_header(self._head[:start])
        self._bytes = math.prod(shape) * ITEMSIZE[self._dtype]
        self._declared = f"{self._dtype} of shape {list(shape)}"
        if self._bytes > self._limit:
            raise Refusal("array-too-large", f"{self._declared} is {self._bytes} bytes; the limit is {self._limit}")
        if self._length is not None and self._length - start != self._bytes:
            raise _malformed(
                f"the header declares {self._declared}, {self._bytes} bytes of numbers; "
                f"the body holds {self._length - start}"
            )
        self.end = start + self._bytes
        writer = self._open_writer(self._dtype, shape).__enter__()
        self._writer = writer  # is discarded, also where there is no room to turn it
        if fortran and self._bytes and sum(extent > 1 for extent in shape) > 1:
            return _Turned(writer, self._dtype, shape)
        return writer

    def _whole_numbers(self, piece: memoryview) -> Iterator[memoryview]:
        """The whole numbers of a piece. Only the one that was cut is put together; the others are never copied."""
        size = ITEMSIZE[self._dtype]
        if self._rest:
            missing = size - len(self._rest)
            self._rest += bytes(piece[:missing])
            piece = piece[missing:]
            if len(self._rest) < size:
                return
            yield memoryview(self._rest)
        whole = len(piece) - len(piece) % size
        self._rest = bytes(piece[whole:])
        if whole:
            yield piece[:whole]

    def _look(self, whole: memoryview) -> memoryview:
        numbers = np.frombuffer(whole, np.dtype(self._dtype))
        if self._swap:
            numbers = numbers.byteswap()
            whole = _bytes(numbers)
        has_nan, has_inf = _oddities(numbers)
        self._has_nan |= has_nan
        self._has_inf |= has_inf
        return whole


class _Turned:
    """Between a column-major upload and its writer: a scratch file, turned when all of it is there."""

    def __init__(self, writer: ArrayWriter, dtype: DType, shape: tuple[int, ...]) -> None:
        self._writer, self._dtype, self._shape = writer, np.dtype(dtype), shape
        self._taken: deque[memoryview] = deque()
        self._scratch = writer.scratch()

    def take(self, chunk: memoryview) -> None:
        self._taken.append(chunk)

    def flush(self) -> None:
        while self._taken:
            self._scratch.write(self._taken.popleft())

    def commit(self, *, has_nan: bool, has_inf: bool) -> StoredArray:
        """Write the numbers in row-major order, a block at a time."""
        self.flush()
        columns = np.memmap(self._scratch.whole(), self._dtype, "r", shape=self._shape, order="F")
        for block in _in_rows(columns, BLOCK // self._dtype.itemsize):
            self._writer.take(_bytes(block))
            self._writer.flush()
        return self._writer.commit(has_nan=has_nan, has_inf=has_inf)

    def __exit__(self, *error: object) -> None:
        self._scratch.close()
        self._writer.__exit__(*error)


def _in_rows(numbers: Numbers, most: int) -> Iterator[Numbers]:
    """Parts of an array that follow each other in row-major order, each of `most` numbers or fewer."""
    rows = most * numbers.shape[0] // numbers.size
    if rows == 0 and numbers.ndim > 1:
        for row in numbers:
            yield from _in_rows(row, most)
    else:
        for first in range(0, numbers.shape[0], max(1, rows)):
            yield numbers[first : first + max(1, rows)]


def _header_end(head: bytes) -> int | None:
    """Where the numbers start, or None while the header is incomplete."""
    if head[:6] != _MAGIC[: len(head)]:
        raise _malformed("the body does not start with the npy magic string \\x93NUMPY")
    if len(head) < 8:
        return None
    version = head[6]
    if version not in (1, 2, 3) or head[7] != 0:
        raise _malformed(f"npy format version {version}.{head[7]} is not 1.0, 2.0 or 3.0")
    prefix = 10 if version == 1 else 12
    if len(head) < prefix:
        return None
    length = int.from_bytes(head[8:prefix], "little")
    if length > MAX_NPY_HEADER:
        raise _malformed(f"the npy header says it is {length} bytes long; the limit is {MAX_NPY_HEADER}")
    return prefix + length if len(head) >= prefix + length else None


def _parse_header(head: bytes) -> tuple[DType, bool, bool, tuple[int, ...]]:
    """dtype, whether to swap bytes, whether in Fortran order, shape."""
    prefix = 10 if head[6] == 1 else 12
    try:
        text = head[prefix:].decode("latin-1" if head[6] < 3 else "utf-8").lstrip(" \t")
        literal = ast.parse(text, mode="eval").body
        if not isinstance(literal, ast.Dict) or len(literal.keys) != 3:  # a key more, or one twice
            raise ValueError(text)
        header = ast.literal_eval(literal)
        description, fortran, shape = header["descr"], header["fortran_order"], header["shape"]
    except (SyntaxError, ValueError, TypeError, KeyError, MemoryError, RecursionError):
        raise _malformed("the npy header is not a dictionary of descr, fortran_order and shape") from None
    extents = shape if isinstance(shape, tuple) else (None,)
    if type(fortran) is not bool or not all(type(extent) is int and extent >= 0 for extent in extents):
        raise _malformed("the npy header's shape is not a tuple of whole numbers, or fortran_order not a truth value")
    if len(extents) > MAX_RANK:
        raise _malformed(f"the array has rank {len(extents)}; the limit is {MAX_RANK}")
    dtype, swap = _parse_description(description)
    for axis, extent in enumerate(extents):
        if extent > MAX_EXTENT:  # not shown: a header has room for thousands of digits
            raise _malformed(f"axis {axis} of the shape is longer than {MAX_EXTENT}")
    # Empty axes count as 1: NumPy makes no array whose other axes overflow, even where there is nothing to hold.
    if 0 in extents and math.prod(extent or 1 for extent in extents) * ITEMSIZE[dtype] > MAX_EXTENT:
        raise _malformed(f"the axes of shape {list(extents)} that are not empty hold more than {MAX_EXTENT} bytes")
    return dtype, swap, fortran, extents


def _parse_description(description: object) -> tuple[DType, bool]:
    if not isinstance(description, str):
        raise _malformed(f"structured arrays are not taken; dtypes are {', '.join(DTYPES)}")
    order, letters = description[:1], description[1:]
    if letters.startswith("O"):
        raise _malformed(
            f"the array holds pickled Python objects, which are never read; dtypes are {', '.join(DTYPES)}"
        )
    name = _LETTERS.get(letters)
    if name is None or order not in "<>|=" or (order in "|=" and name != "uint8"):
        raise _malformed(f"dtype {description[:32]!r} is not one of {', '.join(DTYPES)}")
    return name, order == ">"  # type: ignore[return-value]


def _malformed(sentence: str) -> Refusal:
    return Refusal("malformed-array", sentence[0].upper() + sentence[1:])


# --- CSV


def from_csv(body: bytes, columns: Sequence[str], limit: int, upload: NpyUpload) -> StoredArray:
    """Store a CSV of at most `limit` bytes as float64: one column as shape (rows,), several as (columns, rows).

    Each column is a series, as the operations take (assets, time). All but a small one is read by a process of its own
    (`app.arrays.table`), so that no CSV takes more of this one than the pieces that `upload` is given.
    """
    memory, cells = limits.CSV_MEMORY + limits.CSV_BYTES * len(body), limit // 2
    order = table.Order(columns, limits.CSV_COLUMNS, cells, memory, limits.CSV_SECONDS)
    if not is_small_csv(body):
        return _read_apart(body, order, upload)
    try:
        series = table.read(body, order)
    except table.Malformed as error:
        raise _malformed_csv(error.detail, error.pointer) from None
    upload.take(npy.header("float64", table.shape(series)))
    for values in series:
        upload.take(values.tobytes())
    return upload.finish()


def is_small_csv(body: bytes) -> bool:
    """Whether reading it takes so little that it needs no turn, nor a process of its own."""
    return len(body) <= limits.CSV_SMALL


def _read_apart(body: bytes, order: table.Order, upload: NpyUpload) -> StoredArray:
    command = [sys.executable, "-I", "-S", table.__file__]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reader:
        assert reader.stdin is not None  # noqa: S101 - pipes, as asked
        assert reader.stdout is not None  # noqa: S101
        with suppress(BrokenPipeError), reader.stdin as sent:
            sent.write(json.dumps(asdict(order)).encode() + b"\n")
            sent.write(body)
        answer = reader.stdout.readline()
        if answer.endswith(b"\n"):
            read = json.loads(answer)
            if "detail" in read:
                raise _malformed_csv(read["detail"], read["pointer"])
            upload.take(npy.header("float64", tuple(read["shape"])))
            while piece := reader.stdout.read(BLOCK):
                upload.take(piece)
                upload.flush()
            if reader.wait() == 0:
                return upload.finish()
    if reader.returncode == -signal.SIGXCPU:
        raise _malformed_csv(f"Reading the CSV takes more than {order.seconds} s of a processor")
    if reader.returncode == -signal.SIGKILL:
        sentence = "The process that read the CSV was killed, as a machine short of memory does"
        raise Refusal("busy", sentence, headers={"Retry-After": "10"})
    raise RuntimeError(f"the process that read a CSV ended with {reader.returncode}")


def _malformed_csv(sentence: str, pointer: str | None = None) -> Refusal:
    return Refusal("malformed-csv", sentence) if pointer is None else refuse_at("malformed-csv", pointer, sentence)


# --- JSON


def from_nested(data: object, dtype: DType, pointer: str, room: int) -> Numbers:
    """Read nested lists of numbers; whole numbers exactly, `null` as NaN in a float dtype; at most `room` numbers."""
    shape: list[int] = []
    node = data
    while isinstance(node, list):
        shape.append(len(node))
        node = node[0] if node else None
        if len(shape) > MAX_RANK:
            raise refuse_at("invalid-request", pointer, f"the lists are nested deeper than {MAX_RANK}")
    if math.prod(shape) > room:
        sentence = (
            f"{math.prod(shape)} numbers of shape {shape} are more than the {room} that inline inputs may still hold; "
            "upload the array with PUT /v1/arrays"
        )
        raise refuse_at("invalid-request", pointer, sentence)
    allowed = {int, float, type(None)} if dtype.startswith("float") else {int}
    rows = [data] if shape else [[data]]
    for depth, extent in enumerate(shape):
        _require_even(rows, extent, leaves=depth == len(shape) - 1, at=(pointer, shape[:depth]))
        if depth < len(shape) - 1:
            rows = list(chain.from_iterable(rows))  # type: ignore[arg-type]
    flat = list(chain.from_iterable(rows))  # type: ignore[arg-type]
    if not set(map(type, flat)) <= allowed:
        place = next(place for place, value in enumerate(flat) if type(value) not in allowed)
        raise refuse_at(
            "invalid-request", _place(pointer, shape, place), f"{_word(flat[place])} is not a number of {dtype}"
        )
    values: list[Any] = flat
    low, high = _range(dtype)
    try:
        with np.errstate(over="ignore"):
            numbers = np.array(values, np.dtype(dtype)).reshape(shape)
        over = np.flatnonzero(np.isinf(numbers))
        if len(over) == 0:
            return numbers
        place = int(over[0])
    except OverflowError:
        place = next(i for i, value in enumerate(values) if value is not None and not low <= value <= high)
    bounds = f"{float(low):.8g} to {float(high):.8g}" if dtype.startswith("float") else f"{low} to {high}"
    sentence = f"{_word(values[place])} is outside {dtype}, which goes from {bounds}"
    raise refuse_at("invalid-request", _place(pointer, shape, place), sentence)


def _range(dtype: DType) -> tuple[int, int]:
    """The least and the greatest number, as whole numbers, which compare exactly with any other."""
    limits = np.finfo(dtype) if dtype.startswith("float") else np.iinfo(dtype)
    return int(limits.min), int(limits.max)


def _require_even(rows: list[Any], extent: int, *, leaves: bool, at: tuple[str, list[int]]) -> None:
    pointer, outer = at
    for place, row in enumerate(rows):
        if not isinstance(row, list):
            sentence = f"{_word(row)} stands where a list of {extent} belongs"
        elif len(row) != extent:
            sentence = f"the row has {len(row)} entries, the first row has {extent}"
        elif leaves and list in map(type, row):
            sentence = "a list stands where a number belongs"
        else:
            continue
        raise refuse_at("invalid-request", _place(pointer, outer, place), sentence)


def _place(pointer: str, shape: Sequence[int], flat: int) -> str:
    """The JSON pointer of an entry, from its place in row-major order."""
    indices = []
    for extent in reversed(shape):
        flat, index = divmod(flat, extent)
        indices.append(index)
    return pointer + "".join(f"/{index}" for index in reversed(indices))


def _word(value: object) -> str:
    """A value as JSON would show it, cut short."""
    words = {None: "null", True: "true", False: "false"}
    text = words[value] if value is None or isinstance(value, bool) else repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def from_file(data: bytes) -> Numbers:
    """An array of the store, whose file was read whole: to map a small one takes longer."""
    info, start = npy.read_header(data)
    return np.frombuffer(data, info.dtype, info.size, start).reshape(info.shape)


def _bytes(numbers: Numbers) -> memoryview:
    """The numbers as bytes in C order, copied only where they are in another."""
    return np.ascontiguousarray(numbers).reshape(-1).view(np.uint8).data


def _oddities(numbers: Numbers) -> tuple[bool, bool]:
    """Whether there is a NaN, whether an infinity."""
    if numbers.dtype.kind != "f" or np.isfinite(numbers).all():
        return False, False
    return bool(np.isnan(numbers).any()), bool(np.isinf(numbers).any())


def _dtype_name(dtype: np.dtype[Any]) -> DType:
    return dtype.name  # type: ignore[return-value]
