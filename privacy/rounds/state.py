"""Rounds of secure aggregation: who takes part, who sent what, and which phase it is. Nothing is computed here.

A round goes keys -> shares -> masked -> unmask -> aggregating -> done, or at any point to aborted, and never back.
A message and the end of its phase lock the round's row, so a message is counted whole or refused whole; whoever finds
a phase complete, or its time over, moves the round on by compare-and-set, and a crash leaves that to the next.

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
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Connection,
    Engine,
    Float,
    Index,
    Integer,
    LargeBinary,
    Row,
    String,
    Table,
    Text,
    and_,
    delete,
    func,
    insert,
    or_,
    select,
    update,
)

from warpdesk.secagg import graph, secret_sharing
from warpdesk.secagg.key_agreement import check_encoding
from warpdesk.secagg.quantisation import Quantisation
from warpdesk_server.privacy.database import TABLES, reading, truncate_log, writing
from warpdesk_server.privacy.errors import Refused
from warpdesk_server.privacy.rounds.unmasking import Shares

Phase = Literal["keys", "shares", "masked", "unmask", "aggregating", "done", "aborted"]
PHASES: tuple[Phase, ...] = ("keys", "shares", "masked", "unmask", "aggregating", "done", "aborted")
LIVE = PHASES[:5]

AGGREGATING_SECONDS = 86_400.0  # in which a worker has to be found for the sum
MOST_CLIENTS = 10_000
MOST_IN_A_COMPLETE_GRAPH = 1000  # clients that all share with all: a million shares

_ROUND_ID = re.compile(r"round_[0-9a-f]{32}")
_TOKEN = re.compile(r"wdj_([0-9a-f]{32})_([0-9]{1,5})_([A-Za-z0-9_-]{43})")
_KINDS: tuple[Literal["self_seed"], Literal["mask_key"]] = ("self_seed", "mask_key")
_CIPHERTEXT_BYTES = 2 * secret_sharing.SHARE_BYTES + 16  # two shares and the tag of Poly1305

rounds = Table(
    "rounds",
    TABLES,
    Column("id", String(38), primary_key=True),
    Column("owner", String(64), nullable=False),  # the API key that made it
    Column("phase", String(12), nullable=False),
    Column("created_at", Float, nullable=False),
    Column("phase_ends", Float),  # Unix seconds; none at the end
    Column("clients", Integer, nullable=False),
    Column("min_clients", Integer, nullable=False),
    Column("asked_threshold", Integer),
    Column("dimension", BigInteger, nullable=False),
    Column("modulus_bits", Integer, nullable=False),
    Column("clip", Text, nullable=False),
    Column("scale", Text, nullable=False),
    Column("max_weight", BigInteger, nullable=False),
    Column("output", String(8), nullable=False),
    Column("backend", String(8), nullable=False),
    *(Column(f"{phase}_s", Float, nullable=False) for phase in PHASES[:4]),
    Column("ring", Text),  # the roster in the order of the ring, JSON; from here on settled when the roster closes
    Column("degree", Integer),
    Column("threshold", Integer),
    Column("sharers", Integer),
    Column("why", Text),
    Column("inputs", Text),  # ids of the job's arrays by name, JSON
    Column("job_id", String(64)),
    Column("ended_at", Float),
    Column("erased", Boolean, nullable=False, default=False),
    Index("rounds_live", "erased", "phase_ends"),
)
members = Table(
    "members",
    TABLES,
    Column("round", String(38), primary_key=True),
    Column("client", Integer, primary_key=True),
    Column("token", LargeBinary(32), nullable=False),  # SHA-256 of the join token
    Column("mask_public", LargeBinary(32)),
    Column("share_public", LargeBinary(32)),
    Column("shared", Boolean, nullable=False, default=False),
    Column("masked", Boolean, nullable=False, default=False),
    Column("revealed", Boolean, nullable=False, default=False),
)
shares = Table(
    "shares",
    TABLES,
    Column("round", String(38), primary_key=True),
    Column("recipient", Integer, primary_key=True),
    Column("sender", Integer, primary_key=True),
    Column("ciphertext", LargeBinary(_CIPHERTEXT_BYTES)),  # none of the share that the sender keeps
    *(Column(kind, LargeBinary(32), nullable=False) for kind in _KINDS),  # commitments
)
reveals = Table(
    "reveals",
    TABLES,
    Column("round", String(38), primary_key=True),
    Column("owner", Integer, primary_key=True),  # whose secret it is a share of; the key leaves out the kind:
    Column("holder", Integer, primary_key=True),  # nobody can give shares of both
    Column("kind", String(9), nullable=False),
    Column("share", LargeBinary(secret_sharing.SHARE_BYTES), nullable=False),
)


class UnknownRound(Refused):
    code = "unknown-round"


class UnknownMember(Refused):
    """The join token is nobody's in this round."""

    code = "unknown-member"


