"""Products of several jobs in one call: a batch of matrices, whose sums our own kernel takes one by one."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdesk_server.kernels.batching import Answer, Joint
from warpdesk_server.kernels.matmul.spec import MatmulParams, dimensions


def join(params: MatmulParams, jobs: Sequence[Mapping[str, Any]]) -> Joint | None:
    """One call for factors of equal shapes. None where a BLAS library may run: its sums depend on the whole shape."""
    if params.algorithm != "kernel":
        return None
    size = dimensions(jobs[0]["a"].shape, jobs[0]["b"].shape)

    def batch(name: str) -> NDArray[Any]:
        """The factors of all products; one that serves a whole batch is there for each of its products."""
        shape = size.batch, *jobs[0][name].shape[-2:]
        # By itself NumPy would lay copies of one matrix out in the order of their zero stride.
        out = np.empty((len(jobs) * size.batch, *shape[1:]), jobs[0][name].dtype)
        return np.concatenate([np.broadcast_to(job[name], shape) for job in jobs], out=out)

    def parts(outputs: Answer) -> list[dict[str, Any]]:
        products = outputs["product"].reshape(len(jobs), *size.product)
        return [{**outputs, "product": product} for product in products]

    return Joint(params, {name: batch(name) for name in ("a", "b")}, parts)
