"""The state of secure-aggregation rounds in the database: members, messages and phases. Nothing is computed here.

A round goes keys -> shares -> masked -> unmask -> aggregating -> done, or at any point to aborted, and never back. A
message and the end of its phase lock the round's row, so a message is counted whole or refused whole. Any process that
finds a phase complete, or its time over, moves the round on by compare-and-set. After a crash the next process does.

Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning" (CCS 2017), over the graph of
Bell et al. (CCS 2020): `warpdesk.secagg.graph`. For each client the server learns at most one of its two secrets: the
seed of its self mask if its vector came in time, its private mask key if it did not.
"""

import hashlib
import hmac
import json
import re
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal

from sqlalchemy import Engine, Row, and_, delete, func, insert, or_, select, tuple_, update

from warpdesk.secagg import secret_sharing
from warpdesk_server.privacy.database import reading, rewrite, truncate_log, writing
from warpdesk_server.privacy.rounds import messages, phases, statements
from warpdesk_server.privacy.rounds.aggregation import Aggregation, aggregation_of
from warpdesk_server.privacy.rounds.errors import (
    Aborted,
    DoubleReveal,
    ForgedShare,
    NoRoom,
    NoShare,
    PhaseOver,
    TooManyRounds,
    UnknownMember,
    UnknownRound,
    UnusableKey,
)
from warpdesk_server.privacy.rounds.records import LIVE, PHASES, Member, Phase, Place, Received, Roster, Status
from warpdesk_server.privacy.rounds.tables import CIPHERTEXT_BYTES, KINDS, members, reveals, rounds, shares
from warpdesk_server.privacy.rounds.terms import Bounds, NewRound, problems

AGGREGATING_SECONDS = 86_400.0  # in which a worker has to be found for the sum
_TOKEN = re.compile(r"wdj_([0-9a-f]{32})_([0-9]{1,5})_([A-Za-z0-9_-]{43})")


