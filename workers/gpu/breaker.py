"""The circuit breaker: it opens after faults of several jobs within a time, and is tried again after a cool-down.

    closed ──faults of enough jobs──▶ open ──cool-down──▶ half-open ──success──▶ closed
                                       ▲                      │
                                       └──a fault: cool down twice as long──┘

A pure state machine: every call gets the time, in Unix seconds because people read it in reports. A breaker guards a
kernel on a GPU, one example of an operation, or the GPU itself.
"""

from typing import Literal

BreakerState = Literal["closed", "open", "half-open"]

LONGEST_COOL_DOWN = 600.0  # seconds


class Breaker:
    """A circuit breaker that keeps what failed off a GPU.

    It opens after faults of `jobs` different jobs within `within` seconds, for `cool_down` seconds at first.

    A job counts once however often it fails: one odd request does not show that the kernel is broken.
    """

    def __init__(self, jobs: int = 3, within: float = 60.0, cool_down: float = 30.0) -> None:
        self.reason = ""  # the last fault, in words
        self.since = 0.0  # when it opened first and has not been closed since
        self.next_probe = 0.0  # when it is, or was, half-open
        self._jobs = jobs
        self._within = within
        self._first_cool_down = self._cool_down = cool_down
        self._faults: dict[str, float] = {}
        self._closed = True

    def state(self, now: float) -> BreakerState:
        if self._closed:
            return "closed"
        return "open" if now < self.next_probe else "half-open"

    def fault(self, job: str, reason: str, now: float) -> bool:
        """Count a fault on the GPU; True if it opened the breaker, or opened it again from half-open."""
        if (state := self.state(now)) != "closed":
            if state == "half-open":
                self.open(reason, now)
            return state == "half-open"
        self._faults[job] = now
        self._faults = {job: at for job, at in self._faults.items() if now - at < self._within}
        self.reason = reason
        if len(self._faults) < self._jobs:
            return False
        self.open(reason, now)
        return True

    def open(self, reason: str, now: float) -> None:
        """Open the GPU's breaker at once; if it was open already, double the cool-down."""
        if self._closed:
            self._closed, self.since, self._cool_down = False, now, self._first_cool_down
        else:
            self._cool_down = min(LONGEST_COOL_DOWN, 2 * self._cool_down)
        self.reason = reason
        self.next_probe = now + self._cool_down
        self._faults.clear()

    def success(self, now: float) -> bool:
        """Record a success on the GPU; True if it closed the breaker. Only a half-open breaker closes."""
        if self.state(now) != "half-open":
            return False
        self._closed = True
        return True
