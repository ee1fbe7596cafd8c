"""The options of a request: which numbers are the same for all, and the arrays of the others."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdesk_server.kernels.operation import Operation
from warpdesk_server.kernels.problems import refuse
from warpdesk_server.kernels.vanilla_options.spec import arrays_of, quantities, shape_of

Array = NDArray[Any]


class Contracts:
    """The numbers of a request's options as flat arrays by name, is_call among them; of one number if it is for all.

    `order` names them as loops and kernels take them. Under black76 the rate is the dividend yield too, so that the
    forward is a spot that does not grow.

    Raises InvalidRequest if a number of is_call is neither 0 nor 1.
    """

    def __init__(self, params: Any, inputs: Mapping[str, Array]) -> None:
        self.shape = shape_of(inputs)
        self.size = int(np.prod(self.shape))
        given = {name: np.broadcast_to(array, self.shape) for name, array in inputs.items()}
        self.numbers = {name: _flat(given.get(name, getattr(params, name)), np.float64) for name in quantities(params)}
        self.numbers["is_call"] = _flat(given.get("is_call", params.option == "call"), np.uint8)
        self.each = {name: name in inputs for name in self.numbers}  # whether each option has its own
        self.order = list(self.numbers)
        if params.model == "black76":
            self.order.insert(self.order.index("rate"), "rate")
        if "is_call" in inputs and self.numbers["is_call"].max() > 1:
            at = int(np.argmax(self.numbers["is_call"] > 1))
            place, number = [int(index) for index in np.unravel_index(at, self.shape)], self.numbers["is_call"][at]
            raise refuse("/inputs/is_call", f"is_call at {place} is {number}, neither 0 (put) nor 1 (call)")

    def strips(self, length: int) -> tuple[tuple[Array, ...], Array, Array]:
        """What a loop over strips of options takes: numbers, is_call, and the steps from one option to the next.

        One number for all is a strip of it, with the step 0.
        """
        arrays = [self._strip(name, length) for name in self.order]
        return tuple(arrays[:-1]), arrays[-1], np.array([self.each[name] for name in self.order], np.int64)

    def _strip(self, name: str, length: int) -> Array:
        array = self.numbers[name]
        return array if self.each[name] else _flat(np.full(length, array[0]), array.dtype)

    def answer(self, operation: Operation, out: Sequence[Array]) -> dict[str, Array]:
        """The arrays of the outputs in the shape of the options."""
        return {name: array.reshape(self.shape) for name, array in zip(arrays_of(operation), out, strict=True)}


def _flat(given: Any, dtype: Any) -> Array:
    """An option's numbers as a flat array; read-only, since Numba compiles again for each mixture of writable and
    read-only arrays."""
    flat = np.asarray(given, dtype).reshape(-1)[:]
    flat.flags.writeable = False
    return flat
