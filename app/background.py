"""Background loops of an API process: a table of them, and what begins each again when it fails."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import anyio.to_thread
from prometheus_client import start_http_server
from redis.exceptions import RedisError

from warpdesk_server.app.access.auth import Gate
from warpdesk_server.app.access.keys import LOCAL, read_keys
from warpdesk_server.app.arrays import storage
from warpdesk_server.app.budgets import settlement
from warpdesk_server.app.jobs import results
from warpdesk_server.app.jobs.completions import Completions
from warpdesk_server.app.jobs.queue import Queue
from warpdesk_server.app.metrics.exposition import Metrics
from warpdesk_server.app.rounds import driver
from warpdesk_server.app.services import Services
from warpdesk_server.app.settings import Settings
from warpdesk_server.workers.queue.records import JobRecord
from warpdesk_server.workers.store.protocol import Store

log = logging.getLogger("warpdesk.api")

Loop = Callable[[], Coroutine[Any, Any, None]]

PORT_EVERY = 5.0  # seconds between two tries to have the port of metrics
AGAIN = 1.0  # seconds until a loop that failed is begun again
TURN_EVERY = 0.5  # seconds after which the event loop says that it turns
KEYS_EVERY = 2.0  # seconds after which a key that was taken out of the file stops working


def loops(services: Services, gate: Gate) -> dict[str, Loop]:
    """Every background loop of the API by its name, the first one first."""
    settings, store, jobs, completions = services.settings, services.store, services.queue.jobs, services.completions
    table: dict[str, Loop] = {
        "sign": lambda: _sign_older(services.queue, store, settings),
        "watchdog": services.watchdog.watch,
        "admission": services.admission.look,
        "hear": completions.hear,
        "read": completions.read,
        "poll": completions.poll,
        "follow": lambda: completions.follow_ends(partial(_follow_up, services)),
        "sweep": lambda: storage.sweep(store, jobs, settings.sweep_every),
        "storage": lambda: storage.keep_count(store),
        "charges": lambda: settlement.look(services),
        "keys": lambda: _watch_keys(gate, services.completions),
        "rounds": lambda: driver.drive(services),
        "turn": lambda: _turn(services.metrics),
    }
    if (port := settings.metrics_port) is not None:
        table["metrics"] = lambda: _serve_metrics(services.metrics, settings.metrics_host, port)
    return table


@asynccontextmanager
async def running(table: dict[str, Loop]) -> AsyncIterator[None]:
    """Run the API's background loops until the block is left. The first may take a second before it is entered: jobs
    have to be signed before anyone asks for them, unless Redis is away."""
    tasks = [asyncio.create_task(keep_going(name, loop), name=name) for name, loop in table.items()]
    await asyncio.wait(tasks[:1], timeout=1.0)
    try:
        yield
    finally:
        left = {*tasks}
        while left:  # wait_for of Python 3.11 can swallow a cancel that meets its end, as redis-py connects
            for task in left:
                task.cancel()
            _, left = await asyncio.wait(left, timeout=1.0)
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task


async def keep_going(name: str, loop: Loop) -> None:
    """Begin a background loop of the API again where it fails, for as long as the API runs or until the loop is
    done."""
    while True:
        try:
            await loop()
            return
        except Exception:
            log.exception("%r failed, and is restarted in %g s", name, AGAIN)
        await asyncio.sleep(AGAIN)


async def _follow_up(services: Services, record: JobRecord) -> None:
    """What every part of the API does in the background at the end of a job."""
    services.admission.ended(record)
    services.predictions.ended(record)
    storage.ended(services.store, record)
    if record.state.final:  # a worker erases them too, but a job that went back to the queue may have none
        await results.erase_secrets(services, record)
        await settlement.ended(services, record)
        if record.request.operation == driver.OPERATION:
            services.rounds_moved.set()  # one may have waited for it


async def _sign_older(queue: Queue, store: Store, settings: Settings) -> None:
    """A loop of the API that ends: once in the life of a store, sign the jobs that a release without MACs has
    queued."""
    while not await anyio.to_thread.run_sync(lambda: store.records_signed):
        owners = [LOCAL, *read_keys(settings.keys_path)]
        try:
            await anyio.to_thread.run_sync(queue.jobs.sign_older, owners)
            await anyio.to_thread.run_sync(store.note_signed_records)
        except (RedisError, OSError) as error:
            log.warning("jobs of an earlier release are not signed yet: %s", error)
            await asyncio.sleep(1.0)


async def _serve_metrics(metrics: Metrics, host: str, port: int) -> None:
    """A loop of the API: serve metrics on a port without keys. One of several processes of a host has it; when that
    ends, another takes it."""
    logged = False
    while True:
        try:
            server, thread = start_http_server(port, host, metrics.registry)
        except OSError as error:
            if not logged:
                log.warning("this process cannot serve metrics at %s:%d (%s), trying again", host, port, error)
                logged = True
            await asyncio.sleep(PORT_EVERY)
            continue
        try:
            await asyncio.Event().wait()
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


async def _turn(metrics: Metrics) -> None:
    while True:
        metrics.turned()
        await asyncio.sleep(TURN_EVERY)


async def _watch_keys(gate: Gate, completions: Completions) -> None:
    while True:
        await asyncio.sleep(KEYS_EVERY)
        await anyio.to_thread.run_sync(gate.reload)
        completions.dismiss()
