"""The scripts in a real Redis against a plain model, with a crash of whoever takes a step before it and after it.

WARPDESK_MODEL_EXAMPLES=2000 looks for longer.
"""

import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from redis import Redis

from tests.workers.queue.model import FINAL, LIVE, Job, Model, Shard
from tests.workers.queue.snapshot import Snapshot
from warpdesk.models import BackendWish, Priority
from warpdesk_server.workers.queue import keys, scripts
from warpdesk_server.workers.queue.counts import HOURLY
from warpdesk_server.workers.queue.jobs import JobQueue, connect
from warpdesk_server.workers.queue.keys import COUNTS, COUNTS_FRESH, LEASES, events_key, handed_key, job_key, uses_key
from warpdesk_server.workers.queue.protocol import (
    KINDS,
    MAX_ATTEMPTS,
    MAX_STRIKES,
    PRIORITIES,
    Event,
    Failed,
    Forecast,
    JobRequest,
    Provenance,
    Succeeded,
    Together,
)
from warpdesk_server.workers.queue.records import (
    Batch,
    Bounds,
    Claim,
    Ending,
    Held,
    IdempotencyKey,
    InputsGone,
    KeyReused,
    QueueFull,
    QuotaReached,
    Stale,
    TasksReached,
)

EXAMPLES = int(os.environ.get("WARPDESK_MODEL_EXAMPLES", "40"))

T = TypeVar("T")
OWNERS, ARRAYS = ("key_a", "key_b"), ("blake3:a", "blake3:b")
ALIKE = (("k", 2), ("k", 3), ("k", 3), ("l", 4))  # batch keys, and how many may run together
FAR = 9e9
DELAYS = (1000.0, 1000.0)
NEVER = 1e8  # seconds that a job takes without a GPU, and so none that leaves jobs to others takes it
FAILURE = Failed(code="operation-error", message="it failed")

# What becomes of whoever takes a step. "before": it dies and nothing has happened. "repeated": the reply is lost and it
# asks again. "after": it dies and nobody hears the reply.
FATES = st.sampled_from(("told",) * 6 + ("repeated", "repeated", "before", "after"))
PICK = st.integers(0, 7)
ABLE = st.sampled_from((None, None, ("rsi",), ("ema",), ("rsi", "ema"), ()))  # the tasks that a worker can run
TAKES = st.sampled_from(("all", "all", "quick", "long", "tasks", "tasks"))
HOW = st.sampled_from(("succeeded", "succeeded", "failed", "expired", "returned", "apart", "struck", "struck", "retry"))
OF_SHARDS = st.sampled_from(("succeeded",) * 6 + ("returned", "struck", "failed"))


@dataclass(frozen=True)
class Wish:
    """What a caller wants."""

    owner: str
    priority: Priority
    backend: BackendWish
    long: bool
    task: bool
    operation: str
    shards: int
    inputs: frozenset[str]
    together: Together | None
    size: int
    deadline: float | None
    private: bool
    same: str
    idempotency: IdempotencyKey | None
    bounds: Bounds | None
    attached: str

    @property
    def wide(self) -> bool:
        return self.shards > 1 and not self.task

    def request(self, job_id: str) -> JobRequest:
        return JobRequest(
            id=job_id,
            owner=self.owner,
            operation=self.operation if self.task else "rsi",
            params={"period": 14},
            inputs={f"input_{place}": array for place, array in enumerate(sorted(self.inputs))},
            priority=self.priority,
            backend=self.backend,
            long=self.long and not self.task,
            task=self.task,
            attached={"input_0": "float64"} if self.attached else {},
            timeout=10.0,
            result_ttl=60.0,
            deadline=self.deadline,
            private=self.private and not self.task and not self.wide,
            shards=self.shards if self.wide else 1,
            size=self.size,
            forecast=Forecast(kind="rsi", gpu=1.0, cpu=NEVER if self.size % 2 else 1e-9),
            together=None if self.wide else self.together,
        )


_FREELY: dict[str, Any] = {
    "owner": st.sampled_from(OWNERS),
    "priority": st.sampled_from(("realtime", "batch", "batch", "research")),
    "backend": st.sampled_from(("auto", "auto", "auto", "gpu")),
    "long": st.sampled_from((False, False, False, True)),
    "task": st.sampled_from((False, False, False, True)),
    "operation": st.sampled_from(("rsi", "ema")),
    "shards": st.sampled_from((1, 1, 3)),
    "inputs": st.frozensets(st.sampled_from(ARRAYS)),
    "together": st.sampled_from((None, *(Together(key=key, items=items, bytes=10) for key, items in ALIKE))),
    "size": st.integers(0, 6),
    "deadline": st.sampled_from((None, None, None, FAR, FAR, 1.0)),
    "private": st.booleans(),
    "same": st.just(""),
    "idempotency": st.sampled_from(
        (None, None, None, *(IdempotencyKey(key, mark) for key, mark in ("if", "ig", "jf")))
    ),
    "attached": st.sampled_from(("", "numbers")),
    "bounds": st.sampled_from(
        (None, None, None, None, Bounds(4, 100), Bounds(100, 4), Bounds(6, 100, shared=True), Bounds(100, 100, tasks=1))
    ),
}
_IDENTICAL = {
    **_FREELY,
    "priority": st.just("batch"),
    "backend": st.just("auto"),
    "long": st.just(False),
    "task": st.just(False),
    "attached": st.just("numbers"),
    "inputs": st.just(frozenset(ARRAYS[:1])),
    "private": st.just(False),
    "same": st.just("s"),
    "idempotency": st.none(),
    "bounds": st.none(),
}
WISHES = st.one_of(st.builds(Wish, **_FREELY), st.builds(Wish, **_FREELY), st.builds(Wish, **_IDENTICAL))


