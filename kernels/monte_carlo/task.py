"""The task monte_carlo_until: it simulates a unit of paths in each step, and ends where the error is small enough."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdesk_server.kernels.monte_carlo import cpu, gpu, spec, until
from warpdesk_server.kernels.monte_carlo.estimate import estimate
from warpdesk_server.kernels.monte_carlo.spec import BINS
from warpdesk_server.kernels.monte_carlo.until import MonteCarloUntilParams
from warpdesk_server.kernels.task import Context


def monte_carlo_until(params: MonteCarloUntilParams, context: Context, *, seed: int) -> dict[str, Any]:
    """The outputs of monte_carlo with this seed for the paths that were simulated, to the byte, and `reached`."""
    unit = until.unit(params)
    sums = np.empty((-(-params.paths // unit), spec.columns(params)))
    counts, done = np.zeros(BINS, np.int64), 0
    if context.state is not None:
        counts, done = context.state["counts"], len(context.state["sums"])
        sums[:done] = context.state["sums"]
    outputs = _outputs(params, sums[:done], counts, unit) if done else None
    while outputs is None or not (_is_enough(params, outputs) or outputs["paths"] == params.paths):
        first, end = done * unit, min((done + 1) * unit, params.paths)
        found = _simulated(params, first, end, unit, seed, context)
        sums[done], counts, done = found["sums"][0], counts + found["counts"], done + 1
        outputs = _outputs(params, sums[:done], counts, unit)
        error, wanted = outputs["standard_error"], params.standard_error
        part = (wanted / error) ** 2 if error > wanted else 1.0  # of the paths that it takes, as things look
        part = max(part if not outputs["warnings"] else 0.0, end / params.paths)
        context.report(done, min(part, 1.0), price=outputs["price"], standard_error=error, paths=end)
        context.checkpoint(done, lambda sums=sums[:done], counts=counts: {"sums": sums, "counts": counts})  # type: ignore[misc]
    return {**outputs, "reached": _is_enough(params, outputs)}


def _simulated(
    params: MonteCarloUntilParams, first: int, end: int, unit: int, seed: int, context: Context
) -> dict[str, NDArray[Any]]:
    if context.device is None:
        return cpu.simulate(params, first, end, unit, seed=seed)
    return gpu.simulate(params, first, end, unit, seed=seed, device=context.device)


def _outputs(
    params: MonteCarloUntilParams, sums: NDArray[np.float64], counts: NDArray[np.int64], unit: int
) -> dict[str, Any]:
    """The outputs of monte_carlo for the paths that were simulated."""
    return estimate(params.model_copy(update={"paths": min(len(sums) * unit, params.paths)}), sums, counts)


def _is_enough(params: MonteCarloUntilParams, outputs: dict[str, Any]) -> bool:
    return (
        outputs["paths"] >= min(until.FEWEST, params.paths)
        and outputs["standard_error"] <= params.standard_error
        and not outputs["warnings"]
    )
