"""The worker: an RQ worker whose work horse is one warm child instead of a fork per job.

The parent, this process, claims jobs and commits outcomes. It never touches the device or a kernel, so it can end a job
at any moment, native code or not, by killing the child, and a crash of the child never costs more than an attempt.
What it waits for (jobs and the queue's bell, the child, signals, commands) it waits for in one place at a time, by
`wait`.
"""

# ruff: noqa: ARG002 (the signatures are RQ's)

import gc
import logging
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from multiprocessing.connection import Connection, wait
from types import FrameType
from typing import Any

import redis
from rq import Queue, Worker
from rq import utils as rq_utils
from rq import worker_registration as rq_registration
from rq.command import parse_payload
from rq.exceptions import StopRequested
from rq.serializers import JSONSerializer
from rq.suspension import is_suspended
from rq.worker import WorkerStatus

from warpdesk_server.workers import logs
from warpdesk_server.workers.parent.blocking_pop import BlockingPop
from warpdesk_server.workers.parent.child_process import ChildProcess
from warpdesk_server.workers.parent.claims import Claims
from warpdesk_server.workers.parent.endings import Endings
from warpdesk_server.workers.parent.examples import Examples
from warpdesk_server.workers.parent.heartbeat import Heartbeat
from warpdesk_server.workers.parent.redis_retry import RetryUntilStopped, StoppableBackoff
from warpdesk_server.workers.parent.supervisor import ChildSupervisor
from warpdesk_server.workers.pipe import Answer, Assignment, Checked, Lost, Progressed, send
from warpdesk_server.workers.process import identity
from warpdesk_server.workers.queue.counts import Tally
from warpdesk_server.workers.queue.jobs import JobQueue, connect
from warpdesk_server.workers.queue.keys import BELL, QUEUE, handed_key
from warpdesk_server.workers.queue.protocol import MAX_STRIKES, Failed, Succeeded
from warpdesk_server.workers.queue.records import Batch, Claim, Ending, Held
from warpdesk_server.workers.queue.reports import WorkerReport, WorkerState
from warpdesk_server.workers.settings import WorkerSettings
from warpdesk_server.workers.store.choice import open_store

log = logging.getLogger("warpdesk.worker")

_WORKER_TTL = 20  # RQ takes a silent worker for dead 60 s after it
_REDIS_SECONDS = 5.0  # how long one answer of Redis may take; it is asked again then
# How long to wait for a job before looking after the GPU: less than the canary may take to answer, so that the parent
# waits for the answer, and not for a job, when its time is over; and less than Redis holds its claim meanwhile.
WAIT_SECONDS = 1
# How long the child may go on with jobs that nobody wants any more, since a new one takes longer to start than most
# jobs to end; and with a launch in which others are still wanted.
_UNWANTED_SECONDS, _COMPANY_SECONDS = 0.3, 1.0
_STOPPED = "its worker stopped"
_LOOK_SECONDS = 0.01  # how often a launch that waits for company looks for it


class End(Enum):
    """Why a launch ended without an answer."""

    CANCELED = "canceled"
    TIMEOUT = "timed out"
    DEADLINE = "past its deadline"
    DIED = "died"
    HUNG = "given to a GPU that hung"
    RELEASED = "released"


@dataclass
class Launch:
    """What the child computes now."""

    work: Assignment
    jobs: tuple[Held, ...]
    since: float  # time.monotonic()
    sent: bool = False  # else the child was gone before it got it
    gone: dict[Held, float] = field(default_factory=dict)  # jobs that are not wanted any more, since when
    overdue: set[Held] = field(default_factory=set)  # those of them whose deadline passed

    @property
    def live(self) -> list[Held]:
        return [job for job in self.jobs if job not in self.gone]

    @property
    def ends_at(self) -> float:
        return self.since + min(job.request.timeout for job in self.jobs)


