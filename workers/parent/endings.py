"""The end of attempts: outcomes are committed in Redis, and leftover results are deleted from the store."""

import logging
import time
from collections.abc import Mapping, Sequence

from warpdesk_server.kernels.operation import Computation
from warpdesk_server.workers.logs import about
from warpdesk_server.workers.parent.claims import Claims
from warpdesk_server.workers.queue.counts import Tally, note_endings
from warpdesk_server.workers.queue.jobs import JobQueue
from warpdesk_server.workers.queue.protocol import Failed, JobRequest, Transfers
from warpdesk_server.workers.queue.records import Batch, Claim, Ending, Reaped
from warpdesk_server.workers.store.protocol import WorkerStore, result_name

log = logging.getLogger("warpdesk.worker")
jobs_log = logging.getLogger("warpdesk.jobs")  # a line for each job that ended here, where that is asked for

# What may pass while the job waits: another worker, or this one later, may have the room or the device.
_MAY_PASS = frozenset({"storage-full", "out-of-memory", "device-fault", "no-gpu-worker", "ledger-unavailable"})

# And so long for the ledger: a server may take minutes to come back, and a charge that was claimed is spent without its
# answer where the job is given up before.
_LEDGER_DELAYS = (60.0, 300.0)

# And so long for a task, which may have days behind it. With each new step it has them all again.
_TASK_DELAYS = (60.0, 300.0, 900.0, 900.0, 900.0)


