"""The services of one application: what its routes and background loops share, made when it starts."""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, TypeVar

from fastapi import Depends, Request
from redis.exceptions import RedisError
from sqlalchemy import Engine

from warpdesk_server.app.datasets.collection import Datasets
from warpdesk_server.app.jobs.admission import Admission
from warpdesk_server.app.jobs.completions import Completions
from warpdesk_server.app.jobs.predictions import Predictions
from warpdesk_server.app.jobs.queue import Queue
from warpdesk_server.app.jobs.watchdog import Watchdog
from warpdesk_server.app.kit import ledger_calls
from warpdesk_server.app.kit.amounts import Amounts
from warpdesk_server.app.kit.errors import Refusal
from warpdesk_server.app.kit.limits import Limits, Shares
from warpdesk_server.app.kit.places import Places
from warpdesk_server.app.kit.single_flight import SingleFlight
from warpdesk_server.app.kit.threads import Threads
from warpdesk_server.app.metrics.exposition import Metrics
from warpdesk_server.app.metrics.performance import History
from warpdesk_server.app.settings import Settings
from warpdesk_server.kernels.operation import Computation
from warpdesk_server.privacy.ledger import Ledger
from warpdesk_server.privacy.rounds.state import Rounds
from warpdesk_server.workers.store.protocol import Store

T = TypeVar("T")


@dataclass(frozen=True)
class Services:
    settings: Settings
    operations: Mapping[str, Computation]
    store: Store
    queue: Queue
    completions: Completions
    metrics: Metrics
    history: History
    submission_rate: Limits
    request_rate: Limits  # of all that comes with a key or a join token
    under_way: Shares  # requests of a key, but a worker's
    under_way_of_workers: Shares
    waits: Shares
    streams: Shares
    admission: Admission
    predictions: Predictions
    watchdog: Watchdog
    idempotency: SingleFlight[tuple[str, str]]  # Idempotency-Keys in use now, with their job and what was sent for it
    threads: ThreadPoolExecutor  # in which uploads are written
    amounts: Amounts
    datasets: Datasets
    dataset_threads: Threads
    database: Engine  # of budgets and rounds
    ledger: Ledger
    ledger_threads: Threads
    rounds: Rounds
    rounds_moved: asyncio.Event  # there may be something to do for a round
    buffers: Shares  # bytes of bodies that are read whole into memory
    json_turns: Places  # bodies that are parsed in threads
    bundles: Shares  # bodies of several jobs, until these are queued
    bundle_turns: Places
    csvs: Places  # processes that read a CSV
    unwritten: Shares  # bytes of arrays that wait to be written
    for_workers: Shares  # bytes of documents and inputs of workers of other hosts

    async def ask_ledger(self, owner: str, call: Callable[[], T]) -> T:
        """The answer of the database of budgets and rounds to a route, or a refusal; the call takes one of the
        owner's threads."""
        return await ledger_calls.in_time(self.ledger_threads, owner, call)

    def require_redis(self) -> None:
        """Refuse a request that needs Redis while it is away by all that is known: nobody has to wait to find out
        again."""
        if self.admission.away is not None and not self.queue.usable:
            raise Refusal("queue-unavailable", self.admission.away, headers={"Retry-After": "1"})

    def allow(self, owner: str, array_id: str) -> None:
        """Let jobs read an array again that was published, and may have been deleted a moment ago. Asks Redis: call
        it in a thread. While Redis is away its id stays refused, for a minute after it was deleted; also where it
        was deleted again since."""
        if self.admission.away is None:
            with suppress(RedisError, OSError), self.store.alone(owner):
                if self.store.info_of(owner, array_id) is not None:
                    self.queue.jobs.allow(owner, array_id)

    def delete_unread(self, owner: str, array_id: str) -> bool:
        """Delete an array of the API's store unless a job reads it; returns whether none does. Asks Redis: call it
        through `queue`.

        No job can be queued with the array from then on. Nobody can upload it again between that and its deletion.
        """
        unread = True

        def forbid() -> bool:
            nonlocal unread
            self.require_redis()  # others wait for their turn here: not for a Redis that does not answer
            unread = self.queue.jobs.forbid(owner, array_id)
            return unread

        self.store.delete(owner, array_id, forbid)
        return unread


async def services(request: Request) -> Services:  # (FastAPI would call a plain function in a thread)
    found: Services = request.app.state.services
    return found


ServicesDep = Annotated[Services, Depends(services)]
