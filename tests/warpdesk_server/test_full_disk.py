"""A disk that is filled to its last byte under load: the embedded Redis ends, and is back by itself once there is
room, with all that it acknowledged."""

import errno
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from tests.waiting import wait_until
from warpdesk_server.service.redis_server import RedisServer
from warpdesk_server.service.serve import _Child


@contextmanager
def disk_of(size: str, folder: Path) -> Iterator[Path]:
    """A disk of that size ("24m") in a folder."""
    disk = folder / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", disk]
    mounted = subprocess.run(mount, capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"no disk can be mounted here: {mounted.stderr.strip()}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with disk_of("24m", tmp_path) as disk:
        yield disk


class Writer:
    """Adds to a list in Redis, and remembers what was acknowledged."""

    def __init__(self, url: str) -> None:
        self.acknowledged: list[int] = []
        self._url, self._stopped = url, threading.Event()
        self._thread = threading.Thread(target=self._write)

    def __enter__(self) -> "Writer":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _write(self) -> None:
        number = 0
        with redis.Redis.from_url(self._url, socket_timeout=5) as connection:
            while not self._stopped.is_set():
                number += 1
                try:
                    connection.set(f"n{number}", b"x" * 200)
                except redis.RedisError:
                    time.sleep(0.01)
                else:
                    self.acknowledged.append(number)


def fill(disk: Path) -> Path:
    """Take every byte that is free."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as stream:
        for size in (1 << 20, 4096, 1):
            try:
                while True:
                    stream.write(bytes(size))
            except OSError:
                continue
    return filler


def until(true: Callable[[], bool], child: _Child) -> None:
    """Look after the child until something is so."""

    def pause(seconds: float) -> None:
        child.look()
        time.sleep(seconds)

    wait_until(true, patience=120, pause=pause)


def test_redis_is_back_by_itself_after_each_full_disk_and_has_lost_nothing(small_disk: Path) -> None:
    """`tests/chaos` has the same of a whole service, 20 times."""
    server = RedisServer(small_disk / "home")
    child = _Child("Redis", server.start)
    child.start()
    try:
        with Writer(server.url) as writer:
            for _ in range(2):
                before = len(writer.acknowledged)
                until(lambda before=before: len(writer.acknowledged) > before + 100, child)
                filler = fill(small_disk)
                until(lambda: child._due is not None, child)  # it has ended
                failed = child._deaths
                until(lambda failed=failed: child._deaths > failed, child)  # and cannot start while the disk is full
                filler.unlink()
                before = len(writer.acknowledged)
                until(lambda before=before: len(writer.acknowledged) > before + 100, child)
        with redis.Redis.from_url(server.url, socket_timeout=5) as connection:
            there = connection.exists(*(f"n{number}" for number in writer.acknowledged))
        assert there == len(writer.acknowledged)
    finally:
        server.stop()


def test_a_child_that_cannot_be_started_for_want_of_room_is_tried_again() -> None:
    failures = [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))] * 2

    def launch() -> "subprocess.Popen[bytes]":
        if started and failures:
            raise failures.pop()
        started.append(subprocess.Popen(["sleep", "60"]))
        return started[-1]

    started: list[subprocess.Popen[bytes]] = []
    child = _Child("Redis", launch)
    child.start()
    try:
        started[0].kill()
        until(lambda: len(started) == 2, child)
        assert not failures
    finally:
        child.stop()
