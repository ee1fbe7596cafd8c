"""Products that must have the same bytes on the CPU and on every device: edges of tiles, batches, shared factors."""

from typing import Any

import numpy as np

from tests.kernels.parity import Case


def _case(
    name: str, a_shape: tuple[int, ...], b_shape: tuple[int, ...], dtype: str = "float64", small: bool = True
) -> Case:
    def inputs() -> dict[str, "np.ndarray[Any, Any]"]:
        random = np.random.default_rng(sum(a_shape) + sum(b_shape))
        return {
            "a": random.standard_normal(a_shape).astype(dtype),
            "b": random.standard_normal(b_shape).astype(dtype),
        }

    return Case("matmul", {"algorithm": "kernel"}, inputs, small=small, name=f"matmul-{name}-{dtype}")


# matmul.cu works on tiles of 64 x 64 of the product and 16 along k.
CASES: tuple[Case, ...] = (
    *(
        case
        for dtype in ("float64", "float32")
        for case in (
            _case("1x1x1", (1, 1), (1, 1), dtype),
            _case("31x15x33", (31, 15), (15, 33), dtype),
            _case("32x16x64", (32, 16), (16, 64), dtype),
            _case("65x17x63", (65, 17), (17, 63), dtype),
            _case("127x33x129", (127, 33), (33, 129), dtype),
            _case("batch", (3, 9, 20), (3, 20, 70), dtype),
            _case("row-by-column", (1, 100), (100, 1), dtype),
            _case("column-by-row", (100, 1), (1, 100), dtype),
        )
    ),
    _case("one-a-for-all", (9, 20), (3, 20, 7)),
    _case("one-b-for-all", (3, 9, 20), (20, 7)),
    _case("deep", (70, 1023), (1023, 66), "float32", small=False),
    _case("wide", (3, 40), (40, 1025), "float64", small=False),
    _case("tall", (1025, 40), (40, 3), "float64", small=False),
)
