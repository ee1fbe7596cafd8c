"""A collector of metrics: it reads one source repeatedly in its own thread, so that a scrape never waits long."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

log = logging.getLogger("warpdesk.api")

T = TypeVar("T")


class Collector(Generic[T]):
    """A thread that reads one source of the API's metrics and keeps the last value.

    It calls `look` every `every` seconds, and at once with True if somebody asks for a fresh value.
    """

    def __init__(self, name: str, look: Callable[[bool], T | None], every: float) -> None:
        self.name = name
        self._look = look
        self._every = every
        self._state = threading.Condition()
        self._latest: T | None = None
        self._requests = self._answered = 0  # number of requests for a fresh value, and of the latest one answered
        self._succeeded_at: float | None = None  # time.monotonic()
        self._failed = self._stopped = False
        self._thread = threading.Thread(target=self._run, name=f"collect {name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, patience: float) -> None:
        """Collect the API's metrics once more, then stop; give up after `patience` seconds."""
        with self._state:
            self._stopped = True
            self._state.notify_all()
        self._thread.join(patience)

    def ask(self, patience: float) -> tuple[T | None, bool]:
        """Read the source of the API's metrics now and return its value and True.

        If that fails or takes longer than `patience` seconds, return the last value and False.
        """
        with self._state:
            self._requests += 1
            mine = self._requests
            self._state.notify_all()
            done = self._state.wait_for(lambda: self._answered >= mine, patience)
            return self._latest, done and not self._failed

    def last(self, patience: float) -> tuple[T | None, bool]:
        """The last value from the source of the API's metrics, and whether it is at most `patience` seconds old."""
        with self._state:
            at = self._succeeded_at
            return self._latest, not self._failed and at is not None and time.monotonic() - at <= patience

    def _run(self) -> None:
        while True:
            with self._state:
                stopped, request = self._stopped, self._requests
            try:
                value = self._look(request > self._answered)
            except Exception as error:  # noqa: BLE001 - whatever it is, the next call may succeed
                if not self._failed:
                    log.warning("metrics of the %s are stale: %s: %s", self.name, type(error).__name__, error)
                self._store(request, None, failed=True)
            else:
                self._store(request, value, failed=False)
            if stopped:
                return
            with self._state:
                self._state.wait_for(lambda: self._stopped or self._requests > self._answered, self._every)

    def _store(self, request: int, value: T | None, *, failed: bool) -> None:
        with self._state:
            self._failed, self._answered = failed, request
            if not failed:
                self._succeeded_at = time.monotonic()
            if value is not None:
                self._latest = value
            self._state.notify_all()
