"""A round computed a second time in plain Python from the protocol's definition, sharing no code with ours."""

import hashlib
import hmac

import numpy as np
import pytest

from tests.kernels.secure_aggregation.rounds import Round, validate
from warpdesk.secagg.masking import ClientSecret, pair_seed
from warpdesk_server.kernels.secure_aggregation import cpu

P = 2**255 - 19
ROUND = "2031-02-29, second attempt"


def x25519(private: bytes, public: bytes) -> bytes:
    """RFC 7748, section 5: the Montgomery ladder on u-coordinates."""
    clamped = bytes([private[0] & 248, *private[1:31], private[31] & 127 | 64])
    k, x1 = int.from_bytes(clamped, "little"), int.from_bytes(public, "little") % 2**255
    x2, z2, x3, z3, swap = 1, 0, x1, 1, 0
    for t in reversed(range(255)):
        bit = k >> t & 1
        if swap ^ bit:
            x2, z2, x3, z3 = x3, z3, x2, z2
        swap = bit
        a, b, c, d = x2 + z2, x2 - z2, x3 + z3, x3 - z3
        da, cb, aa, bb = d * a % P, c * b % P, a * a % P, b * b % P
        e = aa - bb
        x3, z3 = (da + cb) ** 2 % P, x1 * (da - cb) ** 2 % P
        x2, z2 = aa * bb % P, e * (aa + 121665 * e) % P
    if swap:
        x2, z2 = x3, z3
    return (x2 * pow(z2, P - 2, P) % P).to_bytes(32, "little")


def hkdf(secret: bytes, salt: bytes, info: bytes) -> bytes:
    """RFC 5869 with SHA-256 and one block of output."""
    extracted = hmac.digest(salt, secret, "sha256")
    return hmac.digest(extracted, info + b"\x01", "sha256")


def keystream(key: bytes, nonce: bytes, blocks: int) -> bytes:
    """RFC 8439, section 2.3: ChaCha20 from block 0."""

    def words(data: bytes) -> list[int]:
        return [int.from_bytes(data[i : i + 4], "little") for i in range(0, len(data), 4)]

    stream = b""
    for counter in range(blocks):
        start = [*words(b"expand 32-byte k"), *words(key), counter, *words(nonce)]
        s = list(start)
        for _ in range(10):
            for a, b, c, d in ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15),
                               (0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)):  # fmt: skip
                for x, y, z, turn in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
                    s[x] = (s[x] + s[y]) % 2**32
                    turned = s[z] ^ s[x]
                    s[z] = (turned << turn | turned >> (32 - turn)) % 2**32
        stream += b"".join(((u + v) % 2**32).to_bytes(4, "little") for u, v in zip(s, start, strict=True))
    return stream


def mask(seed: bytes, name: bytes, bits: int, dim: int) -> list[int]:
    width = bits // 8
    stream = keystream(seed, name + bytes(8), -(-dim * width // 64))
    return [int.from_bytes(stream[i * width : (i + 1) * width], "little") for i in range(dim)]


def drawn(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


VECTORS = {3: [*range(-9, 10)], 7: [1000, -1000] + [5] * 17, 8: [0] * 19, 40: [*range(900, 919)]}
PRIVATE = {client: drawn(f"private {client}") for client in VECTORS}
SELF_SEEDS = {client: drawn(f"self {client}") for client in VECTORS}


def seed_of(i: int, j: int) -> bytes:
    base = (9).to_bytes(32, "little")
    low, high = (x25519(PRIVATE[client], base) for client in sorted((i, j)))
    shared = x25519(PRIVATE[i], x25519(PRIVATE[j], base))
    return hkdf(shared, ROUND.encode(), b"warpdesk/secagg/v1/pair" + low + high)


def played(bits: int) -> Round:
    secrets = {client: ClientSecret(PRIVATE[client], SELF_SEEDS[client]) for client in VECTORS}
    return Round({client: np.array(v, np.int64) for client, v in VECTORS.items()}, bits, 1000, ROUND, secrets)


def test_the_plain_functions_meet_their_standards() -> None:
    """RFC 7748, section 5.2, one iteration; RFC 5869, appendix A.1; RFC 8439, appendix A.1, vectors 1 and 2."""
    nine = (9).to_bytes(32, "little")
    assert x25519(nine, nine).hex() == "422c8e7a6227d7bca1350b3e2bb7279f7897b87bb6854b783c60e80311ae3079"
    derived = hkdf(b"\x0b" * 22, bytes(range(13)), bytes(range(0xF0, 0xFA)))
    assert derived.hex() == "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf"
    stream = keystream(bytes(32), bytes(12), 2)
    assert stream[:16].hex() == "76b8e0ada0f13d90405d6ae55386bd28"
    assert stream[64:80].hex() == "9f07e7be5551387a98ba977c732d080d"


@pytest.mark.parametrize("bits", [32, 64])
def test_pair_seeds_and_masked_vectors_are_those_of_the_definition(bits: int) -> None:
    ours = played(bits)
    for i, vector in VECTORS.items():
        expected = [a + b for a, b in zip(vector, mask(SELF_SEEDS[i], b"self", bits, 19), strict=True)]
        for j in VECTORS:
            if j != i:
                seed = seed_of(i, j)
                assert pair_seed(i, ours.secrets[i].private, j, ours.roster[j], ROUND) == seed
                sign = 1 if i < j else -1
                expected = [a + sign * b for a, b in zip(expected, mask(seed, b"pair", bits, 19), strict=True)]
        assert ours.masked(i).tolist() == [x % 2**bits for x in expected]


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("dropped", [(), (7,)])
def test_the_sum_of_such_vectors_is_that_of_the_survivors(bits: int, dropped: tuple[int, ...]) -> None:
    request, inputs = played(bits).request(dropped)
    answer = cpu.secure_aggregation(validate(request, inputs), **inputs)
    survivors = [vector for client, vector in VECTORS.items() if client not in dropped]
    assert answer["sum"].tolist() == [sum(column) for column in zip(*survivors, strict=True)]
