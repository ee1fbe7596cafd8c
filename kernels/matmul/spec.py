"""The specification of matmul: the matrix product a @ b, one or a batch of them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import Field

from warpdesk.models import DType
from warpdesk_server.kernels.array import ITEMSIZE, ArrayInfo
from warpdesk_server.kernels.batching import Batching
from warpdesk_server.kernels.operation import Cost, Example, Grid, Input, Operation, Output
from warpdesk_server.kernels.params import Params
from warpdesk_server.kernels.problems import InvalidRequest, Problem
from warpdesk_server.kernels.sharding import Division, Sharding

Precision = Literal["ieee", "tf32", "bf16", "fp16"]

# The most bytes of a chunk: rows of a and of the product, or small matrices. Its copies take longer than to start them,
# and it fits on a GPU with most of its memory in use. b, which stays while the rows of a change, may have SHARED times
# as many.
PANEL_BYTES = 64 << 20
SHARED = 4
_TILE = 128  # the tile of matmul.cu: larger panels are multiples of it, and shards have whole ones
_MULTIPLY_ADD: dict[DType, float] = {"float32": 1.5e-11, "float64": 3e-11}  # seconds of a core: `Cost.step`
_MEASURING = 64 << 20  # bytes to measure the error of a reduced precision with: precision.py takes 32 MiB twice


class MatmulParams(Params):
    algorithm: Literal["kernel", "library"] | None = Field(
        default=None,
        description="kernel: our own, which sums in one fixed order, so that every device gives the same bytes. "
        "library: cuBLAS, or the CPU's BLAS: faster, with last bits that depend on shape and device. "
        "null: the library, or the kernel where there is no library; the answer says which ran and why.",
    )
    precision: Precision = Field(
        default="ieee",
        description="ieee: float32 or float64 as given. tf32, bf16, fp16 (float32 only, library only): inputs are "
        "rounded to that format, products summed in float32, and the error this costs is measured and returned.",
    )


@dataclass(frozen=True)
class Dimensions:
    """The dimensions of a matrix product (batch, m, k) @ (batch, k, n); a factor without a batch axis serves all."""

    batch: int
    m: int
    k: int
    n: int
    batched: bool  # whether the product has a batch axis
    one_a: bool = False  # one a for the whole batch
    one_b: bool = False

    @property
    def product(self) -> tuple[int, ...]:
        return (self.batch, self.m, self.n) if self.batched else (self.m, self.n)


def dimensions(a: tuple[int, ...], b: tuple[int, ...]) -> Dimensions:
    """The dimensions of a product of matrices of rank 2 or 3. Raises InvalidRequest if the shapes do not match."""
    problems = []
    if a[-1] != b[-2]:
        problems.append(
            Problem(
                "/inputs/b",
                f"inner dimensions differ: a has shape {list(a)} and b has shape {list(b)}, "
                f"so a's {a[-1]} columns meet b's {b[-2]} rows",
            )
        )
    if len(a) == len(b) == 3 and a[0] != b[0]:
        problems.append(
            Problem(
                "/inputs/b",
                f"batches differ: a has shape {list(a)}, {a[0]} matrices, and b has shape {list(b)}, {b[0]} matrices",
            )
        )
    if problems:
        raise InvalidRequest(*problems)
    batch = a[0] if len(a) == 3 else b[0] if len(b) == 3 else 1
    batched = len(a) == 3 or len(b) == 3
    return Dimensions(batch, a[-2], a[-1], b[-1], batched, one_a=len(a) == 2, one_b=len(b) == 2)


@dataclass(frozen=True)
class Piece:
    """A piece of the matrix products: some matrices of the batch, some of their rows and columns."""

    items: slice
    rows: slice
    columns: slice

    @property
    def place(self) -> tuple[slice, slice, slice]:
        return self.items, self.rows, self.columns

    def within(self, rows: Mapping[int, list[int]]) -> dict[int, list[int]]:
        """The rows of matrix products that lie in this piece, by product, both numbered from the piece's start."""
        return {
            z - self.items.start: here
            for z, chosen in rows.items()
            if self.items.start <= z < self.items.stop
            and (here := [row - self.rows.start for row in chosen if self.rows.start <= row < self.rows.stop])
        }


