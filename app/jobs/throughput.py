"""Estimate of the queue's throughput in jobs a second, for Retry-After and for whether a deadline can be met."""

import math
import time
from collections import deque
from collections.abc import Callable

from warpdesk.models import State
from warpdesk_server.workers.queue.records import JobRecord

# Seconds with a queue that is never empty. The rate is known after _TRUSTED of them. The latest _REMEMBERED count, as
# far as they lie in the last _RECENT seconds.
_TRUSTED = 3.0
_REMEMBERED = 20.0
_RECENT = 60.0

# A lower rate of the last _LATELY seconds is believed after _DOUBTED: a worker also has work between two jobs.
_DOUBTED = 0.5
_LATELY = 3.0
# Time between two reads of the queue that are further apart is left out: the queue may have been empty in it.
_FORGOTTEN = 2.0
_JOBS = 1000


# Long jobs end so much more seldom: each of the spans above is that many times as long for them.
LONG_PACE = 30.0


class ThroughputEstimate:
    """The API's estimate of the throughput of quick jobs, or of long ones: jobs a second that all workers compute.

    Only time in which jobs waited counts: a rate over all time would tell how many jobs came, not how many the workers
    can compute. If jobs did not wait for long enough, the rate is the number of live workers divided by the mean time
    of recent jobs. Jobs of one launch share its time. Jobs that were answered with the result of an identical job did
    not wait in the queue, so they count in neither.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, pace: float = 1.0) -> None:
        self._clock = clock
        self._pace = pace
        self._took: deque[float] = deque(maxlen=_JOBS)  # seconds of a worker, for each job
        # Spans in which jobs waited: their end, their seconds, and the jobs that ended in them.
        self._spans: deque[tuple[float, float, int]] = deque()
        self._looked_at: float | None = None
        self._waited = False
        self._ended = 0
        self._workers = 1
        self.rate: float | None = None  # None: nothing has run yet
        self.recent_lower_bound: float | None = None  # the rate of the last seconds, where it is lower

    def ended(self, record: JobRecord) -> None:
        """Count a job that a worker completed in the API's estimate of throughput."""
        provenance = record.provenance
        if record.state not in (State.SUCCEEDED, State.FAILED) or (provenance is not None and provenance.coalesced):
            return
        if record.request.task:
            return
        self._ended += 1
        # The time of a private job reveals its noise, and every caller may learn this rate.
        if record.started_at is not None and record.ended_at is not None and not record.request.private:
            together = 1 if provenance is None else provenance.batch_size
            self._took.append(max(0.0, record.ended_at - record.started_at) / together)

    def look(self, waiting: int, workers: int) -> None:
        """Update the API's estimate of throughput from the queue's length and the number of workers; called several
        times a second."""
        now = self._clock()
        ended, self._ended = self._ended, 0
        if self._looked_at is not None and self._waited and waiting > 0 and now - self._looked_at < _FORGOTTEN:
            self._spans.append((now, now - self._looked_at, ended))
        while self._spans and (
            self._spans[0][0] < now - _RECENT * self._pace or self._waited_for() > _REMEMBERED * self._pace
        ):
            self._spans.popleft()
        self._looked_at, self._waited, self._workers = now, waiting > 0, max(1, workers)
        self.rate = self._measured(_REMEMBERED, _TRUSTED) or self._reckoned()
        rates = [rate for rate in (self.rate, self._measured(_LATELY, _DOUBTED)) if rate is not None]
        self.recent_lower_bound = min(rates, default=None)

    def _waited_for(self) -> float:
        return sum(seconds for _, seconds, _ in self._spans)

    def _measured(self, within: float, enough: float) -> float | None:
        """The throughput as the API measured it over the last `within` seconds with a queue; None below `enough`
        seconds. Both are those of quick jobs."""
        within, enough = within * self._pace, enough * self._pace
        waited, jobs = 0.0, 0
        for _, seconds, ended in reversed(self._spans):
            waited, jobs = waited + seconds, jobs + ended
            if waited >= within:
                break
        return max(1, jobs) / waited if waited >= enough else None  # no job in all that time: at most one

    def _reckoned(self) -> float | None:
        """The queue's throughput as the API reckons it from the number of workers and the mean time of recent jobs."""
        took = sum(self._took)
        return len(self._took) * self._workers / took if took > 0 else None

    def retry_after(self, jobs: float) -> str:
        """The Retry-After header for when so many queued jobs are done."""
        return retry_after(jobs, self.rate)


def retry_after(jobs: float, rate: float | None) -> str:
    """The Retry-After header for when so many queued jobs are done at this rate: 1 to 64 seconds, and 1 while no rate
    is known.

    It is a power of two, so that a caller cannot follow the load of other owners by it.
    """
    seconds = 1.0 if rate is None else jobs / rate
    return str(2 ** min(6, math.ceil(math.log2(max(1.0, round(seconds, 3))))))
