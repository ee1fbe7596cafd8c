"""HTTP request bodies for array uploads: an .npy in chunks, or a file unchanged."""

import io
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np

from warpdesk.arrays import AnyArray, plain

CHUNK = 1 << 20

NPY = "application/x-npy"
CSV = "text/csv"
MEDIA_TYPES = {".npy": NPY, ".csv": CSV}


@dataclass(frozen=True)
class ChunkedBody(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A request body that both clients send in chunks: a large array is never copied whole. `size` is in bytes."""

    media_type: str
    size: int
    chunks: Callable[[], Iterator[bytes]]

    @property
    def headers(self) -> dict[str, str]:
        return {"Content-Type": self.media_type, "Content-Length": str(self.size)}

    def __iter__(self) -> Iterator[bytes]:
        yield from self.chunks()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self.chunks():
            yield chunk


def array_body(array: AnyArray) -> ChunkedBody:
    array = plain(array)
    written = io.BytesIO()
    np.lib.format.write_array_header_1_0(written, np.lib.format.header_data_from_array_1_0(array))
    return memory_body(NPY, array, written.getvalue())


def memory_body(media_type: str, array: AnyArray, header: bytes = b"") -> ChunkedBody:
    """The client's request body of a header and the little-endian numbers of an array."""
    data = memoryview(plain(array).reshape(-1).view(np.uint8).data)

    def chunks() -> Iterator[bytes]:
        yield header
        for start in range(0, len(data), CHUNK):
            yield bytes(data[start : start + CHUNK])

    return ChunkedBody(media_type, len(header) + len(data), chunks)


def file_body(path: Path) -> ChunkedBody:
    if path.suffix not in MEDIA_TYPES:
        raise ValueError(f"{path.name} is none of {', '.join(MEDIA_TYPES)}")

    def chunks() -> Iterator[bytes]:
        with path.open("rb") as file:
            while chunk := file.read(CHUNK):
                yield chunk

    return ChunkedBody(MEDIA_TYPES[path.suffix], path.stat().st_size, chunks)
