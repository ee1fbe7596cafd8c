"""A work queue over the CPU's cores: each free thread takes the next few tasks of a compiled loop."""

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numba

from warpdesk_server.kernels import progress

_LEAST_PARTS = 32  # parts at least if progress has a listener


def share(tasks: int, run: Callable[[int, int], None], at_least: int = 1) -> None:
    """Run the tasks of a compiled loop on all CPU cores: call run(first, end) on consecutive parts of range(tasks).

    A part has `at_least` tasks or more. `run` must release the GIL and may run in several threads at once. Unlike at
    the barrier of an OpenMP loop, no thread waits for one that the machine does not schedule. Numba also compiles a
    plain loop several times faster than a parallel one. Progress is reported in the caller's thread (kernels.progress).
    """
    threads, listener = min(numba.get_num_threads(), -(-tasks // at_least)), progress.has_listener()
    if threads <= 1 and not listener:
        run(0, tasks)
        return
    part = max(at_least, -(-tasks // max(8 * threads, _LEAST_PARTS * listener)))
    starts, lock, done = iter(range(0, tasks, part)), threading.Lock(), 0

    def work() -> None:
        nonlocal done
        while True:
            with lock:
                first = next(starts, None)
            if first is None:
                return
            run(first, min(first + part, tasks))
            with lock:
                done += min(first + part, tasks) - first
            progress.report(done / tasks)

    if threads <= 1:
        work()
        return
    pool = _pool(os.getpid())
    others = [pool.submit(work) for _ in range(threads - 1)]
    try:
        work()
    finally:
        for other in others:
            if not other.cancel():
                other.result()
    progress.report(1.0)  # other threads may have done the last part, or all


@cache
def _pool(_process: int) -> ThreadPoolExecutor:
    # One per process: threads do not survive a fork.
    return ThreadPoolExecutor(numba.config.NUMBA_NUM_THREADS, thread_name_prefix="cores")
