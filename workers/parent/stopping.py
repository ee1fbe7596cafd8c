"""The wake pipe of a worker's main thread, and the request that the worker stop."""

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from types import FrameType
from typing import Any

from warpdesk_server.workers.parent.redis_retry import StoppableBackoff


class WakePipe:
    """A pipe from the worker's parent process to itself, by which signals and other threads wake the main thread."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)

    def wake(self) -> None:
        with suppress(BlockingIOError):  # it is full of calls already
            os.write(self._writer, b"!")

    def wait(self, readable: Sequence[Any], seconds: float) -> list[Any]:
        """Wait up to `seconds` in the worker's main thread, and return the objects that can be read.

        The pipe's own reader is among them after a `wake`.
        """
        ready = wait([*readable, self._reader], seconds)
        with suppress(BlockingIOError):
            while os.read(self._reader, 512):
                pass
        return ready


class StopRequest:
    """The request that the worker stop, with the time until which its running job may go on."""

    def __init__(self, grace: float, wake: WakePipe) -> None:
        self._grace, self._wake = grace, wake
        self._signaled_at: float | None = None
        self.requested = False
        self.ends_at: float | None = None  # time.monotonic()
        self.backoff = StoppableBackoff()  # of the worker's connection to Redis

    @property
    def signaled(self) -> bool:
        return self._signaled_at is not None

    def on_signal(self, signum: int, frame: FrameType | None) -> None:  # noqa: ARG002 (a signal handler's arguments)
        """Handle a stop signal to the worker: its running job has `grace` seconds to end, or is given back.

        A second signal ends the grace.
        """
        now = time.monotonic()
        if self._signaled_at is None:
            self._signaled_at = now
        elif now > self._signaled_at + 1:  # a group's signal often comes twice at once
            self.ends_at = now
        self.drain()

    def drain(self) -> None:
        """Make the worker take no more jobs; the running job has the grace, counted from the first reason to stop."""
        if self.ends_at is None:
            self.ends_at = time.monotonic() + self._grace
        self.requested = True
        self.backoff.end_by = self.ends_at + 3
        self._wake.wake()
