"""The batch of jobs on options in one call: their options one after another. No option depends on another."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from warpdesk_server.kernels.batching import Answer, Joint
from warpdesk_server.kernels.vanilla_options.spec import shape_of


def join(params: Any, jobs: Sequence[Mapping[str, Any]]) -> Joint:
    """The one call that computes an operation on options for a batch of jobs with arrays of equal shapes.

    Jobs without arrays are one and the same.
    """
    shape = shape_of(jobs[0])
    inputs = {name: np.stack([np.broadcast_to(job[name], shape).reshape(-1) for job in jobs]) for name in jobs[0]}

    def parts(outputs: Answer) -> list[dict[str, Any]]:
        values = {name: output for name, output in outputs.items() if not isinstance(output, np.ndarray)}
        return [
            {
                name: values[name] if name in values else (output[at] if inputs else output).reshape(shape)
                for name, output in outputs.items()
            }
            for at in range(len(jobs))
        ]

    return Joint(params, inputs, parts)