class Insistent(JobQueue):
    """One whose every reply is lost once: each step arrives twice, and is answered twice the same. A claim that got
    nothing but took what was late out of its lane may find another lane's jobs the second time."""

    def _eval(self, script: str, *arguments: Any) -> Any:
        first = super()._eval(script, *arguments)
        second = super()._eval(script, *arguments)
        if script is scripts.CLAIM and not first:
            return second
        if script is scripts.CLAIM_SHARD and len(first) > 2 and first[0] == b"shard":
            assert second[:2] + second[3:] == first[:2] + first[3:], (first, second)
        elif script in (scripts.CLAIM, scripts.LEAVE):  # the time is that of the answer
            assert second[:1] + second[2:] == first[:1] + first[2:], (first, second)
        elif script is scripts.FINISH:  # the second time nobody is followed
            assert second[0] == first[0], (first, second)
        elif script is not scripts.REAP:
            assert second == first, (first, second)
        return first

    def finish(self, endings: Sequence[Ending], *arguments: Any, **options: Any) -> Any:
        first = super().finish(endings, *arguments, **options)
        second = super().finish(endings, *arguments, **options)
        assert second[1] == first[1]
        for ending, before, after in zip(endings, first[0], second[0], strict=True):
            # What went back to the queue may have been claimed again, in the same step too. Shards go with their job.
            gone = after == "stale" and (before == "queued" or ending.job.request.shard is not None)
            assert after == before or gone
        return first


