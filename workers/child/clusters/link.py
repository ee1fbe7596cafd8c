"""The link of a worker's child to its cluster: connected when a shard comes, and again some time after it was away."""

import time

from warpdesk_server.kernels.sharding import Shard
from warpdesk_server.workers.child.clusters.cluster import Arrays, Cluster, NoCluster
from warpdesk_server.workers.child.clusters.cluster_job import ClusterJob, ShardResult


class ClusterLink:
    """The link to the cluster at an address. `pause` is for how many seconds a cluster that was away is not asked."""

    def __init__(self, address: str, pause: float) -> None:
        self._address = address
        self._pause = pause
        self._cluster: Cluster | None = None
        self._again_at, self._why = 0.0, ""

    def compute(self, job: ClusterJob, shard: Shard, inputs: Arrays) -> ShardResult:
        """Compute a shard on the cluster. Raises NoCluster, NodeDied or the error of the operation."""
        if time.monotonic() < self._again_at:
            raise NoCluster(self._address, f"it could not be a moment ago: {self._why}")
        try:
            if self._cluster is None:
                self._cluster = open_cluster(self._address)
            return self._cluster.compute(job, shard, inputs)
        except NoCluster as error:
            self._why = error.reason
            if self._cluster is not None:
                self._cluster.close()
            self._cluster, self._again_at = None, time.monotonic() + self._pause
            raise


def open_cluster(address: str) -> Cluster:
    """Connect to the cluster at an address: `ray` (of this host), `ray://host:port`, `dask://host:port`, or Dask's own
    `tcp://` and `tls://`. Raises NoCluster, and ValueError for an address of another kind."""
    scheme, _, rest = address.partition("://")
    # With an adapter comes its engine, which is installed by an extra.
    if address == "ray" or (scheme == "ray" and rest):
        from warpdesk_server.workers.child.clusters.ray import RayCluster

        return RayCluster(address)
    if scheme in ("dask", "tcp", "tls") and rest:
        from warpdesk_server.workers.child.clusters.dask import DaskCluster

        return DaskCluster(address)
    raise ValueError(f"{address!r} is no cluster: expected ray, ray://host:port, dask://host:port or tcp://host:port")
