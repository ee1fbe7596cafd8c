"""Clients of a round at the level of its store: real secrets, shares and commitments, no HTTP and no vectors."""

import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from warpdesk.secagg import graph, key_agreement, secret_sharing
from warpdesk.secagg.quantisation import Quantisation
from warpdesk_server.privacy.rounds.records import PHASES, Member, Phase
from warpdesk_server.privacy.rounds.state import Rounds
from warpdesk_server.privacy.rounds.terms import Bounds, NewRound

CIPHERTEXT = bytes(96)


def new_round(clients: int, **changes: Any) -> NewRound:
    return NewRound(
        **{
            "owner": "creator",
            "clients": clients,
            "min_clients": 3,
            "threshold": None,
            "dimension": 4,
            "modulus_bits": 32,
            "quantisation": Quantisation(clip="8", scale="65536", max_weight=1),
            "output": "float",
            "backend": "auto",
            "deadlines": (10.0, 20.0, 30.0, 40.0),
            **changes,
        }
    )


@dataclass
class Clock:
    now: float = 1e9

    def __call__(self) -> float:
        return self.now


@dataclass
class Clients:
    """All clients of one round."""

    rounds: Rounds
    clock: Clock
    request: NewRound
    id: str = ""
    tokens: list[str] = field(default_factory=list)
    held: dict[int, dict[int, tuple[bytes, bytes]]] = field(default_factory=dict)  # by holder and owner

    def __post_init__(self) -> None:
        self.id, self.tokens = self.rounds.create(self.request, Bounds(10, 1 << 30, 1 << 30))
        self.secrets = {c: (secrets.token_bytes(32), secrets.token_bytes(32)) for c in range(self.request.clients)}
        self.share_keys = {c: secrets.token_bytes(32) for c in range(self.request.clients)}

    @property
    def all(self) -> range:
        return range(self.request.clients)

    @property
    def phase(self) -> Phase:
        return self.rounds.status(self.id).phase

    def member(self, client: int) -> Member:
        return Member(self.id, client, self.request.owner)

    def late(self) -> Phase:
        """Let the phase's time pass, and the round be looked at."""
        deadline = self.rounds.status(self.id).deadline
        assert deadline is not None
        self.clock.now = deadline
        assert self.id in self.rounds.due()
        return self.rounds.advance(self.id)

    def public(self, client: int) -> bytes:
        return key_agreement.public_key(self.secrets[client][1])

    def send_keys(self, clients: Iterable[int]) -> None:
        for client in clients:
            share_public = key_agreement.public_key(self.share_keys[client])
            self.rounds.send_keys(self.member(client), self.public(client), share_public)

    def shares_of(self, client: int) -> tuple[dict[int, bytes], dict[int, tuple[bytes, bytes]]]:
        """Ciphertexts and commitments of a client; its shares are remembered as what others then hold."""
        roster = self.rounds.roster(self.id)
        around = {client, *graph.neighbours(roster.ring, roster.degree)[client]}
        split = [secret_sharing.split(s, roster.threshold, [c + 1 for c in around]) for s in self.secrets[client]]
        commitments = {}
        for other in around:
            both = split[0][other + 1], split[1][other + 1]
            self.held.setdefault(other, {})[client] = both
            kinds = zip(("self_seed", "mask_key"), both, strict=True)
            one, two = (secret_sharing.commitment(self.id, kind, client, other, share) for kind, share in kinds)
            commitments[other] = one, two
        return dict.fromkeys(around - {client}, CIPHERTEXT), commitments

    def send_shares(self, clients: Iterable[int]) -> None:
        for client in clients:
            self.rounds.send_shares(self.member(client), *self.shares_of(client))

    def send_masked(self, clients: Iterable[int]) -> None:
        for client in clients:
            self.rounds.send_masked(self.member(client))

    def reveals_of(self, client: int) -> tuple[dict[int, bytes], dict[int, bytes]]:
        survivors, dropped = self.rounds.survivors(self.id)
        held: Mapping[int, tuple[bytes, bytes]] = self.held[client]
        return (
            {owner: both[0] for owner, both in held.items() if owner in survivors},
            {owner: both[1] for owner, both in held.items() if owner in dropped},
        )

    def send_unmask(self, clients: Iterable[int]) -> None:
        for client in clients:
            self.rounds.send_unmask(self.member(client), *self.reveals_of(client))

    def play(self, until: Phase, dropped: Iterable[int] = ()) -> None:
        """Go on until a phase; `dropped` send no masked vector."""
        gone = set(dropped)
        stay = [client for client in self.all if client not in gone]
        steps: dict[Phase, Callable[[], Any]] = {
            "shares": lambda: self.send_keys(self.all),
            "masked": lambda: self.send_shares(self.all),
            "unmask": lambda: (self.send_masked(stay), gone and self.late()),
            "aggregating": lambda: self.send_unmask(stay),
        }
        for phase, step in steps.items():
            if PHASES.index(self.phase) < PHASES.index(phase) <= PHASES.index(until):
                step()
                assert self.phase == phase
