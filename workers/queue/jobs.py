"""The job queue: every transition of a job is one call and one atomic script of `workers.queue.scripts`.

The attempt number is a fence: a claim raises it, and a call with an older one is refused. The same call again,
after a lost reply, changes nothing and has the same answer.
"""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from math import ceil, nan
from typing import Any, cast

from redis import Redis
from redis.backoff import ExponentialBackoff
from redis.exceptions import NoScriptError
from redis.retry import Retry
from rq.job import Job, JobStatus
from rq.serializers import JSONSerializer
from rq.utils import now, utcformat

from warpdesk.models import State
from warpdesk_server.workers.queue import keys, scripts, sentinel
from warpdesk_server.workers.queue.counts import Tally, numbers
from warpdesk_server.workers.queue.encoding import claim_arguments, ending_arguments, finished, shard_arguments, texts
from warpdesk_server.workers.queue.lua import digest_of
from warpdesk_server.workers.queue.protocol import TASK, Failed, JobRequest, Provenance
from warpdesk_server.workers.queue.records import (
    GIVEN_UP,
    LEASE_SECONDS,
    RENEW_SECONDS,
    Batch,
    Bounds,
    Claim,
    Ending,
    Enqueued,
    Finished,
    Held,
    IdempotencyKey,
    InputsGone,
    KeyReused,
    NewJob,
    QueueFull,
    QuotaReached,
    Reaped,
    Renewed,
    Stale,
    TasksReached,
)
from warpdesk_server.workers.queue.reports import WorkerReport
from warpdesk_server.workers.queue.view import QueueView

_ENDLESS = 1e12  # a time that no clock shows

# The error of a record that this service did not write. To its owner there is no such job.
_ODD = Failed(code="invalid-input", message="The job's request is not what this service wrote")


def connect(url: str, retry: Retry | None = None, timeout: float = 10.0) -> Redis:
    """A client of Redis with explicit time-outs (redis-py 8 gives every blocking command 5 seconds otherwise)."""
    options = {
        "socket_timeout": timeout,
        "socket_connect_timeout": 5.0,
        "health_check_interval": 30,
        "retry": retry if retry is not None else Retry(ExponentialBackoff(cap=0.5, base=0.02), 3),
    }
    found = sentinel.named(url)
    return Redis.from_url(url, **options) if found is None else sentinel.client(found, **options)


