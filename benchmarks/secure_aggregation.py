"""Benchmark cases of unmasking: the server's sum beside one thread of NumPy with OpenSSL's keystream."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdesk_server.benchmarks.cases import Call, Case, Goal, Inputs, Peer, Sizes, measured, module, random
from warpdesk_server.kernels.catalogue import OPERATIONS


def numpy_sum(
    pairs: Sequence[tuple[int, int]],
    masked: NDArray[Any],
    self_seeds: NDArray[np.uint8],
    pair_seeds: NDArray[np.uint8],
) -> NDArray[Any]:
    """The unmasked sum, a mask after the other by OpenSSL's ChaCha20."""
    ciphers = module("cryptography.hazmat.primitives.ciphers")
    total: NDArray[Any] = masked.sum(axis=0, dtype=masked.dtype)
    zeros = bytes(total.nbytes)
    for name, seeds, minus in (
        (b"self", self_seeds, [True] * len(self_seeds)),
        (b"pair", pair_seeds, [stayed < gone for gone, stayed in pairs]),
    ):
        for seed, subtract in zip(seeds, minus, strict=True):
            algorithm = ciphers.algorithms.ChaCha20(seed.tobytes(), bytes(4) + name + bytes(8))
            words = np.frombuffer(ciphers.Cipher(algorithm, mode=None).encryptor().update(zeros), total.dtype)
            (np.subtract if subtract else np.add)(total, words, out=total)
    return total


def _pairs(survivors: int, dropped: int) -> list[tuple[int, int]]:
    return [(gone, stayed) for gone in range(survivors, survivors + dropped) for stayed in range(survivors)]


def _peer(pairs: list[tuple[int, int]]) -> Peer:
    def call(inputs: Inputs) -> Call:
        module("cryptography")
        return partial(numpy_sum, pairs, **inputs)

    return Peer("NumPy + OpenSSL", "cryptography", call)


def _inputs(params: dict[str, Any], dim: int) -> Inputs:
    generator, bits = random(), params["modulus_bits"]
    survivors = len(params["survivors"])
    inputs = {
        "masked": generator.integers(0, 2**bits, (survivors, dim), f"uint{bits}", endpoint=False),
        "self_seeds": generator.integers(0, 256, (survivors, 32), np.uint8),
        "pair_seeds": generator.integers(0, 256, (len(params["pairs"]), 32), np.uint8),
    }
    # The first client's vector makes the sum one that honest clients could have: 0. Any word decodes within 2**bits.
    operation = OPERATIONS["secure_aggregation"]
    lenient = {**params, "quantisation": {"clip": str(2**bits), "scale": "1"}}
    unmasked = operation.implementation("cpu")(operation.params.model_validate(lenient, strict=False), **inputs)["sum"]
    inputs["masked"][0] -= unmasked.astype(f"uint{bits}")
    return inputs


def _case(sizes: Sizes, survivors: int, dropped: int, dim: int, bits: int, goal: Goal | None = None) -> Case:
    pairs, masks = _pairs(survivors, dropped), survivors + survivors * dropped
    params = {
        "round_id": "bench",
        "modulus_bits": bits,
        "threshold": (survivors + dropped) // 2 + 1,
        "survivors": list(range(survivors)),
        "dropped": list(range(survivors, survivors + dropped)),
        "pairs": [list(pair) for pair in pairs],
        "quantisation": {"clip": "1", "scale": "1000"},
        "output": "int",
    }
    return Case(
        "secure_aggregation",
        f"{survivors} of {survivors + dropped} clients, {measured(dim)} words of {bits} bits, {masks} masks",
        params,
        lambda: _inputs(params, dim),
        sizes,
        (_peer(pairs),),
        goal or Goal(),
        moved=(survivors + 1) * dim * bits // 8,
        keystream=masks * dim * bits // 8,
        repeats=41,
    )


SUM = Goal(part=0.75)  # of the vectors alone, with no mask to remove
CASES: tuple[Case, ...] = (
    _case("small", 3, 1, 500, 32),
    _case("small", 3, 0, 100, 64),
    *(
        _case("full", *shape, Goal({"NumPy + OpenSSL": 1.6}, words=1e12))
        for shape in ((10, 0, 1_000_000, 32), (9, 1, 1_000_000, 32), (9, 1, 1_000_000, 64), (90, 10, 100_000, 32))
    ),
    _case("large", 16, 0, 10_000_000, 32, Goal(words=1e12)),
)
