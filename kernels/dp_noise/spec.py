"""Differential-privacy noise on integers of a grid: amounts are decimal strings, and what is unsafe is refused."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from kernels.amount import Amount
from kernels.array import ArrayInfo
from kernels.batching import Batching
from kernels.operation import EXACT, Cost, Example, Grid, Input, Operation, Output, Params
from kernels.spend import BudgetId, Neighbouring, Spend

Norm = Literal["l1", "l2", "linf"]

# Values in a chunk on a device: whole records, and elements that noise is added to. It changes no byte.
CHUNK = 1 << 22
DRAW = 16.0  # drawing noise for an element takes about as long as bringing so many values to the grid
MOST_PARTS = 16  # sums the CPU keeps side by side, so that a job's memory does not depend on the machine's cores


class Clip(Params):
    """Every record is scaled down (l1, l2) or cut per coordinate (linf) to at most `bound` in this norm."""

    norm: Norm
    bound: Amount = Field(description="largest norm of a record, a decimal string in the unit of the values")


class Sensitivity(Params):
    """By how much the statistic can differ between neighbouring data sets, as the caller declares it."""

    norm: Norm
    value: Amount = Field(description="decimal string in the unit of the values")


class DpNoise(Params):
    mechanism: Literal["discrete_laplace", "discrete_gaussian"] = Field(
        description="discrete_laplace takes epsilon or scale; discrete_gaussian takes rho (zero-concentrated) or scale"
    )
    mode: Literal["records", "aggregate"] = Field(
        description="records: one row per person, clipped and summed here; aggregate: the values are the statistic"
    )
    epsilon: Amount | None = Field(None, description="pure-DP budget, a decimal string")
    rho: Amount | None = Field(None, description="zero-concentrated-DP budget, a decimal string")
    scale: Amount | None = Field(
        None, description="Laplace scale or Gaussian sigma in the unit of the values, a decimal string"
    )
    query: Literal["sum"] = Field("sum", description="what is computed of records")
    clip: Clip | None = Field(None, description="records only: the norm that bounds one record's influence")
    neighbouring: Neighbouring | None = Field(
        None, description="records only: replacing a record has twice the sensitivity of adding or removing one"
    )
    sensitivity: Sensitivity | None = Field(None, description="aggregate only: declared, and nothing checks it")
    budget: BudgetId | None = Field(None, description="the budget that is charged, once for each answer")
    unaccounted: Annotated[Literal[True], EXACT] | None = Field(
        None, description="true: no budget is charged, and whoever repeats the request learns more each time"
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        given = [name for name in ("epsilon", "rho", "scale") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"exactly one of epsilon, rho and scale is needed, got {', '.join(given) or 'none'}")
        if given[0] == ("rho" if self.mechanism == "discrete_laplace" else "epsilon"):
            raise ValueError(
                f"{self.mechanism} does not take {given[0]}: "
                "discrete_laplace takes epsilon or scale, discrete_gaussian rho or scale"
            )
        if (self.budget is None) == (self.unaccounted is None):
            raise ValueError(
                "exactly one of budget and unaccounted is needed: a budget that is charged, or true where none is, "
                f"got {'none' if self.budget is None else 'both'}"
            )
        needed: tuple[str, ...] = ("clip", "neighbouring")
        foreign: tuple[str, ...] = ("sensitivity",)
        if self.mode == "aggregate":
            needed, foreign = foreign, needed
        for name in needed:
            if getattr(self, name) is None:
                raise ValueError(f"mode {self.mode} needs {name}")
        for name in foreign:
            if getattr(self, name) is not None:
                raise ValueError(f"mode {self.mode} does not take {name}")
        return self


def check(params: DpNoise, inputs: Mapping[str, ArrayInfo]) -> None:
    """Raise InvalidRequest where no safe integer grid exists for these amounts and this shape."""
    from kernels.dp_noise.plan import plan

    plan(params, inputs["values"].shape)


def spend(params: DpNoise, inputs: Mapping[str, ArrayInfo]) -> Spend | None:
    """Return what the release charges, at least what its noise costs; None where no budget is named."""
    if params.budget is None:
        return None
    from kernels.dp_noise.plan import charged

    return charged(params, inputs["values"].shape)


def cost(params: DpNoise, inputs: Mapping[str, ArrayInfo]) -> Cost:
    """The values, their float64 and a byte each to see that they are finite; the integers and the noisy values.

    Records also need, in every part, a sum and a record.
    """
    values = inputs["values"]
    taken = values.nbytes + 9 * values.size
    if params.mode == "aggregate":
        return Cost(bytes=taken + 16 * values.size, work=DRAW * values.size)
    width = values.shape[1] if values.ndim == 2 else 1
    summed = (16 + 16 * min(MOST_PARTS, values.shape[0])) * width
    return Cost(bytes=taken + summed, work=float(values.size) + DRAW * width)


@dataclass(frozen=True)
class Chunks:
    """The cut of a job: `summing` chunks of `rows` records each, then `noising` chunks of CHUNK elements."""

    rows: int
    summing: int
    noising: int


def cut(params: DpNoise, shape: tuple[int, ...]) -> Chunks:
    if params.mode == "aggregate":
        return Chunks(0, 0, -(-prod(shape) // CHUNK))
    width = prod(shape[1:])
    rows = max(1, CHUNK // width)
    return Chunks(rows, -(-shape[0] // rows), -(-width // CHUNK))


def grid(params: DpNoise, inputs: Mapping[str, ArrayInfo]) -> Grid:
    """Records of a chunk with their norms, or elements; beside them the sum of records, or the key and a flag."""
    shape = inputs["values"].shape
    chunks = cut(params, shape)
    width = prod(shape) if params.mode == "aggregate" else prod(shape[1:])
    each, fixed = 8 * min(width, CHUNK), 36
    if params.clip is not None:
        of_record = 8 * width + (0 if params.clip.norm == "linf" else 8)
        each, fixed = max(each, min(chunks.rows, shape[0]) * of_record), max(fixed, 8 * width)
    return Grid(chunks.summing + chunks.noising, each, fixed)


OPERATION = Operation(
    name="dp_noise",
    summary="Add exact discrete Laplace or discrete Gaussian noise to a sum of clipped records, or to a statistic",
    package="kernels.dp_noise",
    params=DpNoise,
    inputs=(
        Input(
            "values",
            "records: (n,) or (n, d), one row per person; aggregate: the statistic, (d,) or (n, d)",
            ("float64", "float32", "int64", "int32", "uint32", "uint8"),
            (1, 2),
        ),
    ),
    outputs=(
        Output("noisy", "float64: the sum (d,) of records, or the statistic, on the grid, plus noise", "array"),
        Output("mechanism", "discrete_laplace or discrete_gaussian", "value"),
        Output(
            "scale",
            "Laplace scale or Gaussian sigma of the noise: exact rational and number, in the values' unit",
            "value",
        ),
        Output("grid", "what one integer step is worth: exact rational and number, in the values' unit", "value"),
        Output("sensitivity", "{norm, grid_units, value}: what the noise was scaled to, rounding included", "value"),
        Output("sensitivity_source", "enforced (by clipping) or declared (by the caller)", "value"),
        Output("spent", "epsilon or rho of this release, at most what was asked: exact rational and number", "value"),
        Output("accuracy_95", "with probability 95 % the noise on one coordinate is smaller than this", "value"),
        Output("statement", "what this result promises and what it does not", "value"),
        Output("unaccounted", "true: no budget was charged; false: one was", "value"),
    ),
    example=Example(
        params={
            "mechanism": "discrete_laplace",
            "mode": "records",
            "epsilon": "1",
            "clip": {"norm": "linf", "bound": "100"},
            "neighbouring": "add_remove",
            "unaccounted": True,
        },
        inputs={"values": {"data": [12.5, 99.0, 3.25, 140.0, 57.0], "dtype": "float64"}},
    ),
    cost=cost,
    check=check,
    grid=grid,
    batching=Batching(steps=5e5, alike=False),  # each has a key of its own
    randomness="private",
    spend=spend,
    release_version="dp_noise/1",
    variants=(
        Example(
            params={
                "mechanism": "discrete_gaussian",
                "mode": "aggregate",
                "rho": "0.5",
                "sensitivity": {"norm": "l2", "value": "100"},
                "unaccounted": True,
            },
            inputs={"values": {"data": [271.75, 140.0], "dtype": "float64"}},
        ),
        # Records of several values: the norm of each is taken, and the larger ones are scaled down.
        Example(
            params={
                "mechanism": "discrete_gaussian",
                "mode": "records",
                "rho": "0.5",
                "clip": {"norm": "l2", "bound": "100"},
                "neighbouring": "add_remove",
                "unaccounted": True,
            },
            inputs={"values": {"data": [[12.5, 99.0, 3.25], [140.0, 57.0, -8.5]], "dtype": "float64"}},
        ),
    ),
)
