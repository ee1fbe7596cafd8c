"""Requests of this process that are about the same thing: the first does the work, the others wait and are told."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass
class Turn(Generic[T]):
    """One that has its turn may leave what the next ones need not find out again."""

    told: T | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    present: int = 0


class Turns(Generic[T]):
    """One at a time for each name."""

    def __init__(self) -> None:
        self._turns: dict[str, Turn[T]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._turns

    @asynccontextmanager
    async def take(self, name: str) -> AsyncIterator[Turn[T]]:
        turn = self._turns.setdefault(name, Turn())
        turn.present += 1
        try:
            async with turn.lock:
                yield turn
        finally:
            turn.present -= 1
            if not turn.present:
                del self._turns[name]
