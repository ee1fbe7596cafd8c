"""The job queue: every transition of a job is one call and one atomic script of `workers.queue.scripts`.

The attempt number is a fence: a claim raises it, and whatever arrives with an older one is refused. A repeat of the
same call after a lost reply changes nothing and answers the same.
"""

import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import ceil, inf, nan
from typing import Any, cast

from pydantic import ValidationError
from redis import Redis
from redis.backoff import ExponentialBackoff
from redis.exceptions import NoScriptError, ResponseError
from redis.retry import Retry
from rq.job import Job, JobStatus
from rq.serializers import JSONSerializer
from rq.utils import now, utcformat

from warpdesk_server.workers.process import is_dead
from warpdesk_server.workers.queue import keys, scripts
from warpdesk_server.workers.queue.counts import Tally, numbers
from warpdesk_server.workers.queue.encoding import claim_arguments, ending_arguments, finished, text_fields, texts
from warpdesk_server.workers.queue.keys import (
    QUEUE,
    counts_key,
    events_key,
    handed_key,
    job_key,
    owner_key,
    uses_key,
    worker_key,
)
from warpdesk_server.workers.queue.lua import digest_of, evaluate
from warpdesk_server.workers.queue.protocol import (
    TASK,
    Event,
    Failed,
    JobRequest,
    Priority,
    State,
)
from warpdesk_server.workers.queue.records import (
    GIVEN_UP,
    LEASE_SECONDS,
    RENEW_SECONDS,
    Backlog,
    Batch,
    Bounds,
    Claim,
    Ending,
    Enqueued,
    Finished,
    Held,
    IdempotencyKey,
    InputsGone,
    JobRecord,
    KeyReused,
    QueueFull,
    QuotaReached,
    Reaped,
)
from warpdesk_server.workers.queue.reports import WorkerReport
from warpdesk_server.workers.queue.signatures import SignedRecords

log = logging.getLogger("warpdesk.queue")

_ENDLESS = 1e12  # a time that no clock shows

# What a record ends with that this service did not write. Its owner is told of no such job.
_ODD = Failed(code="invalid-input", message="The job's request is not what this service wrote")


def connect(url: str, retry: Retry | None = None, timeout: float = 10.0) -> Redis:
    """A client with explicit time-outs (redis-py 8 gives every blocking command 5 seconds otherwise)."""
    return Redis.from_url(
        url,
        socket_timeout=timeout,
        socket_connect_timeout=5.0,
        health_check_interval=30,
        retry=retry if retry is not None else Retry(ExponentialBackoff(cap=0.5, base=0.02), 3),
    )


