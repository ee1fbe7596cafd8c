"""Batching rules of an operation: which jobs may run in one batch, how many, and the one call that computes them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Answer = Mapping[str, Any]  # the outputs of one job, by name


@dataclass(frozen=True)
class Batching:
    """The batching rules of an operation: a batch has at most `items` jobs, of `bytes` (Cost.bytes) in all.

    `alike`: jobs of equal dtypes, shapes and parameters run as one call, made by `join` of the family's batch.py.
    Otherwise jobs of any parameters share a claim and run one after another, each as if alone.

    A job of more than `steps` elementary steps (Cost.steps) runs alone. A batch saves each job a claim, a commit and a
    launch, a few milliseconds. So `steps` are what one core does in about 10 ms, and the next job waits less than a
    second behind the largest batch. `wait` is the seconds for which an idle device waits for more jobs.
    """

    steps: float
    alike: bool = True
    items: int = 64
    bytes: int = 64 << 20
    wait: float = 0.0


@dataclass(frozen=True)
class Joint:
    """One call of an operation for a batch of jobs: its parameters, its inputs, and how its outputs are split.

    `parts` gives each job, in order, the same bytes that it would have got alone.
    """

    params: Any
    inputs: Mapping[str, Any]
    parts: Callable[[Answer], list[dict[str, Any]]]
