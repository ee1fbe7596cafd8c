"""The driver of secure-aggregation rounds: a loop that ends late phases, queues the sum's job, and erases secrets.

Every API process runs it, and none has to live: each step can be repeated. The database and the job's key decide which
process is first.
"""

import asyncio
import logging
import mmap
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import anyio.to_thread

from warpdesk.models import DType, State
from warpdesk_server.app.access.keys import Key
from warpdesk_server.app.jobs import submission
from warpdesk_server.app.kit import errors
from warpdesk_server.app.kit.errors import Refusal
from warpdesk_server.app.services import Services
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.privacy.rounds import unmasking
from warpdesk_server.privacy.rounds.aggregation import Aggregation
from warpdesk_server.privacy.rounds.records import Status
from warpdesk_server.privacy.rounds.unmasking import Unrecoverable
from warpdesk_server.workers.store.npy import read_header

log = logging.getLogger("warpdesk.api")

OPERATION = "secure_aggregation"
EVERY = 0.5  # seconds between two looks, where nothing tells that there is something to do


async def drive(services: Services) -> None:
    """The API's driver loop of rounds: work on every round that is due, each in a task of its own. What fails is
    tried again."""
    working = dict[str, asyncio.Task[None]]()
    logged = dict[str, str]()  # one line for what goes no further, not one for each look
    try:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(EVERY):  # wait_for of Python 3.11 can swallow a cancel that meets its end
                    await services.rounds_moved.wait()
            services.rounds_moved.clear()
            for round_id in [name for name, task in working.items() if task.done()]:
                _tell(round_id, _reason(working.pop(round_id)), logged)
            try:
                due = await anyio.to_thread.run_sync(services.rounds.due)
            except Exception as error:  # noqa: BLE001 - a database that is away: the API must go on
                _tell("every round", type(error).__name__, logged)
                continue
            _tell("every round", "", logged)
            for round_id in due:
                if round_id not in working:
                    working[round_id] = asyncio.create_task(_step(services, round_id), name=round_id)
    finally:
        for task in working.values():
            task.cancel()
        await asyncio.gather(*working.values(), return_exceptions=True)


def _tell(what: str, why: str, logged: dict[str, str]) -> None:
    """Log why the API's driver cannot move a round on, once for each reason."""
    if why and logged.get(what) != why:
        log.warning("%s cannot advance for now: %s", what, why)
        logged[what] = why
    if not why:
        logged.pop(what, None)


def _reason(ended: "asyncio.Task[None]") -> str:
    """The driver's reason for the log why a round's step failed, empty if it did not. An unforeseen error is logged
    by type alone."""
    if ended.cancelled():  # by a library's time limit, say: to ask for its exception would end the driver
        return "the step was canceled"
    error = ended.exception()
    if error is None:
        return ""
    return error.detail if isinstance(error, Refusal) else type(error).__name__


async def _step(services: Services, round_id: str) -> None:
    """Move one round on by a step of the API's driver: end its phase, aggregate it, or erase it."""
    phase = await anyio.to_thread.run_sync(services.rounds.advance, round_id)
    if phase == "aggregating":
        await _aggregate(services, round_id)
        phase = (await anyio.to_thread.run_sync(services.rounds.status, round_id)).phase
    if phase in ("done", "aborted"):
        await _erase(services, round_id)


async def _aggregate(services: Services, round_id: str) -> None:
    """Queue the aggregation job of a round through the API, or end the round as the job ended."""
    status = await anyio.to_thread.run_sync(services.rounds.status, round_id)
    if status.job_id is not None and await _followed(services, status, status.job_id):
        return
    if status.deadline is not None and status.deadline <= time.time():
        await _abort(services, round_id, "no worker has computed the sum in time")
        return
    work = await anyio.to_thread.run_sync(services.rounds.aggregation, round_id)
    if work is None:
        return
    try:
        body = await anyio.to_thread.run_sync(_prepared, services, work)
    except Unrecoverable as why:
        await _abort(services, round_id, str(why))
        return
    inputs = {name: given["array"] for name, given in body["inputs"].items()}
    if not await anyio.to_thread.run_sync(services.rounds.submitted, round_id, None, inputs):
        await _delete(services, work.owner, inputs)  # somebody was quicker, and has erased what was there before
        return
    try:
        job_id = await submission.submit_for(services, Key(work.owner, "", (), "", 0.0), round_id, body)
    except Refusal as refusal:
        if errors.CODES[refusal.code][2]:
            raise  # later, perhaps
        await _abort(services, round_id, f"the sum was refused: {refusal.detail}")
        return
    await anyio.to_thread.run_sync(services.rounds.submitted, round_id, job_id, inputs)


