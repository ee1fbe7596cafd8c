"""Wall clocks that jump, each for the processes of its environment.

Debian's libfaketime (0.9.10) is no use here: with a true monotonic clock it answers Python's `time.sleep` with EINVAL,
without one Python's waits do not end, and under it Debian's Redis hangs.
"""

import hashlib
import os
import shlex
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

from tests.conftest import ROOT

HOUR = 3600.0
_SOURCE = Path(__file__).with_name("clock.cpp")


class Clock:
    """A clock that is right until it jumps."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.set_ahead(0.0)

    @property
    def environment(self) -> Mapping[str, str]:
        """What a process needs to go by this clock, and those that it starts."""
        return {"LD_PRELOAD": str(_library()), "TEST_CLOCK": str(self._file)}

    def set_ahead(self, seconds: float) -> None:
        """From now on it is ahead of the machine's clock by so many seconds, or behind."""
        with self._file.open("r+b" if self._file.exists() else "wb") as file:
            file.write(struct.pack("=q", int(seconds * 1e9)))

    def under(self, program: Path) -> Path:
        """A program that runs another by this clock."""
        script = self._file.with_name(f"{self._file.name}-{program.name}")
        settings = " ".join(f"{name}={shlex.quote(value)}" for name, value in self.environment.items())
        script.write_text(f'#!/bin/sh\nexec env {settings} {shlex.quote(str(program))} "$@"\n')
        script.chmod(0o700)
        return script


@cache
def _library() -> Path:
    """Compiled once for each version of the source."""
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None:
        pytest.fail("clocks that jump need a C++ compiler: apt-get install g++")
    made = ROOT / ".cache" / "clock" / f"{hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:16]}.so"
    if not made.exists():
        made.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=made.parent) as folder:
            fresh = Path(folder) / made.name
            options = ["-std=c++17", "-O2", "-Wall", "-shared", "-fPIC", "-o", str(fresh), str(_SOURCE)]
            subprocess.run([compiler, *options], check=True)
            fresh.rename(made)
    return made
