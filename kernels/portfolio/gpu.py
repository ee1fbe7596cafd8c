"""Covariance and risk parity on a GPU, with the same bytes as on the CPU."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.gpu import chunks
from warpdesk_server.kernels.gpu.contract import Device
from warpdesk_server.kernels.gpu.source import Source
from warpdesk_server.kernels.matmul.gpu import matmul
from warpdesk_server.kernels.portfolio import spec
from warpdesk_server.kernels.portfolio.cpu import covariance_by, risk_parity_by
from warpdesk_server.kernels.portfolio.spec import PRODUCT, Covariance, RiskParity

Array = NDArray[Any]

_SOURCE = Source(Path(__file__).with_name("portfolio.cu"))
SOURCES: tuple[Source, ...] = (_SOURCE,)

_THREADS = 256  # REDUCE_BLOCK


def covariance(params: Covariance, returns: Array, *, device: Device) -> dict[str, Any]:
    """The covariance of simple returns (assets, time) or (batch, assets, time): the products are those of matmul.cu.

    Raises InvalidRequest if ledoit_wolf meets an asset whose returns are all equal.
    """

    def multiply(a: Array, b: Array) -> Array:
        product: Array = matmul(PRODUCT, a, b, device=device)["product"]
        return product

    return covariance_by(multiply, params, returns)


def risk_parity(
    params: RiskParity, covariance: Array, budgets: Array | None = None, *, device: Device
) -> dict[str, Any]:
    """The risk-parity weights of covariance matrices (assets, assets) or (batch, assets, assets), a block for each.

    Raises InvalidRequest for a matrix that is not symmetric, a variance or budget that is not above 0, and where the
    tolerance is not reached.
    """

    def solve(matrices: Array, parts: Array, *out: Array) -> None:
        count, assets, _ = matrices.shape
        each = spec.matrices_of_a_chunk(assets)
        grid = spec.RISK_PARITY.grid(params, {"covariance": ArrayInfo("float64", matrices.shape)})
        kernel = device.kernel(_SOURCE, "risk_parity")

        def run(first: int, end: int) -> None:
            some = slice(first * each, min(end * each, count))
            given, shares = device.to_device(matrices[some]), device.to_device(parts)
            results = [device.empty(array[some].shape, array.dtype) for array in out]
            sizes = np.uint32(assets), np.float64(params.tolerance), np.int32(params.sweeps)
            kernel((some.stop - some.start,), (_THREADS,), (given, shares, *sizes, *results))
            for result, array in zip(results, out, strict=True):
                device.to_host(result, array[some])

        chunks.run(device, grid, run, overlap=True)

    return risk_parity_by(solve, params, covariance, budgets)
