"""The masking of a client's vector for secure aggregation: X25519 and HKDF seeds, ChaCha20 masks, integers mod 2^b.

    secret = new_secret()                                    # per round; publish secret.public
    row = mask(values, me, secret, roster, round_id="7", quantisation=Quantisation(clip="8", scale="65536"))

`roster` maps every client's id to its X25519 public key, this client's too. The masked vectors of all clients add up to
the sum of their quantised vectors plus every client's self mask. Once the vectors are in, each surviving client reveals
its self seed and the seeds it shares with clients that dropped out (`pair_seed` recomputes them). Never reveal a pair
seed of a client whose self seed is known, nor the other way round: both together open its vector.

`warpdesk.secagg` does all of this in a round that a Warpdesk service runs; this module is the arithmetic of it, and for
those who run a server of their own.

Double masking as in Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning" (CCS 2017).
Keys: RFC 7748, RFC 5869, RFC 8439, all by the `cryptography` package.
"""

import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import ArrayLike, NDArray

from warpdesk.secagg.key_agreement import pair_seed, public_key
from warpdesk.secagg.quantisation import MAX_KEYSTREAM_WORDS, Quantisation

__all__ = ["ClientSecret", "Quantisation", "add_masks", "check_sum", "mask", "new_secret", "pair_seed", "quantise"]

_SELF_NONCE = b"self" + bytes(8)
_PAIR_NONCE = b"pair" + bytes(8)


@dataclass(frozen=True)
class ClientSecret:
    """A client's secrets for one round of secure aggregation: an X25519 private key and the 32-byte seed of its self
    mask."""

    private: bytes = field(repr=False)
    self_seed: bytes = field(repr=False)

    @property
    def public(self) -> bytes:
        """The X25519 public key of a client's masks, 32 bytes."""
        return public_key(self.private)


def new_secret() -> ClientSecret:
    """Draw a client's secrets for masking from the operating system. Use them for one round only."""
    return ClientSecret(secrets.token_bytes(32), secrets.token_bytes(32))


def quantise(values: ArrayLike, quantisation: Quantisation, weight: int = 1) -> NDArray[np.int64]:
    """Return a client's quantised vector: round(clip(values) * scale) * weight as integers, ties to even, exact for
    every float64.

    Raises ValueError for NaN or an infinity, a weight outside 1..max_weight, or a step too fine for 64 bits. Where
    `scale` is no power of two and clip * scale is near 2**52 or above, each value takes about a microsecond.
    """
    array = np.asarray(values, np.float64)
    if not np.isfinite(array).all():
        raise ValueError(f"{np.count_nonzero(~np.isfinite(array))} of {array.size} values are NaN or infinite")
    if not 1 <= weight <= quantisation.max_weight:
        raise ValueError(f"weight {weight} is outside 1 to {quantisation.max_weight}")
    bound = quantisation.bound
    if bound * weight > 2**63 - 1:
        raise ValueError(f"clip * scale * weight = {bound * weight} does not fit 64 bits")
    scale, clip = Fraction(quantisation.scale), float(quantisation.clip)
    # Rounding is monotone, so the integers are clipped, exactly; the floats only so far that none overflows.
    product = np.clip(array, -2 * clip, 2 * clip) * float(scale)
    steps = np.rint(product)
    largest = float(bound) if int(float(bound)) <= bound else float(np.nextafter(float(bound), 0))
    integers = np.clip(steps, -largest, largest).astype(np.int64)
    integers[steps > largest] = bound
    integers[steps < -largest] = -bound
    if not _is_power_of_two(scale):
        # Rounded twice, as a float and as a product, a value may be on the wrong side of a tie; integers avoid that.
        doubtful = np.abs(np.abs(product - steps) - 0.5) <= np.abs(product) * 2.0**-52
        for at in zip(*np.nonzero(doubtful), strict=True):
            integers[at] = max(-bound, min(bound, _rounded(float(array[at]), scale)))
    return integers * np.int64(weight)


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
    neighbours: Collection[int] | None = None,
) -> NDArray[Any]:
    """Return the client's masked vector to send: uint32 or uint64 of the shape of `values` (dim,).

    `neighbours` are the clients to share a mask with, without it all others of the roster. The client with the lower id
    of a pair adds their mask, the other subtracts it. Raises ValueError where the roster is not one this client belongs
    to, or where the sum over the roster could overflow.
    """
    check_sum(len(roster), quantisation, modulus_bits)
    if roster.get(me) != secret.public:
        raise ValueError(f"the roster does not hold this client's public key under id {me}")
    if len(roster) < 2 or len(set(roster.values())) < len(roster):
        raise ValueError(f"a roster names two or more clients with keys of their own, got {len(roster)} names")
    pairs = roster if neighbours is None else {client: roster[client] for client in neighbours}
    return add_masks(quantise(values, quantisation, weight), me, secret, pairs, round_id, modulus_bits)


def check_sum(clients: int, quantisation: Quantisation, modulus_bits: int) -> None:
    """Raise ValueError if the sum of `clients` masked vectors could overflow, or if the modulus is not supported."""
    if modulus_bits not in (32, 64):
        raise ValueError(f"modulus_bits is 32 or 64, got {modulus_bits}")
    largest, limit = clients * quantisation.max_weight * quantisation.bound, 2 ** (modulus_bits - 1) - 1
    if largest > limit:
        raise ValueError(f"the sum of {clients} clients could reach {largest}, above {limit}: refuse to take part")


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
            words = _expand(pair_seed(me, secret.private, other, public, round_id), _PAIR_NONCE, masked)
            if me < other:
                masked += words
            else:
                masked -= words
    return masked


def _expand(seed: bytes, nonce: bytes, like: NDArray[Any]) -> NDArray[Any]:
    """Expand a seed to a client's mask: as many ChaCha20 keystream words, little-endian from block 0 on, as `like`
    holds."""
    stream = Cipher(algorithms.ChaCha20(seed, bytes(4) + nonce), mode=None).encryptor().update(bytes(like.nbytes))
    return np.frombuffer(stream, like.dtype)


def _is_power_of_two(scale: Fraction) -> bool:
    """Whether the quantisation's `scale` is a power of two, so that a float64 times it is exact."""
    return scale.numerator.bit_count() == 1 and scale.denominator.bit_count() == 1


def _rounded(value: float, scale: Fraction) -> int:
    above, below = value.as_integer_ratio()
    whole, rest = divmod(above * scale.numerator, below * scale.denominator)
    twice = 2 * rest - below * scale.denominator
    return whole + (twice > 0 or (twice == 0 and whole % 2 == 1))
