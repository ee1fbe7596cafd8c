"""The worker: an RQ worker whose work horse is one warm child instead of a fork per job.

The parent, this process, pops jobs and commits outcomes. It never touches the device or a kernel, so it can end a job
at any moment, native code or not, by killing the child, and a crash of the child never costs more than an attempt.
"""

# ruff: noqa: ARG002 (the signatures are RQ's)

import logging
import os
import secrets
import signal
import socket
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from multiprocessing.connection import Connection, wait
from types import FrameType
from typing import Any

import redis
from redis.retry import Retry
from rq import Queue, Worker
from rq import worker_registration as rq_registration
from rq.exceptions import DeserializationError, StopRequested
from rq.job import Job, JobStatus
from rq.serializers import JSONSerializer
from rq.suspension import is_suspended
from rq.utils import now as rq_now
from rq.worker import WorkerStatus

from workers.children import Children
from workers.endings import Endings
from workers.examples import Examples
from workers.horse import Horse
from workers.patience import Patience
from workers.pipe import Answer, Assignment, Checked, Lost, send
from workers.process import identity
from workers.protocol import (
    MAX_ATTEMPTS,
    QUEUE,
    TASK,
    Failed,
    JobRequest,
    Succeeded,
    WorkerReport,
    WorkerState,
)
from workers.pulse import Held, Pulse
from workers.queue import JobQueue, connect
from workers.settings import WorkerSettings
from workers.store import SpoolStore

log = logging.getLogger("warpdesk.worker")

# RQ's worker time to live: the longest blocking pop is 15 s less, and RQ takes a silent worker for dead 60 s after it.
_WORKER_TTL = 20
_LEAVE_SECONDS = 0.05
# How long to wait for a job before looking after the GPU: less than the canary may take to answer, so that the parent
# waits for the answer, and not for a job, when its time is over.
IDLE_SECONDS = 1


class End(Enum):
    """Why an attempt ended without an answer."""

    CANCELED = "canceled"
    TIMEOUT = "timed out"
    DEADLINE = "past its deadline"
    DIED = "died"
    HUNG = "given to a GPU that hung"
    RELEASED = "released"


@dataclass(frozen=True)
class Running:
    work: Assignment
    since: float  # time.monotonic()

    @property
    def request(self) -> JobRequest:
        return self.work.request

    @property
    def held(self) -> Held:
        return self.work.request, self.work.attempt


class HorseDied(Exception):
    """The idle child has died."""


