"""The worker's heartbeat: a thread of the parent that goes on while a job runs and while Redis is away.

It renews the claims on running jobs, reports the worker, keeps its slot and its RQ record alive, and recovers the jobs
of workers that are gone. It has its own Redis connection: the main thread may be waiting for Redis or for the child.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Protocol

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from warpdesk_server.workers.parent.endings import Endings
from warpdesk_server.workers.parent.recovery import Recovery
from warpdesk_server.workers.pipe import Stepped
from warpdesk_server.workers.queue.counts import Tally
from warpdesk_server.workers.queue.jobs import JobQueue, connect
from warpdesk_server.workers.queue.records import LEASE_SECONDS, Held
from warpdesk_server.workers.queue.reports import WorkerReport
from warpdesk_server.workers.queue.slots import Slot

log = logging.getLogger("warpdesk.worker")

LOOK_SECONDS = 0.2  # delay of a report that no `beat` asks for, such as a driver that hangs
RENEWAL_SECONDS = 1.0  # a cancel whose message was lost is noticed this much later; leases are renewed as they age
REPORT_SECONDS = 5.0
WORDS_SECONDS = 1.0  # how long another reason of the same state may wait, since some count seconds
REPORT_TTL = 15.0
RECOVERY_SECONDS = 2.0
_STEPS_KEPT = 1000  # reports of tasks, while Redis is away
# Everyone alive has renewed its lease this long after Redis answers again, or its clock jumped.
SETTLE_SECONDS = LEASE_SECONDS


class ReportingWorker(Protocol):
    """The interface of the worker that the heartbeat thread uses."""

    name: str
    process: str

    @property
    def tally(self) -> Tally:
        """The worker's metrics that are counted outside of jobs, and sent by its heartbeat."""

    def held(self) -> Sequence[Held]:
        """The attempts that this worker has claimed, whose leases the heartbeat renews."""

    def report(self) -> WorkerReport: ...

    def revoke(self, jobs: Collection[Held]) -> None:
        """Stop attempts that this worker no longer owns, as its heartbeat has learnt."""

    def pause_tasks(self, jobs: Collection[Held]) -> None:
        """Stop tasks of this worker that their owners pause, as its heartbeat has learnt."""

    def look_around(self, queue: JobQueue) -> None:
        """Check at a heartbeat whether another worker has a GPU."""

    def keep_registered(self, connection: redis.Redis) -> None:
        """Renew RQ's record of this worker at a heartbeat."""


