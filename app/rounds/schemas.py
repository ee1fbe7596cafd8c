"""Schemas of rounds: the round that is made, what its clients send in each phase, and the sum."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field

from warpdesk.models import BackendWish, Body, Reply
from warpdesk.secagg.quantisation import Quantisation
from warpdesk_server.app.kit.schemas import WEEK
from warpdesk_server.privacy.rounds.records import Phase
from warpdesk_server.privacy.rounds.terms import MOST_CLIENTS

HOUR = 3600.0

Seconds = Annotated[float, Field(gt=0, le=WEEK, allow_inf_nan=False)]
# Of a phase in which no vector is written yet: a round has its room from the beginning.
Short = Annotated[float, Field(gt=0, le=HOUR, allow_inf_nan=False)]
ClientName = Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,3})$")]
Hex = Annotated[str, Field(pattern=r"^([0-9a-f]{2})*$", max_length=1024, description="bytes in hexadecimal")]


# --- what the creator sends, and gets


class Deadlines(Body):
    """Seconds that each phase may take. It ends earlier once everybody has sent what it takes."""

    keys_s: Short = 60.0
    shares_s: Short = 60.0
    masked_s: Seconds = 600.0
    unmask_s: Seconds = 60.0


class RoundRequest(Body):
    """A round to be made. Every client gets a join token; who takes part is settled when the keys are in."""

    clients: Annotated[int, Field(ge=3, le=MOST_CLIENTS, description="join tokens that are wanted")]
    min_clients: Annotated[int, Field(ge=3, le=MOST_CLIENTS, description="fewest whose keys and shares may be in")]
    threshold: Annotated[
        int | None,
        Field(
            ge=2,
            le=MOST_CLIENTS,
            description="survivors that are needed, more than half of all clients, which then share each with each; "
            "null: neighbours and threshold by the rule for 2^-40 (security) and 2^-20 (failure)",
        ),
    ] = None
    dimension: Annotated[int, Field(ge=1, le=1 << 32, description="numbers in each vector")]
    modulus_bits: Literal[32, 64] = 32
    quantisation: Quantisation
    output: Literal["int", "float", "mean"] = "float"
    deadlines: Deadlines = Deadlines()
    backend: BackendWish = "auto"


class OverflowProof(Reply):
    """The largest magnitude that the sum of all clients can have, and the largest that the modulus allows."""

    max_abs_sum: int
    limit: int


class CreatedRound(Reply):
    """A round that was just created: the only answer that holds its join tokens; the service keeps their digests."""

    id: str
    join_tokens: Annotated[
        list[str], Field(description="one for each client, to be handed out in any order: who gets which says nothing")
    ]
    overflow_proof: OverflowProof


class RoundCounts(Reply):
    """Clients that have sent each of these."""

    keys: int
    shares: int
    masked: int
    unmask: int


ROUND_ID = r"^round_[0-9a-f]{32}$"


class Round(Reply):
    """How far a round is."""

    id: str
    phase: Phase
    why: Annotated[str | None, Field(description="why it was aborted")] = None
    counts: RoundCounts
    clients: int
    min_clients: int
    roster: Annotated[int | None, Field(description="clients whose keys were in when the roster closed")] = None
    degree: int | None = None
    threshold: int | None = None
    dimension: int
    modulus_bits: int
    created_at: datetime
    deadline_at: Annotated[datetime | None, Field(description="when the phase ends at the latest")] = None
    ended_at: datetime | None = None
    job: str | None = None


class RoundPage(Reply):
    rounds: list[Round]
    next: Annotated[str | None, Field(description="URL of the next, older page")]


class RoundResult(Reply):
    """The sum, and what making it told the server."""

    round: str
    job: str
    sum: Annotated[Any, Field(description="numbers, or from 100,001 of them on the id of an array")]
    survivors: Annotated[list[int], Field(description="clients whose vectors are in the sum")]
    dropped: Annotated[list[int], Field(description="clients that shared secrets and sent no vector in time")]
    overflow_proof: OverflowProof
    statement: str
    provenance: dict[str, Any]


# --- what a client sends, and gets


class Keys(Body):
    """A client's public X25519 keys for this round: of its masks, and of the shares that others send it."""

    mask_public: Hex
    share_public: Hex


class Roster(Reply):
    """Who takes part, and in which order they stand on the ring: a client has degree / 2 neighbours on either side."""

    round: str
    clients: dict[str, Keys]
    ring: list[int]
    degree: int
    threshold: int
    dimension: int
    modulus_bits: int
    quantisation: Quantisation


class Commitments(Body):
    """To the shares of both secrets that one client is given: SHA-256 each."""

    self_seed: Hex
    mask_key: Hex


class SentShares(Body):
    """A client's message in a round: an encrypted share for each neighbour, and commitments, also to its own share."""

    ciphertexts: dict[ClientName, Hex]
    commitments: dict[ClientName, Commitments]


class ReceivedShare(Reply):
    """What one client sent another."""

    ciphertext: str
    commitments: Commitments


class ReceivedShares(Reply):
    """What a client's neighbours sent it, by sender, and everybody whose shares are in: mask with those among the
    neighbours, and with nobody else."""

    sharers: list[int]
    shares: dict[str, ReceivedShare]


class Survivors(Reply):
    """Whose vectors are summed, and who shared secrets and sent no vector in time."""

    survivors: list[int]
    dropped: list[int]


class Unmasking(Body):
    """A surviving client's message in a round: shares of survivors' self seeds, and of dropped clients' mask keys."""

    self_seed: dict[ClientName, Hex] = Field(default_factory=dict)
    mask_key: dict[ClientName, Hex] = Field(default_factory=dict)


BODIES: tuple[type[Body], ...] = (RoundRequest, Keys, SentShares, Unmasking)
