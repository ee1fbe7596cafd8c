"""Return the jobs of workers that are gone to the queue, and end those whose deadline passed in it.

Each worker looks every few seconds. A dead process of this host is known at once by its identity; a worker of another
host, or one that hangs, by a lease it has not renewed.
"""

from workers.counts import Tally
from workers.endings import Endings
from workers.process import is_dead
from workers.queue import JobQueue

_MOST = 256  # attempts ended in one look: Redis does nothing else meanwhile


class Recovery:
    def __init__(self, queue: JobQueue, endings: Endings, tally: Tally) -> None:
        self._queue = queue
        self._tally = tally
        self._endings = endings

    def look(self, judge_leases: bool) -> None:
        """Without `judge_leases` (after an outage, when nobody could renew) only dead processes lose their jobs."""
        processes = self._queue.processes()
        dead = [name for name, process in processes.items() if is_dead(process)]
        while True:
            ended = self._queue.reap(dead, judge_leases=judge_leases, most=_MOST)
            self._endings.reaped(ended)
            if len(ended) < _MOST:
                break
        for name in processes:
            gone = name in dead or (judge_leases and not self._queue.reported(name))
            if gone and self._queue.unregister(name):  # and nobody else has counted it
                self._tally.add("workers_lost_total")
