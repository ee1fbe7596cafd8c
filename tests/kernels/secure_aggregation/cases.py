"""Rounds whose sum must not depend on where it is computed: both moduli, with and without dropouts, odd lengths."""

from typing import Any

import numpy as np

from tests.kernels.parity import Case


def _inputs(
    bits: int, dim: int, survivors: tuple[int, ...], dropped: tuple[int, ...]
) -> dict[str, "np.ndarray[Any, Any]"]:
    """Random words as masked vectors: parity needs no honest client, only a sum whose decoding is not refused."""
    random = np.random.default_rng([bits, dim, len(survivors), len(dropped)])
    inputs: dict[str, np.ndarray[Any, Any]] = {
        "masked": random.integers(0, 2**bits, (len(survivors), dim), dtype=f"uint{bits}", endpoint=False),
        "self_seeds": random.integers(0, 256, (len(survivors), 32), np.uint8),
    }
    if dropped:
        inputs["pair_seeds"] = random.integers(0, 256, (len(survivors) * len(dropped), 32), np.uint8)
    return inputs


def _on_a_ring() -> Case:
    """Eight places, one of them without secrets: each masks with two neighbours, and one dropped out."""
    params = {
        "round_id": "ring",
        "modulus_bits": 32,
        "threshold": 2,
        "survivors": (9, 2, 30, 4, 1, 6),
        "dropped": (7,),
        "pairs": ((7, 2), (7, 30)),
        "degree": 2,
        "ring": (9, 2, 7, 30, 4, 5, 1, 6),
        "quantisation": {"clip": str(2**31), "scale": "1"},
        "output": "int",
    }

    def inputs() -> dict[str, "np.ndarray[Any, Any]"]:
        return {**_inputs(32, 600, params["survivors"], ()), "pair_seeds": _inputs(32, 1, (1, 2), (7,))["pair_seeds"]}  # type: ignore[arg-type]

    return Case("secure_aggregation", params, inputs=inputs, name="secure_aggregation-ring")


def _case(name: str, bits: int, dim: int, survivors: tuple[int, ...], dropped: tuple[int, ...], output: str) -> Case:
    # clients * clip * scale fills the modulus, so that any sum decodes.
    clients = len(survivors) + len(dropped)
    params = {
        "round_id": name,
        "modulus_bits": bits,
        "threshold": clients // 2 + 1,
        "survivors": survivors,
        "dropped": dropped,
        "pairs": tuple((gone, stayed) for gone in dropped for stayed in survivors),
        "quantisation": {"clip": str(2 ** (bits - 1)), "scale": "1"},
        "output": output,
    }
    return Case(
        "secure_aggregation",
        params,
        inputs=lambda: _inputs(bits, dim, survivors, dropped),
        name=f"secure_aggregation-{name}",
    )


CASES: tuple[Case, ...] = (
    _case("one-word", 32, 1, (1, 2), (), "int"),
    _case("one-block-less-one", 32, 15, (5, 1, 9), (7,), "int"),
    _case("one-block", 64, 8, (1, 2), (), "int"),
    _case("one-block-and-one", 64, 9, (3, 2, 8), (5, 6), "mean"),
    _case("a-tile-and-one", 32, 257, (2, 4, 6), (3,), "float"),
    _case("many-blocks", 32, 2100, (10, 30, 20), (25, 5), "mean"),
    _case("many-blocks-64", 64, 1025, (1, 2, 3, 4), (9, 0), "float"),
    _on_a_ring(),
)