class Service(RuleBasedStateMachine):
    """Callers, workers and reapers of one queue."""

    def __init__(self, connection: Redis) -> None:
        super().__init__()
        connection.flushall()
        self.redis = connection
        self.queue, self.insistent = JobQueue(connection), Insistent(connection)
        self.model = Model()
        self.number = 0
        self.workers: dict[str, list[Held]] = {"worker_1": [], "worker_2": []}  # what each believes to have claimed
        self.dead: list[str] = []
        self.past: list[Held] = []
        self.waiting: dict[str, Claim] = {}  # workers that wait to be handed jobs, those that died since too
        self.results: dict[str, str] = {}

    # Steps, and who takes them.

    def take(self, fate: str, step: Callable[[JobQueue], T]) -> T | None:
        """The answer, once something has happened."""
        if fate == "before":
            return None
        return step(self.insistent if fate == "repeated" else self.queue)

    def worker(self, pick: int) -> str:
        """One of them, rather one that holds jobs."""
        holding = [name for name, held in sorted(self.workers.items()) if held] or sorted(self.workers)
        return holding[pick % len(holding)]

    def dies(self, worker: str) -> None:
        self.dead.append(worker)
        del self.workers[worker]
        self.workers[f"worker_{len(self.dead) + 2}"] = []

    def job(self, pick: int, *states: str) -> Job:
        """One of the jobs in these states, or of all: by the latest first."""
        jobs = [job for job in self.model.jobs.values() if job.state in states or not states]
        return jobs[-1 - pick % len(jobs)]

    def some(self, *states: str) -> bool:
        return any(job.state in states or not states for job in self.model.jobs.values())

    @initialize(wishes=st.lists(WISHES, min_size=4, max_size=8))
    def begin(self, wishes: list[Wish]) -> None:
        for wish in wishes:
            self.enqueue("told", wish)

    @rule(fate=FATES, wish=WISHES)
    def enqueue(self, fate: str, wish: Wish) -> None:
        model, owner, key = self.model, wish.owner, wish.idempotency
        self.number += 1
        request = wish.request(f"job_{self.number:04d}")
        earlier = None if key is None else model.keys.get((owner, key.key))
        refusal: type[Exception] | None = None
        if earlier is None:
            if any((owner, array) in model.forbidden for array in request.stored_inputs):
                refusal = InputsGone
            elif request.task and wish.bounds is not None and wish.bounds.tasks is not None and model.tasks_of(owner):
                refusal = TasksReached
            elif wish.bounds is not None and len(model.waiting()) >= wish.bounds.waiting:
                refusal = QueueFull
            elif (wish.bounds is not None and len(model.live_of(owner)) >= wish.bounds.of_owner) or (
                wish.bounds is not None
                and wish.bounds.shared
                and len(model.live_of(owner)) >= wish.bounds.waiting - len(model.waiting())
            ):
                refusal = QuotaReached
        elif key is not None and earlier[0] != key.fingerprint:
            refusal = KeyReused
        if fate == "before":
            return
        arguments = request, key, wish.same or None, wish.bounds, wish.attached
        if refusal is not None:
            with pytest.raises(refusal):
                self.take(fate, lambda queue: queue.enqueue(*arguments))
            return
        if self.waiting:  # still, however long this takes here
            seconds, _ = cast(tuple[int, int], self.redis.time())
            self.redis.zadd(keys.IDLE, dict.fromkeys(self.waiting, float(seconds)))
        answer = self.take(fate, lambda queue: queue.enqueue(*arguments))
        assert answer is not None
        if earlier is not None:
            assert (answer.job_id, answer.replayed) == (earlier[1], True)
            return
        assert (answer.job_id, answer.replayed) == (request.id, False)
        if key is not None:
            model.keys[owner, key.key] = key.fingerprint, request.id
        job = Job(request, wish.same, deadline=wish.deadline, attached=wish.attached)
        model.enqueue(job)
        self.hand_over(job)

    def hand_over(self, job: Job) -> None:
        """What is enqueued is handed to a worker that waits, if there is one for it."""
        takers = [worker for worker, wish in self.waiting.items() if _kind(job.request.lane) in wish.kinds]
        able = [worker for worker in takers if _can_run(self.waiting[worker], job)]
        found = [worker for worker in self.waiting if self.redis.exists(handed_key(worker))]
        if job.leader or not takers:
            assert found == []
        elif found or (not job.overdue and not all(self.waiting[worker].gpus for worker in able)):
            (worker,) = found
            assert worker in takers  # one that cannot run it may be handed another, which came back meanwhile
            wish, message = self.waiting.pop(worker), cast(bytes, self.redis.lpop(handed_key(worker)))
            batch = self.queue.handed(wish, message)
            assert batch is not None
            assert self.redis.zscore(keys.IDLE, worker) is None  # it is handed nothing more
            assert self.queue.handed(Claim(worker), message) is None  # it was for another claim
            assert self.queue.leave(wish) == batch  # whoever did not hear of it
            assert self.queue.claim(wish) == batch
            self.claimed(wish, batch.jobs)

    @rule(
        fate=FATES, pick=PICK, gpu=st.booleans(), takes=TAKES, only=st.sampled_from(("", "", "", "k")),
        waits=st.booleans(), spares=st.booleans(), able=ABLE,
    )  # fmt: skip
    def claim(
        self, fate: str, pick: int, gpu: bool, takes: Any, only: str, waits: bool, spares: bool, able: Any
    ) -> None:
        worker = sorted(self.workers)[pick % len(self.workers)]
        gpus = tuple(sorted({*self.workers} - {worker})) if spares and not gpu else ()
        self.claim_as(worker, fate, gpu, only, takes=takes, waits=waits and not only, gpus=gpus,
            tasks=able if takes == "tasks" else None,
        )  # fmt: skip

    def claim_as(
        self, worker: str, fate: str, gpu: bool, only: str = "", *, takes: Any = "all", waits: bool = False,
        gpus: tuple[str, ...] = (), tasks: tuple[str, ...] | None = None,
    ) -> None:  # fmt: skip
        wish = Claim(worker, gpu=gpu, takes=takes, waits=waits, only=only, items=2, bytes=10, gpus=gpus, tasks=tasks)
        batch = self.take(fate, lambda queue: queue.claim(wish))
        if fate != "before":
            self.waiting.pop(worker, None)
            self.claimed(wish, () if batch is None else batch.jobs)
            if waits and batch is None:
                self.waiting[worker] = wish
        if fate in ("before", "after"):
            self.dies(worker)

    @rule(fate=FATES, gpu=st.booleans(), able=ABLE)
    def claim_tasks(self, fate: str, gpu: bool, able: Any) -> None:
        """Claim as a worker of tasks that can run some."""
        self.claim_as(next(iter(self.workers)), fate, gpu, takes="tasks", tasks=able)

    @precondition(lambda self: self.waiting)
    @rule(fate=FATES, pick=PICK, lapses=st.booleans())
    def waits_no_more(self, fate: str, pick: int, lapses: bool) -> None:
        """A worker takes its claim back, or was silent for too long."""
        worker = sorted(self.waiting)[pick % len(self.waiting)]
        if lapses:
            self.redis.zadd(keys.IDLE, {worker: 1.0})
            del self.waiting[worker]
        elif fate != "before":
            assert self.take(fate, lambda queue: queue.leave(self.waiting[worker])) is None
            del self.waiting[worker]

    def claimed(self, wish: Claim, held: Sequence[Held]) -> None:
        if held and held[0].request.shard is not None:
            self.helps(wish, held)
            return
        model, jobs = self.model, [self.model.jobs[job.id] for job in held]
        lanes = {job.request.lane for job in jobs}
        keys = {job.request.together and job.request.together.key for job in jobs}
        assert len(lanes) <= 1
        assert {_kind(lane) for lane in lanes} <= set(wish.kinds)
        assert len({job.id for job in jobs}) == len(jobs)
        assert not wish.only or keys <= {wish.only}
        if len(jobs) > 1:
            first = jobs[0].request.together
            assert len(keys) == 1
            assert first is not None
            items, room = (2, 10) if wish.only else (first.items, first.bytes)
            assert len(jobs) <= items
            assert sum(job.request.size for job in jobs) <= room
            assert not any(job.strikes or job.apart for job in jobs)
        if not jobs and not wish.only:
            assert wish.gpus or not self.offered(wish)
            assert not self.slow_leads(wish)
            self.nothing_is_left(wish)
        for job, got in zip(jobs, held, strict=True):
            if job.state == "running":  # of a lead that is slow, or renewed its claims often
                assert (bool(job.own_shards), job.worker == wish.worker, wish.only) == (True, False, "")
                self.nothing_is_left(wish)
                model.overtake(job)
            assert _can_run(wish, job)
            assert job.state == "queued"
            assert not job.leader
            assert not job.overdue
            model.claim(job, wish.worker)
            assert (got.request, got.attempt, got.strikes) == (job.request, job.attempt, job.strikes)
            assert got.attached == job.attached
            assert got.checkpoint == job.checkpoint
        self.takes_up(wish.worker, held)

    def offered(self, wish: Claim) -> list[str]:
        """Jobs of which this claim may take a shard."""
        jobs = self.model.jobs.values()
        return [job.id for job in jobs if job.offered and _kind(job.request.lane) in wish.kinds]

    def slow_leads(self, wish: Claim) -> list[str]:
        """Jobs that this claim takes from their leads where it finds nothing else."""
        led = {job_id.decode() for job_id in self.redis.zrange(f"{keys.RING}led", 0, -1)}
        jobs = [job for job in self.model.jobs.values() if job.id in led and job.worker != wish.worker]
        slow = [job for job in jobs if any(shard.slow for shard in job.own_shards[-1:])]
        return [job.id for job in slow if _kind(job.request.lane) in wish.kinds]

    def slow_down(self, job: Job) -> None:
        """Have the lead of a job take very long for its shards."""
        for number, shard in job.shards.items():
            if (shard.state, shard.worker) == ("running", job.worker):
                shard.slow = True
                self.redis.hset(f"{job_key(job.id)}:{number}", "age", 1000)

    def takes_up(self, worker: str, held: Sequence[Held]) -> None:
        if worker in self.workers:  # it may have died while it waited
            self.workers[worker].extend(held)
        self.past.extend(held)

    def in_lanes(self, lanes: set[str]) -> list[Job]:
        lists = _lists(Snapshot(self.redis)).items()
        ids = [job_id for name, found in lists for job_id in found if _lane(name)[0] in lanes]
        return [self.model.jobs[job_id] for job_id in ids]

    def helps(self, wish: Claim, held: Sequence[Held]) -> None:
        """A worker that finds nothing in the queue takes a shard of another's job."""
        (got,) = held
        job, shard = self.model.jobs[got.request.job_id], self.model.shard(got.id)
        assert shard is not None
        assert not wish.only
        assert job.offered
        assert (shard.state, shard.alone, _kind(job.request.lane) in wish.kinds) == ("queued", False, True)
        if wish.gpus:
            count = sum(each.state == "queued" and not each.alone for each in job.shards.values())
            on_gpu, on_cpu = job.request.on_gpu, job.request.on_cpu
            assert on_cpu is not None
            assert on_cpu == 0 or (on_gpu is not None and on_cpu <= on_gpu * count)
        self.nothing_is_left(wish)
        shard.take(wish.worker, got.token)
        job.offer()
        assert (got.request, got.attempt) == (job.request.of_shard(got.id), shard.attempt)
        assert got.attached == job.attached
        self.takes_up(wish.worker, held)

    def nothing_is_left(self, wish: Claim) -> None:
        """In no lane from which a claim takes is a job that it could have had."""
        lanes = {lane for lane in _lanes(Snapshot(self.redis)) if _kind(lane) in wish.kinds}
        left = [self.model.jobs[job_id] for job_id in self.model.waiting()] if wish.gpus else []
        left = [job for job in left if job.overdue or (job.request.on_cpu or 0.0) == NEVER]
        left += [job for job in self.model.jobs.values() if not _can_run(wish, job)]
        if not wish.gpus:
            assert not any(_can_run(wish, job) for job in self.in_lanes(lanes)), "one was left behind others"
        assert lanes <= {job.request.lane for job in left}

    @precondition(lambda self: self.leads())
    @rule(
        fate=FATES,
        pick=PICK,
        patience=st.sampled_from((1e6, 1e6, -1.0)),
        again=st.sampled_from((*(None,) * 9, 0, 1, 2)),
    )
    def lead(self, fate: str, pick: int, patience: float, again: int | None) -> None:
        """Whoever has, or had, a wide job claims a shard of it."""
        leads = self.leads()
        self.lead_as(*leads[-1 - pick % len(leads)], fate, patience, again=again)

    @precondition(lambda self: self.some("queued") or self.leads())
    @rule(hows=st.lists(OF_SHARDS, min_size=3, max_size=8), fate=FATES, patience=st.sampled_from((1e6, 1e6, -1.0)))
    def compute_together(self, hows: list[str], fate: str, patience: float) -> None:
        """A worker leads a wide job, and another one helps where it finds nothing else."""
        if not self.leads():
            self.claim_as(sorted(self.workers)[0], "told", gpu=True)
        for how in hows:
            for worker, one in self.leads()[-1:]:
                self.lead_as(worker, one, fate if how == hows[-1] else "told", patience, again=None)
            helper = sorted(self.workers)[-1]
            if not self.workers[helper]:
                self.claim_as(helper, "told", gpu=True)
            for worker in sorted(self.workers):
                shards = [job for job in self.workers[worker] if job.request.shard is not None]
                if shards and len(self.workers) > 1:
                    others = [job for job in self.workers[worker] if job not in shards]
                    self.workers[worker] = [*shards, *others]
                    self.finish_as(worker, "told", [how] * len(shards), rest=False, then=False)

    @precondition(lambda self: self.leads() and len(self.workers) > 1)
    @rule(fate=FATES, pick=PICK)
    def a_lead_is_slow(self, fate: str, pick: int) -> None:
        """Another worker has done all that there was to do beside the lead's shard."""
        leads = [(worker, one) for worker, one in self.leads() if self.runs(one)]
        if not leads:
            return
        worker, one = leads[pick % len(leads)]
        helper = next(name for name in sorted(self.workers) if name != worker)
        self.lead_as(worker, one, "told", 1e6, again=None)
        claimed = -1
        while claimed < len(self.workers[helper]):
            claimed = len(self.workers[helper])
            self.claim_as(helper, "told", gpu=True)
        self.finish_as(helper, "told", ["succeeded"], rest=True, then=False)
        self.slow_down(self.model.jobs[one.id])
        self.claim_as(helper, fate, gpu=True)

    def lead_as(self, worker: str, one: Held, fate: str, patience: float, *, again: int | None) -> None:
        job = self.model.jobs[one.id]
        if fate != "before" and not self.model.runs(one.id, one.attempt):
            with pytest.raises(Stale):
                self.queue.claim_shard(Claim(worker), one, patience, again=again)
        elif fate != "before":
            wish = Claim(worker)
            found = self.take(fate, lambda queue: queue.claim_shard(wish, one, patience, again=again))
            self.model.lead(job, again=again)
            number = job.next_shard(worker, patience)
            if number is None:
                done = all(shard.state == "succeeded" for shard in job.shards.values())
                assert (None if found is None else len(cast(list[Any], found))) == (len(job.shards) if done else None)
            else:
                assert isinstance(found, Batch)
                assert [each.id for each in found.jobs] == [f"{job.id}:{number}"]
                job.shards[number].take(worker, found.jobs[0].token)
                job.offer()
                self.takes_up(worker, found.jobs)
        if fate in ("before", "after"):
            self.dies(worker)

    def leads(self) -> list[tuple[str, Held]]:
        """Workers that believe to have a wide job."""
        held = [(worker, job) for worker, jobs in sorted(self.workers.items()) for job in jobs]
        return [(worker, job) for worker, job in held if job.request.shards > 1 and job.request.shard is None]

    @rule(fate=FATES, pick=PICK)
    def renew(self, fate: str, pick: int) -> None:
        worker = self.worker(pick)
        held = self.workers[worker]
        lost = self.take(fate, lambda queue: queue.renew(held).lost)
        if lost is not None:
            assert lost == [job for job in held if not self.runs(job)]
            pausing = [job for job in held if job not in lost and self.model.jobs[job.request.job_id].pausing]
            assert self.queue.renew(held).pausing == pausing
            for job in held:
                if job not in lost:
                    self.of(job).lapsed = False
            self.workers[worker] = [job for job in held if job not in lost]
        if fate in ("before", "after"):
            self.dies(worker)

    @rule(fate=FATES, gpu=st.booleans(), hows=st.lists(HOW, min_size=2, max_size=4))
    def work(self, fate: str, gpu: bool, hows: list[str]) -> None:
        """Claim and finish as a worker does all day."""
        worker = next(iter(self.workers))
        if not self.workers[worker]:
            self.claim_as(worker, "told", gpu)
        self.finish_as(worker, fate, hows, rest=True, then=gpu)

    @rule(fate=FATES, how=st.sampled_from(("struck", "struck", "succeeded", "returned")))
    def work_on_poison(self, fate: str, how: str) -> None:
        """The same, and what is claimed has ended its worker twice before."""
        worker = next(iter(self.workers))
        if not self.workers[worker]:
            self.claim_as(worker, "told", gpu=True)
        for held in self.workers[worker]:
            if held.request.shard is None and self.runs(held):
                self.model.jobs[held.id].strikes = MAX_STRIKES - 1
                self.redis.hset(job_key(held.id), "strikes", MAX_STRIKES - 1)
        self.finish_as(worker, fate, [how], rest=True, then=False)

    @precondition(lambda self: any(self.workers.values()))
    @rule(fate=FATES, pick=PICK, hows=st.lists(HOW, min_size=1, max_size=3), rest=st.booleans(), then=st.booleans())
    def finish(self, fate: str, pick: int, hows: list[str], rest: bool, then: bool) -> None:
        self.finish_as(self.worker(pick), fate, hows, rest=rest, then=then)

    def finish_as(self, worker: str, fate: str, hows: list[str], *, rest: bool, then: bool) -> None:
        held = self.workers[worker]
        ended = held if rest else held[: len(hows)]
        hows = [hows[place % len(hows)] for place in range(len(ended))]
        endings = [_ending(job, how) for job, how in zip(ended, hows, strict=True)]
        wish = Claim(worker, gpu=True) if then else None
        answer = self.take(fate, lambda queue: queue.finish(endings, worker, then=wish))
        if answer is not None:
            for job, how, got in reversed(list(zip(ended, hows, answer[0], strict=True))):
                self.finished(job, how, got)
            self.workers[worker] = held[len(ended) :]
            if wish is not None:
                self.waiting.pop(worker, None)
                self.claimed(wish, () if answer[1] is None else answer[1].jobs)
        if fate in ("before", "after"):
            self.dies(worker)

    def finished(self, job: Held, how: str, got: str) -> None:
        """What an ending answered, by what it should have done. One that comes too late is given up as stale, or learns
        what became of the job by another hand."""
        if job.request.shard is not None:
            if self.runs(job):
                assert got == self.model.finish_shard(job.id, how)
            elif got != "stale":
                shard = self.model.shard(job.id)
                assert shard is not None
                assert (shard.token, how == "succeeded") == (job.token, got == "done")
                assert shard.state == ("succeeded" if got == "done" else "queued")
            return
        truth = self.model.jobs[job.id]
        if self.model.runs(job.id, job.attempt):
            assert got == self.model.finish(truth, job.attempt, how, _result(job), len(DELAYS), FAILURE.code)
        elif got != "stale":
            assert truth.attempt == job.attempt
            assert (got == "queued") <= (truth.state == "queued" and how in ("returned", "apart", "struck", "retry"))
            assert (got == "dead") <= truth.dead
            if got == "done":
                assert truth.state == (how if how in FINAL else "failed")
                assert truth.result == (_result(job) if how == "succeeded" else None)

    @precondition(lambda self: self.past)
    @rule(pick=PICK, how=HOW)
    def finish_long_after(self, pick: int, how: str) -> None:
        """A message that was held up on its way changes nothing, unless the attempt still runs."""
        late = [job for job in self.past if not self.runs(job)]
        taken_over = [job for job in late if self.model.jobs[job.request.job_id].state == "running"]
        if not late:
            return
        job = (taken_over or late)[-1 - pick % len(taken_over or late)]
        before = Snapshot(self.redis).keys
        (got,) = self.queue.finish([_ending(job, how)]).how
        self.finished(job, how, got)
        assert self.queue.renew([job]).lost == [job]
        if job.request.shard is None:  # of shards none is sent
            self.queue.progress(job.id, job.attempt, 0.5)
        assert not self.queue.step(job, 9, 0.5, {"loss": 1.0}, "1.9")
        assert Snapshot(self.redis).keys == before

    @precondition(lambda self: any(self.workers.values()))
    @rule(pick=PICK, how=HOW)
    def is_cut_off_meanwhile(self, pick: int, how: str) -> None:
        """A worker is away for so long that another takes its jobs, and comes back."""
        worker = self.worker(pick)
        held = list(self.workers[worker])
        for job in held:
            if self.runs(job):
                self.lapse(job.id, self.of(job))
        self.reap("told", judge=True)
        self.time_passes(aged=False)
        self.claim_as(next(name for name in self.workers if name != worker), "told", gpu=True)
        self.finish_long_after(pick, how)
        self.finish_as(worker, "told", [how], rest=True, then=False)

    @precondition(lambda self: self.some("running"))
    @rule(pick=PICK)
    def progress(self, pick: int) -> None:
        job = self.job(pick, "running")
        self.queue.progress(job.id, job.attempt, 0.25)
        record = self.queue.get(job.id)
        assert record is not None
        assert record.progress == (None if job.request.private else 0.25)

    @precondition(lambda self: any(self.model.jobs[job.id].request.task for job in self.running()))
    @rule(fate=FATES, pick=PICK, values=st.booleans(), again=st.sampled_from(("", "", "", "its code has changed")))
    def step(self, fate: str, pick: int, values: bool, again: str) -> None:
        """A task keeps a checkpoint after a step, and reports numbers or does not."""
        held = [job for job in self.running() if self.model.jobs[job.id].request.task]
        one = held[pick % len(held)]
        job, numbers = self.model.jobs[one.id], {"loss": 0.1} if values else None
        number = 1 if again else job.step + pick % 2
        if fate == "before" or not number:
            return
        if again:
            job.step, job.checkpoint = 0, ""
        name = f"{one.attempt}.{number}"
        assert self.take(fate, lambda queue: queue.step(one, number, None, numbers, name, again))
        self.model.kept(job, number, name)
        assert [row.step for row in self.queue.reported_steps(job.id, number - 1, 9)] in ([], [number])

    def running(self) -> list[Held]:
        return [job for job in self.past if job.request.shard is None and self.runs(job)]

    def of(self, held: Held) -> Job | Shard:
        """What the model says of a claim that runs."""
        shard = None if held.request.shard is None else self.model.shard(held.id)
        return shard or self.model.jobs[held.id]

    def runs(self, held: Held) -> bool:
        return self.model.holds(held.id, held.attempt, held.token)

    @precondition(lambda self: any(job.request.task for job in self.model.jobs.values()))
    @rule(fate=FATES, pick=PICK, resume=st.booleans())
    def pause_or_resume(self, fate: str, pick: int, resume: bool) -> None:
        tasks = [job for job in self.model.jobs.values() if job.request.task]
        job = tasks[pick % len(tasks)]
        if fate == "before":
            return
        state = self.take(fate, lambda queue: queue.resume(job.id) if resume else queue.pause(job.id))
        (self.model.resume if resume else self.model.pause)(job)
        assert state == job.state

    @precondition(lambda self: self.some())
    @rule(fate=FATES, pick=PICK, erase=st.booleans(), live=st.booleans())
    def cancel_or_erase(self, fate: str, pick: int, erase: bool, live: bool) -> None:
        job = self.job(pick, *(LIVE if live and self.some(*LIVE) else ()))
        if fate == "before" or (erase and job.erased):
            return
        if erase:
            answer = self.take(fate, lambda queue: queue.erase(job.id))
            assert answer is not None
            result, arrays = self.model.erase(job)
            assert (answer[0], set(answer[1])) == (result, arrays)
        else:
            state = self.take(fate, lambda queue: queue.cancel(job.id))
            self.model.stop(job)
            assert state == job.state

    @rule(fate=FATES, judge=st.booleans())
    def reap(self, fate: str, judge: bool) -> None:
        answer = self.take(fate, lambda queue: queue.reap(self.dead, judge_leases=judge))
        if answer is not None:
            ended = self.model.reap(self.dead, judge=judge)
            assert {one.request.id: one.how for one in answer} == ended

    @precondition(lambda self: self.some("failed"))
    @rule(fate=FATES, pick=PICK)
    def rerun(self, fate: str, pick: int) -> None:
        dead = [job for job in self.model.jobs.values() if job.dead]
        job = dead[pick % len(dead)] if dead else self.job(pick, "failed")
        if fate == "before":
            return
        if job.dead and job.request.private and job.arrays:
            with pytest.raises(InputsGone):
                self.queue.rerun(job.id)
            return
        assert self.take(fate, lambda queue: queue.rerun(job.id)) is job.dead
        if job.dead:
            self.model.rerun(job)
            job.request = job.request.model_copy(update={"deadline": None})

    @rule(owner=st.sampled_from(OWNERS), array=st.sampled_from(ARRAYS), allowed=st.booleans())
    def forbid(self, owner: str, array: str, allowed: bool) -> None:
        if allowed:
            self.queue.allow(owner, array)
            self.model.forbidden.discard((owner, array))
            return
        free = not self.model.readers(owner, array)
        assert self.queue.forbid(owner, array) is free
        assert self.queue.in_use(owner, array) is not free
        if free:
            self.model.forbidden.add((owner, array))

    # Time passes.

    @precondition(lambda self: self.some("running"))
    @rule(pick=PICK)
    def a_lease_lapses(self, pick: int) -> None:
        job = self.job(pick, "running")
        self.lapse(job.id, job)

    def lapse(self, name: str, claimed: Job | Shard) -> None:
        claimed.lapsed = True
        self.redis.zadd(LEASES, {name: 1.0})

    @precondition(lambda self: any(shard.state == "running" for _, shard in self.shards()))
    @rule(pick=PICK)
    def a_lease_of_a_shard_lapses(self, pick: int) -> None:
        running = [(name, shard) for name, shard in self.shards() if shard.state == "running"]
        self.lapse(*running[pick % len(running)])

    def shards(self) -> list[tuple[str, Shard]]:
        jobs = self.model.jobs.values()
        return [(f"{job.id}:{number}", shard) for job in jobs for number, shard in sorted(job.shards.items())]

    @precondition(lambda self: self.some(*LIVE))
    @rule(pick=PICK)
    def a_deadline_passes(self, pick: int) -> None:
        job = self.job(pick, *LIVE)
        if job.deadline is not None:
            job.deadline = 1.0
            self.redis.hset(job_key(job.id), "deadline", "1.0")
            self.redis.zadd("warpdesk:deadlines", {job.id: 1.0}, xx=True)

    @precondition(lambda self: self.some("queued"))
    @rule(pick=PICK)
    def was_claimed_often(self, pick: int) -> None:
        job = self.job(pick, "queued")
        if not job.leader:
            job.attempt = max(job.attempt, max(job.forgiven, job.advanced) + MAX_ATTEMPTS - 2)
            self.redis.hset(job_key(job.id), "attempt", job.attempt)

    @rule(aged=st.booleans())
    def time_passes(self, aged: bool) -> None:
        """Until backoffs are over, or until each lane was served very long ago."""
        if not aged:
            for job_id in Snapshot(self.redis).members("warpdesk:delayed"):
                self.redis.zadd("warpdesk:delayed", {job_id: 1.0})
        for lane in self.redis.hkeys("warpdesk:served") if aged else ():
            if lane != b"turn":
                self.redis.hset("warpdesk:served", lane, "1.0")

    @rule(fate=FATES)
    def asks_what_was_counted(self, fate: str) -> None:
        self.take(fate, lambda queue: queue.counted())

    # What holds after each step.

    @invariant()
    def all_is_as_it_should_be(self) -> None:
        snapshot, model = Snapshot(self.redis), self.model
        records_are_as_the_model_says(snapshot, model, self.results)
        every_job_is_in_one_place(snapshot, model)
        sets_agree_with_the_records(snapshot, model)
        shards_are_there_as_long_as_their_job_lives(snapshot, model)
        attached_inputs_are_kept_as_long_as_the_job_may_run(snapshot, model)
        rings_and_bells_tell_where_jobs_wait(snapshot)
        rq_shows_what_waits_and_runs(snapshot, model)
        events_are_numbered_and_each_end_is_told_once(snapshot, model)
        each_transition_is_counted_once(snapshot, model)

    def teardown(self) -> None:
        """One healthy worker ends every job."""
        self.dead += list(self.workers)
        for _ in range(3 * len(self.model.jobs) + 3):
            self.time_passes(aged=False)
            self.queue.reap(self.dead, judge_leases=False)
            for job in self.model.jobs.values():
                if job.request.task:
                    self.queue.resume(job.id)
            healthy = [Claim("healthy", gpu=True), Claim("healthy", gpu=True, takes="tasks")]
            while batch := next(filter(None, map(self.queue.claim, healthy)), None):
                healthy = [Claim("healthy", gpu=True), Claim("healthy", gpu=True, takes="tasks")]
                answer = self.queue.finish([_ending(job, "succeeded") for job in batch.jobs]).how
                assert set(answer) == {"done"}
        for job in self.model.jobs.values():
            record = self.queue.get(job.id)
            assert record is not None
            assert record.state.final
            if not record.erased:
                ends = [event for event in self.queue.events(job.id) if event.final]
                assert len(ends) == job.endings + job.live
        assert self.queue.length() == 0
        assert not self.redis.exists(LEASES, "warpdesk:delayed", "warpdesk:deadlines")
        assert not list(self.redis.scan_iter("rq:queue:*"))
        assert not list(self.redis.scan_iter("rq:wip:*"))
        assert not list(self.redis.scan_iter("warpdesk:job:*:*"))
        assert not list(self.redis.scan_iter("warpdesk:ring:shards:*"))
        assert not self.redis.exists(f"{keys.RING}led")