class WarmWorker(Worker):
    """One parent and one child on one device. `work()` returns when it was asked to stop."""

    def __init__(self, settings: WorkerSettings) -> None:
        self.settings = settings
        self.process = identity()
        self.patience = Patience()
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_reader, False)
        os.set_blocking(self._wake_writer, False)
        self._running: Running | None = None
        self._revoked: Held | None = None
        self._kill_wanted = False
        self._interruptible = False
        self._stop_at: float | None = None
        self._started_at = time.time()
        self._suspension_seen_at = self._heartbeat_at = 0.0
        self._others_seen_at, self._others_have_gpu = 0.0, False
        self.undelivered = False
        operations = settings.catalogue()
        self._store = SpoolStore(settings.store_directory)
        self._examples = Examples(operations, self._store)
        # First of all: it warms up while Redis may still be away.
        self._children = Children(settings, self._examples, self)

        connection = connect(settings.redis_url, Retry(self.patience, -1), timeout=_WORKER_TTL)
        super().__init__(
            [Queue(QUEUE, connection=connection, serializer=JSONSerializer)],
            name=f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(2)}",
            connection=connection,
            worker_ttl=_WORKER_TTL,
            serializer=JSONSerializer,
            log_job_description=False,
        )
        self.log_result_lifespan = False
        self._jobs = JobQueue(connection)
        self._endings = Endings(self._jobs, self._store, operations)
        self._pulse = Pulse(settings.redis_url, self, lambda queue: Endings(queue, self._store, operations))

    # What RQ's loop calls around a job.

    def bootstrap(self, *arguments: Any, **options: Any) -> None:
        super().bootstrap(*arguments, **options)
        self._pulse.start()

    def dequeue_job_and_maintain_ttl(
        self, timeout: int | None, max_idle_time: int | None = None
    ) -> tuple[Job, Queue] | None:
        """Wait for the child to be ready, then for a job; look after the GPU, and at `rq suspend`, while none comes."""
        while True:
            self.check_for_suspension(burst=timeout is None)
            self._children.await_ready()
            self._children.look_after_gpu()
            if not self._horse.ready and not self._stop_requested:
                continue
            try:
                self._interruptible = True
                if self._stop_requested:
                    raise StopRequested
                if self._horse.has_died():
                    raise HorseDied
                if timeout is None:  # a burst
                    return super().dequeue_job_and_maintain_ttl(timeout, max_idle_time)
                if popped := super().dequeue_job_and_maintain_ttl(IDLE_SECONDS, IDLE_SECONDS):
                    return popped
            except HorseDied:
                self._interruptible = False
                self._children.died_idle()
                self._restore_popped()
            except Exception as error:
                self._interruptible = False
                if not hasattr(error, "job_id"):
                    raise
                # RQ cannot read what is on the queue under this id: not a job of ours.
                log.error("%s on the queue is not a job: %s", error.job_id, type(error).__name__)
                self.connection.lrem(self.queues[0].intermediate_queue_key, 0, error.job_id)
            finally:
                self._interruptible = False

    def prepare_execution(self, job: Job) -> None:
        """Nothing: `JobQueue.start` writes RQ's execution in the step that claims the job."""

    def fork_work_horse(self, job: Job, queue: Queue) -> None:
        """Claim the job and hand it to the child."""
        if not _is_ours(job):
            self._refuse(job, queue)
            return
        leaves = self._leaves_gpu_jobs()
        self._children.await_canary()
        if not self._horse.ready:  # it hung: the job waits for the next child
            self._restore_popped()
            return
        started = self._jobs.start(job.id, self.name, self.process, secrets.token_hex(16), leave_gpu_jobs=leaves)
        if started is None:
            self._endings.not_started(job.id)
            if leaves:  # it may be a job that only goes round until the worker with the GPU is free
                wait([self._wake_reader], _LEAVE_SECONDS)
            return
        request, attempt = started
        self._revoked = self._stopped_job_id = None
        self._kill_wanted = False
        work = self._children.assignment(request, attempt, self._strikes(request, attempt))
        self._running = Running(work, time.monotonic())
        self._horse_pid = self._horse.pid or 0
        self._state = WorkerStatus.BUSY  # as `start` wrote it
        try:
            send(self._horse.pipe, work)
        except OSError:
            log.warning("%s: the child was gone before it got the job", request.id)

    def monitor_work_horse(self, job: Job, queue: Queue) -> None:
        """Wait for the child's answer, the time-out, the deadline, a cancel or the end of the drain; then conclude."""
        running = self._running
        if running is None:
            return
        try:
            end = self._watch(running)
            self._conclude(running, end)
        except StopRequested:
            self.undelivered = True
            raise
        finally:
            self._running = None
            self._horse_pid = 0
            self._state = WorkerStatus.IDLE  # as every ending writes it

    def kill_horse(self, sig: signal.Signals = signal.SIGKILL) -> None:
        """Ask the main thread to end the running job (RQ calls this on a stop-job or kill-horse command)."""
        self._kill_wanted = True
        self._wake()

    def wait_for_horse(self) -> tuple[int | None, int | None, None]:
        """The ended child's number."""
        pid = self._horse.pid
        self._horse.reap()
        return pid, None, None

    # Fewer round trips than RQ's: once per second or per five seconds instead of several times per job.

    def heartbeat(self, timeout: int | None = None, pipeline: Any = None) -> None:
        if pipeline is None:
            if time.monotonic() - self._heartbeat_at < 5:
                return
            self._heartbeat_at = time.monotonic()
        super().heartbeat(timeout, pipeline)

    def check_for_suspension(self, burst: bool) -> None:
        """Take no job while `rq suspend` holds, and look after the GPU meanwhile, which RQ's own waiting would not."""
        if time.monotonic() - self._suspension_seen_at <= 1:
            return
        while not self._stop_requested and is_suspended(self.connection, self):
            if burst:
                raise StopRequested
            self.set_state(WorkerStatus.SUSPENDED)  # as RQ calls it; the next wait for a job ends it
            self._children.await_ready()
            if self._horse.has_died():
                self._children.died_idle()
            self._children.look_after_gpu()
            self.pause(1.0, self._horse.pipe)
        self._suspension_seen_at = time.monotonic()

    def set_state(self, state: str, pipeline: Any = None) -> None:
        if state != self._state or pipeline is not None:
            super().set_state(state, pipeline)

    def get_current_job_id(self, pipeline: Any = None) -> str | None:
        running = self._running
        return None if running is None else running.request.id

    def run_maintenance_tasks(self) -> None:
        """Not RQ's, which fails jobs it takes for abandoned; `workers.recovery` returns them to the queue instead."""
        self.last_cleaned_at = rq_now()

    # Signals and the end.

    def request_stop(self, signum: int, frame: FrameType | None) -> None:
        """Finish the running job within the grace, or give it back; the second signal ends the grace."""
        now = time.monotonic()
        if self._stop_at is None:
            self._stop_at = now + self.settings.drain_seconds
        elif now > self._stop_at - self.settings.drain_seconds + 1:  # a group's signal often comes twice at once
            self._stop_at = now
        self._stop_requested = True
        self.patience.end_by = self._stop_at + 3
        self._wake()
        if self._interruptible:
            raise StopRequested

    def _install_signal_handlers(self) -> None:
        super()._install_signal_handlers()
        signal.signal(signal.SIGCHLD, self._on_child)

    def _on_child(self, signum: int, frame: FrameType | None) -> None:
        if self._interruptible and self._horse.has_died():
            raise HorseDied

    def _pubsub_exception_handler(self, exc: Exception, pubsub: Any, pubsub_thread: Any) -> None:
        if self._stop_requested or isinstance(exc, StopRequested):
            pubsub_thread.stop()
            return
        # RQ's own handler lets a time-out end the thread, and cancels with it.
        log.warning("commands are not heard: %s", type(exc).__name__)
        time.sleep(1.0)

    def unsubscribe(self) -> None:
        if self.pubsub_thread:
            self.pubsub_thread.stop()  # before RQ wakes it, else it listens for another minute
        super().unsubscribe()

    def teardown(self) -> None:
        self.patience.end_by = time.monotonic() + 3 if self.patience.end_by is None else self.patience.end_by
        self._pulse.stop()
        self._children.end()
        self._restore_popped()
        super().teardown()
        self._pulse.join(timeout=2)
        self._jobs.unregister(self.name)

    # What the children ask.

    @property
    def _horse(self) -> Horse:
        return self._children.horse

    @property
    def stopping(self) -> bool:
        return bool(self._stop_requested)

    def pause(self, seconds: float, *readable: Connection) -> bool:
        """Wait so long at most, until one of these can be read, or until there is something else to do."""
        ready = wait([*readable, self._wake_reader], seconds)
        self._drain_wake()
        return any(connection in ready for connection in readable)

    def news(self) -> None:
        self._pulse.beat()

    # What the pulse asks.

    def held(self) -> Held | None:
        running = self._running
        return None if running is None else running.held

    def revoke(self, held: Held) -> None:
        self._revoked = held
        self._wake()

    def report(self) -> WorkerReport:
        state: WorkerState
        if self._horse.ready:
            state = "ready" if self._running is None else "busy"
        else:
            state = "starting" if self._horse.starts <= 1 else "restarting"
        return WorkerReport(
            name=self.name,
            host=socket.gethostname(),
            pid=os.getpid(),
            child_pid=self._horse.pid,
            state=state,
            device=self._horse.device,
            started_at=self._started_at,
            reported_at=time.time(),
            restarts=max(0, self._horse.starts - 1),
            last_fault=self._children.last_fault,
            failed_examples=self._examples.failed,
            gpu=self._children.gpu(),
            fallbacks=dict(self._children.fallbacks),
        )

    def keep_registered(self, connection: redis.Redis) -> None:
        if self.birth_date is None:
            return
        with connection.pipeline() as pipe:
            if not connection.exists(self.key):  # Redis lost it, or nobody renewed it for a minute
                pipe.hset(self.key, mapping={**self.serialize(), "state": self._state})
                rq_registration.register(self, pipe)
            self.heartbeat(pipeline=pipe)
            pipe.execute()

    # A job.

    def _watch(self, running: Running) -> Succeeded | Failed | End:
        ends_at = running.since + running.request.timeout
        reason = End.TIMEOUT
        if running.request.deadline is not None:
            deadline = time.monotonic() + running.request.deadline - time.time()
            if deadline < ends_at:
                ends_at, reason = deadline, End.DEADLINE
        while True:
            if self._revoked == running.held or self._stopped_job_id == running.request.id:
                return End.CANCELED
            if self._kill_wanted and self._stopped_job_id is None:
                return End.DIED  # RQ's kill-horse command
            until, end = ends_at, reason
            if self._stop_at is not None and self._stop_at < until:
                until, end = self._stop_at, End.RELEASED
            left = until - time.monotonic()
            if (canary_left := self._horse.canary_left) is not None and canary_left < left:
                left, end = canary_left, End.HUNG
            ready = wait([self._horse.pipe, self._wake_reader], max(0.0, left))
            if self._horse.pipe in ready:
                try:
                    message = self._horse.hear()
                except (EOFError, OSError):
                    return End.DIED
                if isinstance(message, Answer):
                    self._children.answered(running.work, message)
                    return message.outcome
                if isinstance(message, Checked):
                    self._children.condition.told(message)
                elif isinstance(message, Lost):
                    return End.DIED
            elif not ready and not (end is End.HUNG and (self._horse.canary_left or 0.0) > 0):
                return end
            self._drain_wake()

    def _conclude(self, running: Running, end: Succeeded | Failed | End) -> None:
        request, attempt = running.held
        if isinstance(end, Succeeded | Failed):
            self._endings.commit(request, attempt, end)
            return
        if end is End.DIED:
            self._died(running)
            return
        if end is End.HUNG:  # before the job began: no strike against it
            why = self._children.hung()
            self._endings.released(request, attempt)
            self._children.respawn(why)
            return
        # The child is of no use any more. What it was writing is deleted after its death.
        why = f"a job was {end.value}, and its process ended with it"
        if end is not End.RELEASED:
            ran = time.monotonic() - running.since
            self._children.ended_in_job(request, f"was {end.value}", ran, timed_out=end is End.TIMEOUT)
        self._children.kill(why)
        log.warning("%s attempt %d: %s, the child was killed", request.id, attempt, end.value)
        if end is End.TIMEOUT:
            late = Failed(code="timeout", message=f"an attempt may run {request.timeout:g} s, and this one ran longer")
            self._endings.commit(request, attempt, late)
        elif end is End.DEADLINE:
            self._endings.expired(request, attempt)
        elif end is End.CANCELED:
            if self._stopped_job_id == request.id:
                self._jobs.cancel(request.id)  # unchanged, unless it was RQ's command that stopped it
            self._endings.canceled(request, attempt)
        else:
            self._endings.released(request, attempt)
        if end is not End.RELEASED:
            self._children.respawn(why, fault=False)

    def _died(self, running: Running) -> None:
        """The child ended in the middle of a job: the job is queued again before anything else is done."""
        request, attempt = running.held
        lost = self._horse.lost
        if lost is not None:  # it does nothing any more but end, which may take the driver a while
            why = f"the device was lost ({lost.message})"
            self._endings.died(request, attempt, Failed(code="device-fault", message=why, retryable=True))
            self._children.lost(request, lost)
            self._horse.reap()
        else:
            why = self._horse.reap()
            kind = "worker-died" if self._horse.lost is None else "device-fault"
            self._endings.died(request, attempt, Failed(code=kind, message=why, retryable=True))
        self._children.respawn(why)

    # Small questions.

    def _strikes(self, request: JobRequest, attempt: int) -> str | None:
        """A reason to keep off the GPU: the last attempt of a job that two workers died of runs on the CPU."""
        if attempt < MAX_ATTEMPTS:
            return None
        strikes = self._jobs.strikes(request.id)
        return f"{strikes} attempts on the GPU ended with the worker's death" if strikes >= MAX_ATTEMPTS - 1 else None

    def _leaves_gpu_jobs(self) -> bool:
        """A worker without a GPU leaves jobs that insist on one to a worker that has one, as long as there is one."""
        if self._children.use_gpu:
            return False
        if time.monotonic() - self._others_seen_at > 1:
            self._others_seen_at = time.monotonic()
            self._others_have_gpu = any(
                report.device is not None and report.device.backend == "gpu" for report in self._jobs.workers()
            )
        return self._others_have_gpu

    def _refuse(self, job: Job, queue: Queue) -> None:
        """Fail a job of someone else's on our queue, by RQ's own means, without importing what it names."""
        log.error("%s on the queue does not name %s: refused", job.id, TASK)
        with self.connection.pipeline() as pipe:
            job.set_status(JobStatus.FAILED, pipeline=pipe)
            queue.failed_job_registry.add(job, ttl=24 * 3600, pipeline=pipe)
            pipe.lrem(queue.intermediate_queue_key, 0, job.id)
            pipe.execute()

    def _restore_popped(self) -> None:
        """Nothing may stay between pop and start when the pop was interrupted."""
        for job_id in self._jobs.popped():
            self._jobs.restore(job_id)

    def _wake(self) -> None:
        with suppress(BlockingIOError):  # it is full of calls already
            os.write(self._wake_writer, b"!")

    def _drain_wake(self) -> None:
        with suppress(BlockingIOError):
            while os.read(self._wake_reader, 512):
                pass


def run(settings: WorkerSettings | None = None) -> int:
    """Work until SIGTERM or SIGINT; 0 after a clean stop, 1 after anything else."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO)
    for name in ("rq.worker", "rq.job"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, lambda *_: sys.exit(0))  # nothing has begun: there is nothing to finish
    worker = WarmWorker(settings or WorkerSettings())
    try:
        worker.work(logging_level="WARNING")
    except StopRequested:
        log.warning("stopped while Redis was away")
    return 0 if worker._stop_requested and not worker.undelivered else 1


def _is_ours(job: Job) -> bool:
    try:
        return bool(job.func_name == TASK and list(job.args) == [job.id] and not job.kwargs)
    except DeserializationError:
        return False


if __name__ == "__main__":
    sys.exit(run())
