"""Key agreement of two clients in a secure aggregation round: X25519 keys give a mask seed and an encryption key.

RFC 7748 and RFC 5869, by the `cryptography` package. Public keys enter in the order of their owners' ids, so that both
compute the same. Raises ValueError for a public key of low order (RFC 7748, section 6.1), and for one that is not the
only valid encoding of its point.
"""

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

_PRIME = 2**255 - 19  # a public key is a number below it


def public_key(private: bytes) -> bytes:
    """A client's X25519 public key of its private one, 32 bytes each."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def check_encoding(public: bytes) -> None:
    """Raise ValueError for a second encoding of an X25519 point, which RFC 7748 (section 5) reads as the first. Keys
    are compared as bytes, so a client could take another's point for its own.
    """
    if int.from_bytes(public, "little") >= _PRIME:
        raise ValueError("an X25519 public key is a little-endian number below 2^255 - 19, and this one is not")


def pair_seed(me: int, private: bytes, other: int, other_public: bytes, round_id: bytes | str) -> bytes:
    """Return the 32-byte seed of two clients' mask: the same whichever of them asks, another in every round.

    HKDF-SHA256(X25519(mask keys), salt=round id, info="warpdesk/secagg/v1/pair" || public key of the lower id || of the
    higher).
    """
    return _derive(b"pair", me, private, other, other_public, round_id)


def share_key(me: int, private: bytes, other: int, other_public: bytes, round_id: bytes | str, *, sender: int) -> bytes:
    """Return the 32-byte key under which `sender`, one of the two, encrypts its shares for the other.

    HKDF-SHA256(X25519(share keys), salt=round id, info="warpdesk/secagg/v1/share" || public key of the lower id || of
    the higher || sender || recipient), ids as little-endian words of 8 bytes.
    """
    recipient = other if sender == me else me
    direction = sender.to_bytes(8, "little") + recipient.to_bytes(8, "little")
    return _derive(b"share", me, private, other, other_public, round_id, direction)


def _derive(
    purpose: bytes,
    me: int,
    private: bytes,
    other: int,
    other_public: bytes,
    round_id: bytes | str,
    direction: bytes = b"",
) -> bytes:
    if me == other:
        raise ValueError(f"client {me} shares no {purpose.decode()} seed with itself")
    check_encoding(other_public)
    mine = X25519PrivateKey.from_private_bytes(private)
    shared = mine.exchange(X25519PublicKey.from_public_bytes(other_public))
    public = mine.public_key().public_bytes_raw()
    low, high = (public, other_public) if me < other else (other_public, public)
    salt = round_id.encode() if isinstance(round_id, str) else round_id
    info = b"warpdesk/secagg/v1/" + purpose + low + high + direction
    return HKDF(hashes.SHA256(), 32, salt, info).derive(shared)
