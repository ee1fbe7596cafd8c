"""Vectors of eight numbers (lanes) for Numba loops; they stay in registers on any processor of LLVM.

A compiler does not vectorise a loop in which each step needs the one before, and a scan is such a loop. Here the steps
are written out: `load` and `store` eight neighbours at a `pointer`, `strided` for numbers further apart, `spread` one
number, + - * / and `root` for each lane, `after_*` and `before_*` for the neighbours some lanes away, `transposed` for
eight times eight, `where_*` for choices, `which_*` for the lanes in which a
comparison holds. Every operation rounds as its scalar twin does.
"""

import operator
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic, models, overload, register_model

from warpdesk_server.kernels.cpu.compiled import inner

LANES = 8
_INDEX = ir.IntType(32)


class Lanes(types.Type):
    """The Numba type of an indicator's eight lanes: a vector of float64 or float32."""

    def __init__(self, real: Any) -> None:
        self.real = real
        super().__init__(name=f"Lanes({real})")


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Lanes) -> None:
        super().__init__(manager, kind, ir.VectorType(manager.lookup(kind.real).get_value_type(), LANES))


def _pattern(lanes: list[int]) -> ir.Constant:
    return ir.Constant(ir.VectorType(_INDEX, LANES), lanes)


def _spread(builder: Any, value: Any) -> Any:
    alone = builder.insert_element(ir.Constant(ir.VectorType(value.type, LANES), ir.Undefined), value, _INDEX(0))
    return builder.shuffle_vector(alone, alone, _pattern([0] * LANES))


def _place(context: Any, builder: Any, numbers: Any, at: Any, index: Any) -> Any:
    vector = ir.VectorType(context.get_value_type(numbers.dtype), LANES)
    return builder.bitcast(builder.gep(at, [index]), vector.as_pointer())


@intrinsic
def pointer(_typing, array):  # type: ignore[no-untyped-def]
    """The pointer to the numbers of a contiguous array for an indicator's loop; the caller must keep the array alive.

    In a loop that passes arrays on, Numba counts references at every turn, which costs more than eight additions.
    """

    def code(context, builder, _signature, args):  # type: ignore[no-untyped-def]
        return context.make_array(array)(context, builder, args[0]).data

    return types.CPointer(array.dtype)(array), code


@intrinsic
def moved(_typing, numbers, _by):  # type: ignore[no-untyped-def]
    """The pointer to numbers[by] of an indicator's loop."""

    def code(_context, builder, _signature, args):  # type: ignore[no-untyped-def]
        return builder.gep(args[0], [args[1]])

    return numbers(numbers, types.intp), code


@intrinsic
def addressed(_typing, numbers, _address):  # type: ignore[no-untyped-def]
    """The pointer to numbers at an address in memory, of the type of another pointer."""

    def code(_context, builder, _signature, args):  # type: ignore[no-untyped-def]
        return builder.inttoptr(args[1], args[0].type)

    return numbers(numbers, types.int64), code


@njit
def keep_alive(*_arrays):  # type: ignore[no-untyped-def]
    """Do nothing: arrays passed here at the end of a loop live until then, as pointers to them do not count."""


