"""NumPy arrays of the API: what they hold, and their way into the store and out of its files."""

from typing import Any

import numpy as np

from warpdesk.models import DType
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.workers.store import npy
from warpdesk_server.workers.store.protocol import Store, StoredArray

Numbers = np.ndarray[Any, Any]


def describe(numbers: Numbers) -> ArrayInfo:
    """What a validator needs to know of an array."""
    has_nan, has_inf = oddities(numbers)
    return ArrayInfo(_dtype_name(numbers.dtype), numbers.shape, has_nan, has_inf)


def store(
    into: Store, owner: str, numbers: Numbers, info: ArrayInfo, ttl: float, *, unique: bool = False
) -> StoredArray:
    """Put an array that is in memory into the store; a unique one under an id that no other array has."""
    with into.writer(owner, info.dtype, info.shape, ttl, unique=unique) as writer:
        writer.take(as_bytes(numbers))
        return writer.commit(has_nan=info.has_nan, has_inf=info.has_inf)


def from_file(data: bytes) -> Numbers:
    """An array of the store, whose file was read whole: to map a small one takes longer."""
    info, start = npy.read_header(data)
    return np.frombuffer(data, info.dtype, info.size, start).reshape(info.shape)


def as_bytes(numbers: Numbers) -> memoryview:
    """The numbers as bytes in C order, copied only where they are in another."""
    return np.ascontiguousarray(numbers).reshape(-1).view(np.uint8).data


def oddities(numbers: Numbers) -> tuple[bool, bool]:
    """Whether there is a NaN, whether an infinity."""
    if numbers.dtype.kind != "f" or np.isfinite(numbers).all():
        return False, False
    return bool(np.isnan(numbers).any()), bool(np.isinf(numbers).any())


def _dtype_name(dtype: np.dtype[Any]) -> DType:
    return dtype.name  # type: ignore[return-value]
