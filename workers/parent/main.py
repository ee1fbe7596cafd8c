"""The worker's process: `python -m warpdesk_server.workers.parent.main`."""

import gc
import logging
import os
import signal
import sys

from warpdesk_server.workers import logs
from warpdesk_server.workers.parent.redis_retry import StopRequested
from warpdesk_server.workers.parent.worker import Worker
from warpdesk_server.workers.queue.replication import Unreplicable, require_replicable
from warpdesk_server.workers.settings import WorkerSettings

log = logging.getLogger("warpdesk.worker")


def run(settings: WorkerSettings | None = None) -> int:
    """Run a worker until SIGTERM, SIGINT or a limit of its settings; 0 after a clean stop, 1 after anything else."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
        signal.signal(signum, lambda *_: sys.exit(0))  # no job has begun: there is nothing to finish
    settings = settings or WorkerSettings()
    logs.configure(settings.log_format, settings.log_level, worker=logs.worker_of(os.getpid()))
    if settings.durability == "replicated":
        try:
            require_replicable(settings.redis_url)
        except Unreplicable as error:
            log.error("%s", error)
            return 1
    signal.setitimer(signal.ITIMER_REAL, settings.max_seconds or 0)  # 0: never
    worker = Worker(settings)
    gc.collect()
    gc.freeze()  # libraries stay until the end: a collection that looks through them takes 40 ms of some job
    try:
        worker.work()
    except StopRequested:
        log.warning("stopped while Redis was away")
    return 0 if worker.stopping and not worker.undelivered else 1


if __name__ == "__main__":
    sys.exit(run())
