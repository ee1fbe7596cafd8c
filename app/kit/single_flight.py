"""Single flight: of the requests with one name, one works at a time, and passes its outcome to those that wait."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass
class Flight(Generic[T]):
    """The requests that share a single flight. The holder of the lock does the work, and may set `outcome` for those
    that wait."""

    outcome: T | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    present: int = 0


class SingleFlight(Generic[T]):
    """Single flight, as locks by name: one request at a time for each name."""

    def __init__(self) -> None:
        self._flights: dict[str, Flight[T]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._flights

    @asynccontextmanager
    async def take(self, name: str) -> AsyncIterator[Flight[T]]:
        flight = self._flights.setdefault(name, Flight())
        flight.present += 1
        try:
            async with flight.lock:
                yield flight
        finally:
            flight.present -= 1
            if not flight.present:
                del self._flights[name]
