"""Submit a job: let in, checked, known by its Idempotency-Key, queued."""

import hashlib
import json
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
from fastapi import APIRouter, Request, Response
from redis.exceptions import RedisError, ResponseError

from warpdesk import models
from warpdesk_server.app.access import auth
from warpdesk_server.app.access.auth import Submitter
from warpdesk_server.app.access.keys import Key
from warpdesk_server.app.arrays import ndarray, storage
from warpdesk_server.app.budgets import settlement
from warpdesk_server.app.http import bodies
from warpdesk_server.app.http.direct import DirectRoute
from warpdesk_server.app.jobs import operations
from warpdesk_server.app.jobs.completions import Watch
from warpdesk_server.app.jobs.endpoints import APPLIED, CALLER, NOT_DONE, PREFER, until_done, waited
from warpdesk_server.app.jobs.operations import Checked
from warpdesk_server.app.jobs.records import own_job, pending, positioned
from warpdesk_server.app.kit import durability, errors, ledger_calls, limits
from warpdesk_server.app.kit.errors import Refusal
from warpdesk_server.app.kit.schemas import WEEK
from warpdesk_server.app.services import Services, ServicesDep
from warpdesk_server.kernels.spend import Spend
from warpdesk_server.privacy.charging import Charge, OverBudget, Reservation
from warpdesk_server.privacy.database import DatabaseUnavailable
from warpdesk_server.privacy.errors import Refused
from warpdesk_server.workers import logs
from warpdesk_server.workers.queue.jobs import JobQueue
from warpdesk_server.workers.queue.protocol import PRIORITIES, JobRequest, Priority, State, Together
from warpdesk_server.workers.queue.records import (
    Enqueued,
    IdempotencyKey,
    InputsGone,
    JobRecord,
    KeyReused,
    QueueFull,
    QuotaReached,
)
from warpdesk_server.workers.store.arrays import size_of
from warpdesk_server.workers.store.protocol import StoredArray

router = APIRouter(tags=["jobs"], route_class=DirectRoute)

LONGEST_KEY = 255  # characters of an Idempotency-Key

# A body below this size is written out again on the event loop, which takes several times as long as to parse it.
_WRITTEN_AT_ONCE = limits.JSON_SMALL // 8

_HEADERS = {
    **durability.DOCUMENTED,
    "Idempotent-Replayed": {
        "description": "`true`: the Idempotency-Key was sent before, and this is the job it has",
        "schema": {"type": "string", "enum": ["true"]},
    },
}
_IDEMPOTENCY = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "Any printable text, kept for a day, and for ever where a budget was charged: the same request with "
    "the same key is answered with the job "
    "there is, and never runs twice",
    "schema": {"type": "string", "minLength": 1, "maxLength": LONGEST_KEY},
    "example": "order-7731",
}


@dataclass(frozen=True)
class _Submission:
    """All that becomes a job, and what was written for it."""

    owner: str
    checked: Checked
    job: JobRequest
    key: IdempotencyKey | None
    same: str | None
    kept: Mapping[str, StoredArray]  # inputs that came with it


