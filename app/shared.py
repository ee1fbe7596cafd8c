"""What the routes of one application share, made when it starts."""

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated

from anyio import CapacityLimiter
from fastapi import Depends, Request
from redis.exceptions import RedisError
from sqlalchemy import Engine

from app.admission import Admission
from app.amounts import Amounts
from app.errors import Refusal
from app.limits import Limits
from app.metrics import Metrics
from app.performance import History
from app.queue import Completions, Queue
from app.settings import Settings
from app.turns import Turns
from kernels.operation import Operation
from privacy.ledger import Ledger
from privacy.rounds import Rounds
from workers.store import Store

LEDGER_THREADS = 8  # that wait for the database of budgets: where it hangs, it has these and no others


@dataclass(frozen=True)
class Desk:
    settings: Settings
    operations: Mapping[str, Operation]
    store: Store
    queue: Queue
    completions: Completions
    metrics: Metrics
    history: History
    limits: Limits  # of submissions
    requests: Limits  # of all that comes with a key or a join token
    admission: Admission
    keys: Turns[tuple[str, str]]  # Idempotency-Keys in use now, with their job and what was sent for it
    threads: ThreadPoolExecutor  # in which uploads are written
    amounts: Amounts
    database: Engine  # of budgets and rounds
    ledger: Ledger
    ledger_threads: CapacityLimiter
    rounds: Rounds
    rounds_moved: asyncio.Event  # there may be something to do for a round

    def require_redis(self) -> None:
        """Refuse what needs Redis while it is away by all that is known: nobody has to wait to find out again."""
        if self.admission.away is not None and not self.queue.usable:
            raise Refusal("queue-unavailable", self.admission.away, headers={"Retry-After": "1"})

    def allow(self, owner: str, array_id: str) -> None:
        """An array was published that may have been deleted a moment ago: jobs may read it again. Asks Redis: call it
        in a thread. While Redis is away its id stays refused, for a minute after it was deleted."""
        if self.admission.away is None:
            with suppress(RedisError, OSError):
                self.queue.jobs.allow(owner, array_id)


async def desk(request: Request) -> Desk:  # (FastAPI would call a plain function in a thread)
    found: Desk = request.app.state.desk
    return found


Shared = Annotated[Desk, Depends(desk)]
