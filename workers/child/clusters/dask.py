"""The adapter of Dask: shards of a job as its futures."""

from collections.abc import Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

from numpy.typing import NDArray

from warpdesk_server.kernels.sharding import Shard
from warpdesk_server.workers.child.clusters.cluster import (
    LOOK_SECONDS,
    Cluster,
    Handle,
    InputsLost,
    NodeDied,
    Result,
)
from warpdesk_server.workers.child.clusters.cluster_job import ClusterJob
from warpdesk_server.workers.child.clusters.entry import compute_shard


class DaskCluster(Cluster):
    """A connection to a Dask scheduler. Each of its workers computes one shard at a time, with all of its threads.

    How often a shard is run again whose worker has ended is the scheduler's own setting, `allowed-failures`.
    """

    def __init__(self, address: str) -> None:
        super().__init__(address)
        try:
            import distributed
        except ImportError as error:
            self._fail(f"the extra dask is not installed here ({error})")
        self._dask = distributed
        self._done = SimpleQueue[Any]()
        own = f"tcp://{address.removeprefix('dask://')}" if address.startswith("dask://") else address
        try:
            self._client = distributed.Client(own, timeout=10, set_as_default=False)
        except Exception as error:  # noqa: BLE001 (of Dask, tornado or the system: OSError, TimeoutError, ...)
            self._fail_at_node(error)

    def close(self) -> None:
        with suppress(Exception):  # it may have gone
            self._client.close(timeout=5)

    def _threads(self) -> list[int]:
        return [worker["nthreads"] for worker in self._client.scheduler_info(n_workers=-1)["workers"].values()]

    def _places(self) -> int:
        return len(self._threads())

    def _share(self, array: NDArray[Any]) -> Any:
        return self._scattered(array, broadcast=True)

    def _submit(self, job: ClusterJob, shard: Shard, inputs: Sequence[Any]) -> Handle:
        # Not among the arguments: those pass through the scheduler, and stay there.
        sent = [each if isinstance(each, self._dask.Future) else self._scattered(each) for each in inputs]
        threads = max(self._threads(), default=1)
        future = self._call(self._client.submit, compute_shard, job, shard, threads, *sent, pure=False)
        future.add_done_callback(self._done.put)
        return future

    def _scattered(self, array: NDArray[Any], **options: Any) -> Any:
        try:
            return self._client.scatter(array, hash=False, timeout=60, **options)
        except OSError as error:  # with the worker that it was sent to
            if self._client.status == "running":
                raise InputsLost(str(error)) from None
            self._fail_at_node(error)
        except Exception as error:  # noqa: BLE001 (as in __init__)
            self._fail_at_node(error)

    def _wait(self, handles: Sequence[Handle]) -> Sequence[Handle]:  # noqa: ARG002 (each tells when it is done)
        with suppress(Empty):
            return [self._done.get(timeout=LOOK_SECONDS)]
        if self._client.status != "running":
            self._fail(f"the connection to the scheduler is {self._client.status}")
        if not self._places():
            self._fail("it has no workers")
        return []

    def _result(self, handle: Any) -> Result:
        if handle.cancelled() or handle.status == "lost":
            if self._client.status != "running":
                self._fail(f"the connection to the scheduler is {self._client.status}")
            raise InputsLost(handle.status)
        try:
            return handle.result(timeout=60)
        except self._dask.KilledWorker as error:
            raise NodeDied(f"KilledWorker, the last of them {error.last_worker.address}") from None
        except self._dask.CancelledError as error:
            raise InputsLost(str(error)) from None
        except Exception as error:  # noqa: BLE001 (as in __init__)
            self._fail_at_node(error)

    def _cancel(self, handles: Sequence[Handle]) -> None:
        if handles:
            with suppress(Exception):  # it may have gone
                self._client.cancel(list(handles), force=True)

    def _call(self, call: Any, *arguments: Any, **options: Any) -> Any:
        try:
            return call(*arguments, **options)
        except Exception as error:  # noqa: BLE001 (as in __init__)
            self._fail_at_node(error)
