"""The chain: each step's digest is of the one before."""

import fcntl
import hashlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.workers.stepping import ChainParams, PackParams
from warpdesk_server.kernels.task import Context, Undisturbed


def undisturbed(params: Mapping[str, Any], seed: int) -> list[int]:
    """The numbers at the end of a chain with these parameters, of a run that takes no time and that nobody stops."""
    quick = ChainParams.model_validate({**params, "marker": "", "gate": "", "step_seconds": 0.0})
    numbers: list[int] = chain(quick, Undisturbed(), seed=seed)["numbers"].tolist()
    return numbers


def chain(params: ChainParams, context: Context, *, seed: int) -> dict[str, Any]:
    first, numbers = 0, np.full(params.numbers, seed, np.uint64)
    if context.state is not None:
        first, numbers = context.state["done"], context.state["numbers"]
    for step in range(first + 1, params.steps + 1):
        if step == params.die_at:
            os._exit(3)
        while step == params.hang_at:
            time.sleep(1)
        time.sleep(params.step_seconds)
        if params.gate and step == params.gate_at:
            with Path(params.gate).open() as gate:
                fcntl.flock(gate, fcntl.LOCK_EX)
        digest = hashlib.sha256(numbers.tobytes() + step.to_bytes(8, "little")).digest()
        numbers = np.resize(np.frombuffer(digest, np.uint64), params.numbers)
        if params.marker:
            with Path(params.marker).open("a") as marker:
                marker.write(f"{os.getpid()} {step}\n")
        context.report(step, step / params.steps, loss=1 / step)
        context.checkpoint(step, lambda step=step, numbers=numbers: {"done": step, "numbers": numbers})  # type: ignore[misc]
    return {"numbers": numbers, "steps": params.steps}


def model(size: int) -> bytes:
    """The file that `pack` makes."""
    return (bytes(range(251)) * (size // 251 + 1))[:size]


def pack(params: PackParams, context: Context) -> dict[str, Any]:
    content = model(params.size)
    answer: Any = content
    if params.way in ("in place", "elsewhere"):
        answer = context.file("model") if params.way == "in place" else Path(params.elsewhere)
        half = params.size // 2
        with answer.open("wb") as file:
            file.write(content[:half])
            file.flush()
            if params.gate:
                with Path(params.gate).open() as gate:
                    fcntl.flock(gate, fcntl.LOCK_EX)
            file.write(content[half:])
    elif params.way != "bytes":
        answer = "a text" if params.way == "text" else context.file("model")
    return {"model": answer, "size": params.size, "notes": b""}
