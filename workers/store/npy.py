"""The header of an .npy file, version 1.0, written and read without NumPy.

Format: NumPy Enhancement Proposal 1 / `numpy.lib.format`. Every file of ours is C-ordered and little-endian,
and its data begin at a multiple of 64 bytes, so that a memory map of it is aligned.
"""

import ast
from functools import lru_cache
from mmap import mmap
from typing import cast

from warpdesk_server.kernels.array import DTYPES, ArrayInfo, DType

_MAGIC = b"\x93NUMPY\x01\x00"
_START = len(_MAGIC) + 2  # and the length of what follows
_DESCR: dict[str, str] = {
    "float64": "<f8",
    "float32": "<f4",
    "int64": "<i8",
    "int32": "<i4",
    "uint64": "<u8",
    "uint32": "<u4",
    "uint8": "|u1",
}
_DTYPE: dict[str, DType] = {_DESCR[dtype]: dtype for dtype in DTYPES}


def header(dtype: DType, shape: tuple[int, ...]) -> bytes:
    """The bytes before the data."""
    text = f"{{'descr': {_DESCR[dtype]!r}, 'fortran_order': False, 'shape': {shape!r}, }}"
    padding = -(len(_MAGIC) + 2 + len(text) + 1) % 64
    body = text.encode("latin1") + b" " * padding + b"\n"
    return _MAGIC + len(body).to_bytes(2, "little") + body


def read_header(data: bytes | bytearray | mmap) -> tuple[ArrayInfo, int]:
    """What one of our own files holds (without its NaN and infinity marks), and where its data begin.

    Raises ValueError when the file is not one `header` began.
    """
    start = bytes(data[:_START])
    if len(start) < _START or not start.startswith(_MAGIC):
        raise ValueError("the file does not begin with an npy 1.0 header")
    end = _START + int.from_bytes(start[len(_MAGIC) :], "little")
    return _parsed(bytes(data[_START:end])), end


@lru_cache(maxsize=256)  # jobs that come together have arrays of one shape
def _parsed(text: bytes) -> ArrayInfo:
    fields = ast.literal_eval(text.decode("latin1"))
    if fields["fortran_order"] or fields["descr"] not in _DTYPE:
        raise ValueError(f"the file holds {fields['descr']}, fortran_order={fields['fortran_order']}")
    return ArrayInfo(_DTYPE[fields["descr"]], cast(tuple[int, ...], fields["shape"]))
