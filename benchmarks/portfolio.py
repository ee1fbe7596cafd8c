"""Benchmark cases of portfolios beside NumPy, Riskfolio-Lib, PyPortfolioOpt and Clarabel.

Returns share a factor, as those of shares do.
"""

from typing import Any

import numpy as np

from warpdesk_server.benchmarks.cases import Call, Case, Goal, Inputs, Peer, Sizes, measured, module, numpy_peer, random


def returns(assets: int, time: int) -> Any:
    generator = random()
    betas, sizes = generator.uniform(0.4, 1.6, assets), generator.uniform(0.008, 0.025, assets)
    common = generator.normal(0, 0.01, time)
    return betas[:, None] * common + sizes[:, None] * generator.normal(size=(assets, time)) + 3e-4


def matrix(assets: int) -> Any:
    """A covariance matrix of returns per year, from three times as many as there are assets."""
    return 252.0 * np.cov(returns(assets, 3 * assets))


def _numpy_covariance(inputs: Inputs) -> Call:
    return lambda: np.cov(inputs["returns"])


def _pypfopt_shrinkage(inputs: Inputs) -> Call:
    shrinkage = module("pypfopt.risk_models").CovarianceShrinkage
    table = module("pandas").DataFrame(inputs["returns"].T)
    return lambda: shrinkage(table, returns_data=True, frequency=1).ledoit_wolf("constant_correlation")


def _riskfolio_parity(inputs: Inputs) -> Call:
    riskfolio, table = module("riskfolio"), module("pandas").DataFrame
    covariance = inputs["covariance"]
    names = [str(asset) for asset in range(len(covariance))]
    portfolio = riskfolio.Portfolio(returns=table(np.zeros((2, len(covariance))), columns=names))
    portfolio.mu = table(np.zeros((1, len(covariance))), columns=names)
    portfolio.cov = table(covariance, index=names, columns=names)
    return lambda: portfolio.rp_optimization(model="Classic", rm="MV", hist=True)


def _cases(sizes: Sizes, assets: int, time: int, few: int) -> list[Case]:
    shape = f"{measured(assets)} x {measured(time)}"
    products = assets**2 * time
    return [
        Case(
            "covariance",
            f"sample, {shape}",
            {},
            lambda: {"returns": returns(assets, time)},
            sizes,
            (numpy_peer(_numpy_covariance, "NumPy cov", threads="all", note="half the products by a BLAS"),)
            if sizes != "large"
            else (),
            moved=8 * (assets * time + 2 * assets**2),
            multiplied=products,
            repeats=5,
        ),
        Case(
            "covariance",
            f"Ledoit-Wolf, {shape}",
            {"method": "ledoit_wolf"},
            lambda: {"returns": returns(assets, time)},
            sizes,
            (Peer("PyPortfolioOpt", "pyportfolioopt", _pypfopt_shrinkage, threads="all"),) if sizes != "large" else (),
            moved=8 * (assets * time + 2 * assets**2),
            multiplied=products,
            repeats=5,
        ),
        Case(
            "risk_parity",
            f"{few:,} assets",
            {},
            lambda: {"covariance": matrix(few)},
            sizes,
            (Peer("Riskfolio-Lib", "riskfolio-lib", _riskfolio_parity),) if sizes != "large" else (),
            Goal({"Riskfolio-Lib": 20.0}) if sizes == "full" else Goal(),
            moved=8 * few**2,
            repeats=5,
        ),
    ]


CASES: tuple[Case, ...] = (
    *_cases("small", 20, 60, 20),
    *_cases("full", 500, 1_250, 500),
    *_cases("large", 4_000, 2_520, 500),
)
