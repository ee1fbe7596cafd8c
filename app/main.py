"""Assemble the application: settings, what routes share, routers by hand, one OpenAPI document."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import anyio.to_thread
from fastapi import Depends, FastAPI
from prometheus_client import start_http_server
from redis.exceptions import RedisError

from warpdesk_server.app.access.audit import Audit
from warpdesk_server.app.access.auth import LOCAL, Gate, read_keys
from warpdesk_server.app.arrays import endpoints as uploads
from warpdesk_server.app.arrays import storage
from warpdesk_server.app.budgets import charging
from warpdesk_server.app.budgets import endpoints as budgets
from warpdesk_server.app.health import endpoints as health
from warpdesk_server.app.http import docs, document, observe, queries
from warpdesk_server.app.http.connections import most_connections
from warpdesk_server.app.http.memory import keep_freed_memory
from warpdesk_server.app.jobs import dead_letters, events, operations, results, submission
from warpdesk_server.app.jobs import endpoints as jobs
from warpdesk_server.app.jobs.admission import Admission
from warpdesk_server.app.jobs.completions import Completions
from warpdesk_server.app.jobs.queue import Queue
from warpdesk_server.app.jobs.throughput import Drain
from warpdesk_server.app.jobs.watchdog import Watchdog
from warpdesk_server.app.kit import errors, limits, problems
from warpdesk_server.app.kit.amounts import Amounts
from warpdesk_server.app.kit.limits import Limits, Shares
from warpdesk_server.app.kit.places import Places
from warpdesk_server.app.kit.single_flight import Turns
from warpdesk_server.app.kit.threads import Threads
from warpdesk_server.app.metrics import privacy as privacy_metrics
from warpdesk_server.app.metrics.collector import Collector
from warpdesk_server.app.metrics.exposition import Metrics
from warpdesk_server.app.metrics.performance import History
from warpdesk_server.app.metrics.redis_source import RedisCollector
from warpdesk_server.app.remote import endpoints as remote
from warpdesk_server.app.rounds import driver
from warpdesk_server.app.rounds import endpoints as rounds
from warpdesk_server.app.services import Services
from warpdesk_server.app.settings import Settings
from warpdesk_server.kernels.catalogue import OPERATIONS
from warpdesk_server.kernels.operation import Operation
from warpdesk_server.privacy.opening import open_ledger
from warpdesk_server.privacy.rounds.state import Rounds
from warpdesk_server.workers.queue.jobs import JobRecord
from warpdesk_server.workers.store.protocol import Store
from warpdesk_server.workers.store.usage import StoreFull

log = logging.getLogger("warpdesk_server.service.api")

_LAST_WORDS = 2.0  # seconds that what was counted last may take to reach Redis
_PORT_EVERY = 5.0
_AGAIN = 1.0  # seconds until what failed is begun again
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
        ledger = await anyio.to_thread.run_sync(open_ledger, settings.ledger_place)
        database = ledger.engine
        kept: Store = store if store is not None else storage.open_store(settings)
        with suppress(StoreFull):  # then nobody's bytes are known until it can be read
            await anyio.to_thread.run_sync(kept.sync)
        queue = Queue(settings.redis_url, settings.redis_patience, kept.mac_of)
        seen_of_redis = RedisCollector(settings.redis_url, settings.redis_patience)
        places = most_connections(settings.max_connections)
        of_workers = max(2, places // limits.WORKERS_PART)
        drain = Drain()
        admission = Admission(settings, drain)
        watchdog = Watchdog(settings.redis_url, settings.redis_patience)

        rounds_kept = Rounds(database)
        seen_of_ledger = Collector(
            "ledger", lambda _: privacy_metrics.look(ledger, rounds_kept), privacy_metrics.SECONDS
        )
        metrics = Metrics(seen_of_redis, seen_of_ledger, offered, api.version, kept)

        async def seen(record: JobRecord) -> None:
            drain.ended(record)
            storage.ended(kept, record)
            if record.state.final:  # a worker erases them too, but a job that went back to the queue may have none
                await results.erase_secrets(api.state.services, record)
                await charging.ended(services, record)
                if record.request.operation == driver.OPERATION:
                    services.rounds_moved.set()  # one may have waited for it

        completions = Completions(settings.redis_url, queue, seen)
        threads = ThreadPoolExecutor(thread_name_prefix="upload")
        ledger_threads = Threads("ledger", limits.LEDGER_THREADS, limits.LEDGER_THREADS // 2)
        services = api.state.services = Services(
            settings=settings,
            operations=offered,
            store=kept,
            queue=queue,
            completions=completions,
            metrics=metrics,
            history=History(),
            limits=Limits(
                settings.submissions_per_second, settings.submission_burst, "A key may submit so many jobs and arrays"
            ),
            requests=Limits(
                settings.requests_per_second, settings.request_burst, "A key or a member of a round may ask so often"
            ),
            under_way=Shares(
                "Requests under way", each=min(settings.max_requests_per_key, max(1, places // 2)), whole=places
            ),
            under_way_of_workers=Shares("Requests of workers under way", each=of_workers // 2, whole=of_workers),
            waits=Shares(
                "Requests with `Prefer: wait`", each=settings.max_waits, whole=limits.OWNERS * settings.max_waits
            ),
            streams=Shares("Event streams", each=settings.max_streams, whole=limits.OWNERS * settings.max_streams),
            admission=admission,
            keys=Turns(),
            threads=threads,
            amounts=Amounts(offered),
            database=database,
            ledger=ledger,
            ledger_threads=ledger_threads,
            rounds=rounds_kept,
            rounds_moved=asyncio.Event(),
            buffers=Shares("Bytes of bodies", each=settings.buffered_per_key, whole=settings.buffered_in_all),
            json_turns=Places(limits.JSON_IN_ALL, limits.JSON_PER_KEY),
            csvs=Places(limits.CSV_IN_ALL, limits.CSV_PER_KEY),
            unwritten=Shares("Bytes of arrays", each=limits.UNWRITTEN_PER_KEY, whole=limits.UNWRITTEN_IN_ALL),
            for_workers=Shares("Bytes for workers", each=limits.FOR_WORKERS_PER_KEY, whole=limits.FOR_WORKERS_IN_ALL),
        )
        running: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
            "sign": lambda: _sign_older(queue, settings),
            "watchdog": watchdog.watch,
            "admission": admission.look,
            "listen": completions.listen,
            "sweep": lambda: storage.sweep(kept, queue.jobs, settings.sweep_every),
            "storage": lambda: storage.keep_count(kept),
            "charges": lambda: charging.look(services),
            "keys": lambda: _watch_keys(api.state.gate, completions),
            "rounds": lambda: driver.drive(services),
            "turn": lambda: _turn(metrics),
        }
        if (port := settings.metrics_port) is not None:
            running["metrics"] = lambda: _serve_metrics(metrics, settings.metrics_host, port)
        tasks = [asyncio.create_task(_keep_going(name, work), name=name) for name, work in running.items()]
        await asyncio.wait(tasks[:1], timeout=1.0)  # before anyone asks for what was signed, unless Redis is away
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
            ledger_threads.close()
            await anyio.to_thread.run_sync(kept.close)
            for collector in (seen_of_redis, seen_of_ledger):
                await anyio.to_thread.run_sync(collector.stop, _LAST_WORDS)
            watchdog.close()
            admission.close()
            queue.close()
            ledger.dispose()

    api = FastAPI(
        title="Warpdesk",
        version="0.1.0",
        summary="Trading indicators, Monte Carlo, matrix products, differential-privacy noise and secure aggregation",
        lifespan=lifespan,
        dependencies=[Depends(queries.declared_alone)],
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
        # A span of a request that waited for a private job is that job's time.
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
    )
    settings.home.mkdir(mode=0o700, parents=True, exist_ok=True)
    api.state.audit = Audit(settings.audit_path)
    api.state.gate = Gate(
        settings.keys_path,
        settings.home,
        settings.host,
        Limits(
            settings.failed_logins_per_second,
            settings.failed_login_burst,
            "One address may send so many requests without a valid key or join token",
        ),
    )
    errors.install(api)
    for router in (  # in this order it is looked where a request belongs: the most frequent first
        submission.router,
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


async def _keep_going(name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """What runs beside requests: where it fails it is begun again, for as long as the API runs or until it is done."""
    while True:
        try:
            await work()
            return
        except Exception:
            log.exception("%r failed, and begins again in %g s", name, _AGAIN)
        await asyncio.sleep(_AGAIN)


async def _sign_older(queue: Queue, settings: Settings) -> None:
    """Once in the life of a store: sign what a release without MACs has queued."""
    done = settings.store_directory / "records-signed"
    while not await anyio.to_thread.run_sync(done.exists):
        owners = [LOCAL, *read_keys(settings.keys_path)]
        try:
            await anyio.to_thread.run_sync(queue.jobs.sign_older, owners)
            await anyio.to_thread.run_sync(done.touch)
        except (RedisError, OSError) as error:
            log.warning("jobs of an earlier release are not signed yet: %s", error)
            await asyncio.sleep(1.0)


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


async def _watch_keys(gate: Gate, completions: Completions) -> None:
    while True:
        await asyncio.sleep(KEYS_EVERY)
        await anyio.to_thread.run_sync(gate.reload)
        completions.dismiss()
