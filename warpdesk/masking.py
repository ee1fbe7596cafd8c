"""Mask a vector on the client before it leaves: seeds from X25519 and HKDF, masks from ChaCha20, integers mod 2^b.

    secret = new_secret()                                    # per round; publish secret.public
    row = mask(values, me, secret, roster, round_id="7", quantisation=Quantisation(clip="8", scale="65536"))

`roster` maps every client's id to its X25519 public key, this client's too. The masked vectors of all clients add up to
the sum of their quantised vectors plus every client's self mask. Once the vectors are in, each surviving client reveals
its self seed and the seeds it shares with clients that dropped out (`pair_seed` recomputes them). Never reveal a pair
seed of a client whose self seed is known, nor the other way round: both together open its vector.

Double masking as in Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning" (CCS 2017).
Keys: RFC 7748, RFC 5869, RFC 8439, all by the `cryptography` package.
"""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import ArrayLike, NDArray

from kernels.secure_aggregation.spec import MAX_KEYSTREAM_WORDS, Quantisation

__all__ = ["ClientSecret", "Quantisation", "add_masks", "mask", "new_secret", "pair_seed", "quantise"]

_SELF_NONCE = b"self" + bytes(8)
_PAIR_NONCE = b"pair" + bytes(8)


@dataclass(frozen=True)
class ClientSecret:
    """What a client keeps for one round: an X25519 private key and the 32-byte seed of its self mask."""

    private: bytes = field(repr=False)
    self_seed: bytes = field(repr=False)

    @property
    def public(self) -> bytes:
        """The X25519 public key, 32 bytes."""
        return X25519PrivateKey.from_private_bytes(self.private).public_key().public_bytes_raw()


def new_secret() -> ClientSecret:
    """Draw a client's secrets from the operating system. Use them for one round only."""
    return ClientSecret(secrets.token_bytes(32), secrets.token_bytes(32))


def pair_seed(me: int, secret: ClientSecret, other: int, other_public: bytes, round_id: bytes | str) -> bytes:
    """Return the 32-byte seed two clients share: the same whichever of them asks, another in every round.

    HKDF-SHA256(X25519, salt=round_id, info="warpdesk/secagg/v1/pair" || public key of the lower id || of the higher).
    Raises ValueError for a public key of low order (RFC 7748, section 6.1).
    """
    if me == other:
        raise ValueError(f"client {me} shares no seed with itself")
    shared = X25519PrivateKey.from_private_bytes(secret.private).exchange(
        X25519PublicKey.from_public_bytes(other_public)
    )
    low, high = (secret.public, other_public) if me < other else (other_public, secret.public)
    salt = round_id.encode() if isinstance(round_id, str) else round_id
    return HKDF(hashes.SHA256(), 32, salt, b"warpdesk/secagg/v1/pair" + low + high).derive(shared)


def quantise(values: ArrayLike, quantisation: Quantisation, weight: int = 1) -> NDArray[np.int64]:
    """Return round(clip(values) * scale) * weight as integers, ties to even.

    Raises ValueError for NaN or an infinity, a weight outside 1..max_weight, or a step too fine for 64 bits.
    """
    array = np.asarray(values, np.float64)
    if not np.isfinite(array).all():
        raise ValueError(f"{np.count_nonzero(~np.isfinite(array))} of {array.size} values are NaN or infinite")
    if not 1 <= weight <= quantisation.max_weight:
        raise ValueError(f"weight {weight} is outside 1 to {quantisation.max_weight}")
    if quantisation.bound * weight > 2**63 - 1:
        raise ValueError(f"clip * scale * weight = {quantisation.bound * weight} does not fit 64 bits")
    clip = float(Decimal(quantisation.clip))
    steps = np.rint(np.clip(array, -clip, clip) * float(Decimal(quantisation.scale)))
    # Above 2**53 the product of floats may round past the exact bound: the integers are clipped once more, exactly.
    largest = float(quantisation.bound) if quantisation.bound <= 2**53 else np.nextafter(float(quantisation.bound), 0)
    steps = np.clip(steps, -largest, largest).astype(np.int64)
    return steps * np.int64(weight)


def mask(
    values: ArrayLike,
    me: int,
    secret: ClientSecret,
    roster: Mapping[int, bytes],
    *,
    round_id: bytes | str,
    quantisation: Quantisation,
    modulus_bits: int = 32,
    weight: int = 1,
) -> NDArray[Any]:
    """Return the masked vector to send: uint32 or uint64 of the shape of `values` (dim,).

    The client with the lower id of a pair adds their mask, the other subtracts it. Raises ValueError where the roster
    is not one this client belongs to, or where the sum over the roster could overflow.
    """
    if modulus_bits not in (32, 64):
        raise ValueError(f"modulus_bits is 32 or 64, got {modulus_bits}")
    if roster.get(me) != secret.public:
        raise ValueError(f"the roster does not hold this client's public key under id {me}")
    if len(roster) < 2 or len(set(roster.values())) < len(roster):
        raise ValueError(f"a roster names two or more clients with keys of their own, got {len(roster)} names")
    largest, limit = len(roster) * quantisation.max_weight * quantisation.bound, 2 ** (modulus_bits - 1) - 1
    if largest > limit:
        raise ValueError(f"the sum of {len(roster)} clients could reach {largest}, above {limit}: refuse to take part")
    return add_masks(quantise(values, quantisation, weight), me, secret, roster, round_id, modulus_bits)


def add_masks(
    integers: NDArray[np.int64],
    me: int,
    secret: ClientSecret,
    roster: Mapping[int, bytes],
    round_id: bytes | str,
    modulus_bits: int = 32,
) -> NDArray[Any]:
    """Return integers (dim,) plus this client's self mask and its masks with everyone else, mod 2**modulus_bits."""
    if integers.ndim != 1 or integers.size * modulus_bits // 32 > MAX_KEYSTREAM_WORDS:
        raise ValueError(f"values of shape {list(integers.shape)} are not a vector one keystream can mask")
    # A conversion of integers is exact mod 2**b.
    masked: NDArray[Any] = integers.astype(np.uint64).astype(f"<u{modulus_bits // 8}")
    masked += _expand(secret.self_seed, _SELF_NONCE, masked)
    for other, public in roster.items():
        if other != me:
            words = _expand(pair_seed(me, secret, other, public, round_id), _PAIR_NONCE, masked)
            if me < other:
                masked += words
            else:
                masked -= words
    return masked


def _expand(seed: bytes, nonce: bytes, like: NDArray[Any]) -> NDArray[Any]:
    """Return as many keystream words, little-endian from block 0 on, as `like` holds."""
    stream = Cipher(algorithms.ChaCha20(seed, bytes(4) + nonce), mode=None).encryptor().update(bytes(like.nbytes))
    return np.frombuffer(stream, like.dtype)
