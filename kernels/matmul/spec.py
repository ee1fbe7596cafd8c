"""What `matmul` takes and gives: a @ b, one product or a batch of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from kernels.array import ITEMSIZE, ArrayInfo
from kernels.operation import Cost, Example, Input, InvalidRequest, Operation, Output, Params, Problem

Precision = Literal["ieee", "tf32", "bf16", "fp16"]


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
    """A product of shapes: (batch, m, k) @ (batch, k, n); a factor without a batch axis serves every product."""

    batch: int
    m: int
    k: int
    n: int
    batched: bool  # whether the product has a batch axis

    @property
    def product(self) -> tuple[int, ...]:
        return (self.batch, self.m, self.n) if self.batched else (self.m, self.n)


def dimensions(a: tuple[int, ...], b: tuple[int, ...]) -> Dimensions:
    """Match two shapes of rank 2 or 3, or raise InvalidRequest with both in the sentence."""
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
    return Dimensions(batch, a[-2], a[-1], b[-1], batched=len(a) == 3 or len(b) == 3)


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
    # A reduced precision holds a rounded copy of both factors, two more of the one being rounded, and 2 * 32 MiB while
    # it measures the error.
    rounding = factors + 2 * max(a.nbytes, b.nbytes) + (64 << 20) if params.precision != "ieee" else 0
    return Cost(bytes=factors + product + rounding)


def _factors(dtype: str) -> dict[str, Any]:
    return {
        "a": {"data": [[1.0, 2.0], [3.0, 4.0]], "dtype": dtype},
        "b": {"data": [[5.0, 6.0], [7.0, 8.0]], "dtype": dtype},
    }


OPERATION = Operation(
    name="matmul",
    summary="Matrix product a @ b, single or batched.",
    package="kernels.matmul",
    params=MatmulParams,
    inputs=(
        Input("a", "left factor, shape (m, k) or (batch, m, k)", ("float64", "float32"), (2, 3)),
        Input("b", "right factor, shape (k, n) or (batch, k, n), of a's dtype", ("float64", "float32"), (2, 3)),
    ),
    outputs=(
        Output("product", "a @ b, shape (m, n) or (batch, m, n), of the factors' dtype"),
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
    check=_check,
    variants=(
        Example({"algorithm": "kernel"}, _factors("float64")),
        # On a GPU, CuPy compiles what rounds to each format.
        Example({"precision": "tf32"}, _factors("float32")),
        Example({"precision": "bf16"}, _factors("float32")),
        Example({"precision": "fp16"}, _factors("float32")),
    ),
)
