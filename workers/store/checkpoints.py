"""What jobs keep in a store before they are done: checkpoints of tasks, and partial results of shards.

Each is one file, which is whole before anybody hears of it, and a checkpoint is on the disk. A checkpoint's name is
"<attempt>.<step>". The job's record in Redis names the latest one, which only the attempt that runs can change: what a
worker writes that has lost its claim is not read. A shard's file is "<number>.1", whoever computed it: its bytes are
the same.
"""

import errno
import io
import os
import re
import secrets
import shutil
from collections.abc import Callable, Generator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from warpdesk.durable import force
from warpdesk_server.workers.store.files import unlink

_NAME = re.compile(r"[0-9]{1,9}\.[0-9]{1,15}")

Write = Callable[[BinaryIO], None]


def checkpoint_name(attempt: int, step: int) -> str:
    """The name of the checkpoint that an attempt makes after a step."""
    return f"{attempt}.{step}"


def partial_name(number: int) -> str:
    """The name of the file with the arrays of a job's shard of that number."""
    return f"{number}.1"


class CheckpointFiles:
    """The checkpoints and partial results in a store's directory: a folder for each job."""

    def __init__(self, root: Path, *, forced: bool) -> None:
        self._root, self._forced = root, forced
        root.mkdir(mode=0o700, exist_ok=True)

    def keep(self, job_id: str, name: str, write: Write, most: int) -> None:
        """Store what `write` writes as a job's checkpoint. Of the others the latest is kept, and no more.

        Two, because Redis may not have heard of this one yet. Raises OSError, with EFBIG if it has more than `most`
        bytes.
        """
        place, folder = _place(name), self._root / job_id
        if folder.exists():
            for left in folder.glob("*.part"):  # by a process that was killed
                unlink(left)
        self._put(job_id, name, write, most, forced=self._forced)
        if self._forced:
            force(folder, self._root)
        for older in [other for other in self._places(job_id) if other != place][1:]:
            unlink(folder / checkpoint_name(*older))

    def keep_shard(self, job_id: str, name: str, write: Write, most: int) -> None:
        """Store what `write` writes as the arrays of a job's shard. Raises OSError as `keep` does.

        They are not forced to the disk: what a power cut takes is computed again.
        """
        self._put(job_id, name, write, most, forced=False)

    def _put(self, job_id: str, name: str, write: Write, most: int, *, forced: bool) -> None:
        folder = self._root / job_id
        folder.mkdir(mode=0o700, exist_ok=True)
        unfinished = folder / f"{secrets.token_hex(8)}.part"
        try:
            write_file(unfinished, write, most, forced=forced)
            unfinished.rename(folder / name)
        finally:
            unlink(unfinished)

    def open(self, job_id: str, name: str) -> Generator[BinaryIO]:
        """The stored checkpoint of that name, and then the others, the latest first.

        They are for whoever finds it damaged or gone. A later one may be there too: its attempt could not tell Redis.
        """
        named = _place(name)
        places = self._places(job_id)
        for place in [named, *(other for other in places if other != named)]:
            with suppress(FileNotFoundError), (self._root / job_id / checkpoint_name(*place)).open("rb") as file:
                yield file

    def delete(self, job_id: str) -> None:
        """Delete all stored checkpoints of a job.

        Workers that compute shards of it may write meanwhile. Its folder is moved to where they do not begin to; what
        was begun before goes with the next sweep.
        """
        unwanted = self._root / f"{job_id}.{secrets.token_hex(8)}"
        try:
            (self._root / job_id).rename(unwanted)
            shutil.rmtree(unwanted)
        except FileNotFoundError:
            pass
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                raise

    def jobs(self) -> list[str]:
        """The ids of the jobs that have stored checkpoints."""
        return [folder.name for folder in self._root.iterdir()]

    def _places(self, job_id: str) -> list[tuple[int, int]]:
        """Attempt and step of a job's stored checkpoints, the latest first."""
        with suppress(FileNotFoundError):
            names = [file.name for file in (self._root / job_id).iterdir()]
            return sorted((_place(name) for name in names if _NAME.fullmatch(name)), reverse=True)
        return []


class _Bounded(io.FileIO):
    """The file of a store's checkpoint that takes no more than so many bytes."""

    def __init__(self, path: Path, most: int) -> None:
        super().__init__(path, "xb")
        self._most = most

    def write(self, data: Any) -> int:
        if self.tell() + memoryview(data).nbytes > self._most:
            raise OSError(errno.EFBIG, f"a checkpoint takes more than the {self._most} bytes that the task declares")
        return super().write(data)


def write_file(path: Path, write: Write, most: int, *, forced: bool) -> None:
    """Make a file of a store's checkpoint. Raises OSError, with EFBIG for more than `most` bytes."""
    with io.BufferedWriter(_Bounded(path, most)) as file:
        write(file)
        file.flush()
        if forced:
            os.fsync(file.fileno())


def _place(name: str) -> tuple[int, int]:
    """Attempt and step in the name of a stored checkpoint. Raises ValueError for anything else."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of a checkpoint")
    attempt, step = name.split(".")
    return int(attempt), int(step)
