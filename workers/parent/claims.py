"""The worker's claims on charges in the privacy ledger: no noise without a charge, and one answer for each charge."""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, TypeVar

from warpdesk_server.kernels.operation import Operation
from warpdesk_server.privacy.errors import NoRelease
from warpdesk_server.workers.logs import about
from warpdesk_server.workers.queue.protocol import Failed, Succeeded
from warpdesk_server.workers.queue.records import Ending, Held
from warpdesk_server.workers.settings import WorkerSettings

# The ledger brings SQLAlchemy: 0.4 s of a worker's start, and 40 MB. It is imported where something can be charged.
if TYPE_CHECKING:
    from warpdesk_server.privacy.charging import Charges

log = logging.getLogger("warpdesk.worker")

T = TypeVar("T")

PATIENCE = 15.0  # seconds of one call of the ledger; the job may wait longer, and other jobs run meanwhile


class Claims:
    """The worker's claims of charged jobs in the privacy ledger. The ledger is connected at the first claim."""

    def __init__(self, settings: WorkerSettings, operations: Mapping[str, Operation]) -> None:
        self._settings = settings
        self._operations = operations
        if any(operation.spend is not None for operation in operations.values()):
            import_module("warpdesk_server.privacy.ledger")  # now, and not while a job waits

    def claim(self, jobs: Sequence[Held]) -> tuple[dict[str, bytes], list[Ending]]:
        """The noise keys of the worker's charged jobs by id, and the endings of those that must not be computed.

        Those have the answer of an earlier attempt, or nothing may be released on their charge.
        """
        keys: dict[str, bytes] = {}
        endings = []
        for job in jobs:
            if job.request.charge is None:
                continue
            claim = self._claim(job)
            if isinstance(claim, bytes):
                keys[job.id] = claim
            else:
                endings.append(Ending(job, claim))
        return keys, endings

    def commit(self, ending: Ending) -> Ending:
        """Record the worker's answer in the ledger as that of its charge, which deletes the seed.

        An earlier answer of the same charge stays; without the ledger the job has no answer yet.
        """
        charge, outcome = ending.job.request.charge, ending.outcome
        if charge is None or not isinstance(outcome, Succeeded) or outcome.digest is None:  # adopted: committed before
            return ending
        outcome_text = outcome.model_dump_json(exclude={"digest"})
        try:
            digest = bytes.fromhex(outcome.digest)
            _in_time(lambda: self._charges.release(charge.id, outcome_text, digest))
        except Exception as error:  # noqa: BLE001 (an error of the ledger must not end the worker)
            return Ending(ending.job, _failure(error))
        return ending

    def _claim(self, job: Held) -> bytes | Succeeded | Failed:
        request, operation = job.request, self._operations.get(job.request.operation)
        charge = request.charge
        assert charge is not None  # noqa: S101
        from warpdesk_server.privacy.charging import Released

        if self._settings.ledger is None:
            message = "this worker has no ledger: give every worker WARPDESK_LEDGER_URL"
            return Failed(code="ledger-unavailable", message=message, retryable=True)
        try:
            claim = _in_time(
                lambda: self._charges.claim(
                    charge.id,
                    operation=request.operation,
                    params=request.canonical_params,
                    inputs=request.canonical_inputs,
                    version=operation.release_version if operation is not None else "",
                )
            )
        except Exception as error:  # noqa: BLE001 (as in commit)
            return _failure(error)
        if isinstance(claim, Released):
            labels = about(request, job.attempt)
            log.info("%s attempt %d: an earlier one has answered its charge", request.id, job.attempt, extra=labels)
            return Succeeded.model_validate_json(claim.outcome)
        return claim.key

    @cached_property
    def _charges(self) -> "Charges":
        from warpdesk_server.privacy.database import connect
        from warpdesk_server.privacy.ledger import Ledger
        from warpdesk_server.privacy.seeds import Ring

        assert self._settings.ledger is not None  # noqa: S101
        ledger = Ledger(connect(self._settings.ledger), Ring(self._settings.ledger_key_path))
        ledger.prepare()
        return ledger.charges


def _in_time(call: Callable[[], T]) -> T:
    """Run the worker's call of the ledger in a thread and return its answer.

    Raises DatabaseUnavailable after `PATIENCE` seconds, because the timeouts of a server that hangs do not work. The
    call may still succeed later; the next call finds that.
    """
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:  # noqa: BLE001 (raised to the caller below)
            answer.set_exception(error)

    threading.Thread(target=run, name="ledger", daemon=True).start()
    try:
        return answer.result(PATIENCE)
    except TimeoutError:
        from warpdesk_server.privacy.database import DatabaseUnavailable

        raise DatabaseUnavailable(f"no answer in {PATIENCE:g} seconds") from None


def _failure(error: Exception) -> Failed:
    if isinstance(error, NoRelease):
        return Failed(code=error.code, message=str(error))
    from warpdesk_server.privacy.opening import LEDGER_ERRORS

    why = f": {error}" if isinstance(error, (*LEDGER_ERRORS, OSError)) else ""
    log.warning("the ledger cannot be used: %s%s", type(error).__name__, why)
    return Failed(code="ledger-unavailable", message="the ledger of privacy budgets cannot be reached", retryable=True)
