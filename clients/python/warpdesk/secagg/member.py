"""The client of a secure aggregation round: `Member` talks to the service, masks its vector and checks each step."""

import re
import time
from functools import partial
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import httpx
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from numpy.typing import ArrayLike
from pydantic import ValidationError

from warpdesk.arrays import as_array
from warpdesk.bodies import memory_body
from warpdesk.client import send
from warpdesk.errors import Unreachable, WarpdeskError
from warpdesk.exchange import Exchange
from warpdesk.secagg import graph, secret_sharing
from warpdesk.secagg.key_agreement import check_encoding, public_key, share_key
from warpdesk.secagg.masking import ClientSecret, Quantisation, check_sum, mask
from warpdesk.secagg.member_state import (
    Commitments,
    Delivery,
    Keys,
    Message,
    Outcome,
    Roster,
    Sent,
    Shares,
    fresh,
    restored,
)

__all__ = ["Member", "Quantisation", "Refused", "WarpdeskError", "join"]

_TOKEN = re.compile(r"wdj_([0-9a-f]{32})_([0-9]{1,9})_[A-Za-z0-9_-]+")
_NONCE = bytes(12)  # a key encrypts one message only
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0  # seconds between two questions whether a phase has ended


class Refused(Exception):
    """The client refuses to go on with the round, since that could reveal more of its vector than the sum."""


def join(
    url: str | None, token: str, state: Path | None = None, *, fewest: int = 3, patience: float = 60.0
) -> "Member":
    """Return a client of the round that `token` belongs to. Nothing is sent yet.

    `state` is a file that only this client can read. With it the client may be restarted at any time and continues
    where it stopped: each decision is on disk before it is sent. The file holds its secrets and is deleted at the end.
    Without it the secrets are in memory only, and a restarted client is out of the round.

    `fewest` is the smallest number of survivors this client accepts in the sum, itself included. `patience` is the
    number of seconds it retries an unreachable service. Raises ValueError if `token` is not a join token.
    """
    return Member(url, token, state, fewest=fewest, patience=patience)


_T = TypeVar("_T", bound=Message)