class JobQueue(QueueView):
    """Jobs of every owner in Redis: the transitions, and what can be read of them. With `mac_of` it signs requests."""

    def enqueue(
        self,
        request: JobRequest,
        idempotency: IdempotencyKey | None = None,
        same: str | None = None,
        bounds: Bounds | None = None,
        attached: str = "",
    ) -> Enqueued:
        """Write the job record to Redis and queue the job, or find the one that the idempotency key had before.

        `attached` has the request's attached inputs (`AttachedInputs` as JSON), kept until the job has ended. `same` is
        a digest under which an identical live job of the owner computes for this one too. Raises QueueFull,
        QuotaReached, TasksReached, KeyReused or InputsGone, and then has changed nothing.
        """
        return self.enqueue_all([NewJob(request, same, attached)], idempotency, bounds)

    def enqueue_all(
        self, new: Sequence[NewJob], idempotency: IdempotencyKey | None = None, bounds: Bounds | None = None
    ) -> Enqueued:
        """Write the job records of one owner to Redis and queue the jobs, all or none, as `enqueue` does with one.

        Returns the id of the first: the idempotency key leads to it. Jobs of one key have ids that follow each other
        (`app.jobs.bundle.ids_from`).
        """
        tasks = None if bounds is None or not any(each.request.task for each in new) else bounds.tasks
        outcome, *details = self._eval(
            scripts.ENQUEUE,
            len(new),
            new[0].request.owner,
            "" if idempotency is None else idempotency.key,
            "" if idempotency is None else idempotency.fingerprint,
            "" if bounds is None else bounds.waiting,
            "" if bounds is None else bounds.of_owner,
            int(bounds is not None and bounds.shared),
            "" if tasks is None else tasks,
            utcformat(now()),
            *chain.from_iterable(map(self._new_arguments, new)),
        )
        match outcome:
            case b"ok":
                return Enqueued(details[0].decode())
            case b"replayed":
                return Enqueued(details[0].decode(), replayed=True)
            case b"reused":
                raise KeyReused(details[0].decode())
            case b"full":
                raise QueueFull(int(details[0]))
            case b"quota":
                raise QuotaReached(*map(int, details))
            case b"tasks":
                raise TasksReached(int(details[0]))
        raise InputsGone(*(array.decode() for array in details))

    def _new_arguments(self, new: NewJob) -> list[Any]:
        """The arguments of a job that is enqueued in Redis, after their number."""
        request, together = new.request, new.request.together
        text = request.model_dump_json()
        arguments = [
            request.id,
            request.operation,
            text,
            self._signed.mac(text),
            json.dumps(request.stored_inputs),
            repr(request.result_ttl),
            "" if request.deadline is None else repr(request.deadline),
            request.lane,
            "" if together is None else together.key,
            1 if together is None else together.items,
            0 if together is None else together.bytes,
            request.size,
            int(request.private),
            new.same or "",
            new.attached,
            "" if request.on_gpu is None else repr(request.on_gpu),
            "" if request.on_cpu is None else repr(request.on_cpu),
            *self._for_rq(request),
        ]
        return [len(arguments), *arguments]

    def sign_older(self, owners: Iterable[str]) -> None:
        """Sign the requests in these owners' job records that have no MAC: the release before wrote none."""
        for owner in owners:
            ids = [job_id.decode() for job_id in cast(list[bytes], self._redis.zrange(keys.owner_key(owner), 0, -1))]
            for first in range(0, len(ids), 1000):
                some = ids[first : first + 1000]
                with self._redis.pipeline(transaction=False) as pipe:
                    for job_id in some:
                        pipe.hget(keys.job_key(job_id), "request")
                    requests = pipe.execute(raise_on_error=False)
                for request in requests:
                    if isinstance(request, Exception) and "WRONGTYPE" not in str(request):  # a key that is no record
                        raise request
                macs = [
                    (job_id, self._signed.mac(request.decode(errors="replace")))
                    for job_id, request in zip(some, requests, strict=True)
                    if isinstance(request, bytes)
                ]
                self._eval(scripts.SIGN, *chain.from_iterable(macs))

    def cancel(self, job_id: str, *, by_worker: bool = False) -> State:
        """Cancel a job in Redis and answer its state.

        A running job's worker gets a command to stop it; a final state stays. The API also notes the cancelation where
        no worker may write. Raises KeyError for a job that does not exist.
        """
        closing = self._signed.signs and not by_worker
        return self._moved(scripts.CANCEL_AND_CLOSE if closing else scripts.CANCEL, job_id)

    def pause(self, job_id: str) -> State:
        """Pause a task in Redis and answer its state.

        One that runs is paused by its worker after a step, and is "running" until then; a final state stays. Raises
        KeyError for a job that does not exist.
        """
        return self._moved(scripts.PAUSE, job_id)

    def suspend(self, *, suspended: bool) -> None:
        """Have all workers take no job from Redis, as `rq suspend` does, or take jobs again, as `rq resume`."""
        if suspended:
            self._redis.set(keys.RQ_SUSPENDED, 1)
        else:
            self._redis.delete(keys.RQ_SUSPENDED)

    def resume(self, job_id: str) -> State:
        """Queue a paused task in Redis again and answer its state. Raises KeyError for a job that does not exist."""
        return self._moved(scripts.RESUME, job_id)

    def _moved(self, script: str, job_id: str) -> State:
        state = self._eval(script, job_id)
        if state is None:
            raise KeyError(job_id)
        return State(state.decode())

    def erase(self, job_id: str) -> tuple[str | None, tuple[str, ...]]:
        """Cancel a live job, and erase from its Redis record parameters, inputs, result, provenance and error.

        Its state stays. Returns the result's name and the array ids that no other live job of the owner uses, for the
        store to delete. For a minute the same call has the same answer: the reply may be lost, or the caller die before
        it deletes them.
        """
        record = self._signed.record(job_id, self._fields(job_id))
        if record is None:
            return None, ()
        nothing: dict[str, Any] = {
            "params": {},
            "inputs": {},
            "attached": {},
            "seed": None,
            "together": None,
            "work": 0.0,
            "size": 0,
            "forecast": None,
            "labels": {},
            "datasets": {},
        }
        stripped = record.request.model_copy(update=nothing).model_dump_json()
        inputs = json.dumps(record.request.stored_inputs)
        result, *arrays = self._eval(scripts.ERASE, job_id, stripped, self._signed.mac(stripped), inputs)
        return (result.decode() or None), tuple(array.decode() for array in arrays)

    def forbid(self, owner: str, array_id: str) -> bool:
        """Forbid in Redis for a minute to enqueue jobs with an array, before it is deleted.

        False when a live job reads it.
        """
        return bool(self._eval(scripts.FORBID, owner, array_id))

    def allow(self, owner: str, array_id: str) -> None:
        """Let Redis enqueue jobs again with an array, which is in the store."""
        self._redis.delete(f"{keys.FORBIDDEN}{owner}:{array_id}")

    def rerun(self, job_id: str) -> bool:
        """Put a dead letter back into the queue in Redis, without its strikes and its deadline.

        False when it is no dead letter. Raises InputsGone where its inputs were private, and so not kept.
        """
        record = self._signed.record(job_id, self._fields(job_id))
        if record is None or not record.dead:
            return False
        request = record.request.model_copy(update={"deadline": None})
        text = request.model_dump_json()
        done = int(self._eval(scripts.RERUN, job_id, text, self._signed.mac(text), *self._for_rq(request)))
        if done < 0:
            raise InputsGone(*request.stored_inputs)
        return bool(done)

    # Called by a worker's parent process.

    def claim(self, claim: Claim) -> Batch | None:
        """Claim in Redis jobs that run together. None when there are none. The same claim again has the same answer."""
        return self._batch(self._eval(scripts.CLAIM, *claim_arguments(claim)), claim)

    def claim_shard(
        self, claim: Claim, job: Held, patience: float, *, again: int | None = None, ended: Ending | None = None
    ) -> Batch | list[Provenance] | None:
        """Claim in Redis a shard of a job for the worker that holds the job, in the step that commits the one before.

        None while other workers compute all that are left, which each may for `patience` seconds; the provenance of
        each shard once all are done. The arrays of the shard `again` cannot be merged: it is
        computed by this worker. Raises Stale where the job is not this
        worker's any more.
        """
        how, *answer = self._eval(scripts.CLAIM_SHARD, *shard_arguments(claim, job, patience, again, ended))
        match how:
            case b"shard":
                return self._batch(answer, claim)
            case b"wait":
                return None
            case b"done":
                return [Provenance.model_validate_json(each) for each in answer]
        raise Stale(job)

    def leave(self, claim: Claim) -> Batch | None:
        """End in Redis the wait of a claim that found nothing, and answer what it was handed meanwhile, if anything."""
        return self._batch(self._eval(scripts.LEAVE, claim.worker, claim.digest), claim)

    def handed(self, claim: Claim, message: bytes) -> Batch | None:
        """The batch in Redis' message to a worker that waits. None where it was for an earlier claim."""
        answer = json.loads(message)
        return self._batch(answer["batch"], claim) if answer["token"] == claim.digest else None

    def renew(self, held: Sequence[Held]) -> Renewed:
        """Renew the leases of claims in Redis, and answer which are lost: canceled, expired, or taken over."""
        fences = [part for job in held for part in job.fence]
        kept = self._eval(scripts.RENEW, repr(LEASE_SECONDS), repr(RENEW_SECONDS), *fences)
        lost = [job for job, still in zip(held, kept, strict=True) if not still]
        return Renewed(lost, [job for job, still in zip(held, kept, strict=True) if still == 2])

    def finish(
        self,
        endings: Sequence[Ending],
        worker: str = "",
        *,
        then: Claim | None = None,
    ) -> Finished:
        """End attempts in Redis, each by itself: make an outcome visible, or give the job back.

        An attempt that is not the one that runs is "stale": the caller deletes what it wrote, and nobody has read it.
        `then` claims in the same round trip.
        """
        arguments = [part for ending in endings for part in ending_arguments(ending)]
        if then is None:
            return finished(self._eval(scripts.FINISH, worker, 1, *arguments), None)
        with self._redis.pipeline(transaction=False) as pipe:
            try:
                pipe.evalsha(digest_of(scripts.FINISH), 0, worker, 0, *arguments)
                pipe.evalsha(digest_of(scripts.CLAIM), 0, *claim_arguments(then))
                answer, claimed = pipe.execute()
            except NoScriptError:
                return finished(self._eval(scripts.FINISH, worker, 0, *arguments), self.claim(then))
        return finished(answer, self._batch(claimed, then))

    def progress(self, job_id: str, attempt: int, done: float) -> None:
        """Note in the job record how far a running job is, from 0 to 1. Nothing happens when the attempt is stale."""
        self._eval(scripts.PROGRESS, job_id, attempt, repr(round(done, 4)))

    def step(
        self,
        held: Held,
        step: int,
        done: float | None = None,
        values: Mapping[str, float | None] | None = None,
        checkpoint: str = "",
        again: str = "",
    ) -> bool:
        """Note in Redis what a running task reports of a step, and the checkpoint that has its state if one was kept.

        `again` says why the task began again with its first step. False when the attempt is stale.
        """
        share = "" if done is None else repr(round(done, 4))
        numbers = "" if values is None else json.dumps(values, allow_nan=False)
        return bool(self._eval(scripts.STEP, *held.fence, step, share, numbers, checkpoint, again))

    def reap(
        self,
        dead: Sequence[str],
        *,
        judge_leases: bool,
        until: float = _ENDLESS,
        jumped: bool = False,
        most: int = 256,
    ) -> list[Reaped]:
        """Maintain the queue in Redis, and answer the jobs that were taken from workers or have expired.

        Jobs of dead workers, and of late ones if leases may be judged, go back to the queue. Queued jobs past their
        deadline expire. Backoffs that are over end. Old dead letters are deleted. Jobs that this service did not write
        are left out of the answer.

        After the time `until` no lease is judged. Where the clock has `jumped`, all backoffs are over.
        """
        judged_until = repr(until if judge_leases else 0.0)
        given = judged_until, int(jumped), repr(LEASE_SECONDS), GIVEN_UP.model_dump_json(), most
        ended = self._eval(scripts.REAP, *given, *dead)
        taken = [(self._signed.request(*texts(signed)), attempt, how.decode()) for *signed, attempt, how in ended]
        return [Reaped(request, attempt, how) for request, attempt, how in taken if request is not None]

    def count(self, tally: Tally, *, ask: bool = False) -> None:
        """Add a process' counts to Redis, once however often they are sent.

        With `ask`, read the totals into the process' tally.
        """
        process, number, amounts = tally.addition()
        fields = [part for name, amount in amounts.items() for part in (name, repr(amount))]
        counted = self._eval(scripts.COUNT, process, number, int(ask), *fields)
        tally.confirm(numbers(counted) if ask else None)

    def count_left(self, tally: Tally) -> None:
        """Add all counts of a tally to Redis: first, if there is one, the addition that was not confirmed."""
        for _ in range(2):
            if not tally.empty:
                self.count(tally)

    def report(self, report: WorkerReport, ttl: float, process: str = "") -> None:
        with self._redis.pipeline() as pipe:
            pipe.hset(keys.WORKERS, report.name, process)
            pipe.set(keys.worker_key(report.name), report.model_dump_json(), px=ceil(ttl * 1000))
            pipe.execute()

    def unregister(self, name: str) -> bool:
        """Delete our record in Redis of a worker that has gone, and RQ's. False where it was deleted already."""
        with self._redis.pipeline() as pipe:
            pipe.hdel(keys.WORKERS, name)
            pipe.hdel(keys.CLAIMS, name)
            pipe.hdel(keys.WISHES, name)
            pipe.zrem(keys.IDLE, name)
            pipe.delete(keys.worker_key(name), keys.handed_key(name), f"{keys.RQ_WORKER}{name}")
            pipe.srem(keys.RQ_WORKERS, f"{keys.RQ_WORKER}{name}")
            pipe.srem(keys.RQ_WORKERS_OF_QUEUE, f"{keys.RQ_WORKER}{name}")
            return bool(pipe.execute()[0])

    def _batch(self, claimed: list[Any], claim: Claim) -> Batch | None:
        """The batch in Redis' answer to a claim. None where it has no jobs, or lost all before it was repeated."""
        reason, at, *jobs = claimed or ("drained", 0.0)
        ahead = time.monotonic() - float(at)  # of Redis' clock
        held, odd = list[Held](), list[tuple[str | int, ...]]()
        for job in jobs:
            (job_id, text, mac), (attempt, strikes, submitted, started, *more) = texts(job[:3]), job[3:]
            request = self._signed.request(job_id.partition(":")[0], text, mac)
            if request is None:
                odd.append((job_id, attempt, claim.digest, "failed", _ODD.model_dump_json(), "", "", ""))
                continue
            request = request.of_shard(job_id)
            times = float(submitted or nan), float(started or nan)
            if request.task:  # how long it waits and runs says nothing of other jobs
                times = nan, nan
            attached, checkpoint, wait = (*texts(more), "", "", "")[:3]
            gpu_wait = float(wait) if wait else None
            held.append(Held(request, attempt, strikes, ahead, *times, claim.token, attached, checkpoint, gpu_wait))
        if odd:  # the next claim would find the same
            self._eval(scripts.FINISH, "", 0, *(part for ending in odd for part in ending))
        return Batch(tuple(held), texts([reason])[0]) if held else None

    def _for_rq(self, request: JobRequest) -> list[Any]:
        """RQ's own record in Redis of a queued job, as field, value, field, value."""
        job = Job.create(
            TASK,
            args=(request.id,),
            id=request.id,
            connection=self._redis,
            description=request.operation,
            timeout=ceil(request.timeout),
            result_ttl=0,
            origin=f"{keys.QUEUE}-{request.lane}-{request.owner}",
            status=JobStatus.QUEUED,
        )
        job.serializer = JSONSerializer  # passed above, RQ would resolve it for each job, in a third of the whole time
        job.enqueued_at = now()
        return [part for pair in job.to_dict().items() for part in pair]
