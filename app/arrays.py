"""Numbers on their way in and out: .npy, CSV and JSON lists become arrays, arrays become JSON.

Everything here runs in threads. It is the one module of the API that uses NumPy.
"""

import ast
import csv
import io
import math
import tempfile
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from app.errors import Refusal, refuse_at
from kernels.array import DTYPES, ITEMSIZE, ArrayInfo, DType
from workers.store import ArrayWriter, Store, StoredArray

Numbers = np.ndarray[Any, Any]
OpenWriter = Callable[[DType, tuple[int, ...]], ArrayWriter]

MAX_NPY_HEADER = 10_000  # NumPy's own limit (numpy.lib.format._MAX_HEADER_SIZE)
MAX_RANK = 8
MAX_EXTENT = 2**63 - 1  # what an array's sizes are counted with
BLOCK = 1 << 20  # a multiple of every item's size
CSV_ROWS = 4096

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


def store(into: Store, owner: str, numbers: Numbers, info: ArrayInfo, ttl: float) -> StoredArray:
    """Put an array that is in memory into the store."""
    with into.writer(owner, info.dtype, info.shape, ttl) as writer:
        writer.write(_bytes(numbers))
        return writer.commit(has_nan=info.has_nan, has_inf=info.has_inf)


# --- .npy (NumPy Enhancement Proposal 1, format versions 1.0, 2.0 and 3.0)