def records_are_as_the_model_says(snapshot: Snapshot, model: Model, results: dict[str, str]) -> None:
    for job in model.jobs.values():
        fields = snapshot.keys[job_key(job.id)]
        record = (fields["state"], int(fields["attempt"]), int(fields.get("strikes", 0)), fields.get("result"))
        assert record == (job.state, job.attempt, job.strikes, job.result)
        assert ("dead" in fields, "erased" in fields) == (job.dead, job.erased)
        assert job.strikes <= MAX_STRIKES
        assert job.tries <= MAX_ATTEMPTS
        assert (int(fields.get("step", 0)), fields.get("checkpoint", "")) == (job.step, job.checkpoint)
        if job.live:
            assert ("pausing" in fields) == job.pausing
        assert job.commits <= 1
        if job.result is not None:
            assert results.setdefault(job.id, job.result) == job.result
        assert (job_key(job.id) in snapshot.lasting) == (job.live or job.dead)


def every_job_is_in_one_place(snapshot: Snapshot, model: Model) -> None:
    listed = [job_id for ids in _lists(snapshot).values() for job_id in ids]
    delayed = snapshot.members("warpdesk:delayed")
    assert len(listed) == len(set(listed))
    assert not delayed & set(listed)
    late = {job.id for job in model.jobs.values() if job.overdue}
    assert model.waiting() - late <= {*listed, *delayed} <= model.waiting()
    assert snapshot.members(keys.WAITING) == model.waiting()
    shards = {
        f"{job.id}:{number}"
        for job in model.jobs.values()
        for number, shard in job.shards.items()
        if shard.state == "running"
    }
    assert snapshot.members(LEASES) == model.ids("running") | shards
    due = {job.id for job in model.jobs.values() if job.state in ("queued", "paused") and job.deadline is not None}
    assert snapshot.members("warpdesk:deadlines") == due
    assert snapshot.members(keys.PAUSED_TASKS) == model.ids("paused")
    assert snapshot.members(keys.DEAD) == {job.id for job in model.jobs.values() if job.dead}


