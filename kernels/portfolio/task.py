"""The task optimize: a portfolio as a cone program, which Clarabel solves in one step."""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdesk_server.kernels.operation import release_of
from warpdesk_server.kernels.portfolio.matrices import at_bounds, batch_of_matrices, check_bounds, of_each_asset
from warpdesk_server.kernels.portfolio.optimize import Optimize
from warpdesk_server.kernels.portfolio.sequential.frontier_loops import contributions
from warpdesk_server.kernels.portfolio.spectrum import conditioning, decompose
from warpdesk_server.kernels.problems import refuse
from warpdesk_server.kernels.task import Context

Array = NDArray[Any]

_AT_BOUND = 1e-6  # the library's weights are good to about this
_NEGATIVE = 1e-10  # an eigenvalue below this part of the greatest one is none of a covariance
_STATUS = {"Solved": "solved", "AlmostSolved": "almost_solved"}


@dataclass
class _Program:
    """A cone program: the least x'Px / 2 + q'x with b - Ax in cones. Each block of rows is (rows, limits, cone)."""

    size: int
    linear: Array
    quadratic: Any
    equal: list[tuple[Any, Array]] = field(default_factory=list)
    at_most: list[tuple[Any, Array]] = field(default_factory=list)
    second_order: list[tuple[Any, Array]] = field(default_factory=list)


@dataclass(frozen=True)
class _Risk:
    """A covariance matrix with its eigenvalues, ascending, and for tracking_error a matrix R with R'R equal to it."""

    matrix: Array
    values: Array
    root: Array


def optimize(params: Optimize, context: Context, **inputs: Array) -> dict[str, Any]:
    """The weights of the program that `kernels/portfolio/optimize.py` describes.

    Raises InvalidRequest for a covariance that is none, constraints that contradict each other, and a program that the
    library does not solve.
    """
    import clarabel
    from scipy import sparse

    assets = (inputs["covariance"] if "covariance" in inputs else inputs["scenarios"]).shape[1]
    lower, upper = of_each_asset(inputs.get("lower"), 0.0, assets), of_each_asset(inputs.get("upper"), 1.0, assets)
    check_bounds(lower, upper)
    _check_constraints(params, inputs, lower, upper)
    risk = _risk(params, inputs)
    scale = _scale(params, inputs)
    program = _program(params, inputs, (lower, upper), risk, scale)
    blocks = [*program.equal, *program.at_most, *program.second_order]
    cones = [clarabel.ZeroConeT(sum(len(limits) for _, limits in program.equal))]
    cones.append(clarabel.NonnegativeConeT(sum(len(limits) for _, limits in program.at_most)))
    cones += [clarabel.SecondOrderConeT(len(limits)) for _, limits in program.second_order]
    settings = clarabel.DefaultSettings()
    settings.verbose, settings.max_threads = False, 1
    solver = clarabel.DefaultSolver(
        sparse.triu(program.quadratic, format="csc"),
        program.linear,
        sparse.vstack([rows for rows, _ in blocks], format="csc"),
        np.concatenate([limits for _, limits in blocks]),
        cones,
        settings,
    )
    solution = solver.solve()
    status = str(solution.status)
    if status not in _STATUS:
        raise refuse("/params", f"Clarabel finds no portfolio: {status} after {solution.iterations} iterations")
    context.report(1, 1.0, iterations=solution.iterations)
    weights = np.array(solution.x[:assets])
    return {
        "weights": weights,
        "bounds": at_bounds(weights, lower + _AT_BOUND, upper - _AT_BOUND),
        **_facts(params, inputs, weights, risk),
        "objective": solution.obj_val / scale,
        "gap": abs(solution.obj_val - solution.obj_val_dual) / scale,
        "primal_residual": solution.r_prim,
        "dual_residual": solution.r_dual,
        "iterations": int(solution.iterations),
        "status": _STATUS[status],
        "algorithm": "library",
        "algorithm_reason": f"Clarabel {release_of('clarabel')}",
    }


def _scale(params: Optimize, inputs: dict[str, Array]) -> float:
    """The factor of the objective, which makes the mean variance 1: the library's tolerances are absolute."""
    if params.objective == "variance":
        return len(inputs["covariance"]) / math.fsum(np.diag(inputs["covariance"]))
    square = float(np.square(inputs["scenarios"]).mean())
    return 1.0 / math.sqrt(square) if square > 0.0 else 1.0


def _check_constraints(params: Optimize, inputs: dict[str, Array], lower: Array, upper: Array) -> None:
    """Raise InvalidRequest for what can be seen without the solver to hold for no portfolio."""
    if "group_lower" in inputs and "group_upper" in inputs:
        for group in np.flatnonzero(inputs["group_lower"] > inputs["group_upper"])[:1]:
            least, most = inputs["group_lower"][group], inputs["group_upper"][group]
            raise refuse("/inputs/group_lower", f"group {group}: lower {least:g} is above upper {most:g}")
    if params.least_mean is not None and "means" in inputs:
        weights, left = lower.copy(), 1.0 - math.fsum(lower)
        for asset in np.argsort(-inputs["means"], kind="stable"):
            more = min(left, upper[asset] - lower[asset])
            weights[asset] += more
            left -= more
        greatest = math.fsum(weights * inputs["means"])
        if params.least_mean > greatest + _AT_BOUND * abs(greatest):
            raise refuse(
                "/params/least_mean",
                f"least_mean {params.least_mean:g} is above {greatest:g}, the greatest mean within the bounds",
            )