class Rounds:
    """The secure-aggregation rounds in one database."""

    def __init__(self, engine: Engine, clock: Callable[[], float] = time.time) -> None:
        self._engine = engine
        self._clock = clock

    # --- the creator

    def create(self, new: NewRound, bounds: Bounds) -> tuple[str, list[str]]:
        """Create a round in the database; returns its id and a join token for each client, in the order of their ids.

        Client ids do not identify anyone. Raises TooManyRounds, NoShare or NoRoom past one of the bounds, ValueError if
        `problems` finds any.
        """
        if found := problems(new):
            raise ValueError("; ".join(detail for _, detail in found))
        name = secrets.token_hex(16)
        round_id, now = f"round_{name}", self._clock()
        tokens = [f"wdj_{name}_{client}_{secrets.token_urlsafe(32)}" for client in range(new.clients)]
        with writing(self._engine) as connection:
            statements.one_creator_at_a_time(connection)
            live = rounds.c.phase.in_(LIVE)
            own = and_(live, rounds.c.owner == new.owner)
            mine = connection.scalar(select(func.count()).where(own)) or 0
            if mine >= bounds.live:
                raise TooManyRounds(f"the key has {mine} live rounds; the limit is {bounds.live}")
            vectors = f"{new.clients} vectors of {new.dimension} words are {new.bytes} bytes"
            if (held := statements.vector_bytes(connection, own)) + new.bytes > bounds.owner_bytes:
                raise NoShare(
                    f"{vectors}; live rounds of one key may hold {bounds.owner_bytes} together, and the key's have "
                    f"{held}"
                )
            if statements.vector_bytes(connection, live) + new.bytes > bounds.all_bytes:
                raise NoRoom(f"{vectors}; live rounds of all keys may hold {bounds.all_bytes} together")
            connection.execute(
                insert(rounds).values(
                    id=round_id,
                    owner=new.owner,
                    phase="keys",
                    created_at=now,
                    phase_ends=now + new.deadlines[0],
                    clients=new.clients,
                    min_clients=new.min_clients,
                    asked_threshold=new.threshold,
                    dimension=new.dimension,
                    modulus_bits=new.modulus_bits,
                    clip=new.quantisation.clip,
                    scale=new.quantisation.scale,
                    max_weight=new.quantisation.max_weight,
                    output=new.output,
                    backend=new.backend,
                    **{f"{phase}_s": seconds for phase, seconds in zip(PHASES, new.deadlines, strict=False)},
                )
            )
            rows = [
                {"round": round_id, "client": client, "token": hashlib.sha256(token.encode()).digest()}
                for client, token in enumerate(tokens)
            ]
            connection.execute(insert(members), rows)
        return round_id, tokens

    def status(self, round_id: str) -> Status:
        with reading(self._engine) as connection:
            found = statements.round_row(connection, round_id)
            counts = statements.counts(connection, round_id)
        return _status(found, counts)

    def page(self, owner: str, limit: int, before: str | None = None) -> list[Status]:
        """Rounds of an owner in the database, the newest first, from behind the round `before`.

        Raises UnknownRound.
        """
        newest = (rounds.c.created_at.desc(), rounds.c.id.desc())
        where = rounds.c.owner == owner
        with reading(self._engine) as connection:
            if before is not None:
                last = connection.execute(select(rounds.c.created_at).where(where, rounds.c.id == before)).scalar()
                if last is None:
                    raise UnknownRound(f"there is no round {before}")
                where &= tuple_(rounds.c.created_at, rounds.c.id) < (last, before)
            found = connection.execute(select(rounds).where(where).order_by(*newest).limit(limit)).all()
            return [_status(row, statements.counts(connection, row.id)) for row in found]

    # --- clients

    def member(self, round_id: str, token: str) -> Member:
        """The member of a round that a join token belongs to. Raises UnknownRound and UnknownMember."""
        match = _TOKEN.fullmatch(token)
        with reading(self._engine) as connection:
            owner = statements.round_row(connection, round_id).owner
            kept = None
            if match is not None and round_id == f"round_{match[1]}":
                client = int(match[2])
                mine = and_(members.c.round == round_id, members.c.client == client)
                kept = connection.scalar(select(members.c.token).where(mine))
        if match is None or kept is None or not hmac.compare_digest(kept, hashlib.sha256(token.encode()).digest()):
            raise UnknownMember(f"the join token is not one of {round_id}")
        return Member(round_id, int(match[2]), owner)

    def send_keys(self, member: Member, mask_public: bytes, share_public: bytes) -> None:
        """Store in the database a member's public keys, with which it joins the round. Raises UnusableKey for a bad or
        repeated key."""
        for name, key in (("mask_public", mask_public), ("share_public", share_public)):
            messages.check_key(name, key)
        if mask_public == share_public:
            raise UnusableKey("mask_public and share_public are the same key, and each has one use")
        with writing(self._engine) as connection:
            _, me = phases.expect(connection, member, self._clock, "keys", "alone")
            phases.require_unsent(me.mask_public is not None, member, "its keys")
            both = (mask_public, share_public)
            twice = or_(members.c.mask_public.in_(both), members.c.share_public.in_(both))
            if connection.scalar(select(func.count()).where(members.c.round == member.round_id, twice)):
                raise UnusableKey("another client of the round has sent one of these keys")
            statements.mark(connection, member, mask_public=mask_public, share_public=share_public)
        self.advance(member.round_id)

    def roster(self, round_id: str) -> Roster:
        """The roster of a round, from the database. Raises NotYet until the phase keys has ended."""
        with reading(self._engine) as connection:
            found = statements.round_row(connection, round_id)
            phases.require(found, "shares", exactly=False)
            ring = json.loads(found.ring)
            return Roster(
                round_id=round_id,
                clients=statements.publics(connection, round_id),
                ring=ring,
                degree=found.degree,
                threshold=found.threshold,
                dimension=found.dimension,
                modulus_bits=found.modulus_bits,
                quantisation=statements.quantisation(found),
            )

    def send_shares(
        self, member: Member, ciphertexts: Mapping[int, bytes], commitments: Mapping[int, tuple[bytes, bytes]]
    ) -> None:
        """Store in a round a member's shares: a ciphertext for each neighbour, and commitments (self_seed, mask_key)
        for those and itself."""
        with writing(self._engine) as connection:
            found, me = phases.expect(connection, member, self._clock, "shares")
            phases.require_unsent(me.shared, member, "its shares")
            around = set(statements.neighbours(found)[member.client])
            messages.require_exactly("ciphertexts", ciphertexts, around)
            messages.require_exactly("commitments", commitments, around | {member.client})
            for recipient, ciphertext in ciphertexts.items():
                messages.require_length(f"the ciphertext for client {recipient}", ciphertext, CIPHERTEXT_BYTES)
            for recipient, both in commitments.items():
                for digest in both:
                    messages.require_length(f"a commitment for client {recipient}", digest, 32)
            rows = [
                {
                    "round": member.round_id,
                    "sender": member.client,
                    "recipient": recipient,
                    "ciphertext": ciphertexts.get(recipient),
                    "self_seed": both[0],
                    "mask_key": both[1],
                }
                for recipient, both in commitments.items()
            ]
            connection.execute(insert(shares), rows)
            statements.mark(connection, member, shared=True)
        self.advance(member.round_id)

    def shares_for(self, member: Member) -> tuple[list[int], dict[int, Received]]:
        """All clients of a round that sent shares, and the shares that the member's neighbours sent to it.

        Raises NotYet until the phase shares has ended, PhaseOver for a dropped client, and once the round has ended.
        """
        with reading(self._engine) as connection:
            found = statements.round_row(connection, member.round_id)
            phases.require(found, "masked", exactly=False)
            if found.phase == "done":
                raise PhaseOver("the round is done, and what clients sent each other is erased")
            phases.require_shares(statements.member_row(connection, member))
            sharers = statements.clients_where(connection, member.round_id, members.c.shared)
            mine = and_(shares.c.round == member.round_id, shares.c.recipient == member.client)
            rows = connection.execute(select(shares).where(mine, shares.c.ciphertext.is_not(None))).all()
            return sharers, {row.sender: Received(row.ciphertext, row.self_seed, row.mask_key) for row in rows}

    def place(self, member: Member) -> Place:
        """The place of the member's masked vector in the round, if it may be sent now."""
        with reading(self._engine) as connection:
            found, me = phases.expect(connection, member, self._clock, "masked", None)
            phases.require_unsent(me.masked, member, "its masked vector")
            sharers = statements.clients_where(connection, member.round_id, members.c.shared)
            size, left = found.dimension * found.modulus_bits // 8, found.phase_ends - self._clock()
            return Place(sharers.index(member.client), len(sharers), size, left)

    def counts_masked(self, member: Member) -> bool:
        """Whether the database counts the member's masked vector in the round's sum, in any phase."""
        with reading(self._engine) as connection:
            return bool(statements.member_row(connection, member).masked)

    def send_masked(self, member: Member) -> None:
        """Record in the round's database that the member's masked vector is stored completely."""
        with writing(self._engine) as connection:
            _, me = phases.expect(connection, member, self._clock, "masked")
            phases.require_unsent(me.masked, member, "its masked vector")
            statements.mark(connection, member, masked=True)
        self.advance(member.round_id)

    def survivors(self, round_id: str) -> tuple[list[int], list[int]]:
        """The round's survivors, whose masked vectors are summed, and its dropped clients, which shared secrets and
        sent none.

        Raises NotYet until the phase masked has ended.
        """
        with reading(self._engine) as connection:
            phases.require(statements.round_row(connection, round_id), "unmask", exactly=False)
            return statements.survivors(connection, round_id)

    def send_unmask(self, member: Member, self_seed: Mapping[int, bytes], mask_key: Mapping[int, bytes]) -> None:
        """Store in the database the shares that a round's survivor reveals.

        For each survivor of its sharing set, itself included, it is a share of the self seed. For each client of the
        set that dropped out, it is a share of the mask key.
        """
        with writing(self._engine) as connection:
            found, me = phases.expect(connection, member, self._clock, "unmask")
            if not me.masked:
                raise PhaseOver(f"client {member.client} was dropped: its masked vector was not there in time")
            phases.require_unsent(me.revealed, member, "its shares of others' secrets")
            survivors, dropped = (set(clients) for clients in statements.survivors(connection, member.round_id))
            around = {member.client, *statements.neighbours(found)[member.client]}
            wrong = sorted({*self_seed} & ({*mask_key} | dropped)) or sorted({*mask_key} & survivors)
            if wrong:
                kept = "survived: only its self seed" if wrong[0] in survivors else "dropped out: only its mask key"
                raise DoubleReveal(f"client {wrong[0]} {kept} may be recovered, and both together open its vector")
            messages.require_exactly("self_seed", self_seed, around & survivors)
            messages.require_exactly("mask_key", mask_key, around & dropped)
            committed = statements.commitments(connection, member)
            rows = []
            for kind, given in zip(KINDS, (self_seed, mask_key), strict=True):
                for owner, share in given.items():
                    messages.require_length(f"the share of client {owner}'s {kind}", share, secret_sharing.SHARE_BYTES)
                    digest = secret_sharing.commitment(member.round_id, kind, owner, member.client, share)
                    if not hmac.compare_digest(digest, committed[owner][kind]):
                        raise ForgedShare(f"the share of client {owner}'s {kind} is not the one it committed to")
                    rows.append(
                        {
                            "round": member.round_id,
                            "owner": owner,
                            "holder": member.client,
                            "kind": kind,
                            "share": share,
                        }
                    )
            connection.execute(insert(reveals), rows)
            statements.mark(connection, member, revealed=True)
        self.advance(member.round_id)

    # --- the driver

    def due(self) -> list[str]:
        """The rounds in the database that the driver must work on.

        A phase's time is over, the sum is to be made, or the round has ended and still holds data to erase.
        """
        late = and_(rounds.c.phase.in_(PHASES[:4]), rounds.c.phase_ends <= self._clock())
        open_ends = and_(rounds.c.phase.in_(PHASES[4:]), rounds.c.erased.is_(False))
        with reading(self._engine) as connection:
            return list(
                connection.scalars(select(rounds.c.id).where(or_(late, open_ends)).order_by(rounds.c.created_at))
            )

    def advance(self, round_id: str) -> Phase:
        """End a round's phase in the database if all clients sent their message or the time is over; returns the phase
        after that."""
        with writing(self._engine) as connection:
            found = statements.round_row(connection, round_id, "alone")
            phase: Phase = found.phase
            if phase not in PHASES[:4] or not (found.phase_ends <= self._clock() or phases.complete(connection, found)):
                return phase
            try:
                settled = phases.SETTLE[phase](connection, found)
            except Aborted as why:
                phases.end(connection, round_id, phase, "aborted", self._clock(), str(why))
                return "aborted"
            following = PHASES[PHASES.index(phase) + 1]
            seconds = getattr(found, f"{following}_s", None)
            ends = self._clock() + (seconds or AGGREGATING_SECONDS)
            moved = and_(rounds.c.id == round_id, rounds.c.phase == phase)
            connection.execute(update(rounds).where(moved).values(phase=following, phase_ends=ends, **settled))
            return following

    def phases(self) -> dict[Phase, int]:
        """The number of rounds in each phase that are not erased from the database."""
        counted = select(rounds.c.phase, func.count())
        query = counted.where(rounds.c.erased.is_(False)).group_by(rounds.c.phase)
        with reading(self._engine) as connection:
            return {row.phase: row[1] for row in connection.execute(query)}

    def live_bytes(self, owner: str | None = None) -> int:
        """Bytes of the masked vectors, sent or to come, of the live rounds of one owner, or of all owners."""
        live = rounds.c.phase.in_(LIVE)
        with reading(self._engine) as connection:
            return statements.vector_bytes(connection, live if owner is None else and_(live, rounds.c.owner == owner))

    def aggregation(self, round_id: str) -> Aggregation | None:
        """The input of the round's aggregation job; None unless the round is in the phase aggregating."""
        with reading(self._engine) as connection:
            found = statements.round_row(connection, round_id)
            if found.phase != "aggregating":
                return None
            return aggregation_of(connection, found)

    def submitted(self, round_id: str, job_id: str | None, inputs: Mapping[str, str]) -> bool:
        """Record in the round's row the arrays made for its aggregation job, and the job id once it is queued.

        Returns False unless the round is aggregating. A job id of None keeps the one that another process recorded.
        """
        columns = {"inputs": json.dumps(dict(inputs)), **({} if job_id is None else {"job_id": job_id})}
        with writing(self._engine) as connection:
            here = and_(rounds.c.id == round_id, rounds.c.phase == "aggregating")
            return connection.execute(update(rounds).where(here).values(**columns)).rowcount == 1

    def end(self, round_id: str, phase: Literal["done", "aborted"], why: str | None = None) -> bool:
        """End a round in the database that is in the phase aggregating; False if it has ended already."""
        with writing(self._engine) as connection:
            return phases.end(connection, round_id, "aggregating", phase, self._clock(), why)

    def cancel(self, round_id: str) -> bool:
        """Cancel a round in the database before its sum is made; False if it has ended already. Its members get
        `round-aborted`."""
        with writing(self._engine) as connection:
            phase: Phase = statements.round_row(connection, round_id, "alone").phase
            if phase in ("done", "aborted"):
                return False
            return phases.end(connection, round_id, phase, "aborted", self._clock(), "it was canceled")

    def arrays(self, round_id: str) -> dict[str, str]:
        """Ids, as the round's row has them, of the arrays made for its aggregation job, by name."""
        with reading(self._engine) as connection:
            kept = statements.round_row(connection, round_id).inputs
            return {} if kept is None else json.loads(kept)

    def erase(self, round_id: str) -> None:
        """Delete the database's ciphertexts, commitments and shares of a round that has ended. Delete its files before.

        The round stays due until SQLite's log is empty too, which a concurrent reader prevents: erase it again then.
        """
        with writing(self._engine) as connection:
            if statements.round_row(connection, round_id, "alone").phase not in ("done", "aborted"):
                raise ValueError(f"{round_id} has not ended")
            for table in (shares, reveals):
                if connection.execute(delete(table).where(table.c.round == round_id)).rowcount:
                    rewrite(connection, table)
            connection.execute(update(rounds).where(rounds.c.id == round_id).values(inputs=None))
        if truncate_log(self._engine):
            with writing(self._engine) as connection:
                connection.execute(update(rounds).where(rounds.c.id == round_id).values(erased=True))


def _status(found: Row[Any], counts: Mapping[str, int]) -> Status:
    return Status(
        id=found.id,
        owner=found.owner,
        phase=found.phase,
        created_at=found.created_at,
        deadline=found.phase_ends,
        clients=found.clients,
        min_clients=found.min_clients,
        roster=None if found.ring is None else len(json.loads(found.ring)),
        degree=found.degree,
        threshold=found.threshold,
        dimension=found.dimension,
        modulus_bits=found.modulus_bits,
        counts=counts,
        why=found.why,
        job_id=found.job_id,
        ended_at=found.ended_at,
    )
