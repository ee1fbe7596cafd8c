"""The computation of a shard on a node of a cluster: on its GPU if there is one, or else on the CPU."""

import logging
import os
import pickle
import threading
import traceback
from collections.abc import Sequence
from functools import cache
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from warpdesk_server.kernels import shards
from warpdesk_server.kernels.gpu.contract import Device
from warpdesk_server.kernels.gpu.faults import DeviceLost
from warpdesk_server.kernels.gpu.memory import let_go
from warpdesk_server.kernels.sharding import Shard
from warpdesk_server.workers.child.backend import RECOVERABLE, choose
from warpdesk_server.workers.child.clusters.cluster_job import ClusterJob, ShardResult
from warpdesk_server.workers.child.device import Probe, cpu_name, probe
from warpdesk_server.workers.settings import WorkerSettings

log = logging.getLogger("warpdesk.node")

# Compiled loops and a device are used by one thread at a time, and a process of Dask may have several.
_computing = threading.Lock()


def compute(job: ClusterJob, shard: Shard, threads: int, inputs: Sequence[NDArray[Any]]) -> ShardResult | Exception:
    """What `compute_shard` returns; on the CPU by so many threads. A lost device ends this process."""
    with _computing:
        numba.set_num_threads(max(1, min(threads, numba.config.NUMBA_NUM_THREADS)))
        try:
            return _computed(job, shard, inputs)
        except DeviceLost as fault:
            log.error("the device was lost, and this process ends with it: %s", fault)
            os._exit(1)
        except Exception as error:  # noqa: BLE001 (a bug in an operation is an error of the job, not of the cluster)
            # As in a worker's log: where it failed, and not what it failed on.
            places = "".join(traceback.format_tb(error.__traceback__))
            log.error("a shard of %s failed with %s\n%s", job.operation, type(error).__name__, places)
            return _as_value(error)


def _computed(job: ClusterJob, shard: Shard, inputs: Sequence[NDArray[Any]]) -> ShardResult:
    operation, params, sharding = job.described()
    # Engines lend memory that is not writable, which is another type to Numba.
    own = {name: np.require(array, requirements=("C", "W")) for name, array in zip(job.inputs, inputs, strict=True)}
    options = {"seed": job.seed} if operation.randomness == "seed" else {}

    def on(device: Device | None) -> ShardResult:
        if device is None:
            arrays = shards.compute(operation, "cpu", params, sharding, shard, own, **options)
            return ShardResult(arrays, "cpu", cpu_name())
        with device.memory.job():
            arrays = shards.compute(operation, "gpu", params, sharding, shard, own, **options, device=device)
        return ShardResult(arrays, "gpu", device.name)

    choice = choose(operation, job.backend, _found())
    try:
        return on(choice.device)
    except RECOVERABLE as fault:
        if choice.device is None or job.backend == "gpu":
            raise
        let_go(fault)
        log.warning("a shard of %s went from the GPU to the CPU: %s", job.operation, fault)
    return on(None)


def _as_value(error: Exception) -> Exception:
    """The error without what it refers to, or one with its type's name if it cannot be sent."""
    error.__traceback__ = error.__cause__ = error.__context__ = None
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 (our own)
    except Exception:  # noqa: BLE001 (whatever its class does)
        return RuntimeError(type(error).__name__)
    return error


@cache
def _found() -> Probe:
    settings = WorkerSettings()
    return probe(settings.device, settings.gpu_memory)
