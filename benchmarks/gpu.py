"""Benchmark of the kernels on this machine's GPU, in one table and one file: `make bench-gpu`.

Needs CuPy, NumPy, Numba and pydantic; peers whose libraries are not there are left out and named. Ends within 8 minutes
whatever the machine: what there was no time for is named too.
"""

import json
import time
from collections.abc import Sequence
from pathlib import Path

from warpdesk_server.benchmarks import on_gpu
from warpdesk_server.benchmarks.cases import Sizes
from warpdesk_server.benchmarks.operations import Run, accuracy, run_on_cpu, run_on_gpu, select, show
from warpdesk_server.benchmarks.report import RESULTS
from warpdesk_server.kernels.gpu.contract import Device
from warpdesk_server.kernels.gpu.faults import NoDevice

GPU_SECONDS, SECONDS = 300, 400  # after which no case is begun on the GPU, and none at all; a case takes up to 30


def main(device: Device | None = None, path: Path = RESULTS / "gpu.json", sizes: Sequence[Sizes] = ("full",)) -> int:
    """Measure on `device`, or the first GPU; 1 where there is none. `sizes` are measured on the CPU too."""
    begun = time.monotonic()
    if device is None:
        try:
            device = on_gpu.open_gpu()
        except NoDevice as reason:
            print(f"bench-gpu needs a GPU: {reason}")
            return 1
    out = Run()
    # The large ones first: they are what the GPU is for.
    large = select((), ["large"]) if "full" in sizes else []
    run_on_gpu([*large, *select((), sizes)], device, out, begun + GPU_SECONDS)
    run_on_cpu(select((), sizes), out, begun + SECONDS, repeats=3)
    accuracy((), out)
    show(out)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**out.document(), "benchmark": "gpu"}, indent=1) + "\n")
    judged = [row for row in out.rows if row.reached is not None]
    print(f"{sum(bool(row.reached) for row in judged)} of {len(judged)} goals reached; written to {path}")
    return 0