class JobQueue:
    """Jobs of every owner. Synchronous: the API calls it in threads.

    With `mac_of`, a digest by a key that no account of Redis has, it signs requests and takes no others
    (`workers.queue.signatures`).
    """

    def __init__(self, connection: Redis, mac_of: Callable[[str], str] | None = None) -> None:
        self._redis = connection
        self._signed = SignedRecords(mac_of)

    def enqueue(
        self,
        request: JobRequest,
        idempotency: IdempotencyKey | None = None,
        same: str | None = None,
        bounds: Bounds | None = None,
    ) -> Enqueued:
        """Write the record and queue the job, or find the one that the idempotency key had before.

        `same` is a digest under which an identical live job of the owner computes for this one too. Raises QueueFull,
        QuotaReached, KeyReused and InputsGone, and has changed nothing then.
        """
        together, text = request.together, request.model_dump_json()
        outcome, *told = self._eval(
            scripts.ENQUEUE,
            request.id,
            request.owner,
            request.operation,
            text,
            self._signed.mac(text),
            json.dumps(sorted(set(request.inputs.values()))),
            repr(request.result_ttl),
            "" if request.deadline is None else repr(request.deadline),
            lane_of(request),
            "" if together is None else together.key,
            1 if together is None else together.items,
            0 if together is None else together.bytes,
            request.size,
            int(request.private),
            "" if idempotency is None else idempotency.key,
            "" if idempotency is None else idempotency.fingerprint,
            same or "",
            "" if bounds is None else bounds.waiting,
            "" if bounds is None else bounds.of_owner,
            int(bounds is not None and bounds.shared),
            utcformat(now()),
            *self._for_rq(request),
        )
        match outcome:
            case b"ok":
                return Enqueued(told[0].decode())
            case b"replayed":
                return Enqueued(told[0].decode(), replayed=True)
            case b"reused":
                raise KeyReused(told[0].decode())
            case b"full":
                raise QueueFull(int(told[0]))
            case b"quota":
                raise QuotaReached(*map(int, told))
        raise InputsGone(*(array.decode() for array in told))

    def replay(self, owner: str, key: str) -> tuple[str, str] | None:
        """The job an idempotency key has, and the fingerprint of what was sent with it."""
        known = cast(bytes | None, self._redis.get(f"{keys.IDEMPOTENCY}{owner}:{key}"))
        if known is None:
            return None
        fingerprint, job_id = known.decode().split(" ")
        return job_id, fingerprint

    def get(self, job_id: str) -> JobRecord | None:
        """The record; a queued job whose deadline has passed is turned into `expired` first."""
        return self._current(job_id, self._fields(job_id))

    def records(self, job_ids: Sequence[str]) -> list[JobRecord | None]:
        """What `get` answers of each of them, in one round trip unless a deadline has to be looked at."""
        with self._redis.pipeline(transaction=False) as pipe:
            for job_id in job_ids:
                pipe.hgetall(job_key(job_id))
            found = [text_fields(fields) for fields in pipe.execute()]
        return [self._current(job_id, fields) for job_id, fields in zip(job_ids, found, strict=True)]

    def checked(self, job_ids: Sequence[str]) -> list[JobRecord | None]:
        """The records as they are, with what no worker can take back: `closed`."""
        with self._redis.pipeline(transaction=False) as pipe:
            pipe.time()
            for job_id in job_ids:
                pipe.hgetall(job_key(job_id))
                pipe.exists(f"{keys.CLOSED}{job_id}")
            (seconds, microseconds), *found = pipe.execute()
        now, records = seconds + microseconds / 1e6, list[JobRecord | None]()
        for job_id, fields, closed in zip(job_ids, found[::2], found[1::2], strict=True):
            record = self._signed.record(job_id, text_fields(fields))
            if record is not None and (closed or (record.request.deadline or inf) <= now):
                record = replace(record, closed=True)
            records.append(record)
        return records

    def told(self, job_id: str, record: str) -> JobRecord | None:
        """The record that was published with a job's last event. None where it cannot be relied on."""
        try:
            fields = json.loads(record)
        except ValueError:
            return None
        if not isinstance(fields, dict):
            return None
        return self._signed.record(job_id, {name: str(value) for name, value in fields.items()})

    def sign_older(self, owners: Iterable[str]) -> None:
        """Sign the requests of these owners' jobs that have no MAC, as the release before wrote none."""
        for owner in owners:
            ids = [job_id.decode() for job_id in cast(list[bytes], self._redis.zrange(owner_key(owner), 0, -1))]
            for first in range(0, len(ids), 1000):
                some = ids[first : first + 1000]
                with self._redis.pipeline(transaction=False) as pipe:
                    for job_id in some:
                        pipe.hget(job_key(job_id), "request")
                    for job_id, request in zip(some, pipe.execute(), strict=True):
                        if request is not None:
                            pipe.hsetnx(job_key(job_id), "mac", self._signed.mac(request.decode(errors="replace")))
                    pipe.execute()

    def position(self, job_id: str) -> int | None:
        """Jobs of its owner that will be claimed before a queued job as things are, None when it is not queued."""
        return cast(int | None, self._eval(scripts.POSITION, job_id))

    def cancel(self, job_id: str, *, by_worker: bool = False) -> State:
        """Queued: canceled at once, never runs. Running: the same, and its worker is told to stop. Final: unchanged.

        What the API cancels it notes where no worker may write. Raises KeyError for a job that does not exist.
        """
        closing = self._signed.signs and not by_worker
        state = self._eval(scripts.CANCEL_AND_CLOSE if closing else scripts.CANCEL, job_id)
        if state is None:
            raise KeyError(job_id)
        return State(state.decode())

    def erase(self, job_id: str) -> tuple[str | None, tuple[str, ...]]:
        """Cancel if live, and forget parameters, inputs, result, provenance and error; how it ended stays. Returns the
        result's name and the array ids that no other live job of the owner uses, for the store to delete: for a minute,
        so that a caller who was not told, or died before it deleted them, can ask again."""
        record = self._signed.record(job_id, self._fields(job_id))
        if record is None:
            return None, ()
        nothing: dict[str, Any] = {"params": {}, "inputs": {}, "seed": None, "together": None, "work": 0.0, "size": 0}
        stripped = record.request.model_copy(update=nothing).model_dump_json()
        inputs = json.dumps(sorted(set(record.request.inputs.values())))
        result, *arrays = self._eval(scripts.ERASE, job_id, stripped, self._signed.mac(stripped), inputs)
        return (result.decode() or None), tuple(array.decode() for array in arrays)

    def jobs(self, owner: str, limit: int, before: str | None = None) -> Sequence[JobRecord]:
        """The owner's jobs, newest first, older than the id `before`."""
        key = owner_key(owner)
        records: list[JobRecord] = []
        while len(records) < limit:
            highest = "+" if before is None else f"({before}"
            ids = [
                entry.decode()
                for entry in cast(
                    list[bytes], self._redis.zrevrangebylex(key, highest, "-", start=0, num=limit - len(records))
                )
            ]
            if not ids:
                break
            before = ids[-1]
            for job_id, record in zip(ids, self.records(ids), strict=True):
                if record is not None and record.request.owner == owner:  # the list is not signed
                    records.append(record)
                elif not self._redis.exists(job_key(job_id)):  # the record's time is over
                    self._redis.zrem(key, job_id)
        return records

    def in_use(self, owner: str, array_id: str) -> bool:
        """Whether a live job of the owner, or a dead letter, reads the array."""
        return bool(self._redis.scard(uses_key(owner, array_id)))

    def is_shared(self, result: str) -> bool:
        """Whether a result is the answer of jobs beside the one that was computed."""
        return bool(self._redis.exists(f"{keys.SHARED}{result}"))

    def forbid(self, owner: str, array_id: str) -> bool:
        """Before an array is deleted: no job can be enqueued with it from now on, for a minute. False when one is."""
        return bool(self._eval(scripts.FORBID, owner, array_id))

    def allow(self, owner: str, array_id: str) -> None:
        """The array is there again."""
        self._redis.delete(f"{keys.FORBIDDEN}{owner}:{array_id}")

    def events(self, job_id: str, after: int = 0) -> list[Event]:
        """What happened to a job beyond the event of that number, oldest first; the oldest of very many are gone."""
        entries = cast(list[Any], self._redis.xrange(events_key(job_id), min=f"({after}-0"))
        return [Event.model_validate_json(fields[b"event"]) for _, fields in entries]

    def dead_letters(self, limit: int, before: str | None = None) -> Sequence[JobRecord]:
        """Jobs of every owner that were given up, the latest first, those after the id `before`."""
        start = 0
        if before is not None:
            rank = cast(int | None, self._redis.zrevrank(keys.DEAD, before))
            start = 0 if rank is None else rank + 1
        ids = cast(list[bytes], self._redis.zrevrange(keys.DEAD, start, start + limit - 1))
        return [record for record in self.records([entry.decode() for entry in ids]) if record is not None]

    def rerun(self, job_id: str) -> bool:
        """Queue a dead letter again, its strikes and deadline forgotten; False when it is none.

        Raises InputsGone where they were not kept because they are private.
        """
        record = self._signed.record(job_id, self._fields(job_id))
        if record is None or not record.dead:
            return False
        request = record.request.model_copy(update={"deadline": None})
        text = request.model_dump_json()
        done = int(self._eval(scripts.RERUN, job_id, text, self._signed.mac(text), *self._for_rq(request)))
        if done < 0:
            raise InputsGone(*sorted(set(request.inputs.values())))
        return bool(done)

    def workers(self) -> Sequence[WorkerReport]:
        """The workers that reported within their time to live; those of this host that have ended are left out."""
        names = [name for name, process in self.processes().items() if not is_dead(process)]
        if not names:
            return []
        reports = cast(list[bytes | None], self._redis.mget([worker_key(name) for name in names]))
        return [read for report in reports if report is not None and (read := _readable(report)) is not None]

    def length(self) -> int:
        """Jobs that wait for a worker."""
        return self._redis.zcard(keys.WAITING)

    def waiting_by_owner(self) -> dict[Priority, dict[str, int]]:
        """The same by priority and owner, without those that wait out a backoff."""
        counts: dict[Priority, dict[str, int]] = {}
        for priority, owner, count in self._eval(scripts.WAITING_BY_OWNER):
            counts.setdefault(cast(Priority, priority.decode()), {})[owner.decode()] = count
        return counts

    def queues(self) -> tuple[dict[Priority, Backlog], int]:
        """How many jobs wait and run by priority, and how many dead letters there are. Of those that run and of those
        in a backoff 10,000 each are looked at."""
        told, dead = self._eval(scripts.QUEUES, 10_000)
        found = {}
        for priority, queued, running, delayed, oldest in told:
            at = float(oldest) if oldest else None
            found[cast(Priority, priority.decode())] = Backlog(queued, running, delayed, at)
        return found, dead

    # Called by a worker's parent process.

    def claim(self, claim: Claim) -> Batch | None:
        """Take jobs that run together; None when there is nothing to do. The same claim again has the same answer."""
        return self._batch(self._eval(scripts.CLAIM, *claim_arguments(claim)), claim)

    def leave(self, claim: Claim) -> Batch | None:
        """Wait no more by this claim, which found nothing: what it was handed since, if anything."""
        return self._batch(self._eval(scripts.LEAVE, claim.worker, claim.digest), claim)

    def handed(self, claim: Claim, message: bytes) -> Batch | None:
        """What a worker that waits finds in its list; None where that was for a claim it has left."""
        told = json.loads(message)
        return self._batch(told["batch"], claim) if told["token"] == claim.digest else None

    def renew(self, held: Sequence[Held]) -> list[Held]:
        """Extend the claims; returns those that are no longer the worker's (canceled, expired, taken over)."""
        told = [part for job in held for part in job.fence]
        kept = self._eval(scripts.RENEW, repr(LEASE_SECONDS), repr(RENEW_SECONDS), *told)
        return [job for job, still in zip(held, kept, strict=True) if not still]

    def finish(
        self,
        endings: Sequence[Ending],
        worker: str = "",
        *,
        then: Claim | None = None,
    ) -> Finished:
        """End attempts, each by itself: make an outcome visible, or give the job back. An attempt that is not the one
        that runs is "stale": the caller deletes what it wrote, unread. `then` claims in the same round trip."""
        told = [part for ending in endings for part in ending_arguments(ending)]
        if then is None:
            return finished(self._eval(scripts.FINISH, worker, 1, *told), None)
        with self._redis.pipeline(transaction=False) as pipe:
            try:
                pipe.evalsha(digest_of(scripts.FINISH), 0, worker, 0, *told)
                pipe.evalsha(digest_of(scripts.CLAIM), 0, *claim_arguments(then))
                answer, claimed = pipe.execute()
            except NoScriptError:
                return finished(self._eval(scripts.FINISH, worker, 0, *told), self.claim(then))
        return finished(answer, self._batch(claimed, then))

    def progress(self, job_id: str, attempt: int, done: float) -> None:
        """How far a running job is, 0 to 1; nothing when the attempt is stale."""
        self._eval(scripts.PROGRESS, job_id, attempt, repr(round(done, 4)))

    def reap(
        self,
        dead: Sequence[str],
        *,
        judge_leases: bool,
        until: float = _ENDLESS,
        jumped: bool = False,
        most: int = 256,
    ) -> list[Reaped]:
        """Return the jobs of dead workers and, if leases may be judged, of late ones to the queue; expire queued jobs
        past their deadline; wake those whose backoff is over; forget old dead letters. What was no job of this service
        is not told.

        By a clock that shows more than `until` no lease is judged. Where it has `jumped` all backoffs are over.
        """
        judged_until = repr(until if judge_leases else 0.0)
        given = judged_until, int(jumped), repr(LEASE_SECONDS), GIVEN_UP.model_dump_json(), most
        ended = self._eval(scripts.REAP, *given, *dead)
        told = [(self._signed.request(*texts(signed)), attempt, how.decode()) for *signed, attempt, how in ended]
        return [Reaped(request, attempt, how) for request, attempt, how in told if request is not None]

    def count(self, tally: Tally, *, ask: bool = False) -> None:
        """Add what a process counted by itself, once however often it is sent, and let it hear the counts of all if it
        asks."""
        process, number, amounts = tally.addition()
        told = [part for name, amount in amounts.items() for part in (name, repr(amount))]
        counted = self._eval(scripts.COUNT, process, number, int(ask), *told)
        tally.heard(numbers(counted) if ask else None)

    def count_left(self, tally: Tally) -> None:
        """Add all that is in it: first, if there is one, the addition whose answer was not heard."""
        for _ in range(2):
            if not tally.empty:
                self.count(tally)

    def counted(self, hours: Sequence[int] = ()) -> list[Mapping[str, float]]:
        """All that was counted, and then what was in each of these Unix hours (`workers.queue.counts.Counts.of`). What
        transitions counted since somebody added is moved there first, where Redis takes writes."""
        try:
            self._eval(scripts.COUNT, "", 0, 0)
        except ResponseError as error:
            log.warning("what was counted of late is left out: %s", error)
        with self._redis.pipeline(transaction=False) as pipe:
            for key in (keys.COUNTS, *map(counts_key, hours)):
                pipe.hgetall(key)
            return [numbers(told) for told in pipe.execute()]

    def mean_launches(self, hour: int) -> dict[tuple[str, ...], float]:
        """Seconds of a launch in this Unix hour, by device, operation, backend and size class, "" for all devices.
        Redis adds them up: their counts are thousands in a busy hour."""
        told = self._eval(scripts.LAUNCHES, hour)
        kinds = zip(told[::4], told[1::4], told[2::4], told[3::4], strict=True)
        return {
            (device.decode(), *kind.decode().split("|")): float(seconds) / count
            for device, kind, seconds, count in kinds
        }

    def report(self, report: WorkerReport, ttl: float, process: str = "") -> None:
        with self._redis.pipeline() as pipe:
            pipe.hset(keys.WORKERS, report.name, process)
            pipe.set(worker_key(report.name), report.model_dump_json(), px=ceil(ttl * 1000))
            pipe.execute()

    def processes(self) -> dict[str, str]:
        """Every registered worker's name and the identity of its process."""
        return {
            name.decode(): process.decode()
            for name, process in cast(dict[bytes, bytes], self._redis.hgetall(keys.WORKERS)).items()
        }

    def reported(self, name: str) -> bool:
        """Whether a worker's report is still within its time to live."""
        return bool(self._redis.exists(worker_key(name)))

    def unregister(self, name: str) -> bool:
        """Forget a worker that has gone, in our records and in RQ's. False where somebody did already."""
        with self._redis.pipeline() as pipe:
            pipe.hdel(keys.WORKERS, name)
            pipe.hdel(keys.CLAIMS, name)
            pipe.hdel(keys.WISHES, name)
            pipe.zrem(keys.IDLE, name)
            pipe.delete(worker_key(name), handed_key(name), f"{keys.RQ_WORKER}{name}")
            pipe.srem(keys.RQ_WORKERS, f"{keys.RQ_WORKER}{name}")
            pipe.srem(keys.RQ_WORKERS_OF_QUEUE, f"{keys.RQ_WORKER}{name}")
            return bool(pipe.execute()[0])

    def time(self) -> float:
        """Unix seconds by Redis' clock."""
        seconds, microseconds = self._redis.time()
        return seconds + microseconds / 1e6

    def _fields(self, job_id: str) -> dict[str, str]:
        return text_fields(cast(dict[bytes, bytes], self._redis.hgetall(job_key(job_id))))

    def _batch(self, claimed: list[Any], claim: Claim) -> Batch | None:
        """None also where a repeated claim finds that all its jobs were taken from it meanwhile."""
        reason, at, *jobs = claimed or ("drained", 0.0)
        ahead = time.monotonic() - float(at)  # of Redis' clock
        held, odd = list[Held](), list[tuple[str | int, ...]]()
        for *signed, attempt, strikes, submitted, started in jobs:
            job_id, text, mac = texts(signed)
            request = self._signed.request(job_id, text, mac)
            if request is None:
                odd.append((job_id, attempt, claim.digest, "failed", _ODD.model_dump_json(), "", "", ""))
                continue
            times = float(submitted or nan), float(started or nan)
            held.append(Held(request, attempt, strikes, ahead, *times, claim.token))
        if odd:  # whoever claims it next would find the same
            self._eval(scripts.FINISH, "", 0, *(part for ending in odd for part in ending))
        return Batch(tuple(held), texts([reason])[0]) if held else None

    def _current(self, job_id: str, fields: dict[str, str]) -> JobRecord | None:
        if fields.get("state") == State.QUEUED and "deadline" in fields:
            self._eval(scripts.EXPIRE_IF_OVERDUE, job_id)
            fields = self._fields(job_id)
        return self._signed.record(job_id, fields)

    def _for_rq(self, request: JobRequest) -> list[Any]:
        """RQ's own record of a queued job, as field, value, field, value."""
        job = Job.create(
            TASK,
            args=(request.id,),
            id=request.id,
            connection=self._redis,
            description=request.operation,
            timeout=ceil(request.timeout),
            result_ttl=0,
            origin=f"{QUEUE}-{lane_of(request)}-{request.owner}",
            status=JobStatus.QUEUED,
        )
        job.serializer = JSONSerializer  # told above, RQ would look at it anew for each job: a third of all this
        job.enqueued_at = now()
        return [part for pair in job.to_dict().items() for part in pair]

    def _eval(self, script: str, *arguments: Any) -> Any:
        return evaluate(self._redis, script, *arguments)


def _readable(report: bytes) -> WorkerReport | None:
    """None of one that a later release wrote and this one does not understand: what others say still counts."""
    try:
        return WorkerReport.model_validate_json(report)
    except ValidationError as error:
        _tell_unreadable(error.errors()[0]["loc"])
        return None


@cache
def _tell_unreadable(where: tuple[int | str, ...]) -> None:
    """Once of each place: reports come every few seconds."""
    log.warning("a worker's report cannot be read at %s: it is left out", ".".join(map(str, where)))


def lane_of(request: JobRequest) -> str:
    return f"{request.priority}-gpu" if request.backend == "gpu" else request.priority
