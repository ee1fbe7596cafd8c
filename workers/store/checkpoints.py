"""Checkpoints of tasks in a store: one file for each, which is whole and on the disk before anybody hears of it.

A checkpoint's name is "<attempt>.<step>". The job's record in Redis names the latest one, which only the attempt that
runs can change: what a worker writes that has lost its claim is not read.
"""

import errno
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from warpdesk.durable import force
from warpdesk_server.workers.store.files import unlink

_NAME = re.compile(r"[0-9]{1,9}\.[0-9]{1,15}")
_KEPT = 2  # checkpoints of a job: Redis may lose its last second, and with it the name of the last one

Write = Callable[[BinaryIO], None]


def checkpoint_name(attempt: int, step: int) -> str:
    """The name of the checkpoint that an attempt makes after a step."""
    return f"{attempt}.{step}"


class CheckpointFiles:
    """The checkpoints in a store's directory: a folder for each job."""

    def __init__(self, root: Path, *, forced: bool) -> None:
        self._root, self._forced = root, forced
        root.mkdir(mode=0o700, exist_ok=True)

    def keep(self, job_id: str, name: str, write: Write, most: int) -> None:
        """Store what `write` writes as a job's checkpoint. Older ones are deleted, but for one.

        Raises OSError, with EFBIG if it has more than `most` bytes.
        """
        place, folder = _place(name), self._root / job_id
        folder.mkdir(mode=0o700, exist_ok=True)
        unfinished = folder / f"{secrets.token_hex(8)}.part"
        try:
            write_file(unfinished, write, most, forced=self._forced)
            unfinished.rename(folder / name)
        finally:
            unlink(unfinished)
        if self._forced:
            force(folder, self._root)
        for older in self._places(job_id)[_KEPT:]:
            if older < place:
                unlink(folder / checkpoint_name(*older))

    def open(self, job_id: str, name: str) -> Iterator[BinaryIO]:
        """The stored checkpoint of that name, and then those before it: for whoever finds it damaged or gone."""
        named = _place(name)
        for place in self._places(job_id):
            if place <= named:
                with suppress(FileNotFoundError), (self._root / job_id / checkpoint_name(*place)).open("rb") as file:
                    yield file

    def delete(self, job_id: str) -> None:
        """Delete all stored checkpoints of a job."""
        with suppress(FileNotFoundError):
            shutil.rmtree(self._root / job_id)

    def jobs(self) -> list[str]:
        """The ids of the jobs that have stored checkpoints."""
        return [folder.name for folder in self._root.iterdir()]

    def _places(self, job_id: str) -> list[tuple[int, int]]:
        """Attempt and step of a job's stored checkpoints, the latest first."""
        with suppress(FileNotFoundError):
            names = [file.name for file in (self._root / job_id).iterdir()]
            return sorted((_place(name) for name in names if _NAME.fullmatch(name)), reverse=True)
        return []


def write_file(path: Path, write: Write, most: int, *, forced: bool) -> None:
    """Make a file of a store's checkpoint. Raises OSError, with EFBIG if it has more than `most` bytes."""
    with path.open("xb") as file:
        write(file)
        file.flush()
        if (size := file.tell()) > most:
            raise OSError(errno.EFBIG, f"a checkpoint has {size} bytes, and the task declares {most} at most")
        if forced:
            os.fsync(file.fileno())


def _place(name: str) -> tuple[int, int]:
    """Attempt and step in the name of a stored checkpoint. Raises ValueError for anything else."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of a checkpoint")
    attempt, step = name.split(".")
    return int(attempt), int(step)
