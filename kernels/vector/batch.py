"""The batch of vector jobs in one call: their arrays end to end or, for a reduction, all their rows.

The tree of a row's sums depends on its length alone, so other rows do not change it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from warpdesk_server.kernels.batching import Answer, Joint
from warpdesk_server.kernels.vector.spec import Reduction, rows


def join(params: Any, jobs: Sequence[Mapping[str, Any]]) -> Joint:
    """The one call that computes a vector operation for a batch of jobs with arrays of equal shape."""
    shape = jobs[0]["x"].shape
    if isinstance(params, Reduction):
        length = rows(params, shape)[1]
        own = (1,) if params.axis == "all" or len(shape) == 1 else shape[:-1]
        params = params.model_copy(update={"axis": "last"})
    else:
        length, own = jobs[0]["x"].size, shape
    inputs = {name: np.stack([job[name] for job in jobs]).reshape(-1, length) for name in jobs[0]}

    def parts(outputs: Answer) -> list[dict[str, Any]]:
        (name, output), *_ = outputs.items()
        return [{name: part} for part in output.reshape(len(jobs), *own)]

    return Joint(params, inputs, parts)
