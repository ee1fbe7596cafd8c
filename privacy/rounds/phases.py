"""The phases of a secure-aggregation round: which messages they take, when they are complete, and what ends them."""

import json
import secrets
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

from sqlalchemy import Connection, Row, and_, update

from warpdesk.secagg import graph
from warpdesk_server.privacy.rounds import statements
from warpdesk_server.privacy.rounds.errors import Aborted, AlreadySent, NotYet, PhaseOver
from warpdesk_server.privacy.rounds.records import PHASES, Member, Phase
from warpdesk_server.privacy.rounds.tables import members, rounds


def expect(
    connection: Connection,
    member: Member,
    clock: Callable[[], float],
    phase: Phase,
    lock: Literal["shared", "alone"] | None = "shared",
) -> tuple[Row[Any], Row[Any]]:
    """Load a round and its member from the database, and check that a message of this phase is accepted now.

    With `lock`, the phase cannot end before this transaction does. Nor is another message of the member accepted
    meanwhile.
    """
    found = statements.round_row(connection, member.round_id, lock)
    require(found, phase)
    if found.phase_ends <= clock():
        raise PhaseOver(f"the time for {phase} is over")
    me = statements.member_row(connection, member, locked=lock is not None)
    if phase != "keys" and me.mask_public is None:
        raise PhaseOver(f"client {member.client} is not in the roster: its keys were not there in time")
    if phase in ("masked", "unmask"):
        require_shares(me)
    return found, me


def require(found: Row[Any], phase: Phase, *, exactly: bool = True) -> None:
    """Check that a round's row is in this phase, or, unless `exactly`, in it or a later one. Raises Aborted, NotYet,
    PhaseOver."""
    if found.phase == "aborted":
        raise Aborted(f"the round was aborted: {found.why}")
    now, then = PHASES.index(found.phase), PHASES.index(phase)
    if now < then:
        raise NotYet(f"the round is in the phase {found.phase}, and this belongs to {phase}")
    if exactly and now > then:
        raise PhaseOver(f"the phase {phase} has ended; the round is in {found.phase}")


def require_shares(me: Row[Any]) -> None:
    """Check that the database got the shares of a member of a round in time. Raises PhaseOver."""
    if not me.shared:
        raise PhaseOver(f"client {me.client} is out of the round: its shares were not there in time")


def require_unsent(sent: bool, member: Member, message: str) -> None:
    """Check that the database has no such message from a member of a round yet. Raises AlreadySent."""
    if sent:
        raise AlreadySent(f"client {member.client} has sent {message}")


def complete(connection: Connection, found: Row[Any]) -> bool:
    """Whether the database has every client's message of the round's current phase."""
    counts = statements.counts(connection, found.id)
    expected = {"keys": found.clients, "shares": counts["keys"], "masked": found.sharers, "unmask": counts["masked"]}
    return bool(counts[found.phase] == expected[found.phase])


# What ends a phase: each returns the columns that are settled with it, or raises Aborted.


def _after_keys(connection: Connection, found: Row[Any]) -> dict[str, Any]:
    present = statements.clients_where(connection, found.id, members.c.mask_public.is_not(None))
    if len(present) < found.min_clients:
        raise Aborted(f"{len(present)} clients sent keys in time, and {found.min_clients} are the least")
    ring = list(present)
    secrets.SystemRandom().shuffle(ring)  # drawn now: nobody could choose its neighbours
    if found.asked_threshold is None:
        settled = graph.parameters(len(ring))
    else:
        settled = graph.Graph(len(ring) - 1, found.asked_threshold)
    return {"ring": json.dumps(ring), "degree": settled.degree, "threshold": settled.threshold}


def _after_shares(connection: Connection, found: Row[Any]) -> dict[str, Any]:
    sharers = statements.clients_where(connection, found.id, members.c.shared)
    if len(sharers) < found.min_clients:
        raise Aborted(f"{len(sharers)} clients sent shares in time, and {found.min_clients} are the least")
    _require_holders(found, of=sharers, held_by=sharers)
    return {"sharers": len(sharers)}


def _after_masked(connection: Connection, found: Row[Any]) -> dict[str, Any]:
    survivors, dropped = statements.survivors(connection, found.id)
    if len(survivors) < graph.FEWEST_CLIENTS:
        raise Aborted(f"{len(survivors)} masked vectors came in time, and {graph.FEWEST_CLIENTS} are the least")
    _require_holders(found, of=[*survivors, *dropped], held_by=survivors)
    return {}


def _after_unmask(connection: Connection, found: Row[Any]) -> dict[str, Any]:
    survivors, dropped = statements.survivors(connection, found.id)
    _require_holders(found, [*survivors, *dropped], statements.clients_where(connection, found.id, members.c.revealed))
    return {}


SETTLE = {"keys": _after_keys, "shares": _after_shares, "masked": _after_masked, "unmask": _after_unmask}


def _require_holders(found: Row[Any], of: Iterable[int], held_by: Sequence[int]) -> None:
    """Abort the round in the database if too few clients are left that hold shares of a client's secrets."""
    holders, neighbours = set(held_by), statements.neighbours(found)
    for client in of:
        left = len(holders.intersection(neighbours[client])) + (client in holders)
        if left < found.threshold:
            raise Aborted(
                f"{left} clients are left that hold shares of client {client}'s secrets, and the threshold is "
                f"{found.threshold}"
            )


def end(
    connection: Connection, round_id: str, before: Phase, phase: Literal["done", "aborted"], now: float, why: str | None
) -> bool:
    """End a round in the database from the phase `before`; False if it has left that phase already."""
    here = and_(rounds.c.id == round_id, rounds.c.phase == before)
    ended = {"phase": phase, "phase_ends": None, "ended_at": now, "why": why}
    return connection.execute(update(rounds).where(here).values(**ended)).rowcount == 1
