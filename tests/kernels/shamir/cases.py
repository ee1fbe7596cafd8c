"""Sharings whose bytes must not depend on where they are computed: both fields, odd lengths, many or wrong shares."""

from typing import Any

import numpy as np

from tests.kernels.parity import Case
from tests.kernels.shamir.plain import plain_shares
from warpdesk_server.kernels.shamir.field import DTYPE, PRIME

KEY = bytes(range(100, 132))


def _share(name: str, field: str, threshold: int, shares: int, size: int, dtype: str = "int64", **more: Any) -> Case:
    def values() -> dict[str, "np.ndarray[Any, Any]"]:
        random = np.random.default_rng([threshold, shares, size])
        most = PRIME[field] // 2
        if dtype.startswith("float"):
            return {"values": (random.standard_normal(size) * 1e3).astype(dtype)}
        drawn = random.integers(-most, most, size, endpoint=True) if dtype == "int64" else random.integers(0, 200, size)
        drawn[: min(2, size)] = (most, 0)[: min(2, size)]
        return {"values": drawn.astype(dtype)}

    params = {"field": field, "threshold": threshold, "shares": shares, **more}
    return Case("shamir_share", params, values, key=KEY, name=f"shamir_share-{name}")


def _share_bounds(field: str) -> Case:
    """The largest and the smallest integer of a field, beside the integers around 0."""
    most = PRIME[field] // 2

    def values() -> dict[str, "np.ndarray[Any, Any]"]:
        return {"values": np.array([most, -most, most - 1, 1 - most, 0, 1, -1])}

    params = {"field": field, "threshold": 2, "shares": 3}
    return Case("shamir_share", params, values, key=KEY, name=f"shamir_share-bounds-of-{field}")


def _reconstruct(
    name: str, field: str, threshold: int, x: tuple[int, ...], size: int, wrong: int = 0, **more: Any
) -> Case:
    """The last `wrong` rows hold a word that is not theirs, each at an element of its own."""

    def shares() -> dict[str, "np.ndarray[Any, Any]"]:
        rows = np.array(plain_shares(field, threshold, x, size), DTYPE[field])
        for row in range(wrong):
            rows[len(x) - 1 - row, row % size] ^= np.array(5, DTYPE[field])
        return {"shares": rows}

    params = {"field": field, "threshold": threshold, "x": x, "correct": wrong > 0, **more}
    return Case("shamir_reconstruct", params, shares, name=f"shamir_reconstruct-{name}")


_FAR = tuple(2**31 - 2 - 3 * row for row in range(7))

CASES: tuple[Case, ...] = (
    _share("one-element", "m31", 2, 2, 1),
    _share("half-a-block-of-threads", "m31", 3, 5, 256),
    _share("a-block-of-threads-and-one", "m31", 6, 10, 513),
    _share("a-block-of-threads-and-one-of-61-bits", "m61", 6, 10, 257),
    _share_bounds("m31"),
    _share_bounds("m61"),
    _share("floats", "m31", 2, 3, 33, "float64", scale="1000.5"),
    _share("floats-of-32-bits", "m61", 4, 4, 129, "float32", scale="1048576"),
    _share("small-integers", "m61", 5, 6, 31, "uint8"),
    # More coefficients than are held at a time, and sums that are reduced on the way.
    _share("many-shares", "m31", 50, 255, 40),
    _share("many-shares-of-61-bits", "m61", 49, 255, 40),
    _reconstruct("one-element", "m31", 2, (7, 3), 1),
    _reconstruct("a-block-of-threads-and-one", "m31", 6, tuple(range(1, 11)), 129),
    _reconstruct("a-block-of-threads-and-one-of-61-bits", "m61", 6, tuple(range(1, 11)), 129),
    _reconstruct("floats", "m31", 5, (2, 9, 4, 6, 8), 40, scale="1000.5"),
    _reconstruct("floats-of-61-bits", "m61", 3, (2, 9, 4, 6), 40, scale="1048576"),
    _reconstruct("far-away", "m31", 4, _FAR, 70, wrong=1),
    _reconstruct("far-away-of-61-bits", "m61", 3, (*_FAR[:5], 2**61 - 2, 2**61 - 3), 70, wrong=2),
    _reconstruct("many-shares", "m61", 33, tuple(range(1, 43)), 20, wrong=4),
)
