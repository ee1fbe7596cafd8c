"""What does unmasking cost the server, and masking a client? Beside one thread of NumPy with OpenSSL's keystream."""

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from benchmarks.report import interleave, show
from kernels.secure_aggregation.cpu import secure_aggregation
from kernels.secure_aggregation.spec import SecureAggregation

_ROUNDS = [  # survivors, dropped, coordinates, modulus bits
    (10, 0, 1_000_000, 32),
    (9, 1, 1_000_000, 32),
    (9, 1, 1_000_000, 64),
    (90, 10, 100_000, 32),
]


def main() -> None:
    rows = []
    for survivors, dropped, dim, bits in _ROUNDS:
        params, inputs = _round(survivors, dropped, dim, bits)
        expected = _numpy(params, **inputs)
        got = secure_aggregation(params, **inputs)["sum"]
        assert np.array_equal(got, expected.view(f"<i{bits // 8}"))
        timings = interleave(
            {
                "Warpdesk": partial(secure_aggregation, params, **inputs),
                "NumPy + OpenSSL, one thread": partial(_numpy, params, **inputs),
            },
            repeats=5,
        )
        for by, timing in timings.items():
            rows.append(
                {
                    "round": f"{survivors} of {survivors + dropped} clients, {dim:,} words of {bits} bits",
                    "masks": survivors + survivors * dropped,
                    "by": by,
                    "time": timing,
                    "ratio": round(timing.median / timings["Warpdesk"].median, 2),
                }
            )
    show("secure_aggregation", rows)


def _round(survivors: int, dropped: int, dim: int, bits: int) -> tuple[SecureAggregation, dict[str, npt.NDArray[Any]]]:
    random = np.random.default_rng(1)
    ids = tuple(range(survivors))
    gone = tuple(range(survivors, survivors + dropped))
    params = SecureAggregation.model_validate(
        {
            "round_id": "bench",
            "modulus_bits": bits,
            "threshold": (survivors + dropped) // 2 + 1,
            "survivors": ids,
            "dropped": gone,
            "pairs": tuple((g, s) for g in gone for s in ids),
            "quantisation": {"clip": str(2**bits), "scale": "1"},  # any word decodes
            "output": "int",
        },
    )
    inputs = {
        "masked": random.integers(0, 2**bits, (survivors, dim), f"uint{bits}", endpoint=False),
        "self_seeds": random.integers(0, 256, (survivors, 32), np.uint8),
        "pair_seeds": random.integers(0, 256, (survivors * dropped, 32), np.uint8),
    }
    return params, inputs


def _numpy(
    params: SecureAggregation,
    masked: npt.NDArray[Any],
    self_seeds: npt.NDArray[np.uint8],
    pair_seeds: npt.NDArray[np.uint8],
) -> npt.NDArray[Any]:
    total: npt.NDArray[Any] = masked.sum(axis=0, dtype=masked.dtype)
    zeros = bytes(total.nbytes)
    for name, seeds, minus in (
        (b"self", self_seeds, [True] * len(self_seeds)),
        (b"pair", pair_seeds, [stayed < gone for gone, stayed in params.pairs]),
    ):
        for seed, subtract in zip(seeds, minus, strict=True):
            algorithm = algorithms.ChaCha20(seed.tobytes(), bytes(4) + name + bytes(8))
            words = np.frombuffer(Cipher(algorithm, mode=None).encryptor().update(zeros), total.dtype)
            (np.subtract if subtract else np.add)(total, words, out=total)
    return total


if __name__ == "__main__":
    main()
