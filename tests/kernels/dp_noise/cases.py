"""Releases whose noise must not depend on where it is drawn: every kernel, norm and mechanism, odd sizes."""

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


def _aggregate(name: str, shape: tuple[int, ...], norm: str, **params: object) -> Case:
    return Case(
        "dp_noise",
        {"mode": "aggregate", "sensitivity": {"norm": norm, "value": "0.3"}, **params},
        inputs=lambda: {"values": np.random.default_rng(list(shape)).normal(0, 1e3, shape)},
        key=_KEY,
        name=f"dp_noise-{name}",
    )


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
)
