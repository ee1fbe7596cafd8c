"""The parameters of dp_noise: the privacy cost or scale, the query, and the bound on one record's influence."""

from decimal import Decimal
from itertools import pairwise
from math import prod
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from warpdesk.amount import Amount
from warpdesk.models import Neighbouring
from warpdesk_server.kernels.params import EXACT, Params
from warpdesk_server.kernels.spend import BudgetId

Norm = Literal["l1", "l2", "linf"]
Query = Literal["sum", "mean", "histogram", "identity"]

MOST_BINS = 65_536
MOST_EDGES = 4_097  # parameters are stored with the job; more bins need categories instead of edges


class Clip(Params):
    """Every record is scaled down (l1, l2) or cut per coordinate (linf) to at most `bound` in this norm."""

    norm: Norm
    bound: Amount = Field(description="largest norm of a record, a decimal string in the unit of the values")


class Sensitivity(Params):
    """The declared sensitivity: by how much the statistic can differ between neighbouring data sets."""

    norm: Norm
    value: Amount = Field(description="decimal string in the unit of the values")


class Bins(Params):
    """The bins in which records are counted: categories 0 to n - 1, or the intervals between edges."""

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
        """The edges of the bins of a noisy histogram; for categories they lie between the integers."""
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
                "exactly one of budget and unaccounted is needed: name the budget to charge, or set unaccounted to "
                f"true; got {'none' if self.budget is None else 'both'}"
            )
        return self

    @model_validator(mode="after")
    def _has_what_the_query_needs(self) -> Self:
        needed = {"sensitivity"}
        if self.mode == "records":
            needed = {"bins" if self.query == "histogram" else "clip", "neighbouring"}
        elif self.query != "sum":
            raise ValueError(f"mode aggregate does not take query {self.query}: its values are the statistic")
        form = f"mode {self.mode}" + (f" with query {self.query}" if self.query != "sum" else "")
        given = {name for name in ("clip", "bins", "neighbouring", "sensitivity") if getattr(self, name) is not None}
        if given != needed:
            missing, foreign = sorted(needed - given), sorted(given - needed)
            raise ValueError(f"{form} {'needs' if missing else 'does not take'} {' and '.join(missing or foreign)}")
        if self.query == "identity" and self.neighbouring == "add_remove":
            raise ValueError(
                "query identity needs neighbouring replace_one: the answer has one row per record, so its shape tells "
                "how many there are"
            )
        return self


def released(params: DpNoise, shape: tuple[int, ...]) -> int:
    """The number of released numbers with noise of their own, without a mean's count."""
    if params.bins is not None:
        return params.bins.count
    return prod(shape) if params.mode == "aggregate" or params.query == "identity" else prod(shape[1:])


def has_noisy_count(params: DpNoise) -> bool:
    """Whether the release needs a noisy count: a mean, if the number of records is private."""
    return params.query == "mean" and params.neighbouring == "add_remove"
