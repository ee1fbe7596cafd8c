"""The worker: claims jobs, has one warm child process compute them, and commits their outcomes.

The parent, this process, claims jobs and commits outcomes. It never touches the device or a kernel, so it can end a job
at any moment, native code or not, by killing the child, and a crash of the child never costs more than an attempt.
`WakePipe.wait` is the one call that waits for jobs, the queue's bell, the child, signals and commands.
"""

import logging
import os
import secrets
import signal
import socket
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any

import redis
from redis.retry import Retry

from warpdesk_server.workers import logs
from warpdesk_server.workers.parent.blocking_pop import BlockingPop
from warpdesk_server.workers.parent.busy_times import VARIABLE, BusyTimes
from warpdesk_server.workers.parent.child_process import ChildProcess
from warpdesk_server.workers.parent.claims import Claims
from warpdesk_server.workers.parent.companion import Companion
from warpdesk_server.workers.parent.endings import Endings
from warpdesk_server.workers.parent.examples import Examples
from warpdesk_server.workers.parent.heartbeat import Heartbeat
from warpdesk_server.workers.parent.launch import STOPPED, Launch, LaunchEnd, given_back
from warpdesk_server.workers.parent.lead import Lead
from warpdesk_server.workers.parent.redis_retry import RetryUntilStopped, StopRequested
from warpdesk_server.workers.parent.rq_presence import RqPresence
from warpdesk_server.workers.parent.sparing import gpu_workers
from warpdesk_server.workers.parent.stopping import StopRequest, WakePipe
from warpdesk_server.workers.parent.supervisor import ChildSupervisor
from warpdesk_server.workers.pipe import Answer, Lost, Progressed, Stepped, StopTask, send
from warpdesk_server.workers.process import identity
from warpdesk_server.workers.queue.counts import Tally
from warpdesk_server.workers.queue.jobs import JobQueue, connect
from warpdesk_server.workers.queue.keys import BELL, handed_key
from warpdesk_server.workers.queue.protocol import OF_TASKS, Kind, Stopped, Succeeded
from warpdesk_server.workers.queue.records import Batch, Claim, Ending, Held, Stale
from warpdesk_server.workers.queue.replicated_jobs import ReplicatedJobs
from warpdesk_server.workers.queue.reports import WorkerReport, WorkerState
from warpdesk_server.workers.settings import WorkerSettings
from warpdesk_server.workers.store.choice import open_store

log = logging.getLogger("warpdesk.worker")

_REDIS_SECONDS = 5.0  # how long one answer of Redis may take, then it is asked again; RQ makes it 15 of the main thread
_REPLICA_SECONDS = 2.0  # how long replicas may take to confirm a change, then they are asked again
# How long to wait for a job before looking after the GPU: less than the canary may take to answer, so that the parent
# waits for the answer, and not for a job, when its time is over; and less than Redis holds its claim meanwhile.
WAIT_SECONDS = 1
_TROUBLE_SECONDS = 3.0  # for how long a store's trouble is no news: at a start its API may not have been asked yet
_LOOK_SECONDS = 0.01  # how often a launch that waits for company looks for it


