"""The client's progress bar: a job's progress as one line of a terminal, erased when the job has ended."""

import shutil
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

from warpdesk.models import JobEvent

WIDTH = 30  # characters of the bar
TICK = 1.0  # seconds between two looks at the clock, and at the job's place in the queue


class ProgressBar:
    """The client's terminal line that shows a job's last event and the seconds since then.

        with ProgressBar() as bar:
            client.run("monte_carlo", ..., progress=bar)

    If `out` is no terminal it draws nothing. `place` returns how many of the key's jobs are ahead of a queued one; it
    is called in a thread of its own.
    """

    def __init__(self, out: TextIO | None = None, place: Callable[[], int | None] | None = None) -> None:
        self._out = sys.stderr if out is None else out
        self._place = place
        self._event: JobEvent | None = None
        self._before: int | None = None
        self._drawn = 0  # characters
        self._since = time.monotonic()
        self._drawing = threading.Lock()
        self._done = threading.Event()
        self._clock = threading.Thread(target=self._tick, daemon=True)
        self.shown = self._out.isatty()

    def __call__(self, event: JobEvent) -> None:
        if self.shown:
            with self._drawing:
                self._event = event
                self._draw()

    def __enter__(self) -> "ProgressBar":
        if self.shown:
            self._clock.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._done.set()
        if self.shown:
            with self._drawing:
                self._write("")

    def _tick(self) -> None:
        while not self._done.is_set():
            if self._place is not None and (self._event is None or self._event.event == "queued"):
                try:
                    self._before = self._place()
                except Exception:  # noqa: BLE001 - the job goes on without it
                    self._before = None
            with self._drawing:
                if not self._done.is_set():
                    self._draw()
            self._done.wait(TICK)

    def _draw(self) -> None:
        if self._event is not None:
            columns = shutil.get_terminal_size().columns
            self._write(_shortened(line(self._event, self._before, time.monotonic() - self._since), columns - 1))

    def _write(self, text: str) -> None:
        blank = "" if len(text) >= self._drawn else f"\r{' ' * self._drawn}"
        self._out.write(f"{blank}\r{text}")
        self._out.flush()
        self._drawn = len(text)


def line(event: JobEvent, before: int | None, seconds: float) -> str:
    """The text of the client's progress line: the job's state in a few words."""
    if event.event == "progress" and event.progress is not None:
        done = round(WIDTH * event.progress)
        phase = f"[{'#' * done}{'-' * (WIDTH - done)}] {100 * event.progress:3.0f} %{_values(event)}"
    elif event.event == "progress":
        reason = "".join(filter(str.isprintable, event.reason or ""))
        phase = f"running{f' ({reason})' if reason else ''}{_values(event)}"
    elif event.event == "queued":
        places = "" if before is None else ", next of yours" if before == 0 else f", {before} of yours before it"
        reason = "".join(letter for letter in event.reason or "" if letter.isprintable())
        again = f" again ({reason})" if reason else ""
        phase = f"queued{again}{places}"
    else:
        phase = event.event
    attempt = f", attempt {event.attempt}" if event.attempt > 1 else ""
    return f"{phase}{attempt}, {seconds:.0f} s"


def _shortened(text: str, most: int) -> str:
    """The progress line without the words after the last comma that a terminal has room for: half a number is
    another one."""
    return text if len(text) <= most else text[: most + 1].rpartition(",")[0] or text[:most]


def _values(event: JobEvent) -> str:
    """The step of a task and the numbers that it reports, as the progress line shows them."""
    if event.step is None:
        return ""
    numbers = "".join(
        f", {''.join(filter(str.isprintable, name))} {'-' if value is None else format(value, '.6g')}"
        for name, value in (event.values or {}).items()
    )
    return f", step {event.step}{numbers}"
