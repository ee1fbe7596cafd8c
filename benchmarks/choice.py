"""Benchmark of `backend: auto`: its choice for each operation at sizes between the calibrated ones, on CPU and GPU.

`python -m benchmarks choice [--save]`. Regret is how much longer the chosen backend took than the quicker one, over a
sweep of sizes; without a GPU there is nothing to choose, and only the predictions are judged.
"""

import math
import statistics
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from warpdesk_server.benchmarks.report import show
from warpdesk_server.kernels.catalogue import OPERATIONS
from warpdesk_server.kernels.operation import Backend, Operation
from warpdesk_server.workers.child.calibrate import STEP, calibrate, measure, sizes
from warpdesk_server.workers.child.cost import Costs
from warpdesk_server.workers.child.device import Probe, probe
from warpdesk_server.workers.settings import WorkerSettings

_LONGEST = 0.3  # seconds; larger sizes than take this long are left out


def main() -> int:
    settings = WorkerSettings()
    found = probe(settings.device, settings.gpu_memory)
    costs = Costs(found.report)
    calibrate([replace(operation, variants=()) for operation in OPERATIONS.values()], found, costs)
    show("choice", [_row(operation, found, costs) for operation in OPERATIONS.values()])
    if found.device is None:
        print(f"no GPU to choose: {found.report.reason}")
    return 0


def _row(operation: Operation, found: Probe, costs: Costs) -> dict[str, Any]:
    off: dict[Backend, list[float]] = {"cpu": [], "gpu": []}
    ours = best = 0.0
    works = []
    for work, took, predicted, picked in _sweep(operation, found, costs):
        works.append(work)
        for backend, seconds in took.items():
            off[backend].append(abs(math.log(predicted[backend] / seconds)))
        if len(took) == 2:
            ours += took[picked]
            best += min(took.values())
    return {
        "operation": operation.name,
        "work": f"{min(works):.2g} to {max(works):.2g}" if works else "none",
        "CPU off by": _factor(off["cpu"]),
        "GPU off by": _factor(off["gpu"]),
        "regret": f"{100 * (ours / best - 1):.1f} %" if best else "no GPU",
    }


def _sweep(
    operation: Operation, found: Probe, costs: Costs
) -> Iterator[tuple[float, dict[Backend, float], dict[Backend, float], Backend]]:
    """The work of each size, its measured and predicted times on each backend, and the backend chosen."""
    devices: dict[Backend, Any] = {"cpu": None} if found.device is None else {"cpu": None, "gpu": found.device}
    for job, params, inputs in sizes(operation, math.sqrt(STEP)):
        took = {
            backend: seconds
            for backend, device in devices.items()
            if (seconds := measure(operation, backend, params, inputs, device)) is not None
        }
        predicted = {backend: costs.seconds(backend, job) for backend in took}
        predictions = {backend: seconds for backend, seconds in predicted.items() if seconds is not None}
        if predictions.keys() == took.keys() and took:
            yield job.work, took, predictions, costs.pick(job).backend
        if not took or max(took.values()) > _LONGEST:
            return


def _factor(logarithms: list[float]) -> str:
    """The median and the worst factor between predicted and measured time."""
    if not logarithms:
        return ""
    return f"{math.exp(statistics.median(logarithms)):.2f}x, at worst {math.exp(max(logarithms)):.2f}x"
