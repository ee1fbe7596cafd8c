"""Helpers for the API's NumPy arrays: describe them, store them, and read them from the store's files."""

from typing import Any

import numpy as np

from warpdesk.models import DType
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.workers.store import npy
from warpdesk_server.workers.store.protocol import Store, StoredArray

Numbers = np.ndarray[Any, Any]


def describe(numbers: Numbers) -> ArrayInfo:
    """The dtype, shape and NaN or infinity flags of an inline array from a request, for validators."""
    has_nan, has_inf = oddities(numbers)
    return ArrayInfo(_dtype_name(numbers.dtype), numbers.shape, has_nan, has_inf)


def store(
    into: Store, owner: str, numbers: Numbers, info: ArrayInfo, ttl: float, *, unique: bool = False
) -> StoredArray:
    """Write an inline array of a request to the store. With `unique`, its id is one that no other array has."""
    with into.writer(owner, info.dtype, info.shape, ttl, unique=unique) as writer:
        writer.take(as_bytes(numbers))
        return writer.commit(has_nan=info.has_nan, has_inf=info.has_inf)


def from_file(data: bytes) -> Numbers:
    """Parse an array for a response of the API from a store file's bytes. The file is read whole, since mapping a
    small one takes longer."""
    info, start = npy.read_header(data)
    return np.frombuffer(data, info.dtype, info.size, start).reshape(info.shape)


def as_bytes(numbers: Numbers) -> memoryview:
    """The bytes of an uploaded or inline array's numbers in C order, copied only if it has another order."""
    return np.ascontiguousarray(numbers).reshape(-1).view(np.uint8).data


def oddities(numbers: Numbers) -> tuple[bool, bool]:
    """Whether an uploaded or inline array has a NaN, and whether it has an infinity."""
    if numbers.dtype.kind != "f" or np.isfinite(numbers).all():
        return False, False
    return bool(np.isnan(numbers).any()), bool(np.isinf(numbers).any())


def _dtype_name(dtype: np.dtype[Any]) -> DType:
    return dtype.name  # type: ignore[return-value]
