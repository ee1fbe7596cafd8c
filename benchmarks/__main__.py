"""Run the benchmarks: `python -m benchmarks [operations | ingest | service | batches | overload ...] [--save]`.

Without a name: all but `servers`, `gpu` and `revisions`. --save writes results/<name>.json.
"""

import importlib
import os
import sys
from pathlib import Path

from warpdesk_server.kernels.fingerprint import fingerprint

NAMES = (
    *(
        "operations",
        "ingest",
        "service",
        "batches",
        "batch_submit",
        "beside",
        "streams",
        "datasets",
        "shards",
        "plans",
        "primary",
        "regions",
        "checkpoints",
        "choice",
        "faults",
        "overload",
        "secagg_round",
    ),
    *("ledger", "health", "instrumentation", "scrape", "attacks", "start", "servers", "gpu", "revisions"),
)


def main(arguments: list[str]) -> int:
    if flags := [argument for argument in arguments if argument.startswith("--") and argument != "--save"]:
        print(__doc__)
        print(f"there is no {', '.join(flags)}; the benchmarks are {', '.join(NAMES)}")
        return 2
    wanted = [argument for argument in arguments if not argument.startswith("--")] or list(NAMES[:-3])
    if unknown := sorted(set(wanted) - set(NAMES)):
        print(f"no benchmark called {', '.join(unknown)}; there are {', '.join(NAMES)}")
        print(f"one operation alone: {sys.executable} -m warpdesk bench {' '.join(unknown)}")
        return 2
    # Before anything imports Numba: what is measured is compiled from the sources as they are.
    cache = Path(__file__).parent.parent / ".cache" / "numba" / fingerprint()
    os.environ.setdefault("NUMBA_CACHE_DIR", str(cache))
    return max(_run(name, "--save" in arguments) for name in wanted)


def _run(name: str, save: bool) -> int:
    benchmark = importlib.import_module(f"warpdesk_server.benchmarks.{name}")
    if name == "operations":
        results = importlib.import_module("warpdesk_server.benchmarks.report").RESULTS
        return int(benchmark.main(["--json", str(results / "operations.json")] if save else []))
    return int(benchmark.main() or 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
