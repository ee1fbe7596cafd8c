"""SQL statements of secure-aggregation rounds, to be run in an open transaction."""

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal

from sqlalchemy import ColumnElement, Connection, Row, and_, func, select, update

from warpdesk.secagg import graph
from warpdesk.secagg.quantisation import Quantisation
from warpdesk_server.privacy.rounds.errors import UnknownRound
from warpdesk_server.privacy.rounds.records import PHASES, Member
from warpdesk_server.privacy.rounds.tables import members, rounds, shares

_ROUND_ID = re.compile(r"round_[0-9a-f]{32}")


def one_creator_at_a_time(connection: Connection) -> None:
    """Lock the creation of rounds in the database, since limits are counted before a row is added. SQLite has one
    writer anyway."""
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(8172646)))


def vector_bytes(connection: Connection, which: ColumnElement[bool]) -> int:
    """Bytes of the masked vectors of the rounds that match an SQL condition."""
    size = rounds.c.clients * rounds.c.dimension * (rounds.c.modulus_bits // 8)
    return int(connection.scalar(select(func.coalesce(func.sum(size), 0)).where(which)) or 0)


def round_row(connection: Connection, round_id: str, lock: Literal["shared", "alone"] | None = None) -> Row[Any]:
    if not _ROUND_ID.fullmatch(round_id):
        raise UnknownRound(f"there is no round {round_id[:80]!r}")
    query = select(rounds).where(rounds.c.id == round_id)
    if lock is not None:  # (SQLite's writer is alone anyway)
        query = query.with_for_update(read=lock == "shared")
    found = connection.execute(query).one_or_none()
    if found is None:
        raise UnknownRound(f"there is no round {round_id[:80]!r}")
    return found


def member_row(connection: Connection, member: Member, *, locked: bool = False) -> Row[Any]:
    query = select(members).where(members.c.round == member.round_id, members.c.client == member.client)
    return connection.execute(query.with_for_update() if locked else query).one()


def mark(connection: Connection, member: Member, **columns: Any) -> None:
    mine = and_(members.c.round == member.round_id, members.c.client == member.client)
    connection.execute(update(members).where(mine).values(**columns))


def clients_where(connection: Connection, round_id: str, where: Any) -> list[int]:
    """The clients of a round that match an SQL condition, in the order of their ids."""
    query = select(members.c.client).where(members.c.round == round_id, where).order_by(members.c.client)
    return list(connection.scalars(query))


def survivors(connection: Connection, round_id: str) -> tuple[list[int], list[int]]:
    """The clients of a round that sent shares, by the database: those that sent a masked vector, and those that did
    not."""
    sharing = members.c.shared
    return (
        clients_where(connection, round_id, and_(sharing, members.c.masked)),
        clients_where(connection, round_id, and_(sharing, members.c.masked.is_(False))),
    )


def publics(connection: Connection, round_id: str) -> dict[int, tuple[bytes, bytes]]:
    """The public keys (mask_public, share_public) of a round's clients in the database, by client."""
    present = and_(members.c.round == round_id, members.c.mask_public.is_not(None))
    rows = connection.execute(select(members).where(present).order_by(members.c.client))
    return {row.client: (row.mask_public, row.share_public) for row in rows}


def commitments(connection: Connection, member: Member) -> dict[int, dict[str, bytes]]:
    """The commitments of a round, as the ledger keeps them, to the shares that a member holds; by the share's owner."""
    mine = and_(shares.c.round == member.round_id, shares.c.recipient == member.client)
    rows = connection.execute(select(shares).where(mine))
    return {row.sender: {"self_seed": row.self_seed, "mask_key": row.mask_key} for row in rows}


def counts(connection: Connection, round_id: str) -> dict[str, int]:
    """The number of a round's clients in the database that sent the message of each phase."""
    sent = (members.c.mask_public.is_not(None), members.c.shared, members.c.masked, members.c.revealed)
    row = connection.execute(
        select(*(func.count().filter(condition) for condition in sent)).where(members.c.round == round_id)
    ).one()
    return dict(zip(PHASES, row, strict=False))


def quantisation(found: Row[Any]) -> Quantisation:
    return Quantisation(clip=found.clip, scale=found.scale, max_weight=found.max_weight)


def neighbours(found: Row[Any]) -> Mapping[int, tuple[int, ...]]:
    return _graph(found.ring, found.degree)


@lru_cache(maxsize=16)  # every message of a round asks for it
def _graph(ring: str, degree: int) -> Mapping[int, tuple[int, ...]]:
    return graph.neighbours(json.loads(ring), degree)
