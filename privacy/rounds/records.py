"""The records of a secure-aggregation round: its status, roster, members, and what they receive. Data alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from warpdesk.secagg.quantisation import Quantisation

Phase = Literal["keys", "shares", "masked", "unmask", "aggregating", "done", "aborted"]
PHASES: tuple[Phase, ...] = ("keys", "shares", "masked", "unmask", "aggregating", "done", "aborted")
LIVE = PHASES[:5]


@dataclass(frozen=True)
class Member:
    """A client of a round in the database, identified by its join token."""

    round_id: str
    client: int
    owner: str  # of the round


@dataclass(frozen=True)
class Status:
    """The status of a round in the database.

    `counts` is the number of clients that sent each of keys, shares, masked, unmask; `deadline` is in Unix seconds.
    """

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
    """The record of a round's roster: its clients' public keys (mask_public, share_public), and the parameters of
    masking and sharing."""

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
    """The record of a round's message from one client to another: two encrypted shares, and its commitments to them."""

    ciphertext: bytes = field(repr=False)
    self_seed: bytes
    mask_key: bytes


@dataclass(frozen=True)
class Place:
    """The record of where a round's client puts its masked vector: a row of a matrix of `rows` rows, each of
    `row_bytes` bytes."""

    row: int
    rows: int
    row_bytes: int
    seconds: float  # that are left for it
