"""What a service under chaos computes: real operations, and one that takes its time and dies of one number.

A worker that only computes what is small is idle when it is killed, on most tries.
"""

from collections.abc import Mapping

from pydantic import Field

from tests.workers.stepping import CHAIN
from warpdesk_server.kernels.batching import Batching
from warpdesk_server.kernels.catalogue import OPERATIONS as ALL
from warpdesk_server.kernels.operation import Computation, Cost, Example, Input, Operation, Output
from warpdesk_server.kernels.params import Params

POISON = -1.0


class DoubleParams(Params):
    poison: float = POISON
    seconds: float = Field(default=0.0, ge=0, le=60)
    memory: int = Field(default=0, ge=0, le=1 << 30)  # bytes that it has meanwhile


DOUBLE = Operation(
    name="double",
    summary="Twice each value; one value is the end of the process",
    package="tests.chaos.fragile",
    params=DoubleParams,
    inputs=(Input("values", "numbers", ("float64",), (1, 2)),),
    outputs=(Output("doubled", "2 x"),),
    example=Example({}, {"values": {"data": [1.0, 2.0], "dtype": "float64"}}),
    cost=lambda params, inputs: Cost(2 * inputs["values"].nbytes),
    batching=Batching(steps=1e6),
)

_REAL = ("rsi", "sma", "matmul", "monte_carlo", "axpy", "sum", "dp_noise")

OPERATIONS: Mapping[str, Computation] = {**{name: ALL[name] for name in _REAL}, "double": DOUBLE, "chain": CHAIN}
