"""The specification of the operations on tridiagonal systems: solve, and the diagonal of the inverse."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from pydantic import Field

from warpdesk.models import DType
from warpdesk_server.kernels.array import ITEMSIZE, ArrayInfo
from warpdesk_server.kernels.batching import Batching
from warpdesk_server.kernels.operation import Cost, Example, Grid, Input, Operation, Output
from warpdesk_server.kernels.params import Params
from warpdesk_server.kernels.problems import refuse
from warpdesk_server.kernels.sharding import Division, Sharding

MOST_ROWS = 16_384  # of a system: one thread of a GPU goes through all of its rows
CHUNK = 1 << 22  # rows of all systems of one chunk on a device; it changes no byte
LANES = 8  # systems that one core computes side by side
_CORES = 8  # of a worker that computes on the CPU, for what a job is said to need

# What is kept of a system while it is computed, in float64, by its place in the kernels' `state`. The sizes of complex
# numbers are their squares.
STATES = 12
(
    SIGN,  # determinant = SIGN 2^EXPONENT
    SIGN_IMAGINARY,
    EXPONENT,
    GROWTH,  # the largest |d| / |u|
    DOMINANT,
    NORM,  # the largest |a| + |d| + |c| of a row
    PIVOT_ROW,  # the first row with a refused pivot, or -1
    GAP_ROW,  # the first row with a number that is not finite, or -1
    GIVEN,  # the largest number of the right-hand side: of complex ones the larger part, as a square might underflow
    FOUND,  # the same of the solution
    ERROR,  # solve: the same of the residual. inverse: the largest bound of a relative error
    TAINT,  # 0, or NaN if a number of the answer is not finite
) = range(STATES)

# The status of a system.
OK, REPEATED, PIVOT, NOT_FINITE, UNCERTIFIED = range(5)

PIVOT_RATIO = 1e-12  # |u| / |d| below which a pivot is refused
# |u| outside is refused too: the squares of complex numbers must neither overflow nor underflow.
PIVOT_LEAST, PIVOT_MOST = 2.0**-500, 2.0**500
BACKWARD = 1e-12  # the largest backward error of a certified solution
LEAST_SCALE = 2.0**-1000  # of |T - z I| |x| + |b|: below, products of a residual underflow, and it proves nothing
FORWARD = 1e-9  # the largest relative error of a certified diagonal of an inverse
UNIT = 2.0**-53  # a rounding of float64
ROUNDINGS = 9.0  # of a c / u beside the error of u, in units: 8.5 for complex numbers, 3 for real ones
LEAST_FLOAT32 = 2.0**-126  # answers in float32 below it are 0, as a GPU has no smaller ones


class Shift(Params):
    shift: float = Field(default=0.0, description="z of T - z I, subtracted from the diagonal: its real part")
    shift_imaginary: float = Field(
        default=0.0, description="the imaginary part of z; if it is not 0, answers are complex"
    )


@dataclass(frozen=True)
class Systems:
    """The systems of a job: how many, their rows, and the parts of their numbers (1 real, 2 complex)."""

    count: int
    rows: int
    parts: int
    batch: bool
    dtype: DType

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the answer that has a number for each row."""
        return (*((self.count,) if self.batch else ()), self.rows, *((2,) if self.parts == 2 else ()))

    @property
    def sign_shape(self) -> tuple[int, ...]:
        return (self.count, 2) if self.parts == 2 else (self.count,)

    @property
    def per_chunk(self) -> int:
        """The systems of a chunk on a device."""
        return min(self.count, max(1, CHUNK // self.rows))


def systems_of(params: Shift, inputs: Mapping[str, ArrayInfo]) -> Systems:
    diagonal = inputs["diagonal"]
    matrix_complex = complex_matrix(inputs)
    shape = diagonal.shape[:-1] if matrix_complex else diagonal.shape
    rhs_complex = "rhs" in inputs and inputs["rhs"].ndim > len(shape)
    parts = 2 if matrix_complex or rhs_complex or params.shift_imaginary else 1
    return Systems(prod(shape[:-1]), shape[-1], parts, len(shape) == 2, diagonal.dtype)


def complex_matrix(inputs: Mapping[str, Any]) -> bool:
    """Whether the matrix has a last axis of two. Else its last axis is one shorter in `lower` than in `diagonal`."""
    lower, diagonal = inputs["lower"].shape, inputs["diagonal"].shape
    return len(diagonal) > 1 and diagonal[-1] == 2 and lower[-1] == 2


def _check(params: Any, inputs: Mapping[str, ArrayInfo]) -> None:
    diagonal = inputs["diagonal"]
    shape = diagonal.shape[:-1] if complex_matrix(inputs) else diagonal.shape
    pair = diagonal.shape[len(shape) :]
    if len(shape) > 2:
        raise refuse(
            "/inputs/diagonal",
            f"shape {list(diagonal.shape)}: real systems have (rows) or (systems, rows), and complex ones a last axis "
            "of two besides",
        )
    for name, info in inputs.items():
        if info.dtype != diagonal.dtype:
            raise refuse(f"/inputs/{name}", f"dtype {info.dtype}, and diagonal has {diagonal.dtype}: must be equal")
        wanted = [shape, (*shape, 2)] if name == "rhs" else [(*shape[:-1], shape[-1] - 1, *pair)]
        if name != "diagonal" and info.shape not in wanted:
            raise refuse(
                f"/inputs/{name}",
                f"shape {list(info.shape)}, and diagonal has shape {list(diagonal.shape)}: {name} needs "
                f"{' or '.join(str(list(one)) for one in wanted)}",
            )
    systems = systems_of(params, inputs)
    if systems.rows > MOST_ROWS:
        raise refuse("/inputs/diagonal", f"{systems.rows:,} rows of a system, the most are {MOST_ROWS:,}")


def _grid(params: Any, inputs: Mapping[str, ArrayInfo]) -> Grid:
    systems = systems_of(params, inputs)
    return Grid(-(-systems.count // systems.per_chunk), systems.per_chunk * bytes_of_a_system(systems, inputs))


def bytes_of_a_system(systems: Systems, inputs: Mapping[str, ArrayInfo]) -> int:
    """Device memory of one system: its numbers beside those of others, two or three numbers a row besides, its state,
    and the largest array as given or as it is given back."""
    itemsize = ITEMSIZE[systems.dtype]
    numbers = systems.rows * systems.parts
    scratch = 16 * numbers if "rhs" in inputs else 8 * numbers + 8 * systems.rows
    return itemsize * numbers * (len(inputs) + 1) + scratch + 8 * STATES


def _cost(params: Any, inputs: Mapping[str, ArrayInfo]) -> Cost:
    systems = systems_of(params, inputs)
    numbers = systems.rows * systems.parts
    answer = systems.count * (numbers * ITEMSIZE[systems.dtype] + 80)
    cores = _CORES * LANES * 8 * 7 * numbers
    nbytes = sum(given.nbytes for given in inputs.values()) + answer + cores
    device = systems.per_chunk * bytes_of_a_system(systems, inputs)
    return Cost(nbytes + device, work=float(systems.count * numbers), step=1e-8)


def _sizes(params: Any, inputs: Mapping[str, ArrayInfo]) -> dict[str, int | tuple[int, ...]]:
    """The sizes of answers. `...` stands for what the rank of an input does not tell: systems, rows and parts."""
    systems = systems_of(params, inputs)
    sizes: dict[str, int | tuple[int, ...]] = {"...": systems.shape, "system": systems.count}
    return sizes | ({"part": 2} if systems.parts == 2 else {})


def _sharding(params: Any, inputs: Mapping[str, ArrayInfo]) -> Sharding | None:
    systems = systems_of(params, inputs)
    if not systems.batch:
        return None
    given = {name: Division(info, inner=info.ndim - 1) for name, info in inputs.items()}
    answer = "solution" if "rhs" in inputs else "inverse_diagonal"
    error = "backward_error" if "rhs" in inputs else "error_bound"
    each: dict[str, DType] = {
        "log_determinant": "float64",
        "smallest_pivot": "float64",
        "dominant": "uint8",
        error: "float64",
        "status": "uint8",
        "row": "int64",
    }
    if "rhs" in inputs:
        each["residual"] = "float64"
    joined = {name: Division(ArrayInfo(dtype, (systems.count,)), inner=0) for name, dtype in each.items()}
    joined["sign"] = Division(ArrayInfo("float64", systems.sign_shape), inner=systems.parts - 1)
    joined[answer] = Division(ArrayInfo(systems.dtype, systems.shape), inner=len(systems.shape) - 1)
    return Sharding(systems.count, lambda _: params, given, joined)


_REAL: tuple[DType, ...] = ("float64", "float32")


def _band(name: str, doc: str, empty: bool = True) -> Input:
    shapes = "(rows - 1) or (systems, rows - 1)" if empty else "(rows) or (systems, rows)"
    return Input(
        name, f"{doc}, shape {shapes}; complex: a last axis of two besides", _REAL, (1, 2, 3), True, True, empty
    )


_MATRIX = (
    _band("lower", "the numbers below the diagonal, from the second row on"),
    _band("diagonal", "the diagonal", empty=False),
    _band("upper", "the numbers above the diagonal, up to the last row but one"),
)
_RHS = Input(
    "rhs",
    "the right-hand side, of the shape of diagonal, real or complex; all inputs have one dtype",
    _REAL,
    (1, 2, 3),
    nan=True,
)
_OF_SYSTEMS = ("system",)
_STATUS = (
    Output(
        "log_determinant",
        "ln |det(T - z I)| of each system, float64, shape (systems), or (1) for a single one",
        axes=_OF_SYSTEMS,
    ),
    Output(
        "sign",
        "det / |det|: 1 or -1, or a complex number of size 1; float64, shape (systems) or (systems, 2)",
        axes=("system", "system part"),
    ),
    Output(
        "smallest_pivot",
        "the smallest |u| / |d| of each system, at most 1: near 0 digits are lost; float64",
        axes=_OF_SYSTEMS,
    ),
    Output(
        "dominant",
        "1 where |d| >= |a| + |c| in every row, so that no pivoting is needed; uint8",
        axes=_OF_SYSTEMS,
        dtype="uint8",
    ),
)
_VERDICT = (
    Output(
        "status",
        "of each system: 0 certified, 1 certified after a repetition in twice the precision, 2 a pivot was refused, "
        "3 an input is not finite, 4 not certified, or beyond float32. From 2 on its answers are NaN; uint8",
        axes=_OF_SYSTEMS,
        dtype="uint8",
    ),
    Output(
        "row",
        "the row that a status of 2 or 3 is about, counted from 0, else -1; int64",
        axes=_OF_SYSTEMS,
        dtype="int64",
    ),
)

# Of the second system a pivot loses nine digits, so that it is computed again in twice the precision.
_SHOWN: dict[str, dict[str, Any]] = {
    "lower": {"data": [[-1.0, -1.0], [1.0, -1.7]], "dtype": "float64"},
    "diagonal": {"data": [[2.0, 2.0, 2.0], [1.0, 1.0 + 2.0**-30, 2.3]], "dtype": "float64"},
    "upper": {"data": [[-1.0, -1.0], [1.0, -0.9]], "dtype": "float64"},
}
_RHS_SHOWN = {"data": [[1.0, 0.0, 1.0], [1.0, 0.7, 0.3]], "dtype": "float64"}


def _operation(
    name: str,
    summary: str,
    outputs: tuple[Output, ...],
    shown: dict[str, dict[str, Any]],
    inputs: tuple[Input, ...],
) -> Operation:
    return Operation(
        name=name,
        summary=summary,
        package="warpdesk_server.kernels.tridiagonal",
        params=Shift,
        inputs=inputs,
        outputs=outputs,
        example=Example({}, shown),
        variants=(Example({"shift_imaginary": 1.0}, shown),),
        cost=_cost,
        check=_check,
        grid=_grid,
        sizes=_sizes,
        batching=Batching(steps=5e5),
        sharding=_sharding,
        compile_seconds=4.0,
        counted_as="tridiagonal",
    )


TRIDIAGONAL_SOLVE = _operation(
    "tridiagonal_solve",
    "Solve tridiagonal systems (T - z I) x = b, real or complex, with log-determinant, residual and backward error.",
    (
        Output(
            "solution",
            "x, of the shape of rhs, complex where rhs, the matrix or z is; of the inputs' dtype",
            axes=("...",),
            dtype="same",
        ),
        *_STATUS,
        Output(
            "residual",
            "the largest |b - (T - z I) x| of a row, of complex numbers the larger part, before x is rounded to its "
            "dtype; float64",
            axes=_OF_SYSTEMS,
        ),
        Output(
            "backward_error",
            "residual / (|T - z I| |x| + |b|) in the maximum norm, of complex numbers up to twice that; above "
            f"{BACKWARD:g} the system is computed again in twice the precision, and is not certified if that does not "
            "help; float64",
            axes=_OF_SYSTEMS,
        ),
        *_VERDICT,
    ),
    {**_SHOWN, "rhs": _RHS_SHOWN},
    (*_MATRIX, _RHS),
)
TRIDIAGONAL_INVERSE_DIAGONAL = _operation(
    "tridiagonal_inverse_diagonal",
    "Diagonal of the inverse of tridiagonal matrices T - z I, real or complex, with log-determinant and error bound.",
    (
        Output(
            "inverse_diagonal",
            "of the shape and dtype of diagonal, complex where the matrix or z is",
            axes=("...",),
            dtype="same",
        ),
        *_STATUS,
        Output(
            "error_bound",
            f"a bound of the relative error of each number, to first order, before it is rounded to its dtype; above "
            f"{FORWARD:g} the system is computed again in twice the precision, and is not certified if that does not "
            "help; float64",
            axes=_OF_SYSTEMS,
        ),
        *_VERDICT,
    ),
    _SHOWN,
    _MATRIX,
)

OPERATIONS = (TRIDIAGONAL_SOLVE, TRIDIAGONAL_INVERSE_DIAGONAL)
