"""Averages that must not depend on where they are computed: both dtypes, with and without noise, every strategy."""

from typing import Any

import numpy as np

from tests.kernels.parity import Case

Arrays = dict[str, "np.ndarray[Any, Any]"]

NOISE: dict[str, Any] = {
    "clip": "1.5",
    "max_weight": "3",
    "expected_weight": "20",
    "neighbouring": "add_remove",
    "rho": "0.5",
}
ROUND: dict[str, Any] = {"survivors": 9, "quantisation": {"clip": "8", "scale": "65536"}}
_OF_ROUND = {name: amount for name, amount in NOISE.items() if name != "max_weight"}
_KEY = bytes(range(100, 132))


def updates(clients: int, width: int, dtype: str, state: tuple[str, ...] = ()) -> Arrays:
    """Updates of very different sizes, one all zero, with zeros of both signs, subnormals and far values in them."""
    random = np.random.default_rng([clients, width, len(dtype)])
    values = random.normal(0, 1, (clients, width)) * np.exp2(random.integers(-9, 9, (clients, 1)))
    least = float(np.finfo(dtype).smallest_subnormal)
    special = np.array([0.0, -0.0, least, -least, 1e-38, 1e30, -7.0])
    flat = values.reshape(-1)
    flat[:: max(1, flat.size // 20)] = np.resize(special, len(flat[:: max(1, flat.size // 20)]))
    values[clients // 2] = 0
    given = {"updates": values.astype(dtype), "weights": random.uniform(0, 4, clients)}
    return given | {name: np.abs(random.normal(0, 1, width)).astype(dtype) for name in state}


def _sum(width: int, state: tuple[str, ...] = ()) -> Arrays:
    random = np.random.default_rng(width)
    given = {"sum": random.integers(-9 * 2**19, 9 * 2**19, width, endpoint=True)}
    return given | {name: np.abs(random.normal(0, 1, width)) for name in state}


def _of_updates(name: str, clients: int, width: int, dtype: str, *state: str, **params: object) -> Case:
    return Case(
        "federated_average",
        params,
        inputs=lambda: updates(clients, width, dtype, state),
        key=_KEY,
        name=f"federated_average-{name}",
    )


def _of_round(name: str, width: int, *state: str, **params: object) -> Case:
    return Case(
        "federated_average",
        {"round": ROUND, **params},
        inputs=lambda: _sum(width, state),
        key=_KEY,
        name=f"federated_average-{name}",
    )


_STATE = ("model", "first_moment", "second_moment")
_ADAM = {"strategy": "fedadam", "learning_rate": 0.1}
_NOISY: dict[str, Any] = {"dp": NOISE, "unaccounted": True}
_WIDE = {**NOISE, "neighbouring": "replace_one", "rho": None, "noise_multiplier": "0.01"}

CASES: tuple[Case, ...] = (
    _of_updates("one-number", 1, 1, "float64"),
    _of_updates("plain", 33, 129, "float32", "model", learning_rate=0.5),
    _of_updates("plain-64", 5, 1025, "float64", "model"),
    _of_updates("many-clients", 300, 3, "float32", *_STATE, **_ADAM, beta1=0.5, beta2=0.75, tau=0.25),
    _of_updates("first-round-of-adam", 9, 31, "float64", "model", **_ADAM),
    _of_updates("noisy", 31, 257, "float32", **_NOISY),
    _of_updates("noisy-64", 12, 127, "float64", *_STATE, **_ADAM, **_NOISY),
    _of_updates("replacing", 17, 64, "float64", dp=_WIDE, unaccounted=True),
    _of_updates("squares-in-two-blocks", 2, 8193, "float64", dp=NOISE, unaccounted=True),
    _of_round("round", 1023, "model"),
    _of_round("noisy-round", 511, *_STATE, **_ADAM, dp=_OF_ROUND, unaccounted=True),
)
