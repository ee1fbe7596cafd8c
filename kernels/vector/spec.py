"""The specification of the vector operations: add, multiply, axpy, dot, sum, norm, min and max of arrays."""

from collections.abc import Mapping
from math import prod
from typing import Any, Literal

from pydantic import Field

from warpdesk_server.kernels.array import ITEMSIZE, ArrayInfo
from warpdesk_server.kernels.batching import Batching
from warpdesk_server.kernels.operation import Cost, Example, Grid, Input, Operation, Output
from warpdesk_server.kernels.params import Params
from warpdesk_server.kernels.problems import refuse

# Elements of a tile, which is added up before tiles are paired. It defines a sum and decides bytes.
TILE = 8192
# Elements of one array in a chunk on a device; it changes no byte.
CHUNK = 1 << 22
_BATCHING = Batching(steps=2e6)  # above it, to join arrays takes longer than two claims

_LARGEST_FLOAT32 = 3.4028234663852886e38


class Elementwise(Params):
    """The parameters of an elementwise vector operation: none."""


class Axpy(Params):
    alpha: float = Field(description="factor of x; rounded to float32 where the arrays are float32", examples=[2.0])


class Reduction(Params):
    axis: Literal["all", "last"] = Field(
        default="all",
        description="all: one number of all elements, shape (1). last: one number of each row, for x of shape "
        "(..., n) an array of shape (...).",
    )


class Norm(Reduction):
    order: Literal["l1", "l2", "linf"] = Field(
        default="l2", description="l1: sum of magnitudes. l2: root of the sum of squares. linf: largest magnitude."
    )


def rows(params: Reduction, shape: tuple[int, ...]) -> tuple[int, int]:
    """The number of results of a vector reduction, and the number of elements of each."""
    return (1, prod(shape)) if params.axis == "all" or len(shape) == 1 else (prod(shape[:-1]), shape[-1])


def _reduced(params: Any, inputs: Mapping[str, ArrayInfo]) -> dict[str, tuple[int, ...]]:
    """The axes that a reduction leaves: one of length 1, or all but the last."""
    return {"...": (1,) if params.axis == "all" else inputs["x"].shape[:-1] or (1,)}


