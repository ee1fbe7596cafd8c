"""The job queue as a plain data structure: what must hold of every job after every step.

It predicts everything but which jobs a claim takes, and when a backoff is over: those it is told and judges.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from warpdesk_server.workers.queue.protocol import MAX_ATTEMPTS, MAX_OVERTAKES, MAX_STRIKES, JobRequest

LIVE = ("queued", "running", "paused")
FINAL = ("succeeded", "failed", "canceled", "expired")


@dataclass
class Shard:
    state: str = "queued"
    attempt: int = 0
    worker: str = ""
    token: str = ""  # of the claim
    lapsed: bool = False
    alone: bool = False  # left to the worker that has the job
    slow: bool = False  # its worker took, or has been taking, very long

    def take(self, worker: str, token: str) -> None:
        self.state, self.worker, self.token, self.lapsed, self.slow = "running", worker, token, False, False
        self.attempt += 1

    def reopen(self, *, alone: bool = False) -> None:
        self.state, self.alone = "queued", alone or self.attempt >= MAX_STRIKES


@dataclass
class Job:
    request: JobRequest
    same: str = ""
    leader: str = ""  # of a follower
    attached: str = ""
    state: str = "queued"
    attempt: int = 0
    forgiven: int = 0
    advanced: int = 0  # the attempt of a task's last new step
    step: int = 0
    checkpoint: str = ""
    pausing: bool = False
    strikes: int = 0
    retries: int = 0
    deadline: float | None = None
    worker: str = ""
    lapsed: bool = False  # its lease is over
    apart: bool = False  # claimed alone from now on
    dead: bool = False
    erased: bool = False
    result: str | None = None
    endings: int = 0
    commits: int = 0
    error: str = ""  # the code
    shards: dict[int, Shard] = field(default_factory=dict)  # of a wide job that was begun
    overtaken: int = 0
    offered: bool = False  # to others, which take its open shards

    @property
    def has_open(self) -> bool:
        """Whether others may take shards while it runs."""
        return any(shard.state == "queued" and not shard.alone for shard in self.shards.values())

    def offer(self) -> None:
        self.offered = self.state == "running" and self.has_open

    def next_shard(self, worker: str, patience: float) -> int | None:
        """That which the worker that has the job claims next."""
        queued = [(shard.alone, number) for number, shard in self.shards.items() if shard.state == "queued"]
        if queued:
            return min(queued)[1]
        running = [number for number, shard in sorted(self.shards.items()) if shard.state == "running"]
        return next((each for each in running if self.shards[each].worker == worker or patience < 0), None)

    @property
    def own_shards(self) -> list[Shard]:
        """Those that the worker that has the job computes, where others may take the lead."""
        if self.state != "running" or self.has_open or self.overdue or self.overtaken == MAX_OVERTAKES:
            return []
        shards = self.shards.values()
        done_by_others = [shard for shard in shards if shard.state == "succeeded" and shard.worker != self.worker]
        if not done_by_others or any(shard.slow for shard in done_by_others):
            return []
        return [shard for shard in shards if shard.state == "running" and shard.worker == self.worker]

    @property
    def id(self) -> str:
        return self.request.id

    @property
    def owner(self) -> str:
        return self.request.owner

    @property
    def claims(self) -> int:
        return self.attempt - max(self.forgiven, self.advanced)

    @property
    def tries(self) -> int:
        return self.claims - self.overtaken

    @property
    def live(self) -> bool:
        return self.state in LIVE

    @property
    def overdue(self) -> bool:
        return self.deadline is not None and self.deadline < 1e9

    @property
    def keeps_inputs(self) -> bool:
        return self.live or (self.dead and not self.request.private)

    @property
    def arrays(self) -> set[str]:
        return set(self.request.stored_inputs)


@dataclass
class Model:
    jobs: dict[str, Job] = field(default_factory=dict)
    keys: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)  # (owner, key): fingerprint, job
    leaders: dict[tuple[str, str], str] = field(default_factory=dict)  # (owner, digest): the job that computes
    forbidden: set[tuple[str, str]] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)  # what has to be in Redis, times as how many there are

    def count(self, family: str, *labels: str) -> None:
        self.counts["|".join((family, *labels))] += 1

    def ids(self, *states: str) -> set[str]:
        return {job.id for job in self.jobs.values() if job.state in states}

    def waiting(self) -> set[str]:
        return {job.id for job in self.jobs.values() if job.state == "queued" and not job.leader}

    def live_of(self, owner: str) -> set[str]:
        return {job.id for job in self.jobs.values() if job.live and job.owner == owner}

    def tasks_of(self, owner: str) -> set[str]:
        return {job_id for job_id in self.live_of(owner) if self.jobs[job_id].request.task}

    def readers(self, owner: str, array: str) -> set[str]:
        jobs = (job for job in self.jobs.values() if job.owner == owner and job.keeps_inputs)
        return {job.id for job in jobs if array in job.arrays and not job.erased}

    def followers(self, leader: str) -> list[Job]:
        found = (job for job in self.jobs.values() if job.leader == leader and job.state == "queued")
        return sorted(found, key=lambda job: job.id)

    def enqueue(self, job: Job) -> None:
        self.jobs[job.id] = job
        self.count("jobs_enqueued_total", job.request.priority, job.request.operation)
        if job.same:
            leader = self.leaders.setdefault((job.owner, job.same), job.id)
            job.leader = "" if leader == job.id else leader

    def claim(self, job: Job, worker: str) -> None:
        job.state, job.worker, job.lapsed = "running", worker, False
        job.attempt += 1
        if job.claims > 1:
            self.count("job_retries_total", job.request.operation)

    def shard(self, shard_id: str) -> Shard | None:
        """None where its job has ended."""
        job_id, _, number = shard_id.partition(":")
        return self.jobs[job_id].shards.get(int(number))

    def holds(self, job_id: str, attempt: int, token: str) -> bool:
        """Whether an attempt runs, at a job or at a shard of one."""
        if ":" not in job_id:
            return self.runs(job_id, attempt)
        shard = self.shard(job_id)
        return shard is not None and (shard.state, shard.token) == ("running", token)

    def lead(self, job: Job, *, again: int | None) -> None:
        """What the worker that has a wide job does before it claims a shard."""
        if not job.shards:
            job.shards = {number: Shard() for number in range(job.request.shards)}
        if again is not None and job.shards[again].state == "succeeded":
            job.shards[again].reopen(alone=True)
        job.offer()

    def overtake(self, job: Job) -> None:
        job.own_shards[-1].reopen()
        job.state, job.offered, job.overtaken = "queued", False, job.overtaken + 1

    def finish_shard(self, shard_id: str, how: str) -> str:
        job, shard = self.jobs[shard_id.partition(":")[0]], self.shard(shard_id)
        assert shard is not None
        if how == "succeeded":
            shard.state = "succeeded"
            return "done"
        shard.reopen(alone=how != "returned")
        job.offer()
        return "queued"

    def runs(self, job_id: str, attempt: int) -> bool:
        return self.jobs[job_id].state == "running" and self.jobs[job_id].attempt == attempt

    def settle(self, job: Job, state: str, *, dead: bool = False, result: str | None = None) -> None:
        job.state, job.dead, job.endings = state, dead, job.endings + 1
        job.shards, job.offered = {}, False
        self.count("jobs_finished_total", job.request.priority, job.request.operation, state, job.error)
        if state == "failed":
            self.count("job_failures_total", job.request.priority, job.error)
        if dead:
            self.count("jobs_dead_total", job.request.operation)
        if result is not None:
            job.result, job.commits = result, job.commits + 1
        if self.leaders.get((job.owner, job.same)) == job.id:
            del self.leaders[job.owner, job.same]
        followers = self.followers(job.id)
        if followers and state in ("canceled", "expired"):
            heir, *others = followers
            heir.leader = ""
            self.leaders[job.owner, job.same] = heir.id
            for other in others:
                other.leader = heir.id
            return
        for follower in followers:
            late = follower.overdue
            if not late:
                self.count("jobs_coalesced_total", job.request.operation)
                follower.error = job.error
            self.settle(follower, "expired" if late else state, result=None if late else result)

    def again(self, job: Job, error: str) -> str:
        if job.strikes >= MAX_STRIKES or job.tries >= MAX_ATTEMPTS:
            job.error = error
            self.settle(job, "failed", dead=True)
            return "dead"
        job.state, job.pausing = "paused" if job.pausing else "queued", False
        job.offered = False
        return "queued"

    def finish(self, job: Job, attempt: int, how: str, result: str, delays: int, error: str) -> str:
        """What ending an attempt that runs answers."""
        assert self.runs(job.id, attempt)
        if how == "retry":
            job.retries += 1
            how = "returned" if job.retries <= delays else "failed"
        if how == "struck":
            job.strikes += 1
            self.count("job_strikes_total", job.request.operation)
        if how == "apart":
            job.apart = True
        if how in ("struck", "returned", "apart"):
            return self.again(job, error)
        job.error = error if how == "failed" else ""
        self.settle(job, how, result=result if how == "succeeded" else None)
        return "done"

    def reap(self, dead: Iterable[str], *, judge: bool) -> dict[str, str]:
        ended = {}
        for job in list(self.jobs.values()):
            for shard in job.shards.values():
                if shard.state == "running" and (shard.worker in dead or (judge and shard.lapsed)):
                    self.count("leases_expired_total")
                    shard.reopen()
                    job.offer()
            if job.state == "running" and (job.worker in dead or (judge and job.lapsed)):
                self.count("leases_expired_total")
                ended[job.id] = self.again(job, "worker-died")
        late = [job for job in self.jobs.values() if job.overdue and job.state in ("queued", "paused")]
        for job in sorted(late, key=lambda job: (job.deadline, job.id)):
            if job.state in ("queued", "paused"):
                self.settle(job, "expired")
                ended[job.id] = "gone"
        return ended

    def pause(self, job: Job) -> None:
        if job.state == "queued":
            job.state = "paused"
        elif job.state == "running":
            job.pausing = True

    def resume(self, job: Job) -> None:
        if job.state == "paused":
            job.state = "queued"
        elif job.state == "running":
            job.pausing = False

    def kept(self, job: Job, step: int, checkpoint: str) -> None:
        job.checkpoint = checkpoint
        if step > job.step:
            job.step, job.advanced, job.strikes = step, job.attempt, 0

    def stop(self, job: Job) -> None:
        if job.live:
            self.settle(job, "expired" if job.state != "running" and job.overdue else "canceled")

    def erase(self, job: Job) -> tuple[str | None, set[str]]:
        self.stop(job)
        names = job.result, set() if job.erased else job.arrays
        job.erased, job.dead, job.result = True, False, None
        job.step, job.checkpoint = 0, ""
        others = (other for other in self.jobs.values() if other.result is not None)
        result = None if names[0] in {other.result for other in others} else names[0]
        return result, {array for array in names[1] if not self.readers(job.owner, array)}

    def rerun(self, job: Job) -> None:
        job.state, job.dead, job.deadline, job.same, job.error = "queued", False, None, "", ""
        self.count("jobs_enqueued_total", job.request.priority, job.request.operation)
        job.strikes = job.retries = 0
        job.apart = job.pausing = False
        job.forgiven = job.attempt
        job.overtaken = 0