class NotYet(Refused):
    """It belongs to a phase that has not begun."""

    code = "not-yet"


class PhaseOver(Refused):
    """It belongs to a phase that has ended, or comes from a client that was dropped."""

    code = "phase-over"


class AlreadySent(Refused):
    code = "already-sent"


class WrongLength(Refused):
    code = "wrong-length"


class DoubleReveal(Refused):
    """A share of the one secret of a client whose other secret is being recovered."""

    code = "double-reveal"


class ForgedShare(Refused):
    """A share that is not the one its owner committed to."""

    code = "forged-share"


class NotANeighbour(Refused):
    code = "not-a-neighbour"


class MissingShare(Refused):
    code = "missing-share"


class UnusableKey(Refused):
    """A public key that cannot be used: of low order, in a second encoding, or that of another client."""

    code = "invalid-request"


class Aborted(Refused):
    code = "round-aborted"


class TooManyRounds(Refused):
    code = "too-many-rounds"


class NoRoom(Refused):
    """The live rounds of all keys hold as many bytes as they may."""

    code = "storage-full"


class NoShare(Refused):
    """The live rounds of one key hold as many bytes as they may."""

    code = "storage-quota"


@dataclass(frozen=True)
class Bounds:
    """The most live rounds of one owner, and the most bytes of their masked vectors, and of those of all owners."""

    live: int
    owner_bytes: int
    all_bytes: int


@dataclass(frozen=True)
class NewRound:
    """What the creator asks for. Times in seconds, one for each of the four phases in which clients send something."""

    owner: str
    clients: int
    min_clients: int
    threshold: int | None  # of all clients, each sharing with each; None: graph and threshold by the rule
    dimension: int
    modulus_bits: Literal[32, 64]
    quantisation: Quantisation
    output: Literal["int", "float", "mean"]
    backend: Literal["auto", "gpu", "cpu"]
    deadlines: tuple[float, float, float, float]

    @property
    def bytes(self) -> int:
        """Of all masked vectors."""
        return self.clients * self.dimension * self.modulus_bits // 8


@dataclass(frozen=True)
class Member:
    """One client of a round, by the token it was given."""

    round_id: str
    client: int
    owner: str  # of the round


@dataclass(frozen=True)
class Status:
    """How far a round is. `counts` says how many clients sent each of keys, shares, masked, unmask; `deadline` is in
    Unix seconds."""

    id: str
    owner: str
    phase: Phase
    created_at: float
    deadline: float | None
    clients: int
    min_clients: int
    roster: int | None
    degree: int | None
    threshold: int | None
    dimension: int
    modulus_bits: int
    counts: Mapping[str, int]
    why: str | None
    job_id: str | None
    ended_at: float | None


@dataclass(frozen=True)
class Roster:
    """Who takes part: (mask_public, share_public) by client, and how they mask and share."""

    round_id: str
    clients: Mapping[int, tuple[bytes, bytes]]
    ring: Sequence[int]
    degree: int
    threshold: int
    dimension: int
    modulus_bits: int
    quantisation: Quantisation


@dataclass(frozen=True)
class Received:
    """What one client sent another: two encrypted shares, and its commitments to them."""

    ciphertext: bytes = field(repr=False)
    self_seed: bytes
    mask_key: bytes


@dataclass(frozen=True)
class Place:
    """Where a masked vector belongs: a row of a matrix of so many rows, each of so many bytes."""

    row: int
    rows: int
    row_bytes: int
    seconds: float  # that are left for it


