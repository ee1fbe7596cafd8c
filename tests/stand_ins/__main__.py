"""Start a module of ours with the stand-ins that the environment names: `python -m tests.stand_ins MODULE`."""

import os
import runpy
import sys
from dataclasses import replace
from functools import partial
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from warpdesk_server.service import processes
from warpdesk_server.workers import process


def main(module: str) -> None:
    processes.module = partial(processes.module, "tests.stand_ins")  # type: ignore[assignment]
    own = process.python()
    process.python = lambda: [*own, "-m", "tests.stand_ins"]
    if script := os.environ.get("STAND_IN_NVML"):
        sys.modules["pynvml"] = import_module("tests.stand_ins.nvml").Replay(Path(script))
    if (factory := os.environ.get("STAND_IN_DEVICES")) and module == "warpdesk":
        _give_each_gpu_a(factory)
    if (faults := os.environ.get("STAND_IN_FAULTS")) and module == "warpdesk_server.workers.child.main":
        _plan(faults)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _give_each_gpu_a(factory: str) -> None:
    from warpdesk_server.service import serve
    from warpdesk_server.workers.gpu.nvml import gpus, library

    serve._devices = lambda environment: [f"{factory}@{gpu.uuid}" for gpu in gpus(library())]


def _plan(text: str) -> None:
    """Have faults happen on the device that the child opens, and count launches from when it says that it is ready."""
    from tests.stand_ins.faults import FaultyDevice, parse
    from warpdesk_server.workers import pipe
    from warpdesk_server.workers.child import device
    from warpdesk_server.workers.settings import WorkerSettings

    faulty: list[FaultyDevice] = []
    probe, send = device.probe, pipe.send

    def opened(*arguments: Any) -> device.Probe:
        found = probe(*arguments)
        if found.device is None:
            return found
        faulty.append(FaultyDevice(found.device, parse(text), WorkerSettings().home / "faults"))
        return replace(found, device=faulty[0])

    def sent(connection: Connection, message: pipe.Message) -> None:
        if isinstance(message, pipe.Ready) and faulty:
            faulty[0].arm()
        send(connection, message)

    device.probe, pipe.send = opened, sent


if __name__ == "__main__":
    sys.argv = [word for word in sys.argv if word != "-m"]
    main(sys.argv.pop(1))
