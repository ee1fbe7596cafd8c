"""The estimate of a basket option's price and error, from sums over paths and counts of dates of exercise."""

from math import sqrt
from typing import Any

from numpy.typing import NDArray

from warpdesk_server.kernels.basket_options.plan import Terms
from warpdesk_server.kernels.basket_options.policy import Policy
from warpdesk_server.kernels.basket_options.spec import BasketOption
from warpdesk_server.kernels.device.reduce import pairwise_sum
from warpdesk_server.kernels.monte_carlo import reliability
from warpdesk_server.kernels.monte_carlo.closed_form import normal_quantile
from warpdesk_server.kernels.monte_carlo.control_variate import Control, Sums, controlled, variance_of

Array = NDArray[Any]

BASIS = {
    4: "1, t, t^2, t^3 of the payment t",
    7: "1, t, t^2, t^3 of the payment t; u, u^2, t u of a price u",
    10: "1, t, t^2, t^3 of the payment t; u, u^2, t u, v, v^2, u v of two prices u, v",
}
SURE = 4.0  # standard errors beyond which a difference of two prices is no chance


def merged(params: BasketOption, sums: Array, counts: Array, terms: Array) -> dict[str, Any]:
    """The outputs of a European option from the arrays of its shards; `terms` has its plan.Terms in each row."""
    return estimate(params, Terms(*terms[0].tolist()), sums, counts)


def estimate(
    params: BasketOption, job: Terms, sums: Array, counts: Array, policy: Policy | None = None
) -> dict[str, Any]:
    """The outputs of basket_option from the sums of chunks (spec.SUMS), the counts of dates and the policy."""
    n = float(params.paths)
    x, y, xx, xy, yy, paid, control_paid, cubes = (float(value) for value in pairwise_sum(sums))
    plain = variance = variance_of(x, xx, n)
    price, control = x / n, None
    if job.controlled:
        average = Control("geometric_average", job.control, n * job.control_pays, int(control_paid))
        price, variance, control = controlled(Sums(n, x, xx, y, yy, xy), average, scale=job.scale)
    total, squares = x - job.weight * y, xx - 2.0 * job.weight * xy + job.weight * yy
    deciding = reliability.deciding_paths(n, total, squares, cubes) if variance > 0.0 else 0
    warnings = _warnings(params, job, plain, variance, int(paid), deciding)
    price, error = price * job.scale, sqrt(variance / n) * job.scale
    american = None
    if policy is not None:
        american, fitted = _american(params, job, counts, policy, price, error)
        warnings += fitted
        if american["exercise_today"]:
            if job.today > price + SURE * error:
                error = 0.0
            else:
                warnings.append(
                    f"Exercise today pays {job.today:.6g}, and waiting is worth {price:.6g} with a standard error of "
                    f"{error:.3g}: which is better is not sure"
                )
            price = job.today
    reach = normal_quantile(0.5 + 0.5 * params.confidence) * error
    return {
        "price": price,
        "standard_error": error,
        "confidence_interval": [price - reach, price + reach],
        "confidence": params.confidence,
        "control_variate": control,
        "american": american,
        "paths": params.paths,
        "paying_paths": int(paid),
        "deciding_paths": deciding,
        "warnings": warnings,
    }


def _american(
    params: BasketOption, job: Terms, counts: Array, policy: Policy, price: float, error: float
) -> tuple[dict[str, Any], list[str]]:
    """What is told of early exercise, and the warning of a policy that fits its own paths better than others."""
    n = float(params.fit_paths)
    x, _, xx = (float(value) for value in pairwise_sum(policy.sums)[:3])
    fitted, fitted_error = x / n * job.scale, sqrt(variance_of(x, xx, n) / n) * job.scale
    h = params.maturity / job.dates
    facts = {
        "policy_paths": params.fit_paths,
        "basis": BASIS[job.functions],
        "in_sample_price": fitted,
        "in_sample_standard_error": fitted_error,
        "payment_today": job.today,
        "exercise_today": job.today > 0.0 and job.today >= price,
        "probability": int(counts[1:].sum()) / params.paths,
        "dates": [
            {
                "time": k * h,
                "probability": int(counts[k]) / params.paths,
                "in_the_money": policy.in_the_money[k - 1] if k < job.dates else None,
            }
            for k in range(1, job.dates + 1)
        ],
    }
    spread = sqrt(error * error + fitted_error * fitted_error)
    if spread == 0.0 or fitted - price <= SURE * spread:
        return facts, []
    return facts, [
        f"On its own {params.fit_paths:,} paths the policy is worth {fitted:.6g}, on others {price:.6g}: it fits their "
        "noise. Take more policy_paths"
    ]


def _warnings(params: BasketOption, job: Terms, plain: float, variance: float, paying: int, deciding: int) -> list[str]:
    """The warnings of monte_carlo, by the asset whose price spreads most."""
    if job.spread == 0.0 or (variance == 0.0 and job.controlled and job.assets == 1):
        return []  # every path is the same, or the control is the option itself
    bounded = params.option == "put" and not job.negative
    needed = 0.0 if bounded else reliability.paths_of_a_lognormal(job.spread)
    return reliability.warnings_of(params.option, params.paths, plain, variance, paying, deciding, job.spread, needed)
