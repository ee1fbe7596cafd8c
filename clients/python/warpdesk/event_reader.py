"""The reader of events, of one job or of all, which goes on over a new connection where one is lost."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from warpdesk.calls import AnyJob
from warpdesk.errors import JobTimeout, Unreachable, checked
from warpdesk.event_stream import EventStream
from warpdesk.exchange import FIRST_RETRY, LOST, PAUSE, TRIES, Exchange, id_of, retry_after
from warpdesk.models import Gap, JobEvent, State

SILENCE = 45.0  # seconds without a word, three comments of the service, after which an event stream is opened anew
ENDS = frozenset(state.value for state in State if state.final)


class Reading:
    """The client's reader of one job's event stream, or without a job of the stream of all jobs. It reconnects as
    needed and resumes after the last event read."""

    def __init__(self, exchange: Exchange, job: AnyJob | None, deadline: float | None) -> None:
        self.over = False
        self._exchange = exchange
        self._job = job
        self._path = "/v1/events" if job is None else f"/v1/jobs/{id_of(job)}/events"
        self._deadline = deadline
        self._until: float | None = None  # when the service has asked to wait for as long as a request may take
        self._last: JobEvent | None = None
        self._number = 0  # of the last event in the stream
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
            if self._job is None:
                raise TimeoutError("the time for which all jobs are followed is over")
            state = "queued" if self._last is None else self._last.event.replace("progress", "running")
            raise JobTimeout(self._job, state)
        self._read_timeout = min(SILENCE, left)
        headers = {"Accept": "text/event-stream"}
        if self._number:
            headers["Last-Event-ID"] = str(self._number)
        request = self._exchange.request("GET", self._path, headers, self._read_timeout)
        request.extensions[PAUSE] = self._pause
        self._pause = FIRST_RETRY * 2**self._failures
        self._failures += 1
        self._stream = EventStream()
        try:
            yield request
        except httpx.TransportError as error:
            if not isinstance(error, LOST) or self._failures == TRIES:
                raise Unreachable(self._exchange.url, error) from error
        self.over = self.over or (self._job is not None and self._last is not None and self._last.event in ENDS)

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

    def take(self, piece: bytes) -> Iterator[JobEvent | Gap]:
        """Parse one piece of the service's event stream, and return the events that it completes. Of one job there is
        no gap."""
        for message in self._stream.take(piece):
            number = int(message.id)
            if message.event == "gap":  # after which numbers may be lower: a Redis that lost its last second counts on
                self._number = number
                yield Gap.model_validate_json(message.data)
            elif number > self._number:
                self._number = number
                self._last = JobEvent.model_validate_json(message.data)
                yield self._last
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
