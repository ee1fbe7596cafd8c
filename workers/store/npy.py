"""The header of an .npy file, written and read without NumPy.

Format: NumPy Enhancement Proposal 1 / `numpy.lib.format`, versions 1.0, 2.0 and 3.0. Every file of ours is of version
1.0, C-ordered and little-endian, and its data begin at a multiple of 64 bytes, so that a memory map of it is aligned.
"""

import ast
import math
from dataclasses import dataclass
from functools import lru_cache
from mmap import mmap

from warpdesk.models import DTYPES, DType
from warpdesk_server.kernels.array import ITEMSIZE, ArrayInfo

MAX_HEADER = 10_000  # NumPy's own limit (numpy.lib.format._MAX_HEADER_SIZE)
MAX_RANK = 8
MAX_EXTENT = 2**63 - 1  # the largest signed 64-bit number, in which NumPy counts an array's sizes

MAGIC = b"\x93NUMPY"

_VERSION = b"\x01\x00"  # of our own files
_DESCR: dict[str, str] = {
    "float64": "<f8",
    "float32": "<f4",
    "int64": "<i8",
    "int32": "<i4",
    "uint64": "<u8",
    "uint32": "<u4",
    "uint8": "|u1",
}
_DTYPE: dict[str, DType] = {_DESCR[dtype][1:]: dtype for dtype in DTYPES}  # by what follows the order of bytes


class Malformed(ValueError):
    """The bytes are not the header of an array's .npy file, or of one with an unknown dtype."""


@dataclass(frozen=True)
class Header:
    """The parsed header of an array's .npy file: dtype, byte order, memory order and shape."""

    dtype: DType
    swapped: bool  # big-endian
    fortran: bool  # column-major
    shape: tuple[int, ...]


def header(dtype: DType, shape: tuple[int, ...]) -> bytes:
    """The header bytes of a stored array's .npy file, which come before its data."""
    text = f"{{'descr': {_DESCR[dtype]!r}, 'fortran_order': False, 'shape': {shape!r}, }}"
    padding = -(len(MAGIC) + len(_VERSION) + 2 + len(text) + 1) % 64
    body = text.encode("latin1") + b" " * padding + b"\n"
    return MAGIC + _VERSION + len(body).to_bytes(2, "little") + body


def read_header(data: bytes | bytearray | mmap) -> tuple[ArrayInfo, int]:
    """The array description of one of the store's own .npy files, without NaN and infinity marks, and the offset of its
    data.

    Raises ValueError when the file does not begin with a header made by `header`.
    """
    size = header_size(bytes(data[:12]))
    if size is None:
        raise Malformed("the file ends in its npy header")
    found = parse(bytes(data[:size]))
    if found.fortran or found.swapped:
        raise ValueError(f"the file holds swapped={found.swapped}, fortran_order={found.fortran}")
    return ArrayInfo(found.dtype, found.shape), size


def header_size(head: bytes) -> int | None:
    """The length of the header of an array's .npy file, read from its first bytes; None if there are too few of them.
    Raises Malformed."""
    if head[:6] != MAGIC[: len(head)]:
        raise Malformed("the body does not start with the npy magic string \\x93NUMPY")
    if len(head) < 8:
        return None
    version = head[6]
    if version not in (1, 2, 3) or head[7] != 0:
        raise Malformed(f"npy format version {version}.{head[7]} is not 1.0, 2.0 or 3.0")
    prefix = 10 if version == 1 else 12
    if len(head) < prefix:
        return None
    length = int.from_bytes(head[8:prefix], "little")
    if length > MAX_HEADER:
        raise Malformed(f"the npy header says it is {length} bytes long; the limit is {MAX_HEADER}")
    return prefix + length


@lru_cache(maxsize=256)  # jobs that come together have arrays of one shape
def parse(head: bytes) -> Header:
    """Parse the whole header of an array's .npy file. Raises Malformed."""
    prefix = 10 if head[6] == 1 else 12
    try:
        text = head[prefix:].decode("latin-1" if head[6] < 3 else "utf-8").lstrip(" \t")
        literal = ast.parse(text, mode="eval").body
        if not isinstance(literal, ast.Dict) or len(literal.keys) != 3:  # a key more, or one twice
            raise ValueError(text)
        header = ast.literal_eval(literal)
        description, fortran, shape = header["descr"], header["fortran_order"], header["shape"]
    except (SyntaxError, ValueError, TypeError, KeyError, MemoryError, RecursionError):
        raise Malformed("the npy header is not a dictionary of descr, fortran_order and shape") from None
    extents = shape if isinstance(shape, tuple) else (None,)
    if type(fortran) is not bool or not all(type(extent) is int and extent >= 0 for extent in extents):
        raise Malformed("the npy header's shape is not a tuple of whole numbers, or fortran_order not a truth value")
    if len(extents) > MAX_RANK:
        raise Malformed(f"the array has rank {len(extents)}; the limit is {MAX_RANK}")
    dtype, swapped = _parse_description(description)
    for axis, extent in enumerate(extents):
        if extent > MAX_EXTENT:  # not shown: a header has room for thousands of digits
            raise Malformed(f"axis {axis} of the shape is longer than {MAX_EXTENT}")
    # Empty axes count as 1: NumPy makes no array whose other axes overflow, even where there is nothing to hold.
    if 0 in extents and math.prod(extent or 1 for extent in extents) * ITEMSIZE[dtype] > MAX_EXTENT:
        raise Malformed(f"the axes of shape {list(extents)} that are not empty hold more than {MAX_EXTENT} bytes")
    return Header(dtype, swapped, fortran, extents)


def _parse_description(description: object) -> tuple[DType, bool]:
    if not isinstance(description, str):
        raise Malformed(f"structured arrays are not taken; dtypes are {', '.join(DTYPES)}")
    order, letters = description[:1], description[1:]
    if letters.startswith("O"):
        raise Malformed(f"the array holds pickled Python objects, which are never read; dtypes are {', '.join(DTYPES)}")
    dtype = _DTYPE.get(letters)
    if dtype is None or order not in "<>|=" or (order in "|=" and dtype != "uint8"):
        raise Malformed(f"dtype {description[:32]!r} is not one of {', '.join(DTYPES)}")
    return dtype, order == ">"