def element_chunks(size: int, itemsize: int) -> Grid:
    """The grid of an elementwise vector operation: two arrays of `size` elements; the result overwrites one of them."""
    return Grid(chunks=-(-size // CHUNK), each=2 * min(size, CHUNK) * itemsize)


def tiles_per_chunk(n: int) -> int:
    """The number of tiles in a vector reduction's chunk, for rows of n elements."""
    return max(1, CHUNK // min(n, TILE))


def tile_chunks(count: int, n: int, bytes_of_element: int, bytes_of_tile: int) -> Grid:
    """The grid of a vector reduction: `count` rows of n elements in whole tiles, by bytes of an element and a tile."""
    tiles = count * -(-n // TILE)
    at_once = min(tiles, tiles_per_chunk(n))
    elements = min(at_once * min(n, TILE), count * n)
    return Grid(-(-tiles // tiles_per_chunk(n)), each=elements * bytes_of_element + at_once * bytes_of_tile)


def result_bytes(params: Reduction) -> int:
    """Bytes of a vector reduction's result for one tile: a number, and for an L2 norm its scale."""
    return 12 if isinstance(params, Norm) and params.order == "l2" else 8


def _elementwise_grid(_params: Any, inputs: Mapping[str, ArrayInfo]) -> Grid:
    x = inputs["x"]
    return element_chunks(x.size, ITEMSIZE[x.dtype])


def _reduction_grid(params: Any, inputs: Mapping[str, ArrayInfo]) -> Grid:
    x = inputs["x"]
    return tile_chunks(*rows(params, x.shape), len(inputs) * ITEMSIZE[x.dtype], result_bytes(params))


def _elementwise_cost(_params: Any, inputs: Mapping[str, ArrayInfo]) -> Cost:
    """The cost of an elementwise vector operation: its arrays and their result."""
    x = inputs["x"]
    return Cost(bytes=3 * x.nbytes, work=float(x.size))


def _reduction_cost(params: Any, inputs: Mapping[str, ArrayInfo]) -> Cost:
    """The cost of a vector reduction: its arrays, the results of tiles, and these once more while they are paired."""
    x = inputs["x"]
    count, n = rows(params, x.shape)
    return Cost(bytes=len(inputs) * x.nbytes + 36 * count * -(-n // TILE) + (1 << 16), work=float(x.size))


def _check(params: Any, inputs: Mapping[str, ArrayInfo]) -> None:
    x, y = inputs["x"], inputs["y"]
    if x.shape != y.shape:
        raise refuse("/inputs/y", f"shape {list(y.shape)}, and x has shape {list(x.shape)}: they must be equal")
    if x.dtype != y.dtype:
        raise refuse("/inputs/y", f"dtype {y.dtype}, and x has {x.dtype}: they must be equal")
    if isinstance(params, Axpy) and x.dtype == "float32" and abs(params.alpha) > _LARGEST_FLOAT32:
        raise refuse("/params/alpha", f"alpha {params.alpha:g} is beyond float32, the dtype of the arrays")


def _vector(name: str, doc: str) -> Input:
    return Input(name, doc, ("float64", "float32"), tuple(range(1, 9)), nan=True, axes=("...",))


_X = _vector("x", "float64 or float32, of any shape")
_Y = _vector("y", "of x's shape and dtype")


def _example(**params: Any) -> Example:
    return Example(params, {"x": {"data": [3.0, -4.0, 12.0], "dtype": "float64"}})


def _example_of_two(**params: Any) -> Example:
    return Example(
        params,
        {"x": {"data": [1.5, -2.0, 4.0], "dtype": "float64"}, "y": {"data": [10.0, 20.0, 30.0], "dtype": "float64"}},
    )


def _elementwise(name: str, summary: str, doc: str, params: type[Params] = Elementwise, **shown: Any) -> Operation:
    return Operation(
        name=name,
        summary=summary,
        package="warpdesk_server.kernels.vector",
        params=params,
        inputs=(_X, _Y),
        outputs=(Output(name, f"{doc}, of x's shape and dtype", axes=("...",), dtype="same"),),
        example=_example_of_two(**shown),
        cost=_elementwise_cost,
        check=_check,
        grid=_elementwise_grid,
        batching=_BATCHING,
    )


def _reduction(
    name: str,
    summary: str,
    doc: str,
    params: type[Params] = Reduction,
    variants: tuple[Example, ...] = (),
    dtype: Literal["float64", "same"] = "float64",
) -> Operation:
    return Operation(
        name=name,
        summary=summary,
        package="warpdesk_server.kernels.vector",
        params=params,
        inputs=(_X,),
        outputs=(Output(name, doc, axes=("...",), dtype=dtype),),
        example=_example(),
        cost=_reduction_cost,
        grid=_reduction_grid,
        sizes=_reduced,
        batching=_BATCHING,
        variants=variants,
    )


_FLOAT64 = "float64, of shape (1), or of x's shape without its last axis"
_OF_ITS_DTYPE = "of x's dtype and of shape (1), or of x's shape without its last axis; NaN where x holds one"

ADD = _elementwise("add", "Add two arrays.", "x + y")
MULTIPLY = _elementwise("multiply", "Multiply two arrays, element by element.", "x * y")
AXPY = _elementwise("axpy", "Add a multiple of one array to another.", "alpha * x + y", Axpy, alpha=2.0)

DOT = Operation(
    name="dot",
    summary="Sum of products of two arrays, in float64.",
    package="warpdesk_server.kernels.vector",
    params=Reduction,
    inputs=(_X, _Y),
    outputs=(Output("dot", f"sum of x * y: {_FLOAT64}", axes=("...",)),),
    example=_example_of_two(),
    cost=_reduction_cost,
    check=_check,
    grid=_reduction_grid,
    sizes=_reduced,
    batching=_BATCHING,
)
SUM = _reduction("sum", "Sum of all elements or of each row, in float64.", f"the sum: {_FLOAT64}")
NORM = _reduction(
    "norm",
    "Norm of all elements or of each row: sum of magnitudes, Euclidean, or largest magnitude.",
    f"the norm: {_FLOAT64}",
    Norm,
    variants=(_example(order="l1"), _example(order="linf")),
)
MIN = _reduction("min", "Least element of all or of each row.", f"the least: {_OF_ITS_DTYPE}", dtype="same")
MAX = _reduction("max", "Greatest element of all or of each row.", f"the greatest: {_OF_ITS_DTYPE}", dtype="same")

OPERATIONS = (ADD, MULTIPLY, AXPY, DOT, SUM, NORM, MIN, MAX)
