"""Checks of the messages that a round's clients send: keys, lengths, and the clients that they name."""

from collections.abc import Mapping

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from warpdesk.secagg.key_agreement import check_encoding
from warpdesk_server.privacy.rounds.errors import MissingShare, NotANeighbour, UnusableKey, WrongLength


def require_exactly(name: str, given: Mapping[int, object], expected: set[int]) -> None:
    """Check that a message to a round has an entry for each expected client and no other. Raises NotANeighbour,
    MissingShare."""
    if strangers := sorted({*given} - expected):
        raise NotANeighbour(f"{name} names client {strangers[0]}, which is none of the {len(expected)} expected")
    if absent := sorted(expected - {*given}):
        raise MissingShare(f"{name} has {len(given)} of {len(expected)} clients; client {absent[0]} is missing")


def require_length(what: str, given: bytes, length: int) -> None:
    """Check the length in bytes of a part of a message to a round. Raises WrongLength."""
    if len(given) != length:
        raise WrongLength(f"{what} has {len(given)} bytes, not {length}")


def check_key(name: str, key: bytes) -> None:
    """Check the X25519 public key that a client sent to a round. Raises WrongLength, UnusableKey."""
    require_length(name, key, 32)
    try:
        check_encoding(key)
    except ValueError as error:
        raise UnusableKey(f"{name}: {error}") from None
    try:
        X25519PrivateKey.generate().exchange(X25519PublicKey.from_public_bytes(key))
    except ValueError:  # RFC 7748, section 6.1
        raise UnusableKey(f"{name} is a point of low order: a secret agreed on with it would be known to all") from None
