"""A second child that tries a quarantined GPU while the first goes on serving on the CPU."""

from multiprocessing.connection import wait

from warpdesk_server.workers.parent.child_process import Horse
from warpdesk_server.workers.pipe import Orders, Ready
from warpdesk_server.workers.queue.counts import Tally
from warpdesk_server.workers.settings import WorkerSettings


class Candidate:
    """It opens the GPU, asks the canary and runs every example, as each child does. Made in the main thread."""

    def __init__(self, settings: WorkerSettings, skip: dict[str, str], tally: Tally) -> None:
        self.horse = Horse(settings, tally)
        self._patience = settings.start_seconds
        self.horse.spawn(Orders(skip=skip))

    def look(self) -> Ready | str | None:
        """Its report once it is ready, a sentence once it has failed, None while it is under way."""
        while wait([self.horse.pipe], 0):
            try:
                message = self.horse.hear()
            except (EOFError, OSError):
                return f"{self.horse.reap()} {self.horse.doing}"
            if isinstance(message, Ready):
                return message
        if self.horse.silent_seconds < self._patience:
            return None
        self.horse.kill()
        return f"the worker process said nothing for {self._patience:g} s {self.horse.doing}"
