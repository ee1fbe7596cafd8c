"""Recovery of the mask seeds that are left in a round's sum, from the shares that clients revealed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from warpdesk.secagg import key_agreement, secret_sharing


class Unrecoverable(ValueError):
    """Raised if the revealed shares of a round do not give a client's secret; the message names the client."""


@dataclass(frozen=True)
class Shares:
    """The revealed shares of a round: of self seeds and of private mask keys.

    They are keyed by their owner and by x, the holder's id + 1. `publics` holds every client's public mask key.
    """

    round_id: str
    threshold: int
    publics: Mapping[int, bytes]
    self_seeds: Mapping[int, Mapping[int, bytes]] = field(repr=False)
    mask_keys: Mapping[int, Mapping[int, bytes]] = field(repr=False)


def self_seeds(shares: Shares, survivors: Sequence[int]) -> bytes:
    """Recover the self-mask seeds of a round's survivors, 32 bytes each. Raises Unrecoverable."""
    return b"".join(_combined(shares, client, shares.self_seeds[client], "self seed") for client in survivors)


def pair_seeds(shares: Shares, pairs: Sequence[tuple[int, int]]) -> bytes:
    """Recover the pairwise mask seeds of a round's (dropped, survivor), 32 bytes each.

    Raises Unrecoverable, also if a recovered private key does not match the public key that all others masked with.
    """
    keys = dict[int, bytes]()
    seeds = list[bytes]()
    for gone, stayed in pairs:
        if gone not in keys:
            keys[gone] = _mask_key(shares, gone)
        seeds.append(key_agreement.pair_seed(gone, keys[gone], stayed, shares.publics[stayed], shares.round_id))
    return b"".join(seeds)


def _mask_key(shares: Shares, client: int) -> bytes:
    key = _combined(shares, client, shares.mask_keys[client], "mask key")
    if key_agreement.public_key(key) != shares.publics[client]:
        raise Unrecoverable(f"the shares of client {client}'s mask key give another key than the one it published")
    return key


def _combined(shares: Shares, client: int, given: Mapping[int, bytes], kind: str) -> bytes:
    try:
        return secret_sharing.combine(given, shares.threshold)
    except ValueError as error:
        raise Unrecoverable(f"the {kind} of client {client} cannot be recovered: {error}") from None
