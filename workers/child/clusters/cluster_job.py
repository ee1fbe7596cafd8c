"""A job in shards as a node of a cluster is told of it, and what comes of a shard."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from warpdesk.models import BackendWish
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.fingerprint import fingerprint
from warpdesk_server.kernels.operation import Backend, Operation
from warpdesk_server.kernels.sharding import Sharding
from warpdesk_server.workers.settings import WorkerSettings

if TYPE_CHECKING:
    from numpy.typing import NDArray


class OtherKernels(Exception):
    """Raised if a node has other kernels than the worker that sends it a shard: their bytes could differ."""


class ShardResult(NamedTuple):
    """A shard's arrays, and what computed them."""

    arrays: "Mapping[str, NDArray[Any]]"
    backend: Backend
    device: str


@dataclass(frozen=True)
class ClusterJob:
    """A job in shards as a node is told of it: all that its shards have in common, but no numbers of its inputs."""

    operation: str
    params: str  # JSON
    inputs: Mapping[str, ArrayInfo]  # of the whole job
    seed: int | None = None
    backend: BackendWish = "auto"
    kernels: str = field(default_factory=fingerprint)

    def described(self) -> tuple[Operation, Any, Sharding]:
        """The operation, of this process' own catalogue, with the job's parsed parameters and its sharding."""
        if (operation := _catalogue().get(self.operation)) is None:
            raise OtherKernels(f"{os.uname().nodename} has no operation {self.operation!r}")
        params = operation.params.model_validate_json(self.params)
        sharding = operation.shards(params, self.inputs)
        if sharding is None:
            raise ValueError(f"this job of {self.operation} is one unit: it has no shards")
        return operation, params, sharding


@cache
def _catalogue() -> Mapping[str, Operation]:
    return WorkerSettings().catalogue()
