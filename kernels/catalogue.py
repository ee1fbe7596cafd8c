"""Every operation the service offers, in the order the documentation lists them."""

from kernels.matmul.spec import OPERATION as MATMUL
from kernels.operation import Operation

_ALL: tuple[Operation, ...] = (MATMUL,)

OPERATIONS: dict[str, Operation] = {operation.name: operation for operation in _ALL}