@router.post(
    "/v1/jobs",
    summary="Submit a job",
    status_code=202,
    response_model=models.Job,
    responses={
        200: {
            "model": models.Job,
            "description": "Done within `Prefer: wait`",
            "headers": {**APPLIED, **_HEADERS},
        },
        202: {**NOT_DONE, "headers": {**NOT_DONE["headers"], **_HEADERS}},
        **errors.documented(
            *CALLER, "malformed-json", "duplicate-key", "invalid-idempotency-key", "disconnected", "unknown-job",
            "body-too-large", "unsupported-media-type", "invalid-request", "unknown-operation",
            "idempotency-key-reused", "idempotency-key-required", "unknown-budget", "budget-exceeded", "budget-closed",
            "charge-forbidden",
            "not-accountable", "ledger-unavailable", "result-gone", "job-too-large", "rate-limited", "quota-reached",
            "storage-quota", "storage-full", "no-gpu-worker", "busy", "queue-full", "queue-memory",
            "deadline-unreachable",
        ),
    },
    openapi_extra={"parameters": [*PREFER["parameters"], _IDEMPOTENCY]},
)  # fmt: skip
async def submit(request: Request, caller: Submitter, services: ServicesDep) -> Response:
    """Everything is checked before anything is queued. With `Prefer: wait=N` a quick answer comes at once.

    With an `Idempotency-Key` the job is queued once, however often and at however many servers the request arrives: the
    first one makes the job, and all get it in its current state. With another body the key is refused.
    """
    text = _idempotency_key(request)
    services.limits.take(caller.id)
    services.require_redis()
    services.admission.require_turn(caller.id)
    key = None if text is None else keyed(services, caller.id, "idempotency-key", text)
    known = None
    if key is None or key not in services.keys:  # else wait for the request that has it now
        known = None if key is None else await services.queue(lambda jobs: jobs.replay(caller.id, key))
        if known is None:
            services.admission.admit(caller.id)
    body = await operations.read(request, services)
    wait = bodies.preferred_wait(request, services.settings.max_wait) if caller.allows("read") else None
    sent = None if key is None else IdempotencyKey(key, await _fingerprint(services, caller, request, body))
    if sent is not None and known is not None:
        return await _replayed(services, request, caller, sent, known, wait)
    job_id = new_job_id()
    with services.completions.watch(job_id, auth.still(request)) as watch:
        async with services.keys.take(key or job_id) as turn:  # let go of before the wait
            known = turn.told
            if known is None:
                told = wait is None and caller.allows("read")  # how far it is by now
                enqueued, record, position = await _place(
                    services, caller, job_id, body, sent, text, positioned_too=told
                )
                if sent is not None:
                    turn.told = enqueued.job_id, sent.fingerprint
                    known = turn.told if enqueued.replayed else None
        if sent is not None and known is not None:
            return await _replayed(services, request, caller, sent, known, wait)
        headers = {durability.HEADER: services.admission.durability}
        if wait is None:
            return pending(services, record, position, headers)
        return await _waited_for(services, request, caller, watch, record, wait, headers)


async def _place(
    services: Services,
    caller: Key,
    job_id: str,
    body: object,
    sent: IdempotencyKey | None,
    text: str | None,
    *,
    positioned_too: bool,
) -> tuple[Enqueued, JobRecord, int | None]:
    """Check it, store what came with it, queue it. `text` is the Idempotency-Key as it came."""
    arrived, (priority, deadline_s) = time.time(), _haste(body)
    if priority == "realtime":
        auth.require(caller, "realtime", "The priority 'realtime'")
    given_up, accounted = threading.Event(), _names_a_budget(services, body)

    def prepare() -> Callable[[JobQueue], tuple[Enqueued, JobRecord, int | None]]:
        paying = settlement.Request(text, _canonical(body)) if accounted and text is not None else None
        try:
            checked = operations.check(services, caller.id, body)
        except Refusal:
            # An input that was charged for may be gone, and its job need not.
            earlier = settlement.known(services.ledger, caller.id, paying) if paying is not None else None
            if earlier is None:
                raise
            return lambda jobs: _known_job(jobs, earlier)
        if checked.spend is not None and paying is None:
            sentence = "A job that charges a budget needs an Idempotency-Key: sent again it is charged once"
            raise Refusal("idempotency-key-required", sentence)
        if checked.spend is not None and checked.submission.backend == "gpu":
            with suppress(RedisError, OSError):  # asked again where it is queued, if it is charged at all
                _require_gpu(services.queue.jobs)
        with storage.refused():
            own = [info for name, info in checked.infos.items() if name in checked.inline]
            services.store.require(caller.id, storage.result_bytes(checked) + sum(map(size_of, own)))
            kept = operations.keep_inputs(services, caller.id, checked)
        job, same = (
            _request(services, caller, job_id, checked, kept, arrived),
            _same(services, caller.id, checked, kept),
        )
        submission = _Submission(caller.id, checked, job, sent, same, kept)
        if checked.spend is not None and paying is not None:
            charged = _charge(services, submission, checked.spend, paying)
            if charged.replayed:
                return lambda jobs: _charged_before(services, jobs, submission, charged.charge)
            submission = replace(submission, job=settlement.paid(job, charged.charge))
        return lambda jobs: _enqueue(services, jobs, submission, given_up, positioned_too=positioned_too)

    with anyio.move_on_after(ledger_calls.PATIENCE if accounted else None) as scope:
        async with services.admission.turn(caller.id, priority, deadline_s, charging=accounted):
            try:
                own = partial(services.ledger_threads.run, caller.id) if accounted else None
                placed = await services.queue.after(prepare, own)
            except (Refused, DatabaseUnavailable) as error:
                raise errors.refusal_of(error, "/params/budget") from None
            except BaseException:
                given_up.set()
                raise
            enqueued, _, _ = placed
            if not enqueued.replayed:
                services.admission.enqueued(caller.id, priority)
    if scope.cancelled_caught:
        raise errors.ledger_unavailable(TimeoutError.__name__)
    return placed


