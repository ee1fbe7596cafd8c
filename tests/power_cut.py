"""A disk of its own whose power can be cut: what it holds at any moment, and nothing that only memory holds.

A file is the disk. What ext4 has written so far is in it, and a copy of it is what the machine would find after a power
cut. Only root may mount it.
"""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

_SIZE = 24 << 20


@dataclass(frozen=True)
class Disk:
    path: Path  # where it is mounted
    _image: Path
    _cleanup: ExitStack

    def cut(self) -> Path:
        """Where its content is after a power cut at this moment; the disk itself goes on."""
        copies = len(list(self._image.parent.glob("after*.img")))
        after = self._image.with_name(f"after{copies}.img")
        shutil.copyfile(self._image, after)
        return self._cleanup.enter_context(_mounted(after))


@contextmanager
def small_disk(folder: Path) -> Iterator[Disk]:
    """Skips the test where this user may not mount one."""
    image = folder / "disk.img"
    with image.open("wb") as file:
        file.truncate(_SIZE)
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("there is no mkfs.ext4 to make a disk with")
    subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True, capture_output=True)
    with ExitStack() as cleanup:
        yield Disk(cleanup.enter_context(_mounted(image)), image, cleanup)


@contextmanager
def _mounted(image: Path) -> Iterator[Path]:
    at = image.with_suffix("")
    at.mkdir()
    # The journal is written when someone asks for it, and not every five seconds.
    done = subprocess.run(["mount", "-o", "loop,commit=300", image, at], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no disk can be mounted here: {done.stderr.strip()}")
    try:
        yield at
    finally:
        subprocess.run(["umount", "--lazy", at], check=True)  # also where a failed test has left a file open
