"""What each misbehaving operation does on the CPU."""

import ctypes
import fcntl
import os
import resource
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np


def double(params: Any, values: np.ndarray) -> dict[str, Any]:
    return {"doubled": values * 2, "total": float(values.sum() * 2)}


def nap(params: Any) -> dict[str, Any]:
    """Sleep in native code that holds the interpreter's lock, as a kernel that never returns does; or at a gate."""
    Path(params.marker).write_text(str(os.getpid()))
    if params.gate:
        _pass(params.gate)
    else:
        ctypes.PyDLL(None).usleep(int(params.seconds * 1e6))
    return {"slept": params.seconds}


doze = nap


def stumble(params: Any, values: np.ndarray) -> dict[str, Any]:
    raise RuntimeError(f"the caller's number is {values[0]}")


def fuss(params: Any) -> dict[str, Any]:
    if not params.pleased:
        raise ValueError("this is\nnot to my liking")
    return {"pleased": True}


def waver(params: Any, values: np.ndarray) -> dict[str, Any]:
    """Fail in the bad mood on the numbers of the examples, which are below 3, in single precision."""
    if params.mood == "bad" and values.dtype == np.float32 and values.max() < 3:
        raise ValueError("not in this mood")
    return {"doubled": values * 2}


def hoard(params: Any) -> dict[str, Any]:
    return {"total": float(np.ones(params.numbers).sum())}


def confine(params: Any) -> dict[str, Any]:
    """As under `ulimit -v`, which counts address space, mapped files included."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + params.room
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))
    return {"limit": limit}


def die(params: Any) -> dict[str, Any]:
    """Die by SIGKILL in the first `times` attempts, each of which leaves a mark."""
    marks = Path(params.marker)
    if params.times and len(list(marks.iterdir())) < params.times:
        (marks / str(os.getpid())).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return {"survived": True}


def pieces(params: Any, values: np.ndarray) -> dict[str, Any]:
    """Note of each value that it was begun here, wait while a file says so, and die if one says so."""
    for value in values.astype(int) if params.place else ():
        place = Path(params.place)
        (place / f"begun.{value}.{os.getpid()}").touch()
        while (place / f"hold.{value}").exists():
            time.sleep(0.005)
        kill = place / f"kill.{value}"
        if kill.exists():
            kill.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
    return {"doubled": values * 2}


def whisper(params: Any, secret: np.ndarray, key: bytes) -> dict[str, Any]:
    """Add noise from the key, leave the key for the test to look for, then wait at the gate."""
    noise = np.frombuffer(key, np.uint64).astype(np.int64) >> 32
    if params.marker:
        Path(params.marker).write_bytes(key)
    if params.gate:
        _pass(params.gate)
    return {"noisy": secret.sum() + noise}


def linger(params: Any, values: np.ndarray, key: bytes) -> dict[str, Any]:
    """Sleep as a sampler computes that draws again and again."""
    time.sleep(float(Path(params.pause).read_text() or 0))
    noisy = values + np.frombuffer(key, np.uint32)[: values.size]
    return {"noisy": noisy, "total": float(noisy.sum())}


def _pass(gate: str) -> None:
    """Wait until the test opens the gate."""
    with Path(gate).open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)
