"""The tables of rounds: the round, its members, the shares they send each other, and those they reveal."""

from typing import Literal

from sqlalchemy import BigInteger, Boolean, Column, Float, Index, Integer, LargeBinary, String, Table, Text

from warpdesk.secagg import secret_sharing
from warpdesk_server.privacy.database import TABLES
from warpdesk_server.privacy.rounds.records import PHASES

KINDS: tuple[Literal["self_seed"], Literal["mask_key"]] = ("self_seed", "mask_key")
CIPHERTEXT_BYTES = 2 * secret_sharing.SHARE_BYTES + 16  # two shares and the tag of Poly1305


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
    Column("ciphertext", LargeBinary(CIPHERTEXT_BYTES)),  # none of the share that the sender keeps
    *(Column(kind, LargeBinary(32), nullable=False) for kind in KINDS),  # commitments
)
reveals = Table(
    "reveals",
    TABLES,
    Column("round", String(38), primary_key=True),
    Column("owner", Integer, primary_key=True),  # whose secret it is a share of; the key leaves out the kind:
    Column("holder", Integer, primary_key=True),  # no holder can give shares of both
    Column("kind", String(9), nullable=False),
    Column("share", LargeBinary(secret_sharing.SHARE_BYTES), nullable=False),
)
