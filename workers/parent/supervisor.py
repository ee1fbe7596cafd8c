"""The supervisor of the child processes: the child that serves, and the second one that tries a quarantined GPU.

It starts a child again after each death. It updates the GPU's condition from the children's answers and deaths, and
decides from that what the next job may use.
"""

import logging
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Protocol

from warpdesk_server.workers.gpu import nvml
from warpdesk_server.workers.gpu.condition import Condition, LongCall, Phase, left_alone
from warpdesk_server.workers.parent.busy_times import BusyTimes
from warpdesk_server.workers.parent.child_process import ChildProcess
from warpdesk_server.workers.parent.examples import Examples
from warpdesk_server.workers.parent.launch import struck
from warpdesk_server.workers.parent.probation import GpuProbation
from warpdesk_server.workers.pipe import Answer, Assignment, Attempt, Checked, FromChild, Lost, Orders, Ready, Starting
from warpdesk_server.workers.prices import costed, price_of
from warpdesk_server.workers.queue.counts import Tally
from warpdesk_server.workers.queue.protocol import Failed, JobRequest, Stopped, Succeeded
from warpdesk_server.workers.queue.records import Held
from warpdesk_server.workers.queue.reports import GpuCondition
from warpdesk_server.workers.settings import WorkerSettings

log = logging.getLogger("warpdesk.worker")

_LONGEST_DELAY = 300.0
# How long a child may take to open a GPU. Where it may hang: so many seconds, or a multiple of how long it took before.
_OPENING_SECONDS = 60.0
_SUSPECT_SECONDS, _SUSPECT_TIMES = 10.0, 4.0
# A job that has been in one call of the GPU for so long is reported.
_LONG_CALL_SECONDS = 1.0


class Parent(Protocol):
    """The interface of the worker that the supervisor uses."""

    @property
    def stopping(self) -> bool: ...

    def pause(self, seconds: float, *readable: Connection) -> bool:
        """Wait in the worker's parent up to `seconds`, or until a connection can be read; returns whether one can."""

    def news(self) -> None:
        """Have the worker's heartbeat thread report at once."""

    def release(self, why: str) -> None:
        """Give back the worker's jobs that wait for a child, before the next child is waited for."""


