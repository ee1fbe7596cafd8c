"""Releases whose noise must not depend on where it is drawn: every kernel, norm and mechanism, odd sizes."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.kernels.parity import Case

# What tests of one request begin with.
RECORDS: dict[str, Any] = {
    "mechanism": "discrete_laplace",
    "mode": "records",
    "epsilon": "1",
    "clip": {"norm": "linf", "bound": "1"},
    "neighbouring": "add_remove",
    "unaccounted": True,
}
AGGREGATE: dict[str, Any] = {
    "mechanism": "discrete_laplace",
    "mode": "aggregate",
    "epsilon": "1",
    "sensitivity": {"norm": "l1", "value": "1"},
    "unaccounted": True,
}

_KEY = bytes(range(100, 132))
_LAPLACE = {"mechanism": "discrete_laplace", "unaccounted": True}
_GAUSSIAN = {"mechanism": "discrete_gaussian", "unaccounted": True}


def _values(*shape: int) -> dict[str, "np.ndarray[Any, Any]"]:
    """Values inside, at and far outside a clip bound of 1.5, zeros of both signs, subnormals, huge ones."""
    random = np.random.default_rng(list(shape))
    values = random.normal(0, 1, shape) * np.exp2(random.integers(-40, 12, shape))
    special = np.array([0.0, -0.0, 5e-324, -5e-324, 1.5, -1.5, 1e300, -1e300, 1e-300, 2.0**31])
    flat = values.reshape(-1)
    flat[:: max(1, flat.size // 20)] = np.resize(special, len(flat[:: max(1, flat.size // 20)]))
    return {"values": values}


def _records(name: str, shape: tuple[int, ...], norm: str, neighbouring: str = "add_remove", **params: object) -> Case:
    clip = {"norm": norm, "bound": "1.5"}
    return Case(
        "dp_noise",
        {"mode": "records", "clip": clip, "neighbouring": neighbouring, **params},
        inputs=lambda: _values(*shape),
        key=_KEY,
        name=f"dp_noise-{name}",
    )


def _large_records() -> dict[str, "np.ndarray[Any, Any]"]:
    """Records so far outside that the squares of their coordinates carry from the low 64 bits of a norm to the high."""
    random = np.random.default_rng(0)
    return {"values": random.normal(0, 1, (64, 3)) * np.exp2(random.integers(8, 16, (64, 3)))}


def _query(name: str, query: str, values: Callable[[], "np.ndarray[Any, Any]"], **params: Any) -> Case:
    """A query other than the sum; a mean of privately many records has a noisy count too."""
    replaced = {"neighbouring": "replace_one"} if query == "identity" else {"neighbouring": "add_remove"}
    return Case(
        "dp_noise",
        {"mode": "records", "query": query, **replaced, **params},
        inputs=lambda: {"values": values()},
        key=_KEY,
        name=f"dp_noise-{name}",
    )


def _around(edges: tuple[float, ...]) -> "np.ndarray[Any, Any]":
    """Values on every edge, just below and just above it, far outside, and zeros of both signs."""
    on = np.array(edges)
    random = np.random.default_rng(len(edges)).uniform(edges[0] - 1, edges[-1] + 1, 300)
    outside = [-1e300, 1e300, 5e-324, 0.0, -0.0]
    return np.concatenate([on, np.nextafter(on, -np.inf), np.nextafter(on, np.inf), outside, random])


def _aggregate(name: str, shape: tuple[int, ...], norm: str, **params: object) -> Case:
    return Case(
        "dp_noise",
        {"mode": "aggregate", "sensitivity": {"norm": norm, "value": "0.3"}, **params},
        inputs=lambda: {"values": np.random.default_rng(list(shape)).normal(0, 1e3, shape)},
        key=_KEY,
        name=f"dp_noise-{name}",
    )


_EDGES = (-2.5, -1.0, -0.0, 1e-300, 0.75, 1.0, 3.5)
_L1, _L2, _LINF = ({"clip": {"norm": norm, "bound": "1.5"}} for norm in ("l1", "l2", "linf"))

CASES: tuple[Case, ...] = (
    _records("one-record", (1,), "linf", epsilon="1", **_LAPLACE),
    _records("scalars", (1023,), "linf", epsilon="0.25", **_LAPLACE),
    _records("l1", (33, 5), "l1", "replace_one", epsilon="2", **_LAPLACE),
    _records("l2", (31, 33), "l2", epsilon="1e-8", **_LAPLACE),
    _records("l2-one-column", (300, 1), "l2", rho="0.5", **_GAUSSIAN),
    _records("l2-many-columns", (3, 300), "l2", "replace_one", rho="1e-9", **_GAUSSIAN),
    _records("linf-many-columns", (9, 129), "linf", scale="40", **_GAUSSIAN),
    _records("l1-to-gaussian", (257, 32), "l1", rho="1000", **_GAUSSIAN),
    Case(
        "dp_noise",
        {
            "mode": "records",
            "clip": {"norm": "l2", "bound": "1.5"},
            "neighbouring": "add_remove",
            "rho": "1",
            **_GAUSSIAN,
        },
        inputs=_large_records,
        key=_KEY,
        name="dp_noise-norms-that-carry",
    ),
    _aggregate("statistic", (1025,), "l1", epsilon="1", **_LAPLACE),
    _aggregate("statistic-of-two-axes", (13, 11), "linf", epsilon="1e-6", **_LAPLACE),
    _aggregate("gaussian-statistic", (127,), "l2", scale="3.7", **_GAUSSIAN),
    _aggregate("gaussian-one", (1,), "linf", rho="3e-5", **_GAUSSIAN),
    _query("mean", "mean", lambda: _values(129, 3)["values"], epsilon="2", **_L1, **_LAPLACE),
    _query("mean-of-one-column", "mean", lambda: _values(65)["values"], scale="3", delta="1e-6", **_L2, **_GAUSSIAN),
    _query(
        "mean-of-so-many", "mean", lambda: _values(33, 2)["values"], epsilon="1", delta="1e-7",
        **_LINF, **_GAUSSIAN | {"neighbouring": "replace_one"},
    ),
    _query("histogram", "histogram", lambda: _around(_EDGES), bins={"edges": _EDGES}, epsilon="0.5", **_LAPLACE),
    _query(
        "histogram-of-one-bin", "histogram", lambda: _around((0.0, 1.0)), bins={"edges": (0.0, 1.0)}, rho="0.1",
        **_GAUSSIAN | {"neighbouring": "replace_one"},
    ),
    _query(
        "histogram-of-categories", "histogram", lambda: np.random.default_rng(1).integers(-3, 40, 2000),
        bins={"categories": 33}, epsilon="1", delta="1e-6", **_GAUSSIAN,
    ),
    Case(
        "dp_noise",
        {"mode": "records", "query": "histogram", "neighbouring": "add_remove", "epsilon": "1", **_LAPLACE}
        | {"bins": {"categories": 8_200}},
        inputs=lambda: {"values": np.random.default_rng(2).integers(-3, 8_203, 40_000, np.int32)},
        key=_KEY,
        small=False,
        name="dp_noise-histogram-of-three-windows",
    ),
    _query("identity", "identity", lambda: _values(1025)["values"], epsilon="1", **_LINF, **_LAPLACE),
    _query("identity-l1", "identity", lambda: _values(33, 7)["values"], scale="0.01", **_L1, **_LAPLACE),
    _query("identity-l2", "identity", lambda: _values(31, 33)["values"], rho="0.01", **_L2, **_GAUSSIAN),
)  # fmt: skip