@dataclass(frozen=True)
class Cut:
    """The cut of matrix products into chunks on a device: a function of their shapes alone, and never along k.

    Small matrices of a batch stay whole, `items` of them to a chunk. Large ones are cut into panels: `columns` of b,
    and for each of these `rows` of a. Chunks are numbered by matrix, then by panel of b, then by panel of a.
    """

    size: Dimensions  # if one b serves a batch, all a are one tall matrix here
    items: int
    rows: int
    columns: int

    @property
    def chunks(self) -> int:
        return -(-self.size.batch // self.items) * self._across * self._down

    def pieces(self, first: int, end: int) -> Iterator[Piece]:
        """The pieces of the products in the chunks first to end - 1."""
        for chunk in range(first, end):
            item = chunk // (self._across * self._down) * self.items
            row = chunk % self._down * self.rows
            column = chunk // self._down % self._across * self.columns
            yield Piece(
                slice(item, min(item + self.items, self.size.batch)),
                slice(row, min(row + self.rows, self.size.m)),
                slice(column, min(column + self.columns, self.size.n)),
            )

    def joined(self, first: int, end: int) -> Iterator[Piece]:
        """The pieces in the chunks first to end - 1; neighbours are joined if they share b or are whole matrices."""
        last: Piece | None = None
        for piece in self.pieces(first, end):
            if last is not None and (piece.items, piece.columns) == (last.items, last.columns):
                last = replace(last, rows=slice(last.rows.start, piece.rows.stop))
            elif last is not None and self._across == self._down == 1 and self.items > 1:
                last = replace(last, items=slice(last.items.start, piece.items.stop))
            else:
                if last is not None:
                    yield last
                last = piece
        if last is not None:
            yield last

    def grid(self, itemsize: int, precision: Precision) -> Grid:
        """The grid of matrix products: bytes that the chunks share (b, or the one a of a batch), and of each chunk."""
        size, rounded = self.size, precision != "ieee"
        a, b = self.rows * size.k * itemsize, size.k * self.columns * itemsize
        product = self.rows * self.columns * itemsize
        if rounded:
            # The factors unchanged and rounded, and two more copies while one is being rounded.
            a, b = 4 * a, 4 * b
        workspace = _MEASURING if rounded else 0
        if self.items == 1:
            return Grid(self.chunks, a + product, b + workspace)
        if size.one_a:
            return Grid(self.chunks, self.items * (b + product), a + workspace)
        return Grid(self.chunks, self.items * (a + b + product), workspace)

    @property
    def _down(self) -> int:
        return -(-self.size.m // self.rows)

    @property
    def _across(self) -> int:
        return -(-self.size.n // self.columns)


def cut(size: Dimensions, itemsize: int) -> Cut:
    """Cut matrix products of numbers of `itemsize` bytes into chunks of at most about PANEL_BYTES."""
    if size.one_b:
        size = replace(size, batch=1, m=size.batch * size.m, one_a=size.batch == 1 and size.one_a)
    own_a = 0 if size.one_a else size.m * size.k
    one = (own_a + size.k * size.n + size.m * size.n) * itemsize
    if size.batch > 1 and 2 * one <= PANEL_BYTES and size.m * size.k * itemsize <= SHARED * PANEL_BYTES:
        return Cut(size, min(size.batch, PANEL_BYTES // one), size.m, size.n)
    columns = _fitting(size.n, size.k * itemsize, SHARED * PANEL_BYTES)
    return Cut(size, 1, _fitting(size.m, (size.k + columns) * itemsize, PANEL_BYTES), columns)


def _fitting(length: int, nbytes: int, panel: int) -> int:
    """The number of a factor matrix's rows or columns of `nbytes` each in a panel of at most `panel` bytes."""
    most = max(1, min(length, panel // max(nbytes, 1)))
    return most if most == length or most < _TILE else most - most % _TILE


def _check(params: MatmulParams, inputs: Mapping[str, ArrayInfo]) -> None:
    a, b = inputs["a"], inputs["b"]
    problems = []
    if a.dtype != b.dtype:
        problems.append(Problem("/inputs/b", f"a is {a.dtype} and b is {b.dtype}; give both the same dtype"))
    if params.precision != "ieee":
        if params.algorithm == "kernel":
            problems.append(
                Problem("/params/precision", f"the kernel computes ieee only; {params.precision} needs the library")
            )
        if "float64" in (a.dtype, b.dtype):
            problems.append(
                Problem(
                    "/params/precision", f"{params.precision} is for float32 inputs; a is {a.dtype}, b is {b.dtype}"
                )
            )
    try:
        dimensions(a.shape, b.shape)
    except InvalidRequest as error:
        problems += error.problems
    if problems:
        raise InvalidRequest(*problems)


def _cost(params: MatmulParams, inputs: Mapping[str, ArrayInfo]) -> Cost:
    a, b = inputs["a"], inputs["b"]
    size = dimensions(a.shape, b.shape)
    product = size.batch * size.m * size.n * ITEMSIZE[a.dtype]
    factors = a.nbytes + b.nbytes
    # A reduced precision holds a rounded copy of both factors, and two more of the one being rounded.
    rounding = factors + 2 * max(a.nbytes, b.nbytes) + _MEASURING if params.precision != "ieee" else 0
    work = float(size.batch * size.m * size.n * size.k)
    return Cost(factors + product + rounding, work=work, step=_MULTIPLY_ADD[a.dtype])


def _grid(params: MatmulParams, inputs: Mapping[str, ArrayInfo]) -> Grid:
    a, b = inputs["a"], inputs["b"]
    return cut(dimensions(a.shape, b.shape), ITEMSIZE[a.dtype]).grid(ITEMSIZE[a.dtype], params.precision)


def _sharding(params: MatmulParams, inputs: Mapping[str, ArrayInfo]) -> Sharding | None:
    """The sharding of matrix products by our own kernel: tiles of rows where one b serves all rows, else products.

    None for a BLAS library: the last bits of a row depend on how many rows are multiplied with it.
    """
    if params.algorithm != "kernel":
        return None
    a, b = inputs["a"], inputs["b"]
    size = dimensions(a.shape, b.shape)
    each, inner = (_TILE, 1) if size.one_b or size.batch == 1 else (1, 2)
    product = Division(ArrayInfo(a.dtype, size.product), each, inner)
    divided = {"a": a} if inner == 1 else {"b": b} if size.one_a else {"a": a, "b": b}
    return Sharding(
        -(-product.lines[0] // each),
        lambda _: params,
        inputs={name: Division(factor, each, inner) for name, factor in divided.items()},
        joined={"product": product},
        values={
            "algorithm": "kernel",
            "algorithm_reason": "requested",
            "precision": params.precision,
            "relative_error": None,
        },
    )


def _factors(dtype: str) -> dict[str, Any]:
    return {
        "a": {"data": [[1.0, 2.0], [3.0, 4.0]], "dtype": dtype},
        "b": {"data": [[5.0, 6.0], [7.0, 8.0]], "dtype": dtype},
    }


OPERATION = Operation(
    name="matmul",
    summary="Matrix product a @ b, single or batched.",
    package="warpdesk_server.kernels.matmul",
    params=MatmulParams,
    inputs=(
        Input(
            "a",
            "left factor, shape (m, k) or (batch, m, k)",
            ("float64", "float32"),
            (2, 3),
            axes=("row inner", "batch row inner"),
        ),
        Input(
            "b",
            "right factor, shape (k, n) or (batch, k, n), of a's dtype",
            ("float64", "float32"),
            (2, 3),
            axes=("inner column", "batch inner column"),
        ),
    ),
    outputs=(
        Output(
            "product",
            "a @ b, shape (m, n) or (batch, m, n), of the factors' dtype",
            axes=("row column", "batch row column"),
            dtype="same",
        ),
        Output("algorithm", "what ran: kernel or library", "value"),
        Output("algorithm_reason", "why that one", "value"),
        Output("precision", "the format products were formed in: ieee, tf32, bf16 or fp16", "value"),
        Output(
            "relative_error",
            "what a reduced precision cost, measured on up to 16 rows: |product - exact| / |exact| in the Frobenius "
            "norm, exact being the float64 product of the factors as given; null for ieee, and where exact is 0 or "
            "the product overflows",
            "value",
        ),
    ),
    example=Example(inputs=_factors("float64")),
    cost=_cost,
    grid=_grid,
    check=_check,
    batching=Batching(steps=1e8),
    sharding=_sharding,
    variants=(
        Example({"algorithm": "kernel"}, _factors("float64")),
        # On a GPU, CuPy compiles what rounds to each format.
        Example({"precision": "tf32"}, _factors("float32")),
        Example({"precision": "bf16"}, _factors("float32")),
        Example({"precision": "fp16"}, _factors("float32")),
    ),
)
