"""Three small operations, one of each kind of randomness, and a worker that runs them in this process."""

import secrets
from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic import Field

from tests.claims import computed, finish, take
from tests.workers.stepping import CHAIN, PACK
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.operation import Computation, Cost, Example, Input, Operation, Output
from warpdesk_server.kernels.params import Params
from warpdesk_server.kernels.problems import refuse
from warpdesk_server.workers.child import codec
from warpdesk_server.workers.queue.jobs import JobQueue
from warpdesk_server.workers.queue.protocol import Failed, Provenance, Succeeded
from warpdesk_server.workers.queue.records import Ending
from warpdesk_server.workers.store.protocol import Store


class ScaleParams(Params):
    factor: float = Field(ge=0, le=1e6)
    window: int = Field(default=1, ge=1, le=1000)


def _scale_check(params: ScaleParams, inputs: Mapping[str, ArrayInfo]) -> None:
    length = inputs["values"].shape[-1]
    if params.window > length:
        raise refuse("/params/window", f"window {params.window} needs at least {params.window} values, got {length}")


SCALE = Operation(
    name="scale",
    summary="Each value times a factor, and their sum",
    package="tests.app.computations",
    params=ScaleParams,
    inputs=(
        Input("values", "what is scaled", ("float64", "float32"), (1, 2), nan=True),
        Input("weights", "counts", ("uint64", "int64"), (1,), required=False),
    ),
    outputs=(Output("scaled", "values times factor", "array"), Output("total", "their sum", "value")),
    example=Example({"factor": 2.0}, {"values": {"data": [1.0, 2.0, 3.0], "dtype": "float64"}}),
    cost=lambda params, inputs: Cost(bytes=2 * inputs["values"].nbytes * params.window),
    check=_scale_check,
)


class DrawParams(Params):
    count: int = Field(ge=1, le=1_000_000)


DRAW = Operation(
    name="draw",
    summary="Uniform numbers from a seed",
    package="tests.app.computations",
    params=DrawParams,
    inputs=(),
    outputs=(Output("numbers", "uniform in [0, 1)", "array"),),
    example=Example({"count": 3}),
    cost=lambda params, inputs: Cost(bytes=8 * params.count),
    randomness="seed",
)

HIDE = Operation(
    name="hide",
    summary="Uniform numbers nobody can repeat",
    package="tests.app.computations",
    params=DrawParams,
    inputs=(
        Input("values", "no NaN here", ("float64",), (1,)),
        Input("seeds", "nobody else may read them", ("float64",), (1,), required=False, secret=True),
    ),
    outputs=(Output("numbers", "uniform in [0, 1)", "array"),),
    example=Example({"count": 3}, {"values": {"data": [1.0], "dtype": "float64"}}),
    cost=lambda params, inputs: Cost(bytes=8 * params.count),
    randomness="private",
)

COMPUTATIONS = {operation.name: operation for operation in (SCALE, DRAW, HIDE)}
WITH_TASKS: Mapping[str, Computation] = {**COMPUTATIONS, CHAIN.name: CHAIN, PACK.name: PACK}


def compute(name: str, params: Any, arrays: Mapping[str, Any], seed: int | None) -> dict[str, Any]:
    if name == "scale":
        scaled = arrays["values"] * params.factor
        return {"scaled": scaled, "total": float(np.nansum(scaled))}
    source = np.random.default_rng(seed if name == "draw" else secrets.randbits(64))
    return {"numbers": source.random(params.count)}


def work(queue: JobQueue, store: Store, job_id: str) -> None:
    """Run one job as a worker does: start, decode, compute, encode, commit."""
    job = take(queue, job_id)
    request, attempt = job.request, job.attempt
    operation = COMPUTATIONS[request.operation]
    params, arrays = codec.decode(operation, request, store, {}, job.attached)
    outputs = compute(operation.name, params, arrays, request.seed)
    directory = store.new_result(job_id, attempt)
    codec.encode(operation, request, outputs, directory, store, queue.time())
    provenance = Provenance(
        backend="cpu",
        device="this process",
        seed=request.seed,
        attempt=attempt,
        compute_seconds=None if operation.randomness == "private" else 0.5,
    )
    computed(queue, [Ending(job, Succeeded(result=directory.name, provenance=provenance))])


def fail(queue: JobQueue, job_id: str, code: str = "operation-error", message: str = "it failed after 3 steps") -> None:
    assert finish(queue, take(queue, job_id), Failed(code=code, message=message)) == "done"
