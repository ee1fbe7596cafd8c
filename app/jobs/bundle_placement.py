"""The pipeline that takes a bundle into the queue: the jobs of one request, all or none.

Each job goes through the stages of `app.jobs.placement` up to `stored`, all of them through one stage before the next.
Then one step of Redis queues all. What is refused for one is refused for all, and undone.
"""

import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import cache

from redis.exceptions import RedisError

from warpdesk.models import Priority, State
from warpdesk_server.app.access.keys import Key
from warpdesk_server.app.arrays import storage
from warpdesk_server.app.jobs import operations, placement, width
from warpdesk_server.app.jobs.placement import Envelope, Placement
from warpdesk_server.app.kit import errors, limits
from warpdesk_server.app.kit.errors import Refusal, refuse_at
from warpdesk_server.app.services import Services
from warpdesk_server.kernels.problems import Problem
from warpdesk_server.workers.queue.jobs import JobQueue
from warpdesk_server.workers.queue.protocol import PRIORITIES
from warpdesk_server.workers.queue.records import Enqueued, IdempotencyKey, InputsGone, JobRecord

UNPROCESSABLE = 422


async def place_bundle(
    services: Services, caller: Key, job_ids: Sequence[str], jobs: Sequence[object], key: IdempotencyKey | None
) -> tuple[Enqueued, Sequence[JobRecord]]:
    """Take a bundle's jobs through all stages, with these ids, and return their records as they are queued."""
    bundle = BundlePlacement(services, caller, job_ids, jobs, key)
    async with services.bundle_turns.take(caller.id):
        try:
            enqueued, records = await services.queue.after(bundle.prepare, bundle.enqueue)
        except BaseException:
            bundle.abandoned.set()
            raise
    for record in records if not enqueued.replayed else ():
        if not record.request.task:
            services.admission.enqueued(caller.id, record.request.priority, long=record.request.long)
    return enqueued, records