@dataclass(frozen=True)
class Aggregation:
    """What is left to compute. `order` names the client of each row of the matrix, survivors or not."""

    round_id: str
    owner: str
    order: Sequence[int]
    params: Mapping[str, Any]  # of the operation secure_aggregation
    backend: str
    modulus_bits: int
    row_bytes: int
    shares: Shares = field(repr=False)
    job_id: str | None = None

    @property
    def survivors(self) -> list[int]:
        return list(self.params["survivors"])

    @property
    def pairs(self) -> list[tuple[int, int]]:
        return list(self.params["pairs"])


class Rounds:
    """The rounds of one database."""

    def __init__(self, engine: Engine, clock: Callable[[], float] = time.time) -> None:
        self._engine = engine
        self._clock = clock

    # --- the creator

    def create(self, new: NewRound, bounds: Bounds) -> tuple[str, list[str]]:
        """Make a round; returns its id and a join token for each client, in the order of their ids, which say nothing
        about who they are. Raises TooManyRounds, NoShare or NoRoom past one of the bounds, ValueError where `problems`
        finds any."""
        if found := problems(new):
            raise ValueError("; ".join(detail for _, detail in found))
        name = secrets.token_hex(16)
        round_id, now = f"round_{name}", self._clock()
        tokens = [f"wdj_{name}_{client}_{secrets.token_urlsafe(32)}" for client in range(new.clients)]
        with writing(self._engine) as connection:
            _one_creator_at_a_time(connection)
            live = rounds.c.phase.in_(LIVE)
            own = and_(live, rounds.c.owner == new.owner)
            mine = connection.scalar(select(func.count()).where(own)) or 0
            if mine >= bounds.live:
                raise TooManyRounds(f"the key has {mine} live rounds; the limit is {bounds.live}")
            vectors = f"{new.clients} vectors of {new.dimension} words are {new.bytes} bytes"
            if (held := _bytes(connection, own)) + new.bytes > bounds.owner_bytes:
                raise NoShare(
                    f"{vectors}; live rounds of one key may hold {bounds.owner_bytes} together, and the key's have "
                    f"{held}"
                )
            if _bytes(connection, live) + new.bytes > bounds.all_bytes:
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
            found = _round(connection, round_id)
            counts = _counts(connection, round_id)
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

    # --- clients

    def member(self, round_id: str, token: str) -> Member:
        """Whose token it is. Raises UnknownRound and UnknownMember."""
        match = _TOKEN.fullmatch(token)
        with reading(self._engine) as connection:
            owner = _round(connection, round_id).owner
            kept = None
            if match is not None and round_id == f"round_{match[1]}":
                client = int(match[2])
                mine = and_(members.c.round == round_id, members.c.client == client)
                kept = connection.scalar(select(members.c.token).where(mine))
        if match is None or kept is None or not hmac.compare_digest(kept, hashlib.sha256(token.encode()).digest()):
            raise UnknownMember(f"the join token is not one of {round_id}")
        return Member(round_id, int(match[2]), owner)

    def send_keys(self, member: Member, mask_public: bytes, share_public: bytes) -> None:
        """Take part. Raises UnusableKey for a public key that cannot be used, or that somebody else sent."""
        for name, key in (("mask_public", mask_public), ("share_public", share_public)):
            _check_key(name, key)
        if mask_public == share_public:
            raise UnusableKey("mask_public and share_public are the same key, and each has one use")
        with writing(self._engine) as connection:
            _, me = self._in_phase(connection, member, "keys", "alone")
            if me.mask_public is not None:
                raise AlreadySent(f"client {member.client} has sent its keys")
            both = (mask_public, share_public)
            twice = or_(members.c.mask_public.in_(both), members.c.share_public.in_(both))
            if connection.scalar(select(func.count()).where(members.c.round == member.round_id, twice)):
                raise UnusableKey("another client of the round has sent one of these keys")
            _mark(connection, member, mask_public=mask_public, share_public=share_public)
        self.advance(member.round_id)

    def roster(self, round_id: str) -> Roster:
        """Raises NotYet until the roster is closed."""
        with reading(self._engine) as connection:
            found = _round(connection, round_id)
            _require(found, "shares", exactly=False)
            ring = json.loads(found.ring)
            return Roster(
                round_id=round_id,
                clients=_publics(connection, round_id),
                ring=ring,
                degree=found.degree,
                threshold=found.threshold,
                dimension=found.dimension,
                modulus_bits=found.modulus_bits,
                quantisation=_quantisation(found),
            )

    def send_shares(
        self, member: Member, ciphertexts: Mapping[int, bytes], commitments: Mapping[int, tuple[bytes, bytes]]
    ) -> None:
        """Take a ciphertext for each neighbour, and commitments (self_seed, mask_key) for those and the sender."""
        with writing(self._engine) as connection:
            found, me = self._in_phase(connection, member, "shares")
            if me.shared:
                raise AlreadySent(f"client {member.client} has sent its shares")
            around = set(_neighbours(found)[member.client])
            _require_exactly("ciphertexts", ciphertexts, around)
            _require_exactly("commitments", commitments, around | {member.client})
            for recipient, ciphertext in ciphertexts.items():
                _require_length(f"the ciphertext for client {recipient}", ciphertext, _CIPHERTEXT_BYTES)
            for recipient, both in commitments.items():
                for digest in both:
                    _require_length(f"a commitment for client {recipient}", digest, 32)
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
            _mark(connection, member, shared=True)
        self.advance(member.round_id)

    def shares_for(self, member: Member) -> tuple[list[int], dict[int, Received]]:
        """Everybody whose shares are in, and what those among the member's neighbours sent it. Raises NotYet until the
        phase has ended, PhaseOver for a client that is out, and once the round has ended."""
        with reading(self._engine) as connection:
            found = _round(connection, member.round_id)
            _require(found, "masked", exactly=False)
            if found.phase == "done":
                raise PhaseOver("the round is done, and what clients sent each other is erased")
            _sharing(_member(connection, member))
            sharers = _clients(connection, member.round_id, members.c.shared)
            mine = and_(shares.c.round == member.round_id, shares.c.recipient == member.client)
            rows = connection.execute(select(shares).where(mine, shares.c.ciphertext.is_not(None))).all()
            return sharers, {row.sender: Received(row.ciphertext, row.self_seed, row.mask_key) for row in rows}

    def place(self, member: Member) -> Place:
        """Where the member's masked vector belongs, if it may be sent now."""
        with reading(self._engine) as connection:
            found, me = self._in_phase(connection, member, "masked", None)
            if me.masked:
                raise AlreadySent(f"client {member.client} has sent its masked vector")
            sharers = _clients(connection, member.round_id, members.c.shared)
            size, left = found.dimension * found.modulus_bits // 8, found.phase_ends - self._clock()
            return Place(sharers.index(member.client), len(sharers), size, left)

    def counts_masked(self, member: Member) -> bool:
        """Whether the member's masked vector is one of those that are summed, whatever the phase."""
        with reading(self._engine) as connection:
            return bool(_member(connection, member).masked)

    def send_masked(self, member: Member) -> None:
        """The member's masked vector is in its place, whole."""
        with writing(self._engine) as connection:
            _, me = self._in_phase(connection, member, "masked")
            if me.masked:
                raise AlreadySent(f"client {member.client} has sent its masked vector")
            _mark(connection, member, masked=True)
        self.advance(member.round_id)

    def survivors(self, round_id: str) -> tuple[list[int], list[int]]:
        """Whose masked vectors are summed, and who shared secrets and dropped out. Raises NotYet until that is
        settled."""
        with reading(self._engine) as connection:
            _require(_round(connection, round_id), "unmask", exactly=False)
            return _survivors(connection, round_id)

    def send_unmask(self, member: Member, self_seed: Mapping[int, bytes], mask_key: Mapping[int, bytes]) -> None:
        """Take the shares that a survivor holds: of the self seed of each survivor of its sharing set, itself included,
        and of the mask key of each client of it that dropped out."""
        with writing(self._engine) as connection:
            found, me = self._in_phase(connection, member, "unmask")
            if not me.masked:
                raise PhaseOver(f"client {member.client} was dropped: its masked vector was not there in time")
            if me.revealed:
                raise AlreadySent(f"client {member.client} has sent its shares of others' secrets")
            survivors, dropped = (set(clients) for clients in _survivors(connection, member.round_id))
            around = {member.client, *_neighbours(found)[member.client]}
            wrong = sorted({*self_seed} & ({*mask_key} | dropped)) or sorted({*mask_key} & survivors)
            if wrong:
                kept = "survived: only its self seed" if wrong[0] in survivors else "dropped out: only its mask key"
                raise DoubleReveal(f"client {wrong[0]} {kept} may be recovered, and both together open its vector")
            _require_exactly("self_seed", self_seed, around & survivors)
            _require_exactly("mask_key", mask_key, around & dropped)
            committed = _commitments(connection, member)
            rows = []
            for kind, given in zip(_KINDS, (self_seed, mask_key), strict=True):
                for owner, share in given.items():
                    _require_length(f"the share of client {owner}'s {kind}", share, secret_sharing.SHARE_BYTES)
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
            _mark(connection, member, revealed=True)
        self.advance(member.round_id)

    # --- the driver

    def due(self) -> list[str]:
        """Rounds for which there is something to do: a phase's time is over, the sum is to be made, or they have ended
        and hold what is to be erased."""
        late = and_(rounds.c.phase.in_(PHASES[:4]), rounds.c.phase_ends <= self._clock())
        open_ends = and_(rounds.c.phase.in_(PHASES[4:]), rounds.c.erased.is_(False))
        with reading(self._engine) as connection:
            return list(
                connection.scalars(select(rounds.c.id).where(or_(late, open_ends)).order_by(rounds.c.created_at))
            )

    def advance(self, round_id: str) -> Phase:
        """End the phase if everybody has sent what it takes or its time is over; returns the phase it is then."""
        with writing(self._engine) as connection:
            found = _round(connection, round_id, "alone")
            phase: Phase = found.phase
            if phase not in PHASES[:4] or not (found.phase_ends <= self._clock() or _all_in(connection, found)):
                return phase
            try:
                settled = _SETTLE[phase](connection, found)
            except Aborted as why:
                _end(connection, round_id, phase, "aborted", self._clock(), str(why))
                return "aborted"
            following = PHASES[PHASES.index(phase) + 1]
            seconds = getattr(found, f"{following}_s", None)
            ends = self._clock() + (seconds or AGGREGATING_SECONDS)
            moved = and_(rounds.c.id == round_id, rounds.c.phase == phase)
            connection.execute(update(rounds).where(moved).values(phase=following, phase_ends=ends, **settled))
            return following

    def phases(self) -> dict[Phase, int]:
        """How many rounds whose data is kept are in each phase."""
        counted = select(rounds.c.phase, func.count())
        query = counted.where(rounds.c.erased.is_(False)).group_by(rounds.c.phase)
        with reading(self._engine) as connection:
            return {row.phase: row[1] for row in connection.execute(query)}

    def live_bytes(self, owner: str | None = None) -> int:
        """Bytes of the masked vectors of the live rounds of one owner, or of all: those that were sent and those to
        come."""
        live = rounds.c.phase.in_(LIVE)
        with reading(self._engine) as connection:
            return _bytes(connection, live if owner is None else and_(live, rounds.c.owner == owner))

    def aggregation(self, round_id: str) -> Aggregation | None:
        """What is to be computed; None unless the round aggregates."""
        with reading(self._engine) as connection:
            found = _round(connection, round_id)
            if found.phase != "aggregating":
                return None
            survivors, dropped = _survivors(connection, round_id)
            given: dict[str, dict[int, dict[int, bytes]]] = {kind: defaultdict(dict) for kind in _KINDS}
            for row in connection.execute(select(reveals).where(reveals.c.round == round_id)):
                given[row.kind][row.owner][row.holder + 1] = row.share
            publics = {client: keys[0] for client, keys in _publics(connection, round_id).items()}
        neighbours, stayed = _neighbours(found), set(survivors)
        pairs = [(gone, other) for gone in dropped for other in neighbours[gone] if other in stayed]
        ring = json.loads(found.ring)
        complete = found.degree >= len(ring) - 1
        params = {
            "round_id": round_id,
            "modulus_bits": found.modulus_bits,
            "threshold": found.threshold,
            "survivors": survivors,
            "dropped": dropped,
            "pairs": pairs,
            **({} if complete else {"degree": found.degree, "ring": ring}),
            "quantisation": _quantisation(found).model_dump(),
            "output": found.output,
        }
        revealed = Shares(round_id, found.threshold, publics, given["self_seed"], given["mask_key"])
        return Aggregation(
            round_id, found.owner, sorted([*survivors, *dropped]), params, found.backend, found.modulus_bits,
            found.dimension * found.modulus_bits // 8, revealed, found.job_id,
        )  # fmt: skip

    def submitted(self, round_id: str, job_id: str | None, inputs: Mapping[str, str]) -> bool:
        """Remember the arrays that were made for the job, and the job once it is queued; False where the round does not
        aggregate. Another process may have queued it: what is known of the job is never forgotten."""
        known = {"inputs": json.dumps(dict(inputs)), **({} if job_id is None else {"job_id": job_id})}
        with writing(self._engine) as connection:
            here = and_(rounds.c.id == round_id, rounds.c.phase == "aggregating")
            return connection.execute(update(rounds).where(here).values(**known)).rowcount == 1

    def end(self, round_id: str, phase: Literal["done", "aborted"], why: str | None = None) -> bool:
        """End a round that aggregates; False where somebody has ended it."""
        with writing(self._engine) as connection:
            return _end(connection, round_id, "aggregating", phase, self._clock(), why)

    def cancel(self, round_id: str) -> bool:
        """End a round before its sum is made; False where it has ended. Members are told that it was aborted."""
        with writing(self._engine) as connection:
            phase: Phase = _round(connection, round_id, "alone").phase
            if phase in ("done", "aborted"):
                return False
            return _end(connection, round_id, phase, "aborted", self._clock(), "it was canceled")

    def arrays(self, round_id: str) -> dict[str, str]:
        """Ids of the arrays that were made for the round's job, by name."""
        with reading(self._engine) as connection:
            kept = _round(connection, round_id).inputs
            return {} if kept is None else json.loads(kept)

    def erase(self, round_id: str) -> None:
        """Delete every ciphertext, commitment and share of a round that has ended. Call it once its files are gone."""
        with writing(self._engine) as connection:
            if _round(connection, round_id, "alone").phase not in ("done", "aborted"):
                raise ValueError(f"{round_id} has not ended")
            for table in (shares, reveals):
                connection.execute(delete(table).where(table.c.round == round_id))
            connection.execute(update(rounds).where(rounds.c.id == round_id).values(erased=True, inputs=None))
        truncate_log(self._engine)

    def _in_phase(
        self, connection: Connection, member: Member, phase: Phase, lock: Literal["shared", "alone"] | None = "shared"
    ) -> tuple[Row[Any], Row[Any]]:
        """The round and the member, if a message of this phase is taken now. Locked, the phase cannot end before this
        transaction does, nor another message of the member be taken."""
        found = _round(connection, member.round_id, lock)
        _require(found, phase)
        if found.phase_ends <= self._clock():
            raise PhaseOver(f"the time for {phase} is over")
        me = _member(connection, member, locked=lock is not None)
        if phase != "keys" and me.mask_public is None:
            raise PhaseOver(f"client {member.client} is not in the roster: its keys were not there in time")
        if phase in ("masked", "unmask"):
            _sharing(me)
        return found, me


