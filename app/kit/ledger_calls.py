"""Calls to the database of privacy budgets and rounds, in threads of their own. Their errors become refusals."""

from collections.abc import Callable
from typing import TypeVar

import anyio

from warpdesk_server.app.kit import errors
from warpdesk_server.app.kit.threads import Threads
from warpdesk_server.privacy.database import DatabaseUnavailable
from warpdesk_server.privacy.errors import Refused

T = TypeVar("T")

PATIENCE = 10.0  # seconds that a caller waits for the ledger


async def in_time(threads: Threads, owner: str, call: Callable[[], T], patience: float = PATIENCE) -> T:
    """Call the ledger's database for a route; refuse with `ledger-unavailable` after `patience` seconds.

    A call that hangs keeps its thread: there are few, and one owner has at most half of them.
    """
    try:
        with anyio.fail_after(patience):
            return await to_the_end(threads, owner, call)
    except TimeoutError as error:
        raise errors.ledger_unavailable(errors.reason_of(error)) from None


async def to_the_end(threads: Threads, owner: str, call: Callable[[], T]) -> T:
    """Call the ledger's database for a route, and wait however long it takes."""
    try:
        return await threads.run(owner, call)
    except (Refused, DatabaseUnavailable) as error:
        raise errors.refusal_of(error) from None
