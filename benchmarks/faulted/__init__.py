"""The operations of the benchmark `faults`: one of each family, whose result also says when the CPU began it."""

from dataclasses import replace

from warpdesk_server.kernels.catalogue import OPERATIONS
from warpdesk_server.kernels.operation import Output

FAMILIES = tuple(OPERATIONS[name] for name in ("matmul", "sma", "monte_carlo", "dp_noise", "secure_aggregation", "sum"))

_BEGAN = Output("began", "Unix seconds at the first instruction on the CPU; null where the GPU answered", "value")

# Without variants: every kernel that is launched here is that of a documented example.
FAULTED = {
    operation.name: replace(
        operation, package="warpdesk_server.benchmarks.faulted", outputs=(*operation.outputs, _BEGAN), variants=()
    )
    for operation in FAMILIES
}
