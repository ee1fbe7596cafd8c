"""Reduced precision of matrix products: factors are rounded to tf32, bf16 or fp16, and the product's error is measured.

Everything here takes the array module `xp`, NumPy or CuPy, so that a GPU and a CPU round alike.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from warpdesk_server.kernels.matmul.spec import Precision
from warpdesk_server.kernels.problems import refuse

# Bits of a float32 significand that a format drops. tf32 keeps 10 explicit bits (NVIDIA, "TensorFloat-32 in the A100",
# 2020), bf16 keeps 7; both keep float32's exponent. fp16 is IEEE 754 binary16, which NumPy and CuPy have.
_DROPPED = {"tf32": 13, "bf16": 16}

LARGEST = {
    "tf32": (2 - 2**-10) * 2.0**127,
    "bf16": (2 - 2**-7) * 2.0**127,
    "fp16": 65504.0,
}

ROWS_MEASURED = 16
_WORKSPACE = 1 << 22  # float64 numbers of b at a time: 32 MiB


def nearest(xp: Any, values: Any, precision: Precision, name: str) -> Any:
    """Round a matrix factor's float32 values to the nearest of the format, ties to even; they stay float32.

    Raises InvalidRequest if a value rounds to infinity; `name` is the input's name for that error.
    """
    dropped = _DROPPED.get(precision)
    rounded = _drop_bits(xp, values, dropped) if dropped else _through_fp16(xp, values)
    overflow = xp.isinf(rounded)
    if bool(overflow.any()):
        at = tuple(int(axis[0]) for axis in xp.nonzero(overflow))
        raise refuse(
            "/params/precision",
            f"{precision} holds at most {LARGEST[precision]:.6g} in magnitude and {name}{list(at)} is beyond that; "
            f"scale the inputs or choose a wider precision",
        )
    return rounded


def relative_error(xp: Any, a: Any, b: Any, product: Any) -> float | None:
    """The relative error of a matrix product, |product - a @ b| / |a @ b| (Frobenius), with a @ b in float64.

    It is measured on up to 16 rows, spread evenly over all; with 16 rows or fewer it is exact. Shapes: (1 or batch, m,
    k), (1 or batch, k, n), (batch, m, n). None if the exact rows are all 0 or if anything overflowed.
    """
    batch, m, _ = product.shape
    return ratio([squares(xp, a, b, product, sampled(batch, m))])


def ratio(parts: Iterable[tuple[float, float]]) -> float | None:
    """The relative error of a matrix product from `squares` of its parts; None if exact rows are all 0 or
    overflowed."""
    error = size = 0.0
    for part in parts:
        error, size = error + part[0], size + part[1]
    if not 0 < size < float("inf") or not error < float("inf"):
        return None
    return float((error / size) ** 0.5)


def squares(xp: Any, a: Any, b: Any, product: Any, rows: Mapping[int, list[int]]) -> tuple[float, float]:
    """The sums of (product - a @ b)**2 and of (a @ b)**2 over some rows of each product, with a @ b in float64."""
    step = max(1, _WORKSPACE // max(a.shape[2], 1))
    error = size = 0.0
    for z, chosen in rows.items():
        at = xp.asarray(chosen)
        left = a[min(z, a.shape[0] - 1)][at].astype(xp.float64)
        right = b[min(z, b.shape[0] - 1)]
        for start in range(0, product.shape[2], step):
            columns = slice(start, start + step)
            exact = left @ right[:, columns].astype(xp.float64)
            error += float(xp.square(product[z][at, columns] - exact).sum())
            size += float(xp.square(exact).sum())
    return error, size


def sampled(batch: int, m: int) -> dict[int, list[int]]:
    """The matrix rows whose error is measured, by product: up to 16 in all, including the first and the last."""
    total = batch * m
    count = min(total, ROWS_MEASURED)
    picked: dict[int, list[int]] = {}
    for i in range(count):
        row = i * (total - 1) // max(count - 1, 1)
        picked.setdefault(row // m, []).append(row % m)
    return picked


def _drop_bits(xp: Any, values: Any, dropped: int) -> Any:
    # Adding half of the last kept bit, less one unless that bit is odd, carries exactly when rounding to nearest even
    # goes up. The carry into the exponent is correct too, up to infinity.
    bits = values.view(xp.uint32)
    odd = (bits >> xp.uint32(dropped)) & xp.uint32(1)
    bits = bits + odd + xp.uint32((1 << (dropped - 1)) - 1)
    return (bits & xp.uint32(0xFFFFFFFF << dropped & 0xFFFFFFFF)).view(xp.float32)


def _through_fp16(xp: Any, values: Any) -> Any:
    with np.errstate(over="ignore"):  # `nearest` refuses infinities
        return values.astype(xp.float16).astype(xp.float32)
