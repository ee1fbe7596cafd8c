"""The reader of a job's events, which goes on over a new connection where one is lost."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from warpdesk.calls import AnyJob
from warpdesk.errors import JobTimeout, Unreachable, checked
from warpdesk.event_stream import EventStream
from warpdesk.exchange import FIRST_RETRY, LOST, PAUSE, TRIES, Exchange, id_of, retry_after
from warpdesk.models import JobEvent, State

SILENCE = 45.0  # seconds without a word, three comments of the service, after which an event stream is opened anew
ENDS = frozenset(state.value for state in State if state.final)


class Reading:
    """The client's reader of one job's event stream. It reconnects as needed and resumes after the last event read."""

    def __init__(self, exchange: Exchange, job: AnyJob, deadline: float | None) -> None:
        self.over = False
        self._exchange = exchange
        self._job = job
        self._deadline = deadline
        self._until: float | None = None  # when the service has asked to wait for as long as a request may take
        self._last: JobEvent | None = None
        self._stream = EventStream()
        self._read_timeout = SILENCE
        self._pause = 0.0
        self._failures = 0

    @contextmanager
    def attempt(self) -> Iterator[httpx.Request]:
        """The client's request for the next connection to the event stream. Another may follow it in any case.

        Raises JobTimeout after the deadline, and Unreachable after several failures to connect.
        """
        left = self._left() - self._pause
        if left <= 0:
            state = "queued" if self._last is None else self._last.event.replace("progress", "running")
            raise JobTimeout(self._job, state)
        self._read_timeout = min(SILENCE, left)
        headers = {"Accept": "text/event-stream"}
        if self._last is not None:
            headers["Last-Event-ID"] = str(self._last.number)
        request = self._exchange.request("GET", f"/v1/jobs/{id_of(self._job)}/events", headers, self._read_timeout)
        request.extensions[PAUSE] = self._pause
        self._pause = FIRST_RETRY * 2**self._failures
        self._failures += 1
        self._stream = EventStream()
        try:
            yield request
        except httpx.TransportError as error:
            if not isinstance(error, LOST) or self._failures == TRIES:
                raise Unreachable(self._exchange.url, error) from error
        self.over = self.over or (self._last is not None and self._last.event in ENDS)

    def begin(self, response: httpx.Response) -> None:
        """Check the service's response that opens the event stream; any other body has been read whole. Raises
        WarpdeskError."""
        later = retry_after(response)
        if later is None:
            self.over = checked(response).status_code == 204  # there is nothing to come
            self._until = None
            later = 1.0  # until the service says what it wants
        else:
            self._until = self._until or time.monotonic() + self._exchange.timeout
            if later > min(self._left(), self._until - time.monotonic()):
                checked(response)
        self._failures = 0
        self._pause = later

    def take(self, piece: bytes) -> Iterator[JobEvent]:
        """Parse one piece of the service's event stream, and return the job events that it completes."""
        for message in self._stream.take(piece):
            event = JobEvent.model_validate_json(message.data)
            if self._last is None or event.number > self._last.number:
                self._last = event
                yield event
        if self._stream.retry is not None:
            self._pause = self._stream.retry

    @property
    def stale(self) -> bool:
        """Whether the read timeout of the client's connection ends well after the deadline. A new connection gets a
        shorter one."""
        if self._deadline is None or self._read_timeout <= 1.25 * self._left():
            return False
        self._pause = 0.0
        return True

    def _left(self) -> float:
        return SILENCE if self._deadline is None else self._deadline - time.monotonic()
