"""The background thread of a remote store: it checks that the API answers, deletes there, and cleans up here."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from warpdesk_server.workers.store.remote.api import ApiAway

log = logging.getLogger("warpdesk.store")

_LOOK_EVERY = 2.0  # seconds between two looks whether the API is there
_TIDY_EVERY = 30.0
_ERRANDS = 10_000  # that may wait for the API; what is not deleted by an errand is once its time is over
_PARTING = 5.0  # seconds that the last errands may take


class BackgroundErrands:
    """A thread of a remote store that checks whether the API answers, runs errands that no caller waits for, and cleans
    up.

    It is started when it is first needed.
    """

    def __init__(self, look: Callable[[], None], tidy: Callable[[], None]) -> None:
        self._look, self._tidy = look, tidy
        self._errands: deque[Callable[[], None]] = deque(maxlen=_ERRANDS)
        self._trouble: str | None = "the API was not asked yet"
        self._wanted = threading.Condition()
        self._thread: threading.Thread | None = None
        self._end_by: float | None = None

    def add(self, errand: Callable[[], None]) -> None:
        with self._wanted:
            self._errands.append(errand)
            self._start()
            self._wanted.notify()

    def trouble(self) -> str | None:
        with self._wanted:
            self._start()
        return self._trouble

    def close(self) -> None:
        with self._wanted:
            self._end_by = time.monotonic() + _PARTING
            self._wanted.notify()
        if self._thread is not None:
            self._thread.join(_PARTING)

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="remote store", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        look_at = tidy_at = 0.0
        while True:
            with self._wanted:
                if self._end_by is None and not (self._errands and self._trouble is None):
                    self._wanted.wait(max(0.0, look_at - time.monotonic()))
            try:
                if time.monotonic() >= look_at:
                    look_at = time.monotonic() + _LOOK_EVERY
                    self._look()
                    self._says(None)
                while self._errands and (self._end_by is None or time.monotonic() < self._end_by):
                    self._errands[0]()
                    self._errands.popleft()
            except ApiAway as error:
                self._says(str(error))
            except Exception:
                log.exception("a task in the background failed")
                with suppress(IndexError):
                    self._errands.popleft()
            if self._end_by is not None:
                return
            if time.monotonic() >= tidy_at:
                tidy_at = time.monotonic() + _TIDY_EVERY
                self._tidy()

    def _says(self, trouble: str | None) -> None:
        if trouble is None and self._trouble is not None:
            log.info("the API answers")
        self._trouble = trouble
