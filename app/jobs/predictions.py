"""The API's predictions of what a job takes on a GPU and on the CPU, learned from all jobs that ended.

By them a worker without a GPU judges whether a job ends sooner there or after the GPU's queue. Unlike a worker's own
(`workers.child.cost`) they are means over all workers, and forgotten when the API ends.
"""

import threading
import time
from collections.abc import Callable

from warpdesk.models import State
from warpdesk_server.kernels.operation import Backend
from warpdesk_server.workers.predicted_times import Job, Line
from warpdesk_server.workers.queue.protocol import Forecast
from warpdesk_server.workers.queue.records import JobRecord

# The jobs of one launch end together, and tell the same. One of them is enough.
_LEARN_SECONDS = 0.02


class Predictions:
    """The predicted times of each kind of job on both backends. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._lines: dict[tuple[Backend, str], Line] = {}
        self._learned_at: dict[tuple[Backend, str], float] = {}

    def ended(self, record: JobRecord) -> None:
        """Learn for how long a job kept its worker. Private ones teach nothing: such times tell of noise or secrets."""
        request, how = record.request, record.provenance
        if record.state is not State.SUCCEEDED or how is None or how.coalesced or request.private:
            return
        if request.forecast is None or request.work <= 0 or request.shards > 1:
            return
        if record.started_at is None or record.ended_at is None:
            return
        took = record.ended_at - record.started_at
        if took <= 0:  # a clock was set back
            return
        place = how.backend, request.forecast.kind
        with self._lock:
            now = self._clock()
            if now - self._learned_at.get(place, -_LEARN_SECONDS) >= _LEARN_SECONDS:
                self._learned_at[place] = now
                self._lines.setdefault(place, Line()).learn(request.work * how.batch_size, took)

    def of(self, job: Job) -> Forecast:
        """What a job of this kind and work is predicted to take."""
        with self._lock:
            return Forecast(kind=job.kind, gpu=self._seconds("gpu", job), cpu=self._seconds("cpu", job))

    def _seconds(self, backend: Backend, job: Job) -> float | None:
        line = self._lines.get((backend, job.kind))
        return line.seconds(job.work) if line is not None and line.covers(job.work) else None
