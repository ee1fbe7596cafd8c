"""The batch of matrix-product jobs in one call: a batch of matrices, which our own kernel multiplies one by one."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdesk_server.kernels.batching import Answer, Joint
from warpdesk_server.kernels.matmul.spec import MatmulParams, dimensions


def join(params: MatmulParams, jobs: Sequence[Mapping[str, Any]]) -> Joint | None:
    """The one call for a batch of matrix products of equal shapes.

    None if a BLAS library may run, since the order of its sums depends on the whole shape.
    """
    if params.algorithm != "kernel":
        return None
    size = dimensions(jobs[0]["a"].shape, jobs[0]["b"].shape)

    def batch(name: str) -> NDArray[Any]:
        """The factors of all matrix products; one that serves a job's whole batch is repeated for each product."""
        shape = size.batch, *jobs[0][name].shape[-2:]
        # Without an explicit order NumPy would arrange copies of one matrix by their zero stride.
        out = np.empty((len(jobs) * size.batch, *shape[1:]), jobs[0][name].dtype)
        return np.concatenate([np.broadcast_to(job[name], shape) for job in jobs], out=out)

    def parts(outputs: Answer) -> list[dict[str, Any]]:
        products = outputs["product"].reshape(len(jobs), *size.product)
        return [{**outputs, "product": product} for product in products]

    return Joint(params, {name: batch(name) for name in ("a", "b")}, parts)
