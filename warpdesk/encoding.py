"""How numbers travel: small arrays within JSON, large ones and files in chunks, answers as .npy."""

import io
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from numpy.typing import ArrayLike, NDArray

INLINE = 4096  # numbers: below, JSON costs less than a second request
CHUNK = 1 << 20

NPY = "application/x-npy"
CSV = "text/csv"
MEDIA_TYPES = {".npy": NPY, ".csv": CSV}

AnyArray = NDArray[Any]


@dataclass(frozen=True)
class Body(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A body that either client sends in chunks, so that a large array is never copied whole; `size` is in bytes."""

    media_type: str
    size: int
    chunks: Callable[[], Iterator[bytes]]

    def __iter__(self) -> Iterator[bytes]:
        yield from self.chunks()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self.chunks():
            yield chunk


def array_body(array: AnyArray) -> Body:
    array = plain(array)
    written = io.BytesIO()
    np.lib.format.write_array_header_1_0(written, np.lib.format.header_data_from_array_1_0(array))
    header, data = written.getvalue(), memoryview(array.reshape(-1).view(np.uint8).data)

    def chunks() -> Iterator[bytes]:
        yield header
        for start in range(0, len(data), CHUNK):
            yield bytes(data[start : start + CHUNK])

    return Body(NPY, len(header) + len(data), chunks)


def file_body(path: Path) -> Body:
    if path.suffix not in MEDIA_TYPES:
        raise ValueError(f"{path.name} is none of {', '.join(MEDIA_TYPES)}")

    def chunks() -> Iterator[bytes]:
        with path.open("rb") as file:
            while chunk := file.read(CHUNK):
                yield chunk

    return Body(MEDIA_TYPES[path.suffix], path.stat().st_size, chunks)


def as_array(value: ArrayLike, dtypes: tuple[str, ...]) -> AnyArray:
    """An array is sent as it is; anything else becomes the operation's first dtype where NumPy's guess is not taken."""
    array = np.asarray(value)
    if not isinstance(value, np.ndarray) and array.dtype.name not in dtypes:
        array = np.asarray(value, dtype=dtypes[0])
    return plain(array)


def plain(array: AnyArray) -> AnyArray:
    """C order and little-endian, without a copy where it is so already."""
    if array.dtype.hasobject:
        raise TypeError(f"an array of dtype {array.dtype} holds Python objects and cannot be sent")
    return np.asarray(array, dtype=array.dtype.newbyteorder("<"), order="C")


def fits_json(array: AnyArray) -> bool:
    """Few numbers, none of them an infinity, which JSON does not have."""
    return array.size <= INLINE and not (array.dtype.kind == "f" and np.isinf(array).any())


def as_json(array: AnyArray) -> Any:
    """Nested lists, with null for NaN."""
    if array.dtype.kind == "f" and np.isnan(array).any():
        boxed = array.astype(object)
        boxed[np.isnan(array)] = None
        return boxed.tolist()
    return array.tolist()


def from_npy(content: bytes) -> AnyArray:
    array: AnyArray = np.load(io.BytesIO(content), allow_pickle=False)
    return array
