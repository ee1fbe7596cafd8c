"""What a run of the kernel tests on a GPU leaves behind: one file that says where it ran and what came out."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from warpdesk_server.benchmarks.report import RESULTS as RESULTS
from warpdesk_server.benchmarks.report import environment
from warpdesk_server.kernels.gpu.contract import Device


def save(path: Path, device: Device, counts: Mapping[str, int], seconds: float, left_out: Mapping[str, str]) -> None:
    """Write the file. `left_out` are test files that need a package this machine does not have, with its name."""
    where = environment()
    document = {
        "run": "test-gpu",
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "environment": {**where, "device": {**where["device"], **_described(device)}},
        "counts": dict(counts),
        "seconds": round(seconds, 1),
        "left_out": dict(sorted(left_out.items())),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")


def _described(device: Device) -> dict[str, Any]:
    facts: dict[str, Any] = {"name": device.name, "architecture": device.architecture}
    if device.cupy is not None:
        version = device.cupy.cuda.runtime.driverGetVersion()
        facts["cuda_of_driver"] = f"{version // 1000}.{version % 1000 // 10}"
    cubins = getattr(device, "cubins", None)  # CuPy's device alone compiles
    if cubins is not None:
        facts |= {"nvrtc": cubins.compiler.version, "compiled": cubins.counts.compiled, "found": cubins.counts.found}
    return facts
