"""A fair semaphore for slow work: a limited number of places, given to owners in turn."""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Places:
    """A fair semaphore for routes: it has `whole` places, of which one owner has at most `each`.

    A free place goes to the waiting owner who has the fewest. An owner's own requests are served in order of arrival.
    """

    def __init__(self, whole: int, each: int) -> None:
        self._free, self._each = whole, each
        self._held: Counter[str] = Counter()  # places, by owner
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # owners who were served last come last
        self.present: Counter[str] = Counter()  # requests that have a place or wait for one, by owner

    def ahead(self, owner: str) -> int:
        """The number of requests that the fair semaphore gives a place before the owner's next request."""
        own = self.present[owner]
        return own + sum(min(count, own + 1) for other, count in self.present.items() if other != owner)

    @asynccontextmanager
    async def take(self, owner: str) -> AsyncIterator[None]:
        """Wait for a place of the fair semaphore, and hold it until the block is left."""
        self.present[owner] += 1
        try:
            await self._enter(owner)
            try:
                yield
            finally:
                self._leave(owner)
        finally:
            self.present[owner] -= 1
            if not self.present[owner]:
                del self.present[owner]

    async def _enter(self, owner: str) -> None:
        if self._free and self._held[owner] < self._each:  # nobody waits for what is free but who may not have it
            self._free -= 1
            self._held[owner] += 1
            return
        place = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(place)
        self._serve()
        try:
            await place
        except asyncio.CancelledError:
            if not place.cancelled():  # it was given in the moment in which it was given up
                self._leave(owner)
            elif place in (waiting := self._waiting.get(owner, deque())):  # else it was passed over already
                waiting.remove(place)
                if not waiting:
                    del self._waiting[owner]
            raise

    def _leave(self, owner: str) -> None:
        self._free += 1
        self._held[owner] -= 1
        if not self._held[owner]:
            del self._held[owner]
        self._serve()

    def _serve(self) -> None:
        """Give free places of the fair semaphore to the waiting owners who hold the fewest."""
        while self._free and (able := [owner for owner in self._waiting if self._held[owner] < self._each]):
            owner = min(able, key=self._held.__getitem__)
            waiting = self._waiting.pop(owner)
            place = waiting.popleft()
            if waiting:
                self._waiting[owner] = waiting
            if not place.cancelled():
                self._free -= 1
                self._held[owner] += 1
                place.set_result(None)
