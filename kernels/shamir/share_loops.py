"""Shamir's shares on the CPU: compiled loops that draw polynomials and evaluate them, over tiles of elements.

Coefficient k >= 1 of element i is in ChaCha20's block 16 (i // T) + i % 16 under the nonce (k, 0, b"shar"). T is 16
times as many as a block holds. For m31 it is word (i // 16) % 16 of 32 bits without its top bit, for m61 word (i // 16)
% 8 of 64 bits without its top three. If that is p, the same place of the block under the nonce (k, 1, b"shar") is used,
then under (k, 2, b"shar"), and so on: every number below p is equally likely. So the sixteen blocks that fill a set of
vector registers hold a coefficient of T consecutive elements, and no word depends on another.

All numbers are 64-bit integers, reduced as late as they allow: x < 2^8, so x^4 < 2^32, and four steps of Horner's rule
are one pass over a tile. A number mod 2^61 - 1 is two halves of 31 and 30 bits, whose products with 32 bits add up in
64. Twin: shamir.cu.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from warpdesk_server.kernels.cpu.compiled import inner
from warpdesk_server.kernels.device.chacha20 import LANES, WORDS, block, blocks, prepare

DOMAIN = int.from_bytes(b"shar", "little")

TILE31 = LANES * WORDS  # elements
TILE61 = LANES * WORDS // 2

_U32, _U64 = np.uint32, np.uint64
_P31, _P61 = np.uint32(2**31 - 1), np.uint64(2**61 - 1)
_WIDE_P31 = np.uint64(2**31 - 1)
_LOW30 = np.uint64(2**30 - 1)
_1, _30, _31, _32, _61 = (np.uint64(number) for number in (1, 30, 31, 32, 61))


# Two loops, since a loop with a condition for each number is not vectorised.


@inner
def _encode(integers, reals, floats, scale, bits, secret):  # type: ignore[no-untyped-def]
    """Encode values as Shamir secrets mod 2^bits - 1 (reals times the scale). Returns how many are 2^(bits-1) or
    more."""
    outside = 0
    prime = np.int64((1 << bits) - 1)
    if floats:
        most = np.float64(1 << (bits - 1))
        for j in range(integers.size):
            rounded = np.rint(reals[j] * scale)
            fits = np.abs(rounded) < most
            v = np.int64(rounded if fits else 0.0)
            outside += not fits
            secret[j] = _U64(v + prime if v < 0 else v)
    else:
        for j in range(integers.size):
            v = integers[j]
            fits = (v >= -(prime // 2)) & (v <= prime // 2)
            outside += not fits
            secret[j] = _U64(v + prime if v < 0 else v)
    for j in range(integers.size, secret.size):
        secret[j] = _U64(0)
    return outside


@inner
def _redraw(key, counter, k, word, bits):  # type: ignore[no-untyped-def]
    """A coefficient of a secret's polynomial that was p at first, drawn again from the same word of other blocks."""
    out = np.empty(WORDS, np.uint32)
    attempt = 0
    prime = (_1 << _U64(bits)) - _1
    drawn = prime
    while drawn == prime:
        attempt += 1
        block(key, counter, k, attempt, DOMAIN, out)
        if bits == 31:
            drawn = _U64(out[word]) & prime
        else:
            drawn = (_U64(out[2 * word]) | (_U64(out[2 * word + 1]) << _32)) & prime
    out[:] = 0
    return drawn


