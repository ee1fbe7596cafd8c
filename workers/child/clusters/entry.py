"""The function that an engine calls on a node of its cluster. It loads no library before caches are chosen."""

import os
from functools import cache
from typing import TYPE_CHECKING, Any

from warpdesk_server.kernels.fingerprint import fingerprint
from warpdesk_server.kernels.sharding import Shard
from warpdesk_server.workers.child.clusters.cluster_job import ClusterJob, OtherKernels, ShardResult
from warpdesk_server.workers.settings import WorkerSettings

if TYPE_CHECKING:
    from numpy.typing import NDArray


def compute_shard(job: ClusterJob, shard: Shard, threads: int, *inputs: "NDArray[Any]") -> ShardResult | Exception:
    """What one shard of a job gives on this node, or the error of its operation.

    The error is a value: no engine runs it again, or logs what it quotes. `inputs` are the shard's parts, in the order
    of `job.inputs`. Raises OtherKernels.
    """
    if job.kernels != fingerprint():
        raise OtherKernels(
            f"{os.uname().nodename} has the kernels {fingerprint()}, the worker {job.kernels}: install one release"
        )
    os.environ.update(_caches())
    from warpdesk_server.workers.child.clusters import node

    return node.compute(job, shard, threads, inputs)


@cache
def _caches() -> dict[str, str]:
    return WorkerSettings().cache_environment()
