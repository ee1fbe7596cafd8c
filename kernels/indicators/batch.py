"""The batch of indicator jobs in one call: their series become rows of one array, and rows do not affect each other."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from warpdesk_server.kernels.batching import Answer, Joint
from warpdesk_server.kernels.indicators.indicator import whole_shape


def join(params: Any, jobs: Sequence[Mapping[str, Any]]) -> Joint:
    """The one call that computes an indicator for a batch of jobs with series of equal shapes."""
    shape = whole_shape(jobs[0])
    rows = {name: [np.broadcast_to(job[name], shape) for job in jobs] for name in jobs[0]}
    together = {name: np.stack(each).reshape(-1, shape[-1]) for name, each in rows.items()}

    def parts(outputs: Answer) -> list[dict[str, Any]]:
        return [{name: part(output, job) for name, output in outputs.items()} for job in range(len(jobs))]

    def part(output: Any, job: int) -> Any:
        if not isinstance(output, np.ndarray):
            return output  # of `expression`: names and first bars
        rows = output.reshape(-1, len(jobs), *shape)[:, job]
        return np.ascontiguousarray(rows if output.ndim > 2 else rows[0])

    return Joint(params, together, parts)
