"""File operations that the modules of the store share: locks, deletions, and descriptions in JSON."""

import fcntl
import json
import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

log = logging.getLogger("warpdesk.store")


@contextmanager
def alone_in(directory: Path) -> Iterator[None]:
    """Hold the exclusive lock of a store directory: no other thread or process publishes or deletes in it meanwhile."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def unlink(file: Path) -> bool:
    with suppress(FileNotFoundError):
        file.unlink()
        return True
    return False


def modified_at(file: Path) -> float:
    with suppress(FileNotFoundError):
        return file.stat().st_mtime
    return time.time()


def expiry(fields: Mapping[str, Any]) -> float | None:
    with suppress(KeyError, TypeError, ValueError):
        return float(fields["expires_at"])
    return None


def read_description(file: Path) -> tuple[dict[str, Any], float]:
    """The fields of a stored array's description file and its mtime in Unix seconds. A missing or damaged file has no
    fields: a crash of the machine may damage one."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return {}, 0.0
    try:
        status = os.fstat(descriptor)
        if not status.st_size:  # the file of a result that is being written, or was made ahead
            return {}, 0.0
        fields = json.loads(os.read(descriptor, status.st_size))
    except ValueError:
        log.warning("%s is damaged, so what it describes is ignored", file.name)
        return {}, 0.0
    finally:
        os.close(descriptor)
    return fields if isinstance(fields, dict) else {}, status.st_mtime
