"""Batching rules of an operation: which jobs may run together, how many, and the one call that computes them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Answer = Mapping[str, Any]  # the outputs of one job, by name


@dataclass(frozen=True)
class Batching:
    """Which jobs of an operation may run together, and how many: at most `items`, of `bytes` (Cost.bytes) in all.

    `alike`: jobs of equal dtypes, shapes and parameters run as one call, made by `join` of the family's batch.py.
    Otherwise jobs of whatever parameters share a claim and run one after another, each as if alone.

    A job of more than `steps` elementary steps (Cost.steps) runs alone. What company saves is a claim, a commit and a
    launch, a few milliseconds; so `steps` are what one core does in about 10 ms, and the next job waits for less
    than a second behind the largest batch. `wait` is how long an idle device waits for company, in seconds.
    """

    steps: float
    alike: bool = True
    items: int = 64
    bytes: int = 64 << 20
    wait: float = 0.0


@dataclass(frozen=True)
class Joint:
    """One call that computes several jobs: its parameters, its inputs, and how its outputs are taken apart.

    `parts` gives each job, in order, the very bytes that it would have got alone.
    """

    params: Any
    inputs: Mapping[str, Any]
    parts: Callable[[Answer], list[dict[str, Any]]]
