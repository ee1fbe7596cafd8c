"""How an attempt ends: committed, taken back, given up. What did not commit is deleted unread."""

import logging
from collections.abc import Mapping

from kernels.operation import Operation
from workers.protocol import MAX_ATTEMPTS, Failed, JobRequest, Succeeded
from workers.queue import JobQueue
from workers.store import Store, result_name

log = logging.getLogger("warpdesk.worker")


class Endings:
    """The steps of an ending, in the order that leaves nothing behind wherever a crash falls between them."""

    def __init__(self, queue: JobQueue, store: Store, operations: Mapping[str, Operation]) -> None:
        self._queue = queue
        self._store = store
        self._operations = operations

    def commit(self, request: JobRequest, attempt: int, outcome: Succeeded | Failed) -> bool:
        """Make an outcome the job's one visible outcome; False when another attempt or a cancel came first."""
        if isinstance(outcome, Failed):
            self._store.delete_result(result_name(request.id, attempt))
        committed = self._queue.finish(request.id, attempt, outcome)
        if not committed:
            self._store.delete_result(result_name(request.id, attempt))
            log.info("%s attempt %d came too late, its result is deleted", request.id, attempt)
        self._erase_secrets(request)
        return committed

    def died(self, request: JobRequest, attempt: int, why: Failed) -> None:
        """The attempt's worker died: back to the front of the queue, or failed once too many have died of the job."""
        self._store.delete_result(result_name(request.id, attempt))
        if self._queue.retry(request.id, attempt):
            log.warning("%s attempt %d: %s; the job is queued again", request.id, attempt, why.message)
            return
        last = why.model_copy(update={"message": f"{why.message}, {MAX_ATTEMPTS} times; the job was given up"})
        self.commit(request, attempt, last)

    def released(self, request: JobRequest, attempt: int) -> None:
        """The worker stops and gives its job back; that is no strike against the job."""
        self._store.delete_result(result_name(request.id, attempt))
        if not self._queue.retry(request.id, attempt, strike=False):  # canceled meanwhile, and nobody else runs it
            self._erase_secrets(request)

    def expired(self, request: JobRequest, attempt: int) -> None:
        """The deadline passed while the attempt ran."""
        self._store.delete_result(result_name(request.id, attempt))
        self._queue.expire(request.id, attempt)
        self._erase_secrets(request)

    def canceled(self, request: JobRequest, attempt: int) -> None:
        """Someone canceled the job or took it over: the attempt was stopped."""
        self._store.delete_result(result_name(request.id, attempt))
        self._erase_secrets(request)

    def not_started(self, job_id: str) -> None:
        """The job was popped and not to be started: if it became final in the queue, after an attempt perhaps, no later
        attempt erases its secrets."""
        record = self._queue.get(job_id)
        if record is not None and record.state.final:
            self._erase_secrets(record.request)

    def _erase_secrets(self, request: JobRequest) -> None:
        """Delete secret inputs as soon as no live job reads them: not before a retry could need them, never later."""
        operation = self._operations.get(request.operation)
        for expected in operation.inputs if operation is not None else ():
            array_id = request.inputs.get(expected.name)
            if expected.secret and array_id is not None and not self._queue.in_use(request.owner, array_id):
                self._store.delete(request.owner, array_id)
