"""A small number for each live worker: what its metrics are labeled with, since names, hosts and processes are endless.

A worker has the smallest number that was free when it came, and keeps it until it gives it back or is silent for the
slot's time to live. So the numbers are fewer than the workers that ever lived at a time.
"""

from math import ceil

from redis import Redis

from warpdesk_server.workers.queue.lua import evaluate
from warpdesk_server.workers.queue.scripts import LEAVE_SLOT, TAKE_SLOT

# Longer than a worker's report is believed after the slot was renewed last: no two live reports have one number.
TTL = 20.0


class Slot:
    """A worker's. `number` is None until it was kept for the first time."""

    def __init__(self, connection: Redis, worker: str) -> None:
        self.number: int | None = None
        self._connection = connection
        self._worker = worker

    def keep(self) -> None:
        """Take a slot, or have it for as long again; another one where somebody else has it after a long silence."""
        has = "" if self.number is None else self.number
        self.number = int(evaluate(self._connection, TAKE_SLOT, self._worker, has, ceil(TTL * 1000)))

    def give_back(self) -> None:
        if self.number is not None:
            evaluate(self._connection, LEAVE_SLOT, self._worker, self.number)
            self.number = None