class Worker:
    """A worker: one parent process and one child process on one device. `work()` returns when it was asked to stop."""

    def __init__(self, settings: WorkerSettings) -> None:
        self.settings = settings
        self.process = identity()
        self._wake = WakePipe()
        self._stop = StopRequest(settings.drain_seconds, self._wake)
        self._held: tuple[Held, ...] = ()  # every attempt that is claimed and not ended
        self._waits: Claim | None = None  # by which Redis may hand it more
        self._revoked: set[Held] = set()  # those of them that are this worker's no more
        self._stopped_in_rq: set[Held] = set()  # those of them that RQ's stop-job command names
        self._kill_wanted = False
        self._idle_since: float | None = None  # None until it could take a job, and while it has one
        self._started_at = time.time()
        self._suspension_seen_at = 0.0
        self._others_have_gpu = False
        self._gpus: tuple[str, ...] = ()  # workers with a GPU, to which this one leaves what ends sooner there
        fd = os.environ.get(VARIABLE) if settings.takes == "long" else None
        self._busy = BusyTimes(None if fd is None else int(fd))
        self._companions: list[Companion] = []
        if settings.takes == "both":
            self._companions = [Companion(settings, "long", self._busy), Companion(settings, "tasks")]
        self._pausing: frozenset[Held] = frozenset()  # tasks that their owners pause
        self.undelivered = False
        operations = settings.catalogue()
        self._tasks: Mapping[str, tuple[str, ...]] | None = None  # as it reports them
        self._able_tasks: tuple[str, ...] | None = None
        if settings.takes == "tasks":
            self._tasks = {name: tuple(task.missing) for name, task in settings.tasks().items()}
            self._able_tasks = tuple(name for name, missing in self._tasks.items() if not missing)
        self._store = open_store(settings)
        self._examples = Examples(operations, self._store)
        # First of all: it warms up while Redis may still be away.
        self._supervisor = ChildSupervisor(settings, self._examples, self, self._busy)

        retry = RetryUntilStopped(self._stop.backoff)
        connection = connect(settings.redis_url, retry, timeout=_REDIS_SECONDS)
        self.name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(2)}"
        self._rq = RqPresence(self.name, connection, self)
        self._jobs = self._queue(connection, retry)
        self._pop = BlockingPop(connection, WAIT_SECONDS)
        self._claims = Claims(settings, operations)
        self._endings = Endings(self._jobs, self._store, operations, settings.retry_delays, self._claims, self.tally)
        self._heartbeat = Heartbeat(
            settings.redis_url, self, lambda queue: Endings(queue, self._store, operations), self._queue
        )

    def _queue(self, connection: redis.Redis, retry: Retry | None = None) -> JobQueue:
        """The job queue with the durability of the worker's settings."""
        if self.settings.durability != "replicated":
            return JobQueue(connection, self._store.mac_of)
        return ReplicatedJobs(connection, self._store.mac_of, self.settings.replicas, _REPLICA_SECONDS, retry)

    def work(self) -> None:
        """Run the worker's loop: claim and run jobs until asked to stop."""
        self._rq.register()
        self.look_around(self._jobs)
        self._heartbeat.start()
        for signum in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, self._on_signal)
        signal.signal(signal.SIGALRM, self._on_limit)
        try:
            batch: Batch | None = None
            while not self._stop.requested:
                if batch is None:
                    self._wait_while_suspended()
                    self._supervisor.await_ready()
                self._supervisor.look_after_gpu()
                for companion in self._companions:
                    if not companion.runs and companion.wanted:
                        companion.start()
                if batch is None:  # else it came with the end of the one before, and waits for nothing
                    if self._stop.requested or not self._child.ready:
                        continue
                    batch = self._wait_for_work() or self._leave_if_idle()
                    if batch is None:
                        continue
                self._idle_since = None
                batch = self._run(batch)
            self.release(STOPPED)
        except StopRequested:
            self.undelivered = bool(self._held)
            raise
        finally:
            self._held = ()
            self._tear_down()

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        again = self._stop.signaled
        self._stop.on_signal(signum, frame)
        for companion in self._companions:
            companion.stop(again=again)

    def _on_limit(self, signum: int, frame: FrameType | None) -> None:  # noqa: ARG002 (a signal handler's arguments)
        """Stop the worker and its companions after WARPDESK_MAX_SECONDS (`workers.parent.main.run`)."""
        self._stop.drain()
        for companion in self._companions:
            companion.stop()

    def _claim(self, **only: Any) -> Claim:
        takes = "quick" if self.settings.takes == "both" else self.settings.takes
        gpu, able = not self._leaves_gpu_jobs(), self._able_tasks
        return Claim(self.name, self.process, gpu=gpu, takes=takes, gpus=self._gpus, tasks=able, **only)

    def _wait_for_work(self) -> Batch | None:
        """Wait for jobs in the worker's main thread and return them.

        None after a second, on a message of the child, or when the main thread is woken.
        """
        gpu = not self._leaves_gpu_jobs()
        if self._waits is not None and (self._waits.gpu, self._waits.gpus) != (gpu, self._gpus):
            self.release("its worker waits for other jobs from now on")
        claim = self._waits or self._claim(waits=True)
        batch = self._jobs.claim(claim)
        if batch is None:
            self._waits = claim
            # Where it leaves jobs to others the bells are theirs. What ends sooner here, it is handed.
            bells = [] if claim.gpus else [f"{BELL}{kind}" for kind in claim.kinds]
            rope = self._pop.listen([handed_key(self.name), *bells])
            ready = self._wake.wait([*rope, self._child.pipe], WAIT_SECONDS)
            message = self._pop.hear() if rope and rope[0] in ready else None
            if message is not None and message[0] not in bells:
                batch = self._jobs.handed(claim, message[1])
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
        """Stop the worker after too long without a job.

        If one was handed over in the last moment, it is run.
        """
        now, longest = time.monotonic(), self.settings.idle_exit_seconds
        working_beside = any(each.runs or each.waited_for_since is not None for each in self._companions)
        if self._idle_since is None or self._child.warm_up is not None or working_beside:
            self._idle_since = now
        if longest is None or now - self._idle_since < longest:
            return None
        waits, self._waits = self._waits, None
        batch = self._jobs.leave(waits) if waits is not None else None
        self._take(batch)
        if batch is None:
            log.info("no job for %g s (WARPDESK_IDLE_EXIT_SECONDS): the worker stops", now - self._idle_since)
            self._stop.drain()
        return batch

    def _take(self, batch: Batch | None) -> None:
        """Record that the worker holds the claimed jobs and no longer waits for others."""
        if batch is not None:
            self._held, self._waits = batch.jobs, None

    def release(self, why: str) -> None:
        """Give back the jobs that the worker holds or may be handed, before it does something that takes long."""
        waits, self._waits = self._waits, None
        if waits is not None:
            self._take(self._jobs.leave(waits))
        if self._held:
            self._end([given_back(job, why) for job in self._held])

    def _end(self, endings: Sequence[Ending]) -> None:
        self._endings.end(self._with_shards(endings), self.name)
        self._let_go([ending.job for ending in endings])

    def _with_shards(self, endings: Sequence[Ending]) -> list[Ending]:
        """These endings of the worker's jobs, and that of the shard that it computes of one of them."""
        ended = {ending.job for ending in endings}
        return [*endings, *(given_back(job) for job in self._held if job not in ended)]

    def _run(self, batch: Batch) -> Batch | None:
        """Run jobs that the worker has claimed; returns the jobs that were claimed in the same step that ended them."""
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
        if batch.jobs[0].request.shards > 1 and batch.jobs[0].request.shard is None:
            return self._lead(batch.jobs[0])
        launch = self._start(batch.jobs, keys)
        answer = self._compute(launch)
        return None if answer is None else self._commit(launch, answer, batch.reason)

    def _compute(self, launch: Launch) -> Answer | None:
        """The child's answer to a launch; None if the worker had to end it, and its jobs' attempts with it."""
        self._busy.begin()
        end = self._watch(launch)
        share = self._busy.end()
        if not isinstance(end, Answer):
            self._conclude(launch, end)
            return None
        self._supervisor.answered(launch.work, end)
        return self._supervisor.costed(launch.work, end, launch.since, share)

    def _lead(self, job: Held) -> Batch | None:
        """Compute shards of a job that the worker has claimed, while others may too, and merge all."""
        lead, ended = Lead(), None
        waits = Launch(self._supervisor.assignment((job,), {}), (job,), lead.began, began=lead.began)
        while True:
            try:
                found = self._jobs.claim_shard(self._claim(), job, lead.patience, again=lead.again, ended=ended)
            except Stale:
                self._end([given_back(job)])
                return None
            lead.again, ended = None, None
            if found is None:
                if not self._wait_for_shards(waits, lead):
                    return None
                continue
            # A shard has no strikes of its own: those of the job keep it off the GPU.
            work = (replace(found.jobs[0], strikes=job.strikes),) if isinstance(found, Batch) else (job,)
            self._held = tuple({job, *work})
            launch = self._start(work, {}, of=job, began=lead.began)
            answer = self._compute(launch)
            if answer is None:
                return None
            (outcome,) = answer.outcomes
            if isinstance(found, list):
                if not isinstance(outcome, Stopped) or not lead.may_compute_again(outcome.step):
                    return self._commit(launch, lead.answered(answer, found), "full")
            elif isinstance(outcome, Succeeded):
                ended = Ending(work[0], outcome)
                self._endings.count_transfers(answer.transfers)
                lead.computed(time.monotonic() - launch.since)
            else:
                return self._commit(launch, answer, "full")
            self._held = (job,)
            if self._stop.requested:
                self._end([given_back(job), *([] if ended is None else [ended])])
                return None

    def _wait_for_shards(self, waits: Launch, lead: Lead) -> bool:
        """Wait a moment for the workers that compute the last shards of a job; False if the job's attempt is over.

        `waits` has the job and no work of the child, for the limits of a launch.
        """
        now = time.monotonic()
        waits.leave_out(self._revoked, now)
        until, end = waits.limit(self._stop.ends_at)
        if self._stop.requested or waits.gone or (end is not None and until <= now):
            why = STOPPED if self._stop.requested else "it was waiting for its last shards"
            self._cancel_stopped(waits)
            self._end(waits.killed(end or LaunchEnd.CANCELED, why))
            return False
        self._wake.wait([], lead.wait_seconds())
        return True

    def _with_company(self, batch: Batch) -> Batch:
        """Have the worker wait for more jobs of the same key, as long as their operation wants to."""
        first = batch.jobs[0].request
        if first.together is None or not first.together.wait or batch.reason != "drained":
            return batch
        until = time.monotonic() + first.together.wait
        room = first.together.bytes - sum(job.request.size for job in batch.jobs)
        while not self._stop.requested and (left := until - time.monotonic()) > 0:
            items = first.together.items - len(batch.jobs)
            more = self._jobs.claim(self._claim(only=first.together.key, items=items, bytes=room))
            if more is None:
                self._wake.wait([], min(left, _LOOK_SECONDS))  # the bell rings for other jobs too
                continue
            room -= sum(job.request.size for job in more.jobs)
            batch = Batch((*batch.jobs, *more.jobs), more.reason)
            self._held = batch.jobs
            if more.reason != "drained":
                return batch
        return Batch(batch.jobs, "waited")

    def _start(
        self, jobs: tuple[Held, ...], keys: Mapping[str, bytes], of: Held | None = None, began: float | None = None
    ) -> Launch:
        """Hand the worker's jobs to its child, with the keys of their noise.

        `of` is the job whose attempt it is, if they are a shard of a job that this worker has; it `began` then.
        """
        self._kill_wanted = False
        work = self._supervisor.assignment(jobs, keys)
        launch = Launch(work, jobs if of is None else (of,), time.monotonic(), began=began)
        self._rq.state = "busy"  # as the claim wrote it
        try:
            send(self._child.pipe, launch.work)
            launch.sent = True
        except OSError:
            log_fields = logs.about(jobs[0].request, jobs[0].attempt)
            log.warning("%s: the child was gone before it got the job", jobs[0].request.id, extra=log_fields)
        return launch

    def _wait_while_suspended(self) -> None:
        """Let the worker take no job while `rq suspend` holds or arrays cannot be had.

        It looks after the GPU meanwhile.
        """
        if self._store.trouble() is None and time.monotonic() - self._suspension_seen_at <= 1:
            return
        began, logged = time.monotonic(), False
        while not self._stop.requested and ((trouble := self._store.trouble()) or self._rq.suspended()):
            if trouble and not logged and time.monotonic() - began > _TROUBLE_SECONDS:
                log.warning("no job is claimed: %s", trouble)
                logged = True
            self.release("its worker was suspended")
            self._rq.set_state("suspended")
            self._supervisor.await_ready()
            if self._child.has_died():
                self._supervisor.died_idle()
            self._supervisor.look_after_gpu()
            if not self._stop.requested:  # else there may be no child any more
                self.pause(1.0, self._child.pipe)
        if self._rq.state == "suspended":
            self._rq.set_state("idle")
        self._suspension_seen_at = time.monotonic()

    def _tear_down(self) -> None:
        backoff = self._stop.backoff
        backoff.end_by = time.monotonic() + 3 if backoff.end_by is None else backoff.end_by
        for companion in self._companions:
            companion.stop()
        self._heartbeat.stop()
        self._supervisor.end()
        self._pop.close()
        self._store.close()
        try:
            self._rq.unregister()
            self._heartbeat.join(timeout=2)
            self._jobs.unregister(self.name)
        finally:
            for companion in self._companions:
                if not companion.end(backoff.end_by - time.monotonic()):
                    self.undelivered = True  # its job may run on as long as one here

    # What the children ask.

    @property
    def _child(self) -> ChildProcess:
        return self._supervisor.child

    @property
    def stopping(self) -> bool:
        return self._stop.requested

    def pause(self, seconds: float, *readable: Connection) -> bool:
        """Wait up to `seconds`, until a connection can be read, or until the worker's main thread is woken."""
        ready = self._wake.wait(readable, seconds)
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
        self._wake.wake()

    def pause_tasks(self, jobs: Collection[Held]) -> None:
        self._pausing = frozenset(jobs)
        self._wake.wake()

    def look_around(self, queue: JobQueue) -> None:
        others = [report for report in queue.workers() if report.name != self.name]
        kinds: dict[str, Kind] = {"long": "long-gpu", "tasks": "task-gpu"}
        kind = kinds.get(self.settings.takes, "gpu")
        started_this = socket.gethostname(), os.getppid()  # what that takes of this kind, it takes by this one
        self._others_have_gpu = any(
            kind in report.kinds for report in others if (report.host, report.pid) != started_this
        )
        spares = self.settings.auto == "quicker" and not self._supervisor.use_gpu
        self._gpus = gpu_workers(self.settings.takes, others) if spares else ()
        if not self._companions:
            return
        elsewhere = {kind for report in others for kind in report.kinds}
        waiting = {
            kind
            for kind in queue.waiting_long_work()
            if self._supervisor.use_gpu or kind not in elsewhere or not kind.endswith("gpu")
        }
        tasks = queue.waiting_tasks(of_tasks) if (of_tasks := waiting.intersection(OF_TASKS)) else frozenset[str]()
        for companion in self._companions:
            companion.look(self.name, waiting, others, tasks)
            self._tasks = companion.tasks or self._tasks
            if companion.wanted:
                self._wake.wake()

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
            warm_up=self._child.warm_up,
            takes=self.settings.takes,
            long_fault=next((each.fault for each in self._companions if each.takes == "long"), None),
            task_fault=next((each.fault for each in self._companions if each.takes == "tasks"), None),
            started_by=os.getppid(),
            cpu_share=_cpu_share(),
            tasks=None if self._tasks is None else dict(self._tasks),
        )

    def keep_registered(self, connection: redis.Redis) -> None:
        self._rq.keep_registered(connection)

    # What RQ's commands ask.

    def end_launch(self) -> None:
        self._kill_wanted = True
        self._wake.wake()

    def stop_job(self, job_id: str) -> None:
        named = [job for job in self._held if job.request.job_id == job_id]
        self._stopped_in_rq.update(named)
        self.revoke(named)

    # A launch.

    def _watch(self, launch: Launch) -> Answer | LaunchEnd:
        """Have the parent wait until the child answers a launch.

        The wait ends too when a time limit passes, or when nobody wants the answer any more.
        """
        while True:
            now = time.monotonic()
            launch.leave_out(self._revoked, now)
            if self._kill_wanted:
                return LaunchEnd.DIED  # RQ's kill-horse command
            if self._stop.requested or self._pausing.intersection(launch.jobs):
                self._ask_to_stop(launch)
            trial_left = self._child.trial_left
            until, end = launch.limit(self._stop.ends_at, None if trial_left is None else now + trial_left)
            left = until - now
            if (canary_left := self._child.canary_left) is not None and canary_left < left:
                left, end = canary_left, LaunchEnd.HUNG
            ready = self._wake.wait([self._child.pipe], max(0.0, left))
            if trial_left is not None:  # the launch begins after that example
                launch.since = time.monotonic()
            if self._child.pipe in ready:
                try:
                    message = self._child.hear()
                except (EOFError, OSError):
                    return LaunchEnd.DIED
                if isinstance(message, Answer):
                    return message
                if isinstance(message, Stepped):
                    launch.step(message, time.monotonic())
                    if message.checkpoint:
                        self._supervisor.deaths = 0  # the next child need not wait
                    self._heartbeat.step(launch.jobs[0], message)
                elif isinstance(message, Progressed):
                    if launch.work.first.shards > 1:
                        continue  # such a job's progress is by shards
                    self._heartbeat.progress(message.job, launch.jobs[0].attempt, message.done)
                elif isinstance(message, Lost):
                    return LaunchEnd.DIED
                else:
                    self._supervisor.note(message)
            elif not ready and end is not None and not (end is LaunchEnd.HUNG and (self._child.canary_left or 0.0) > 0):
                return end

    def _ask_to_stop(self, launch: Launch) -> None:
        """Have the worker's child stop the task that it runs, after a step, with its state in a checkpoint."""
        if launch.asked_to_stop or not launch.work.first.task:
            return
        launch.asked_to_stop = True
        with suppress(OSError):  # it has ended, as its pipe is about to tell
            send(self._child.pipe, StopTask(job=launch.work.first.id))

    def _commit(self, launch: Launch, answer: Answer, reason: str) -> Batch | None:
        """End the jobs that the worker's child answered, and claim the next ones in the same round trip to Redis.

        It claims none if the worker may take no more.
        """
        self._heartbeat.send_steps(self._jobs)  # before the attempt ends
        then = None
        if not self._stop.requested and self._child.ready and time.monotonic() - self._suspension_seen_at <= 1:
            then = self._claim()
        endings = launch.answered(
            answer, reason, lambda outcome: self._supervisor.kept_off(launch.work, answer, outcome)
        )
        endings = self._with_shards(endings)
        batch = self._endings.end(endings, self.name, then=then, transfers=answer.transfers)
        self._let_go(launch.jobs, batch)
        return batch

    def _let_go(self, jobs: Sequence[Held], batch: Batch | None = None) -> None:
        """Forget the worker's jobs that have ended; `batch` holds the jobs that it has now."""
        self._held = () if batch is None else batch.jobs
        self._stopped_in_rq.difference_update(jobs)
        # What the heartbeat was told while they ended, too: it asks of jobs that have ended by the time it says so.
        self._revoked.difference_update(set(self._revoked).difference(self._held))
        if not self._held:
            self._rq.state = "idle"  # as every ending writes it

    def _conclude(self, launch: Launch, end: LaunchEnd) -> None:
        """End a launch that the worker's child did not answer.

        Its jobs end or go back to the queue before the child is replaced.
        """
        self._heartbeat.send_steps(self._jobs)
        if end is LaunchEnd.DIED:
            self._died(launch)
        elif end in (LaunchEnd.HUNG, LaunchEnd.STUCK):  # before a job began: no strike against it
            why = self._supervisor.hung() if end is LaunchEnd.HUNG else self._supervisor.stuck()
            self._end([given_back(job, why) for job in launch.jobs])
            self._supervisor.respawn(why)
        else:
            self._killed(launch, end)

    def _killed(self, launch: Launch, end: LaunchEnd) -> None:
        """Kill the worker's child for a launch that has to end, then end its jobs.

        Their results are deleted after the child's death.
        """
        first, attempt = launch.jobs[0].request, launch.jobs[0].attempt
        why = f"a job was {end.value}, and its process ended with it"
        if end is not LaunchEnd.RELEASED:
            ran = time.monotonic() - launch.since
            self._supervisor.ended_in_job(first, f"was {end.value}", ran, timed_out=end is LaunchEnd.TIMEOUT)
        self._supervisor.kill(why)
        fields = logs.about(first, attempt)
        log.warning("%s attempt %d: %s, the child was killed", first.id, attempt, end.value, extra=fields)
        self._cancel_stopped(launch)
        self._end(launch.killed(end, why))
        if end is not LaunchEnd.RELEASED:
            self._supervisor.respawn(why, fault=False)

    def _cancel_stopped(self, launch: Launch) -> None:
        """Cancel the jobs of the worker's launch that RQ's command stopped; others that are gone stay as they are."""
        for job in self._stopped_in_rq.intersection(launch.gone).difference(launch.overdue):
            self._jobs.cancel(job.request.job_id, by_worker=True)

    def _died(self, launch: Launch) -> None:
        """End the worker's launch whose child process died in the middle of it, and start a new child."""
        lost = self._child.lost
        # One that lost its device does nothing any more but end, which may take the driver a while.
        why = f"the device was lost ({lost.message})" if lost is not None else self._child.reap()
        if self._child.trial is not None:  # it had not begun
            launch.sent = False
        self._end(launch.died("worker-died" if self._child.lost is None else "device-fault", why))
        if lost is not None:
            self._supervisor.lost(launch.jobs[0].request, lost)
            self._child.reap()
        self._supervisor.respawn(why)

    def _leaves_gpu_jobs(self) -> bool:
        """A worker without a GPU leaves jobs that insist on one to a worker that has one, as long as there is one."""
        return self._others_have_gpu and not self._supervisor.use_gpu


def _cpu_share() -> float:
    """The part of the cores that the worker's child computes with; several workers of a host may divide them."""
    cores = os.cpu_count() or 1
    threads = os.environ.get("NUMBA_NUM_THREADS", "")
    return min(1.0, int(threads) / cores) if threads.isdigit() and int(threads) else 1.0
