"""A thread pool for calls that may hang: a call keeps its thread until it ends, even if its caller has gone."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

from warpdesk_server.app.kit.places import Places

T = TypeVar("T")


class Threads:
    """The API's pool of `whole` threads, of which one owner's calls have at most `each`. Calls wait for a thread in
    turn."""

    def __init__(self, name: str, whole: int, each: int) -> None:
        self._pool = ThreadPoolExecutor(whole, thread_name_prefix=name)
        self._places = Places(whole, each)

    async def run(self, owner: str, call: Callable[[], T]) -> T:
        """Run an owner's call in the pool's threads and return its answer. If the caller is canceled, a running call
        goes on and keeps its thread.

        A call that has not begun is dropped. (AnyIO's limiters stop counting an abandoned call, and start another
        thread.)
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
        """Shut the API's thread pool down without waiting for running calls, since they may hang."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _forget(turn: "asyncio.Task[object]") -> None:
    """Retrieve the error of an abandoned call in a pool's thread, so that asyncio does not log it."""
    if not turn.cancelled():
        turn.exception()
