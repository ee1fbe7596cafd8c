"""Differential-privacy noise on integers of a grid: amounts are decimal strings, and what is unsafe is refused."""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from math import prod
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from warpdesk_server.kernels.amount import Amount
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.batching import Batching
from warpdesk_server.kernels.operation import Cost, Example, Grid, Input, Operation, Output
from warpdesk_server.kernels.params import EXACT, Params
from warpdesk_server.kernels.problems import refuse
from warpdesk_server.kernels.spend import BudgetId, Neighbouring, Spend

Norm = Literal["l1", "l2", "linf"]
Query = Literal["sum", "mean", "histogram", "identity"]

# Values in a chunk on a device: whole records, and elements that noise is added to. It changes no byte.
CHUNK = 1 << 22
DRAW = 16.0  # drawing noise for an element takes about as long as bringing so many values to the grid
MOST_BINS = 65_536
MOST_EDGES = 4_097  # parameters are kept with the job: what has more bins is counted in categories
MOST_PARTS = 16  # sums the CPU keeps side by side, so that a job's memory does not depend on the machine's cores


class Clip(Params):
    """Every record is scaled down (l1, l2) or cut per coordinate (linf) to at most `bound` in this norm."""

    norm: Norm
    bound: Amount = Field(description="largest norm of a record, a decimal string in the unit of the values")


class Sensitivity(Params):
    """By how much the statistic can differ between neighbouring data sets, as the caller declares it."""

    norm: Norm
    value: Amount = Field(description="decimal string in the unit of the values")


class Bins(Params):
    """What records are counted in: categories 0 to n - 1, or the intervals between edges."""

    categories: int | None = Field(
        None, ge=1, le=MOST_BINS, description="how many: records are integers, and others than 0 to n - 1 not counted"
    )
    edges: tuple[float, ...] | None = Field(
        None,
        min_length=2,
        max_length=MOST_EDGES,
        description="strictly increasing: a bin holds its left edge, the last its right one too, as numpy.histogram's",
    )

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if (self.categories is None) == (self.edges is None):
            given = "none" if self.categories is None else "both"
            raise ValueError(f"bins should have exactly one of categories and edges, got {given}")
        for at, (left, right) in enumerate(pairwise(self.edges or ())):
            if not left < right:
                raise ValueError(f"edges should increase strictly, but edge {at + 1}, {right}, comes after {left}")
        return self

    @property
    def count(self) -> int:
        return self.categories or len(self.edges or ()) - 1

    def boundaries(self) -> tuple[float, ...]:
        """The edges, which lie between the integers where categories are counted."""
        return self.edges or tuple(at - 0.5 for at in range(self.count + 1))


