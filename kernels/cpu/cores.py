"""A work queue over the cores: each free thread takes the next few tasks of a compiled loop."""

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numba

from warpdesk_server.kernels import progress

_LEAST_PARTS = 32  # parts at least where progress has a listener


def share(tasks: int, run: Callable[[int, int], None], at_least: int = 1) -> None:
    """Call run(first, end) on consecutive parts of range(tasks), of `at_least` tasks or more, until all are done.

    `run` must release the GIL and may run in several threads at once. A thread that the machine does not schedule holds
    nobody up, as it would at the barrier of an OpenMP loop; and Numba compiles a plain loop several times faster than
    a parallel one. What is done is reported in the thread of the caller (kernels.progress).
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
    progress.report(1.0)  # others may have done the last of it, or all


@cache
def _pool(_process: int) -> ThreadPoolExecutor:
    # One per process: threads do not survive a fork.
    return ThreadPoolExecutor(numba.config.NUMBA_NUM_THREADS, thread_name_prefix="cores")