def sets_agree_with_the_records(snapshot: Snapshot, model: Model) -> None:
    for owner in OWNERS:
        assert snapshot.members(f"{keys.LIVE}{owner}") == model.live_of(owner)
        assert snapshot.members(f"{keys.TASKS_OF}{owner}") == model.tasks_of(owner)
        for array in ARRAYS:
            assert snapshot.members(uses_key(owner, array)) == model.readers(owner, array)
        same = snapshot.keys.get(f"warpdesk:same:{owner}:s")
        assert same == (model.leaders.get((owner, "s")) or None)
    for job in model.jobs.values():
        followers = {follower.id for follower in model.followers(job.id)}
        assert snapshot.members(f"warpdesk:followers:{job.id}") == followers


def shards_are_there_as_long_as_their_job_lives(snapshot: Snapshot, model: Model) -> None:
    expected: dict[str, tuple[str, str, str]] = {}
    for job in model.jobs.values():
        shards = job.shards.items()
        done = [shard for _, shard in shards if shard.state == "succeeded"]
        assert int(snapshot.keys[job_key(job.id)].get("shards_done", 0)) == len(done)
        queued = {f"{number:04d}": str(int(shard.alone)) for number, shard in shards if shard.state == "queued"}
        assert snapshot.keys.get(f"{job_key(job.id)}:open", {}) == queued
        ring = snapshot.members(f"warpdesk:ring:shards:{job.request.lane}")
        assert (job.id in ring) == job.offered
        expected |= {
            f"{job_key(job.id)}:{number}": (shard.state, str(shard.attempt), shard.worker)
            for number, shard in shards
            if shard.attempt
        }
    found = {name: value for name, value in snapshot.keys.items() if re.fullmatch(r"warpdesk:job:.*:\d+", name)}
    assert {name: (each["state"], each["attempt"], each["worker"]) for name, each in found.items()} == expected
    assert not {name for name in snapshot.lasting if re.fullmatch(r"warpdesk:job:.*:.*", name)}