class ChildSupervisor:
    """The supervisor of the worker's children.

    Not thread-safe: use it from the parent's main thread. Exception: the heartbeat thread may call `gpu`.
    """

    def __init__(self, settings: WorkerSettings, examples: Examples, parent: Parent, busy: BusyTimes) -> None:
        told_no_gpu = "the setting WARPDESK_DEVICE is cpu" if settings.device == "cpu" else None
        self.condition = Condition(
            settings.cool_down_seconds, settings.canary_seconds, settings.canary_deadline_seconds, told_no_gpu
        )
        self.deaths = 0  # since one answered a job, or kept a checkpoint
        self.last_fault: str | None = None
        self.dollars_per_hour: float | None = None  # the price of the device, also while the GPU is left alone
        self.fallbacks: Counter[str] = Counter()  # answers that were wanted from the GPU, by what kept them off it
        self.tally = Tally()  # what children tell outside of jobs
        self.child = ChildProcess(settings, self.tally)
        self._settings = settings
        self._examples = examples
        self._parent = parent
        self._probation: GpuProbation | None = None
        self._why: str | None = None  # the child was started again
        self._opening_seconds = 0.0  # the most it took to open the GPU
        self.child.spawn(Orders())
        self._driver = nvml.watch(settings, lambda: self.child.pid if self.use_gpu else None, lambda: busy.processes)

    @property
    def use_gpu(self) -> bool:
        return self.child.device is not None and self.child.device.backend == "gpu"

    def gpu(self) -> GpuCondition | None:
        """The supervisor's account of the GPU, for the worker's report; None until anything is known."""
        phase: Phase = "serving" if self.child.ready else "gone" if self.child.gone else "starting"
        driver = None if self._driver is None else self._driver.report()
        stuck = self.child.call_seconds if phase == "serving" else None
        call = None
        if stuck is not None and stuck >= _LONG_CALL_SECONDS:
            call = LongCall(round(time.time() - stuck, 3), self.child.call_late)
        return self.condition.report(phase, self._examples.failed, driver, self._why, call)

    def driver_says(self) -> str | None:
        """Why the supervisor must keep its children off the GPU, by what the driver says."""
        return left_alone(None if self._driver is None else self._driver.report())

    def await_ready(self) -> None:
        """Wait until the child is ready or the parent is asked to stop; start a new child after each failed start."""
        while not self.child.ready and not self._parent.stopping:
            if self.child.pid is None:
                self.respawn("there was no child", fault=False)
            if not self._parent.pause(1.0, self.child.pipe):
                if self.child.silent_seconds > (patience := self._patience()):
                    why = f"the worker process said nothing for {patience:g} s {self.child.doing}"
                    self._start_failed(why, hung=self.child.step == "looking for a GPU")
                continue
            try:
                message = self.child.hear()
            except (EOFError, OSError):
                self._start_failed(f"{self.child.reap()} {self.child.doing}")
                continue
            if self.child.step == "warming up on the GPU":
                self.condition.cleared()
            if isinstance(message, Ready):
                self._opened(message)

    def died_idle(self) -> None:
        """Replace the worker's child that ended between two jobs, or reported that it is about to.

        A driver may delay its end.
        """
        self.child.hear_out()
        if self.child.lost is not None:
            self.condition.lost(f"idle at {time.time()}", self.child.lost)
            self._parent.news()
        why = self.child.reap()
        self.respawn(why if self.child.trial is None else f"{why} {self.child.doing}")

    def await_canary(self) -> None:
        """Receive the child's messages in the parent between jobs, until its canary check has ended.

        Replace the child if its GPU is lost or the check takes too long.
        """
        while self.listen() and self.child.ready and not self._parent.stopping:
            left = self.child.canary_left
            if left is None:
                return
            if left <= 0:
                self.respawn(self.hung())
                return
            self._parent.pause(left, self.child.pipe)
        if self.child.lost is not None:
            self.died_idle()

    def hung(self) -> str:
        """End the worker's child, whose GPU does not answer the canary; returns why."""
        why = f"the GPU did not answer the canary within {self._settings.canary_deadline_seconds:g} s"
        self.condition.hung(why)
        self._dismiss(why)
        return why

    def stuck(self) -> str:
        """End the child, which hangs in an operation's example between two jobs; returns why."""
        why = f"the worker process said nothing for {self.child.silent_seconds:.0f} s {self.child.doing}"
        self._dismiss(why)
        return why

    def kill(self, why: str) -> None:
        """Kill the worker's child process.

        The worker reports that before the process has ended, which a driver may delay.
        """
        self._dismiss(why)
        self.child.kill()

    def respawn(self, why: str, fault: bool = True) -> None:
        """Start a new child of the worker: at once the first time, the later the more die in a row without an answer.

        The delay has full jitter, so that several workers of a machine do not strain a sick driver in step. Where it is
        no `fault`, but the parent's will, there is none.
        """
        self._why = why
        self._parent.release(why)
        if fault:
            delay = random.uniform(0.0, min(_LONGEST_DELAY, 2.0 ** (self.deaths - 1))) if self.deaths else 0.0  # noqa: S311
            self.deaths += 1
            self.last_fault = why
            log.warning("%s; starting another in %.1f s", why, delay)
            self._parent.news()
            until = time.monotonic() + delay
            while not self._parent.stopping and (left := until - time.monotonic()) > 0:
                self._parent.pause(left)
        self.child.kill()
        if not self._parent.stopping:
            self.child.spawn(Orders(no_gpu=self.condition.no_gpu(), skip=self.condition.skip()))
            self._parent.news()

    def assignment(self, jobs: Sequence[Held], keys: Mapping[str, bytes]) -> Assignment:
        """The parent's assignment of jobs to its child, with their noise keys by id, and what is kept off the GPU."""
        request = jobs[0].request
        examples = (self._lost_in_an_example(job.request) for job in jobs)
        keep_off = struck(jobs[0]) or next(filter(None, examples), None) or self.driver_says()
        return Assignment(
            jobs=tuple(
                Attempt(
                    request=job.request,
                    attempt=job.attempt,
                    claim=job.token,
                    attached=job.attached,
                    checkpoint=job.checkpoint,
                    key=keys[job.id].hex() if job.id in keys else None,
                )
                for job in jobs
            ),
            gpu_wait=jobs[0].gpu_wait,
            keep_off_gpu=keep_off,
            refused=self.condition.refused(),
            canary=request.backend != "cpu" and keep_off is None and self.condition.canary_wanted(),
        )

    def answered(self, work: Assignment, answer: Answer) -> None:
        """Update what the supervisor knows from the child's answer.

        That is the GPU's condition, the failed examples and the fallback counts.
        """
        self.deaths = 0
        news = self.condition.answered(answer)
        kinds: set[str] = set()
        for outcome in answer.outcomes:
            if not isinstance(outcome, Succeeded):
                continue
            kinds.add(outcome.provenance.backend)
            if (what := self.kept_off(work, answer, outcome)) is not None:
                self.fallbacks[what] += 1
        for backend in ("cpu", "gpu"):
            for failure in self._examples.forgive(work.first, backend) if backend in kinds else ():
                news = True
                self.condition.example_answered(failure.trial)
        if news:
            self._parent.news()

    def costed(self, work: Assignment, answer: Answer, since: float, share: float = 1.0) -> Answer:
        """The child's answer with what the parent adds: the energy and the money of each job's share of its launch.

        Private jobs get neither. `since` is when the child was given the jobs, by time.monotonic(). The GPU's energy is
        known from then until now, and a launch had as much of it as of the time. `share` is that of the launch, where
        the worker's companion, or its worker, computed meanwhile.
        """
        now = time.monotonic()
        joules = None if self._driver is None else self._driver.joules(since, now)
        watts = None if joules is None else joules / (now - since)
        return answer.model_copy(
            update={
                "outcomes": tuple(
                    costed(outcome, watts, self._settings.prices, share)
                    if isinstance(outcome, Succeeded) and not job.request.private
                    else outcome
                    for job, outcome in zip(work.jobs, answer.outcomes, strict=True)
                )
            }
        )

    def lost(self, request: JobRequest, lost: Lost) -> None:
        """Have the supervisor record that the child lost its device in a job."""
        self.condition.lost(request.id, lost)
        for failure in self._examples.that_lost_the_device(request):
            self.condition.example_lost(failure.trial, request.id, lost.message)
        self._parent.news()

    def ended_in_job(self, request: JobRequest, end: str, ran: float, timed_out: bool) -> None:
        """Judge the GPU before the parent kills its child in the middle of a job that ran for `ran` seconds.

        A job that is in a call may be long or hang: the next child will show. A job that is in none is long, and its
        process can be ended like any other.
        """
        stuck = self.child.call_seconds
        if stuck is None:
            return
        why = f"a job that {end} had been in one call of the GPU for {stuck:.1f} s"
        self.condition.suspect(why)
        if timed_out:
            self.condition.timed_out(request.id, why, stuck, ran)

    def look_after_gpu(self) -> None:
        """Receive the child's messages in the parent between jobs.

        Replace the child if its GPU is quarantined, recovered, or keeps memory.
        """
        self.await_canary()
        if not self.child.ready:
            return
        if (left := self.child.trial_left) is not None and left <= 0:
            self.respawn(self.stuck())
            return
        ill = self.driver_says()
        if ill is not None:
            self.condition.quarantine(ill)
        if self.condition.quarantined:
            if self.use_gpu:
                self._replace(self.condition.no_gpu() or "")
            else:
                self._try_gpu(ill)
        elif self.use_gpu and (why := self.condition.recycling()) is not None:
            self._replace(f"the worker process was recycled: {why}")

    def end(self) -> None:
        self.child.kill()
        if self._probation is not None:
            self._probation.child.kill()
        if self._driver is not None:
            self._driver.stop()

    def _lost_in_an_example(self, request: JobRequest) -> str | None:
        """The supervisor's reason to keep a job off the GPU: an example like it cost the device.

        That example has not cooled down.
        """
        for failure in self._examples.that_lost_the_device(request):
            if (why := self.condition.example_open(failure.trial)) is not None:
                return f"the example {failure.trial} cost the GPU: {why}"
        return None

    def kept_off(self, work: Assignment, answer: Answer, outcome: Succeeded | Failed | Stopped) -> str | None:
        """Why the supervisor's child computed an answer on the CPU that was wanted from the GPU: the kind of reason.

        None for other answers.
        """
        if not isinstance(outcome, Succeeded) or work.first.backend == "cpu":
            return None
        if outcome.provenance.backend != "cpu" or outcome.provenance.fallback_reason is None:
            return None
        if answer.faults:
            return answer.faults[-1].kind
        if work.keep_off_gpu is not None:
            return "kept-off"
        return "quarantined" if self.condition.quarantined else "no-gpu"

    def _opened(self, message: Ready) -> None:
        """Take a child that reported ready into the worker's service, unless every operation failed its example."""
        self._examples.failed = message.failed
        if self._examples.all_failed():
            first = message.failed[0]
            why = f"every operation failed its example, {first.operation} with {first.error}: {first.message}"
            self._start_failed(why)
            return
        if self.use_gpu:
            self._opening_seconds = max(self._opening_seconds, self.child.opening_seconds or 0.0)
        if self.use_gpu or self.dollars_per_hour is None:
            device = message.device
            self.dollars_per_hour = price_of(self._settings.prices, device.backend, device.name)
        self.condition.opened(message.device)
        self.condition.note_report(message)
        log.info("ready on %s after %.1f s", message.device.name, message.seconds)
        self._parent.news()

    def _dismiss(self, why: str) -> None:
        self._why = why
        self.child.dismiss()
        self._parent.news()

    def _start_failed(self, why: str, hung: bool = False) -> None:
        """Start another child of the worker, which leaves the GPU alone once enough starts have failed on it.

        On a machine without a GPU nothing is counted: the CPU would be blamed on a GPU that is not there.
        """
        if self.child.starts_on_gpu:
            self.condition.start_failed(why, self.child.lost, self.child.trial, hung)
            if self.condition.quarantined:
                self.deaths = 0  # it was the GPU: a child that leaves it alone need not wait
        self.kill(why)
        self.respawn(why)

    def _patience(self) -> float:
        """Seconds for which the parent lets a starting child be silent.

        They are fewer while it opens a GPU, and fewer still if that may hang.
        """
        longest = self._settings.start_seconds
        if self.child.step != "looking for a GPU":
            return longest
        if not self.condition.suspected:
            return min(longest, _OPENING_SECONDS)
        return min(longest, max(_SUSPECT_SECONDS, round(_SUSPECT_TIMES * self._opening_seconds)))

    def listen(self) -> bool:
        """Receive in the parent all pending messages of its child; False if it has ended, which callers handle."""
        try:
            while self.child.ready and self.child.pipe.poll():
                self.note(self.child.hear())
        except (EOFError, OSError):
            return False
        self.condition.listened()
        return True

    def note(self, message: FromChild) -> None:
        """Have the supervisor take in a message of its serving child that concerns no job."""
        if isinstance(message, Checked):
            self.condition.note_report(message)
        elif isinstance(message, Starting):
            self._examples.failed += message.failed

    def _replace(self, why: str) -> None:
        self.last_fault = why
        self.kill(why)
        log.warning("%s; starting another", why)
        self.respawn(why, fault=False)

    def _try_gpu(self, ill: str | None) -> None:
        """Let the worker's second child try the quarantined GPU once it has cooled down.

        That child takes over once it is ready.
        """
        if self._probation is None:
            if self.condition.to_be_tried():
                if ill is not None:
                    self.condition.trial_failed(ill)
                else:
                    self._probation = GpuProbation(self._settings, self.condition.skip(), self.tally)
            return
        outcome = self._probation.look()
        if outcome is None:
            return
        tried, self._probation = self._probation.child, None
        if isinstance(outcome, Ready) and outcome.device.backend == "gpu":
            self.child.kill()
            tried.starts += self.child.starts
            self.child = tried
            self._opened(outcome)
            return
        tried.kill()
        if isinstance(outcome, Ready):
            self.condition.found_none(outcome.device)
        else:
            self.condition.trial_failed(outcome, tried.trial)
        self._parent.news()