def problems(new: NewRound) -> list[tuple[str, str]]:
    """What is wrong with a round that is asked for: names of fields, and a sentence each."""
    found = list[tuple[str, str]]()
    if not graph.FEWEST_CLIENTS <= new.clients <= MOST_CLIENTS:
        found.append(("clients", f"{new.clients} clients are outside {graph.FEWEST_CLIENTS} to {MOST_CLIENTS}"))
    if not graph.FEWEST_CLIENTS <= new.min_clients <= new.clients:
        found.append(
            ("min_clients", f"min_clients {new.min_clients} is outside {graph.FEWEST_CLIENTS} to {new.clients} clients")
        )
    if new.threshold is not None:
        if new.clients > MOST_IN_A_COMPLETE_GRAPH:
            sentence = (
                f"of more than {MOST_IN_A_COMPLETE_GRAPH} clients each shares with some alone: leave threshold out"
            )
            found.append(("threshold", sentence))
        elif not graph.majority(new.clients) <= new.threshold <= new.min_clients:
            found.append(
                (
                    "threshold",
                    f"threshold {new.threshold} of {new.clients} clients must lie between "
                    f"{graph.majority(new.clients)}, more than half, and {new.min_clients}, the fewest there may be",
                )
            )
    if new.quantisation.bound < 1:
        found.append(("quantisation", "clip * scale rounds to 0: every vector would be zero"))
    largest, limit = overflow_proof(new)
    if largest > limit:
        found.append(
            (
                "quantisation",
                f"the sum could overflow: {new.clients} clients * weight {new.quantisation.max_weight} * "
                f"{new.quantisation.bound} (clip * scale) = {largest}, above {limit}, the largest mod "
                f"2**{new.modulus_bits}",
            )
        )
    if new.output == "mean" and new.quantisation.max_weight > 1:
        sentence = "a mean of weighted vectors needs the sum of their weights, which no round knows: ask for float"
        found.append(("output", sentence))
    return found