def attached_inputs_are_kept_as_long_as_the_job_may_run(snapshot: Snapshot, model: Model) -> None:
    for job in model.jobs.values():
        kept = snapshot.keys[job_key(job.id)].get("attached", "")
        if not job.leader:  # whoever computes for others has the inputs for all of them
            assert kept == (job.attached if (job.live or job.dead) and not job.erased else "")
        assert kept in ("", job.attached)


def rings_and_bells_tell_where_jobs_wait(snapshot: Snapshot) -> None:
    lanes = _lanes(snapshot)
    for priority in PRIORITIES:
        for kind in KINDS:
            lane = str(priority) if kind == "any" else f"{priority}-{kind}"
            assert snapshot.members(f"warpdesk:ring:{lane}") == lanes.get(lane, set())
            some = lane in lanes or f"warpdesk:ring:shards:{lane}" in snapshot.keys
            assert not some or f"{keys.BELL}{kind}" in snapshot.keys


def rq_shows_what_waits_and_runs(snapshot: Snapshot, model: Model) -> None:
    shown, running = set(_lists(snapshot)), set()
    for name in snapshot.keys:
        if name.startswith(keys.RQ_STARTED):
            shown.add(keys.RQ_QUEUE + name.removeprefix(keys.RQ_STARTED))
            running |= {entry.removesuffix(":1") for entry in snapshot.members(name)}
    assert running == model.ids("running")
    assert snapshot.members("rq:queues") == shown
    records = {name for name in snapshot.keys if name.startswith("rq:job:")}
    assert records == {f"rq:job:{job_id}" for job_id in model.ids(*LIVE)}


