"""The pipeline that takes a submission into the queue, in stages that a later refusal undoes.

    envelope ──▶ admitted ──▶ checked ──▶ stored ──▶ charged ──▶ queued
    (validated   (has its     (nothing    (inputs    (a budget,  (in Redis)
     fields)      turn)        wrong)      kept)      if any)

`stored` and `charged` each add a compensation to one list, which runs in reverse where the job is refused after them.
From `checked` on all happens in one thread, which goes on where its caller has gone.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Literal

import anyio
from redis.exceptions import RedisError, ResponseError

from warpdesk.models import State
from warpdesk_server.app.access import auth
from warpdesk_server.app.access.keys import Key
from warpdesk_server.app.arrays import ndarray, storage
from warpdesk_server.app.budgets.settlement import with_charge
from warpdesk_server.app.jobs import operations, schemas, width
from warpdesk_server.app.jobs.admission import Admission
from warpdesk_server.app.jobs.idempotency import canonical, digest, identity, reused
from warpdesk_server.app.jobs.operations import Checked
from warpdesk_server.app.jobs.records import positioned
from warpdesk_server.app.kit import errors, ledger_calls
from warpdesk_server.app.kit.errors import Refusal
from warpdesk_server.app.services import Services
from warpdesk_server.kernels.indicators.declared import takes_lists
from warpdesk_server.kernels.operation import Operation
from warpdesk_server.kernels.plans import Plan
from warpdesk_server.kernels.problems import Problem
from warpdesk_server.privacy.charges import Charge, ChargeRequest, OverBudget
from warpdesk_server.privacy.database import DatabaseUnavailable
from warpdesk_server.privacy.errors import Refused
from warpdesk_server.workers import logs
from warpdesk_server.workers.predicted_times import job_of
from warpdesk_server.workers.queue.jobs import JobQueue
from warpdesk_server.workers.queue.protocol import Forecast, JobRequest, Kind
from warpdesk_server.workers.queue.records import (
    Enqueued,
    IdempotencyKey,
    InputsGone,
    JobRecord,
    KeyReused,
    NewJob,
    QueueFull,
    QuotaReached,
    TasksReached,
)
from warpdesk_server.workers.store.arrays import size_of
from warpdesk_server.workers.store.protocol import StoredArray

log = logging.getLogger("warpdesk.api")

REFUSALS_OF_QUEUE = (QueueFull, QuotaReached, TasksReached, KeyReused, InputsGone, ResponseError)


@dataclass(frozen=True)
class Envelope:
    """A job's submission whose own fields are right. Whether its operation takes it is not checked yet."""

    owner: str
    job_id: str
    submission: schemas.Submission
    body: object  # as it was sent
    key: IdempotencyKey | None
    idempotency_key: str | None  # as it was sent; None for a job of the service's own
    names_budget: bool  # it may wait for the ledger
    arrived: float  # Unix seconds

    @classmethod
    def of(
        cls,
        services: Services,
        caller: Key,
        job_id: str,
        body: object,
        key: IdempotencyKey | None,
        idempotency_key: str | None,
    ) -> "Envelope":
        """The fields of a job's submission. Raises the refusal of a body that is none, or of a priority that the
        caller may not use."""
        submission = operations.submission(body)
        if submission.priority == "realtime":
            auth.require(caller, "realtime", "The priority 'realtime'")
        operation = services.operations.get(submission.operation)
        names_budget = operation is not None and operation.spend is not None and "budget" in submission.params
        return cls(caller.id, job_id, submission, body, key, idempotency_key, names_budget, time.time())


@dataclass(frozen=True)
class Placed:
    """The job of a submission: new in the queue, or the one that its Idempotency-Key or its charge had before."""

    job_id: str
    record: JobRecord
    position: int | None = None
    replayed: bool = False


async def place(services: Services, envelope: Envelope, *, positioned_too: bool) -> Placed:
    """Take a job's submission through all stages. With `positioned_too` its place in the queue is looked up as well."""
    submission, owner = envelope.submission, envelope.owner
    placement = Placement(services, envelope, positioned_too=positioned_too)
    ledger_thread = partial(services.ledger_threads.run, owner) if envelope.names_budget else None
    with anyio.move_on_after(ledger_calls.PATIENCE if envelope.names_budget else None) as scope:
        async with services.admission.turn(
            owner, submission.priority, submission.deadline_s, charging=envelope.names_budget
        ):
            try:
                placed = await services.queue.after(placement.prepare, placement.enqueue, ledger_thread)
            except (Refused, DatabaseUnavailable) as error:
                raise errors.refusal_of(error, "/params/budget") from None
            except BaseException:
                placement.abandoned.set()
                raise
            if not placed.replayed and not placement.is_task:
                services.admission.enqueued(owner, submission.priority, long=placement.long)
    if scope.cancelled_caught:
        raise errors.ledger_unavailable(TimeoutError.__name__)
    return placed


