"""The batch of jobs across assets in one call: their bars side by side.

Bars are independent, so other bars do not change one. What a job gives once for all its bars is given for each of them,
unless the jobs agree on it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdesk_server.kernels.batching import Answer, Joint


def join(params: Any, jobs: Sequence[Mapping[str, Any]]) -> Joint:
    """The one call that computes an operation across assets for a batch of jobs with values of equal shape."""
    time = jobs[0]["values"].shape[1]
    inputs = {name: _side_by_side([job[name] for job in jobs], 2 + (name == "factors"), time) for name in jobs[0]}

    def parts(outputs: Answer) -> list[dict[str, Any]]:
        bars = [slice(at * time, (at + 1) * time) for at in range(len(jobs))]
        # A copy, since an answer is a C-contiguous array.
        return [{name: np.ascontiguousarray(output[..., own]) for name, output in outputs.items()} for own in bars]

    return Joint(params, inputs, parts)


def _side_by_side(given: Sequence[NDArray[Any]], rank: int, time: int) -> NDArray[Any]:
    first = given[0]
    if first.ndim == rank:
        return np.concatenate(given, axis=-1)
    if all(np.array_equal(first, other, equal_nan=first.dtype.kind == "f") for other in given):
        return first
    return np.concatenate([np.repeat(one[..., None], time, axis=-1) for one in given], axis=-1)
