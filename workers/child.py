"""The warm child: one process that owns the device, the compiled kernels and the data, and knows nothing of Redis.

Started by `workers.horse` as `python -m workers.child <file descriptor> <parent's pid> [reason not to use a GPU]`. It
answers one assignment at a time and may be killed at any moment.
"""

import logging
import os
import signal
import sys
import time
from dataclasses import replace
from multiprocessing.connection import Connection

from kernels.cuda import DeviceLost
from workers import execute, faults
from workers.device import probe, without_gpu
from workers.pipe import LOST_DEVICE, Answer, Lost, Ready, Starting, receive_assignment, send
from workers.process import die_with
from workers.settings import WorkerSettings
from workers.store import SpoolStore
from workers.warmup import documented, start_second_compiler, variants, warm_up

log = logging.getLogger("warpdesk.child")


def main(descriptor: int, parent: int, no_gpu: str | None) -> int:
    """Probe, warm up, then serve until the parent closes the pipe."""
    die_with(parent)
    # A terminal's Ctrl-C and a group's SIGTERM are for the parent: it decides whether this process may finish its job.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.set_inheritable(descriptor, False)
    pipe = Connection(descriptor)
    settings = WorkerSettings()
    os.environ.update(settings.cache_environment())
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO)

    began = time.monotonic()
    operations = settings.catalogue()
    faulty = None
    store = SpoolStore(settings.store_directory)
    try:
        if no_gpu is None and settings.device != "cpu":
            send(pipe, Starting(step="looking for a GPU"))
        found = probe(settings.device, settings.nvml) if no_gpu is None else without_gpu(no_gpu)
        if found.device is not None and settings.faults:
            faulty = faults.FaultyDevice(found.device, faults.parse(settings.faults), settings.home / "faults")
            found = replace(found, device=faulty)
        send(pipe, Starting(step="warming up on the CPU" if found.device is None else "warming up on the GPU"))
        start_second_compiler(settings)
        failed = warm_up(documented(operations.values()), found)
        if found.device is not None:
            broken = {failure.operation for failure in failed}
            failed += warm_up(variants(op for op in operations.values() if op.name not in broken), found)
        if faulty is not None:
            faulty.arm()
        send(pipe, Ready(device=found.report, seconds=time.monotonic() - began, failed=failed))
        while True:
            work = receive_assignment(pipe)
            outcome = execute.run(work.request, work.attempt, store, found, operations, work.keep_off_gpu)
            send(pipe, Answer(job=work.request.id, attempt=work.attempt, outcome=outcome))
    except DeviceLost as fault:
        send(pipe, Lost(message=str(fault)))
        return LOST_DEVICE
    except (EOFError, ConnectionError):
        return 0  # the parent has gone


if __name__ == "__main__":
    code = main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else None)
    # A poisoned CUDA context may hang in its destructors.
    sys.stderr.flush()
    os._exit(code)
