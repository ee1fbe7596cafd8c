"""An independent, slow simulation: Python's integers for Philox, NumPy float64 for the rest, one row per path."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Floats = NDArray[np.float64]


def philox4x32(counter: list[int], key: list[int]) -> list[int]:
    """Philox4x32-10 as the paper's figure draws it."""
    c, k = list(counter), list(key)
    for _ in range(10):
        high0, low0 = divmod(0xD2511F53 * c[0], 1 << 32)
        high1, low1 = divmod(0xCD9E8D57 * c[2], 1 << 32)
        c = [high1 ^ c[1] ^ k[0], low1, high0 ^ c[3] ^ k[1], low0]
        k = [(k[0] + 0x9E3779B9) % (1 << 32), (k[1] + 0xBB67AE85) % (1 << 32)]
    return c


def _words(seed: int, paths: int, steps: int, stream: int) -> Floats:
    """(paths, steps / 4 rounded up, 4) random words."""
    key = [seed % (1 << 32), seed >> 32]
    blocks = -(-steps // 4)
    return np.array(
        [
            philox4x32([path % (1 << 32), path >> 32, block, stream], key)
            for path in range(paths)
            for block in range(blocks)
        ],
        dtype=np.float64,
    ).reshape(paths, blocks, 4)


def squares(seed: int, p: Any) -> Floats:
    """(paths, steps) squared radii -2 ln U, from a second stream of words; an antithetic pair has U and 1 - U."""
    count = p.paths // 2 if p.sampling == "antithetic" else p.paths
    u = (_words(seed, count, p.steps, 1).reshape(count, -1)[:, : p.steps] + 0.5) / 2**32
    if p.sampling == "antithetic":
        u = np.stack([u, 1 - u], axis=1).reshape(p.paths, -1)
    return -2 * np.log(u)


def draws(seed: int, p: Any) -> Floats:
    """(paths, steps) standard normals of the parameters' sampling."""
    if p.sampling == "sobol":
        return _bridged(seed, p)
    if p.sampling == "antithetic":
        z = normals(seed, p.paths // 2, p.steps)
        return np.stack([z, -z], axis=1).reshape(p.paths, -1)
    return normals(seed, p.paths, p.steps)


def _bridged(seed: int, p: Any) -> Floats:
    """Of SciPy's Sobol points, scrambled, the increments of the paths that a Brownian bridge makes of them."""
    key, points = [seed % (1 << 32), seed >> 32], p.paths // 16
    many = min(p.steps, 64)
    gray = stats.qmc.Sobol(many, scramble=False, bits=32).random(points)
    index = np.arange(points)
    plain = np.empty_like(gray)
    plain[index ^ index >> 1] = gray
    words = (plain * 2.0**32).astype(np.uint64)
    z = np.empty((p.paths, p.steps))
    for replicate in range(16):
        for j in range(many):
            scrambled = _owen(words[:, j], philox4x32([j, replicate, 0, 2], key)[0])
            z[replicate * points : (replicate + 1) * points, j] = stats.norm.ppf((scrambled + 0.5) / 2**32)
    if p.steps > many:
        z[:, many:] = normals(seed, p.paths, p.steps - many)
    w = np.zeros((p.paths, p.steps + 1))
    w[:, -1] = np.sqrt(p.steps) * z[:, 0]
    level, j = [(0, p.steps)], 1
    while level:
        halves = []
        for left, right in level:
            middle = (left + right) // 2
            if middle > left:
                part = (middle - left) / (right - left)
                w[:, middle] = (1 - part) * w[:, left] + part * w[:, right]
                w[:, middle] += np.sqrt(part * (right - middle)) * z[:, j]
                j += 1
                halves += [(left, middle), (middle, right)]
        level = halves
    return np.diff(w, axis=1)


def _owen(words: "NDArray[np.uint64]", seed: int) -> "NDArray[np.uint64]":
    """The scramble of pbrt 4 (FastOwenScrambler) in 64-bit arithmetic."""
    low = np.uint64(0xFFFFFFFF)

    def reverse(x: "NDArray[np.uint64]") -> "NDArray[np.uint64]":
        return sum((x >> np.uint64(bit) & np.uint64(1)) << np.uint64(31 - bit) for bit in range(32))  # type: ignore[return-value]

    v = reverse(words)
    v ^= v * np.uint64(0x3D20ADEA) & low
    v = v + np.uint64(seed) & low
    v = v * np.uint64(seed >> 16 | 1) & low
    v ^= v * np.uint64(0x05526C56) & low
    v ^= v * np.uint64(0x53A22864) & low
    return reverse(v)


def normals(seed: int, paths: int, steps: int) -> Floats:
    """(paths, steps) standard normals in float64, by the library's log, cos and sin."""
    blocks = -(-steps // 4)
    words = _words(seed, paths, steps, 0).reshape(paths, blocks, 2, 2)
    radius = np.sqrt(-2 * np.log((words[..., 0] + 0.5) / 2**32))
    angle = 2 * np.pi * words[..., 1] / 2**32
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=-1).reshape(paths, 4 * blocks)[:, :steps]


@dataclass(frozen=True)
class Simulated:
    prices: Floats  # (paths, steps + 1), the spot first
    payoffs: Floats  # discounted, one per path
    controls: Floats  # discounted geometric Asian payoffs


def simulate(seed: int, p: Any, elapsed: float = 0.0) -> Simulated:
    """Walk every path of the parameters `p` and pay it. All dates are nearer by the time that has elapsed."""
    h = p.maturity / p.steps
    times = h * np.arange(p.steps + 1)
    lengths = np.full(p.steps, h)
    lengths[0] -= elapsed
    drift = p.rate - p.dividend - p.volatility**2 / 2
    increments = drift * lengths + p.volatility * np.sqrt(lengths) * draws(seed, p)
    logs = np.concatenate([np.zeros((p.paths, 1)), np.cumsum(increments, axis=1)], axis=1)
    prices = p.spot * np.exp(logs)
    discount = np.exp(-p.rate * (p.maturity - elapsed))
    sign = 1 if p.option == "call" else -1

    def pay(price: Floats, strike: Any = p.strike or 0.0) -> Floats:
        return discount * np.maximum(sign * (price - strike), 0)

    fixings = prices if p.include_spot else prices[:, 1:]
    controls = pay(np.exp(np.log(fixings).mean(axis=1)))
    if p.payoff == "european":
        payoffs = pay(prices[:, -1])
    elif p.payoff == "asian_arithmetic":
        payoffs = pay(fixings.mean(axis=1))
    elif p.payoff == "asian_geometric":
        payoffs = controls
    elif p.payoff.endswith("or_nothing"):
        paid = prices[:, -1] if p.payoff == "asset_or_nothing" else (p.payout or 1.0)
        payoffs = discount * np.where(sign * (prices[:, -1] - p.strike) > 0, paid, 0.0)
    elif p.payoff.startswith("lookback"):
        up = 1 if p.looks_up else -1
        heights = up * logs[:, 1:]
        if p.monitoring != "discrete":
            before, after = up * logs[:, :-1], up * logs[:, 1:]
            most = p.volatility**2 * h * squares(seed, p)
            heights = 0.5 * (before + after + np.sqrt((after - before) ** 2 + most))
        extreme = np.maximum(up * np.log((p.extreme or p.spot) / p.spot), heights.max(axis=1))
        extreme = p.spot * np.exp(up * extreme)
        payoffs = pay(extreme) if p.payoff == "lookback_fixed" else pay(prices[:, -1], extreme)
    else:
        side = 1 if "_up_" in p.payoff else -1
        distance = side * (np.log(p.barrier / p.spot) - logs)
        missed = (distance > 0).astype(np.float64)  # chance of not having touched in step k, the start included
        if p.monitoring != "discrete":
            both = (distance[:, 1:] > 0) & (distance[:, :-1] > 0)
            bridge = -np.expm1(-2 * distance[:, 1:] * distance[:, :-1] / (p.volatility**2 * h))
            missed[:, 1:] = np.where(both, bridge, 0)
            times = times - np.where(times > 0, h / 2, 0)
        alive = np.cumprod(missed, axis=1)
        if p.payoff.endswith("_in"):
            payoffs = (1 - alive[:, -1]) * pay(prices[:, -1]) + alive[:, -1] * discount * p.rebate
        else:
            hits = -np.diff(alive, axis=1, prepend=1)
            payoffs = alive[:, -1] * pay(prices[:, -1]) + p.rebate * hits @ np.exp(-p.rate * times)
    return Simulated(prices, payoffs, controls)
