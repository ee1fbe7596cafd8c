"""Run every benchmark, or those named: `python -m benchmarks [name ...] [--save]`."""

import importlib
import pkgutil
import sys
from pathlib import Path

_NOT_A_BENCHMARK = {"__main__", "processes", "report"}


def main() -> None:
    known = [
        module.name
        for module in pkgutil.iter_modules([str(Path(__file__).parent)])
        if module.name not in _NOT_A_BENCHMARK
    ]
    wanted = [argument for argument in sys.argv[1:] if not argument.startswith("--")] or known
    unknown = sorted(set(wanted) - set(known))
    if unknown:
        sys.exit(f"no benchmark called {', '.join(unknown)}; there are {', '.join(known)}")
    for name in wanted:
        importlib.import_module(f"benchmarks.{name}").main()


if __name__ == "__main__":
    main()
