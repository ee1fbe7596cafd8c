"""The upload of a client's masked vector to a round: written as it arrives, and erased unless it is part of the sum."""

from collections.abc import Callable
from typing import TypeVar

import anyio
import anyio.to_thread
from fastapi import Request

from warpdesk_server.app.http import bodies
from warpdesk_server.app.kit import ledger_calls, limits
from warpdesk_server.app.kit.errors import Refusal
from warpdesk_server.app.kit.limits import Share
from warpdesk_server.app.services import Services
from warpdesk_server.privacy.rounds.records import Member
from warpdesk_server.workers.store.rows import Closed, Row, RowTaken

T = TypeVar("T")


async def receive(request: Request, services: Services, member: Member) -> None:
    """Receive the masked vector that a member of a round sends to the API, or refuse it and erase what arrived."""
    place = await services.ask_ledger(member.owner, lambda: services.rounds.place(member))
    declared = bodies.declared_length(request)
    if declared is not None and declared != place.row_bytes:
        raise _wrong_length(declared, place.row_bytes)
    rows = services.store.rows(member.round_id, place.rows, place.row_bytes)

    def begin() -> Row:
        rows.begin()
        return rows.open(place.row)

    try:
        row = await anyio.to_thread.run_sync(begin)
    except RowTaken:
        sentence = f"Client {member.client} is already sending its masked vector: try again when that has ended"
        raise Refusal("busy", sentence, headers={"Retry-After": "1"}) from None
    try:
        with anyio.move_on_after(place.seconds) as in_time, services.unwritten.take(member.owner, 0) as share:
            await _write(request, row, place.row_bytes, share)
        if in_time.cancelled_caught:
            raise Refusal("phase-over", "The time for masked vectors ended before this one was complete")
        with anyio.CancelScope(shield=True):  # once the call is made, its answer decides what becomes of the row
            await _settled(services, member.owner, lambda: services.rounds.send_masked(member))
    except Closed:
        raise Refusal("phase-over", "The phase masked has ended") from None
    except BaseException as error:
        with anyio.CancelScope(shield=True):
            await _erase_unless_counted(services, member, row)
            if isinstance(error, Refusal) and error.code in ("phase-over", "round-aborted"):
                status = await services.ask_ledger(member.owner, lambda: services.rounds.status(member.round_id))
                if status.phase in ("done", "aborted"):  # nobody else would delete what this request has begun again
                    await anyio.to_thread.run_sync(rows.delete)
        raise
    finally:
        row.close()


async def _write(request: Request, row: Row, size: int, share: Share) -> None:
    """Write the pieces of a round's masked vector as the API receives them. Few are held in memory, and none if the
    share has no room."""
    received = 0
    pieces = list[bytes]()
    async for piece in request.stream():
        received += len(piece)
        if received > size:
            raise _wrong_length(received, size, "at least ")
        pieces.append(piece)
        if not share.fits(max(len(piece), limits.PIECE)) or share.amount >= limits.VECTOR_WRITTEN_AT_ONCE:
            await anyio.to_thread.run_sync(row.write, pieces)
            pieces = []
            share.close()
    if received < size:
        raise _wrong_length(received, size)

    def finish() -> None:
        row.write(pieces)
        row.finish()

    await anyio.to_thread.run_sync(finish)


async def _erase_unless_counted(services: Services, member: Member, row: Row) -> None:
    """Erase a masked vector that the API received but that is no part of the round's sum. It stays if the database
    cannot say whether it is."""
    try:
        counted = await _settled(services, member.owner, lambda: services.rounds.counts_masked(member))
    except Refusal:
        return
    if not counted:
        await anyio.to_thread.run_sync(row.erase)


async def _settled(services: Services, owner: str, ask: Callable[[], T]) -> T:
    """Call the database of rounds for the API and wait however long it takes: a call that was made must not take
    effect unnoticed."""
    with anyio.CancelScope(shield=True):
        answer = await ledger_calls.to_the_end(services.ledger_threads, owner, ask)
    return answer  # noqa: RET504 (to mypy the scope could swallow an error)


def _wrong_length(got: int, size: int, prefix: str = "") -> Refusal:
    return Refusal("wrong-length", f"A masked vector of this round has {size} bytes, got {prefix}{got}")