class DpNoise(Params):
    mechanism: Literal["discrete_laplace", "discrete_gaussian"] = Field(
        description="discrete_laplace takes epsilon or scale; discrete_gaussian takes epsilon and delta, rho or scale"
    )
    mode: Literal["records", "aggregate"] = Field(
        description="records: one row per person, clipped and queried here; aggregate: the values are the statistic"
    )
    epsilon: Amount | None = Field(None, description="budget of pure DP, or with delta of approximate DP, as a string")
    delta: Amount | None = Field(
        None, description="discrete_gaussian: beside epsilon; or beside scale, so that epsilon is what is charged"
    )
    rho: Amount | None = Field(None, description="zero-concentrated-DP budget, a decimal string")
    scale: Amount | None = Field(
        None, description="Laplace scale or Gaussian sigma in the unit of the values, a decimal string"
    )
    query: Query = Field(
        "sum",
        description="what is computed of records; identity is each of them by itself, histogram how many fall in a bin",
    )
    clip: Clip | None = Field(None, description="records, but for histogram: the norm that bounds one's influence")
    bins: Bins | None = Field(None, description="histogram only: what is counted")
    neighbouring: Neighbouring | None = Field(
        None, description="records only: replacing a record has twice the sensitivity of adding or removing one"
    )
    sensitivity: Sensitivity | None = Field(None, description="aggregate only: declared, and nothing checks it")
    budget: BudgetId | None = Field(None, description="the budget that is charged, once for each answer")
    unaccounted: Annotated[Literal[True], EXACT] | None = Field(
        None, description="true: no budget is charged, and whoever repeats the request learns more each time"
    )

    @model_validator(mode="after")
    def _is_calibrated_once(self) -> Self:
        given = [name for name in ("epsilon", "rho", "scale") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"exactly one of epsilon, rho and scale is needed, got {', '.join(given) or 'none'}")
        if self.mechanism == "discrete_laplace":
            if given[0] == "rho" or self.delta is not None:
                foreign = "rho" if given[0] == "rho" else "delta"
                raise ValueError(f"discrete_laplace does not take {foreign}: it takes epsilon or scale")
        elif given[0] == "epsilon" and self.delta is None:
            raise ValueError("discrete_gaussian takes epsilon with a delta: its noise has no pure epsilon")
        elif given[0] == "rho" and self.delta is not None:
            raise ValueError("rho is taken without a delta: epsilon and delta, rho, or scale, which may have a delta")
        if self.delta is not None and Decimal(self.delta) >= 1:
            raise ValueError(f"delta {self.delta!r} is not below one")
        return self

    @model_validator(mode="after")
    def _is_charged_once(self) -> Self:
        if (self.budget is None) == (self.unaccounted is None):
            raise ValueError(
                "exactly one of budget and unaccounted is needed: a budget that is charged, or true where none is, "
                f"got {'none' if self.budget is None else 'both'}"
            )
        return self

    @model_validator(mode="after")
    def _has_what_the_query_needs(self) -> Self:
        needed = {"sensitivity"}
        if self.mode == "records":
            needed = {"bins" if self.query == "histogram" else "clip", "neighbouring"}
        elif self.query != "sum":
            raise ValueError(f"mode aggregate does not take query {self.query}: its values are the statistic")
        asked = f"mode {self.mode}" + (f" with query {self.query}" if self.query != "sum" else "")
        given = {name for name in ("clip", "bins", "neighbouring", "sensitivity") if getattr(self, name) is not None}
        if given != needed:
            missing, foreign = sorted(needed - given), sorted(given - needed)
            raise ValueError(f"{asked} {'needs' if missing else 'does not take'} {' and '.join(missing or foreign)}")
        if self.query == "identity" and self.neighbouring == "add_remove":
            raise ValueError(
                "query identity needs neighbouring replace_one: the answer has one row per record, so its shape tells "
                "how many there are"
            )
        return self


def check(params: DpNoise, inputs: Mapping[str, ArrayInfo]) -> None:
    """Raise InvalidRequest where no safe integer grid exists for these amounts and this shape."""
    from warpdesk_server.kernels.dp_noise.plan import plan

    values = inputs["values"]
    if params.bins is not None:
        if values.ndim != 1:
            raise refuse(
                "/inputs/values", f"a histogram takes one value a record, shape (n,), got {list(values.shape)}"
            )
        if params.bins.categories is not None and values.dtype in ("float64", "float32"):
            raise refuse("/inputs/values", f"categories are integers, and the values are {values.dtype}: give edges")
    plan(params, values.shape)


def spend(params: DpNoise, inputs: Mapping[str, ArrayInfo]) -> Spend | None:
    """Return what the release charges, at least what its noise costs; None where no budget is named."""
    if params.budget is None:
        return None
    from warpdesk_server.kernels.dp_noise.plan import charged

    return charged(params, inputs["values"].shape)


def released(params: DpNoise, shape: tuple[int, ...]) -> int:
    """How many numbers have noise of their own, a mean's count left aside."""
    if params.bins is not None:
        return params.bins.count
    return prod(shape) if params.mode == "aggregate" or params.query == "identity" else prod(shape[1:])


def has_noisy_count(params: DpNoise) -> bool:
    """Whether how many records there are is private, and a mean needs it."""
    return params.query == "mean" and params.neighbouring == "add_remove"


def cost(params: DpNoise, inputs: Mapping[str, ArrayInfo]) -> Cost:
    """The values, their float64 and a byte each to see that they are finite; the integers and the noisy values.

    What is summed or counted also needs, in every part, a sum and a record, or the counts.
    """
    values = inputs["values"]
    taken, width = values.nbytes + 9 * values.size, released(params, values.shape)
    if params.mode == "aggregate" or params.query == "identity":
        return Cost(bytes=taken + 24 * width, work=DRAW * width)
    parts = min(MOST_PARTS, values.shape[0])
    return Cost(bytes=taken + (32 + 16 * parts) * width, work=float(values.size) + DRAW * width)


