"""Threads for calls that may hang: a call keeps its thread until it ends, though its caller has gone."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

T = TypeVar("T")


async def run(threads: ThreadPoolExecutor, call: Callable[[], T]) -> T:
    """The answer of a call. Who is canceled while it runs gets no answer, and the call goes on; one that has not begun
    never does. (AnyIO's limiters count an abandoned call no more, and start another thread in its place.)"""
    return await asyncio.wrap_future(threads.submit(copy_context().run, call))
