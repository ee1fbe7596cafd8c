"""A block of a matrix product in registers, as hand-written vector instructions for the loops of cpu.py.

Numba's own loops would keep the running sums in memory, and cannot express a fused multiply-add. `llvm.fma` is rounded
once, as IEEE 754 requires, on every processor. If a processor lacks the instruction, LLVM calls the C library's `fma`,
which gives the same numbers slowly.
"""

from typing import Any

from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba import types
from numba.core import cgutils, config
from numba.extending import intrinsic

_Generated = tuple[Any, Any]  # an intrinsic's signature and what emits its code


def _shape(itemsize: int) -> tuple[int, int, int]:
    """The shape of a block of a matrix product: its rows, the vectors in a row, and the numbers in a vector.

    The sums, a row of b and a broadcast number of a fill the registers: 32 of 512 bits with AVX-512, else 16 of 256.
    With more sums, some would go through memory in each step. For narrower registers LLVM uses several for one. No byte
    of a product depends on this.
    """
    configured = config.CPU_FEATURES
    features = get_host_cpu_features().flatten() if configured is None else configured
    rows, vectors, nbytes = (8, 3, 64) if "+avx512f" in features.split(",") else (6, 2, 32)
    return rows, vectors, nbytes // itemsize


def _itemsize(array: Any) -> int:
    return int(array.dtype.bitwidth) // 8


@intrinsic
def block_shape(_typing: Any, array: Any) -> _Generated:
    """The (rows, columns) of a product's block for the numbers of `array`, as constants of the machine code."""
    rows, vectors, lanes = _shape(_itemsize(array))

    def generate(context: Any, builder: Any, signature: Any, _arguments: Any) -> Any:
        sizes = [ir.Constant(ir.IntType(types.intp.bitwidth), size) for size in (rows, vectors * lanes)]
        return context.make_tuple(builder, signature.return_type, sizes)

    return types.UniTuple(types.intp, 2)(array), generate


@intrinsic
def copy_row(_typing: Any, source: Any, _source_at: Any, target: Any, _target_at: Any) -> _Generated:
    """Copy one row of a matrix product's block, as many numbers as it has columns, from one flat array to another."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        emit = _Emitter(context, builder, signature)
        source, target = emit.address(arguments, 0), emit.address(arguments, 2)
        for vector in range(emit.vectors):
            emit.store(emit.load(source, vector * emit.lanes), target, vector * emit.lanes)
        return context.get_dummy_value()

    return types.void(source, types.intp, target, types.intp), generate


@intrinsic
def square_side(_typing: Any, array: Any) -> _Generated:
    """The side of the square that `turn_squares` turns, for the numbers of `array`: those of a vector register."""
    side = _shape(_itemsize(array))[2]

    def generate(_context: Any, _builder: Any, _signature: Any, _arguments: Any) -> Any:
        return ir.Constant(ir.IntType(types.intp.bitwidth), side)

    return types.intp(array), generate


@intrinsic
def turn_squares(_typing: Any, source: Any, _source_at: Any, _stride: Any, target: Any, _target_at: Any) -> _Generated:
    """Pack `square_side` terms of all columns of a product's block, whose columns are rows of the source.

    target[p, j] = source[j, p]: columns of the source follow each other without a gap, its rows are `stride` apart,
    and rows of the target follow each other without a gap. Both arrays are flat and begin at the index after them.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        emit = _Emitter(context, builder, signature)
        source, target, stride = emit.address(arguments, 0), emit.address(arguments, 3), arguments[2]
        side = emit.lanes
        for square in range(emit.vectors):
            rows = [emit.load(source, builder.mul(stride, stride.type(square * side + row))) for row in range(side)]
            apart = 1
            while apart < side:  # swap the halves off the diagonal: of squares of 2, then 4, then 8
                keep = [lane if not lane & apart else side + lane - apart for lane in range(side)]
                move = [lane + apart if not lane & apart else side + lane for lane in range(side)]
                for row in range(side):
                    if not row & apart:
                        pair = rows[row], rows[row + apart]
                        rows[row], rows[row + apart] = (emit.shuffle(*pair, lanes) for lanes in (keep, move))
                apart *= 2
            for row in range(side):
                emit.store(rows[row], target, (row * emit.vectors + square) * side)
        return context.get_dummy_value()

    whole = types.intp
    return types.void(source, whole, whole, target, whole), generate


