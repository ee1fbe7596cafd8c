"""Averaging the updates of many clients beside NumPy, a BLAS library and Flower."""

from typing import Any

import numpy as np

from warpdesk_server.benchmarks.cases import Call, Case, Goal, Inputs, Peer, Sizes, measured, module, numpy_peer, random

_NOISE: dict[str, Any] = {
    "dp": {
        "clip": "1",
        "max_weight": "1000",
        "expected_weight": "50000",
        "neighbouring": "add_remove",
        "noise_multiplier": "1",
    },
    "unaccounted": True,
}


def _average(inputs: Inputs) -> Call:
    return lambda: np.average(inputs["updates"], axis=0, weights=inputs["weights"])


def _product(inputs: Inputs) -> Call:
    def call() -> object:
        weights = inputs["weights"]
        return (weights / weights.sum()).astype(np.float32) @ inputs["updates"]

    return call


def _flower(inputs: Inputs) -> Call:
    aggregate = module("flwr.server.strategy.aggregate").aggregate
    # A layer and a number of examples from each client, as its strategies hold them.
    results = [([update], int(weight)) for update, weight in zip(inputs["updates"], inputs["weights"], strict=True)]
    return lambda: aggregate(results)


_PEERS = (
    numpy_peer(_average),
    numpy_peer(_product, "NumPy, BLAS", threads="all", note="rounds to float32 at each addition"),
    Peer("Flower", "flwr", _flower, note="aggregate; rounds to float32 at each addition"),
)


def _case(sizes: Sizes, clients: int, width: int, noisy: bool, goal: Goal | None = None) -> Case:
    generator = random()
    return Case(
        "federated_average",
        f"{clients} clients, {measured(width)} float32{', clipped, with noise' if noisy else ''}",
        _NOISE if noisy else {},
        lambda: {
            "updates": generator.standard_normal((clients, width), np.float32),
            "weights": generator.integers(1, 1000, clients).astype(np.float64),
        },
        sizes,
        _PEERS,
        goal or Goal(),
        # With noise the updates are read twice: nothing can be added before its norm is known.
        moved=(8 if noisy else 4) * clients * width + 8 * width,
        repeats=7,
        burst=2,
    )


CASES: tuple[Case, ...] = (
    _case("small", 5, 1_000, noisy=False),
    _case("small", 5, 1_000, noisy=True),
    _case("full", 100, 1_000_000, noisy=False, goal=Goal({"NumPy": 3.0, "Flower": 1.8})),
    _case("full", 100, 1_000_000, noisy=True),
)
