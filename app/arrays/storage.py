"""Storage of arrays and results on the disk: quotas of keys, and the deletion that frees room."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import anyio.to_thread
from redis.exceptions import RedisError

from warpdesk_server.app.jobs.operations import Checked
from warpdesk_server.app.kit.errors import Refusal
from warpdesk_server.app.settings import Settings
from warpdesk_server.kernels.operation import Operation
from warpdesk_server.workers.queue.jobs import JobQueue
from warpdesk_server.workers.queue.records import JobRecord
from warpdesk_server.workers.store import disk
from warpdesk_server.workers.store.protocol import Store, attempt_of
from warpdesk_server.workers.store.spool import SpoolStore
from warpdesk_server.workers.store.usage import BLOCK, Quota, QuotaPassed, StoreFull, on_disk

log = logging.getLogger("warpdesk.api")

SYNC_SECONDS = 1.0

# Results beyond it are measured when their job has ended: what a job declares is more than what it writes.
_MEASURED = 1 << 20

_AT_ONCE = 1000  # records that are read in one step


def open_store(settings: Settings) -> SpoolStore:
    """Open the API's store of arrays and results on this machine's disk, with the quotas of the settings."""
    settings.store_directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    in_all, of_owner = settings.max_stored_bytes, settings.max_stored_bytes_per_key
    if in_all is None:
        in_all = disk.size(settings.store_directory) * 4 // 5
    quota = Quota(in_all // 2 if of_owner is None else of_owner, in_all)
    return SpoolStore(settings.store_directory, settings.durability, kept_free=settings.kept_free_bytes, quota=quota)


@contextmanager
def refused() -> Iterator[None]:
    """Translate the quota and disk-full errors of stored arrays into refusals for the caller of the API."""
    try:
        yield
    except QuotaPassed as error:
        sentence = f"{error}; GET /v1/arrays and /v1/datasets list what is stored, and DELETE frees space"
        raise Refusal("storage-quota", sentence, headers={"Retry-After": "60"}) from None
    except (StoreFull, disk.Reserved) as error:
        sentence = error.sentence if isinstance(error, disk.Reserved) else str(error)
        raise Refusal("storage-full", sentence, headers={"Retry-After": "60"}) from None


def result_bytes(checked: Checked, shards: int = 1) -> int:
    """The most disk bytes that the API reserves for a job's result: its memory beyond the inputs, and its files, with
    those of its shards. Of a task, what it declares, with two checkpoints that are kept and one on its way."""
    files = sum(output.kind != "value" for output in checked.operation.outputs_of(checked.submission.params))
    limits = checked.task_limits
    if limits is not None:
        return on_disk(limits.result_bytes) + 3 * on_disk(limits.checkpoint_bytes) + BLOCK * (files + 3)
    beyond_inputs = checked.cost.bytes - sum(info.nbytes for info in checked.infos.values())
    of_shards = shards * on_disk(shard_bytes(checked, shards))
    return on_disk(max(0, beyond_inputs)) + BLOCK * (files + 2) + of_shards


def shard_bytes(checked: Checked, shards: int) -> int:
    """The most disk bytes that the arrays of one of a job's shards take in the API's store; 0 for a whole job."""
    operation = checked.operation
    if shards == 1 or not isinstance(operation, Operation):
        return 0
    sharding = operation.shards(checked.params, checked.infos)
    assert sharding is not None  # noqa: S101 (else it is one)
    arrays = len(sharding.joined) + len(sharding.added)
    return sharding.largest(shards) + BLOCK * (arrays + 1)  # each has a header, and so has the file


def ended(store: Store, record: JobRecord) -> None:
    """Release the disk space that the API reserved in the store for a job that has ended. A dead letter keeps it: it
    may run again."""
    if record.state.final and not record.dead:
        store.ended({record.request.id: _name(record)}, measured=record.request.size > _MEASURED)


def _name(record: JobRecord) -> str | None:
    """The name of an ended job's result, whose space the API releases; None if it has none, or if the worker's name
    is malformed."""
    if record.result is None:
        return None
    try:
        attempt_of(record.result)
    except ValueError as error:
        log.error("the record of %s names no valid result: %s", record.request.id, error)
        return None
    return record.result


async def keep_count(store: Store) -> None:
    """Sync the counts of bytes in stored arrays with other processes, as a task that runs as long as the API."""
    logged = False
    while True:
        try:
            await anyio.to_thread.run_sync(store.sync)
            logged = False
        except (StoreFull, OSError) as error:
            if not logged:
                log.warning("%s", error)
                logged = True
        await asyncio.sleep(SYNC_SECONDS)


async def sweep(store: Store, queue: JobQueue, every: float) -> None:
    """Delete expired arrays and results from the store, with or without Redis, as a task that runs as long as the API.

    What fails is tried again at the next sweep.
    """
    try:
        await anyio.to_thread.run_sync(store.recount)
    except Exception as error:  # noqa: BLE001 - as below
        log.warning("the store's usage is not counted yet: %s: %s", type(error).__name__, error)
    while True:
        await asyncio.sleep(every)
        try:
            removed = await anyio.to_thread.run_sync(store.sweep, _in_use(queue))
            await anyio.to_thread.run_sync(store.recount)
            await anyio.to_thread.run_sync(_end, store, queue)
        except RedisError as error:
            log.warning("ended jobs cannot be looked up: %s", type(error).__name__)
        except Exception as error:  # noqa: BLE001 - a full disk: the API must go on
            log.warning("the sweep of the store is incomplete: %s: %s", type(error).__name__, error)
        else:
            if removed:
                log.info("swept %d expired files", removed)


def _in_use(queue: JobQueue) -> Callable[[str, str], bool | None]:
    """A function for the API's sweep of arrays that says whether a live job reads an array; None if Redis cannot say.

    After Redis failed once it is not asked again in this sweep. An array about to be deleted is forbidden first, so
    that no job that reads it is enqueued in between.
    """
    away = False

    def ask(owner: str, array_id: str) -> bool | None:
        nonlocal away
        if away:
            return None
        try:
            return not queue.forbid(owner, array_id)
        except (RedisError, OSError):
            away = True
            return None

    return ask


def _end(store: Store, queue: JobQueue) -> None:
    """Release the disk space that the API reserved for jobs whose end nobody reported, and for jobs that were never
    queued. Checkpoints of jobs that have ended are deleted."""
    live = store.unended()
    for first in range(0, len(live), _AT_ONCE):
        some = live[first : first + _AT_ONCE]
        for job_id, record in zip(some, queue.records(some), strict=True):
            if record is None:
                store.ended({job_id: None})
            else:
                ended(store, record)
    kept = store.checkpointed()
    for job_id, may_run in zip(kept, queue.may_run(kept), strict=True):
        if not may_run:
            store.delete_checkpoints(job_id)