@intrinsic
def add_products(
    _typing: Any,
    left: Any,
    _left_at: Any,
    right: Any,
    _right_at: Any,
    _terms: Any,
    out: Any,
    _out_at: Any,
    _stride: Any,
) -> _Generated:
    """Add products to a block: out[i, j] = fma(left[p, i], right[p, j], out[i, j]) for p = 0 to terms - 1 in order.

    The arrays are flat; each begins at the index in the next argument. Rows of `left` and `right` follow each other
    without a gap; those of `out` are `stride` apart.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        emit = _Emitter(context, builder, signature)
        left, right, out = emit.address(arguments, 0), emit.address(arguments, 2), emit.address(arguments, 5)
        terms, stride = arguments[4], arguments[7]
        none, one = ir.Constant(terms.type, 0), ir.Constant(terms.type, 1)
        cells = [
            (row, vector, builder.add(builder.mul(stride, terms.type(row)), terms.type(vector * emit.lanes)))
            for row in range(emit.rows)
            for vector in range(emit.vectors)
        ]
        before = [emit.load(out, at) for *_, at in cells]

        start, loop, end = builder.block, builder.append_basic_block("term"), builder.append_basic_block("end")
        builder.cbranch(builder.icmp_signed(">", terms, none), loop, end)
        builder.position_at_end(loop)
        p = builder.phi(terms.type)
        sums = [builder.phi(emit.vector) for _ in cells]
        row_of_right = builder.mul(p, terms.type(emit.vectors * emit.lanes))
        row_of_left = builder.mul(p, terms.type(emit.rows))
        b = [emit.load(right, builder.add(row_of_right, terms.type(v * emit.lanes))) for v in range(emit.vectors)]
        a = [emit.broadcast(left, builder.add(row_of_left, terms.type(row))) for row in range(emit.rows)]
        added = [builder.call(emit.fma, (a[row], b[v], total)) for (row, v, _), total in zip(cells, sums, strict=True)]
        following = builder.add(p, one)
        builder.cbranch(builder.icmp_signed("<", following, terms), loop, end)
        p.add_incoming(none, start)
        p.add_incoming(following, loop)

        builder.position_at_end(end)
        results = [builder.phi(emit.vector) for _ in cells]
        for first, total, last, result in zip(before, sums, added, results, strict=True):
            for phi in (total, result):
                phi.add_incoming(first, start)
                phi.add_incoming(last, loop)
        for (*_, at), result in zip(cells, results, strict=True):
            emit.store(result, out, at)
        return context.get_dummy_value()

    whole = types.intp
    return types.void(left, whole, right, whole, whole, out, whole, whole), generate


class _Emitter:
    """An emitter of a matrix product's LLVM vector instructions on flat arrays, whose numbers have the type of the last
    array argument."""

    def __init__(self, context: Any, builder: Any, signature: Any) -> None:
        arrays = [argument for argument in signature.args if isinstance(argument, types.Array)]
        self.rows, self.vectors, self.lanes = _shape(_itemsize(arrays[-1]))
        real = context.get_data_type(arrays[-1].dtype)
        self.vector = ir.VectorType(real, self.lanes)
        self.fma = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(self.vector, [self.vector] * 3),
            f"llvm.fma.v{self.lanes}f{8 * _itemsize(arrays[-1])}",
        )
        self._align = _itemsize(arrays[-1])  # that of one number: rows of a product may begin anywhere
        self._context, self._builder, self._signature = context, builder, signature

    def address(self, arguments: Any, position: int) -> Any:
        """The address in a factor or product: the array at this position of the arguments, the index after it."""
        array = self._context.make_array(self._signature.args[position])(
            self._context, self._builder, arguments[position]
        )
        return self._builder.gep(array.data, [arguments[position + 1]])

    def load(self, address: Any, at: Any) -> Any:
        return self._builder.load(self._place(address, at), align=self._align)

    def store(self, value: Any, address: Any, at: Any) -> None:
        self._builder.store(value, self._place(address, at), align=self._align)

    def broadcast(self, address: Any, at: Any) -> Any:
        number = self._builder.load(self._builder.gep(address, [at]))
        empty = ir.Constant(self.vector, ir.Undefined)
        first = self._builder.insert_element(empty, number, ir.IntType(32)(0))
        return self.shuffle(first, empty, [0] * self.lanes)

    def shuffle(self, one: Any, other: Any, lanes: list[int]) -> Any:
        """The numbers of two vectors at these places, those of the second counted on."""
        return self._builder.shuffle_vector(one, other, ir.Constant(ir.VectorType(ir.IntType(32), self.lanes), lanes))

    def _place(self, address: Any, at: Any) -> Any:
        if isinstance(at, int):
            at = ir.Constant(ir.IntType(types.intp.bitwidth), at)
        return self._builder.bitcast(self._builder.gep(address, [at]), self.vector.as_pointer())
