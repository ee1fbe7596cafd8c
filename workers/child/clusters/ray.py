"""The adapter of Ray: shards of a job as its remote functions."""

import signal
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from numpy.typing import NDArray

from warpdesk_server.kernels.sharding import Shard
from warpdesk_server.workers.child.clusters.cluster import LOOK_SECONDS, RETRIES, Cluster, Handle, NodeDied, Result
from warpdesk_server.workers.child.clusters.cluster_job import ClusterJob
from warpdesk_server.workers.child.clusters.entry import compute_shard


class RayCluster(Cluster):
    """A connection to a Ray cluster: by its client server, or of this host's own node. A process has one at a time.

    Where the cluster has GPUs, each shard has one of them, and else one of its CPUs.
    """

    def __init__(self, address: str) -> None:
        super().__init__(address)
        try:
            import ray
        except ImportError as error:
            self._fail(f"the extra ray is not installed here ({error})")
        self._ray = ray
        at_end = signal.getsignal(signal.SIGTERM)
        try:
            try:
                self._connect()
            except ConnectionAbortedError:  # now and then a client server hangs where its proxy forks it: another one
                self._connect()
            self._kind = "GPU" if ray.cluster_resources().get("GPU", 0) else "CPU"
        except Exception as error:  # noqa: BLE001 (of Ray, gRPC or the system: RuntimeError, ConnectionError, ...)
            ray.shutdown()
            self._fail_at_node(error)
        finally:
            signal.signal(signal.SIGTERM, at_end)  # Ray ends its process at it, a worker's child must not
        self._compute = ray.remote(compute_shard).options(
            num_cpus=int(self._kind == "CPU"), num_gpus=int(self._kind == "GPU"), max_retries=RETRIES
        )

    def _connect(self) -> None:
        address = "auto" if self.address == "ray" else self.address
        self._ray.init(address, log_to_driver=False, logging_level="ERROR")

    def close(self) -> None:
        self._ray.shutdown()

    def _places(self) -> int:
        return int(self._call(self._ray.cluster_resources).get(self._kind, 0))

    def _share(self, array: NDArray[Any]) -> Any:
        return self._call(self._ray.put, array)

    def _submit(self, job: ClusterJob, shard: Shard, inputs: Sequence[Any]) -> Handle:
        return self._call(self._compute.remote, job, shard, 1, *inputs)

    def _wait(self, handles: Sequence[Handle]) -> Sequence[Handle]:
        return self._call(self._ray.wait, list(handles), timeout=LOOK_SECONDS)[0]

    def _result(self, handle: Handle) -> Result:
        errors = self._ray.exceptions
        try:
            return self._ray.get(handle)
        except errors.RayTaskError as error:
            self._fail_at_node(error)
        except (errors.WorkerCrashedError, errors.NodeDiedError, errors.OutOfMemoryError) as error:
            raise NodeDied(f"{type(error).__name__}, {1 + RETRIES} times") from None
        except Exception as error:  # noqa: BLE001 (as in __init__)
            self._fail_at_node(error)

    def _cancel(self, handles: Sequence[Handle]) -> None:
        for handle in handles:
            # By force its process ends. Else Ray interrupts it as Ctrl-C does, which may leave half an import behind.
            with suppress(Exception):
                self._ray.cancel(handle, force=True)

    def _call(self, call: Any, *arguments: Any, **options: Any) -> Any:
        try:
            return call(*arguments, **options)
        except Exception as error:  # noqa: BLE001 (as in __init__)
            self._fail_at_node(error)
