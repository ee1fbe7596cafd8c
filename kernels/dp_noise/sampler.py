"""The sampler of exact noise, discrete Laplace and discrete Gaussian, from ChaCha20 words in integers.

Canonne, Kamath, Steinke, "The Discrete Gaussian for Differential Privacy" (2020), algorithms 1 to 3, for a scale of
t = 2**k: uniform words below t are then free bits, and every probability compared is a dyadic fraction or one in K.

    Bernoulli(exp(-g)), 0 <= g <= 1:  count K = 1, 2, ... while Bernoulli(g / K); the answer is whether K ends odd
    discrete Laplace(t):              u below t kept with exp(-u/t), v geometric by exp(-1), +-(u + v t), one zero
    discrete Gaussian(sigma = t):     y from the Laplace(t) kept with probability exp(-(|y| - t)**2 / (2 t**2))

Element i reads the words of ChaCha20 blocks 0, 1, ... under the nonce LE64(i) || LE32(mechanism), so its noise depends
on the key and on i alone: not on the device, the number of threads, or the elements around it. The twin is dp_noise.cu;
both read the same words in the same order.
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from warpdesk_server.kernels.cpu.cores import share
from warpdesk_server.kernels.device.chacha20 import LANES, WORDS, block, blocks, prepare
from warpdesk_server.kernels.dp_noise.release import COUNT_DOMAIN, DOMAIN

LAPLACE, LAPLACE_COUNT = DOMAIN["discrete_laplace"], COUNT_DOMAIN["discrete_laplace"]

_CHUNK = 64 * LANES  # elements one core takes at a time


# The stream of one element, in one array of uint32: the 16 words of its block, then
_AT, _BLOCK, _LOW, _HIGH, _MECHANISM, _KEY = 16, 17, 18, 19, 20, 21  # next word, block number, nonce words, key[8]
_SIZE = 29


@njit
def _word(stream: Any) -> Any:
    """The next 32 random bits of a noise stream, as an int64."""
    at = int(stream[_AT])
    if at == WORDS:
        at = 0
        stream[_BLOCK] += np.uint32(1)
        block(stream[_KEY:], stream[_BLOCK], stream[_LOW], stream[_HIGH], stream[_MECHANISM], stream)
    stream[_AT] = at + 1
    return np.int64(stream[at])


@njit
def _below(stream: Any, numerator: Any, bits: Any) -> Any:
    """True with probability numerator / 2**bits, from a noise stream; a second word is read only if the first ties."""
    while bits > 32:
        bits -= 32
        top = numerator >> bits
        word = _word(stream)
        if word != top:
            return word < top
        numerator &= (np.int64(1) << bits) - 1
    return (_word(stream) >> (32 - bits)) < numerator


@njit
def _one_in(stream: Any, count: Any) -> Any:
    """True with probability 1 / count, 1 <= count < 2**32, from a noise stream."""
    if count == 1:
        return True
    share = 0xFFFFFFFF // count
    while True:
        word = _word(stream)
        if word < share * count:  # otherwise draw again: the last words would favour one outcome
            return word < share


@njit
def _exp_minus_one(stream: Any) -> Any:
    """True with probability exp(-1), from a noise stream."""
    count = 1
    while _one_in(stream, count):
        count += 1
    return count & 1 == 1


@njit
def _exp_minus(stream: Any, numerator: Any, bits: Any) -> Any:
    """True with probability exp(-numerator / 2**bits), 0 <= numerator < 2**bits, from a noise stream."""
    count = 1
    while _below(stream, numerator, bits) and _one_in(stream, count):
        count += 1
    return count & 1 == 1


@njit
def _laplace(stream: Any, k: Any) -> Any:
    """Discrete Laplace noise of scale 2**k, k <= 40: P(n) is proportional to exp(-|n| / 2**k)."""
    while True:
        # The top k bits of one word or two; the lowest bit is never among them and is the sign.
        word = _word(stream)
        if k < 32:
            u = word >> (32 - k)
        else:
            u = word << (k - 32)
            word = _word(stream)
            u |= word >> (64 - k)
        negative = word & 1
        if not _exp_minus(stream, u, k):
            continue
        v = np.int64(0)
        while _exp_minus_one(stream):
            v += 1
        magnitude = u + (v << k)
        if negative == 1 and magnitude == 0:
            continue  # zero counts with one sign only
        return -magnitude if negative == 1 else magnitude


@njit
def _gaussian(stream: Any, k: Any) -> Any:
    """Discrete Gaussian noise of sigma = 2**k, k <= 30: P(n) is proportional to exp(-n**2 / 2**(2k + 1))."""
    while True:
        n = _laplace(stream, k)
        distance = abs(abs(n) - (np.int64(1) << k))
        # With distance = a 2**k + b, distance**2 / 2**(2k + 1) = a**2 / 2 + a b / 2**k + b**2 / 2**(2k + 1), no term
        # past 64 bits.
        a = distance >> k
        b = distance & ((np.int64(1) << k) - 1)
        whole = (a * a >> 1) + (a * b >> k)
        fraction = ((a & 1) << 2 * k) + ((a * b & ((np.int64(1) << k) - 1)) << (k + 1)) + b * b
        whole += fraction >> (2 * k + 1)
        fraction &= (np.int64(1) << (2 * k + 1)) - 1
        kept = True
        while kept and whole > 0:
            kept = _exp_minus_one(stream)
            whole -= 1
        if kept and _exp_minus(stream, fraction, 2 * k + 1):
            return n


def add_noise(
    key: NDArray[np.uint32], mechanism: int, k: int, grid: float, total: NDArray[np.int64], noisy: NDArray[np.float64]
) -> None:
    """Add noise on all cores: noisy[i] = (total[i] + noise[i]) * grid, by key[8]; `mechanism` is the nonce's domain."""
    chunks = -(-total.size // _CHUNK)
    share(chunks, lambda first, end: _add_noise(key, mechanism, k, grid, total, first, end, noisy))


@njit(cache=True, nogil=True)
def _add_noise(
    key: NDArray[np.uint32], mechanism: int, k: int, grid: float, total: NDArray[np.int64], begin: int, end: int,
    noisy: NDArray[np.float64],
) -> None:  # fmt: skip
    size = total.size
    laplace = mechanism in (LAPLACE, LAPLACE_COUNT)
    state = np.empty(WORDS * LANES, np.uint32)
    lanes = np.empty(WORDS * LANES, np.uint32)
    stream = np.empty(_SIZE, np.uint32)
    for w in range(8):
        stream[_KEY + w] = key[w]
    stream[_MECHANISM] = mechanism
    prepare(state, key, 0, 0, mechanism)
    for lane in range(LANES):
        state[12 * LANES + lane] = np.uint32(0)
    for chunk in range(begin, end):
        for first in range(chunk * _CHUNK, min(size, (chunk + 1) * _CHUNK), LANES):
            for lane in range(LANES):
                state[13 * LANES + lane] = np.uint32((first + lane) & 0xFFFFFFFF)
                state[14 * LANES + lane] = np.uint32((first + lane) >> 32)
            blocks(state, lanes)
            for lane in range(min(LANES, size - first)):
                for w in range(WORDS):
                    stream[w] = lanes[w * LANES + lane]
                stream[_AT] = 0
                stream[_BLOCK] = 0
                stream[_LOW] = state[13 * LANES + lane]
                stream[_HIGH] = state[14 * LANES + lane]
                noise = _laplace(stream, k) if laplace else _gaussian(stream, k)
                noisy[first + lane] = np.float64(total[first + lane] + noise) * grid
    for held in (state, lanes, stream):  # they hold the key and random words
        held[:] = 0