class NpyUpload:
    """An .npy file that arrives in pieces and goes to the store in blocks; no more than two blocks are held.

    `take` only copies, so that an event loop may call it; `write`, `finish` and `discard` belong in a thread.
    Big-endian numbers are swapped and Fortran order is turned into C order (through a scratch file), so that what is
    stored is always C-ordered and little-endian. Whoever does not finish it must discard it.
    """

    def __init__(self, open_writer: OpenWriter, limit: int, length: int | None, scratch: Path) -> None:
        self._open_writer = open_writer
        self._limit = limit
        self._length = length
        self._scratch_directory = scratch
        self.end: int | None = None  # bytes of the whole file, known once its header has come
        self._head = b""
        self._received = self._filled = 0  # bytes of numbers: in all, in the block
        self._block = self._other = memoryview(bytearray())
        self._writer: ArrayWriter | None = None
        self._scratch: BinaryIO | None = None
        self._has_nan = self._has_inf = False

    def take(self, piece: bytes) -> Iterator[memoryview]:
        """Take the next bytes of the file; gives each block but the last, to be written before the next one is."""
        if self.end is None:
            self._head += piece
            start = _header_end(self._head)
            if start is None:
                return
            self._open(start)
            piece = self._head[start:]
        rest = memoryview(piece)
        self._received += len(rest)
        if self._received > self._bytes:
            raise self.overlong()
        while rest:
            if self._filled == len(self._block):
                yield self._block
                self._block, self._other, self._filled = self._other, self._block, 0
            fitting = rest[: len(self._block) - self._filled]
            self._block[self._filled : self._filled + len(fitting)] = fitting
            self._filled += len(fitting)
            rest = rest[len(fitting) :]

    def write(self, block: memoryview) -> None:
        """Look at the numbers of a block, hash and write them."""
        if self._writer is None:
            self._writer = self._open_writer(self._dtype, self._shape).__enter__()
            if self._fortran:
                self._scratch = tempfile.TemporaryFile(dir=self._scratch_directory)  # noqa: SIM115 - closed on exit
        numbers = np.frombuffer(block, np.dtype(self._dtype))
        if self._swap:
            block = _bytes(numbers.byteswap(inplace=True))
        has_nan, has_inf = _oddities(numbers)
        self._has_nan |= has_nan
        self._has_inf |= has_inf
        (self._scratch or self._writer).write(block)

    def finish(self) -> StoredArray:
        """Write the last block and publish the array; refuses a file that ended early."""
        if self.end is None:
            start = "starts with" if self._head.startswith(_MAGIC[: len(self._head)]) else "does not start with"
            raise _malformed(
                f"the body ends after {len(self._head)} bytes inside the npy header; it {start} the magic string"
            )
        if self._received < self._bytes:
            raise _malformed(
                f"the header declares {self._declared}, {self._bytes} bytes of numbers; the body holds {self._received}"
            )
        self.write(self._block[: self._filled])
        assert self._writer is not None  # noqa: S101 - opened by the write
        if self._scratch is not None:
            self._turn(self._scratch, self._writer)
        stored = self._writer.commit(has_nan=self._has_nan, has_inf=self._has_inf)
        self.discard()
        return stored

    def overlong(self) -> Refusal:
        return _malformed(f"the header declares {self._declared}, {self._bytes} bytes of numbers; the body holds more")

    def discard(self) -> None:
        """Delete what came, unless it was published."""
        if self._scratch is not None:
            self._scratch.close()
        if self._writer is not None:
            self._writer.__exit__(None, None, None)

    def _open(self, start: int) -> None:
        self._dtype, self._swap, fortran, self._shape = _parse_header(self._head[:start])
        self._bytes = math.prod(self._shape) * ITEMSIZE[self._dtype]
        self._declared = f"{self._dtype} of shape {list(self._shape)}"
        if self._bytes > self._limit:
            raise Refusal("array-too-large", f"{self._declared} is {self._bytes} bytes; the limit is {self._limit}")
        if self._length is not None and self._length - start != self._bytes:
            raise _malformed(
                f"the header declares {self._declared}, {self._bytes} bytes of numbers; "
                f"the body holds {self._length - start}"
            )
        self.end = start + self._bytes
        self._fortran = fortran and self._bytes > 0 and sum(extent > 1 for extent in self._shape) > 1
        size = min(self._bytes, BLOCK)
        self._block, self._other = memoryview(bytearray(size)), memoryview(bytearray(size))

    def _turn(self, scratch: BinaryIO, writer: ArrayWriter) -> None:
        """Write the scratch file's column-major numbers in row-major order, some rows at a time."""
        scratch.flush()
        columns = np.memmap(scratch, np.dtype(self._dtype), "r", shape=self._shape, order="F")
        rows = max(1, BLOCK * self._shape[0] // self._bytes)
        for first in range(0, self._shape[0], rows):
            writer.write(_bytes(columns[first : first + rows]))


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
        header = ast.literal_eval(head[prefix:].decode("latin-1" if head[6] < 3 else "utf-8").strip())
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


def from_csv(body: bytes, columns: Sequence[str]) -> Numbers:
    """Read a CSV (RFC 4180, UTF-8) into float64: one column as shape (rows,), several as (columns, rows).

    Each column is a series, as the operations take (assets, time). A first row that holds a word is a header; without
    one, `columns` are numbers counted from 0. An empty cell is NaN.
    """
    try:
        body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _malformed_csv(f"Byte {error.start} of the CSV is not UTF-8") from None
    lines = io.TextIOWrapper(io.BytesIO(body.rstrip(b"\r\n")), "utf-8-sig", newline="")
    reader = csv.reader(lines, strict=True)
    top = next(_read_rows(reader, 1), None)
    if top is None or not body.removeprefix(b"\xef\xbb\xbf").strip():
        raise _malformed_csv("The CSV has no rows")
    width = len(top[0])
    has_header = any(cell.strip() and _number(cell) is None for cell in top[0])
    names = [cell.strip() for cell in top[0]] if has_header else [str(place) for place in range(width)]
    chosen = _choose(names, columns)
    series = [array("d") for _ in chosen]
    place = 1
    for rows in chain([] if has_header else [top], _read_rows(reader, CSV_ROWS)):
        first, place = place + has_header, place + len(rows)
        if set(map(len, rows)) != {width}:
            uneven = next(row for row, cells in enumerate(rows) if len(cells) != width)
            raise _malformed_csv(f"Row {first + uneven} has {len(rows[uneven])} cells, row 1 has {width}")
        for values, column in zip(series, chosen, strict=True):
            values.extend(_column(rows, first, column, names))
    if not series[0]:
        raise _malformed_csv("The CSV has a header and no rows of numbers")
    numbers = np.stack([np.frombuffer(values) for values in series])
    return numbers[0] if len(chosen) == 1 else numbers


def _read_rows(reader: Iterator[list[str]], most: int) -> Iterator[list[list[str]]]:
    """The rows, `most` at a time, so that few of their many small strings live at once."""
    try:
        while rows := [row or [""] for row in islice(reader, most)]:  # an empty line is one empty cell
            yield rows
    except csv.Error as error:
        raise _malformed_csv(f"The CSV cannot be read: {error}") from None


def _column(rows: list[list[str]], first: int, column: int, names: list[str]) -> "array[float]":
    cells = [row[column] for row in rows]
    if not any("_" in cell for cell in cells):
        with suppress(ValueError):
            return array("d", map(float, cells))
    values = array("d")
    for place, cell in enumerate(cells, first):
        value = _number(cell) if cell.strip() else math.nan
        if value is None:
            raise _malformed_csv(
                f"Row {place}, column {names[column]!r}: {cell[:40]!r} is not a number; "
                f"choose columns with ?columns={names[-1]}"
            )
        values.append(value)
    return values


def _choose(names: list[str], columns: Sequence[str]) -> list[int]:
    if not columns:
        return list(range(len(names)))
    for name in columns:
        if name not in names:
            raise refuse_at(
                "malformed-csv", "/columns", f"There is no column {name!r}; there are {', '.join(names[:50])}"
            )
        if names.count(name) > 1:
            raise refuse_at("malformed-csv", "/columns", f"{names.count(name)} columns are called {name!r}")
    return [names.index(name) for name in columns]


def _number(cell: str) -> float | None:
    try:
        return None if "_" in cell else float(cell)  # Python reads 1_000 as a thousand, other programs do not
    except ValueError:
        return None


def _malformed_csv(sentence: str) -> Refusal:
    return Refusal("malformed-csv", sentence)


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
    try:
        with np.errstate(over="ignore"):  # 1e300 is inf in float32, and inf is refused by name later
            return np.array(flat, np.dtype(dtype)).reshape(shape)
    except OverflowError:
        low, high = _range(dtype)
        values: list[Any] = flat
        place = next(i for i, value in enumerate(values) if value is not None and not low <= value <= high)
        bounds = f"{float(low):g} to {float(high):g}" if dtype.startswith("float") else f"{low} to {high}"
        sentence = f"{_word(flat[place])} is outside {dtype}, which goes from {bounds}"
        raise refuse_at("invalid-request", _place(pointer, shape, place), sentence) from None


def _range(dtype: DType) -> tuple[int, int]:
    """The least and the greatest number, as whole numbers, which compare exactly with any other."""
    if dtype.startswith("float"):
        greatest = int(np.finfo(np.float64).max)  # a float32 is read as a float64 first
        return -greatest, greatest
    limits = np.iinfo(dtype)
    return int(limits.min), int(limits.max)


def _require_even(rows: list[Any], extent: int, *, leaves: bool, at: tuple[str, list[int]]) -> None:
    pointer, outer = at
    for place, row in enumerate(rows):
        where = _place(pointer, outer, place)
        if not isinstance(row, list):
            raise refuse_at("invalid-request", where, f"{_word(row)} stands where a list of {extent} belongs")
        if len(row) != extent:
            raise refuse_at("invalid-request", where, f"the row has {len(row)} entries, the first row has {extent}")
        if leaves and list in set(map(type, row)):
            raise refuse_at("invalid-request", where, "a list stands where a number belongs")


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


def load(file: Path) -> Numbers:
    """An array of the store, mapped."""
    numbers: Numbers = np.load(file, mmap_mode="r", allow_pickle=False)
    return numbers


def to_nested(numbers: Numbers) -> Any:
    """Nested lists; NaN becomes None and an infinity a string, which JSON has no numbers for."""
    if numbers.dtype.kind != "f" or np.isfinite(numbers).all():
        return numbers.tolist()
    loose = numbers.astype(object)
    loose[np.isnan(numbers)] = None
    loose[np.isposinf(numbers)] = "Infinity"
    loose[np.isneginf(numbers)] = "-Infinity"
    return loose.tolist()


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
