"""A process of its own, in which Numba compiles for another processor or runs other threads."""

import os
import subprocess
import sys


def printed(program: str, *arguments: str, **environment: str) -> str:
    """What the program prints. Numba's cache, which is shared, keeps apart what was compiled for each processor."""
    command = [sys.executable, "-c", program, *arguments]
    ran = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-4000:]
    return ran.stdout