def events_are_numbered_and_each_end_is_told_once(snapshot: Snapshot, model: Model) -> None:
    for job in model.jobs.values():
        entries = snapshot.keys.get(events_key(job.id), [])
        events = [Event.model_validate_json(fields[1]) for _, fields in entries]
        if job.erased:
            assert events == []
            continue
        assert [event.number for event in events] == list(range(1, len(events) + 1))
        assert len([event for event in events if event.final]) == job.endings
        assert (events[-1].event if events[-1].final else None) == (job.state if job.state in FINAL else None)
        if job.request.private:
            assert not {event.event for event in events} & {"running", "progress"}


def each_transition_is_counted_once(snapshot: Snapshot, model: Model) -> None:
    fresh = snapshot.keys.get(COUNTS_FRESH, {})
    hourly = {name: amount for name, amount in fresh.items() if name.partition("|")[0] in HOURLY}
    hours = [counted for key, counted in snapshot.keys.items() if key.startswith(f"{COUNTS}:") and key != COUNTS_FRESH]
    ever = _sum(snapshot.keys.get(COUNTS, {}), fresh)
    assert ever == model.counts
    assert _sum(*hours, hourly) == {name: amount for name, amount in ever.items() if name.partition("|")[0] in HOURLY}


def _sum(*hashes: dict[str, str]) -> Counter[str]:
    counted: Counter[str] = Counter()
    for name, amount in ((name, amount) for kept in hashes for name, amount in kept.items()):
        if name != "since":
            counted[name] += int(amount)
    return counted


