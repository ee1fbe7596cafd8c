"""Every operation the service offers, in the order the documentation lists them."""

from kernels.matmul.spec import OPERATION as MATMUL
from kernels.monte_carlo.spec import OPERATION as MONTE_CARLO
from kernels.operation import Operation

_ALL: tuple[Operation, ...] = (MATMUL, MONTE_CARLO)

OPERATIONS: dict[str, Operation] = {operation.name: operation for operation in _ALL}
