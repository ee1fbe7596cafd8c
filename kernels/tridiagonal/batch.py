"""The batch of tridiagonal jobs in one call: all their systems. Systems are independent of each other."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from warpdesk_server.kernels.batching import Answer, Joint
from warpdesk_server.kernels.tridiagonal.spec import complex_matrix


def join(params: Any, jobs: Sequence[Mapping[str, Any]]) -> Joint:
    """The one call that computes a tridiagonal operation for a batch of jobs with arrays of equal shape."""
    # A real array has one axis or two, and a complex one a last axis of two besides.
    batch = jobs[0]["diagonal"].ndim - complex_matrix(jobs[0]) == 2
    joined = np.concatenate if batch else np.stack
    inputs = {name: joined([job[name] for job in jobs]) for name in jobs[0]}
    count = len(jobs[0]["diagonal"]) if batch else 1

    def parts(outputs: Answer) -> list[dict[str, Any]]:
        split = []
        for at in range(len(jobs)):
            own = {name: output[at * count : (at + 1) * count] for name, output in outputs.items()}
            if not batch:
                name = next(iter(own))
                own[name] = own[name][0]
            split.append(own)
        return split

    return Joint(params, inputs, parts)
