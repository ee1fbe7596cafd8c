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


# matmul.cu works on tiles of 32 x 32, 64 x 64 and 128 x 128 (float64: 128 x 64) of the product, 8 or 16 along k, and
# reads 16 bytes at a time where rows have a whole number of them. The names say what a device of 4 multiprocessors, the
# emulated one, takes for them.
CASES: tuple[Case, ...] = (
    *(
        case
        for dtype in ("float64", "float32")
        for case in (
            _case("1x1x1", (1, 1), (1, 1), dtype),
            _case("31x7x33", (31, 7), (7, 33), dtype),
            _case("32x16x32", (32, 16), (16, 32), dtype),
            _case("large", (255, 9), (9, 383), dtype, small=False),
            _case("large-16-bytes", (256, 20), (20, 384), dtype, small=False),
            _case("large-once", (128, 17), (17, 512), dtype),
            _case("medium", (64, 33), (33, 255), dtype),
            _case("medium-16-bytes", (63, 32), (32, 256), dtype),
            _case("127x1x129", (127, 1), (1, 129), dtype),
            _case("batch", (3, 9, 20), (3, 20, 40), dtype),
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
