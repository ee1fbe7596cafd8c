"""Run a Python module under a sanitizer, whose library must be loaded before anything else in the process."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Literal

from tests.cudasim.build import LIBRARIES

Mode = Literal["address,undefined", "thread"]

ROOT = Path(__file__).resolve().parents[2]
_OPTIONS = {
    # Python frees little at its end. Kernels run on stacks of their own, which the annotations in runtime.cpp explain.
    "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0:abort_on_error=0",
    "UBSAN_OPTIONS": "print_stacktrace=0",
    "TSAN_OPTIONS": "halt_on_error=1:report_signal_unsafe=0",
}


def run_sanitized(mode: Mode, module: str, *arguments: str, timeout: float = 1140) -> subprocess.CompletedProcess[str]:
    """Run `python -m module mode arguments…`; a finding ends the process with a code other than 0 and its report."""
    library = subprocess.run(
        ["g++", f"-print-file-name={LIBRARIES[mode]}"], capture_output=True, text=True, check=True
    ).stdout.strip()
    command = [sys.executable, "-m", module, mode, *arguments]
    if mode == "thread" and shutil.which("setarch"):
        command = ["setarch", os.uname().machine, "-R", *command]  # it cannot work with much address randomisation
    environment = {
        **os.environ,
        **_OPTIONS,
        "LD_PRELOAD": library,
        "PYTHONPATH": str(ROOT),
        "PYTHONMALLOC": "malloc",
        "OPENBLAS_NUM_THREADS": "1",
    }
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout, check=False
    )
