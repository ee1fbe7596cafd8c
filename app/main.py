"""Assemble the application: settings, what routes share, routers by hand, one OpenAPI document."""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress

import anyio
import anyio.to_thread
from fastapi import Depends, FastAPI
from prometheus_client import start_http_server

from app import (
    aggregation,
    budgets,
    charges,
    dead_letters,
    docs,
    document,
    errors,
    events,
    health,
    jobs,
    observe,
    operations,
    privacy_metrics,
    problems,
    queries,
    remote,
    results,
    rounds,
    submissions,
    uploads,
)
from app.admission import Admission
from app.amounts import Amounts
from app.audit import Audit
from app.auth import Gate
from app.collector import Collector
from app.drain import Drain
from app.limits import Limits
from app.memory import keep_freed_memory
from app.metrics import Metrics
from app.performance import History
from app.queue import Completions, Queue
from app.settings import Settings
from app.shared import LEDGER_THREADS, Desk
from app.tally import RedisCollector
from app.turns import Turns
from kernels.catalogue import OPERATIONS
from kernels.operation import Operation
from privacy.database import connect
from privacy.ledger import Ledger
from privacy.rounds import Rounds
from privacy.seeds import Ring
from workers.queue import JobQueue, JobRecord
from workers.store import SpoolStore, Store

log = logging.getLogger("warpdesk.api")

_LAST_WORDS = 2.0  # seconds that what was counted last may take to reach Redis
_PORT_EVERY = 5.0
TURN_EVERY = 0.5  # seconds after which the event loop says that it turns
KEYS_EVERY = 2.0  # seconds after which a key that was taken out of the file stops working


def create_app(
    settings: Settings | None = None,
    operations_offered: Mapping[str, Operation] | None = None,
    store: Store | None = None,
) -> FastAPI:
    """The API; it connects when it starts. Raises `auth.UnusableKeys` where it would be open to other machines."""
    settings = settings or Settings()
    offered = OPERATIONS if operations_offered is None else operations_offered

    @asynccontextmanager
    async def lifespan(api: FastAPI) -> AsyncIterator[None]:
        keep_freed_memory()
        kept: Store = store if store is not None else SpoolStore(settings.store_directory, settings.durability)
        queue = Queue(settings.redis_url, settings.redis_patience)
        seen_of_redis = RedisCollector(settings.redis_url, settings.redis_patience)
        limits = Limits(
            settings.submissions_per_second, settings.submission_burst, "A key may submit so many jobs and arrays"
        )
        requests = Limits(
            settings.requests_per_second, settings.request_burst, "A key or a member of a round may ask so often"
        )
        drain = Drain()
        admission = Admission(settings, drain)

        database = connect(settings.ledger)
        ledger = Ledger(database, Ring(settings.ledger_key_path))
        await anyio.to_thread.run_sync(ledger.prepare)
        rounds_kept = Rounds(database)
        seen_of_ledger = Collector(
            "ledger", lambda _: privacy_metrics.look(ledger, rounds_kept), privacy_metrics.SECONDS
        )
        metrics = Metrics(seen_of_redis, seen_of_ledger, offered, api.version)

        async def seen(record: JobRecord) -> None:
            drain.ended(record)
            if record.state.final:  # a worker erases them too, but a job that went back to the queue may have none
                await results.erase_secrets(api.state.desk, record)
                await charges.ended(desk, record)
                desk.rounds_moved.set()  # one may have waited for it

        completions = Completions(settings.redis_url, queue, seen)
        threads = ThreadPoolExecutor(thread_name_prefix="upload")
        desk = api.state.desk = Desk(
            settings, offered, kept, queue, completions, metrics, History(), limits, requests, admission, Turns(),
            threads, Amounts(offered), database, ledger, anyio.CapacityLimiter(LEDGER_THREADS), rounds_kept,
            asyncio.Event(),
        )  # fmt: skip
        tasks = [
            asyncio.create_task(admission.look(), name="admission"),
            asyncio.create_task(completions.listen(), name="listen"),
            asyncio.create_task(_sweep(kept, queue.jobs, settings.sweep_every), name="sweep"),
            asyncio.create_task(charges.look(desk), name="charges"),
            asyncio.create_task(_watch_keys(api.state.gate), name="keys"),
            asyncio.create_task(aggregation.drive(desk), name="rounds"),
            asyncio.create_task(_turn(metrics), name="turn"),
        ]
        if settings.metrics_port is not None:
            tasks.append(asyncio.create_task(_serve_metrics(metrics, settings.metrics_host, settings.metrics_port)))
        for collector in (seen_of_redis, seen_of_ledger):
            collector.start()
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
            threads.shutdown()
            for collector in (seen_of_redis, seen_of_ledger):
                await anyio.to_thread.run_sync(collector.stop, _LAST_WORDS)
            admission.close()
            queue.close()
            database.dispose()

    api = FastAPI(
        title="Warpdesk",
        version="0.1.0",
        summary="Trading indicators, Monte Carlo, matrix products, differential-privacy noise and secure aggregation",
        lifespan=lifespan,
        dependencies=[Depends(queries.declared_alone)],
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
    )
    settings.home.mkdir(mode=0o700, parents=True, exist_ok=True)
    api.state.audit = Audit(settings.audit_path)
    api.state.gate = Gate(
        settings.keys_path,
        settings.host,
        Limits(
            settings.failed_logins_per_second,
            settings.failed_login_burst,
            "One address may send so many requests without a valid key or join token",
        ),
    )
    errors.install(api)
    for router in (  # in this order it is looked where a request belongs: the most frequent first
        submissions.router,
        operations.router,
        uploads.router,
        jobs.router,
        results.router,
        events.router,
        rounds.router,
        dead_letters.router,
        budgets.router,
        remote.router,
        health.router,
        problems.router,
        docs.router,
    ):
        api.include_router(router)
    api.add_middleware(observe.Observe)
    document.install(api, offered)
    return api


async def _sweep(store: Store, queue: JobQueue, every: float) -> None:
    """Delete what has outlived its time. A sweep that fails is tried again at the next turn."""
    while True:
        await asyncio.sleep(every)
        try:
            # What is about to be deleted is forbidden first, so that no job is enqueued with it in between.
            removed = await anyio.to_thread.run_sync(store.sweep, lambda owner, array: not queue.forbid(owner, array))
        except Exception as error:  # noqa: BLE001 - Redis away, a full disk: the API must go on
            log.warning("nothing swept: %s: %s", type(error).__name__, error)
        else:
            if removed:
                log.info("swept %d expired files", removed)


async def _serve_metrics(metrics: Metrics, host: str, port: int) -> None:
    """On a port without keys. One of several processes of a host has it; when that ends, another takes it."""
    told = False
    while True:
        try:
            server, thread = start_http_server(port, host, metrics.registry)
        except OSError as error:
            if not told:
                log.warning("%s:%d has metrics already, or cannot be had (%s): it is tried again", host, port, error)
                told = True
            await asyncio.sleep(_PORT_EVERY)
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


async def _watch_keys(gate: Gate) -> None:
    while True:
        await asyncio.sleep(KEYS_EVERY)
        await anyio.to_thread.run_sync(gate.reload)
