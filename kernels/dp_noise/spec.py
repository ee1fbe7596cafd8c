"""The specification of dp_noise: a release with differential-privacy noise on an integer grid, and its refusals."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.batching import Batching
from warpdesk_server.kernels.dp_noise.params import DpNoise, has_noisy_count, released
from warpdesk_server.kernels.operation import Cost, Example, Grid, Input, Operation, Output
from warpdesk_server.kernels.problems import refuse
from warpdesk_server.kernels.spend import Spend

# Values in a chunk on a device: whole records, and elements that noise is added to. It changes no byte.
CHUNK = 1 << 22
DRAW = 16.0  # to draw noise for an element takes about as long as to round so many values to the grid
MOST_PARTS = 16  # partial sums on the CPU: a limit, so that a job's memory does not depend on the machine's cores


def check(params: DpNoise, inputs: Mapping[str, ArrayInfo]) -> None:
    """Check the inputs of a noisy release. Raises InvalidRequest if no integer grid is safe for amounts and shape."""
    # Not at the top of the module: mpmath, which plans need and no other operation does, is slow to import.
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
    """The budget charge of a noisy release, at least the cost of its noise; None if it names no budget."""
    if params.budget is None:
        return None
    from warpdesk_server.kernels.dp_noise.plan import charged

    return charged(params, inputs["values"].shape)


def sizes(params: DpNoise, inputs: Mapping[str, ArrayInfo]) -> dict[str, tuple[int, ...]]:
    shape = inputs["values"].shape
    whole = params.mode == "aggregate" or params.query == "identity"
    return {"...": shape if whole else (released(params, shape),)}


def cost(params: DpNoise, inputs: Mapping[str, ArrayInfo]) -> Cost:
    """The cost of a noisy release: values as float64 and a byte each to check them, the integers, the noisy values.

    For sums and counts, each part also needs a sum and a record, or the counts.
    """
    values = inputs["values"]
    taken, width = values.nbytes + 9 * values.size, released(params, values.shape)
    if params.mode == "aggregate" or params.query == "identity":
        return Cost(bytes=taken + 24 * width, work=DRAW * width)
    parts = min(MOST_PARTS, values.shape[0])
    return Cost(bytes=taken + (32 + 16 * parts) * width, work=float(values.size) + DRAW * width)


@dataclass(frozen=True)
class Chunks:
    """The cut of a release: `summing` chunks of `rows` records, `noising` chunks of `elements` numbers, a count."""

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
    """The grid of a noisy release: records with norms, or numbers; besides, sums, counts with edges, or the key."""
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
    compile_seconds=3,
    summary="Release a sum, mean or histogram of records or a statistic, with exact discrete Laplace or Gaussian noise",
    package="warpdesk_server.kernels.dp_noise",
    params=DpNoise,
    inputs=(
        Input(
            "values",
            "records: (n,) or (n, d), one row per person; aggregate: the statistic, (d,) or (n, d)",
            ("float64", "float32", "int64", "int32", "uint32", "uint8"),
            (1, 2),
            axes=("record", "record value"),
        ),
    ),
    outputs=(
        Output(
            "noisy",
            "float64: sum or mean (d,), counts (bins,), or records or statistic in the values' shape, with noise",
            axes=("...",),
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
    sizes=sizes,
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
