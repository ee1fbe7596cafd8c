"""Threads for calls that may hang: how they are shared between owners, and what a call leaves whose caller has gone."""

import asyncio
import threading
import weakref

from warpdesk_server.app.kit.threads import Threads


class Sent:
    """A body that a caller sent."""


async def calm() -> None:
    """Let every task run until it waits."""
    for _ in range(20):
        await asyncio.sleep(0)


def test_calls_of_one_owner_leave_threads_to_others_though_their_callers_have_gone() -> None:
    async def play() -> None:
        threads, free = Threads("test", 4, 2), threading.Event()
        began = list[int]()

        def hang(number: int) -> None:
            began.append(number)
            assert free.wait(60)

        greedy = [asyncio.create_task(threads.run("greedy", lambda number=number: hang(number))) for number in range(6)]  # type: ignore[misc]
        while len(began) < 2:
            await asyncio.sleep(0.01)
        for caller in greedy[:4]:
            caller.cancel()
        await calm()
        try:
            assert await asyncio.gather(*(threads.run("calm", lambda: threading.get_ident()) for _ in range(4)))
            assert sorted(began) == [0, 1]
        finally:
            free.set()
        ends = await asyncio.gather(*greedy, return_exceptions=True)
        assert [isinstance(end, asyncio.CancelledError) for end in ends] == [True] * 4 + [False] * 2
        assert sorted(began) == [0, 1, 4, 5]
        threads.close()

    asyncio.run(play())


def test_nothing_is_left_of_a_call_that_had_not_begun_when_its_caller_went() -> None:
    async def play() -> None:
        threads, free = Threads("test", 1, 1), threading.Event()
        hanging = asyncio.create_task(threads.run("a", lambda: free.wait(60)))
        await calm()
        sent = Sent()
        left = weakref.ref(sent)
        caller = asyncio.create_task(threads.run("a", lambda sent=sent: sent))  # type: ignore[misc]
        await calm()
        caller.cancel()
        await asyncio.wait([caller])
        await calm()
        del sent, caller
        assert left() is None
        free.set()
        assert await hanging
        threads.close()

    asyncio.run(play())
