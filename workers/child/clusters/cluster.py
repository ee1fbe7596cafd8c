"""A cluster of another engine that computes shards of jobs: what the adapters of Ray and of Dask have in common."""

import time
import traceback
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from numpy.typing import NDArray

from warpdesk_server.kernels import shards
from warpdesk_server.kernels.sharding import Shard
from warpdesk_server.workers.child.clusters.cluster_job import ClusterJob, ShardResult

# How often the engine computes a shard again whose process or node has ended, and we one whose inputs went with it.
RETRIES = 3
# How often an adapter looks whether the cluster is still there, while it waits.
LOOK_SECONDS = 0.25
# A cluster that has done nothing for so long, and so many times as long as a shard takes one core, has no place for us.
_PATIENCE_SECONDS, _PATIENCE_TIMES = 60.0, 10.0
# Shards that are sent for each that the cluster computes at once, so that no node waits for its next.
AHEAD = 2

Arrays = Mapping[str, NDArray[Any]]
Result = ShardResult | Exception
Handle = Hashable  # of a shard at the engine: its future


class NoCluster(Exception):
    """Raised if a cluster cannot compute shards: it is away, or a node has no such kernels. The message has its address
    and says why. It is no fault of the shards: any worker may compute them."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"the cluster {address} cannot be used: {reason}")
        self.address, self.reason = address, reason


class NodeDied(Exception):
    """Raised if the process that computes a shard has ended each time, whichever node of the cluster it was on."""


class InputsLost(Exception):
    """Raised by an adapter if a shard was not computed because inputs were lost with a node."""


class Cluster(ABC):
    """A connection to a cluster. Not thread-safe."""

    def __init__(self, address: str) -> None:
        self.address = address

    def compute(self, job: ClusterJob, whole: Shard, inputs: Arrays) -> ShardResult:
        """Compute a shard on the cluster, in smaller ones that its nodes compute at once; its bytes do not depend on
        how many. Raises NoCluster, NodeDied or the error of the operation."""
        _, _, sharding = job.described()
        results = dict(self.run(job, sharding.cut(AHEAD * max(1, self._places()), whole), inputs))
        arrays = shards.join(sharding, whole, ((shard, result.arrays) for shard, result in results.items()))
        return next(iter(results.values()))._replace(arrays=arrays)

    def run(self, job: ClusterJob, wanted: Sequence[Shard], inputs: Arrays) -> Iterator[tuple[Shard, ShardResult]]:
        """Compute shards on the cluster, and yield what each gives as it is done, in any order.

        An input that is not divided among shards is sent once. What still runs is canceled when the iterator is closed
        or raises NoCluster, NodeDied or the error of the operation.
        """
        operation, _, sharding = job.described()
        most = max(operation.shard_cost(sharding, job.inputs, shard).core_seconds for shard in wanted)
        patience, done_at = _PATIENCE_SECONDS + _PATIENCE_TIMES * most, time.monotonic()
        left, running, losses = list(wanted)[::-1], dict[Handle, Shard](), Counter[Shard]()
        shared = dict[str, Any]()

        def again(shard: Shard, error: InputsLost) -> None:
            shared.clear()
            losses[shard] += 1
            if losses[shard] > RETRIES:
                raise NodeDied(f"inputs of a shard were lost {losses[shard]} times, {error}") from None
            left.append(shard)
            time.sleep(LOOK_SECONDS)  # until the engine knows which node has gone

        try:
            while left or running:
                while left and len(running) < AHEAD * max(1, self._places()):
                    shard = left.pop()
                    parts = shards.parts(sharding, shard, inputs)
                    try:
                        if not shared:
                            whole = inputs.keys() - sharding.inputs.keys()
                            shared.update({name: self._share(inputs[name]) for name in whole})
                        given = [shared.get(name, parts[name]) for name in job.inputs]
                        running[self._submit(job, shard, given)] = shard
                    except InputsLost as error:
                        again(shard, error)
                for handle in self._wait(list(running)):
                    if (done := running.pop(handle, None)) is None:
                        continue  # of an earlier job
                    try:
                        result = self._result(handle)
                    except InputsLost as error:
                        again(done, error)
                        continue
                    if isinstance(result, Exception):
                        raise result
                    yield done, result
                    done_at = time.monotonic()
                if time.monotonic() - done_at > patience:
                    self._fail(f"it has computed nothing for {patience:.0f} s")
        finally:
            self._cancel(list(running))

    def _fail(self, reason: str) -> NoReturn:
        raise NoCluster(self.address, reason)

    def _fail_at_node(self, error: BaseException) -> NoReturn:
        """Say why the function of ours did not run on a node at all."""
        if "No module named 'warpdesk" in "".join(traceback.format_exception(error)):
            self._fail("a node has no warpdesk_server: install this release of it in the cluster's environment")
        self._fail(f"{type(error).__name__}: {(str(error).strip() or 'no reason').splitlines()[-1]}")

    @abstractmethod
    def close(self) -> None: ...

    # What an adapter says of its engine.

    @abstractmethod
    def _places(self) -> int:
        """How many shards the cluster computes at once."""

    @abstractmethod
    def _share(self, array: NDArray[Any]) -> Any:
        """Send an array to the cluster once; what is returned stands for it in `_submit`."""

    @abstractmethod
    def _submit(self, job: ClusterJob, shard: Shard, inputs: Sequence[Any]) -> Handle:
        """Have a node call `compute_shard`."""

    @abstractmethod
    def _wait(self, handles: Sequence[Handle]) -> Sequence[Handle]:
        """Those that are done, after LOOK_SECONDS at the latest. Raises NoCluster where the cluster has gone."""

    @abstractmethod
    def _result(self, handle: Handle) -> Result:
        """What `compute_shard` returned. Raises InputsLost, NodeDied or NoCluster."""

    @abstractmethod
    def _cancel(self, handles: Sequence[Handle]) -> None:
        """Cancel these, also those that run. Does nothing where the cluster has gone."""