@intrinsic
def load(_typing, numbers, _index):  # type: ignore[no-untyped-def]
    """The eight lanes of an indicator's loop from numbers[index : index + 8]; bounds are not checked."""

    def code(context, builder, _signature, args):  # type: ignore[no-untyped-def]
        return builder.load(_place(context, builder, numbers, *args), align=numbers.dtype.bitwidth // 8)

    return Lanes(numbers.dtype)(numbers, types.intp), code


@intrinsic
def store(_typing, numbers, _index, lanes):  # type: ignore[no-untyped-def]
    """Write the eight lanes of an indicator's loop to numbers[index : index + 8]; bounds are not checked."""

    def code(context, builder, _signature, args):  # type: ignore[no-untyped-def]
        builder.store(args[2], _place(context, builder, numbers, *args[:2]), align=numbers.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.none(numbers, types.intp, lanes), code


@inner
def loads(numbers, at, apart):  # type: ignore[no-untyped-def]
    """Eight vectors of an indicator's loop, that begin so many numbers apart."""
    return (
        load(numbers, at),
        load(numbers, at + apart),
        load(numbers, at + 2 * apart),
        load(numbers, at + 3 * apart),
        load(numbers, at + 4 * apart),
        load(numbers, at + 5 * apart),
        load(numbers, at + 6 * apart),
        load(numbers, at + 7 * apart),
    )


@inner
def stores(numbers, at, apart, vectors):  # type: ignore[no-untyped-def]
    """Write eight vectors of an indicator's loop, so many numbers apart."""
    for k in range(LANES):
        store(numbers, at + k * apart, vectors[k])


@intrinsic
def strided(_typing, numbers, _index, _stride):  # type: ignore[no-untyped-def]
    """The eight lanes of an indicator's loop from numbers[index : index + 8 * stride : stride]; bounds are not
    checked."""

    def code(context, builder, signature, args):  # type: ignore[no-untyped-def]
        lanes = ir.Constant(context.get_value_type(signature.return_type), ir.Undefined)
        for lane in range(LANES):
            offset = builder.mul(args[2], ir.Constant(args[2].type, lane))
            number = builder.load(builder.gep(args[0], [builder.add(args[1], offset)]))
            lanes = builder.insert_element(lanes, number, _INDEX(lane))
        return lanes

    return Lanes(numbers.dtype)(numbers, types.intp, types.intp), code


@intrinsic
def spread(_typing, value):  # type: ignore[no-untyped-def]
    """The vector of an indicator's loop with one number in all eight lanes."""

    def code(_context, builder, _signature, args):  # type: ignore[no-untyped-def]
        return _spread(builder, args[0])

    return Lanes(value)(value), code


@intrinsic
def keep(_typing, lanes, _count):  # type: ignore[no-untyped-def]
    """The vector of an indicator's loop with its first `count` lanes, and 0 in the others."""

    def code(_context, builder, _signature, args):  # type: ignore[no-untyped-def]
        numbers = ir.Constant(ir.VectorType(args[1].type, LANES), list(range(LANES)))
        kept = builder.icmp_signed("<", numbers, _spread(builder, args[1]))
        return builder.select(kept, args[0], ir.Constant(args[0].type, [0.0] * LANES))

    return lanes(lanes, types.int64), code


@intrinsic
def root(_typing, lanes):  # type: ignore[no-untyped-def]
    """The square roots of the eight lanes of an indicator's loop."""

    def code(_context, builder, _signature, args):  # type: ignore[no-untyped-def]
        kind = args[0].type
        name = f"llvm.sqrt.v{LANES}f{lanes.real.bitwidth}"
        function = builder.module.globals.get(name) or ir.Function(
            builder.module, ir.FunctionType(kind, [kind]), name=name
        )
        return builder.call(function, args)

    return lanes(lanes), code


def _exponent_bits(builder: Any, lanes: Any) -> Any:
    whole = ir.VectorType(ir.IntType(64), LANES)
    shifted = builder.lshr(builder.bitcast(lanes, whole), ir.Constant(whole, [52] * LANES))
    return builder.and_(shifted, ir.Constant(whole, [0x7FF] * LANES))


@intrinsic
def exponent(_typing, lanes):  # type: ignore[no-untyped-def]
    """The exponents of eight lanes of float64 in a loop over systems, as numbers: e of m 2^e, 1 <= m < 2, for normal
    numbers."""

    def code(_context, builder, _signature, args):  # type: ignore[no-untyped-def]
        bits = _exponent_bits(builder, args[0])
        number = builder.or_(bits, ir.Constant(bits.type, [0x433 << 52] * LANES))  # 2^52 + the exponent's bits
        return builder.fsub(builder.bitcast(number, args[0].type), ir.Constant(args[0].type, [2.0**52 + 1023] * LANES))

    return lanes(lanes), code


@intrinsic
def unscale(_typing, lanes):  # type: ignore[no-untyped-def]
    """The powers 2^-e of eight lanes of float64 in a loop over systems, where e is `exponent`, below 1023."""

    def code(_context, builder, _signature, args):  # type: ignore[no-untyped-def]
        bits = _exponent_bits(builder, args[0])
        inverse = builder.sub(ir.Constant(bits.type, [2046] * LANES), bits)
        return builder.bitcast(builder.shl(inverse, ir.Constant(bits.type, [52] * LANES)), args[0].type)

    return lanes(lanes), code


def _lane(which: int) -> Any:
    @intrinsic
    def lane(_typing, lanes):  # type: ignore[no-untyped-def]
        def code(_context, builder, _signature, args):  # type: ignore[no-untyped-def]
            return builder.extract_element(args[0], _INDEX(which))

        return lanes.real(lanes), code

    return lane


def _slid(by: int) -> Any:
    @intrinsic
    def slid(_typing, lanes, _beyond):  # type: ignore[no-untyped-def]
        def code(_context, builder, _signature, args):  # type: ignore[no-untyped-def]
            pair = args if by < 0 else args[::-1]
            return builder.shuffle_vector(*pair, _pattern([-by % LANES + lane for lane in range(LANES)]))

        return lanes(lanes, lanes), code

    return slid


def _where(comparison: str) -> Any:
    @intrinsic
    def where(_typing, left, right, yes, no):  # type: ignore[no-untyped-def]
        def code(_context, builder, _signature, args):  # type: ignore[no-untyped-def]
            return builder.select(builder.fcmp_ordered(comparison, *args[:2]), *args[2:])

        return left(left, right, yes, no), code

    return where


def _which(comparison: str) -> Any:
    @intrinsic
    def which(_typing, left, right):  # type: ignore[no-untyped-def]
        def code(_context, builder, _signature, args):  # type: ignore[no-untyped-def]
            bits = builder.bitcast(builder.fcmp_ordered(comparison, *args), ir.IntType(LANES))
            return builder.zext(bits, ir.IntType(64))

        return types.int64(left, right), code

    return which


@intrinsic
def transposed(_typing, a, b, c, d, e, f, g, h):  # type: ignore[no-untyped-def]
    """The transpose of eight vectors of an indicator's loop: one of all lanes 0, one of all lanes 1, and so on."""

    def code(context, builder, signature, args):  # type: ignore[no-untyped-def]
        rows = list(args)
        for width in (1, 2, 4):  # squares of so many rows and lanes are swapped across the diagonal
            low = [lane if not lane & width else lane - width + LANES for lane in range(LANES)]
            high = [lane + width if not lane & width else lane + LANES for lane in range(LANES)]
            for row in range(LANES):
                if not row & width:
                    pair = rows[row], rows[row + width]
                    rows[row] = builder.shuffle_vector(*pair, _pattern(low))
                    rows[row + width] = builder.shuffle_vector(*pair, _pattern(high))
        return context.make_tuple(builder, signature.return_type, rows)

    return types.UniTuple(a, LANES)(a, b, c, d, e, f, g, h), code


first, last = _lane(0), _lane(LANES - 1)

# Lane k of after_1 is lane k - 1, of before_1 lane k + 1. If there is no such lane, it comes from the end, or from the
# beginning, of `beyond`. That must not be a constant zero: for AMD's processors LLVM would then use an instruction
# (vexpandpd) that is ten times as slow.
after_1, after_2, after_4 = _slid(1), _slid(2), _slid(4)
before_1, before_2, before_4 = _slid(-1), _slid(-2), _slid(-4)

# where_below(a, b, yes, no) is yes where a < b, else no, also where a or b is NaN.
where_below, where_equal = _where("<"), _where("==")
where_differs = _where("!=")  # not NaN either
where_at_most, where_at_least = _where("<="), _where(">=")

# A bit for each lane of a that is below, or at most, that of b; NaN is neither.
which_below, which_at_most = _which("<"), _which("<=")


def _operator(symbol: Any, instruction: str) -> None:
    @intrinsic
    def operation(_typing, left, right):  # type: ignore[no-untyped-def]
        def code(_context, builder, _signature, args):  # type: ignore[no-untyped-def]
            return getattr(builder, instruction)(*args)

        return left(left, right), code

    @overload(symbol)
    def _typed(left, right):  # type: ignore[no-untyped-def]
        if isinstance(left, Lanes) and left == right:
            return lambda left, right: operation(left, right)
        return None


_operator(operator.add, "fadd")
_operator(operator.sub, "fsub")
_operator(operator.mul, "fmul")
_operator(operator.truediv, "fdiv")
