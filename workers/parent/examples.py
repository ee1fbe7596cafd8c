"""The failed examples of a worker: those that failed when its child warmed up, until a job like them succeeds."""

from collections.abc import Mapping

from warpdesk_server.kernels.operation import Backend, Operation
from warpdesk_server.workers.queue.protocol import JobRequest
from warpdesk_server.workers.queue.reports import FailedExample
from warpdesk_server.workers.store.protocol import WorkerStore


class Examples:
    """The worker's list of examples that failed in its last child that warmed up.

    `failed` lacks those that a job has disproved since.
    """

    def __init__(self, operations: Mapping[str, Operation], store: WorkerStore) -> None:
        self.failed: tuple[FailedExample, ...] = ()
        self._operations = operations
        self._store = store

    def all_failed(self) -> bool:
        """Whether every operation of this worker is disabled.

        A worker that fails every job would empty the queue faster than others.
        """
        disabled = {failure.operation for failure in self.failed if failure.disables}
        return bool(self._operations) and disabled >= self._operations.keys()

    def forgive(self, request: JobRequest, backend: Backend) -> tuple[FailedExample, ...]:
        """Remove from the worker's failed examples those that a successful job disproves, and return them.

        Any job of the operation on that backend disproves the documented example. A variant needs a job with the
        variant's choices and dtypes.
        """
        answered = tuple(
            failure for failure in self.failed if failure.backend == backend and self._like(request, failure)
        )
        self.failed = tuple(failure for failure in self.failed if failure not in answered)
        return answered

    def that_lost_the_device(self, request: JobRequest) -> tuple[FailedExample, ...]:
        """The worker's failed examples like this job in which an earlier child lost the device."""
        return tuple(failure for failure in self.failed if failure.lost_the_device and self._like(request, failure))

    def _like(self, request: JobRequest, failure: FailedExample) -> bool:
        if failure.operation != request.operation:
            return False
        if failure.variant is None:
            return True
        fields = self._operations[request.operation].params.model_fields
        for name, choice in failure.choices.items():
            value = request.params.get(name, fields[name].get_default() if name in fields else None)
            if (bool(value) if isinstance(choice, bool) else value) != choice:
                return False
        for name, dtype in failure.dtypes.items():
            if (own := request.attached.get(name)) is None:
                stored = self._store.find(request.owner, request.inputs.get(name, ""))
                own = None if stored is None else stored.info.dtype
            if own != dtype:
                return False
        return True
