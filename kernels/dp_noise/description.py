"""The description of a noisy release: scale, grid, sensitivity, privacy cost, accuracy and a statement in words."""

from decimal import ROUND_CEILING, ROUND_FLOOR
from fractions import Fraction
from typing import Any

from warpdesk_server.kernels.dp_noise.params import DpNoise
from warpdesk_server.kernels.dp_noise.plan import RESOLUTION, Plan, accuracy_95, approximate, spent
from warpdesk_server.kernels.dp_noise.rational import at_least, digits, exact, root_up


def describe(params: DpNoise, made: Plan, noisy_count: float | None = None) -> dict[str, Any]:
    """All outputs of dp_noise except the noisy numbers; `noisy_count` is given if the plan has one."""
    laplace = params.mechanism == "discrete_laplace"
    units = root_up(made.sensitivity_squared)
    amounts = {"epsilon" if laplace else "rho": at_least(spent(params, made))}
    pair = approximate(params, made)
    if pair is not None:
        amounts = {"epsilon": at_least(pair[0]), "delta": at_least(pair[1]), **amounts}
    return {
        "mechanism": params.mechanism,
        "scale": exact(made.scale),
        "grid": exact(made.grid),
        "sensitivity": {"norm": "l1" if laplace else "l2", "grid_units": units, "value": float(units * made.grid)},
        "sensitivity_source": "enforced" if params.mode == "records" else "declared",
        "neighbouring": params.neighbouring,
        "spent": amounts,
        "split": _split(params, made, noisy_count),
        "accuracy_95": accuracy_95(params, made, noisy_count),
        "statement": _statement(params, made, amounts),
        "unaccounted": params.unaccounted is True,
    }


def _split(params: DpNoise, made: Plan, noisy_count: float | None) -> dict[str, Any] | None:
    if made.count is None:
        return None
    name = "epsilon" if params.mechanism == "discrete_laplace" else "rho"
    counted = spent(params, made.count)
    return {
        "sum": {name: at_least(spent(params, made) - counted), "scale": exact(made.scale), "grid": exact(made.grid)},
        "count": {
            name: at_least(counted),
            "scale": exact(made.count.scale),
            "grid": exact(made.count.grid),
            "noisy": noisy_count,
        },
    }


_WHAT = {
    "sum": "The sum of clipped records is",
    "mean": "The mean of clipped records is",
    "histogram": "The histogram of records is",
    "identity": "The list of clipped records is",
}


def _statement(params: DpNoise, made: Plan, amounts: dict[str, dict[str, Any]]) -> str:
    kind = "Laplace" if params.mechanism == "discrete_laplace" else "Gaussian"
    accounted = (
        "Unaccounted: no budget was charged, and every further release about the same people adds to what is learnt."
        if params.budget is None
        else "It was charged to its budget once; what is released outside that budget adds to what is learnt."
    )
    units = root_up(made.sensitivity_squared)
    if units < RESOLUTION:
        accounted = f"The grid is coarse: the sensitivity is {units} steps of it. {accounted}"
    if params.mode == "aggregate":
        return (
            f"Discrete {kind} noise at scale {digits(made.scale, ROUND_FLOOR)} was added to each of {made.width} "
            "coordinates. The sensitivity was declared by the caller and nothing here checks it; what the noise "
            f"protects depends on it. {accounted}"
        )
    change = "adding or removing one record" if params.neighbouring == "add_remove" else "replacing one record"
    words = [
        f"{name} = {digits(Fraction(amount['exact']), ROUND_CEILING)}"
        for name, amount in amounts.items()
        if name != "rho" or len(amounts) == 1
    ]
    notion = {1: "epsilon-differentially private", 2: "(epsilon, delta)-differentially private"}[len(words)]
    if "rho" in amounts and len(amounts) == 1:
        notion = "rho-zero-concentrated differentially private"
    parted = ""
    if made.count is not None:
        parted = (
            f" in the noisy sum, divided by a noisy count at scale {digits(made.count.scale, ROUND_FLOOR)}, each of "
            "which spent one half"
        )
    return (
        f"{_WHAT[params.query]} {notion} with {' and '.join(words)} for {change}: discrete {kind} noise at scale "
        f"{digits(made.scale, ROUND_FLOOR)}{parted}. This protects people from readers of the answer, not from this "
        f"service, which sees the records, and not a person who is in several records. {accounted}"
    )
