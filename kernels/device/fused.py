"""The fused multiply-add of IEEE 754, asked for by name: the twin of `fused` in the device header types.cuh."""

from typing import Any

from numba import types
from numba.extending import intrinsic


@intrinsic
def fused(_typing: Any, x: Any, y: Any, z: Any) -> Any:
    """x y + z, rounded once, of three float64 or three float32.

    On a processor that lacks the instruction LLVM calls the C library's function, which gives the same number slowly.
    """
    real = types.float32 if types.float32 == x == y == z else types.float64

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.fma(*arguments)

    return real(real, real, real), generate
