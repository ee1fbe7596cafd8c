"""Durable files: what is written or forced here is on the disk after a power cut."""

import os
from pathlib import Path


def write_new(file: Path, content: bytes) -> None:
    """Write a new file of a client or a service, which its owner alone can read, and force it to the disk. Its name is
    not: force the directory.

    Raises FileExistsError, or another OSError if it cannot be written.
    """
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


def force(*paths: Path) -> None:
    """Force files and directories of a client or a service to the disk, one by one. Raises OSError if they cannot be
    written."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