@inner
def _draw31(key, first, k, words, out):  # type: ignore[no-untyped-def]
    """Draw coefficient k of secrets' polynomials: out[i] from words[i] of sixteen blocks, of which `first` is the
    first."""
    again = 0
    for j in range(TILE31):
        out[j] = words[j] & _P31
    for j in range(TILE31):
        again += out[j] == _P31
    if again:
        for j in range(TILE31):
            if out[j] == _P31:
                out[j] = _U32(_redraw(key, first + j % LANES, k, j // LANES, 31))


@inner
def _draw61(key, first, k, words, out):  # type: ignore[no-untyped-def]
    """Draw secrets' coefficients from eight 64-bit words of each block: the lower 31 bits to out[:128], the upper 30
    after."""
    again = 0
    low, high = out[:TILE61], out[TILE61:]
    for w in range(WORDS // 2):
        for lane in range(LANES):
            a, b = words[2 * w * LANES + lane], words[(2 * w + 1) * LANES + lane]
            low[w * LANES + lane] = a & _P31
            high[w * LANES + lane] = (a >> _U32(31)) | ((b & _U32(0x1FFFFFFF)) << _U32(1))
    for j in range(TILE61):
        again += (low[j] == _P31) & (high[j] == _U32(2**30 - 1))
    if again:
        for j in range(TILE61):
            if low[j] == _P31 and high[j] == _U32(2**30 - 1):
                drawn = _redraw(key, first + j % LANES, k, j // LANES, 61)
                low[j], high[j] = _U32(drawn & _WIDE_P31), _U32(drawn >> _31)


# The result of a step is below 2^31 + 8 or 2^61 + 8.


@inner
def _fold31(v):  # type: ignore[no-untyped-def]
    v = (v & _WIDE_P31) + (v >> _31)
    return (v & _WIDE_P31) + (v >> _31)


@inner
def _fold61(low, high):  # type: ignore[no-untyped-def]
    """A share's low + high * 2^31 mod 2^61 - 1, folded: `low` below 2^64 and `high` below 2^63."""
    v = (low & _P61) + (low >> _61) + (high >> _30) + ((high & _LOW30) << _31)
    return (v & _P61) + (v >> _61)


@inner
def _step31(total, c, x):  # type: ignore[no-untyped-def]
    for j in range(TILE31):
        total[j] = _fold31(total[j] * _U64(x) + _U64(c[j]))


@inner
def _steps31(total, c, x1, x2, x3, x4):  # type: ignore[no-untyped-def]
    c0, c1, c2, c3 = c[0], c[1], c[2], c[3]
    for j in range(TILE31):
        v = (total[j] & _U64(0xFFFFFFFF)) * _U64(x4) + _U64(c3[j]) * _U64(x3) + _U64(c2[j]) * _U64(x2)
        total[j] = _fold31(v + _U64(c1[j]) * _U64(x1) + _U64(c0[j]))


@inner
def _step61(total, c, x):  # type: ignore[no-untyped-def]
    low, high = c[:TILE61], c[TILE61:]
    for j in range(TILE61):
        a = (total[j] & _WIDE_P31) * _U64(x) + _U64(low[j])
        b = ((total[j] >> _31) & _U64(0xFFFFFFFF)) * _U64(x) + _U64(high[j])
        total[j] = _fold61(a, b)


@inner
def _steps61(total, c, x1, x2, x3, x4):  # type: ignore[no-untyped-def]
    a0, a1, a2, a3 = c[0][:TILE61], c[1][:TILE61], c[2][:TILE61], c[3][:TILE61]
    b0, b1, b2, b3 = c[0][TILE61:], c[1][TILE61:], c[2][TILE61:], c[3][TILE61:]
    for j in range(TILE61):
        a = (total[j] & _WIDE_P31) * _U64(x4) + _U64(a3[j]) * _U64(x3) + _U64(a2[j]) * _U64(x2)
        b = ((total[j] >> _31) & _U64(0xFFFFFFFF)) * _U64(x4) + _U64(b3[j]) * _U64(x3) + _U64(b2[j]) * _U64(x2)
        total[j] = _fold61(a + _U64(a1[j]) * _U64(x1) + _U64(a0[j]), b + _U64(b1[j]) * _U64(x1) + _U64(b0[j]))


@inner
def _store(total, prime, out):  # type: ignore[no-untyped-def]
    for j in range(out.size):
        v = total[j]
        out[j] = v - prime if v >= prime else v


@njit(cache=True, nogil=True)
def share31(
    integers: NDArray[np.int64],
    reals: NDArray[np.float64],
    floats: bool,
    scale: float,
    key: NDArray[np.uint32],
    threshold: int,
    begin: int,
    end: int,
    shares: NDArray[np.uint32],
) -> int:
    """Write Shamir shares of tiles begin to end to shares (n, len). Returns the number of values that are too large.

    `integers` and `reals` are the same memory; `floats` says which to read.
    """
    outside = 0
    state, words = np.empty(WORDS * LANES, np.uint32), np.empty(WORDS * LANES, np.uint32)
    held = np.empty((threshold, TILE31), np.uint32)
    total = np.empty(TILE31, np.uint64)
    prepare(state, key, 0, 0, DOMAIN)
    for tile in range(begin, end):
        first = tile * TILE31
        size = min(TILE31, integers.size - first)
        outside += _encode(integers[first : first + size], reals[first : first + size], floats, scale, 31, held[0])
        for lane in range(LANES):
            state[12 * LANES + lane] = _U32(tile * LANES + lane)
        for k in range(1, threshold):
            for lane in range(LANES):
                state[13 * LANES + lane] = _U32(k)
            blocks(state, words)
            _draw31(key, tile * LANES, k, words, held[k])
        for row in range(shares.shape[0]):
            x = row + 1
            for j in range(TILE31):
                total[j] = held[threshold - 1, j]
            k = threshold - 1
            while k % 4:
                k -= 1
                _step31(total, held[k], _U32(x))
            while k:
                k -= 4
                _steps31(total, held[k : k + 4], _U32(x), _U32(x**2), _U32(x**3), _U32(x**4))
            _store(total, _WIDE_P31, shares[row, first : first + size])
    state[:], words[:], held[:], total[:] = 0, 0, 0, 0  # they hold the key and the secrets
    return outside


@njit(cache=True, nogil=True)
def share61(
    integers: NDArray[np.int64],
    reals: NDArray[np.float64],
    floats: bool,
    scale: float,
    key: NDArray[np.uint32],
    threshold: int,
    begin: int,
    end: int,
    shares: NDArray[np.uint64],
) -> int:
    """Write Shamir shares of tiles begin to end, as share31 does, in the field of 2^61 - 1."""
    outside = 0
    state, words = np.empty(WORDS * LANES, np.uint32), np.empty(WORDS * LANES, np.uint32)
    held = np.empty((threshold, 2 * TILE61), np.uint32)
    total = np.empty(TILE61, np.uint64)
    prepare(state, key, 0, 0, DOMAIN)
    for tile in range(begin, end):
        first = tile * TILE61
        size = min(TILE61, integers.size - first)
        outside += _encode(integers[first : first + size], reals[first : first + size], floats, scale, 61, total)
        for j in range(TILE61):
            held[0, j], held[0, TILE61 + j] = _U32(total[j] & _WIDE_P31), _U32(total[j] >> _31)
        for lane in range(LANES):
            state[12 * LANES + lane] = _U32(tile * LANES + lane)
        for k in range(1, threshold):
            for lane in range(LANES):
                state[13 * LANES + lane] = _U32(k)
            blocks(state, words)
            _draw61(key, tile * LANES, k, words, held[k])
        for row in range(shares.shape[0]):
            x = row + 1
            for j in range(TILE61):
                total[j] = _U64(held[threshold - 1, j]) | (_U64(held[threshold - 1, TILE61 + j]) << _31)
            k = threshold - 1
            while k % 4:
                k -= 1
                _step61(total, held[k], _U32(x))
            while k:
                k -= 4
                _steps61(total, held[k : k + 4], _U32(x), _U32(x**2), _U32(x**3), _U32(x**4))
            _store(total, _P61, shares[row, first : first + size])
    state[:], words[:], held[:], total[:] = 0, 0, 0, 0
    return outside