def _program(
    params: Optimize, inputs: dict[str, Array], bounds: tuple[Array, Array], risk: _Risk | None, scale: float
) -> _Program:
    """The program in the variables w, then |w - previous|, then the loss at the quantile and those beyond it."""
    from scipy import sparse

    assets, moves = len(bounds[0]), "previous" in inputs
    count = len(inputs["scenarios"]) if params.objective == "cvar" else 0
    size = assets * (1 + moves) + (1 + count if count else 0)
    program = _Program(size, np.zeros(size), sparse.csc_matrix((size, size)))
    identity = sparse.identity(assets, format="csc")

    def rows(block: Any, column: int = 0) -> Any:
        """Rows of the constraints, of which a block begins at a column."""
        after = size - column - block.shape[1]
        parts = [sparse.csc_matrix((block.shape[0], column)), block, sparse.csc_matrix((block.shape[0], after))]
        return sparse.hstack(parts, format="csc")

    ones = sparse.csc_matrix(np.ones((1, assets)))
    program.equal.append((rows(ones), np.ones(1)))
    program.at_most += [(rows(identity), bounds[1]), (rows(-identity), -bounds[0])]
    for sign, name in ((1.0, "group_upper"), (-1.0, "group_lower")):
        if name in inputs:
            program.at_most.append((rows(sparse.csc_matrix(sign * inputs["groups"])), sign * inputs[name]))
    if params.least_mean is not None:
        unit = float(np.abs(inputs["means"]).max()) or 1.0
        block = sparse.csc_matrix(-inputs["means"][np.newaxis] / unit)
        program.at_most.append((rows(block), np.array([-params.least_mean / unit])))
    if moves:
        previous = inputs["previous"]
        program.at_most += [
            (rows(identity) + rows(-identity, assets), previous),
            (rows(-identity) + rows(-identity, assets), -previous),
        ]
        if params.turnover is not None:
            program.at_most.append((rows(ones, assets), np.array([params.turnover])))
        if "costs" in inputs:
            program.linear[assets : 2 * assets] = scale * of_each_asset(inputs["costs"], 0.0, assets)
    if params.tracking_error is not None and risk is not None:
        root = risk.root / params.tracking_error
        block = rows(sparse.csc_matrix(np.vstack([np.zeros((1, assets)), -root])))
        program.second_order.append((block, np.concatenate([[1.0], -root @ inputs["benchmark"]])))
    if count:
        quantile = size - count - 1
        program.linear[quantile] = 1.0
        program.linear[quantile + 1 :] = 1.0 / ((1.0 - params.confidence) * count)
        beyond = -sparse.identity(count, format="csc")
        losses = rows(sparse.csc_matrix(-scale * inputs["scenarios"])) + rows(
            sparse.hstack([sparse.csc_matrix(-np.ones((count, 1))), beyond], format="csc"), quantile
        )
        program.at_most += [(losses, np.zeros(count)), (rows(beyond, quantile + 1), np.zeros(count))]
        return program
    program.quadratic = sparse.block_diag([inputs["covariance"], sparse.csc_matrix((size - assets,) * 2)], format="csc")
    program.quadratic *= scale * (params.risk_aversion or 1.0)
    if params.risk_aversion is not None:
        program.linear[:assets] = -scale * inputs["means"]
    return program


def _risk(params: Optimize, inputs: dict[str, Array]) -> _Risk | None:
    """The covariance; raises InvalidRequest for one that is not symmetric, or has an eigenvalue below 0."""
    if "covariance" not in inputs:
        return None
    matrices = batch_of_matrices(inputs["covariance"])
    wanted = matrices.shape[1] if params.tracking_error is not None else 0
    (values,), (vectors,) = decompose(matrices, wanted)
    if values[0] < -_NEGATIVE * values[-1]:
        raise refuse(
            "/inputs/covariance",
            f"its smallest eigenvalue is {values[0]:.3g}, and the greatest {values[-1]:.3g}: a covariance matrix has "
            "none below 0",
        )
    return _Risk(matrices[0], values, np.sqrt(np.maximum(values[::-1][:wanted], 0.0))[:, np.newaxis] * vectors)


def _facts(params: Optimize, inputs: dict[str, Array], weights: Array, risk: _Risk | None) -> dict[str, Any]:
    """What is told of a portfolio by its weights and inputs; null where an input for it was not given."""
    parts, condition = np.empty(0 if risk is None else len(weights)), math.inf
    if risk is not None:
        contributions(risk.matrix, weights, weights, parts)
        condition = float(conditioning(risk.values[np.newaxis])[1][0])

    def deviation(of: Array) -> float | None:
        return None if risk is None else math.sqrt(max(0.0, float(of @ risk.matrix @ of)))

    return {
        "risk_contributions": parts,
        "mean": float(inputs["means"] @ weights) if "means" in inputs else None,
        "risk": deviation(weights),
        "cvar": _cvar(-inputs["scenarios"] @ weights, params.confidence) if "scenarios" in inputs else None,
        "turnover": float(np.abs(weights - inputs["previous"]).sum()) if "previous" in inputs else None,
        "tracking_error": deviation(weights - inputs["benchmark"]) if "benchmark" in inputs else None,
        "smallest_eigenvalue": None if risk is None else float(risk.values[0]),
        "condition_number": condition if math.isfinite(condition) else None,
    }


def _cvar(losses: Array, confidence: float) -> float:
    """The mean of the worst 1 - confidence of the losses, of which one may count in part."""
    worst = np.sort(losses)[::-1]
    wanted = (1.0 - confidence) * len(worst)
    shares = np.clip(wanted - np.arange(len(worst)), 0.0, 1.0)
    return float(shares @ worst / wanted)
