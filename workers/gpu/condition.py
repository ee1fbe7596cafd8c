"""The condition of a worker's GPU, kept by the parent process, which outlives every child that uses the GPU.

It learns from the children's messages and deaths. It decides which kernels and examples to keep off the GPU, whether to
quarantine the GPU, when to try it again, and what the worker reports of it.

    out of memory            nobody's fault; counted and told
    launch refused, or the   after three different jobs within a minute the kernel's breaker opens; one job alone may
    kernel not compiled      have asked for something odd
    device lost              counts against the GPU, and against the kernel where one is named; the GPU is suspected
    lost in an example       the example, and jobs like it, are kept off the GPU
    a job is in one call     degraded while that lasts: it may be long or hang, which its end or its time-out decides
    for longer than its
    size explains
    a job timed out, most    counts against the GPU as a lost device does: no kernel of ours should take so long
    of it in one call
    three lost within ten    the GPU is quarantined: jobs run on the CPU, and after a cool-down a second child tries the
    minutes                  GPU: canary, then every example
    no answer to the canary  counts against the GPU as a lost device does, and the GPU is suspected; its process is
                             replaced
    a child was ended in a   the GPU is suspected: it may hang or have been at work. The next child opens it in good
    call of a job            time and all is well, or the GPU is quarantined at once
    opening it hangs, or a   quarantined at once
    wrong answer to the
    canary
    full utilisation         no fault

Times are Unix seconds, since people read them in reports: a clock that is set costs one cool-down.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from warpdesk_server.workers.gpu.breaker import Breaker
from warpdesk_server.workers.pipe import Answer, Checked, Lost, OfDevice
from warpdesk_server.workers.queue.reports import (
    BreakerReport,
    ConditionState,
    DeviceMemory,
    DeviceReport,
    FailedExample,
    GpuCondition,
    GpuReport,
)

Phase = Literal["serving", "starting", "gone"]  # of the child

LOSSES, LOSSES_WITHIN = 3, 600.0
# Bytes that stay on the device after a job, as a share of what the process may take, and after how many jobs in a row a
# new process is the remedy.
STUCK_SHARE, STUCK_JOBS = 0.05, 3
# CUDA error numbers of opening that say that there is nothing to open here, however often it is tried: no driver, one
# too old for this CUDA or for this GPU, no device, no such device.
_ABSENT = {None, 34, 35, 100, 101, 803, 804}
# A child that waits for work asks the canary every so often. Where it has said nothing for this many times as long,
# there is a trouble; one that asks and gets no answer is replaced long before.
_CANARY_PATIENCE = 3.0
# A GPU that has shown nothing for this many seconds is asked the canary before a job is given to it.
_PROOF_SECONDS = 1.0


@dataclass(frozen=True)
class LongCall:
    """A GPU call that a job has been in since `since`; `late` if it should have returned by now."""

    since: float
    late: bool


class Condition:
    """The condition of one worker's GPU. `told_no_gpu` is the reason if the settings forbid the worker to use a GPU."""

    def __init__(
        self,
        cool_down: float = 30.0,
        canary_seconds: float = 60.0,
        canary_deadline: float = 1.5,
        told_no_gpu: str | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.faults: Counter[str] = Counter()
        self._clock = clock
        self._cool_down = cool_down
        self._canary_deadline = canary_deadline
        self._silence = _CANARY_PATIENCE * canary_seconds + canary_deadline
        self._gpu = Breaker(LOSSES, LOSSES_WITHIN, cool_down)
        self._kernels: dict[str, Breaker] = {}
        self._examples: dict[str, Breaker] = {}
        self._absent = told_no_gpu
        self._device: DeviceReport | None = None  # the GPU, once a child has opened it
        self._suspicion: str | None = None
        self._spoke_at = self._listened_at = self._proved_at = 0.0
        self._canary_at: float | None = None
        self._canary_trouble: str | None = None
        self._memory: DeviceMemory | None = None
        self._stuck_jobs = 0
        self._last_fault: tuple[str, float] | None = None
        self._starts = 0
        self._is_lost = False
        self._reported: tuple[ConditionState, float] | None = None

    # What happened.

    def opened(self, device: DeviceReport) -> None:
        """Record in the GPU's condition that a child is ready on a device."""
        now = self._clock()
        self._suspicion = None
        if device.backend == "gpu":
            if self._device is not None and self._device.uuid != device.uuid:
                self._kernels.clear()
                self._examples.clear()
            self._device, self._absent, self._memory, self._stuck_jobs = device, None, None, 0
            self._is_lost, self._canary_trouble, self._proved_at = False, None, now
            self._gpu.success(now)
        elif not self.quarantined:
            reason = device.reason or "there is no GPU"
            if device.fault in _ABSENT:
                self._absent = reason
            else:
                self._note("opening", reason, now)
                self._gpu.open(reason, now)

    def note_report(self, by: OfDevice) -> None:
        """Update the GPU's condition by the device status in a message of a serving child."""
        self._spoke_at = self._clock()
        self._canary_at = by.canary_at or self._canary_at
        self._proved_at = max(self._proved_at, self._canary_at or 0.0)
        self._memory = by.memory or self._memory
        if isinstance(by, Checked):
            self._canary_trouble = by.trouble

    def listened(self) -> None:
        """Record in the GPU's condition that all messages of the waiting child were received by now."""
        self._listened_at = self._clock()

    def answered(self, answer: Answer) -> bool:
        """Update the GPU's condition by the kernels, faults and leftover memory in a job's answer.

        True if the condition to be reported changes.
        """
        now, faults = self._clock(), [fault for fault in answer.faults if fault.kind != "kept-off"]
        news = bool(faults)
        self.note_report(answer)
        for fault in faults:
            self._note(fault.kind, fault.message, now)
            if fault.kernel and fault.kind != "out-of-memory":
                self._kernel(fault.kernel).fault(answer.job, fault.message, now)
        if answer.kernels:
            self._proved_at = now
        failed = {fault.kernel for fault in answer.faults}
        for name in {*answer.kernels} & self._kernels.keys() - failed:
            news |= self._kernels[name].success(now)
        if answer.memory is not None:
            is_stuck = answer.memory.leftover > STUCK_SHARE * answer.memory.limit
            was, self._stuck_jobs = self._stuck_jobs, self._stuck_jobs + 1 if is_stuck else 0
            news |= bool(was) != bool(self._stuck_jobs)
        return news

    def lost(self, job: str, by: Lost) -> None:
        """Record in the GPU's condition that the device was lost, in a job or between jobs."""
        now = self._clock()
        self._note("wrong-answer" if by.wrong else "lost", by.message, now)
        self._is_lost = True
        if by.kernel and not by.wrong:
            self._kernel(by.kernel).fault(job, by.message, now)
        if by.wrong:
            self._gpu.open(by.message, now)
        else:
            self._gpu.fault(job, by.message, now)
            self.suspect(f"the device was lost ({by.message})")

    def timed_out(self, job: str, why: str, stuck: float, ran: float) -> None:
        """Record in the GPU's condition that a job timed out after `ran` seconds, the last `stuck` in one GPU call.

        It counts as a fault if the call took most of that time, since the limit is more than any job should take.
        """
        if stuck <= max(self._canary_deadline, ran / 2):
            return
        now = self._clock()
        self._note("timeout", why, now)
        self._gpu.fault(job, why, now)

    def hung(self, why: str) -> None:
        """Record in the GPU's condition that it did not answer the canary check.

        No job caused it, so each time counts.
        """
        now = self._clock()
        self._note("hang", why, now)
        self._is_lost = True
        self._gpu.fault(f"canary at {now}", why, now)
        self.suspect(why)

    def suspect(self, why: str) -> None:
        """Suspect that the GPU hangs: the start of the next child will show it."""
        self._suspicion = why

    def cleared(self) -> None:
        """Drop the suspicion that the GPU hangs: a new child has opened it and the canary check passed."""
        self._suspicion = None

    def start_failed(self, why: str, by: Lost | None, trial: str | None, hung: bool = False) -> None:
        """Record in the GPU's condition that a child ended while it looked for the GPU or warmed up on it.

        That may have been in an example (`trial`). `hung` says that it hung as it opened the GPU.
        """
        now = self._clock()
        self._starts += 1
        if self._suspicion is not None:
            why = f"{why}, after {self._suspicion}"
        self._note("wrong-answer" if by is not None and by.wrong else "start", why, now)
        if trial is not None:
            self._example(trial).open(why, now)
        if hung or self._suspicion is not None or (by is not None and by.wrong):
            self._suspicion = None
            self._gpu.open(why, now)
        else:
            self._gpu.fault(f"start {self._starts}", why, now)

    def example_answered(self, trial: str) -> None:
        """Record in the GPU's condition that it answered a job like this example."""
        self._examples.pop(trial, None)

    def example_lost(self, trial: str, job: str, why: str) -> None:
        """Record in the GPU's condition that a job like this example lost the device, as the example did."""
        self._example(trial).fault(job, why, self._clock())

    # What follows.

    @property
    def suspected(self) -> bool:
        return self._suspicion is not None

    @property
    def quarantined(self) -> bool:
        return self._gpu.state(self._clock()) != "closed"

    def no_gpu(self) -> str | None:
        """Why the GPU's condition forbids it to the next child; None if it does not."""
        return f"the GPU is quarantined: {self._gpu.reason}" if self.quarantined else None

    def to_be_tried(self) -> bool:
        """Whether the GPU's condition lets it be tried: it is quarantined and has cooled down."""
        return self._gpu.state(self._clock()) == "half-open"

    def trial_failed(self, why: str, trial: str | None = None) -> None:
        """Record in the GPU's condition that its trial in quarantine failed, perhaps in an example (`trial`)."""
        now = self._clock()
        self._note("start", why, now)
        if trial is not None:
            self._example(trial).open(why, now)
        self._gpu.fault("trial", why, now)

    def found_none(self, device: DeviceReport) -> None:
        """Record in the GPU's condition that a child on probation could not open it, or found that it is gone.

        Or the child found that there is no GPU any more.
        """
        reason = device.reason or "there is no GPU"
        if device.fault in _ABSENT:
            self._gpu.success(self._clock())
            self._absent = reason
        else:
            self.trial_failed(reason)

    def quarantine(self, why: str) -> None:
        """Set the GPU's condition to quarantined, for a reason that its driver gave."""
        now = self._clock()
        if not self.quarantined:
            self._note("driver", why, now)
            self._gpu.open(why, now)

    def skip(self) -> dict[str, str]:
        """Examples that a new child shall not try on the GPU in its present condition, and why."""
        return {trial: breaker.reason for trial, breaker in self._examples.items()}

    def example_open(self, trial: str) -> str | None:
        """Why the GPU's condition keeps jobs like an example off it now."""
        breaker = self._examples.get(trial)
        return breaker.reason if breaker is not None and breaker.state(self._clock()) == "open" else None

    def refused(self) -> dict[str, str]:
        """The kernels that the GPU's condition keeps off it now, and why."""
        now = self._clock()
        return {name: breaker.reason for name, breaker in self._kernels.items() if breaker.state(now) == "open"}

    def canary_wanted(self) -> bool:
        """Whether the GPU's condition asks for the canary check before the next job.

        It does if the GPU has not worked lately, or if a breaker is half-open and the GPU has not passed the check
        since.
        """
        now, answered = self._clock(), self._canary_at or 0.0
        if now - self._proved_at > _PROOF_SECONDS:
            return True
        breakers = (*self._kernels.values(), *self._examples.values())
        return any(breaker.state(now) == "half-open" and answered < breaker.next_probe for breaker in breakers)

    def recycling(self) -> str | None:
        """Why the child process should be replaced before its next job, by the GPU's condition."""
        if self._stuck_jobs < STUCK_JOBS or self._memory is None:
            return None
        return f"{self._memory.leftover} bytes of device memory stayed stuck after {STUCK_JOBS} jobs"

    # What is told.

    def report(
        self,
        phase: Phase,
        failed: Sequence[FailedExample] = (),
        driver: GpuReport | None = None,
        why: str | None = None,
        call: LongCall | None = None,
    ) -> GpuCondition | None:
        """The GPU's condition for the worker's report; None until anything is known. `why` is of the last restart."""
        now = self._clock()
        breakers = tuple(self._open_breakers(now))
        state, reason = self._state(phase, breakers, failed, driver, why, call)
        if state is None:
            return None
        if self._reported is None or self._reported[0] != state:
            self._reported = state, self._gpu.since if self.quarantined else now
        device, memory = self._device, self._memory if phase == "serving" and not self.quarantined else None
        return GpuCondition(
            state=state,
            reason=reason,
            since=self._reported[1],
            name=device.name if device is not None else None,
            uuid=device.uuid if device is not None else None,
            next_probe=self._gpu.next_probe if self.quarantined else None,
            breakers=breakers,
            canary_at=self._canary_at,
            call_since=None if call is None else call.since,
            last_fault=self._last_fault and self._last_fault[0],
            last_fault_at=self._last_fault and self._last_fault[1],
            faults=dict(self.faults),
            memory=memory.with_outside(driver) if memory is not None else None,
            driver=driver,
        )

    def _state(
        self,
        phase: Phase,
        breakers: tuple[BreakerReport, ...],
        failed: Sequence[FailedExample],
        driver: GpuReport | None,
        why: str | None,
        call: LongCall | None,
    ) -> tuple[ConditionState | None, str | None]:
        if self.quarantined:
            return "quarantined", self._gpu.reason
        if self._absent is not None:
            return "absent", self._absent
        if (ill := left_alone(driver)) is not None:  # the parent has not come to it yet
            return "quarantined", ill
        if phase != "serving":
            if phase == "gone" and self._is_lost:
                return "lost", self._last_fault[0] if self._last_fault else None
            return (None, None) if self._device is None and why is None else ("restarting", why)
        if self._device is None:
            return None, None
        reasons = [f"{breaker.what} is kept off the GPU: {breaker.reason}" for breaker in breakers]
        examples = sum(failure.backend == "gpu" and not failure.lost_the_device for failure in failed)
        if examples:
            reasons.append(f"{examples} example{'s' if examples > 1 else ''} failed on the GPU")
        if self._stuck_jobs and self._memory is not None:
            reasons.append(f"{self._memory.leftover} bytes of device memory are stuck")
        if self._canary_trouble is not None:
            reasons.append(f"the canary could not be asked: {self._canary_trouble}")
        if call is not None and call.late:
            at = f"{datetime.fromtimestamp(call.since, UTC):%H:%M:%S} UTC"
            reasons.append(f"a job has been in one call of it since {at}, longer than its size explains: it may hang")
        # Not by the clock of who asks: the parent may not have come to hear what was said.
        if (silent := self._listened_at - self._spoke_at) > self._silence:
            reasons.append(f"its process has said nothing for {silent:.0f} s, not even that it asks the canary")
        if driver is not None and driver.state not in ("healthy", "unknown"):
            reasons += [finding.reason for finding in driver.findings]
        return ("degraded", "; ".join(reasons)) if reasons else ("healthy", None)

    def _open_breakers(self, now: float) -> Iterator[BreakerReport]:
        # Copies: the heart beats in another thread.
        for what, breaker in (*self._kernels.copy().items(), *self._examples.copy().items()):
            if (state := breaker.state(now)) != "closed":
                yield BreakerReport(
                    what=what,
                    kind="kernel" if what in self._kernels else "example",
                    state=state,
                    reason=breaker.reason,
                    since=breaker.since,
                    next_probe=breaker.next_probe,
                )

    def _kernel(self, name: str) -> Breaker:
        return self._kernels.setdefault(name, Breaker(jobs=3, cool_down=self._cool_down))

    def _example(self, trial: str) -> Breaker:
        return self._examples.setdefault(trial, Breaker(jobs=1, cool_down=self._cool_down))

    def _note(self, kind: str, message: str, now: float) -> None:
        self.faults[kind] += 1
        self._last_fault = message, now


def left_alone(driver: GpuReport | None) -> str | None:
    """Why the driver's report asks to stop using the GPU; None if it does not."""
    if driver is None or driver.state not in ("drain", "quarantine"):
        return None
    return "; ".join(finding.reason for finding in driver.findings if finding.state == driver.state)
