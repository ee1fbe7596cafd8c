"""Prefetch of a cache line for Numba's loops, where the processor's own prefetcher does not follow."""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

_FLAG = ir.IntType(32)
_TO_READ, _SECOND_CACHE, _DATA = _FLAG(0), _FLAG(2), _FLAG(1)


@intrinsic
def fetch(_typing, numbers, _index):  # type: ignore[no-untyped-def]
    """Ask for the line of numbers[index], soon to be read or written; it need not exist, and nothing waits.

    `numbers` is a contiguous array, of more dimensions as it lies in memory, or a pointer to numbers.
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