def overflow_proof(new: NewRound) -> tuple[int, int]:
    """The largest magnitude the sum of all clients can have, and the largest that the modulus allows."""
    largest = new.clients * new.quantisation.max_weight * new.quantisation.bound
    return largest, (1 << (new.modulus_bits - 1)) - 1


def _one_creator_at_a_time(connection: Connection) -> None:
    """Limits are counted before a row is added: on SQLite a writer is alone, on PostgreSQL this makes it so."""
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(8172646)))


def _bytes(connection: Connection, which: ColumnElement[bool]) -> int:
    """Bytes of the masked vectors of these rounds."""
    size = rounds.c.clients * rounds.c.dimension * (rounds.c.modulus_bits // 8)
    return int(connection.scalar(select(func.coalesce(func.sum(size), 0)).where(which)) or 0)


def _round(connection: Connection, round_id: str, lock: Literal["shared", "alone"] | None = None) -> Row[Any]:
    if not _ROUND_ID.fullmatch(round_id):
        raise UnknownRound(f"there is no round {round_id[:80]!r}")
    query = select(rounds).where(rounds.c.id == round_id)
    if lock is not None:  # (SQLite's writer is alone anyway)
        query = query.with_for_update(read=lock == "shared")
    found = connection.execute(query).one_or_none()
    if found is None:
        raise UnknownRound(f"there is no round {round_id[:80]!r}")
    return found


def _member(connection: Connection, member: Member, *, locked: bool = False) -> Row[Any]:
    query = select(members).where(members.c.round == member.round_id, members.c.client == member.client)
    return connection.execute(query.with_for_update() if locked else query).one()


def _mark(connection: Connection, member: Member, **columns: Any) -> None:
    mine = and_(members.c.round == member.round_id, members.c.client == member.client)
    connection.execute(update(members).where(mine).values(**columns))


def _sharing(me: Row[Any]) -> None:
    if not me.shared:
        raise PhaseOver(f"client {me.client} is out of the round: its shares were not there in time")


def _clients(connection: Connection, round_id: str, where: Any) -> list[int]:
    """Those of whom it is true, in the order of their ids."""
    query = select(members.c.client).where(members.c.round == round_id, where).order_by(members.c.client)
    return list(connection.scalars(query))


def _survivors(connection: Connection, round_id: str) -> tuple[list[int], list[int]]:
    sharing = members.c.shared
    return (
        _clients(connection, round_id, and_(sharing, members.c.masked)),
        _clients(connection, round_id, and_(sharing, members.c.masked.is_(False))),
    )


def _publics(connection: Connection, round_id: str) -> dict[int, tuple[bytes, bytes]]:
    known = and_(members.c.round == round_id, members.c.mask_public.is_not(None))
    rows = connection.execute(select(members).where(known).order_by(members.c.client))
    return {row.client: (row.mask_public, row.share_public) for row in rows}


def _commitments(connection: Connection, member: Member) -> dict[int, dict[str, bytes]]:
    """To the shares that a member holds, by their owner."""
    mine = and_(shares.c.round == member.round_id, shares.c.recipient == member.client)
    rows = connection.execute(select(shares).where(mine))
    return {row.sender: {"self_seed": row.self_seed, "mask_key": row.mask_key} for row in rows}


def _counts(connection: Connection, round_id: str) -> dict[str, int]:
    sent = (members.c.mask_public.is_not(None), members.c.shared, members.c.masked, members.c.revealed)
    row = connection.execute(
        select(*(func.count().filter(condition) for condition in sent)).where(members.c.round == round_id)
    ).one()
    return dict(zip(PHASES, row, strict=False))


def _quantisation(found: Row[Any]) -> Quantisation:
    return Quantisation(clip=found.clip, scale=found.scale, max_weight=found.max_weight)


def _neighbours(found: Row[Any]) -> Mapping[int, tuple[int, ...]]:
    return _graph(found.ring, found.degree)


@lru_cache(maxsize=16)  # every message of a round asks for it
def _graph(ring: str, degree: int) -> Mapping[int, tuple[int, ...]]:
    return graph.neighbours(json.loads(ring), degree)


def _require(found: Row[Any], phase: Phase, *, exactly: bool = True) -> None:
    """Refuse what does not belong to the phase a round is in; or only what comes before it has begun."""
    if found.phase == "aborted":
        raise Aborted(f"the round was aborted: {found.why}")
    now, then = PHASES.index(found.phase), PHASES.index(phase)
    if now < then:
        raise NotYet(f"the round is in the phase {found.phase}, and this belongs to {phase}")
    if exactly and now > then:
        raise PhaseOver(f"the phase {phase} has ended; the round is in {found.phase}")


def _require_exactly(name: str, given: Mapping[int, object], expected: set[int]) -> None:
    if strangers := sorted({*given} - expected):
        raise NotANeighbour(f"{name} names client {strangers[0]}, which is none of the {len(expected)} expected")
    if absent := sorted(expected - {*given}):
        raise MissingShare(f"{name} has {len(given)} of {len(expected)} clients; client {absent[0]} is missing")


def _require_length(what: str, given: bytes, length: int) -> None:
    if len(given) != length:
        raise WrongLength(f"{what} has {len(given)} bytes, not {length}")


def _all_in(connection: Connection, found: Row[Any]) -> bool:
    """Whether everybody has sent what the phase takes."""
    counts = _counts(connection, found.id)
    expected = {"keys": found.clients, "shares": counts["keys"], "masked": found.sharers, "unmask": counts["masked"]}
    return bool(counts[found.phase] == expected[found.phase])


# What ends a phase: each returns the columns that are settled with it, or raises Aborted.


def _after_keys(connection: Connection, found: Row[Any]) -> dict[str, Any]:
    present = _clients(connection, found.id, members.c.mask_public.is_not(None))
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
    sharers = _clients(connection, found.id, members.c.shared)
    if len(sharers) < found.min_clients:
        raise Aborted(f"{len(sharers)} clients sent shares in time, and {found.min_clients} are the least")
    _require_holders(found, of=sharers, held_by=sharers)
    return {"sharers": len(sharers)}


def _after_masked(connection: Connection, found: Row[Any]) -> dict[str, Any]:
    survivors, dropped = _survivors(connection, found.id)
    if len(survivors) < graph.FEWEST_CLIENTS:
        raise Aborted(f"{len(survivors)} masked vectors came in time, and {graph.FEWEST_CLIENTS} are the least")
    _require_holders(found, of=[*survivors, *dropped], held_by=survivors)
    return {}


def _after_unmask(connection: Connection, found: Row[Any]) -> dict[str, Any]:
    survivors, dropped = _survivors(connection, found.id)
    _require_holders(found, [*survivors, *dropped], _clients(connection, found.id, members.c.revealed))
    return {}


_SETTLE = {"keys": _after_keys, "shares": _after_shares, "masked": _after_masked, "unmask": _after_unmask}


def _require_holders(found: Row[Any], of: Iterable[int], held_by: Sequence[int]) -> None:
    """Abort where too few are left of those who hold shares of a client's secrets."""
    holders, neighbours = set(held_by), _neighbours(found)
    for client in of:
        left = len(holders.intersection(neighbours[client])) + (client in holders)
        if left < found.threshold:
            raise Aborted(
                f"{left} clients are left that hold shares of client {client}'s secrets, and the threshold is "
                f"{found.threshold}"
            )


def _check_key(name: str, key: bytes) -> None:
    _require_length(name, key, 32)
    try:
        check_encoding(key)
    except ValueError as error:
        raise UnusableKey(f"{name}: {error}") from None
    try:
        X25519PrivateKey.generate().exchange(X25519PublicKey.from_public_bytes(key))
    except ValueError:  # RFC 7748, section 6.1
        raise UnusableKey(f"{name} is a point of low order: a secret agreed on with it would be known to all") from None


def _end(
    connection: Connection, round_id: str, before: Phase, phase: Literal["done", "aborted"], now: float, why: str | None
) -> bool:
    here = and_(rounds.c.id == round_id, rounds.c.phase == before)
    ended = {"phase": phase, "phase_ends": None, "ended_at": now, "why": why}
    return connection.execute(update(rounds).where(here).values(**ended)).rowcount == 1
