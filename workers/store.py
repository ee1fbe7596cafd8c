"""Keep arrays and results as files: streamed in, mapped by workers, erased when their time is over."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from kernels.array import ArrayInfo, DType


@dataclass(frozen=True)
class StoredArray:
    id: str  # "sha256:" + HMAC-SHA256(the owner's secret, dtype, shape and content), hexadecimal
    info: ArrayInfo
    created_at: float
    expires_at: float


class ArrayWriter(Protocol):
    """An array on its way in. Use as a context manager: leaving it without `commit` deletes what was written."""

    def write(self, chunk: bytes | memoryview) -> None:
        """Append C-ordered little-endian bytes; raises ValueError past the size the shape declares."""

    def commit(self, *, has_nan: bool, has_inf: bool) -> StoredArray:
        """Publish the array under its id; raises ValueError when bytes are missing."""

    def __enter__(self) -> "ArrayWriter": ...

    def __exit__(self, *error: object) -> None: ...


class Store(Protocol):
    """Where arrays and results live. An owner is the id of an API key; another owner's array does not exist."""

    def writer(self, owner: str, dtype: DType, shape: tuple[int, ...], ttl: float) -> ArrayWriter: ...

    def find(self, owner: str, array_id: str) -> StoredArray | None: ...

    def path(self, owner: str, array_id: str) -> Path:
        """The array as an .npy file."""

    def delete(self, owner: str, array_id: str) -> bool: ...

    def new_result(self, job_id: str, attempt: int) -> Path:
        """An empty directory for one attempt; its name (`Path.name`) is what a Succeeded outcome carries."""

    def result(self, name: str) -> Path:
        """The directory: `result.json` (workers.codec.ResultDocument) and one .npy file per array output."""

    def delete_result(self, name: str) -> None: ...

    def adopt(self, owner: str, file: Path, array_id: str, info: ArrayInfo, ttl: float) -> StoredArray:
        """Publish a result's file as an array of its owner (a hard link, no copy)."""

    def sweep(self, in_use: Callable[[str, str], bool]) -> int:
        """Delete arrays past their time that no live job reads, abandoned uploads and orphaned results; returns how many."""


class SpoolStore:
    """A directory of memory-mappable .npy files, mode 0700, on the machine's own disk."""

    def __init__(self, root: Path) -> None: ...