async def submit_for(services: Services, owner: Key, key: str, body: Mapping[str, Any]) -> str:
    """Queue a job that the service makes for one of its keys, once for each `key` however often it is asked; returns
    the job's id. The owner's own Idempotency-Keys are others. Raises what a caller would be answered."""
    sent = IdempotencyKey(
        keyed(services, owner.id, "service-key", key), keyed(services, owner.id, "submission", _canonical(body))
    )
    enqueued, _, _ = await _place(services, owner, new_job_id(), body, sent, None, positioned_too=False)
    return enqueued.job_id


def _charge(services: Services, submission: _Submission, spend: Spend, paying: settlement.Request) -> Reservation:
    """Charge for it, once for its Idempotency-Key."""
    budget, version = submission.checked.submission.params["budget"], submission.checked.operation.release_version
    try:
        charged = settlement.charge(services.ledger, budget, spend, submission.job, version, paying)
    except Refused as refused:  # where the database did not answer, it may have been charged, and will run
        if isinstance(refused, OverBudget):
            services.metrics.charged(budget, "refused")
        _discard(services, submission)
        raise
    if not charged.replayed:
        services.metrics.charged(charged.charge.budget_id, "granted")
    return charged


def _charged_before(
    services: Services, jobs: JobQueue, submission: _Submission, charge: Charge
) -> tuple[Enqueued, JobRecord, int | None]:
    """The job that this request was charged for, however long ago. Where a crash left it in no queue, or Redis forgot
    it, it is queued: if it was answered, whoever takes it finds that answer."""
    record = jobs.get(charge.job_id)
    if record is not None or charge.state in ("failed", "void"):
        _discard(services, submission)
        return _known_job(jobs, charge)
    job = settlement.paid(submission.job.model_copy(update={"id": charge.job_id}), charge)
    submission = replace(submission, job=job)
    try:
        _insist(services, jobs, submission)
    except (QueueFull, QuotaReached, KeyReused, InputsGone, ResponseError) as error:
        raise _refusal(services, submission, error) from None
    return Enqueued(charge.job_id, replayed=True), JobRecord(job, State.QUEUED, 0, time.time()), None


def _known_job(jobs: JobQueue, charge: Charge) -> tuple[Enqueued, JobRecord, int | None]:
    """The job that was charged for, as it is now."""
    record = jobs.get(charge.job_id)
    if record is None:
        sentence = f"{charge.id} was made for this request ({charge.state}), and its job is not known any more"
        raise Refusal("result-gone", sentence, job=charge.job_id)
    return Enqueued(charge.job_id, replayed=True), record, None