class BundlePlacement:
    """The stages of a bundle from `envelope` on. They block: run them in a thread."""

    def __init__(
        self,
        services: Services,
        caller: Key,
        job_ids: Sequence[str],
        jobs: Sequence[object],
        key: IdempotencyKey | None,
    ) -> None:
        self._services, self._caller = services, caller
        self._job_ids, self._sent, self._key = job_ids, jobs, key
        self._jobs: list[Placement] = []
        self.abandoned = threading.Event()  # nobody waits for it any more

    def prepare(self) -> None:
        """All stages of a bundle before Redis is needed."""
        self._check()
        self._store()

    def enqueue(self, jobs: JobQueue) -> tuple[Enqueued, Sequence[JobRecord]]:
        """The last stage of a bundle: queue its jobs, or raise the refusal and undo the stages before it."""
        fresh = [JobRecord(each.job, State.QUEUED, 0, each.envelope.arrived) for each in self._jobs]
        if self.abandoned.is_set():
            self._undo()
            return Enqueued(self._job_ids[0]), fresh
        try:
            if any(each.job.backend == "gpu" for each in self._jobs):
                placement.require_gpu(jobs)
            enqueued = self._enqueue(jobs)
        except Refusal:
            self._undo()
            raise
        except placement.REFUSALS_OF_QUEUE as error:
            self._undo()
            raise self._refusal_of(error) from None
        if enqueued.replayed:
            self._undo()
        elif self.abandoned.is_set() and self._key is None:
            for job_id in self._job_ids:
                jobs.cancel(job_id)  # its caller was told 503; one who has a key will ask for them again
        return enqueued, fresh

    # The stages.

    def _check(self) -> None:
        """Check every job, and raise one refusal of all that is wrong. An array that several jobs read is looked up
        once, and their inline inputs count together."""
        services, owner = self._services, self._caller.id
        sources = operations.Sources(services, owner)
        idle = cache(self._idle)
        before = Counter[tuple[Priority, bool]]()
        problems, codes, other = list[Problem](), dict[str, None](), None
        for place, (job_id, sent) in enumerate(zip(self._job_ids, self._sent, strict=True)):
            try:
                job = Placement(services, self._envelope(job_id, sent), positioned_too=False)
                job.check(sources)
                job.cut(idle)
                job.require_in_time(_count(before, job))
            except Refusal as refusal:
                if refusal.status != UNPROCESSABLE:
                    other = other or _of_one(refusal, place)
                    continue
                codes[refusal.code] = None
                whole = refusal.problems or (Problem("", refusal.detail),)
                problems += [Problem(f"/jobs/{place}{each.pointer}", each.detail) for each in whole]
                if len(problems) > limits.PROBLEMS:
                    break
            else:
                self._jobs.append(job)
                before[job.envelope.submission.priority, job.is_long] += 1
        if problems:
            code = next(iter(codes)) if len(codes) == 1 else "invalid-request"
            raise Refusal(code, errors.sentence_of(problems), *problems)
        if other is not None:
            raise other

    def _envelope(self, job_id: str, sent: object) -> Envelope:
        """The fields of one job. Refuses one whose answer is an act of its own: a release, or secrets."""
        operations.require_few(self._services, sent)
        envelope = Envelope.of(self._services, self._caller, job_id, sent, None, None)
        operation = self._services.operations.get(envelope.submission.operation)
        if envelope.names_budget:
            sentence = "a job that charges a budget is submitted by itself: POST /v1/jobs"
            raise refuse_at("invalid-request", "/params/budget", sentence)
        if operation is not None and operation.confidential:
            sentence = f"{operation.name} is confidential, and each of its jobs is submitted by itself: POST /v1/jobs"
            raise refuse_at("invalid-request", "/operation", sentence)
        return envelope

    def _idle(self) -> int:
        """How many idle workers there are for the shards of one of the jobs. They are shared by all."""
        with suppress(RedisError, OSError):
            found = width.idle(self._services.queue.jobs, self._services.admission.waiting_long)
            return found // len(self._job_ids)
        return 1

    def _store(self) -> None:
        with storage.refused():
            self._services.store.require(self._caller.id, sum(job.stored_bytes for job in self._jobs))
        try:
            for job in self._jobs:
                job.store()
            for job in self._jobs:
                job.promise()
        except BaseException:
            self._undo()
            raise

    def _enqueue(self, jobs: JobQueue) -> Enqueued:
        """Queue the jobs. Inputs that came with them and are being deleted are stored once more."""
        owner, store = self._caller.id, self._services.store
        bounds = self._services.admission.bounds(owner)
        try:
            inputs = dict.fromkeys(array_id for job in self._jobs for array_id in job.job.stored_inputs)
            gone = [array_id for array_id in inputs if not store.there(owner, array_id)]
            if gone:
                raise InputsGone(*gone)
            return jobs.enqueue_all([job.new_job for job in self._jobs], self._key, bounds)
        except InputsGone as error:
            if any(job.reads_stored(error.arrays) for job in self._jobs):
                raise
            for job in self._jobs:
                if lost := job.lost(error.arrays):
                    job.store_again(lost)
                    job.promise()
        return jobs.enqueue_all([job.new_job for job in self._jobs], self._key, bounds)

    def _undo(self) -> None:
        """Undo the stages of a bundle: it was refused, or its Idempotency-Key has jobs already."""
        self._services.store.ended(dict.fromkeys(self._job_ids))
        for job in self._jobs:
            job.delete_inputs()

    def _refusal_of(self, error: Exception) -> Refusal:
        if not isinstance(error, InputsGone):
            return placement.refusal_of_queue(self._services.admission, self._caller.id, error, len(self._jobs))
        problems = [
            Problem(f"/jobs/{place}{problem.pointer}", problem.detail)
            for place, job in enumerate(self._jobs)
            for problem in job.missing(error.arrays)
        ]
        return Refusal("invalid-request", errors.sentence_of(problems), *problems)


def _count(before: Counter[tuple[Priority, bool]], job: Placement) -> int:
    """How many of a bundle's jobs `before` one, by their priorities and whether they are long, run before it."""
    earlier = PRIORITIES[: PRIORITIES.index(job.envelope.submission.priority) + 1]
    return sum(before[priority, job.is_long] for priority in earlier)


def _of_one(refusal: Refusal, place: int) -> Refusal:
    """What is refused for one job of a bundle, and is no mistake of its own, as the refusal of the bundle."""
    return Refusal(refusal.code, f"jobs[{place}]: {refusal.detail}", headers=refusal.headers)
