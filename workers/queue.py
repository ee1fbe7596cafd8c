"""The job record in Redis and its transitions, each one atomic script: enqueue, start, finish, retry, cancel, erase.

    queued ──start──▶ running ──finish──▶ succeeded | failed
      ▲  │              │  │
      │  │              │  └─cancel, deadline──▶ canceled | expired
      └──┼───retry──────┘
         └──cancel, deadline──▶ canceled | expired

The attempt number is a fence: `start` raises it, and whatever arrives with an older one is refused. A repeat of the
same call after a lost reply changes nothing and answers the same.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, cast
from uuid import uuid4

from redis import Redis
from redis.backoff import ExponentialBackoff
from redis.retry import Retry
from rq import Queue
from rq.job import Job
from rq.serializers import JSONSerializer
from rq.utils import now, utcformat

from workers import scripts
from workers.process import is_dead
from workers.protocol import (
    LEASES,
    MAX_ATTEMPTS,
    QUEUE,
    TASK,
    WORKERS,
    Failed,
    JobRequest,
    Provenance,
    State,
    Succeeded,
    WorkerReport,
    job_key,
    owner_key,
    uses_key,
    worker_key,
)

LEASE_SECONDS = 15.0


@dataclass(frozen=True)
class JobRecord:
    """A job as Redis knows it. Times are Unix seconds by Redis' clock."""

    request: JobRequest
    state: State
    attempt: int
    submitted_at: float
    started_at: float | None = None
    ended_at: float | None = None
    progress: float | None = None
    result: str | None = None  # name in the store
    result_expires_at: float | None = None
    erased: bool = False
    error: Failed | None = None
    provenance: Provenance | None = None


