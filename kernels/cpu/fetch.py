"""Prefetch of a CPU cache line in Numba's loops, for access patterns that the processor does not predict."""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

_FLAG = ir.IntType(32)
_TO_READ, _SECOND_CACHE, _DATA = _FLAG(0), _FLAG(2), _FLAG(1)


@intrinsic
def fetch(_typing, numbers, _index):  # type: ignore[no-untyped-def]
    """Prefetch a CPU's cache line for a compiled loop: that of numbers[index], soon read or written. It does not wait.

    The index may be out of range. `numbers` is a contiguous array, indexed as if it were flat, or a pointer to numbers.
    """

    def code(context, builder, _signature, args):  # type: ignore[no-untyped-def]
        start = context.make_array(numbers)(context, builder, args[0]).data if array else args[0]
        address = ir.IntType(8).as_pointer()
        name = "llvm.prefetch.p0"
        function = builder.module.globals.get(name) or ir.Function(
            builder.module, ir.FunctionType(ir.VoidType(), [address, _FLAG, _FLAG, _FLAG]), name=name
        )
        place = builder.bitcast(builder.gep(start, [args[1]]), address)
        builder.call(function, [place, _TO_READ, _SECOND_CACHE, _DATA])
        return context.get_dummy_value()

    array = isinstance(numbers, types.Array)
    return types.none(numbers, types.intp), code
