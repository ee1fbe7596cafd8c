"""Every operation the service offers, in the order the documentation lists them."""

from kernels.operation import Operation

_ALL: tuple[Operation, ...] = ()

OPERATIONS: dict[str, Operation] = {operation.name: operation for operation in _ALL}
