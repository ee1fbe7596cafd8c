"""Threads for calls that may hang: a call keeps its thread until it ends, though its caller has gone."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

from warpdesk_server.app.kit.places import Places

T = TypeVar("T")


class Threads:
    """So many threads, of which the calls of one owner have at most `each` at once. Calls wait for one in turn."""

    def __init__(self, name: str, whole: int, each: int) -> None:
        self._pool = ThreadPoolExecutor(whole, thread_name_prefix=name)
        self._places = Places(whole, each)

    async def run(self, owner: str, call: Callable[[], T]) -> T:
        """The answer of a call. Who is canceled while it runs gets no answer, and the call goes on in its place; of one
        that has not begun nothing is left. (AnyIO's limiters count an abandoned call no more, and start a thread.)
        """
        begun = False

        async def in_turn() -> T:
            nonlocal begun
            async with self._places.take(owner):
                begun = True
                return await asyncio.get_running_loop().run_in_executor(self._pool, copy_context().run, call)

        turn = asyncio.create_task(in_turn())
        try:
            return await asyncio.shield(turn)
        except asyncio.CancelledError:
            if begun:
                turn.add_done_callback(_forget)
            else:
                turn.cancel()
            raise

    def close(self) -> None:
        """Wait for no call: it may hang."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _forget(turn: "asyncio.Task[object]") -> None:
    """Nobody waits for its answer, nor for its error."""
    if not turn.cancelled():
        turn.exception()
