"""The part of secure aggregation that both backends share: the masks to remove, and the decoding of the sum.

Client i adds the mask of a pair (i, j) when i < j and subtracts it otherwise, so the masks of two survivors cancel.
The self mask of every survivor stays in the sum, and so does the pair mask it shares with a client that dropped out.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdesk_server.kernels.problems import refuse
from warpdesk_server.kernels.secure_aggregation.spec import STATEMENT, SecureAggregation

# First nonce word, little-endian; the other two are zero. Self and pair masks never share a stream, even of one seed.
SELF = int.from_bytes(b"self", "little")
PAIR = int.from_bytes(b"pair", "little")


@dataclass(frozen=True)
class Masks:
    """The masks that are left in the sum, one row each: seeds (masks, 8), nonces and subtract (masks,), all uint32."""

    seeds: NDArray[np.uint32]
    nonces: NDArray[np.uint32]
    subtract: NDArray[np.uint32]


@contextmanager
def masks(
    params: SecureAggregation, self_seeds: NDArray[np.uint8], pair_seeds: NDArray[np.uint8] | None
) -> Iterator[Masks]:
    """The masks that are left in the sum, for the block; their copy of the seeds is zeroed at the end.

    Raises InvalidRequest if a seed is given twice.
    """
    if pair_seeds is None:
        pair_seeds = np.empty((0, 32), np.uint8)
    seeds = np.ascontiguousarray(np.concatenate([self_seeds, pair_seeds])).view("<u4")
    nonces = np.array([SELF] * len(self_seeds) + [PAIR] * len(pair_seeds), np.uint32)
    # A survivor below the dropped client in order had added the mask of their pair.
    subtract = np.array([1] * len(self_seeds) + [int(stayed < gone) for gone, stayed in params.pairs], np.uint32)
    try:
        _refuse_repeated(seeds, len(self_seeds))
        yield Masks(seeds, nonces, subtract)
    finally:
        seeds.fill(0)


def _refuse_repeated(seeds: NDArray[np.uint32], self_seeds: int) -> None:
    first: dict[bytes, int] = {}
    for row, seed in enumerate(seeds):
        earlier = first.setdefault(seed.tobytes(), row)
        if earlier != row:
            where = [
                f"row {r} of self_seeds" if r < self_seeds else f"row {r - self_seeds} of pair_seeds"
                for r in (earlier, row)
            ]
            raise refuse(
                "/inputs/pair_seeds" if row >= self_seeds else "/inputs/self_seeds",
                f"{where[0]} and {where[1]} are the same seed; every mask needs a seed of its own",
            )


def answer(params: SecureAggregation, total: NDArray[Any]) -> dict[str, Any]:
    """The outputs of secure_aggregation from the unmasked sum mod 2**b (uint32 or uint64, shape (dim,))."""
    centred: NDArray[Any] = total.view(np.int32 if params.modulus_bits == 32 else np.int64)
    # Honest survivors cannot exceed this. A wrong seed or a wrong vector gives noise over the whole range.
    most = params.max_abs_sum_of_survivors
    # np.abs would wrap at -2**63.
    if centred.size and max(int(centred.max()), -int(centred.min())) > most:
        outside = int(np.count_nonzero((centred > most) | (centred < -most)))
        raise refuse(
            "/inputs",
            f"{outside} of {centred.size} coordinates of the unmasked sum exceed {most}, which no sum of "
            f"{len(params.survivors)} vectors within the clip can: a seed, a vector or an id does not belong to this "
            "round",
        )
    decoded: NDArray[Any] = centred.astype(np.int64, copy=False)
    if params.output != "int":
        unit = Fraction(Decimal(params.quantisation.scale))
        if params.output == "mean":
            unit *= params.total_weight or len(params.survivors)
        decoded = centred.astype(np.float64) / float(unit)
    return {
        "sum": decoded,
        "survivors": list(params.survivors),
        "overflow_proof": {"max_abs_sum": params.max_abs_sum, "limit": params.limit},
        "round_id": params.round_id,
        "statement": STATEMENT,
    }