class WarmWorker(Worker):
    """One parent and one child on one device. `work()` returns when it was asked to stop."""

    def __init__(self, settings: WorkerSettings) -> None:
        self.settings = settings
        self.process = identity()
        self.backoff = StoppableBackoff()
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_reader, False)
        os.set_blocking(self._wake_writer, False)
        self._held: tuple[Held, ...] = ()  # every attempt that is claimed and not ended
        self._waits: Claim | None = None  # by which Redis may hand it more
        self._revoked: set[Held] = set()  # those of them that are this worker's no more
        self._stopped_in_rq: set[Held] = set()  # those of them that RQ's stop-job command names
        self._kill_wanted = False
        self._stop_at: float | None = None  # when the grace of a stopping worker is over, time.monotonic()
        self._signaled_at: float | None = None
        self._idle_since: float | None = None  # None until it could take a job, and while it has one
        self._started_at = time.time()
        self._suspension_seen_at = self._heartbeat_at = 0.0
        self._others_have_gpu = False
        self.undelivered = False
        operations = settings.catalogue()
        self._store = open_store(settings)
        self._examples = Examples(operations, self._store)
        # First of all: it warms up while Redis may still be away.
        self._supervisor = ChildSupervisor(settings, self._examples, self)

        connection = connect(settings.redis_url, RetryUntilStopped(self.backoff), timeout=_REDIS_SECONDS)
        super().__init__(
            [Queue(QUEUE, connection=connection, serializer=JSONSerializer)],
            name=f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(2)}",
            connection=connection,
            worker_ttl=_WORKER_TTL,
            serializer=JSONSerializer,
            log_job_description=False,
        )
        self.log_result_lifespan = False
        self._jobs = JobQueue(connection, self._store.mac_of)
        self._pop = BlockingPop(connection, WAIT_SECONDS)
        self._claims = Claims(settings, operations)
        self._endings = Endings(self._jobs, self._store, operations, settings.retry_delays, self._claims, self.tally)
        self._heartbeat = Heartbeat(
            settings.redis_url, self, lambda queue: Endings(queue, self._store, operations), self._store.mac_of
        )

    def work(self) -> None:
        """Claim and run jobs until asked to stop."""
        self.bootstrap("WARNING")
        self.look_around(self._jobs)
        self._heartbeat.start()
        self._install_signal_handlers()
        signal.signal(signal.SIGALRM, lambda *_: self._drain())  # WARPDESK_MAX_SECONDS, see `run`
        try:
            batch: Batch | None = None
            while not self._stop_requested:
                if batch is None:
                    self.check_for_suspension()
                    self._supervisor.await_ready()
                self._supervisor.look_after_gpu()
                if batch is None:  # else it came with the end of the one before, and waits for nothing
                    if self._stop_requested or not self._child.ready:
                        continue
                    batch = self._wait_for_work() or self._leave_if_idle()
                    if batch is None:
                        continue
                self._idle_since = None
                batch = self._run(batch)
            self.release(_STOPPED)
        except StopRequested:
            self.undelivered = bool(self._held)
            raise
        finally:
            self._held = ()
            self.teardown()

    def _claim(self, **only: Any) -> Claim:
        return Claim(self.name, self.process, gpu=not self._leaves_gpu_jobs(), **only)

    def _wait_for_work(self) -> Batch | None:
        """Jobs, unless none come within a second, the child says something, or there is something else to do."""
        gpu = not self._leaves_gpu_jobs()
        if self._waits is not None and self._waits.gpu is not gpu:
            self.release("its worker waits for other jobs from now on")
        claim = self._waits or self._claim(waits=True)
        batch = self._jobs.claim(claim)
        if batch is None:
            self._waits = claim
            bells = [f"{BELL}any", *([f"{BELL}gpu"] if gpu else [])]
            rope = self._pop.listen([handed_key(self.name), *bells])
            ready = wait([*rope, self._child.pipe, self._wake_reader], WAIT_SECONDS)
            heard = self._pop.hear() if rope and rope[0] in ready else None
            if heard is not None and heard[0] not in bells:
                batch = self._jobs.handed(claim, heard[1])
            self._drain_wake()
            if self._child.pipe in ready and (not self._supervisor.listen() or self._child.lost is not None):
                self._take(batch)
                self.release("the worker process ended before the job began")
                self._supervisor.died_idle()
                return None
        self._take(batch)
        if batch is not None and (trouble := self._store.trouble()) is not None:  # since it began to wait
            self.release(trouble)
            return None
        return batch

    def _leave_if_idle(self) -> Batch | None:
        """Stop after too long without a job, unless one was handed over in the last moment: then it is run."""
        now, longest = time.monotonic(), self.settings.idle_exit_seconds
        if self._idle_since is None:
            self._idle_since = now
        if longest is None or now - self._idle_since < longest:
            return None
        waits, self._waits = self._waits, None
        batch = self._jobs.leave(waits) if waits is not None else None
        self._take(batch)
        if batch is None:
            log.info("no job for %g s (WARPDESK_IDLE_EXIT_SECONDS): the worker stops", now - self._idle_since)
            self._drain()
        return batch

    def _take(self, batch: Batch | None) -> None:
        """What it has now is its own to end, and it waits no more."""
        if batch is not None:
            self._held, self._waits = batch.jobs, None

    def release(self, why: str) -> None:
        """Give back what it holds and what it may be handed, before it does something that takes long."""
        waits, self._waits = self._waits, None
        if waits is not None:
            self._take(self._jobs.leave(waits))
        if self._held:
            self._end([_given_back(job, why) for job in self._held])

    def _end(self, endings: Sequence[Ending]) -> None:
        self._endings.end(endings, self.name)
        self._let_go([ending.job for ending in endings])

    def _run(self, batch: Batch) -> Batch | None:
        """Run what was claimed; returns what was claimed in the step in which it ended."""
        self._supervisor.await_canary()
        if not self._held:  # given back, as the child was replaced
            return None
        if not self._child.ready:  # the jobs need not wait for the next child
            self.release("the worker process ended before the job began")
            return None
        batch = self._with_company(batch)
        keys, refused = self._claims.claim(batch.jobs)
        if refused:
            ended = {ending.job for ending in refused}
            batch = Batch(tuple(job for job in batch.jobs if job not in ended), batch.reason)
            self._endings.end(refused, self.name)
            self._let_go([*ended], batch)
            if not batch.jobs:
                return None
        launch = self._start(batch.jobs, keys)
        end = self._watch(launch)
        if isinstance(end, Answer):
            self._supervisor.answered(launch.work, end)
            return self._commit(launch, self._supervisor.costed(launch.work, end, launch.since), batch.reason)
        self._conclude(launch, end)
        return None

    def _with_company(self, batch: Batch) -> Batch:
        """Wait for more jobs of the same key, as long as their operation wants to."""
        first = batch.jobs[0].request
        if first.together is None or not first.together.wait or batch.reason != "drained":
            return batch
        until = time.monotonic() + first.together.wait
        room = first.together.bytes - sum(job.request.size for job in batch.jobs)
        while not self._stop_requested and (left := until - time.monotonic()) > 0:
            items = first.together.items - len(batch.jobs)
            more = self._jobs.claim(self._claim(only=first.together.key, items=items, bytes=room))
            if more is None:
                wait([self._wake_reader], min(left, _LOOK_SECONDS))  # the bell rings for other jobs too
                self._drain_wake()
                continue
            room -= sum(job.request.size for job in more.jobs)
            batch = Batch((*batch.jobs, *more.jobs), more.reason)
            self._held = batch.jobs
            if more.reason != "drained":
                return batch
        return Batch(batch.jobs, "waited")

    def _start(self, jobs: tuple[Held, ...], keys: Mapping[str, bytes]) -> Launch:
        """Hand jobs to the child, with the keys of their noise."""
        self._kill_wanted = False
        launch = Launch(self._supervisor.assignment(jobs, keys), jobs, time.monotonic())
        self._horse_pid = self._child.pid or 0
        self._state = WorkerStatus.BUSY  # as the claim wrote it
        try:
            send(self._child.pipe, launch.work)
            launch.sent = True
        except OSError:
            told = logs.about(jobs[0].request, jobs[0].attempt)
            log.warning("%s: the child was gone before it got the job", jobs[0].request.id, extra=told)
        return launch

    def kill_horse(self, sig: signal.Signals = signal.SIGKILL) -> None:
        """Ask the main thread to end what runs (RQ calls this on a kill-horse command)."""
        self._kill_wanted = True
        self._wake()

    def wait_for_horse(self) -> tuple[int | None, int | None, None]:
        """The ended child's number."""
        pid = self._child.pid
        self._child.reap()
        return pid, None, None

    def handle_payload(self, message: Any) -> None:
        """RQ's stop-job command names one of several jobs; the others are RQ's."""
        payload = parse_payload(message)
        if payload.get("command") != "stop-job":
            super().handle_payload(message)
            return
        named = [job for job in self._held if job.request.id == payload.get("job_id")]
        self._stopped_in_rq.update(named)
        self.revoke(named)

    # Fewer round trips than RQ's: once per second or per five seconds instead of several times per job.

    def heartbeat(self, timeout: int | None = None, pipeline: Any = None) -> None:
        if pipeline is None:
            if time.monotonic() - self._heartbeat_at < 5:
                return
            self._heartbeat_at = time.monotonic()
        # In whole seconds: the heartbeat that calls it is woken as a private job ends.
        self.last_heartbeat = rq_utils.now().replace(microsecond=0)
        connection = self.connection if pipeline is None else pipeline
        connection.hset(self.key, "last_heartbeat", rq_utils.utcformat(self.last_heartbeat))
        connection.expire(self.key, timeout or self.worker_ttl + 60)

    def check_for_suspension(self, burst: bool = False) -> None:
        """Take no job while `rq suspend` holds or arrays cannot be had. RQ's own waiting would not look after the GPU
        meanwhile."""
        if self._store.trouble() is None and time.monotonic() - self._suspension_seen_at <= 1:
            return
        while not self._stop_requested and (self._store.trouble() or is_suspended(self.connection, self)):
            self.release("its worker was suspended")
            self.set_state(WorkerStatus.SUSPENDED)  # as RQ calls it
            self._supervisor.await_ready()
            if self._child.has_died():
                self._supervisor.died_idle()
            self._supervisor.look_after_gpu()
            if not self._stop_requested:  # else there may be no child any more
                self.pause(1.0, self._child.pipe)
        if self._state == WorkerStatus.SUSPENDED:
            self.set_state(WorkerStatus.IDLE)
        self._suspension_seen_at = time.monotonic()

    def set_state(self, state: str, pipeline: Any = None) -> None:
        if state != self._state or pipeline is not None:
            super().set_state(state, pipeline)

    def get_current_job_id(self, pipeline: Any = None) -> str | None:
        held = self._held
        return held[0].request.id if held else None

    # Signals and the end.

    def request_stop(self, signum: int, frame: FrameType | None) -> None:
        """Finish the running job within the grace, or give it back; the second signal ends the grace."""
        now = time.monotonic()
        if self._signaled_at is None:
            self._signaled_at = now
        elif now > self._signaled_at + 1:  # a group's signal often comes twice at once
            self._stop_at = now
        self._drain()

    def _drain(self) -> None:
        """Take no more jobs; what runs has the grace, counted from the first reason to stop."""
        if self._stop_at is None:
            self._stop_at = time.monotonic() + self.settings.drain_seconds
        self._stop_requested = True
        self.backoff.end_by = self._stop_at + 3
        self._wake()

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
        self.backoff.end_by = time.monotonic() + 3 if self.backoff.end_by is None else self.backoff.end_by
        self._heartbeat.stop()
        self._supervisor.end()
        self._pop.close()
        self._store.close()
        super().teardown()
        self._heartbeat.join(timeout=2)
        self._jobs.unregister(self.name)

    # What the children ask.

    @property
    def _child(self) -> ChildProcess:
        return self._supervisor.child

    @property
    def stopping(self) -> bool:
        return bool(self._stop_requested)

    def pause(self, seconds: float, *readable: Connection) -> bool:
        """Wait so long at most, until one of these can be read, or until there is something else to do."""
        ready = wait([*readable, self._wake_reader], seconds)
        self._drain_wake()
        return any(connection in ready for connection in readable)

    def news(self) -> None:
        self._heartbeat.beat()

    # What the heartbeat asks.

    @property
    def tally(self) -> Tally:
        return self._supervisor.tally

    def held(self) -> Sequence[Held]:
        return self._held

    def revoke(self, jobs: Collection[Held]) -> None:
        self._revoked.update(jobs)
        self._wake()

    def look_around(self, queue: JobQueue) -> None:
        self._others_have_gpu = any(
            report.device is not None and report.device.backend == "gpu"
            for report in queue.workers()
            if report.name != self.name
        )

    def report(self) -> WorkerReport:
        state: WorkerState
        if self._child.ready:
            state = "busy" if self._held else "ready"
        else:
            state = "starting" if self._child.starts <= 1 else "restarting"
        return WorkerReport(
            name=self.name,
            host=socket.gethostname(),
            pid=os.getpid(),
            child_pid=self._child.pid,
            state=state,
            device=self._child.device,
            started_at=self._started_at,
            reported_at=float(int(time.time())),  # news is reported as a private job ends
            restarts=max(0, self._child.starts - 1),
            last_fault=self._supervisor.last_fault,
            failed_examples=self._examples.failed,
            gpu=self._supervisor.gpu(),
            fallbacks=dict(self._supervisor.fallbacks),
            dollars_per_hour=self._supervisor.dollars_per_hour,
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

    # A launch.

    def _watch(self, launch: Launch) -> Answer | End:
        """Until the child answers, a time is over, or nobody wants the answer any more."""
        while True:
            now = time.monotonic()
            self._leave_out(launch, now)
            live = launch.live
            if self._kill_wanted:
                return End.DIED  # RQ's kill-horse command
            end: End | None  # None: look again
            until, end = launch.ends_at, End.TIMEOUT
            if launch.gone:
                grace = min(launch.gone.values()) + (_COMPANY_SECONDS if live else _UNWANTED_SECONDS)
                if grace < until:
                    until, end = grace, End.DEADLINE if launch.overdue == set(launch.gone) else End.CANCELED
            if (due := min((job.due for job in live if job.due is not None), default=until)) < until:
                until, end = due, None
            if self._stop_at is not None and self._stop_at < until:
                until, end = self._stop_at, End.RELEASED
            left = until - now
            if (canary_left := self._child.canary_left) is not None and canary_left < left:
                left, end = canary_left, End.HUNG
            ready = wait([self._child.pipe, self._wake_reader], max(0.0, left))
            if self._child.pipe in ready:
                try:
                    message = self._child.hear()
                except (EOFError, OSError):
                    return End.DIED
                if isinstance(message, Answer):
                    return message
                if isinstance(message, Progressed):
                    self._heartbeat.progress(message.job, launch.jobs[0].attempt, message.done)
                elif isinstance(message, Checked):
                    self._supervisor.condition.told(message)
                elif isinstance(message, Lost):
                    return End.DIED
            elif not ready and end is not None and not (end is End.HUNG and (self._child.canary_left or 0.0) > 0):
                return end
            self._drain_wake()

    def _leave_out(self, launch: Launch, now: float) -> None:
        """Note which jobs are not wanted any more."""
        for job in launch.live:
            if job in self._revoked:
                launch.gone[job] = now
            elif job.due is not None and job.due <= now:
                launch.gone[job] = now
                launch.overdue.add(job)

    def _commit(self, launch: Launch, answer: Answer, reason: str) -> Batch | None:
        """End what was answered and claim the next in the same round trip, if there may be a next."""
        then = None
        if not self._stop_requested and self._child.ready and time.monotonic() - self._suspension_seen_at <= 1:
            then = self._claim()
        outcomes = self._outcomes(launch, answer, reason)
        batch = self._endings.end(outcomes, self.name, then=then, transfers=answer.transfers)
        self._let_go(launch.jobs, batch)
        return batch

    def _let_go(self, jobs: Sequence[Held], batch: Batch | None = None) -> None:
        """These have ended; `batch` is what the worker holds now."""
        self._held = () if batch is None else batch.jobs
        self._stopped_in_rq.difference_update(jobs)
        # What the heartbeat was told while they ended, too: it asks of jobs that have ended by the time it says so.
        self._revoked.difference_update(set(self._revoked).difference(self._held))
        if not self._held:
            self._horse_pid = 0
            self._state = WorkerStatus.IDLE  # as every ending writes it

    def _outcomes(self, launch: Launch, answer: Answer, reason: str) -> list[Ending]:
        """What was answered, and why the launch was as large as it was; late jobs are expired all the same."""
        endings = []
        for job, outcome in zip(launch.jobs, answer.outcomes, strict=True):
            if job in launch.overdue:
                endings.append(Ending(job, how="expired"))
                continue
            if isinstance(outcome, Succeeded) and job.request.together is not None:
                how = outcome.provenance.model_copy(update={"batch_reason": reason})
                outcome = outcome.model_copy(update={"provenance": how})
            kept_off = self._supervisor.kept_off(launch.work, answer, outcome)
            endings.append(Ending(job, outcome, kept_off=kept_off or ""))
        return endings

    def _conclude(self, launch: Launch, end: End) -> None:
        """Jobs go back to the queue, or end, before anything else is done."""
        if end is End.DIED:
            self._died(launch)
        elif end is End.HUNG:  # before a job began: no strike against it
            why = self._supervisor.hung()
            self._end([_given_back(job, why) for job in launch.jobs])
            self._supervisor.respawn(why)
        else:
            self._killed(launch, end)

    def _killed(self, launch: Launch, end: End) -> None:
        """The child is of no use any more. What it was writing is deleted after its death.

        Of several jobs it is not known which took too long: each runs alone next time. What a cancel or a deadline of
        one ended for the others is no fault of theirs.
        """
        first = launch.jobs[0].request
        why = f"a job was {end.value}, and its process ended with it"
        if end is not End.RELEASED:
            ran = time.monotonic() - launch.since
            self._supervisor.ended_in_job(first, f"was {end.value}", ran, timed_out=end is End.TIMEOUT)
        self._supervisor.kill(why)
        attempt = launch.jobs[0].attempt
        told = logs.about(first, attempt)
        log.warning("%s attempt %d: %s, the child was killed", first.id, attempt, end.value, extra=told)
        endings = []
        for job in launch.jobs:
            if job in launch.overdue:
                endings.append(Ending(job, how="expired"))
            elif job in launch.gone:
                if job in self._stopped_in_rq:
                    self._jobs.cancel(job.id, by_worker=True)  # unchanged, unless RQ's command stopped it
                endings.append(_given_back(job))  # stale: what it wrote is deleted
            elif end is not End.TIMEOUT:
                endings.append(_given_back(job, why if end is not End.RELEASED else _STOPPED))
            elif len(launch.jobs) > 1:
                endings.append(Ending(job, how="apart", reason="its launch took too long"))
            else:
                late = f"an attempt may run {job.request.timeout:g} s, and this one ran longer"
                endings.append(Ending(job, Failed(code="timeout", message=late)))
        self._end(endings)
        if end is not End.RELEASED:
            self._supervisor.respawn(why, fault=False)

    def _died(self, launch: Launch) -> None:
        """The child ended in the middle of a launch.

        Who of several ended it is not known: alone, each shows, on whatever worker is free. One more death tells, where
        halving the batch would take one for each halving.
        """
        lost = self._child.lost
        # One that lost its device does nothing any more but end, which may take the driver a while.
        why = f"the device was lost ({lost.message})" if lost is not None else self._child.reap()
        kind = "worker-died" if self._child.lost is None else "device-fault"
        endings = []
        for job in launch.jobs:
            if job in launch.gone or not launch.sent:
                endings.append(_given_back(job, why))
            elif len(launch.jobs) > 1:
                endings.append(Ending(job, how="apart", reason=why))  # not in whose company
            else:
                failure = Failed(code=kind, message=f"{why}, {MAX_STRIKES} times; the job was given up", retryable=True)
                endings.append(Ending(job, how="struck", reason=why, failure=failure))
        self._end(endings)
        if lost is not None:
            self._supervisor.lost(launch.jobs[0].request, lost)
            self._child.reap()
        self._supervisor.respawn(why)

    # Small questions.

    def _leaves_gpu_jobs(self) -> bool:
        """A worker without a GPU leaves jobs that insist on one to a worker that has one, as long as there is one."""
        return self._others_have_gpu and not self._supervisor.use_gpu

    def _wake(self) -> None:
        with suppress(BlockingIOError):  # it is full of calls already
            os.write(self._wake_writer, b"!")

    def _drain_wake(self) -> None:
        with suppress(BlockingIOError):
            while os.read(self._wake_reader, 512):
                pass


def run(settings: WorkerSettings | None = None) -> int:
    """Work until SIGTERM, SIGINT or a limit of the settings; 0 after a clean stop, 1 after anything else."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
        signal.signal(signum, lambda *_: sys.exit(0))  # nothing has begun: there is nothing to finish
    settings = settings or WorkerSettings()
    logs.configure(settings.log_format, worker=logs.worker_of(os.getpid()))
    logging.getLogger("warpdesk.jobs").setLevel(settings.log_level.upper())
    signal.setitimer(signal.ITIMER_REAL, settings.max_seconds or 0)  # 0: never
    worker = WarmWorker(settings)
    gc.collect()
    gc.freeze()  # libraries stay until the end: a collection that looks through them takes 40 ms of some job
    try:
        worker.work()
    except StopRequested:
        log.warning("stopped while Redis was away")
    return 0 if worker._stop_requested and not worker.undelivered else 1


def _given_back(job: Held, reason: str = _STOPPED) -> Ending:
    return Ending(job, how="returned", reason=reason)


if __name__ == "__main__":
    sys.exit(run())
