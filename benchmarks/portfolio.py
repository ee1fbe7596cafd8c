"""Benchmark cases of portfolios beside NumPy, Riskfolio-Lib, PyPortfolioOpt and Clarabel.

Returns share a factor, as those of shares do.
"""

from typing import Any

import numpy as np

from warpdesk_server.benchmarks.cases import Call, Case, Goal, Inputs, Peer, Sizes, measured, module, numpy_peer, random
from warpdesk_server.kernels.portfolio.spec import MOST_EIGENVALUES


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


def _numpy_components(inputs: Inputs) -> Call:
    return lambda: np.linalg.eigh(np.cov(inputs["returns"]))


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


def _frontier(assets: int) -> Inputs:
    means = random(assets).normal(0.08, 0.05, assets)
    return {"means": means, "covariance": matrix(assets), "lower": np.array([-0.1]), "upper": np.array([0.1])}


def _clarabel_point(inputs: Inputs) -> Call:
    """One point of the frontier, scaled to a mean variance of 1."""
    clarabel, sparse = module("clarabel"), module("scipy.sparse")
    covariance, means = inputs["covariance"], inputs["means"]
    assets = len(means)
    scale = assets / np.trace(covariance)
    quadratic = sparse.csc_matrix(np.triu(covariance * scale))
    identity = sparse.identity(assets)
    constraints = sparse.csc_matrix(sparse.vstack([np.ones((1, assets)), identity, -identity]))
    limits = np.concatenate([[1.0], np.full(assets, 0.1), np.full(assets, 0.1)])
    cones = [clarabel.ZeroConeT(1), clarabel.NonnegativeConeT(2 * assets)]
    settings = clarabel.DefaultSettings()
    settings.verbose = False

    def call() -> object:
        tolerance = 0.1 * scale
        return clarabel.DefaultSolver(quadratic, -tolerance * means, constraints, limits, cones, settings).solve()

    return call


def _pypfopt_hrp(inputs: Inputs) -> Call:
    module_of, table = module("pypfopt"), module("pandas").DataFrame(inputs["covariance"])
    return lambda: module_of.HRPOpt(cov_matrix=table).optimize()


def _covariances(sizes: Sizes, assets: int, time: int) -> list[Case]:
    def case(label: str, *peers: Peer, **params: Any) -> Case:
        return Case(
            "covariance",
            f"{label}, {measured(assets)} x {measured(time)}",
            params,
            lambda: {"returns": returns(assets, time)},
            sizes,
            peers if sizes != "large" else (),
            moved=8 * (assets * time + 2 * assets**2),
            multiplied=assets**2 * time,
            repeats=5,
        )

    shrinkage = Peer("PyPortfolioOpt", "pyportfolioopt", _pypfopt_shrinkage, threads="all")
    half = "half of the products, as ours"
    components = numpy_peer(_numpy_components, "NumPy cov, eigh", threads="all", note="all components, by LAPACK")
    return [
        case("sample", numpy_peer(_numpy_covariance, "NumPy cov", threads="all", note=half)),
        case("Ledoit-Wolf", shrinkage, method="ledoit_wolf"),
        *([case("5 components", components, components=5)] if assets <= MOST_EIGENVALUES else []),
    ]


def _weights(sizes: Sizes, assets: int, corners: int) -> list[Case]:
    """`corners` is how many the frontier has: the peer computes one point of it."""

    def case(operation: str, peer: Peer, least: float, make: Any = None, **params: Any) -> Case:
        return Case(
            operation,
            f"{assets} assets",
            params,
            make or (lambda: {"covariance": matrix(assets)}),
            sizes,
            (peer,),
            Goal({peer.name: least}) if sizes == "full" else Goal(),
            moved=8 * assets**2,
            repeats=5,
        )

    points = Peer("Clarabel", "clarabel", _clarabel_point, per=float(corners), note=f"a point, times {corners} corners")
    return [
        case("frontier", points, 100.0 if assets > 100 else 50.0, lambda: _frontier(assets)),
        case("risk_parity", Peer("Riskfolio-Lib", "riskfolio-lib", _riskfolio_parity), 20.0),
        case("hrp", Peer("PyPortfolioOpt", "pyportfolioopt", _pypfopt_hrp), 5.0, distance="of_correlations"),
    ]


CASES: tuple[Case, ...] = (
    *_covariances("small", 20, 60),
    *_weights("small", 20, 16),
    *_covariances("full", 500, 1_250),
    *_weights("full", 100, 109),
    *_weights("full", 500, 523),
    *_covariances("large", 4_000, 2_520),
)