def _names_a_budget(services: Services, body: object) -> bool:
    """Whether what nobody has checked yet may wait for the ledger."""
    asked: Mapping[str, Any] = body if isinstance(body, dict) else {}
    name, params = asked.get("operation"), asked.get("params")
    operation = services.operations.get(name) if isinstance(name, str) else None
    return operation is not None and operation.spend is not None and isinstance(params, dict) and "budget" in params


def _haste(body: object) -> tuple[Priority, float | None]:
    """Priority and deadline of what nobody has checked yet: they are looked at before it waits. If they are wrong, it
    will be refused for that."""
    asked: Mapping[str, Any] = body if isinstance(body, dict) else {}
    priority, seconds = asked.get("priority"), asked.get("deadline_s")
    reasonable = isinstance(seconds, int | float) and 0 < seconds <= WEEK
    return next((known for known in PRIORITIES if known == priority), "batch"), seconds if reasonable else None


async def _replayed(
    services: Services, request: Request, caller: Key, sent: IdempotencyKey, known: tuple[str, str], wait: int | None
) -> Response:
    """The job that is there, as a new one would be answered. A key that may not read learns only that it was taken."""
    job_id, fingerprint = known
    if fingerprint != sent.fingerprint:
        raise _reused(job_id)
    services.metrics.replayed()
    headers = {durability.HEADER: services.admission.durability, "Idempotent-Replayed": "true"}
    with services.completions.watch(job_id, auth.still(request)) as watch:
        record = await own_job(services, caller, job_id)
        if not caller.allows("read"):
            record = JobRecord(record.request, State.QUEUED, 0, record.submitted_at)
        if wait is None:
            return pending(services, record, None, headers)
        return await _waited_for(services, request, caller, watch, record, wait, headers)


async def _waited_for(
    services: Services,
    request: Request,
    caller: Key,
    watch: Watch,
    record: JobRecord,
    wait: int,
    headers: Mapping[str, str],
) -> Response:
    """The job when it is done or the wait is over. At once where the key has as many waits as it may: the job is
    queued, which a 429 would deny, and a preference may be passed over (RFC 7240 section 2)."""
    if not record.state.final:
        try:
            share = services.waits.take(caller.id)
        except Refusal:
            return pending(services, record, None, headers)
        with share:
            record = await until_done(services, request, caller, watch, record, wait)
    return await waited(services, record, wait, headers)


def _idempotency_key(request: Request) -> str | None:
    sent = request.headers.getlist("idempotency-key")
    if not sent:
        return None
    if len(sent) > 1:
        raise Refusal("invalid-idempotency-key", f"Idempotency-Key is given {len(sent)} times and has one value")
    try:
        key = sent[0].encode("latin-1").decode()  # what a header is decoded with
    except UnicodeDecodeError:
        raise Refusal("invalid-idempotency-key", "Idempotency-Key is not UTF-8") from None
    if not 1 <= len(key) <= LONGEST_KEY:
        sentence = f"Idempotency-Key should be 1 to {LONGEST_KEY} characters long, got {len(key)}"
        raise Refusal("invalid-idempotency-key", sentence)
    odd = next((place for place, character in enumerate(key) if not character.isprintable()), None)
    if odd is not None:
        raise Refusal("invalid-idempotency-key", f"Character {odd} of Idempotency-Key cannot be printed")
    return key


async def _fingerprint(services: Services, caller: Key, request: Request, body: object) -> str:
    """The same for the same JSON, however its fields were ordered and spaced."""

    def digest() -> str:
        return keyed(services, caller.id, "submission", _canonical(body))

    if (bodies.declared_length(request) or _WRITTEN_AT_ONCE) < _WRITTEN_AT_ONCE:
        return digest()
    return await anyio.to_thread.run_sync(digest)


def keyed(services: Services, owner: str, purpose: str, text: str) -> str:
    """A digest under the owner's secret: Redis learns nothing that could be guessed and compared."""
    data = f"{purpose}\0{text}".encode()
    return services.store.digest(owner, "uint8", (len(data),), data)


