"""Estimate of the queue's throughput: it gives the Retry-After, and tells whether a deadline can be met."""

import math
import time
from collections import deque
from collections.abc import Callable

from warpdesk.models import State
from warpdesk_server.workers.queue.records import JobRecord

# From so many seconds of a queue that never was empty its rate is known. The last so many of a minute count.
_TRUSTED = 3.0
_REMEMBERED = 20.0
_RECENT = 60.0

# A rate that is lower of late is believed sooner: between two jobs a worker has more to do than what jobs take.
_DOUBTED = 0.5
_LATELY = 3.0
# Two looks further apart than this, and nobody knows what happened between them.
_FORGOTTEN = 2.0
_JOBS = 1000


class ThroughputEstimate:
    """Jobs a second, of all workers together.

    While jobs wait, what ends in a second is what the workers can do. A rate over all time would say how many jobs
    came, not how many could have been computed, so the time of an empty queue is left out. Where no queue stood for
    long enough, the rate is that of the live workers, each taking as long for a job as jobs took of late; jobs of one
    launch share its time. Jobs that another was computed for did not wait in the queue and count for neither.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._took: deque[float] = deque(maxlen=_JOBS)  # seconds of a worker, for each job
        # Until when, seconds while jobs waited, and the jobs that ended in them.
        self._spans: deque[tuple[float, float, int]] = deque()
        self._looked_at: float | None = None
        self._waited = False
        self._ended = 0
        self._workers = 1
        self.rate: float | None = None  # None: nothing has run yet
        self.recent_lower_bound: float | None = None  # the rate of the last seconds, where it is lower

    def ended(self, record: JobRecord) -> None:
        """Count a job that a worker has ended."""
        provenance = record.provenance
        if record.state not in (State.SUCCEEDED, State.FAILED) or (provenance is not None and provenance.coalesced):
            return
        self._ended += 1
        # What a private job took tells of its noise, and this rate is told to whoever asks.
        if record.started_at is not None and record.ended_at is not None and not record.request.private:
            together = 1 if provenance is None else provenance.batch_size
            self._took.append(max(0.0, record.ended_at - record.started_at) / together)

    def look(self, waiting: int, workers: int) -> None:
        """Called several times a second with the queue's length and the number of workers that take jobs."""
        now = self._clock()
        ended, self._ended = self._ended, 0
        if self._looked_at is not None and self._waited and waiting > 0 and now - self._looked_at < _FORGOTTEN:
            self._spans.append((now, now - self._looked_at, ended))
        while self._spans and (self._spans[0][0] < now - _RECENT or self._waited_for() > _REMEMBERED):
            self._spans.popleft()
        self._looked_at, self._waited, self._workers = now, waiting > 0, max(1, workers)
        self.rate = self._measured(_REMEMBERED, _TRUSTED) or self._reckoned()
        rates = [rate for rate in (self.rate, self._measured(_LATELY, _DOUBTED)) if rate is not None]
        self.recent_lower_bound = min(rates, default=None)

    def _waited_for(self) -> float:
        return sum(seconds for _, seconds, _ in self._spans)

    def _measured(self, within: float, enough: float) -> float | None:
        waited, jobs = 0.0, 0
        for _, seconds, ended in reversed(self._spans):
            waited, jobs = waited + seconds, jobs + ended
            if waited >= within:
                break
        return max(1, jobs) / waited if waited >= enough else None  # none in all that time: fewer than one

    def _reckoned(self) -> float | None:
        took = sum(self._took)
        return len(self._took) * self._workers / took if took > 0 else None

    def retry_after(self, jobs: float) -> str:
        """Seconds until so many jobs are done, as the value of a header: a power of two, so that nobody can follow the
        load of others by it, from 1, also while nothing is known, to 64."""
        seconds = 1.0 if self.rate is None else jobs / self.rate
        return str(2 ** min(6, math.ceil(math.log2(max(1.0, round(seconds, 3))))))
