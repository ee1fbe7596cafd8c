"""Charge a budget for a job before it is queued, and see each charged job to its end."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TypeVar

import anyio.to_thread
from redis.exceptions import RedisError

from app.errors import Refusal, refuse_at
from kernels.spend import Spend
from privacy.ledger import (
    BudgetClosed,
    Charge,
    Charged,
    DatabaseUnavailable,
    KeyReused,
    Ledger,
    NotHeld,
    Order,
    OverBudget,
    Pending,
    UnknownBudget,
)
from workers.protocol import ChargeRef, JobRequest, State
from workers.queue import IdempotencyKey, InputsGone, JobQueue, JobRecord

log = logging.getLogger("warpdesk.api")

T = TypeVar("T")

_MOST = 500  # charges looked at in one turn


def charge(ledger: Ledger, budget: str, spend: Spend, job: JobRequest, version: str, sent: IdempotencyKey) -> Charged:
    """Charge the budget for this job, once for its Idempotency-Key, or raise the refusal. Waits for a disk: call it in
    a thread."""
    order = Order(
        owner=job.owner,
        idempotency_key=sent.key,
        fingerprint=sent.fingerprint,
        operation=job.operation,
        params=job.canonical_params,
        inputs=job.canonical_inputs,
        version=version,
        job_id=job.id,
        job=job.model_dump_json(),
    )
    return asked(lambda: ledger.charge(budget, spend, order), "/params/budget")


def asked(question: Callable[[], T], pointer: str) -> T:
    """What the ledger answers, or its refusal as a caller is told it; `pointer` is where the request names a budget."""
    try:
        return question()
    except OverBudget as error:
        raise refuse_at("budget-exceeded", pointer, str(error)) from None
    except BudgetClosed as error:
        raise refuse_at("budget-closed", pointer, str(error)) from None
    except UnknownBudget as error:
        raise refuse_at("unknown-budget", pointer, str(error)) from None
    except NotHeld as error:
        raise refuse_at("not-accountable", pointer, str(error)) from None
    except KeyReused:
        sentence = "The Idempotency-Key was sent before with another body, for which a budget was charged"
        raise Refusal("idempotency-key-reused", sentence) from None
    except DatabaseUnavailable as error:
        raise unavailable(error) from None


def unavailable(error: Exception) -> Refusal:
    log.warning("the database of budgets and rounds cannot be used: %s", type(error).__name__)
    return Refusal(
        "ledger-unavailable", "The database of budgets and rounds cannot be used", headers={"Retry-After": "5"}
    )


def paid(job: JobRequest, made: Charge) -> JobRequest:
    """The job as it is queued: it names its charge."""
    return job.model_copy(update={"charge": ChargeRef(id=made.id, budget=made.budget_id, head=made.hash)})


def take_back(ledger: Ledger, job: JobRequest, reason: str) -> None:
    """The job was refused after it was charged: refund it, and let its Idempotency-Key be used again."""
    if job.charge is not None:
        try:
            ledger.void(job.charge.id, reason, forget_key=True)
        except DatabaseUnavailable as error:  # it will be queued by `look` and refused by nobody: paid and answered
            log.warning("%s was not refunded: %s", job.charge.id, type(error).__name__)


def settle(ledger: Ledger, record: JobRecord) -> None:
    """What becomes of a charge whose job has ended: one nobody claimed is refunded, any other stays spent."""
    paid_by = record.request.charge
    if paid_by is None or record.state is State.SUCCEEDED or not record.state.final:
        return
    reason = f"its job {record.state.value}" if record.error is None else f"its job failed: {record.error.code}"
    if not ledger.void(paid_by.id, reason, forget_key=False):
        ledger.fail(paid_by.id, reason)


async def ended(ledger: Ledger, record: JobRecord) -> None:
    """Settle at once; `look` does it otherwise."""
    if record.request.charge is None:
        return
    try:
        await anyio.to_thread.run_sync(settle, ledger, record)
    except DatabaseUnavailable as error:
        log.warning("%s is settled later: %s", record.request.charge.id, type(error).__name__)


async def look(ledger: Ledger, queue: JobQueue, every: float) -> None:
    """Run for as long as the API does: queue what was charged and is in no queue, settle what has ended."""
    while True:
        await asyncio.sleep(every)
        try:
            await anyio.to_thread.run_sync(look_once, ledger, queue, every)
        except Exception as error:  # noqa: BLE001 - Redis or the ledger away: the API must go on
            log.warning("charged jobs were not looked after: %s", type(error).__name__)


def look_once(ledger: Ledger, queue: JobQueue, older_than: float) -> None:
    """A crash between charge and queue, or a Redis that lost its memory, costs a charged job time and nothing else."""
    pending = ledger.pending(older_than, _MOST)
    records = queue.records([one.job_id for one in pending])
    for one, record in zip(pending, records, strict=True):
        if record is None:
            _queue_again(ledger, queue, one)
        elif record.state.final:
            settle(ledger, record)


def _queue_again(ledger: Ledger, queue: JobQueue, one: Pending) -> None:
    job = paid(JobRequest.model_validate_json(one.job), ledger.find(one.charge_id))
    try:
        queue.enqueue(job)
        log.warning("%s was charged and in no queue: it is queued", job.id)
    except InputsGone:
        lost = JobRecord(job, State.FAILED, 0, time.time())
        settle(ledger, lost)
        log.error("%s was charged, and its inputs are gone", job.id)
    except RedisError as error:
        log.warning("%s is still in no queue: %s", job.id, type(error).__name__)