class Endings:
    """The steps by which the worker ends attempts, in the order that leaves nothing behind wherever a crash falls."""

    def __init__(
        self,
        queue: JobQueue,
        store: WorkerStore,
        operations: Mapping[str, Computation],
        retry_delays: Sequence[float] = (),
        claims: Claims | None = None,
        tally: Tally | None = None,
    ) -> None:
        self._queue = queue
        self._store = store
        self._operations = operations
        self._retry_delays = tuple(retry_delays)
        self._claims = claims
        self._tally = tally

    def end(
        self,
        endings: Sequence[Ending],
        worker: str = "",
        *,
        then: Claim | None = None,
        transfers: Transfers | None = None,
    ) -> Batch | None:
        """End attempts of the worker in one Redis transition, each by itself.

        `then` claims the next jobs in the same transition. The metrics of accepted endings that only this worker knows
        are tallied, with the `transfers` of their launch.

        An outcome becomes the job's one visible outcome, unless another attempt or a cancel came first. A failure that
        may pass is tried again while there are delays left. The outcome of a charged job is committed in the ledger
        first: from then on it is the job's answer, whatever becomes of this attempt.
        """
        if self._claims is not None:
            endings = [self._claims.commit(ending) for ending in endings]
        endings = [self._retried(ending) for ending in endings]
        for ending in endings:
            # Of what was charged it may be the one answer: that the ledger did not say so does not mean it did not take
            # it, and a Redis that lost its memory gives an attempt's number to another. The sweep deletes it in time.
            if not ending.succeeded and ending.job.request.charge is None and ending.job.request.shard is None:
                self._store.delete_result(result_name(ending.job.request.id, ending.job.attempt), ending.job.token)
        if not endings and then is None:
            return None
        finished, batch, at, followed = self._queue.finish(endings, worker, then=then)
        accepted = [ending for ending, how in zip(endings, finished, strict=True) if how == "done"]
        if self._tally is not None and accepted:
            note_endings(self._tally, accepted, at, followed, transfers)
        for ending, how in zip(endings, finished, strict=True):
            request, attempt = ending.job.request, ending.job.attempt
            if request.shard is not None:
                self._end_of_shard(ending, how)
                continue
            if how == "stale":
                if request.charge is None:  # else the next attempt may be told to take it
                    self._store.delete_result(result_name(request.id, attempt), ending.job.token)
                log.info("%s attempt %d came too late", request.id, attempt, extra=about(request, attempt))
            elif how == "queued":
                why, log_fields = ending.reason, about(request, attempt)
                level = logging.INFO if ending.stopped else logging.WARNING
                log.log(level, "%s attempt %d: %s; the job is given back", request.id, attempt, why, extra=log_fields)
                continue
            elif how == "dead":
                why, log_fields = ending.reason, about(request, attempt)
                log.error("%s attempt %d: %s; the job was given up", request.id, attempt, why, extra=log_fields)
            elif jobs_log.isEnabledFor(logging.INFO):
                kind = ending.how if ending.outcome is None else ending.outcome.kind
                jobs_log.info("%s attempt %d %s", request.id, attempt, kind, extra=about(request, attempt))
            over = how == "done" or (how == "dead" and not request.task)  # a task goes on from what it has kept
            if request.keeps_files and (over or (how == "stale" and not self._queue.may_run([request.id])[0])):
                self._store.delete_checkpoints(request.id)
            self._erase_secrets(request)
        return batch

    def reaped(self, ended: Sequence[Reaped]) -> None:
        """Clean up after what recovery ended: attempts whose workers are gone, and jobs that expired in the queue.

        Attempts were ended because their workers are gone; jobs expired in the queue.
        """
        for reaped in ended:
            if reaped.request.charge is None:  # else it may be the one answer of its charge
                self._store.delete_result(result_name(reaped.request.id, reaped.attempt))
            if reaped.how != "queued":
                self._erase_secrets(reaped.request)
            if reaped.request.keeps_files and reaped.how == "gone":
                self._store.delete_checkpoints(reaped.request.id)
            if reaped.how != "gone":
                log_fields = about(reaped.request, reaped.attempt)
                log.warning(
                    "%s attempt %d: its worker is gone; %s",
                    reaped.request.id,
                    reaped.attempt,
                    reaped.how,
                    extra=log_fields,
                )

    def _retried(self, ending: Ending) -> Ending:
        failed = ending.outcome
        if ending.job.request.shard is not None:
            return ending
        if not isinstance(failed, Failed) or failed.code not in _MAY_PASS or not self._retry_delays:
            return ending
        delays = self._retry_delays
        if failed.code == "ledger-unavailable":
            delays = (*delays, *_LEDGER_DELAYS)
        elif ending.job.request.task:
            delays = (*delays, *_TASK_DELAYS)
        return Ending(ending.job, how="retry", reason=failed.message, failure=failed, delays=delays)

    def count_transfers(self, transfers: Transfers | None) -> None:
        """Count in the metrics what a shard copied that the worker has computed of a job of its own."""
        if self._tally is not None:
            note_endings(self._tally, [], time.time(), (), transfers)

    def _end_of_shard(self, ending: Ending, how: str) -> None:
        """Log the end of an attempt at a shard that did not compute it. What it kept ends with its job, unless the job
        ended before."""
        job_id = ending.job.request.job_id
        if how == "stale" and not self._queue.may_run([job_id])[0]:
            self._store.delete_checkpoints(job_id)
        request, attempt = ending.job.request, ending.job.attempt
        if how == "stale":
            log.info("%s attempt %d came too late", request.id, attempt, extra=about(request, attempt))
        elif how != "done":
            why = ending.outcome.message if isinstance(ending.outcome, Failed) else ending.reason or "it is not wanted"
            log.warning("%s attempt %d: %s", request.id, attempt, why, extra=about(request, attempt))

    def _erase_secrets(self, request: JobRequest) -> None:
        """Delete the secret inputs of a job that the worker ended, if no live job reads them.

        So they are never deleted before a retry that needs them. From then on no job can be enqueued with them.
        """
        operation = self._operations.get(request.operation)
        secrets = [] if operation is None else operation.secrets(request.inputs)
        unused = [array_id for array_id in secrets if self._queue.forbid(request.owner, array_id)]
        self._store.erase_secrets(request, unused)
