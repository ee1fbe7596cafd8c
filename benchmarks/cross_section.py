"""Benchmark cases of the operations across assets beside pandas and NumPy.

The bars of a table are its columns, as in the service, so that no peer turns the table first.
"""

from typing import Any

import numpy as np

from warpdesk_server.benchmarks.cases import Call, Case, Inputs, Peer, Sizes, measured, module, numpy_peer, random

GROUPS = 70  # about as many as there are industries
FACTORS = 10


def _inputs(assets: int, time: int, groups: bool = False, factors: int = 0) -> Inputs:
    generator = random()
    found: Inputs = {"values": generator.normal(0, 0.02, (assets, time))}
    if groups:
        found["groups"] = generator.integers(0, GROUPS, assets)
    if factors:
        found["factors"] = generator.normal(size=(factors, assets))
    return found


def _pandas_rank(inputs: Inputs) -> Call:
    table = module("pandas").DataFrame(inputs["values"])
    return lambda: table.rank(axis=0)


def _pandas_demean(inputs: Inputs) -> Call:
    table, labels = module("pandas").DataFrame(inputs["values"]), inputs["groups"]
    return lambda: table - table.groupby(labels).transform("mean")


def _pandas_zscore(inputs: Inputs) -> Call:
    table = module("pandas").DataFrame(inputs["values"])
    return lambda: (table - table.mean()) / table.std(ddof=0)


def _numpy_zscore(inputs: Inputs) -> Call:
    values = inputs["values"]
    return lambda: (values - values.mean(axis=0)) / values.std(axis=0)


def _numpy_winsorise(inputs: Inputs) -> Call:
    values = inputs["values"]
    return lambda: np.clip(values, *np.quantile(values, [0.01, 0.99], axis=0))


def _numpy_least_squares(inputs: Inputs) -> Call:
    """All bars have the same exposures here, but a table with gaps has others at each."""
    values, design = inputs["values"], np.column_stack([np.ones(len(inputs["values"])), inputs["factors"].T])

    def call() -> object:
        out = np.empty_like(values)
        for bar in range(values.shape[1]):
            numbers = values[:, bar]
            out[:, bar] = numbers - design @ np.linalg.lstsq(design, numbers, rcond=None)[0]
        return out

    return call


def _cases(sizes: Sizes, assets: int, time: int) -> list[Case]:
    shape = f"{measured(assets)} x {measured(time)}"

    def case(operation: str, label: str, *peers: Peer, moved: int = 16, **inputs: Any) -> Case:
        return Case(
            operation,
            f"{label}{shape}",
            {},
            lambda: _inputs(assets, time, **inputs),
            sizes,
            peers if sizes != "large" else (),
            moved=moved * assets * time,
            repeats=5,
        )

    return [
        case("cross_rank", "", Peer("pandas", "pandas", _pandas_rank)),
        case("cross_zscore", "", Peer("pandas", "pandas", _pandas_zscore), numpy_peer(_numpy_zscore)),
        case("winsorise", "", numpy_peer(_numpy_winsorise)),
        case("neutralise", f"{GROUPS} groups, ", Peer("pandas", "pandas", _pandas_demean), groups=True),
        case(
            "neutralise",
            f"{FACTORS} factors, ",
            numpy_peer(_numpy_least_squares, "NumPy lstsq", threads="all", note="a call for each bar"),
            factors=FACTORS,
        ),
    ]


CASES: tuple[Case, ...] = (*_cases("small", 50, 60), *_cases("full", 500, 2_520), *_cases("large", 5_000, 2_520))
