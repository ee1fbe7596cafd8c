"""Time functions beside each other, and print or keep what was measured and where.

rows = [{"what": name, "time": timing} for name, timing in interleave({"ours": f, "peer": g}).items()]
show("indicators", rows)          # prints; with --save on the command line also writes results/indicators.json
"""

import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

RESULTS = Path(__file__).parent / "results"

_LIBRARIES = (
    *("numpy", "numba", "scipy", "TA-Lib", "Bottleneck", "pandas", "newtulipy", "torch", "opendp", "cryptography"),
    *("redis", "rq", "fastapi", "uvicorn", "pydantic"),
)
_GPU_LIBRARIES = ("cupy-cuda12x", "cupy-cuda13x", "nvidia-cuda-nvrtc-cu12", "nvidia-cuda-nvrtc")

_WARM_UP = 0.05  # seconds
_PAUSE = 0.1  # seconds, after which idle threads of OpenBLAS and OpenMP sleep

Row = Mapping[str, Any]
Name = TypeVar("Name")


@dataclass(frozen=True)
class Timing:
    """Seconds one call took: the median of the repeats, the quickest and the slowest."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Timing":
        return cls(statistics.median(seconds), min(seconds), max(seconds))

    def divided(self, among: int) -> "Timing":
        """The timing of one of `among` equal parts."""
        return Timing(self.median / among, self.low / among, self.high / among)

    def __str__(self) -> str:
        scale, unit = next(((s, u) for s, u in ((1.0, "s"), (1e-3, "ms")) if self.median >= s), (1e-6, "us"))
        return f"{self.median / scale:.4g} {unit} ({self.low / scale:.4g} to {self.high / scale:.4g})"


def interleave(functions: Mapping[Name, Callable[[], object]], repeats: int = 7, burst: int = 0) -> dict[Name, Timing]:
    """Time several functions in turns, so that a noisy moment of the machine strikes all of them.

    Each function is called once as a warm-up. The order is reversed on every repeat. If a function returns a function,
    that one is called off the clock, to remove what was made.

    With a `burst`, that many calls of one function follow each other, after a pause and a twentieth of a second of
    calls off the clock. It is for functions with threads of their own. Idle threads spin for a while and slow the next
    function, or they sleep. Cores that slept take some 25 ms until they are as quick as before.
    """
    for function in functions.values():
        _remove(function())
    seconds: dict[Name, list[float]] = {name: [] for name in functions}
    names = list(functions)
    for _ in range(-(-repeats // max(1, burst))):
        for name in names:
            if burst:
                time.sleep(_PAUSE)
                until = time.perf_counter() + _WARM_UP
                while time.perf_counter() < until:
                    _remove(functions[name]())
            for _ in range(max(1, burst)):
                start = time.perf_counter()
                made = functions[name]()
                seconds[name].append(time.perf_counter() - start)
                _remove(made)
        names.reverse()
    return {name: Timing.of(taken) for name, taken in seconds.items()}


def _remove(made: object) -> None:
    if callable(made):
        made()


def environment() -> dict[str, Any]:
    """What a reader needs to judge a number: processor, threads, device, driver and versions."""
    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": {name: os.environ[name] for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS") if name in os.environ}
        or "all cores",
        "load": round(os.getloadavg()[0], 2),
        "device": _device(),
        "versions": {name: version for name in _LIBRARIES + _GPU_LIBRARIES if (version := _version(name))},
    }


def print_table(rows: Sequence[Row]) -> None:
    """Print rows under the keys of the first; text to the left, numbers to the right."""
    if not rows:
        return
    columns = list(rows[0])
    cells = [[_text(row.get(column, "")) for column in columns] for row in rows]
    widths = [max(len(line[i]) for line in [columns, *cells]) for i in range(len(columns))]
    left = [isinstance(rows[0][column], str) for column in columns]
    for line in [columns, ["-" * width for width in widths], *cells]:
        print("  ".join(_pad(*cell) for cell in zip(line, widths, left, strict=True)).rstrip())


def save(name: str, rows: Sequence[Row]) -> Path:
    """Write rows with the environment to results/<name>.json and return the path."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    document = {
        "benchmark": name,
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "environment": environment(),
        "rows": [{key: _plain(value) for key, value in row.items()} for row in rows],
    }
    path.write_text(json.dumps(document, indent=1) + "\n")
    return path


def show(name: str, rows: Sequence[Row]) -> None:
    """Print where and what was measured; save it too when the command line says --save."""
    facts = environment()
    print(f"\n{name}: {facts['cpu']}, {facts['cores']} cores, device {facts['device']['name']}, load {facts['load']}")
    print(", ".join(f"{library} {version}" for library, version in facts["versions"].items()))
    print_table(rows)
    if "--save" in sys.argv:
        print(f"saved {save(name, rows)}")


def _cpu_model() -> str:
    # platform.processor() is empty on most Linux distributions.
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _device() -> dict[str, str | None]:
    try:
        import pynvml  # loads NVIDIA's management library only when asked to
    except ImportError as error:
        return {"name": "none", "driver": None, "reason": str(error)}
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return {"name": "none", "driver": None, "reason": str(error)}
    try:
        name = pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0))
        return {"name": name, "driver": pynvml.nvmlSystemGetDriverVersion()}
    except pynvml.NVMLError as error:
        return {"name": "none", "driver": None, "reason": str(error)}
    finally:
        pynvml.nvmlShutdown()


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _text(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _pad(text: str, width: int, left: bool) -> str:
    return text.ljust(width) if left else text.rjust(width)


def _plain(value: object) -> object:
    return asdict(value) if isinstance(value, Timing) else value
