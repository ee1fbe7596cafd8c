"""The probation of a quarantined GPU: a second child process tries it while the first goes on serving on the CPU."""

from multiprocessing.connection import wait

from warpdesk_server.workers.parent.child_process import ChildProcess
from warpdesk_server.workers.pipe import Orders, Ready
from warpdesk_server.workers.queue.counts import Tally
from warpdesk_server.workers.settings import WorkerSettings


class GpuProbation:
    """The worker's second child process, on probation with a quarantined GPU.

    Like each child it opens the GPU, runs the canary check and every example. Make it in the main thread.
    """

    def __init__(self, settings: WorkerSettings, skip: dict[str, str], tally: Tally) -> None:
        self.child = ChildProcess(settings, tally)
        self._patience = settings.start_seconds
        self.child.spawn(Orders(skip=skip))

    def look(self) -> Ready | str | None:
        """The Ready message of the child on probation, a sentence once it has failed, None while it starts."""
        while wait([self.child.pipe], 0):
            try:
                message = self.child.hear()
            except (EOFError, OSError):
                return f"{self.child.reap()} {self.child.doing}"
            if isinstance(message, Ready):
                return message
        if self.child.silent_seconds < self._patience:
            return None
        self.child.kill()
        return f"the worker process said nothing for {self._patience:g} s {self.child.doing}"