class Member:
    """One client of one secure aggregation round, with its secrets. Close it, or use it as a context manager."""

    def __init__(
        self, url: str | None, token: str, state: Path | None = None, *, fewest: int = 3, patience: float = 60.0
    ) -> None:
        match = _TOKEN.fullmatch(token)
        if match is None:
            raise ValueError("a join token looks like wdj_<round>_<client>_<secret>")
        self._exchange = Exchange(url, token, timeout=30.0)
        self._http = httpx.Client()
        self._path = f"/v1/secagg/rounds/round_{match[1]}"
        self._file = state
        self._fewest = max(fewest, graph.FEWEST_CLIENTS)
        self._patience = patience
        self._late: WarpdeskError | None = None  # what may have come too late; the next step tells
        self._state = restored(state) or fresh(f"round_{match[1]}", int(match[2]))
        if (self._state.round, self._state.client) != (f"round_{match[1]}", int(match[2])):
            raise ValueError(f"{state} belongs to client {self._state.client} of {self._state.round}")

    @property
    def client(self) -> int:
        """This client's id in the round."""
        return self._state.client

    def take_part(self, vector: ArrayLike, weight: int = 1) -> tuple[int, ...]:
        """Run every step of the round with this client's `vector` (dimension,); returns the clients whose vectors are
        summed.

        The values are clipped and rounded as the round requires, and multiplied by `weight`, from 1 to the round's
        max_weight. Raises Refused, WarpdeskError if the service refuses or the round was aborted, and ValueError for
        a vector that does not fit the round.
        """
        self.publish_keys()
        self.send_shares()
        self.send_vector(vector, weight)
        return self.unmask()

    def publish_keys(self) -> None:
        """Register this client's public keys with the round. It may drop out at any time after that."""
        self._state.save(self._file)
        self._deliver("POST", "keys", json=self._keys.model_dump())

    def send_shares(self) -> None:
        """Wait for the roster, check it, and send every neighbour its shares of this client's secrets."""
        state = self._state
        if state.roster is None:
            roster = self._wait_for("roster", Roster)
            self._check_roster(roster)
            state.roster = roster
        if state.sent is None:
            state.sent, state.held[state.client] = self._share_out(state.roster)
            # The ciphertexts are kept in full: other shares under the same key would reveal both.
            self._state.save(self._file)
        self._deliver("POST", "shares", json=state.sent.model_dump(mode="json"))

    def send_vector(self, vector: ArrayLike, weight: int = 1) -> None:
        """Wait for the neighbours' shares, check them, and send the masked vector."""
        state, roster = self._state, self._roster
        values = as_array("the vector", vector, ("float64",))
        if values.shape != (roster.dimension,):
            raise ValueError(f"a vector of this round has shape [{roster.dimension}], got {list(values.shape)}")
        if state.sharers is None:
            delivery = self._wait_for("shares", Delivery)
            state.held.update(self._open(delivery))
            state.sharers = delivery.sharers
        masked = mask(
            values,
            state.client,
            self._secret,
            {client: bytes.fromhex(keys.mask_public) for client, keys in roster.clients.items()},
            round_id=state.round,
            quantisation=roster.quantisation,
            modulus_bits=roster.modulus_bits,
            weight=weight,
            neighbours=self._around & set(state.sharers) - {state.client},
        )
        digest = sha256(masked.data).hexdigest()
        if state.vector not in (None, digest):
            raise Refused("another vector was masked in this round: both together would tell their difference")
        state.vector = digest
        self._state.save(self._file)
        body = memory_body("application/octet-stream", masked)
        self._deliver("PUT", "masked", stream=body, headers=body.headers)

    def unmask(self) -> tuple[int, ...]:
        """Wait for the list of survivors, check it, and send this client's shares that remove the masks from their sum.

        Returns the survivors. This client's secrets are erased after that.
        """
        state = self._state
        if state.vector is None:
            raise Refused("this client has sent no vector")
        outcome = self._wait_for("survivors", Outcome)
        if state.outcome is None:
            self._check_outcome(outcome)
            state.outcome = outcome
            self._state.save(self._file)
        elif state.outcome != outcome:
            raise Refused("the list of survivors changed: shares for both lists could open a vector")
        around = self._around
        self_seeds = {owner: state.held[owner].self_seed for owner in outcome.survivors if owner in around}
        mask_keys = {owner: state.held[owner].mask_key for owner in outcome.dropped if owner in around}
        self._deliver("POST", "unmask", json={"self_seed": self_seeds, "mask_key": mask_keys})
        self._erase()
        return outcome.survivors

    def close(self) -> None:
        """Close the round member's connections to the service."""
        self._http.close()

    def __enter__(self) -> "Member":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    # --- the round as this client knows it

    @property
    def _secret(self) -> ClientSecret:
        return ClientSecret(bytes.fromhex(self._state.mask_private), bytes.fromhex(self._state.self_seed))

    @property
    def _keys(self) -> Keys:
        share_public = public_key(bytes.fromhex(self._state.share_private))
        return Keys(mask_public=self._secret.public.hex(), share_public=share_public.hex())

    @property
    def _roster(self) -> Roster:
        if self._state.roster is None:
            raise Refused("this client has not seen the roster: send_shares comes first")
        return self._state.roster

    @property
    def _around(self) -> set[int]:
        """This client's sharing set: itself and its neighbours."""
        return _sharing_sets(self._roster)[self._state.client]

    # --- checks of the service's messages

    def _check_roster(self, roster: Roster) -> None:
        me, n = self._state.client, len(roster.clients)
        if roster.round != self._state.round:
            raise Refused(f"the roster is that of {roster.round}, not of {self._state.round}")
        if roster.clients.get(me) != self._keys:
            raise Refused(f"the roster does not hold the keys that client {me} sent") from self._late
        keys = [key for both in roster.clients.values() for key in (both.mask_public, both.share_public)]
        if len(set(keys)) < len(keys):
            raise Refused(f"{n} clients have {len(set(keys))} keys between them, not {len(keys)}")
        try:
            for key in keys:
                check_encoding(bytes.fromhex(key))
        except ValueError as error:
            raise Refused(str(error)) from None
        if sorted(roster.ring) != sorted(roster.clients):
            raise Refused(f"the ring of {len(roster.ring)} places is not one of the {n} clients of the roster")
        if n < self._fewest:
            raise Refused(f"{n} clients take part, and {self._fewest} are the fewest this client joins")
        least = graph.parameters(n).degree
        if not least <= roster.degree < n or (roster.degree % 2 and roster.degree != n - 1):
            raise Refused(f"degree {roster.degree} for {n} clients; {least} neighbours are the least that protect")
        size = roster.degree + 1
        fewest = graph.majority(size) if size == n else max(graph.majority(size), graph.parameters(n).threshold)
        if not fewest <= roster.threshold <= size:
            raise Refused(
                f"threshold {roster.threshold} of {size} that share secrets; {fewest} are the fewest that protect"
            )
        try:
            check_sum(n, roster.quantisation, roster.modulus_bits)
        except ValueError as error:
            raise Refused(str(error)) from None

    def _check_outcome(self, outcome: Outcome) -> None:
        survivors, dropped = set(outcome.survivors), set(outcome.dropped)
        sharers = self._state.sharers or ()
        if both := sorted(survivors & dropped):
            raise Refused(f"client {both[0]} is said to be both here and gone: both its secrets would open its vector")
        if sorted([*outcome.survivors, *outcome.dropped]) != sorted(sharers):
            raise Refused(f"{len(survivors)} survivors and {len(dropped)} dropped are not the {len(sharers)} sharers")
        if self._state.client not in survivors:
            raise Refused(f"client {self._state.client} was dropped: its vector is not in the sum") from self._late
        if len(survivors) < self._fewest:
            raise Refused(f"{len(survivors)} survivors, and {self._fewest} are the fewest this client is summed with")
        for client, around in _sharing_sets(self._roster).items():
            if client in survivors | dropped and len(around & survivors) < self._roster.threshold:
                raise Refused(
                    f"{len(around & survivors)} survivors hold shares of client {client}, fewer than threshold "
                    f"{self._roster.threshold}"
                )

    # --- shares

    def _share_out(self, roster: Roster) -> tuple[Sent, Shares]:
        """Split this client's secrets into a ciphertext per neighbour, public commitments, and the shares it keeps."""
        me, around = self._state.client, sorted(_sharing_sets(roster)[self._state.client])
        places = [client + 1 for client in around]
        seeds = secret_sharing.split(bytes.fromhex(self._state.self_seed), roster.threshold, places)
        keys = secret_sharing.split(bytes.fromhex(self._state.mask_private), roster.threshold, places)
        shares = {client: (seeds[client + 1], keys[client + 1]) for client in around}
        commitments = {other: self._commitments(me, other, *both) for other, both in shares.items()}
        ciphertexts = {
            other: self._cipher(roster, me, other).encrypt(_NONCE, b"".join(both), self._about(me, other)).hex()
            for other, both in shares.items()
            if other != me
        }
        own = Shares(self_seed=shares[me][0].hex(), mask_key=shares[me][1].hex())
        return Sent(ciphertexts=ciphertexts, commitments=commitments), own

    def _open(self, delivery: Delivery) -> dict[int, Shares]:
        """Decrypt the neighbours' shares that this client received, and check them against their commitments."""
        me, roster = self._state.client, self._roster
        sharers = set(delivery.sharers)
        if len(sharers) < len(delivery.sharers) or not sharers <= roster.clients.keys():
            raise Refused("the clients whose shares are in are not clients of the roster, each once")
        if me not in sharers:
            raise Refused(f"the shares of client {me} did not arrive: it is out of the round") from self._late
        expected = self._around & sharers - {me}
        if delivery.shares.keys() != expected:
            raise Refused(
                f"shares of {len(delivery.shares)} clients came, expected those of {len(expected)} neighbours"
            )
        if len(expected) + 1 < roster.threshold:
            raise Refused(f"{len(expected) + 1} of a sharing set are left, fewer than threshold {roster.threshold}")
        held = {}
        for sender, received in delivery.shares.items():
            try:
                sealed = bytes.fromhex(received.ciphertext)
                plain = self._cipher(roster, sender, me).decrypt(_NONCE, sealed, self._about(sender, me))
            except (InvalidTag, ValueError):
                raise Refused(f"the shares that client {sender} sent do not decrypt") from None
            if len(plain) != 2 * secret_sharing.SHARE_BYTES:
                raise Refused(f"client {sender} sent {len(plain)} bytes for two shares")
            both = plain[: secret_sharing.SHARE_BYTES], plain[secret_sharing.SHARE_BYTES :]
            if self._commitments(sender, me, *both) != received.commitments:
                raise Refused(f"the shares that client {sender} sent are not those it committed to")
            held[sender] = Shares(self_seed=both[0].hex(), mask_key=both[1].hex())
        return held

    def _commitments(self, owner: int, recipient: int, self_seed: bytes, mask_key: bytes) -> Commitments:
        commit = partial(secret_sharing.commitment, self._state.round)
        return Commitments(
            self_seed=commit("self_seed", owner, recipient, self_seed).hex(),
            mask_key=commit("mask_key", owner, recipient, mask_key).hex(),
        )

    def _cipher(self, roster: Roster, sender: int, recipient: int) -> ChaCha20Poly1305:
        """The cipher of the only message from one client to another. This client is the sender or the recipient."""
        me = self._state.client
        other = recipient if sender == me else sender
        public = bytes.fromhex(roster.clients[other].share_public)
        private = bytes.fromhex(self._state.share_private)
        return ChaCha20Poly1305(share_key(me, private, other, public, self._state.round, sender=sender))

    def _about(self, sender: int, recipient: int) -> bytes:
        return self._state.round.encode() + sender.to_bytes(8, "little") + recipient.to_bytes(8, "little")

    # --- messages to the service

    def _deliver(self, method: str, step: str, **content: Any) -> None:
        """Send one of this client's messages to the secure aggregation round.

        A message whose reply was lost may have arrived. So "too late" or "repeated" is no error here; the next step
        finds out whether the message counted.
        """
        try:
            self._ask(method, step, **content)
        except WarpdeskError as error:
            if error.code not in ("already-sent", "phase-over"):
                raise
            self._late = error

    def _wait_for(self, step: str, form: type[_T]) -> _T:
        """Poll the service for the input of this client's next step, until the phase of the round before it has
        ended."""
        pause = _FIRST_PAUSE
        while True:
            try:
                return form.model_validate_json(self._ask("GET", step, wait=True).content)
            except WarpdeskError as error:
                if error.code != "not-yet":
                    raise
            except ValidationError as error:
                first = error.errors(include_url=False, include_input=False)[0]
                where = "/".join(map(str, first["loc"]))
                raise Refused(f"the {step} that the service sent are malformed at {where}: {first['msg']}") from None
            time.sleep(pause)
            pause = min(1.5 * pause, _LONGEST_PAUSE)

    def _ask(self, method: str, step: str, **content: Any) -> httpx.Response:
        until = time.monotonic() + self._patience
        while True:
            try:
                return send(self._http, self._exchange.ask(method, f"{self._path}/{step}", **content))
            except Unreachable:
                if time.monotonic() > until:
                    raise
            except WarpdeskError as error:
                if error.code == "round-aborted":
                    self._erase()
                raise

    def _erase(self) -> None:
        self._state = fresh(self._state.round, self._state.client)
        if self._file is not None:
            self._file.unlink(missing_ok=True)


def _sharing_sets(roster: Roster) -> dict[int, set[int]]:
    return {client: {client, *others} for client, others in graph.neighbours(roster.ring, roster.degree).items()}