class Heartbeat(threading.Thread):
    """The worker's heartbeat thread. Start it once the worker has a name; `beat` makes it report at once."""

    def __init__(
        self,
        url: str,
        worker: ReportingWorker,
        endings: Callable[[JobQueue], Endings],
        queue: Callable[[redis.Redis], JobQueue] = JobQueue,
    ) -> None:
        super().__init__(name="heartbeat", daemon=True)
        self._worker = worker
        self._redis = connect(url, retry=Retry(NoBackoff(), 0), timeout=LEASE_SECONDS / 3)
        self._queue = queue(self._redis)
        self._recovery = Recovery(self._queue, endings(self._queue), worker.tally)
        self._slot = Slot(self._redis, worker.name)
        self._wanted = threading.Event()
        self._stopped = False
        self._reported: object = None
        self._words: str | None = None
        self._report_at = self._words_at = self._renew_at = self._recover_at = self._slot_at = self._register_at = 0.0
        self._in_touch_since: float | None = None
        self._progress: tuple[str, int, float] | None = None
        self._sending_steps = threading.Lock()
        self._steps: deque[tuple[Held, Stepped]] = deque()
        self._uncounted = ""  # why what was counted could not be kept the last time

    def beat(self) -> None:
        self._report_at = 0.0
        self._wanted.set()

    def progress(self, job_id: str, attempt: int, done: float) -> None:
        """Have the heartbeat send the progress of a running job; only the latest value is sent."""
        self._progress = job_id, attempt, done
        self._wanted.set()

    def step(self, held: Held, message: Stepped) -> None:
        """Have the heartbeat send what a task has said of a step. While Redis is away only so many reports are kept."""
        reports = message.values is not None and len(self._steps) < _STEPS_KEPT
        if reports or message.checkpoint or message.again:
            self._steps.append((held, message))
            self._wanted.set()

    def send_steps(self, queue: JobQueue, *, waits: bool = True) -> None:
        """Note in Redis what tasks have said of their steps: at a heartbeat, and before the end of an attempt.

        With `waits`, wait for the other thread that does so. What Redis refuses is left out: it may be full.
        """
        if not self._sending_steps.acquire(blocking=waits):
            return
        try:
            while self._steps:
                held, message = self._steps[0]
                try:
                    queue.step(held, message.step, message.done, message.values, message.checkpoint, message.again)
                except redis.ResponseError as error:
                    log.warning("%s: what it reports of step %d is left out: %s", held.id, message.step, error)
                self._steps.popleft()
        finally:
            self._sending_steps.release()

    def stop(self) -> None:
        self._stopped = True
        self._wanted.set()

    def run(self) -> None:
        while not self._stopped:
            try:
                self._tick(time.monotonic())
            except redis.RedisError as error:
                if self._in_touch_since is not None:
                    log.warning("no heartbeat: %s", error)
                self._in_touch_since = None
            except Exception:  # (a heart that stops because of one odd record would lose every job)
                log.exception("the heartbeat stumbled")
            self._wanted.wait(LOOK_SECONDS)
            self._wanted.clear()
        with suppress(redis.RedisError):
            self._queue.count_left(self._worker.tally)
        with suppress(redis.RedisError):  # else it is free when its time is over
            self._slot.give_back()
        self._redis.close()

    def _tick(self, now: float) -> None:
        if now >= self._slot_at:
            self._slot.keep()
            self._slot_at = now + REPORT_SECONDS
        report = self._worker.report().model_copy(update={"slot": self._slot.number})
        words = report.gpu.reason if report.gpu is not None else None
        due = now >= self._report_at or (words != self._words and now >= self._words_at)
        if due or _news(report) != self._reported:
            self._queue.report(report, REPORT_TTL, self._worker.process)
            self._reported, self._words = _news(report), words
            self._report_at, self._words_at = now + REPORT_SECONDS, now + WORDS_SECONDS
        if now >= self._register_at:  # by the clock alone: its time is written, and news come as a private job ends
            self._worker.keep_registered(self._redis)
            self._register_at = now + REPORT_SECONDS
        if now >= self._renew_at:
            held = self._worker.held()
            if held:
                renewed = self._queue.renew(held)
                if renewed.lost:
                    self._worker.revoke(renewed.lost)
                if renewed.pausing:
                    self._worker.pause_tasks(renewed.pausing)
            self._worker.look_around(self._queue)
            self._renew_at = now + RENEWAL_SECONDS
            self._count()
        progress, self._progress = self._progress, None
        if progress is not None:
            self._queue.progress(*progress)
        self.send_steps(self._queue, waits=False)
        if self._in_touch_since is None:
            self._in_touch_since = now
        if now >= self._recover_at:
            if self._recovery.look(judge_leases=now - self._in_touch_since > SETTLE_SECONDS):
                log.warning("the clock of Redis has jumped: leases are not judged for %g s", SETTLE_SECONDS)
                # What Redis keeps for some seconds is over with it.
                self._in_touch_since = self._report_at = self._slot_at = self._register_at = now
            self._recover_at = now + RECOVERY_SECONDS

    def _count(self) -> None:
        """Send the worker's tally of metrics to Redis at a heartbeat.

        An empty tally is sent too: that moves what transitions counted. If Redis cannot store the counts, that is
        logged, and the heartbeat goes on.
        """
        try:
            self._queue.count(self._worker.tally)
            self._uncounted = ""
        except redis.ResponseError as error:
            if self._uncounted != str(error):
                log.warning("what was counted is not kept: %s", error)
            self._uncounted = str(error)


def _news(report: WorkerReport) -> object:
    """The part of a worker's report that the heartbeat sends at once when it changes.

    The rest is sent every few seconds.
    """
    gpu = report.gpu
    summary = gpu and (gpu.state, gpu.breakers, gpu.last_fault_at, gpu.call_since is not None)
    return report.state, report.warm_up, report.last_fault, report.failed_examples, summary
