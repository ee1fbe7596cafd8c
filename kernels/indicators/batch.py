"""The batch of indicator jobs in one call: their prices become rows of one array, and rows do not affect each other."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from warpdesk_server.kernels.batching import Answer, Joint


def join(params: Any, jobs: Sequence[Mapping[str, Any]]) -> Joint:
    """The one call that computes an indicator for a batch of jobs with prices of equal shape."""
    shape = jobs[0]["prices"].shape
    prices = np.stack([job["prices"] for job in jobs]).reshape(-1, shape[-1])

    def parts(outputs: Answer) -> list[dict[str, Any]]:
        rows = {name: output.reshape(len(jobs), *shape) for name, output in outputs.items()}
        return [{name: own[job] for name, own in rows.items()} for job in range(len(jobs))]

    return Joint(params, {"prices": prices}, parts)
