"""What the sanitizers have found clean, so that they need not run again until something changes that they looked at.

`sanitized.json` has a digest for each mode and family. `make sanitize SANITIZE_SAVE=1` adds those that pass.
"""

import fcntl
import hashlib
import json
import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.cudasim.build import compiler
from tests.cudasim.sanitized import Mode

ROOT = Path(__file__).resolve().parents[2]
FILE = Path(__file__).with_name("sanitized.json")
_IMPORT = re.compile(r"warpdesk_server\.kernels\.(\w+)")
_COMMON = ("device", "gpu", "cpu")  # what every family uses
# What drives a real GPU through CuPy, and what stands for CuPy in tests: no sanitizer runs it.
_DRIVER = {"cubins.py", "cupy_device.py", "cupy_memory.py", "cupy_on_cpu.py", "modules.py", "nvrtc.py", "staging.py"}


@cache
def digest(family: str) -> str:
    """A digest of what a verdict on a family depends on: its code, its cases, the emulator, the compiler."""
    found = hashlib.sha256(compiler().encode())
    for file in sorted(set(_files(family))):
        found.update(file.relative_to(ROOT).as_posix().encode() + b"\0" + file.read_bytes() + b"\0")
    return found.hexdigest()[:32]


def is_known(mode: Mode, family: str) -> bool:
    """Whether the family was found clean as it is now. Never with SANITIZE=all."""
    return os.environ.get("SANITIZE") != "all" and _read().get(mode, {}).get(family) == digest(family)


def keep(mode: Mode, family: str) -> None:
    """Note that the family was found clean, if SANITIZE_SAVE asks for that."""
    if not os.environ.get("SANITIZE_SAVE"):
        return
    with FILE.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # both modes may run at once
        verdicts = json.load(file)
        verdicts.setdefault(mode, {})[family] = digest(family)
        file.seek(0)
        file.truncate()
        json.dump(verdicts, file, indent=1, sort_keys=True)
        file.write("\n")


def _read() -> dict[str, dict[str, str]]:
    verdicts: dict[str, dict[str, str]] = json.loads(FILE.read_text())
    return verdicts


def _files(family: str) -> Iterator[Path]:
    kernels = ROOT / "kernels"
    yield from kernels.glob("*.py")
    for folder in _folders(family, set()):
        yield from _sources(kernels / folder)
        yield from _sources(ROOT / "tests" / "kernels" / folder)
    yield from _sources(ROOT / "tests" / "cudasim")
    for name in ("families", "parity", "sanitized_cases"):
        yield Path(__file__).with_name(f"{name}.py")


def _folders(family: str, found: set[str]) -> set[str]:
    """The family's folder, the common ones, and those of families that any of them imports."""
    if family in found or not (ROOT / "kernels" / family).is_dir():
        return found
    found.add(family)
    for other in _COMMON:
        _folders(other, found)
    for file in (ROOT / "kernels" / family).rglob("*.py"):
        for other in _IMPORT.findall(file.read_text()):
            _folders(other, found)
    return found


def _sources(folder: Path) -> Iterator[Path]:
    """The sources in a folder but tests and the driver of a real GPU, which no sanitizer runs."""
    for suffix in ("py", "cu", "cuh", "h", "cpp"):
        for file in folder.rglob(f"*.{suffix}"):
            if not file.name.startswith("test_") and file.name not in _DRIVER:
                yield file