@dataclass(frozen=True)
class Chunks:
    """The cut of a job: `summing` chunks of `rows` records, `noising` chunks of `elements` numbers, then a count's."""

    rows: int
    summing: int
    noising: int
    elements: int
    counting: int = 0

    @property
    def all(self) -> int:
        return self.summing + self.noising + self.counting


def cut(params: DpNoise, shape: tuple[int, ...]) -> Chunks:
    width = released(params, shape)
    if params.mode == "aggregate":
        return Chunks(0, 0, -(-width // CHUNK), CHUNK)
    rows = max(1, CHUNK // prod(shape[1:]))
    parts = -(-shape[0] // rows)
    if params.query == "identity":
        return Chunks(rows, 0, parts, rows * prod(shape[1:]))
    return Chunks(rows, parts, -(-width // CHUNK), CHUNK, int(has_noisy_count(params)))


def grid(params: DpNoise, inputs: Mapping[str, ArrayInfo]) -> Grid:
    """Records of a chunk with their norms, or numbers; beside them sums or counts with edges, or the key and a flag."""
    shape = inputs["values"].shape
    chunks, width = cut(params, shape), released(params, shape)
    rows, of_norm = min(chunks.rows, shape[0]), 8
    if params.clip is None or params.clip.norm == "linf":
        of_norm = 0
    each, fixed = 8 * min(width, chunks.elements), 36
    if params.query == "identity":
        each += rows * of_norm
    if chunks.summing:
        each = max(each, rows * (8 * prod(shape[1:]) + of_norm))
        fixed = max(fixed, 8 * width if params.bins is None else 16 * width + 8)
    return Grid(chunks.all, each, fixed)


OPERATION = Operation(
    name="dp_noise",
    summary="Release a sum, mean or histogram of records or a statistic, with exact discrete Laplace or Gaussian noise",
    package="warpdesk_server.kernels.dp_noise",
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
        Output(
            "noisy",
            "float64: sum or mean (d,), counts (bins,), or records or statistic in the values' shape, with noise",
            "array",
        ),
        Output("mechanism", "discrete_laplace or discrete_gaussian", "value"),
        Output(
            "scale",
            "Laplace scale or Gaussian sigma of the noise, of a mean that in its sum: exact rational and number",
            "value",
        ),
        Output("grid", "what one integer step of those numbers is worth: exact rational and number", "value"),
        Output("sensitivity", "{norm, grid_units, value}: what the noise was scaled to, rounding included", "value"),
        Output("sensitivity_source", "enforced (by clipping or counting) or declared (by the caller)", "value"),
        Output("neighbouring", "add_remove or replace_one; null where the caller declared the sensitivity", "value"),
        Output(
            "spent",
            "epsilon, rho, or epsilon, delta and rho of this release, at most what was asked: rationals and numbers",
            "value",
        ),
        Output(
            "split",
            "of a mean under add_remove {sum, count}: what each spent, scale and grid, and the noisy count; else null",
            "value",
        ),
        Output(
            "accuracy_95",
            "with probability 95 % the noise moved one number by less than this; clipping is not in it",
            "value",
        ),
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
        Example(
            params={
                "mechanism": "discrete_gaussian",
                "mode": "records",
                "query": "identity",
                "rho": "0.5",
                "clip": {"norm": "l2", "bound": "100"},
                "neighbouring": "replace_one",
                "unaccounted": True,
            },
            inputs={"values": {"data": [[12.5, 99.0, 3.25], [140.0, 57.0, -8.5]], "dtype": "float64"}},
        ),
        Example(
            params={
                "mechanism": "discrete_laplace",
                "mode": "records",
                "query": "histogram",
                "epsilon": "1",
                "bins": {"edges": [0.0, 50.0, 100.0]},
                "neighbouring": "add_remove",
                "unaccounted": True,
            },
            inputs={"values": {"data": [12.5, 99.0, 3.25, 140.0, 57.0], "dtype": "float64"}},
        ),
    ),
)
