"""How a worker's main thread is woken from whatever it waits for, and how the worker is asked to stop."""

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from types import FrameType
from typing import Any

from warpdesk_server.workers.parent.redis_retry import StoppableBackoff


class WakePipe:
    """A pipe from this process to itself: signals and other threads end what the main thread waits for."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)

    def wake(self) -> None:
        with suppress(BlockingIOError):  # it is full of calls already
            os.write(self._writer, b"!")

    def wait(self, readable: Sequence[Any], seconds: float) -> list[Any]:
        """What can be read, within so many seconds. Empty only where nothing could be, and nobody woke."""
        ready = wait([*readable, self._reader], seconds)
        with suppress(BlockingIOError):
            while os.read(self._reader, 512):
                pass
        return ready


class StopRequest:
    """Whether the worker shall stop, and when the grace of the job that runs is over."""

    def __init__(self, grace: float, wake: WakePipe) -> None:
        self._grace, self._wake = grace, wake
        self._signaled_at: float | None = None
        self.requested = False
        self.ends_at: float | None = None  # time.monotonic()
        self.backoff = StoppableBackoff()  # of the worker's connection to Redis

    def on_signal(self, signum: int, frame: FrameType | None) -> None:  # noqa: ARG002 (a signal handler's arguments)
        """Finish the running job within the grace, or give it back; the second signal ends the grace."""
        now = time.monotonic()
        if self._signaled_at is None:
            self._signaled_at = now
        elif now > self._signaled_at + 1:  # a group's signal often comes twice at once
            self.ends_at = now
        self.drain()

    def drain(self) -> None:
        """Take no more jobs; what runs has the grace, counted from the first reason to stop."""
        if self.ends_at is None:
            self.ends_at = time.monotonic() + self._grace
        self.requested = True
        self.backoff.end_by = self.ends_at + 3
        self._wake.wake()
