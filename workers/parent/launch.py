"""A launch: the jobs that the child computes now, their time limits, and the ending of each job."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from enum import Enum

from warpdesk_server.workers.pipe import Answer, Assignment, Stepped
from warpdesk_server.workers.queue.protocol import MAX_STRIKES, Failed, Stopped, Succeeded
from warpdesk_server.workers.queue.records import Ending, Held

# How long the child may go on with jobs that nobody wants any more, since a new one takes longer to start than most
# jobs to end; and with a launch in which others are still wanted.
_UNWANTED_SECONDS, _COMPANY_SECONDS = 0.3, 1.0
STOPPED = "its worker stopped"


class LaunchEnd(Enum):
    """Why a launch of the child ended without an answer to the parent."""

    CANCELED = "canceled"
    TIMEOUT = "timed out"
    DEADLINE = "past its deadline"
    DIED = "died"
    HUNG = "given to a GPU that hung"
    STUCK = "waiting for an example that hung"
    RELEASED = "released"


@dataclass
class Launch:
    """One launch that the parent gave its child, with the jobs in the order in which the child answers them."""

    work: Assignment
    jobs: tuple[Held, ...]
    since: float  # time.monotonic()
    sent: bool = False  # else the child was gone before it got it, or had not begun with it
    gone: dict[Held, float] = field(default_factory=dict)  # jobs that are not wanted any more, since when
    overdue: set[Held] = field(default_factory=set)  # those of them whose deadline passed
    asked_to_stop: bool = False  # a task: the child was told
    alive_at: float = 0.0  # of a task: when the child last said something of a step
    began: float | None = None  # of a job in shards: when its attempt began, by whose length it is limited

    @property
    def live(self) -> list[Held]:
        return [job for job in self.jobs if job not in self.gone]

    def step(self, message: Stepped, now: float) -> None:
        """Note in the parent that the child said something of a step: the next one may take as long again."""
        if message.job == self.work.first.id:
            self.alive_at = now

    def leave_out(self, revoked: Collection[Held], now: float) -> None:
        """Mark the jobs of the child's launch that the parent no longer wants: canceled, or past their deadline."""
        for job in self.live:
            if job in revoked:
                self.gone[job] = now
            elif job.due is not None and job.due <= now:
                self.gone[job] = now
                self.overdue.add(job)

    def limit(self, stop_at: float | None, example_ends: float | None = None) -> tuple[float, LaunchEnd | None]:
        """The time until which the parent lets the child's launch run, and why it ends then.

        The reason is None if the launch only has to be checked again then.
        """
        end: LaunchEnd | None
        live = self.live
        if example_ends is not None:
            until, end = example_ends, LaunchEnd.STUCK
        else:
            began = max(self.since, self.alive_at) if self.began is None else self.began
            until, end = began + min(job.request.timeout for job in self.jobs), LaunchEnd.TIMEOUT
            if self.gone:
                unwanted_since = max(self.since, min(self.gone.values()))
                grace = unwanted_since + (_COMPANY_SECONDS if live else _UNWANTED_SECONDS)
                if grace < until:
                    until, end = grace, LaunchEnd.DEADLINE if self.overdue == set(self.gone) else LaunchEnd.CANCELED
        if (due := min((job.due for job in live if job.due is not None), default=until)) < until:
            until, end = due, None
        if stop_at is not None and stop_at < until:
            until, end = stop_at, LaunchEnd.RELEASED
        return until, end

    def answered(
        self, answer: Answer, reason: str, kept_off: Callable[[Succeeded | Failed | Stopped], str | None]
    ) -> list[Ending]:
        """The worker's endings of a launch that its child answered, with the reason for its batch size.

        Late jobs are expired all the same. `kept_off` returns what kept an outcome off the GPU.
        """
        endings = []
        for job, outcome in zip(self.jobs, answer.outcomes, strict=True):
            if job in self.overdue:
                endings.append(Ending(job, how="expired"))
                continue
            if isinstance(outcome, Stopped):
                why = outcome.reason or f"it stopped after step {outcome.step}"
                endings.append(Ending(job, how="returned", reason=why, stopped=not outcome.reason))
                continue
            if isinstance(outcome, Succeeded) and job.request.together is not None:
                how = outcome.provenance.model_copy(update={"batch_reason": reason})
                outcome = outcome.model_copy(update={"provenance": how})
            endings.append(Ending(job, outcome, kept_off=kept_off(outcome) or ""))
        return endings

    def killed(self, end: LaunchEnd, why: str) -> list[Ending]:
        """The worker's endings of a launch whose child it killed because of one of its jobs.

        Of several jobs it is not known which took too long: each runs alone next time. A cancel or a deadline of one
        job gives the others back without a strike.
        """
        endings = []
        for job in self.jobs:
            if job in self.overdue:
                endings.append(Ending(job, how="expired"))
            elif job in self.gone:
                endings.append(given_back(job, "its attempt was over"))  # what it wrote is deleted
            elif end is not LaunchEnd.TIMEOUT:
                endings.append(given_back(job, why if end is not LaunchEnd.RELEASED else STOPPED))
            elif len(self.jobs) > 1:
                endings.append(Ending(job, how="apart", reason="its launch took too long"))
            else:
                what = "a step" if job.request.task else "an attempt"
                late = f"{what} may run {job.request.timeout:g} s, and this one ran longer"
                endings.append(Ending(job, Failed(code="timeout", message=late)))
        return endings

    def died(self, kind: str, why: str) -> list[Ending]:
        """The worker's endings of a launch whose child died in the middle of it.

        Of several jobs it is not known which one killed it: each runs alone next time, on any free worker. That costs
        one more death, where halving the batch would cost one for each halving.
        """
        endings = []
        for job in self.jobs:
            if job in self.gone or not self.sent:
                endings.append(given_back(job, why))
            elif len(self.jobs) > 1:
                endings.append(Ending(job, how="apart", reason=why))  # not in whose company
            else:
                failure = Failed(code=kind, message=f"{why}, {MAX_STRIKES} times; the job was given up", retryable=True)
                endings.append(Ending(job, how="struck", reason=why, failure=failure))
        return endings


def given_back(job: Held, reason: str = STOPPED) -> Ending:
    return Ending(job, how="returned", reason=reason)


def struck(job: Held) -> str | None:
    """The parent's reason to keep a job off the GPU: after two workers died of it, its last attempt runs on the CPU."""
    if job.strikes < MAX_STRIKES - 1:
        return None
    return f"{job.strikes} attempts on the GPU ended with the worker's death"
