"""What Numba was asked for while some requests ran, as JSON.

`python -m tests.workers.child.first_use warm-up|requests` prints it.

`compiled` are the functions that were compiled and not loaded from the cache. `used` are all functions that were called
from Python, with the types they were called with.
"""

import gc
import importlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
from numba.core.dispatcher import Dispatcher
from numba.core.event import install_recorder

from tests.kernels.parity import Case
from warpdesk_server.workers.child import warmup

FAMILIES = (
    "backtest",
    "bars",
    "basket_options",
    "cross_section",
    "dp_noise",
    "federated_average",
    "indicators",
    "matmul",
    "monte_carlo",
    "portfolio",
    "portfolio.sequential",
    "risk",
    "secure_aggregation",
    "shamir",
    "vanilla_options",
    "tridiagonal",
    "vector",
)


def requests() -> Iterator[Case]:
    """Every case that must be the same on every backend, and what their tables leave out."""
    for family in FAMILIES:
        yield from importlib.import_module(f"tests.kernels.{family}.cases").CASES
    prices = 100 + np.cumsum(np.random.default_rng(1).standard_normal((3, 5000)), axis=1)
    prices[:, 7] = np.nan
    for name, dtype, shape, policy in product(
        ("sma", "ema", "rsi", "bollinger"), ("float64", "float32"), (1, 3), ("window", "skip", "ffill")
    ):
        given = (prices[0] if shape == 1 else prices).astype(dtype)
        conventions = {"ema": ("talib", "tradingview"), "rsi": ("talib", "tradingview", "cutler", "ema")}
        for convention in conventions.get(name, ("",)):
            params = {"period": 20, "nan_policy": policy, **({"convention": convention} if convention else {})}
            yield Case(name, params, lambda given=given: {"prices": given})
    for dtype, shape in product(("float64", "float32", "int64", "int32", "uint32", "uint8"), ((7,), (5, 3))):
        values = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
        for mechanism, budget in (("discrete_laplace", "epsilon"), ("discrete_gaussian", "rho")):
            common = {"mechanism": mechanism, budget: "1", "unaccounted": True}
            for norm in ("l1", "l2", "linf"):
                clip = {"mode": "records", "clip": {"norm": norm, "bound": "100"}, "neighbouring": "add_remove"}
                yield Case("dp_noise", {**common, **clip}, lambda values=values: {"values": values}, key=bytes(32))
            declared = {"mode": "aggregate", "sensitivity": {"norm": "l2", "value": "1"}}
            yield Case("dp_noise", {**common, **declared}, lambda values=values: {"values": values}, key=bytes(32))
    for dtype, algorithm in product(("float64", "float32"), ("kernel", "library", None)):
        factor = np.ones((2, 3, 3), dtype)
        yield Case("matmul", {"algorithm": algorithm}, lambda factor=factor: {"a": factor, "b": factor[0]})
    for precision in ("tf32", "bf16", "fp16"):
        yield Case("matmul", {"precision": precision}, lambda: dict.fromkeys("ab", np.ones((3, 3), np.float32)))


def run(case: Case, folder: Path) -> None:
    """With arrays in memory, and with maps of files, as jobs are run."""
    case.run()
    inputs = case.inputs()
    for name, array in inputs.items():
        np.save(folder / f"{name}.npy", array)
    for mode in ("r", "c"):
        maps = {name: np.load(folder / f"{name}.npy", mmap_mode=mode) for name in inputs}
        replace(case, inputs=lambda maps=maps: maps).run()


def main(what: str) -> None:
    with install_recorder("numba:compile") as recorder:
        if what == "warm-up":
            warmup.main(os.getppid())
        else:
            with tempfile.TemporaryDirectory() as folder:
                for case in requests():
                    run(case, Path(folder))
    compiled = {_name(event.data["dispatcher"]) for _, event in recorder.buffer}
    used = {
        _name(dispatcher): [str(types) for types in dispatcher.overloads]
        for dispatcher in gc.get_objects()
        if isinstance(dispatcher, Dispatcher) and dispatcher.overloads
    }
    json.dump({"compiled": sorted(compiled), "used": used}, sys.stdout)


def _name(dispatcher: Dispatcher) -> str:
    return f"{dispatcher.py_func.__module__}.{dispatcher.py_func.__qualname__}"


if __name__ == "__main__":
    main(sys.argv[1])
