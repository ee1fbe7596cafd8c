"""What do the fixed summation order and the reduced precisions cost beside the library?

NumPy's `@` (its BLAS) is the yardstick. On a GPU a call goes from host memory and back; what its copies and our own
kernels take of that stands in the last columns (cuBLAS's kernels are not among them).
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.report import Row, interleave, show
from kernels.cuda import Device, NoDevice
from kernels.cupy_device import open_device
from kernels.matmul import cpu, gpu
from kernels.matmul.spec import MatmulParams

Shape = tuple[int, ...]

SHAPES: tuple[tuple[Shape, Shape], ...] = (
    ((256, 256), (256, 256)),
    ((1024, 1024), (1024, 1024)),
    ((100, 64, 64), (100, 64, 64)),
)
KERNEL = MatmulParams(algorithm="kernel")
REDUCED = tuple(MatmulParams(precision=precision) for precision in ("tf32", "bf16", "fp16"))


def main() -> None:
    try:
        device: Device | None = open_device()
    except NoDevice as reason:
        print(f"matmul: no GPU rows, {reason}")
        device = None
    rows = [row for dtype in ("float32", "float64") for shapes in SHAPES for row in _rows(dtype, *shapes, device)]
    show("matmul", rows)


def _rows(dtype: str, a_shape: Shape, b_shape: Shape, device: Device | None) -> list[Row]:
    random = np.random.default_rng(1)
    a, b = (random.standard_normal(shape).astype(dtype) for shape in (a_shape, b_shape))
    calls: dict[str, Callable[[], Any]] = {"numpy @": lambda: {"product": a @ b}}
    for params in (KERNEL, MatmulParams(), *(REDUCED if dtype == "float32" else ())):
        name = params.algorithm or f"library {params.precision}"
        calls[f"cpu {name}"] = partial(cpu.matmul, params, a, b)
        if device is not None:
            calls[f"gpu {name}"] = partial(gpu.matmul, params, a, b, device=device)
    timings = interleave(calls, repeats=15)
    operations = 2 * a.size * b_shape[-1]
    exact = a.astype(np.longdouble) @ b.astype(np.longdouble)
    return [
        {
            "a": f"{dtype} {'x'.join(map(str, a_shape))}",
            "product by": name,
            "time": timing,
            "GFLOP/s": operations / timing.median / 1e9,
            "times numpy": timing.median / timings["numpy @"].median,
            **_once(calls[name], exact, device),
        }
        for name, timing in timings.items()
    ]


def _once(call: Callable[[], Any], exact: Any, device: Device | None) -> Row:
    if device is not None:
        device.times()  # forget what was timed before
    error = {"error": float(np.linalg.norm(call()["product"] - exact) / np.linalg.norm(exact))}
    if device is None:
        return error
    times = device.times()
    return {**error, "copy ms": 1e3 * times.copy, "kernel ms": 1e3 * times.kernel}


if __name__ == "__main__":
    main()