async def _followed(services: Services, status: Status, job_id: str) -> bool:
    """Whether the round's aggregation job is in the API's queue. If it has ended, the round is ended too."""
    record = await services.queue(lambda jobs: jobs.get(job_id))
    if record is None:
        return False  # Redis has lost it: all that it was made from is still there
    if record.state is State.SUCCEEDED:
        await anyio.to_thread.run_sync(services.rounds.end, status.id, "done")
    elif not record.state.final and status.deadline is not None and status.deadline <= time.time():
        await services.queue(lambda jobs: jobs.cancel(job_id))
    elif record.state.final:
        why = record.error.message if record.error is not None else "it was ended by its owner"
        await _abort(services, status.id, f"the job {job_id} of the sum is {record.state.value}: {why}")
    return True


async def _abort(services: Services, round_id: str, why: str) -> None:
    await anyio.to_thread.run_sync(services.rounds.end, round_id, "aborted", why)


def _prepared(services: Services, work: Aggregation) -> dict[str, Any]:
    """Recover a round's mask seeds, publish the inputs of the aggregation job for the API, and return its submission,
    the same at each repeat.

    Computes and writes files: call it in a thread. Raises Unrecoverable.
    """
    kept, dtype = set(work.survivors), _dtype(work)
    rows = services.store.rows(work.round_id, len(work.order), work.row_bytes)
    keep = [row for row, client in enumerate(work.order) if client in kept]
    shape = len(keep), work.row_bytes * 8 // work.modulus_bits
    survivors = [work.order[row] for row in rows.close(keep, dtype, shape)]
    seeds = {"self_seeds": unmasking.self_seeds(work.shares, survivors)}
    if work.pairs:
        seeds["pair_seeds"] = unmasking.pair_seeds(work.shares, work.pairs)
    with rows.file.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        _, start = read_header(mapped)
        with memoryview(mapped)[start:] as data:
            array_id = services.store.digest(work.owner, dtype, shape, data)
    ttl = services.settings.array_ttl
    inputs = {"masked": services.store.adopt(work.owner, rows.file, array_id, ArrayInfo(dtype, shape), ttl).id}
    for name, content in seeds.items():
        with services.store.writer(work.owner, "uint8", (len(content) // 32, 32), ttl) as writer:
            writer.take(content)
            inputs[name] = writer.commit(has_nan=False, has_inf=False).id
    for published in inputs.values():
        services.allow(work.owner, published)
    return {
        "operation": OPERATION,
        "params": {**work.params, "survivors": survivors, "pairs": [list(pair) for pair in work.pairs]},
        "inputs": {name: {"array": published} for name, published in inputs.items()},
        "backend": work.backend,
    }


def _dtype(work: Aggregation) -> DType:
    return "uint32" if work.modulus_bits == 32 else "uint64"


async def _erase(services: Services, round_id: str) -> None:
    """Erase what the API holds of a round: its secrets, and the arrays and rows that they came from.

    Files go first, so that after a crash the round is erased again.
    """
    status = await anyio.to_thread.run_sync(services.rounds.status, round_id)
    await _delete(services, status.owner, await anyio.to_thread.run_sync(services.rounds.arrays, round_id))
    await anyio.to_thread.run_sync(services.store.rows(round_id, 0, 0).delete)
    await anyio.to_thread.run_sync(services.rounds.erase, round_id)


async def _delete(services: Services, owner: str, inputs: Mapping[str, str]) -> None:
    await services.queue(lambda _: [services.delete_unread(owner, array_id) for array_id in inputs.values()])