def _canonical(body: object) -> str:
    return json.dumps(body, sort_keys=True, separators=(",", ":"))


def _request(
    services: Services, caller: Key, job_id: str, checked: Checked, kept: Mapping[str, StoredArray], arrived: float
) -> JobRequest:
    settings, submission = services.settings, checked.submission
    deadline_s = submission.deadline_s
    return JobRequest(
        id=job_id,
        owner=caller.id,
        operation=checked.operation.name,
        params=submission.params,
        inputs={**checked.stored, **{name: array.id for name, array in kept.items()}},
        backend=submission.backend,
        priority=submission.priority,
        seed=checked.seed,
        deadline=None if deadline_s is None else arrived + deadline_s,
        timeout=settings.job_timeout,
        work=checked.cost.steps,
        size=checked.cost.bytes,
        private=checked.operation.confidential,
        together=_together(caller.id, checked),
        result_ttl=submission.result_ttl_s or settings.result_ttl,
        request_id=logs.request_id.get(),
    )


def _together(owner: str, checked: Checked) -> Together | None:
    operation = checked.operation
    alike, batching = operation.batch_key(checked.params, checked.infos), operation.batching
    if alike is None or batching is None:
        return None
    apart = [alike, checked.submission.backend, owner if operation.confidential else None]
    key = hashlib.blake2b(json.dumps(apart).encode(), digest_size=16).hexdigest()
    return Together(key=key, items=batching.items, bytes=batching.bytes, wait=batching.wait)


def _same(services: Services, owner: str, checked: Checked, kept: Mapping[str, StoredArray]) -> str | None:
    """Under which digest an identical live job of the owner may answer for this one; None where none is identical."""
    operation, submission = checked.operation, checked.submission
    drawn = operation.randomness == "seed" and submission.seed is None
    if not operation.coalescible or drawn:
        return None
    inputs = {**checked.stored, **{name: array.id for name, array in kept.items()}}
    params = checked.params.model_dump(mode="json")
    wishes = [submission.backend, submission.priority, submission.result_ttl_s, checked.seed]
    return keyed(services, owner, "same", _canonical([operation.name, params, inputs, wishes]))


def _require_gpu(jobs: JobQueue) -> None:
    workers = jobs.workers()
    if any(worker.device is not None and worker.device.backend == "gpu" for worker in workers):
        return
    reasons = sorted({worker.device.reason for worker in workers if worker.device and worker.device.reason})
    why = f": {'; '.join(reasons)}" if reasons else ""
    sentence = f"The job asks for a GPU; of {len(workers)} live workers none has one{why}"
    raise Refusal("no-gpu-worker", sentence, headers={"Retry-After": "30"})


def _enqueue(
    services: Services, jobs: JobQueue, submission: _Submission, given_up: threading.Event, *, positioned_too: bool
) -> tuple[Enqueued, JobRecord, int | None]:
    """Queue it, or raise the refusal; what was written for a job that did not come about is deleted.

    `given_up` is set once nobody waits for it any more.
    """
    job = submission.job
    fresh = JobRecord(job, State.QUEUED, 0, time.time())
    if given_up.is_set() and job.charge is None:  # what was charged is queued: its caller will ask for it again
        _discard(services, submission)
        return Enqueued(job.id), fresh, None
    try:
        if job.backend == "gpu":
            _require_gpu(jobs)
        enqueued = _insist(services, jobs, submission)
    except Refusal:
        if settlement.take_back(services.ledger, job, "it was refused before it was queued"):
            _discard(services, submission)
        raise
    except (QueueFull, QuotaReached, KeyReused, InputsGone, ResponseError) as error:
        if settlement.take_back(services.ledger, job, f"it was refused before it was queued: {type(error).__name__}"):
            _discard(services, submission)
        raise _refusal(services, submission, error) from None
    if enqueued.replayed:
        settlement.take_back(services.ledger, job, "its Idempotency-Key has a job")
        _discard(services, submission)
        return enqueued, fresh, None
    if given_up.is_set() and submission.key is None:
        jobs.cancel(job.id)  # its caller was told 503; one who has a key will ask for it again
    record, position = positioned(jobs, jobs.get(job.id) or fresh) if positioned_too else (fresh, None)
    return enqueued, record, position


