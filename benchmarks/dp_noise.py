"""What exact noise costs beside OpenDP, which is exact too, and beside NumPy's noise, which is not private."""

from typing import Any

import numpy as np

from benchmarks.cases import Call, Case, Goal, Inputs, Peer, Sizes, measured, module, numpy_peer, random

_SCALE = 2.0
_OPENDP_COUNT = 2_000  # it takes tens of microseconds a value


def _opendp(kind: str) -> Any:
    def call(inputs: Inputs) -> Call:
        opendp = module("opendp.prelude")
        opendp.enable_features("contrib")
        space = opendp.vector_domain(opendp.atom_domain(T=float, nan=False))
        if kind == "Laplace":
            release = opendp.m.make_laplace(space, opendp.l1_distance(T=float), scale=_SCALE)
        else:
            release = opendp.m.make_gaussian(space, opendp.l2_distance(T=float), scale=_SCALE)
        few = inputs["values"][:_OPENDP_COUNT].tolist()
        return lambda: release(few)

    return call


def _numpy(draw: Any) -> Any:
    return lambda inputs: lambda: inputs["values"] + draw(inputs["values"].size)


def _sum(inputs: Inputs) -> Call:
    generator, records = random(2), inputs["values"]

    def run() -> object:
        norms = np.sqrt((records**2).sum(axis=1, keepdims=True))
        clipped = records * np.minimum(1.0, 300.0 / norms)
        return clipped.sum(axis=0) + generator.normal(0, _SCALE, records.shape[1])

    return run


def _params(mechanism: str, mode: str, count: int) -> dict[str, Any]:
    params: dict[str, Any] = {"mechanism": mechanism, "mode": mode, "unaccounted": True}
    if mode == "records":
        params |= {"clip": {"norm": "l2", "bound": "300"}, "neighbouring": "add_remove"}
    else:
        params |= {"sensitivity": {"norm": "linf", "value": "1"}}
    # Laplace over n coordinates that may all move: a scale of 2 is an epsilon of n / 2. Gaussian: sigma as it is.
    return params | ({"epsilon": str(count / _SCALE)} if mechanism == "discrete_laplace" else {"scale": str(_SCALE)})


def _values(*shape: int) -> Inputs:
    return {"values": random().normal(0, 100, shape)}


def _cases(sizes: Sizes, count: int) -> list[Case]:
    few = count / min(count, _OPENDP_COUNT)
    generator, per_value = random(2), f"a vector of {_OPENDP_COUNT:,} float64, per value"
    laplace = (
        Peer("OpenDP make_laplace", "opendp", _opendp("Laplace"), per=few, note=per_value),
        numpy_peer(_numpy(lambda n: np.random.laplace(0, _SCALE, n)), "numpy.random.laplace", note="not private"),
        numpy_peer(_numpy(lambda n: generator.laplace(0, _SCALE, n)), "Generator.laplace", note="not private"),
    )
    gaussian = (
        Peer("OpenDP make_gaussian", "opendp", _opendp("Gaussian"), per=few, note=per_value),
        numpy_peer(_numpy(lambda n: generator.normal(0, _SCALE, n)), "Generator.normal", note="not private"),
    )
    rows = (count // 10, 10)
    goal = Goal({"numpy.random.laplace": 1 / 25}, seconds=150e-6) if sizes == "full" else Goal()
    return [
        Case(
            "dp_noise",
            f"{name} of {measured(count)}",
            _params(mechanism, "aggregate", count),
            lambda: _values(count),
            sizes,
            peers,
            aim,
            moved=16 * count,
            repeats=7,
        )
        for name, mechanism, peers, aim in (
            ("Laplace", "discrete_laplace", laplace, goal),
            ("Gaussian", "discrete_gaussian", gaussian, Goal()),
        )
    ] + [
        Case(
            "dp_noise",
            f"clipped sum of {rows[0]:,} x {rows[1]}, Gaussian",
            _params("discrete_gaussian", "records", count),
            lambda: _values(*rows),
            sizes,
            (numpy_peer(_sum, "NumPy in float64", note="not private"),),
            moved=8 * count,
            repeats=7,
        )
    ]


CASES: tuple[Case, ...] = (*_cases("small", 2_000), *_cases("full", 1_000_000))
