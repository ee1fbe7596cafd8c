"""Slots: a small number for each live worker, the label of its metrics. Names and hosts would be endless labels.

A worker takes the smallest free number, and keeps it until it gives it back or does not renew it for `TTL`. So there
are never more numbers than workers that lived at the same time.
"""

from math import ceil

from redis import Redis

from warpdesk_server.workers.queue.lua import evaluate
from warpdesk_server.workers.queue.scripts import LEAVE_SLOT, TAKE_SLOT

# Longer than a worker's report lives after the slot was renewed last, so that no two live reports have one number.
TTL = 20.0


class Slot:
    """The slot of a worker in Redis. `number` is None until `keep` was called."""

    def __init__(self, connection: Redis, worker: str) -> None:
        self.number: int | None = None
        self._connection = connection
        self._worker = worker

    def keep(self) -> None:
        """Take a slot in Redis, or renew it; take another one where another worker has it, after a long silence."""
        has = "" if self.number is None else self.number
        self.number = int(evaluate(self._connection, TAKE_SLOT, self._worker, has, ceil(TTL * 1000)))

    def give_back(self) -> None:
        if self.number is not None:
            evaluate(self._connection, LEAVE_SLOT, self._worker, self.number)
            self.number = None
