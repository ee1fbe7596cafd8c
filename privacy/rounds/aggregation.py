"""The aggregation job of a secure-aggregation round: the order of its vectors, its parameters, the revealed shares."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Row, select

from warpdesk_server.privacy.rounds import statements
from warpdesk_server.privacy.rounds.tables import KINDS, reveals
from warpdesk_server.privacy.rounds.unmasking import Shares


@dataclass(frozen=True)
class Aggregation:
    """The input of a round's aggregation job. `order` names the client of each row of the matrix, survivor or not."""

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


def aggregation_of(connection: Connection, found: Row[Any]) -> Aggregation:
    """Collect the aggregation job's input from the rows of a round in the phase aggregating."""
    survivors, dropped = statements.survivors(connection, found.id)
    given: dict[str, dict[int, dict[int, bytes]]] = {kind: defaultdict(dict) for kind in KINDS}
    for row in connection.execute(select(reveals).where(reveals.c.round == found.id)):
        given[row.kind][row.owner][row.holder + 1] = row.share
    publics = {client: keys[0] for client, keys in statements.publics(connection, found.id).items()}
    neighbours, stayed = statements.neighbours(found), set(survivors)
    pairs = [(gone, other) for gone in dropped for other in neighbours[gone] if other in stayed]
    ring = json.loads(found.ring)
    complete = found.degree >= len(ring) - 1
    params = {
        "round_id": found.id,
        "modulus_bits": found.modulus_bits,
        "threshold": found.threshold,
        "survivors": survivors,
        "dropped": dropped,
        "pairs": pairs,
        **({} if complete else {"degree": found.degree, "ring": ring}),
        "quantisation": statements.quantisation(found).model_dump(),
        "output": found.output,
    }
    revealed = Shares(found.id, found.threshold, publics, given["self_seed"], given["mask_key"])
    return Aggregation(
        found.id, found.owner, sorted([*survivors, *dropped]), params, found.backend, found.modulus_bits,
        found.dimension * found.modulus_bits // 8, revealed, found.job_id,
    )  # fmt: skip