def _lists(snapshot: Snapshot) -> dict[str, list[str]]:
    """The ids in each of RQ's queues."""
    return {name: value for name, value in snapshot.keys.items() if name.startswith(keys.RQ_QUEUE)}


def _lanes(snapshot: Snapshot) -> dict[str, set[str]]:
    """The owners of the ids in each lane."""
    lanes: dict[str, set[str]] = {}
    for name in _lists(snapshot):
        lane, owner = _lane(name)
        lanes.setdefault(lane, set()).add(owner)
    return lanes


def _lane(name: str) -> tuple[str, str]:
    """The lane and the owner of one of RQ's queues."""
    lane, _, owner = name.removeprefix(keys.RQ_QUEUE).rpartition("-")
    return lane, owner


def _can_run(wish: Claim, job: Job) -> bool:
    return wish.tasks is None or job.request.operation in wish.tasks


def _kind(lane: str) -> str:
    return lane.partition("-")[2] or "any"


def _result(job: Held) -> str:
    return f"{job.id}.{job.attempt}"


def _ending(job: Held, how: Any) -> Ending:
    if how == "succeeded":
        provenance = Provenance(backend="cpu", device="a CPU", attempt=job.attempt)
        return Ending(job, Succeeded(result=_result(job), provenance=provenance))
    if how == "failed":
        return Ending(job, FAILURE)
    return Ending(job, how=how, reason="so it was", failure=FAILURE, delays=DELAYS if how == "retry" else ())


def test_no_crash_loses_a_job_or_ends_one_twice(redis_url: str) -> None:
    with connect(redis_url) as connection:
        run_state_machine_as_test(
            cast(Any, lambda: Service(connection)),
            settings=settings(
                max_examples=EXAMPLES,
                stateful_step_count=40,
                deadline=None,
                suppress_health_check=list(HealthCheck),
                database=None,
            ),
        )
