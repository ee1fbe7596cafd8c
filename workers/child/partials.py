"""The partial results of a job in shards: what a shard's attempt keeps in the store, and what the merge reads there."""

import errno
import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from warpdesk_server.kernels import shards
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.operation import Backend, Operation
from warpdesk_server.kernels.params import Params
from warpdesk_server.kernels.problems import refuse
from warpdesk_server.kernels.sharding import Shard, Sharding
from warpdesk_server.workers.child import checkpoint
from warpdesk_server.workers.child.checkpoint import Checkpoint, CheckpointHead
from warpdesk_server.workers.queue.protocol import JobRequest
from warpdesk_server.workers.store.checkpoints import partial_name
from warpdesk_server.workers.store.protocol import WorkerStore, result_name

Arrays = Mapping[str, np.ndarray]


class Unusable(Exception):
    """Raised for a shard whose arrays are gone, damaged, or of other code: the lead computes it again.

    Also for one whose arrays are not taken, since the attempt that computed them does not run any more.
    """

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(f"shard {number}: {reason}")
        self.number = number


class ShardedJob:
    """A job in shards, as the child computes one of them or merges all.

    Raises InvalidRequest where this release does not cut the job.
    """

    def __init__(
        self, operation: Operation, request: JobRequest, params: Params, infos: Mapping[str, ArrayInfo]
    ) -> None:
        sharding = operation.shards(params, infos)
        if sharding is None:
            raise refuse("/width", f"this worker's release computes such a job of {operation.name} as a whole")
        self.sharding: Sharding = sharding
        self.cut = sharding.cut(request.shards)
        self._operation, self._request, self._params = operation, request, params

    @property
    def shard(self) -> Shard:
        """The shard that is computed here."""
        assert self._request.shard is not None  # noqa: S101
        return self.cut[self._request.shard]

    @property
    def like(self) -> Params:
        """The parameters of a job that takes as long as the shard."""
        params: Params = self.sharding.like(self.shard)
        return params

    def parts(self, inputs: Arrays) -> dict[str, np.ndarray]:
        """What the shard reads of the job's inputs."""
        return shards.parts(self.sharding, self.shard, inputs)

    def function(self, backend: Backend) -> Any:
        """The function that computes the shard of its parts of the inputs, called like an implementation."""

        def compute(_: Params, seed: int | None = None, device: Any = None, **inputs: np.ndarray) -> dict[str, Any]:
            options = {"seed": seed, "device": device}
            given = {name: option for name, option in options.items() if option is not None}
            return shards.compute(self._operation, backend, self._params, self.sharding, self.shard, inputs, **given)

        return compute

    def keep(self, store: WorkerStore, attempt: int, token: str, arrays: Arrays) -> None:
        """Keep the shard's arrays in the store."""
        number = self._request.shard
        assert number is not None  # noqa: S101
        write = partial(checkpoint.write, checkpoint=Checkpoint(self._head(number), dict(arrays)))
        name = result_name(self._request.id, attempt)
        try:
            store.keep_checkpoint(name, partial_name(number), write, self._request.checkpoint_bytes, token)
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
            raise Unusable(number, "its arrays came too late") from None

    def merged(self, store: WorkerStore, attempt: int, token: str) -> dict[str, Any]:
        """The job's outputs from the arrays of all its shards in the store. Raises Unusable."""
        return shards.merge(self._operation, self._params, self.sharding, self._results(store, attempt, token))

    def _results(self, store: WorkerStore, attempt: int, token: str) -> Iterator[tuple[Shard, Arrays]]:
        for number, shard in enumerate(self.cut):
            files = store.checkpoints(self._request.id, partial_name(number), attempt, token)
            if (file := next(files, None)) is None:
                raise Unusable(number, "its arrays are gone")
            try:
                kept = checkpoint.read_arrays(file, self.sharding.results(shard))
            except ValueError as error:
                raise Unusable(number, str(error)) from None
            files.close()
            if kept.head != self._head(number):
                raise Unusable(number, "it was computed by other code")
            yield shard, kept.state

    def _head(self, number: int) -> CheckpointHead:
        described = [self._params.model_dump(mode="json"), self._request.inputs, self._request.seed, len(self.cut)]
        work = hashlib.blake2b(json.dumps(described, sort_keys=True).encode(), digest_size=16).hexdigest()
        return CheckpointHead(number, 0.0, self._operation.code, work)
