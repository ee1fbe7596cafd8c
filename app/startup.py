"""Start and stop of an API process: opens what its services stand on, and closes that once the last request is over."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress

import anyio
import anyio.to_thread

from warpdesk_server.app.arrays import storage
from warpdesk_server.app.datasets.collection import Datasets
from warpdesk_server.app.http.connections import most_connections
from warpdesk_server.app.http.memory import keep_freed_memory
from warpdesk_server.app.jobs.admission import Admission
from warpdesk_server.app.jobs.completions import Completions
from warpdesk_server.app.jobs.predictions import Predictions
from warpdesk_server.app.jobs.queue import Queue
from warpdesk_server.app.jobs.throughput import ThroughputEstimate
from warpdesk_server.app.jobs.watchdog import Watchdog
from warpdesk_server.app.kit import limits
from warpdesk_server.app.kit.amounts import Amounts
from warpdesk_server.app.kit.limits import Limits, Shares
from warpdesk_server.app.kit.places import Places
from warpdesk_server.app.kit.single_flight import SingleFlight
from warpdesk_server.app.kit.threads import Threads
from warpdesk_server.app.metrics import privacy as privacy_metrics
from warpdesk_server.app.metrics.collector import Collector
from warpdesk_server.app.metrics.exposition import Metrics
from warpdesk_server.app.metrics.performance import History
from warpdesk_server.app.metrics.redis_source import RedisCollector
from warpdesk_server.app.services import Services
from warpdesk_server.app.settings import Settings
from warpdesk_server.kernels.operation import Computation
from warpdesk_server.privacy.opening import open_ledger
from warpdesk_server.privacy.rounds.state import Rounds
from warpdesk_server.workers.store.protocol import Store
from warpdesk_server.workers.store.usage import StoreFull

LAST_WORDS = 2.0  # seconds that what was counted last may take to reach Redis


@asynccontextmanager
async def opened(
    settings: Settings, operations: Mapping[str, Computation], version: str, store: Store | None = None
) -> AsyncIterator[Services]:
    """The services of the API, opened at its start and closed when the block is left. `store` stands for the one of
    the settings."""
    keep_freed_memory()
    ledger = await anyio.to_thread.run_sync(open_ledger, settings.ledger_place)
    database = ledger.engine
    kept: Store = store if store is not None else storage.open_store(settings)
    with suppress(StoreFull):  # then nobody's bytes are known until it can be read
        await anyio.to_thread.run_sync(kept.sync)
    replicas = settings.replicas if settings.durability == "replicated" else 0
    queue = Queue(settings.redis_url, settings.redis_patience, kept.mac_of, replicas)
    seen_of_redis = RedisCollector(settings.redis_url, settings.redis_patience)
    places = most_connections(settings.max_connections)
    of_workers = max(2, places // limits.WORKERS_PART)
    admission = Admission(settings, ThroughputEstimate())
    watchdog = Watchdog(settings.redis_url, settings.redis_patience)

    rounds_kept = Rounds(database)
    seen_of_ledger = Collector("ledger", lambda _: privacy_metrics.look(ledger, rounds_kept), privacy_metrics.SECONDS)
    metrics = Metrics(seen_of_redis, seen_of_ledger, operations, version, kept)
    threads = ThreadPoolExecutor(thread_name_prefix="upload")
    ledger_threads = Threads("ledger", limits.LEDGER_THREADS, limits.LEDGER_THREADS // 2)
    dataset_threads = Threads("dataset", limits.DATASET_THREADS, limits.DATASET_THREADS // 2)
    services = Services(
        settings=settings,
        operations=operations,
        store=kept,
        queue=queue,
        completions=Completions(settings.redis_url, queue),
        metrics=metrics,
        history=History(),
        submission_rate=Limits(
            settings.submissions_per_second, settings.submission_burst, "A key may submit so many jobs and arrays"
        ),
        request_rate=Limits(
            settings.requests_per_second, settings.request_burst, "A key or a member of a round may ask so often"
        ),
        under_way=Shares(
            "Requests under way", each=min(settings.max_requests_per_key, max(1, places // 2)), whole=places
        ),
        under_way_of_workers=Shares("Requests of workers under way", each=of_workers // 2, whole=of_workers),
        waits=Shares("Requests with `Prefer: wait`", each=settings.max_waits, whole=limits.OWNERS * settings.max_waits),
        streams=Shares("Event streams", each=settings.max_streams, whole=limits.OWNERS * settings.max_streams),
        admission=admission,
        predictions=Predictions(),
        watchdog=watchdog,
        idempotency=SingleFlight(),
        threads=threads,
        amounts=Amounts(operations),
        datasets=Datasets(kept, settings.max_datasets),
        dataset_threads=dataset_threads,
        database=database,
        ledger=ledger,
        ledger_threads=ledger_threads,
        rounds=rounds_kept,
        rounds_moved=asyncio.Event(),
        buffers=Shares("Bytes of bodies", each=settings.buffered_per_key, whole=settings.buffered_in_all),
        json_turns=Places(limits.JSON_IN_ALL, limits.JSON_PER_KEY),
        bundles=Shares("Submissions of several jobs", each=limits.BUNDLES_PER_KEY, whole=limits.BUNDLES_IN_ALL),
        bundle_turns=Places(limits.BUNDLE_TURNS, 1),
        csvs=Places(limits.CSV_IN_ALL, limits.CSV_PER_KEY),
        unwritten=Shares("Bytes of arrays", each=limits.UNWRITTEN_PER_KEY, whole=limits.UNWRITTEN_IN_ALL),
        for_workers=Shares("Bytes for workers", each=limits.FOR_WORKERS_PER_KEY, whole=limits.FOR_WORKERS_IN_ALL),
    )
    for collector in (seen_of_redis, seen_of_ledger):
        collector.start()
    try:
        yield services
    finally:
        threads.shutdown()
        ledger_threads.close()
        dataset_threads.close()
        await anyio.to_thread.run_sync(kept.close)
        for collector in (seen_of_redis, seen_of_ledger):
            await anyio.to_thread.run_sync(collector.stop, LAST_WORDS)
        watchdog.close()
        admission.close()
        queue.close()
        ledger.dispose()
