"""Return the jobs of workers that are gone to the queue.

Each worker looks every few seconds. A dead process of this host is known at once by its identity; a worker of another
host, or one that hangs, by a lease it has not renewed.
"""

import logging

from workers.endings import Endings
from workers.process import is_dead
from workers.protocol import Failed
from workers.queue import JobQueue, Lease

log = logging.getLogger("warpdesk.worker")


class Recovery:
    """Remembers what the last look saw: an id between pop and start is nobody's only when it stays there."""

    def __init__(self, queue: JobQueue, endings: Endings) -> None:
        self._queue = queue
        self._endings = endings
        self._popped: frozenset[str] | None = None

    def look(self, judge_leases: bool) -> None:
        """Without `judge_leases` (after an outage, when nobody could renew) only dead processes lose their jobs."""
        for lease in self._queue.leases():
            if is_dead(lease.process) or (judge_leases and lease.expired):
                self._take_back(lease)
        popped = self._queue.popped()
        for job_id in popped if self._popped is None else popped & self._popped:
            if self._queue.restore(job_id):
                log.warning("%s was popped by a worker that is gone; it is queued again", job_id)
        self._popped = popped
        for name, process in self._queue.processes().items():
            if is_dead(process) or (judge_leases and not self._queue.reported(name)):
                self._queue.unregister(name)

    def _take_back(self, lease: Lease) -> None:
        record = self._queue.get(lease.job_id)
        if record is None:  # nobody's keys: Redis lost the record
            self._queue.drop_lease(lease.job_id)
            return
        why = Failed(code="worker-died", message="the worker that ran the job is gone", retryable=True)
        self._endings.died(record.request, lease.attempt, why)
