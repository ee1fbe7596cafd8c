"""Settlement of charges to privacy budgets: a loop that queues each charged job and ends its charge."""

import asyncio
import logging
from contextlib import suppress

import anyio.to_thread
from redis.exceptions import RedisError

from warpdesk.models import ChargeRef, State
from warpdesk_server.app.kit import errors, ledger_calls
from warpdesk_server.app.kit.errors import Refusal
from warpdesk_server.app.services import Services
from warpdesk_server.privacy.charges import Charge, OpenCharge
from warpdesk_server.privacy.database import DatabaseUnavailable
from warpdesk_server.privacy.ledger import Ledger
from warpdesk_server.workers.queue.jobs import JobQueue
from warpdesk_server.workers.queue.protocol import JobRequest
from warpdesk_server.workers.queue.records import InputsGone, JobRecord
from warpdesk_server.workers.store.protocol import Store

log = logging.getLogger("warpdesk.api")

# The oldest charges of one look. They are more than a queue holds: waiting jobs must not hide a lost one.
_MOST = 20_000
_AT_ONCE = 500  # records read in one step


def with_charge(job: JobRequest, charge: Charge) -> JobRequest:
    """A copy of the job that names its charge to a budget, as the API queues it."""
    return job.model_copy(update={"charge": ChargeRef(id=charge.id, budget=charge.budget_id, head=charge.hash)})


def settle(ledger: Ledger, record: JobRecord) -> None:
    """End the budget charge of a job that the API finds ended without an answer: refunded if no worker claimed it,
    else failed and spent."""
    charge = record.request.charge
    if charge is None or record.state is State.SUCCEEDED or not record.state.final:
        return
    reason = f"its job was {record.state.value}" if record.error is None else f"its job failed: {record.error.code}"
    ledger.charges.settle(charge.id, reason)


async def ended(services: Services, record: JobRecord) -> None:
    """Settle the budget charge of a job whose end the API has just seen. If that fails, the loop `look` does it
    later."""
    if record.request.charge is not None:
        with suppress(Refusal):
            await ledger_calls.in_time(
                services.ledger_threads, record.request.owner, lambda: settle(services.ledger, record), patience=1.0
            )


async def look(services: Services) -> None:
    """The API's settlement loop for budgets: it requeues lost charged jobs and settles the charges of ended ones."""
    every = services.settings.ledger_every
    while True:
        await asyncio.sleep(every)
        try:
            await anyio.to_thread.run_sync(
                look_once, services.ledger, services.queue.jobs, services.store, every, abandon_on_cancel=True
            )
        except Exception as error:  # noqa: BLE001 - Redis or the ledger away: the API must go on
            log.warning("charged jobs could not be checked: %s", errors.reason_of(error))


def look_once(ledger: Ledger, queue: JobQueue, store: Store, older_than: float) -> None:
    """A pass of the API's settlement loop: queue charged jobs that are in no queue, and settle the charges of those
    that ended.

    So a crash between charge and queue, or a Redis that lost its memory, costs a charged job time and nothing else.
    """
    ledger.compare()  # nothing is queued for a charge that is not in the anchor
    ledger.charges.erase()
    charges = ledger.charges.open(older_than, _MOST)
    for first in range(0, len(charges), _AT_ONCE):
        step = charges[first : first + _AT_ONCE]
        for charge, record in zip(step, queue.records([charge.job_id for charge in step]), strict=True):
            try:
                if record is None:
                    _queue_again(ledger, queue, store, charge)
                elif record.state.final:
                    settle(ledger, record)
            except (RedisError, DatabaseUnavailable):
                raise
            except Exception as error:  # noqa: BLE001 - one broken charge must not block the others
                log.error("%s cannot be checked: %s", charge.charge_id, type(error).__name__)


def _queue_again(ledger: Ledger, queue: JobQueue, store: Store, charge: OpenCharge) -> None:
    """Have the API queue a lost job again that was charged to a budget. If its inputs are gone, settle the charge."""
    job = with_charge(JobRequest.model_validate_json(charge.job), ledger.charges.get(charge.charge_id))
    try:
        # A worker would ask for the noise key before it missed them, and the charge would stay spent.
        if gone := [array for array in job.inputs.values() if store.info_of(job.owner, array) is None]:
            raise InputsGone(*gone)
        queue.enqueue(job)
        log.warning("%s was charged but not queued: it is queued again", job.id)
    except InputsGone:
        ledger.charges.settle(charge.charge_id, "its inputs are gone, and it was in no queue", forget_key=True)
        log.error("%s was charged, and its inputs are gone", job.id)
