"""Benchmark cases of matrix products beside NumPy's BLAS and torch: fixed summation order, BLAS, low precisions."""

from typing import Any

import numpy as np

from warpdesk_server.benchmarks.cases import Call, Case, Goal, Inputs, Peer, Sizes, module, numpy_peer, random
from warpdesk_server.kernels.catalogue import OPERATIONS

Shape = tuple[int, ...]


def _torch(inputs: Inputs) -> Call:
    torch = module("torch")
    a, b = (torch.from_numpy(inputs[name]) for name in ("a", "b"))
    return lambda: a @ b


PEERS = (
    numpy_peer(lambda inputs: lambda: inputs["a"] @ inputs["b"], "NumPy @", threads="all"),
    Peer("torch @", "torch", _torch, threads="all"),
)


def _inputs(dtype: str, a: Shape, b: Shape) -> Inputs:
    draw: Any = random().standard_normal
    return {"a": draw(a, dtype), "b": draw(b, dtype)}


def _case(
    sizes: Sizes, dtype: str, a: Shape, b: Shape, params: dict[str, Any], peers: tuple[Peer, ...] = (), **more: Any
) -> Case:
    what = params.get("algorithm") or params["precision"]
    label = f"{what}, {'x'.join(map(str, a))} by {'x'.join(map(str, b))}, {dtype}"
    pairs = int(np.prod(a)) * b[-1]
    return Case("matmul", label, params, lambda: _inputs(dtype, a, b), sizes, peers, multiplied=pairs, **more)


def _cases(sizes: Sizes, dtype: str, a: Shape, b: Shape, **more: Any) -> list[Case]:
    return [
        _case(sizes, dtype, a, b, {"algorithm": "kernel"}, PEERS, burst=5, **more),
        _case(sizes, dtype, a, b, {"algorithm": "library"}, **more),
    ]


CASES: tuple[Case, ...] = (
    *_cases("small", "float32", (20, 30), (30, 10)),
    *_cases("small", "float64", (3, 20, 30), (3, 30, 10)),
    *(
        case
        for dtype in ("float32", "float64")
        for a, b in (((256, 256), (256, 256)), ((1024, 1024), (1024, 1024)), ((100, 64, 64), (100, 64, 64)))
        for case in _cases("full", dtype, a, b, repeats=15)
    ),
    *(
        _case("full", "float32", (1024, 1024), (1024, 1024), {"precision": precision}, repeats=5)
        for precision in ("tf32", "bf16", "fp16")
    ),
    *(
        _case("large", "float32", (n, n), (n, n), {"algorithm": "kernel"}, goal=Goal(part=0.85), repeats=5)
        for n in (2048, 4096, 8192)
    ),
    _case("large", "float64", (4096, 4096), (4096, 4096), {"algorithm": "kernel"}, repeats=5),
)


def accuracy() -> list[dict[str, Any]]:
    """|product - exact| / |exact|, Frobenius, of 512 x 512 normal numbers; exact in extended precision."""
    operation, rows = OPERATIONS["matmul"], []
    for dtype in ("float32", "float64"):
        inputs = _inputs(dtype, (512, 512), (512, 512))
        exact = inputs["a"].astype(np.longdouble) @ inputs["b"].astype(np.longdouble)
        ways: list[dict[str, str]] = [{"algorithm": "kernel"}, {"algorithm": "library"}]
        ways += [{"precision": name} for name in ("tf32", "bf16", "fp16") if dtype == "float32"]
        for params in ways:
            product = operation.implementation("cpu")(operation.params.model_validate(params), **inputs)["product"]
            error = float(np.linalg.norm((product - exact).astype(np.float64)) / np.linalg.norm(exact.astype(float)))
            rows.append({"product": dtype, "by": " ".join(params.values()), "relative error": error})
    return rows
