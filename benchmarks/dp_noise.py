"""Benchmark of exact noise beside OpenDP, which is exact too, and NumPy's noise, which is not private."""

from typing import Any

import numpy as np

from warpdesk_server.benchmarks.cases import Call, Case, Goal, Inputs, Peer, Sizes, measured, module, numpy_peer, random

_SCALE = 2.0
_EDGES = tuple(range(-250, 251, 5))
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


def _histogram(inputs: Inputs) -> Call:
    generator, edges = random(2), np.array(_EDGES)
    return lambda: np.histogram(inputs["values"], edges)[0] + generator.laplace(0, _SCALE, len(_EDGES) - 1)


def _params(mechanism: str, mode: str, **more: Any) -> dict[str, Any]:
    params: dict[str, Any] = {"mechanism": mechanism, "mode": mode, "scale": str(_SCALE), "unaccounted": True, **more}
    if mode == "records":
        return params | {"neighbouring": "add_remove"}
    return params | {"sensitivity": {"norm": "linf", "value": "0.01"}}


def _values(*shape: int) -> Inputs:
    return {"values": random().normal(0, 100, shape)}


def _noise(sizes: Sizes, count: int, goal: Goal, repeats: int = 7) -> list[Case]:
    """The cases of noise alone on `count` values: its time should be linear, and OpenDP's is taken per value."""
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
    return [
        Case(
            "dp_noise",
            f"{name} of {measured(count)}",
            _params(mechanism, "aggregate"),
            lambda: _values(count),
            sizes,
            peers,
            aim,
            moved=16 * count,
            repeats=repeats,
        )
        for name, mechanism, peers, aim in (
            ("Laplace", "discrete_laplace", laplace, goal),
            ("Gaussian", "discrete_gaussian", gaussian, Goal({"OpenDP make_gaussian": 40}) if goal.peers else Goal()),
        )
    ]


def _queries(sizes: Sizes, count: int) -> list[Case]:
    rows = (count // 10, 10)
    return [
        Case(
            "dp_noise",
            f"clipped sum of {rows[0]:,} x {rows[1]}, Gaussian",
            _params("discrete_gaussian", "records", clip={"norm": "l2", "bound": "300"}),
            lambda: _values(*rows),
            sizes,
            (numpy_peer(_sum, "NumPy in float64", note="not private"),),
            moved=8 * count,
            repeats=7,
        ),
        Case(
            "dp_noise",
            f"histogram of {measured(count)}, {len(_EDGES) - 1} bins, Laplace",
            _params("discrete_laplace", "records", query="histogram", bins={"edges": _EDGES}),
            lambda: _values(count),
            sizes,
            (numpy_peer(_histogram, "numpy.histogram", note="not private"),),
            moved=8 * count,
            repeats=7,
        ),
    ]


_OPENDP = {"OpenDP make_laplace": 40.0}
CASES: tuple[Case, ...] = (
    *_noise("small", 2_000, Goal()),
    *_queries("small", 2_000),
    *_noise("full", 1_000_000, Goal({**_OPENDP, "numpy.random.laplace": 1 / 25}, seconds=150e-6)),
    *_noise("full", 3_000_000, Goal(_OPENDP), repeats=5),
    *_noise("full", 10_000_000, Goal(_OPENDP), repeats=3),
    *_queries("full", 1_000_000),
)