@dataclass(frozen=True)
class Lease:
    """A running attempt and the worker that holds it."""

    job_id: str
    attempt: int
    worker: str
    process: str  # workers.process.identity of the worker
    expired: bool


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
    """Jobs of every owner. Synchronous: the API calls it in threads."""

    def __init__(self, connection: Redis) -> None:
        self._redis = connection
        self._rq = Queue(QUEUE, connection=connection, serializer=JSONSerializer)

    def enqueue(self, request: JobRequest) -> None:
        """Write the record and push the job, in one transaction."""
        job = Job.create(
            TASK,
            args=(request.id,),
            id=request.id,
            connection=self._redis,
            serializer=JSONSerializer,
            description=request.operation,
            timeout=ceil(request.timeout),
            result_ttl=0,
        )
        with self._redis.pipeline() as pipe:
            self._rq.enqueue_job(job, pipeline=pipe)  # first: it begins the transaction
            pipe.eval(
                scripts.ENQUEUE,
                0,
                request.id,
                request.owner,
                request.model_dump_json(),
                json.dumps(sorted(set(request.inputs.values()))),
                repr(request.result_ttl),
                request.backend,
                "" if request.deadline is None else repr(request.deadline),
            )
            pipe.execute()

    def get(self, job_id: str) -> JobRecord | None:
        """The record; a queued job whose deadline has passed is turned into `expired` first."""
        return self._current(job_id, self._fields(job_id))

    def position(self, job_id: str) -> int | None:
        """Jobs ahead of a queued job (0 = next), None when it is not queued."""
        if self._redis.hget(job_key(job_id), "state") != b"queued":
            return None
        position = cast(int | None, self._redis.lpos(scripts.RQ_QUEUE, job_id))
        return position if position is not None else 0  # a worker has popped it and is about to start it

    def cancel(self, job_id: str) -> State:
        """Queued: canceled at once, never runs. Running: the same, and its worker is told to stop. Final: unchanged.

        Raises KeyError for a job that does not exist.
        """
        state = self._eval(scripts.CANCEL, job_id)
        if state is None:
            raise KeyError(job_id)
        return State(state.decode())

    def erase(self, job_id: str) -> tuple[str | None, tuple[str, ...]]:
        """Cancel if live, then forget parameters, inputs, result, provenance and error; how it ended stays. Returns the
        result's name and the array ids that no other live job of the owner uses, for the store to delete."""
        fields = self._fields(job_id)
        if not fields:
            return None, ()
        self.cancel(job_id)
        request = JobRequest.model_validate_json(fields["request"])
        stripped = request.model_copy(update={"params": {}, "inputs": {}, "seed": None})
        result, *arrays = self._eval(scripts.ERASE, job_id, stripped.model_dump_json())
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
            with self._redis.pipeline(transaction=False) as pipe:
                for job_id in ids:
                    pipe.hgetall(job_key(job_id))
                found = [_text(fields) for fields in pipe.execute()]
            for job_id, fields in zip(ids, found, strict=True):
                record = self._current(job_id, fields)
                if record is not None:
                    records.append(record)
                else:  # the record's time is over
                    self._redis.zrem(key, job_id)
        return records

    def in_use(self, owner: str, array_id: str) -> bool:
        """Whether a live job of the owner reads the array."""
        return bool(self._redis.scard(uses_key(owner, array_id)))

    def workers(self) -> Sequence[WorkerReport]:
        """The workers that reported within their time to live; those of this host that have ended are left out."""
        names = [name for name, process in self.processes().items() if not is_dead(process)]
        if not names:
            return []
        reports = cast(list[bytes | None], self._redis.mget([worker_key(name) for name in names]))
        return [WorkerReport.model_validate_json(report) for report in reports if report is not None]

    def length(self) -> int:
        return self._redis.llen(scripts.RQ_QUEUE)

    # Called by a worker's parent process.

    def start(
        self,
        job_id: str,
        worker: str = "",
        process: str = "",
        execution: str = "",
        leave_gpu_jobs: bool = False,
    ) -> tuple[JobRequest, int] | None:
        """Raise the attempt (the fence) and mark the job running; None when it is final, canceled or past its deadline.

        With `leave_gpu_jobs`, a job that wants a GPU goes back to the end of the queue for a worker that has one.
        """
        started = self._eval(
            scripts.START,
            job_id,
            worker,
            process,
            execution or uuid4().hex,
            repr(LEASE_SECONDS),
            int(leave_gpu_jobs),
            utcformat(now()),
        )
        if started is None:
            return None
        request, attempt = started
        return JobRequest.model_validate_json(request), int(attempt)

    def renew(self, job_id: str, attempt: int) -> bool:
        """Extend the claim; False when the attempt is no longer the one that runs (canceled, expired, taken over)."""
        return bool(self._eval(scripts.RENEW, job_id, attempt, repr(LEASE_SECONDS)))

    def strikes(self, job_id: str) -> int:
        """How many workers have died of this job."""
        return int(cast(bytes | None, self._redis.hget(job_key(job_id), "strikes")) or 0)

    def finish(self, job_id: str, attempt: int, outcome: Succeeded | Failed) -> bool:
        """Make one outcome visible. False when the attempt is stale or the job is already final: the caller deletes
        what the attempt wrote, unread."""
        if isinstance(outcome, Succeeded):
            told = (State.SUCCEEDED, "result", outcome.result, outcome.provenance.model_dump_json())
        else:
            told = (State.FAILED, "error", outcome.model_dump_json(), "")
        return bool(self._eval(scripts.FINISH, job_id, attempt, *told))

    def expire(self, job_id: str, attempt: int) -> bool:
        """The running job's deadline has passed; False when the attempt is stale or the job is already final."""
        return bool(self._eval(scripts.EXPIRE, job_id, attempt))

    def retry(self, job_id: str, attempt: int, strike: bool = True) -> bool:
        """Put a job whose worker died back at the front of the queue; False when it is stale, final or out of attempts.

        Without `strike` (a worker that stops gives its job back) the attempt is not counted against the job.
        """
        return bool(self._eval(scripts.RETRY, job_id, attempt, int(strike), MAX_ATTEMPTS))

    def leases(self) -> Sequence[Lease]:
        """Every running attempt."""
        at = self.time()
        held = []
        for entry, expires_at in cast(list[tuple[bytes, float]], self._redis.zrange(LEASES, 0, -1, withscores=True)):
            job_id = entry.decode()
            fields = cast(list[bytes | None], self._redis.hmget(job_key(job_id), "attempt", "worker", "process"))
            attempt, worker, process = (field.decode() if field else "" for field in fields)
            held.append(Lease(job_id, int(attempt or 0), worker, process, expires_at <= at))
        return held

    def drop_lease(self, job_id: str) -> None:
        """Forget the claim on a job that has no record any more."""
        self._redis.zrem(LEASES, job_id)

    def popped(self) -> frozenset[str]:
        """Ids that a worker took from the queue and has not started yet."""
        return frozenset(
            entry.decode() for entry in cast(list[bytes], self._redis.lrange(scripts.RQ_INTERMEDIATE, 0, -1))
        )

    def restore(self, job_id: str) -> bool:
        """Put an id back whose worker died between pop and start. Doing so wrongly is harmless: the second pop of an id
        finds the job running or final."""
        return bool(self._eval(scripts.RESTORE, job_id))

    def report(self, report: WorkerReport, ttl: float, process: str = "") -> None:
        with self._redis.pipeline() as pipe:
            pipe.hset(WORKERS, report.name, process)
            pipe.set(worker_key(report.name), report.model_dump_json(), px=ceil(ttl * 1000))
            pipe.execute()

    def processes(self) -> dict[str, str]:
        """Every registered worker's name and the identity of its process."""
        return {
            name.decode(): process.decode()
            for name, process in cast(dict[bytes, bytes], self._redis.hgetall(WORKERS)).items()
        }

    def reported(self, name: str) -> bool:
        """Whether a worker's report is still within its time to live."""
        return bool(self._redis.exists(worker_key(name)))

    def unregister(self, name: str) -> None:
        """Forget a worker that has gone, in our records and in RQ's."""
        with self._redis.pipeline() as pipe:
            pipe.hdel(WORKERS, name)
            pipe.delete(worker_key(name), f"rq:worker:{name}")
            pipe.srem("rq:workers", f"rq:worker:{name}")
            pipe.srem(f"rq:workers:{QUEUE}", f"rq:worker:{name}")
            pipe.execute()

    def time(self) -> float:
        """Unix seconds by Redis' clock."""
        seconds, microseconds = self._redis.time()
        return seconds + microseconds / 1e6

    def _fields(self, job_id: str) -> dict[str, str]:
        return _text(cast(dict[bytes, bytes], self._redis.hgetall(job_key(job_id))))

    def _current(self, job_id: str, fields: dict[str, str]) -> JobRecord | None:
        if fields.get("state") == State.QUEUED and "deadline" in fields:
            self._eval(scripts.EXPIRE_IF_OVERDUE, job_id)
            fields = self._fields(job_id)
        return _record(fields) if fields else None

    def _eval(self, script: str, *arguments: Any) -> Any:
        return self._redis.eval(script, 0, *arguments)


def _text(fields: dict[bytes, bytes]) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in fields.items()}


def _record(fields: dict[str, str]) -> JobRecord:
    def number(name: str) -> float | None:
        return float(fields[name]) if name in fields else None

    submitted_at, started_at = float(fields["submitted_at"]), number("started_at")
    provenance = Provenance.model_validate_json(fields["provenance"]) if "provenance" in fields else None
    if provenance is not None and started_at is not None:
        provenance = provenance.model_copy(update={"queue_seconds": round(started_at - submitted_at, 6)})
    return JobRecord(
        request=JobRequest.model_validate_json(fields["request"]),
        state=State(fields["state"]),
        attempt=int(fields["attempt"]),
        submitted_at=submitted_at,
        started_at=started_at,
        ended_at=number("ended_at"),
        progress=number("progress"),
        result=fields.get("result"),
        result_expires_at=number("result_expires_at"),
        erased="erased" in fields,
        error=Failed.model_validate_json(fields["error"]) if "error" in fields else None,
        provenance=provenance,
    )