class Placement:
    """The stages of one job's submission from `checked` on, with what undoes them. They block: run them in a thread."""

    _checked: Checked
    _shards: int  # parts in which several workers may compute it
    job: JobRequest
    _same: str | None  # digest under which an identical live job may answer for this one

    def __init__(self, services: Services, envelope: Envelope, *, positioned_too: bool) -> None:
        self._services = services
        self.envelope = envelope
        self._positioned_too = positioned_too
        self._kept: dict[str, StoredArray] = {}  # inputs that came with it and are in the store
        self._attached = ""  # those that go with it into Redis, as JSON
        self._earlier: Charge | None = None  # of the same request; its job is this one's
        self._compensations: list[Callable[[str], bool]] = []
        self.abandoned = threading.Event()  # nobody waits for it any more

    @property
    def long(self) -> bool:
        """Whether the submitted job takes long, and so delays no quick one."""
        return self._earlier is None and self.job.long

    @property
    def is_task(self) -> bool:
        """Whether a task was submitted, which delays no other job."""
        return self._earlier is None and self.job.task

    def prepare(self) -> None:
        """All stages of a job's submission before Redis is needed."""
        self._check()
        if self._earlier is None:
            with storage.refused():
                self._services.store.require(self.envelope.owner, self.stored_bytes)
            self.store()
            self._charge()

    def enqueue(self, jobs: JobQueue) -> Placed:
        """The last stage of a submission: queue its job, or raise the refusal and undo the stages before it."""
        if self._earlier is not None:
            return self._resume(jobs, self._earlier)
        job, fresh = self.job, JobRecord(self.job, State.QUEUED, 0, time.time())
        if self.abandoned.is_set() and job.charge is None:  # a charged job is queued: its caller will ask for it again
            self._undo("its caller has gone")
            return Placed(job.id, fresh)
        try:
            if job.backend == "gpu":
                require_gpu(jobs)
            enqueued = self._enqueue(jobs)
        except Refusal:
            self._undo("it was refused before it was queued")
            raise
        except REFUSALS_OF_QUEUE as error:
            self._undo(f"it was refused before it was queued: {type(error).__name__}")
            raise self._refusal_of(error) from None
        if enqueued.replayed:
            self._undo("its Idempotency-Key has a job", whole=True)
            return Placed(enqueued.job_id, fresh, replayed=True)
        if self.abandoned.is_set() and self.envelope.key is None:
            jobs.cancel(job.id)  # its caller was told 503; one who has a key will ask for it again
        if not self._positioned_too:
            return Placed(job.id, fresh)
        return Placed(job.id, *positioned(jobs, jobs.get(job.id) or fresh))

    # The stages.

    def check(self, sources: operations.Sources) -> None:
        """The stage `checked`, but for the job's width."""
        self._checked = operations.check(self._services, self.envelope.submission, sources)

    def cut(self, idle: Callable[[], int]) -> None:
        """Settle in how many parts `idle()` idle workers compute the job. Refuses a width that it cannot have."""
        wanted = self.envelope.submission.width
        several = self.is_long and width.may_be_cut(self._checked, wanted)
        self._shards = width.shards(self._checked, wanted, idle() if several else 1)

    def require_in_time(self, before: int | None = None) -> None:
        """Refuse a submission whose deadline would pass. `before` are the jobs of its bundle that come first."""
        envelope, submission = self.envelope, self.envelope.submission
        if submission.deadline_s is None or envelope.names_budget or self._checked.task_limits is not None:
            return
        left = submission.deadline_s - (time.time() - envelope.arrived)
        self._services.admission.require_in_time(
            envelope.owner, submission.priority, left, long=self.is_long, before=before
        )

    def _idle(self) -> int:
        with suppress(RedisError, OSError):
            return width.idle(self._services.queue.jobs, self._services.admission.waiting_long)
        return 1

    def _check(self) -> None:
        services, envelope = self._services, self.envelope
        try:
            self.check(operations.Sources(services, envelope.owner))
        except Refusal:
            # An input that was charged for may be gone, and its job need not.
            if envelope.names_budget and envelope.idempotency_key is not None:
                self._earlier = services.ledger.charges.of_request(
                    envelope.owner, envelope.idempotency_key, identity(services.operations, envelope.body)
                )
            if self._earlier is None:
                raise
            return
        self.cut(self._idle)
        self.require_in_time()
        if self._checked.spend is None:
            return
        if envelope.idempotency_key is None:
            sentence = "A job that charges a budget needs an Idempotency-Key: sent again it is charged once"
            raise Refusal("idempotency-key-required", sentence)
        if envelope.submission.backend == "gpu":
            with suppress(RedisError, OSError):  # tried again where it is queued, if it is charged at all
                require_gpu(services.queue.jobs)

    @property
    def stored_bytes(self) -> int:
        """The bytes of the store that the submitted job takes: room for its result, and inputs that came with it."""
        checked = self._checked
        sizes = [] if self._apart else [size_of(checked.infos[name]) for name in checked.inline]
        return storage.result_bytes(checked, self._shards) + sum(sizes)

    @property
    def _apart(self) -> bool:
        """Whether the inputs that came with the submission go into Redis, and not into the store."""
        return self._served("attached") and operations.may_be_attached(self._services, self._checked)

    def store(self) -> None:
        """The stage `stored`, for which there is room (`stored_bytes`)."""
        services, owner, checked = self._services, self.envelope.owner, self._checked
        with storage.refused():
            if self._apart:
                self._attached = operations.attached(checked)
            else:
                self._kept = operations.keep_inputs(services, owner, checked)
        self._compensations.append(self._delete_inputs)
        self.job = self._request()
        self._same = self._same_digest()

    def _charge(self) -> None:
        services, envelope, checked, job = self._services, self.envelope, self._checked, self.job
        if checked.spend is None or envelope.idempotency_key is None:
            return
        budget = envelope.submission.params["budget"]
        request = ChargeRequest(
            owner=job.owner,
            idempotency_key=envelope.idempotency_key,
            fingerprint=identity(services.operations, envelope.body),
            operation=job.operation,
            params=job.canonical_params,
            inputs=job.canonical_inputs,
            version=checked.operation.release_version,
            job_id=job.id,
            job=job.model_dump_json(),
        )
        try:
            reservation = services.ledger.charges.reserve(budget, checked.spend, request)
        except Refused as error:  # nothing is undone for DatabaseUnavailable: it may have been charged, and will run
            if isinstance(error, OverBudget):
                services.metrics.charged(budget, "refused")
            self._undo("its charge was refused")
            raise
        if reservation.replayed:
            self._earlier = reservation.charge
            return
        services.metrics.charged(reservation.charge.budget_id, "granted")
        self.job = with_charge(job, reservation.charge)
        self._compensations.append(self._refund)

    def _resume(self, jobs: JobQueue, charge: Charge) -> Placed:
        """The job that this submission was charged for, however long ago. Where a crash left it in no queue, or
        Redis forgot it, it is queued: if it was answered, whoever takes it finds that answer."""
        record, stored = jobs.get(charge.job_id), bool(self._compensations)
        if record is None and stored and charge.state not in ("failed", "void"):
            self.job = with_charge(self.job.model_copy(update={"id": charge.job_id}), charge)
            try:
                self._enqueue(jobs)
            except REFUSALS_OF_QUEUE as error:
                raise self._refusal_of(error) from None
            return Placed(charge.job_id, JobRecord(self.job, State.QUEUED, 0, time.time()), replayed=True)
        self._undo("its request was charged before")
        if record is None:
            sentence = f"{charge.id} was made for this request ({charge.state}), and its job is not known any more"
            raise Refusal("result-gone", sentence, job=charge.job_id)
        return Placed(charge.job_id, record, replayed=True)

    def _enqueue(self, jobs: JobQueue) -> Enqueued:
        """Queue the job of a submission. Inputs that came with it and are being deleted are stored once more."""
        try:
            self.promise()
            # Whoever deletes an array looks first whether it was promised to a job. So it is there for good, or gone.
            store, owner = self._services.store, self.envelope.owner
            gone = [array_id for array_id in self.job.stored_inputs if not store.there(owner, array_id)]
            if gone:
                raise InputsGone(*gone)
            return self._send(jobs)
        except InputsGone as error:
            lost = self.lost(error.arrays)
            if not lost or self.reads_stored(error.arrays):
                raise
        self.store_again(lost)
        self.promise()
        return self._send(jobs)

    def promise(self) -> None:
        """Have the store keep the inputs of a submitted job, and room for its result."""
        with storage.refused():
            self._services.store.promise(self.job, storage.result_bytes(self._checked, self._shards))

    def lost(self, gone: Collection[str]) -> list[str]:
        """The names of inputs that came with the submission and are among the arrays that are being deleted."""
        return [name for name, array in self._kept.items() if array.id in gone]

    def reads_stored(self, gone: Collection[str]) -> bool:
        """Whether the submission names one of the arrays that are being deleted."""
        return any(array_id in gone for array_id in self._checked.stored.values())

    def missing(self, gone: Collection[str]) -> Sequence[Problem]:
        """What is wrong with the submission if these arrays do not exist."""
        return operations.missing(self._checked, gone)

    @property
    def new_job(self) -> NewJob:
        return NewJob(self.job, self._same, self._attached)

    def _send(self, jobs: JobQueue) -> Enqueued:
        bounds = self._services.admission.bounds(self.envelope.owner)
        return jobs.enqueue_all([self.new_job], self.envelope.key, bounds)

    def store_again(self, names: list[str]) -> None:
        """Store a submission's inputs once more if arrays of the same content, and so the same id, are being
        deleted. Each gets an id of its own, and nobody deletes it. One that was charged for keeps its id, which the
        charge names: it is published again, and may be read again."""
        services, owner, checked, charged = self._services, self.envelope.owner, self._checked, self.job.charge
        ttl, own = services.settings.inline_ttl, dict[str, str]()
        with storage.refused():
            for name in names:
                numbers, info = checked.inline[name], checked.infos[name]
                own[name] = ndarray.store(services.store, owner, numbers, info, ttl, unique=charged is None).id
        if charged is not None:
            for array_id in own.values():
                services.allow(owner, array_id)
        self.job = self.job.model_copy(update={"inputs": {**self.job.inputs, **own}})

    # The compensations.

    def _undo(self, reason: str, *, whole: bool = False) -> None:
        """Undo the stages of a submission, the last one first. Where one cannot be undone, its job will run and
        needs what was done before: that stays, unless the `whole` is undone."""
        for compensation in reversed(self._compensations):
            if not compensation(reason) and not whole:
                return

    def _refund(self, reason: str) -> bool:
        """Undo the stage `charged` of a submission, and let the Idempotency-Key be used again. Whether that was
        possible."""
        charge = self.job.charge
        assert charge is not None  # noqa: S101
        try:
            return self._services.ledger.charges.refund(charge.id, reason, forget_key=True)
        except DatabaseUnavailable as error:  # it will be queued by `settlement.look`: charged and answered
            log.warning("%s was not refunded: %s", charge.id, type(error).__name__)
            return False

    def _delete_inputs(self, _reason: str) -> bool:
        """Undo the stage `stored` of a submission."""
        self._services.store.ended({self.job.id: None})
        self.delete_inputs()
        return True

    def delete_inputs(self) -> None:
        """Delete the arrays that came with a submission. Spared are those that were there before, that were uploaded
        since, or that a job reads."""
        services, owner = self._services, self.envelope.owner
        for name, array in self._kept.items():
            if self._checked.is_secret(name):  # its id is its own
                services.store.delete(owner, array.id)
                continue
            expires_at = array.created_at + services.settings.inline_ttl
            made_for_it = array.expires_at == expires_at and services.store.find(owner, array.id) == array
            with suppress(RedisError, Refusal):
                if made_for_it:
                    services.delete_unread(owner, array.id)

    # What the stages make.

    def _request(self) -> JobRequest:
        settings, checked, envelope = self._services.settings, self._checked, self.envelope
        submission, deadline_s = envelope.submission, envelope.submission.deadline_s
        attached = checked.inline if self._attached else {}
        limits = checked.task_limits
        return JobRequest(
            id=envelope.job_id,
            owner=envelope.owner,
            operation=checked.operation.name,
            params=checked.submission.params,
            inputs={
                **checked.stored,
                **{name: array.id for name, array in self._kept.items()},
                **{name: self._digest(name) for name in attached},
            },
            datasets=checked.datasets,
            attached={name: checked.infos[name].dtype for name in attached},
            backend=submission.backend,
            priority=submission.priority,
            seed=checked.seed,
            deadline=None if deadline_s is None else envelope.arrived + deadline_s,
            timeout=settings.job_timeout if limits is None else limits.step_seconds,
            shards=self._shards,
            task=limits is not None,
            plan=self._is_plan,
            checkpoint_bytes=storage.shard_bytes(checked, self._shards) if limits is None else limits.checkpoint_bytes,
            result_bytes=0 if limits is None else limits.result_bytes,
            seconds=None if limits is None else limits.seconds,
            work=checked.cost.steps,
            size=checked.cost.bytes,
            forecast=self._forecast(),
            long=limits is None and self.is_long,
            private=checked.operation.confidential,
            together=operations.together(envelope.owner, checked) if self._shards == 1 else None,
            result_ttl=submission.result_ttl_s or settings.result_ttl,
            request_id=logs.request_id.get(),
            labels=submission.labels,
        )

    @property
    def is_long(self) -> bool:
        """Whether the submitted job takes long, by its cost."""
        return self._served("long") and self._checked.cost.core_seconds > self._services.settings.long_seconds

    @property
    def _is_plan(self) -> bool:
        """Whether the submitted job waits in lanes of plans. The release before takes no lists of parameters, as it
        knows no plans: its workers see neither."""
        checked = self._checked
        return isinstance(checked.operation, Plan) or takes_lists(checked.operation.name, checked.params)

    def _forecast(self) -> Forecast | None:
        """What the submitted job is predicted to take. Only where a worker has a GPU is there anything to choose."""
        checked, operation = self._checked, self._checked.operation
        if "gpu" not in self._services.admission.served or not isinstance(operation, Operation):
            return None
        return self._services.predictions.of(job_of(operation, checked.params, checked.infos))

    def _served(self, kind: Literal["attached", "long"]) -> bool:
        """Whether some worker takes jobs of a kind that workers of the release before, or with other settings, do
        not."""
        on_gpu = self.envelope.submission.backend == "gpu"
        wanted: Kind
        if kind == "attached":
            wanted = "attached-gpu" if on_gpu else "attached"
        elif self._is_plan:
            wanted = "long-plan-gpu" if on_gpu else "long-plan"
        else:
            wanted = "long-gpu" if on_gpu else "long"
        return wanted in self._services.admission.served

    def _digest(self, name: str) -> str:
        """The id that an inline input of a submission has as a stored array, under which it is signed and known."""
        info, numbers = self._checked.infos[name], self._checked.inline[name]
        return self._services.store.digest(self.envelope.owner, info.dtype, info.shape, ndarray.as_bytes(numbers))

    def _same_digest(self) -> str | None:
        """Under which digest an identical live job of the owner may answer for the submitted one; None where none
        may."""
        checked, submission = self._checked, self.envelope.submission
        operation = checked.operation
        if not operation.coalescible or (operation.randomness == "seed" and submission.seed is None):
            return None
        params = checked.params.model_dump(mode="json")
        wishes = [submission.backend, submission.priority, submission.result_ttl_s, checked.seed]
        parts = canonical([operation.name, params, self.job.inputs, wishes])
        return digest(self._services, self.envelope.owner, "same", parts)

    def _refusal_of(self, error: Exception) -> Refusal:
        if isinstance(error, InputsGone):
            problems = self.missing(error.arrays)
            return Refusal("invalid-request", errors.sentence_of(problems), *problems)
        return refusal_of_queue(self._services.admission, self.envelope.owner, error)


def refusal_of_queue(admission: Admission, owner: str, error: Exception, jobs: int = 1) -> Refusal:
    """The refusal of so many jobs that the queue does not take."""
    match error:
        case QueueFull():
            admission.was_full(error.waiting)
            return admission.full(error.waiting, jobs)
        case QuotaReached():
            if jobs == 1:
                admission.was_at_quota(owner, error.live, error.free)
            return admission.quota(error.live, error.free, jobs)
        case TasksReached():
            return admission.tasks(error.live, jobs)
        case KeyReused():
            return reused(error.job_id)
    if "command not allowed when used memory" in str(error):  # of a script Redis 6 answers with no type of its own
        return admission.memory()
    raise error


def require_gpu(jobs: JobQueue) -> None:
    workers = jobs.workers()
    if any(worker.device is not None and worker.device.backend == "gpu" for worker in workers):
        return
    reasons = sorted({worker.device.reason for worker in workers if worker.device and worker.device.reason})
    why = f": {'; '.join(reasons)}" if reasons else ""
    sentence = f"The job asks for a GPU; of {len(workers)} live workers none has one{why}"
    raise Refusal("no-gpu-worker", sentence, headers={"Retry-After": "30"})
