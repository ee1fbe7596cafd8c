"""The view of the job queue: what Redis knows of jobs, workers and counts, read without a transition of a job.

The exception is a queued job past its deadline, which expires when its record is read.
"""

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import inf
from typing import Any, cast

from pydantic import ValidationError
from redis import Redis
from redis.exceptions import ResponseError

from warpdesk.models import Priority, State
from warpdesk_server.workers.process import is_dead
from warpdesk_server.workers.queue import keys, scripts
from warpdesk_server.workers.queue.counts import numbers
from warpdesk_server.workers.queue.encoding import text_fields
from warpdesk_server.workers.queue.lua import evaluate
from warpdesk_server.workers.queue.protocol import (
    KINDS,
    LONG,
    OF_TASKS,
    PRIORITIES,
    Event,
    Kind,
    OwnersEvent,
    ReportedStep,
)
from warpdesk_server.workers.queue.records import ALL_JOBS, Backlog, JobFilter, JobRecord
from warpdesk_server.workers.queue.reports import WorkerReport
from warpdesk_server.workers.queue.signatures import SignedRecords

log = logging.getLogger("warpdesk.queue")

SCANNED = 2000  # records that are read for one page of a list
_AT_ONCE = 50  # a record may have a megabyte


class QueueView:
    """What can be read in Redis of every owner's jobs. Synchronous: the API calls it in threads.

    With `mac_of`, a digest by a key that no account of Redis has, it takes signed requests only
    (`workers.queue.signatures`).
    """

    def __init__(self, connection: Redis, mac_of: Callable[[str], str] | None = None) -> None:
        self._redis = connection
        self._signed = SignedRecords(mac_of)

    def replay(self, owner: str, key: str) -> tuple[str, str] | None:
        """The job that Redis has for an idempotency key, and the fingerprint of the request that was sent with it."""
        entry = cast(bytes | None, self._redis.get(f"{keys.IDEMPOTENCY}{owner}:{key}"))
        if entry is None:
            return None
        fingerprint, job_id = entry.decode().split(" ")
        return job_id, fingerprint

    def get(self, job_id: str) -> JobRecord | None:
        """A job's record in Redis. A queued job whose deadline has passed expires first."""
        return self._current(job_id, self._fields(job_id))

    def may_run(self, job_ids: Sequence[str]) -> list[bool]:
        """Whether Redis has records of these jobs by which they may run again: they are live, or dead letters.

        Also records that this release cannot read.
        """
        with self._redis.pipeline(transaction=False) as pipe:
            for job_id in job_ids:
                pipe.hmget(keys.job_key(job_id), "state", "dead")
            found = [(state and state.decode(errors="replace"), dead) for state, dead in pipe.execute()]
        final = {state.value for state in State if state.final}
        return [state is not None and (state not in final or dead is not None) for state, dead in found]

    def records(self, job_ids: Sequence[str]) -> list[JobRecord | None]:
        """The records in Redis of several jobs, as `get` answers.

        That takes one round trip unless a deadline has to be checked.
        """
        with self._redis.pipeline(transaction=False) as pipe:
            for job_id in job_ids:
                pipe.hgetall(keys.job_key(job_id))
            found = [text_fields(fields) for fields in pipe.execute()]
        return [self._current(job_id, fields) for job_id, fields in zip(job_ids, found, strict=True)]

    def checked(self, job_ids: Sequence[str]) -> list[JobRecord | None]:
        """The job records as they are in Redis, with `closed`, which no worker can undo.

        Of a shard it is the job's record, with the shard's id, and with the attempt at the shard.
        """
        with self._redis.pipeline(transaction=False) as pipe:
            pipe.time()
            for job_id in job_ids:
                whole = job_id.partition(":")[0]
                pipe.hgetall(keys.job_key(whole))
                pipe.exists(f"{keys.CLOSED}{whole}")
                pipe.hmget(keys.job_key(job_id), "state", "attempt", "claim")
            (seconds, microseconds), *found = pipe.execute()
        now, records = seconds + microseconds / 1e6, list[JobRecord | None]()
        for job_id, given, closed, attempt in zip(job_ids, found[::3], found[1::3], found[2::3], strict=True):
            whole, of_shard, _ = job_id.partition(":")
            fields = text_fields(given)
            if fields and of_shard:
                state, number, claim = attempt
                fields |= text_fields(
                    {b"state": state or b"queued", b"attempt": number or b"0", b"claim": claim or b""}
                )
            record = self._signed.record(whole, fields)
            if record is not None and of_shard:
                record = replace(record, request=record.request.of_shard(job_id))
            if record is not None and (closed or (record.request.deadline or inf) <= now):
                record = replace(record, closed=True)
            records.append(record)
        return records

    def published_record(self, job_id: str, record: str) -> JobRecord | None:
        """The job record that Redis published with a job's last event. None where it cannot be relied on."""
        try:
            fields = json.loads(record)
        except ValueError:
            return None
        if not isinstance(fields, dict):
            return None
        return self._signed.record(job_id, {name: str(value) for name, value in fields.items()})

    def position(self, job_id: str) -> int | None:
        """How many of an owner's queued jobs in Redis will be claimed before this one, as things are.

        None when it is not queued.
        """
        return cast(int | None, self._eval(scripts.POSITION, job_id))

    def jobs(
        self, owner: str, limit: int, before: str | None = None, wanted: JobFilter = ALL_JOBS
    ) -> tuple[Sequence[JobRecord], str | None]:
        """The job records in Redis of an owner, newest first, older than the id `before`, and the id to go on from.

        That id is None once there are no more. After SCANNED records it goes on there, whatever was found.
        """
        key, (highest, lowest) = keys.owner_key(owner), wanted.ids
        records: list[JobRecord] = []
        left = SCANNED
        if before is not None:
            highest = min(f"({before}", highest, key=lambda bound: (bound == "+", bound))
        while left:
            # One more than is wanted shows whether there are more.
            count = min(left, _AT_ONCE if wanted.narrow else limit - len(records) + 1)
            ids = [
                entry.decode()
                for entry in cast(list[bytes], self._redis.zrevrangebylex(key, highest, lowest, start=0, num=count))
            ]
            if not ids:
                return records, None
            for job_id, record in zip(ids, self.records(ids), strict=True):
                if record is not None and record.request.owner == owner:  # the list is not signed
                    if not wanted.takes(record):
                        pass
                    elif len(records) == limit:
                        return records, records[-1].request.id
                    else:
                        records.append(record)
                elif not self._redis.exists(keys.job_key(job_id)):  # the record's time is over
                    self._redis.zrem(key, job_id)
            left -= len(ids)
            highest = f"({ids[-1]}"
        return records, highest[1:]

    def in_use(self, owner: str, array_id: str) -> bool:
        """Whether Redis has a live job of the owner, or a dead letter, that reads the array."""
        return bool(self._redis.scard(keys.uses_key(owner, array_id)))

    def events(self, job_id: str, after: int = 0) -> list[Event]:
        """The events in a job's Redis stream after the event of that number, oldest first.

        Of some 200 or more the oldest are gone.
        """
        entries = cast(list[Any], self._redis.xrange(keys.events_key(job_id), min=f"({after}-0"))
        return [Event.model_validate_json(fields[b"event"]) for _, fields in entries]

    def begin_to_follow(self, owner: str) -> int:
        """Have Redis keep the events of all jobs of an owner, for a day from the latest call on. Returns the number of
        the last one."""
        key = f"{keys.FOLLOWED}{owner}"
        with self._redis.pipeline(transaction=False) as pipe:  # the API's account of Redis has no transactions
            # By the clock, so that numbers grow also after they were forgotten.
            pipe.hsetnx(key, "number", int(self.time() * 1000))
            pipe.expire(key, keys.FEED_SECONDS)
            pipe.hget(key, "number")
            return int(pipe.execute()[-1])

    def events_of(self, owner: str, after: int, limit: int) -> list[OwnersEvent]:
        """The events in Redis of all jobs of an owner after the one of that number, oldest first. `event` is None where
        the job was erased."""
        entries = cast(list[Any], self._redis.xrange(f"{keys.FEED}{owner}", min=f"({after}-0", count=limit))
        events = [Event.model_validate_json(fields[b"event"]) for _, fields in entries]
        jobs = [*dict.fromkeys(event.job for event in events)]
        with self._redis.pipeline(transaction=False) as pipe:
            for job_id in jobs:
                pipe.hget(keys.job_key(job_id), "erased")
            erased = {job_id for job_id, mark in zip(jobs, pipe.execute(), strict=True) if mark is not None}
        return [
            OwnersEvent(
                int(entry.partition(b"-")[0]),
                None if event.job in erased else event,
                fields[b"operation"].decode(),
                fields[b"private"] == b"1",
            )
            for (entry, fields), event in zip(entries, events, strict=True)
        ]

    def reported_steps(self, job_id: str, after: int, limit: int) -> list[ReportedStep]:
        """What a task reported in Redis of its steps after that one, in their order, at most `limit` of them."""
        entries = self._redis.xrange(keys.progress_key(job_id), min=f"({after}-0", count=limit)
        return [
            ReportedStep(int(entry.partition(b"-")[0]), float(fields[b"at"]), json.loads(fields[b"values"]))
            for entry, fields in cast(list[Any], entries)
        ]

    def dead_letters(self, limit: int, before: str | None = None) -> Sequence[JobRecord]:
        """The dead letters in Redis of every owner, the latest first, from behind the id `before`."""
        start = 0
        if before is not None:
            rank = cast(int | None, self._redis.zrevrank(keys.DEAD, before))
            start = 0 if rank is None else rank + 1
        ids = cast(list[bytes], self._redis.zrevrange(keys.DEAD, start, start + limit - 1))
        return [record for record in self.records([entry.decode() for entry in ids]) if record is not None]

    def workers(self) -> Sequence[WorkerReport]:
        """The workers' reports in Redis within their time to live, without workers of this host that have ended."""
        names = [name for name, process in self.processes().items() if not is_dead(process)]
        if not names:
            return []
        reports = cast(list[bytes | None], self._redis.mget([keys.worker_key(name) for name in names]))
        return [read for report in reports if report is not None and (read := _readable(report)) is not None]

    def busy(self, names: Sequence[str]) -> frozenset[str]:
        """Those of these workers that have jobs now, in Redis: RQ's record of a worker changes with each claim and
        end, and its report a moment later."""
        with self._redis.pipeline(transaction=False) as pipe:
            for name in names:
                pipe.hget(f"{keys.RQ_WORKER}{name}", "state")
            return frozenset(name for name, state in zip(names, pipe.execute(), strict=True) if state == b"busy")

    def length(self) -> int:
        """The number of jobs in Redis that wait for a worker."""
        return self._redis.zcard(keys.WAITING)

    def oldest(self, limit: int) -> list[JobRecord]:
        """The job records in Redis that have waited longest, of all owners."""
        ids = cast(list[bytes], self._redis.zrange(keys.WAITING, 0, limit - 1))
        return [record for record in self.records([entry.decode() for entry in ids]) if record is not None]

    def suspended(self) -> bool:
        """Whether Redis tells workers to take no job: this service's own pause of the queue, or `rq suspend`."""
        return bool(self._redis.exists(keys.RQ_SUSPENDED))

    def paused(self) -> int:
        """The number of tasks in Redis that are paused."""
        return self._redis.scard(keys.PAUSED_TASKS)

    def waiting_by_owner(self, kinds: Sequence[Kind] = KINDS) -> dict[Priority, dict[str, int]]:
        """The number of waiting jobs of these kinds in Redis by priority and owner, without those in a backoff."""
        counts: dict[Priority, dict[str, int]] = {}
        for priority, owner, count in self._eval(scripts.WAITING_BY_OWNER, " ".join(kinds)):
            counts.setdefault(cast(Priority, priority.decode()), {})[owner.decode()] = count
        return counts

    def waiting_long_work(self) -> frozenset[Kind]:
        """The kinds of jobs that take long, tasks among them, of which Redis has any that wait for a worker."""
        kinds = (*LONG, *OF_TASKS)
        with self._redis.pipeline(transaction=False) as pipe:
            for kind in kinds:
                lanes = [f"{priority}-{kind}" for priority in PRIORITIES]
                pipe.exists(*(f"{keys.RING}{of}{lane}" for lane in lanes for of in ("", "shards:")))
            return frozenset(kind for kind, some in zip(kinds, pipe.execute(), strict=True) if some)

    def waiting_tasks(self, kinds: Iterable[Kind]) -> frozenset[str]:
        """The names of the tasks of these kinds that wait in Redis for a worker, of the first 10,000 jobs."""
        return frozenset(name.decode() for name in self._eval(scripts.WAITING_TASKS, " ".join(sorted(kinds)), 10_000))

    def queues(self) -> tuple[dict[Priority, Backlog], int]:
        """The backlog of each priority in Redis, and the number of dead letters.

        At most 10,000 jobs that run, and as many in a backoff, are looked at.
        """
        queues, dead = self._eval(scripts.QUEUES, 10_000)
        found = {}
        for priority, queued, running, delayed, oldest in queues:
            at = float(oldest) if oldest else None
            found[cast(Priority, priority.decode())] = Backlog(queued, running, delayed, at)
        return found, dead

    def counted(self, hours: Sequence[int] = ()) -> list[Mapping[str, float]]:
        """The counts in Redis of all time, then those of each of these Unix hours (`workers.queue.counts.Counts.of`).

        Where Redis takes writes, the latest counts of transitions are moved there first.
        """
        try:
            self._eval(scripts.COUNT, "", 0, 0)
        except ResponseError as error:
            log.warning("the latest counts of transitions are left out: %s", error)
        with self._redis.pipeline(transaction=False) as pipe:
            for key in (keys.COUNTS, *map(keys.counts_key, hours)):
                pipe.hgetall(key)
            return [numbers(answer) for answer in pipe.execute()]

    def mean_launches(self, hour: int) -> dict[tuple[str, ...], float]:
        """Mean seconds of a launch, by Redis' counts of a Unix hour.

        The key is device, operation, backend and size class; the device "" is all devices. Redis adds them up, since a
        busy hour has thousands of counts.
        """
        answer = self._eval(scripts.LAUNCHES, hour)
        kinds = zip(answer[::4], answer[1::4], answer[2::4], answer[3::4], strict=True)
        return {
            (device.decode(), *kind.decode().split("|")): float(seconds) / count
            for device, kind, seconds, count in kinds
        }

    def processes(self) -> dict[str, str]:
        """The name of every worker registered in Redis, with the identity of its process."""
        return {
            name.decode(): process.decode()
            for name, process in cast(dict[bytes, bytes], self._redis.hgetall(keys.WORKERS)).items()
        }

    def reported(self, name: str) -> bool:
        """Whether a worker's report in Redis is still within its time to live."""
        return bool(self._redis.exists(keys.worker_key(name)))

    def time(self) -> float:
        """Unix seconds by Redis' clock."""
        seconds, microseconds = self._redis.time()
        return seconds + microseconds / 1e6

    def _fields(self, job_id: str) -> dict[str, str]:
        return text_fields(cast(dict[bytes, bytes], self._redis.hgetall(keys.job_key(job_id))))

    def _current(self, job_id: str, fields: dict[str, str]) -> JobRecord | None:
        if fields.get("state") in (State.QUEUED, State.PAUSED) and "deadline" in fields:
            self._eval(scripts.EXPIRE_IF_OVERDUE, job_id)
            fields = self._fields(job_id)
        return self._signed.record(job_id, fields)

    def _eval(self, script: str, *arguments: Any) -> Any:
        return evaluate(self._redis, script, *arguments)


def _readable(report: bytes) -> WorkerReport | None:
    """A worker's report in Redis; None where a later release wrote it in a form that this one does not understand."""
    try:
        return WorkerReport.model_validate_json(report)
    except ValidationError as error:
        _log_once(error.errors()[0]["loc"])
        return None


@cache
def _log_once(where: tuple[int | str, ...]) -> None:
    """Log once for each place why a worker's report in Redis is left out: reports come every few seconds."""
    log.warning("a worker's report cannot be read at %s: it is left out", ".".join(map(str, where)))