def _insist(services: Services, jobs: JobQueue, submission: _Submission) -> Enqueued:
    """An array that came with the submission may have the content, and so the id, of one that is being deleted. Then it
    gets an id of its own, and nobody deletes it. One that was charged for keeps its id, which the charge names: it is
    published again, and may be read again."""
    job, kept = submission.job, submission.kept
    told = (submission.key, submission.same, services.admission.bounds(submission.owner))
    stored = submission.checked.stored.values()
    promised = storage.result_bytes(submission.checked)
    with storage.refused():
        services.store.promise(job, promised)
    try:
        # Whoever deletes an array asks first whether it was promised to a job. So it is there for good now, or gone.
        gone = [array_id for array_id in job.inputs.values() if not services.store.there(submission.owner, array_id)]
        if gone:
            raise InputsGone(*gone)
        return jobs.enqueue(job, *told)
    except InputsGone as gone:
        again = [name for name, array in kept.items() if array.id in gone.arrays]
        if not again or any(array_id in gone.arrays for array_id in stored):
            raise
    ttl, checked = services.settings.inline_ttl, submission.checked
    charged = job.charge is not None
    with storage.refused():
        own = {
            name: ndarray.store(
                services.store, submission.owner, checked.inline[name], checked.infos[name], ttl, unique=not charged
            ).id
            for name in again
        }
    if charged:
        for array_id in own.values():
            services.allow(submission.owner, array_id)
    job = job.model_copy(update={"inputs": {**job.inputs, **own}})
    with storage.refused():
        services.store.promise(job, promised)
    return jobs.enqueue(job, *told)


def _refusal(services: Services, submission: _Submission, error: Exception) -> Refusal:
    match error:
        case QueueFull():
            services.admission.was_full(error.waiting)
            return services.admission.full(error.waiting)
        case QuotaReached():
            services.admission.was_at_quota(submission.owner, error.live, error.free)
            return services.admission.quota(error.live, error.free)
        case KeyReused():
            return _reused(error.job_id)
        case InputsGone():
            return operations.missing(submission.checked.stored, error.arrays)
    if "command not allowed when used memory" in str(error):  # of a script Redis 6 answers with no type of its own
        return services.admission.memory()
    raise error


def _reused(job_id: str) -> Refusal:
    sentence = f"The Idempotency-Key was sent before with another body, which became {job_id}"
    return Refusal("idempotency-key-reused", sentence, job=job_id)


def _discard(services: Services, submission: _Submission) -> None:
    """Delete the arrays that came with a submission that came to nothing, but none that was there before, that was
    uploaded since, or that a job reads."""
    owner, ttl = submission.owner, services.settings.inline_ttl
    services.store.ended({submission.job.id: None})
    for name, array in submission.kept.items():
        if submission.checked.is_secret(name):  # its id is its own
            services.store.delete(owner, array.id)
            continue
        made_for_it = array.expires_at == array.created_at + ttl and services.store.find(owner, array.id) == array
        with suppress(RedisError, Refusal):
            if made_for_it:
                services.delete_unread(owner, array.id)


def new_job_id() -> str:
    """`job_` and a UUIDv7 (RFC 9562 section 5.7) whose 12 bits after the millisecond are its fraction (method 3), so
    that the ids of one process sort by time of submission."""
    nanoseconds = time.time_ns()
    milliseconds, rest = divmod(nanoseconds, 1_000_000)
    fraction = rest * 4096 // 1_000_000
    number = (milliseconds << 80) | (0x7 << 76) | (fraction << 64) | (0b10 << 62) | secrets.randbits(62)
    return f"job_{number:032x}"
