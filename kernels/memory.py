"""Memory of a device, as the one process that owns it sees it."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class MemoryReport:
    """Bytes. `used` is in arrays, `held` is what the pool took from the driver (used and kept for reuse) and never
    passes `limit`. `stuck` is held, not used, and did not go back when it was asked to. `outside` is what this process
    has on the device beside its pool: the context, modules, libraries. `peak` is the most used since it was last
    reset."""

    used: int
    held: int
    limit: int
    stuck: int = 0
    outside: int | None = None
    peak: int = 0


class Memory(Protocol):
    """What a device answers about its memory, and what can be done about it."""

    def room(self) -> int:
        """Bytes that new arrays could take now: within the limit, and free on the device or held for reuse."""

    def release(self) -> None:
        """Give what is held and not used back to the driver."""

    def report(self) -> MemoryReport: ...
