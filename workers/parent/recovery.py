"""The recovery of jobs whose workers are gone: they return to the queue, and jobs past their deadline end.

Each worker looks every few seconds. A dead process of this host is known at once by its identity; a worker of another
host, or one that hangs, by a lease it has not renewed. Leases and reports end by Redis' wall clock, which may jump. A
lease that a jump ended proves nothing, so each look compares that clock with this process' monotonic clock.
"""

import time

from warpdesk_server.workers.parent.endings import Endings
from warpdesk_server.workers.process import is_dead
from warpdesk_server.workers.queue.counts import Tally
from warpdesk_server.workers.queue.jobs import JobQueue
from warpdesk_server.workers.queue.records import RENEW_SECONDS

_MOST = 256  # attempts ended in one look: Redis does nothing else meanwhile
_JUMP_SECONDS = RENEW_SECONDS  # less than what is left of a lease that is renewed in time


class Recovery:
    def __init__(self, queue: JobQueue, endings: Endings, tally: Tally) -> None:
        self._queue = queue
        self._tally = tally
        self._endings = endings
        self._ahead: float | None = None  # of Redis' clock before time.monotonic(), at the last look

    def look(self, judge_leases: bool) -> bool:
        """Recover the jobs of workers that are gone.

        Without `judge_leases` (after an outage, when nobody could renew) only dead processes lose their jobs. Nor are
        leases judged where Redis' clock has jumped since the last look; returns whether it has.
        """
        processes = self._queue.processes()
        dead = [name for name, process in processes.items() if is_dead(process)]
        silent = [name for name in processes if not self._queue.reported(name)]
        at = self._queue.time()
        jumped = self._has_jumped(at)  # by what was asked before it, too
        judged, until = judge_leases and not jumped, at + _JUMP_SECONDS
        while True:
            ended = self._queue.reap(dead, judge_leases=judged, until=until, jumped=jumped, most=_MOST)
            self._endings.reaped(ended)
            if len(ended) < _MOST:
                break
        for name in {*dead, *(silent if judged else ())}:
            if self._queue.unregister(name):  # and nobody else has counted it
                self._tally.add("workers_lost_total")
        return jumped

    def _has_jumped(self, at: float) -> bool:
        before, self._ahead = self._ahead, at - time.monotonic()
        return before is not None and abs(self._ahead - before) > _JUMP_SECONDS
