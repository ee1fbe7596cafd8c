"""The description of an array: its dtype, shape and what validation needs, without its numbers and without NumPy."""

from dataclasses import dataclass
from math import prod

from warpdesk.models import DType

ITEMSIZE: dict[str, int] = {
    "float64": 8,
    "float32": 4,
    "int64": 8,
    "int32": 4,
    "uint64": 8,
    "uint32": 4,
    "uint8": 1,
}


@dataclass(frozen=True)
class ArrayInfo:
    """The description of an array for operations' checks, recorded when it is stored. All arrays are C-ordered and
    little-endian."""

    dtype: DType
    shape: tuple[int, ...]
    has_nan: bool = False
    has_inf: bool = False

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * ITEMSIZE[self.dtype]
