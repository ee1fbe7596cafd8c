"""The project's exp, log, sine and cosine against extended precision: the errors the README states are upper bounds."""

from pathlib import Path

import numpy as np
import pytest
from numba import njit
from numpy.typing import NDArray

from warpdesk_server.kernels.device.elementary import exp64, log64, minus_two_log, sincos_turn
from warpdesk_server.kernels.device.uniform import uniform
from warpdesk_server.kernels.gpu.contract import Device
from warpdesk_server.kernels.gpu.source import Source

Array = NDArray[np.floating]
TWO_PI = np.longdouble("6.28318530717958647692528676655900576839")
LONG_DOUBLE_IS_LONGER = np.finfo(np.longdouble).eps < np.finfo(np.float64).eps

_SOURCE = Source(Path(__file__).with_name("elementary.cu"))

needs_extended_precision = pytest.mark.skipif(
    not LONG_DOUBLE_IS_LONGER, reason="long double is no longer than float64 on this machine"
)


@njit
def _each(x, u, words, exps, logs, radii, sines, cosines, uniforms):  # type: ignore[no-untyped-def]
    """All functions in one compilation."""
    for i in range(len(x)):
        exps[i] = exp64(x[i])
        logs[i] = log64(x[i]) if x[i] > 0 else 0.0
        radii[i] = minus_two_log(u[i])
        sines[i], cosines[i] = sincos_turn(words[i])
        uniforms[i] = uniform(words[i])


def evaluate(
    x: Array | None = None, u: Array | None = None, words: NDArray[np.uint32] | None = None
) -> dict[str, Array]:
    n = next(len(given) for given in (x, u, words) if given is not None)
    x = np.ones(n) if x is None else x
    u = np.ones(n, np.float32) if u is None else u
    words = np.zeros(n, np.uint32) if words is None else words
    doubles = {name: np.empty(n) for name in ("exp", "log")}
    floats = {name: np.empty(n, np.float32) for name in ("radius", "sine", "cosine", "uniform")}
    _each(x, u, words, *doubles.values(), *floats.values())
    return {**doubles, **floats}


def worst_ulp(found: Array, exact: NDArray[np.longdouble]) -> float:
    spacing = np.spacing(np.abs(exact).astype(found.dtype)).astype(np.longdouble)
    return float(np.max(np.abs(found.astype(np.longdouble) - exact) / spacing))


def some_words(n: int = 400_000) -> NDArray[np.uint32]:
    edges = np.array([0, 1, 2, 2**32 - 1, 2**32 - 2, *(k * 2**29 + d for k in range(1, 8) for d in (-1, 0, 1))])
    return np.concatenate([edges.astype(np.uint32), np.random.default_rng(1).integers(0, 2**32, n, dtype=np.uint32)])


@needs_extended_precision
@pytest.mark.parametrize(("low", "high"), [(-708.0, 709.0), (-1.0, 1.0), (-1e-8, 1e-8)])
def test_exp_is_within_1_05_ulp(low: float, high: float) -> None:
    x = np.random.default_rng(2).uniform(low, high, 400_000)
    assert worst_ulp(evaluate(x=x)["exp"], np.exp(x.astype(np.longdouble))) < 1.05


def test_exp_is_exact_at_0_and_stops_at_its_ends() -> None:
    x = np.array([0.0, -0.0, -708.0, -1e9, 709.0, 1e9])
    found = evaluate(x=x)["exp"]
    assert found[0] == found[1] == 1.0
    assert found[2] == found[3] == pytest.approx(np.exp(-708.0), rel=1e-15)
    assert found[4] == found[5] == pytest.approx(np.exp(709.0), rel=1e-15)


@needs_extended_precision
def test_log_is_within_2_1_ulp() -> None:
    rng = np.random.default_rng(3)
    x = np.concatenate([np.exp(rng.uniform(-700, 700, 200_000)), rng.uniform(0.3, 3, 200_000)])
    assert worst_ulp(evaluate(x=x)["log"], np.log(x.astype(np.longdouble))) < 2.1


@needs_extended_precision
def test_the_squared_radius_is_within_1_3_ulp() -> None:
    rng = np.random.default_rng(4)
    u = np.concatenate([np.exp2(rng.uniform(-33, 0, 200_000)), rng.uniform(0.5, 1, 200_000)]).astype(np.float32)
    u = u[u < 1]
    assert worst_ulp(evaluate(u=u)["radius"], -2 * np.log(u.astype(np.longdouble))) < 1.3


def test_the_squared_radius_of_1_is_0() -> None:
    assert evaluate(u=np.ones(1, np.float32))["radius"][0] == 0.0


@needs_extended_precision
def test_sine_and_cosine_are_within_2_7_ulp_everywhere() -> None:
    words = some_words()
    quadrant, rest = np.divmod(words.astype(np.int64) + 2**29, 2**30)
    t = (rest - 2**29).astype(np.longdouble) * (TWO_PI / 2**32)  # |t| <= pi/4: the library is exact enough there
    sine, cosine = np.sin(t), np.cos(t)
    found = evaluate(words=words)
    for name, exact in (
        ("sine", np.choose(quadrant % 4, [sine, cosine, -sine, -cosine])),
        ("cosine", np.choose(quadrant % 4, [cosine, -sine, -cosine, sine])),
    ):
        zero = exact == 0
        assert worst_ulp(found[name][~zero], exact[~zero]) < 2.7
        assert (found[name][zero] == 0).all()


def test_quarter_turns_are_exact() -> None:
    found = evaluate(words=np.array([0, 1 << 30, 2 << 30, 3 << 30], dtype=np.uint32))
    assert found["sine"].tolist() == [0, 1, 0, -1]
    assert found["cosine"].tolist() == [1, 0, -1, 0]


def test_uniforms_are_the_middles_of_their_cells_and_never_0() -> None:
    words = some_words()
    found = evaluate(words=words)["uniform"]
    assert found.min() == np.float32(2.0**-33)
    assert found.max() <= 1
    assert np.abs(found - (words + 0.5) / 2**32).max() <= 2.0**-24
    small = np.arange(2**20, dtype=np.uint32)
    assert (evaluate(words=small)["uniform"] == (small + 0.5) / 2**32).all()


# What the emulation cannot show, since it has no approximate square root: a GPU takes 2^26 words.
@pytest.mark.parametrize(("first", "stride"), [(0, 64), (63, 64), (0xFFFFFFFF - 4095, 1), (0, 1)])
def test_the_quick_square_root_and_conversion_are_the_plain_ones(device: Device, first: int, stride: int) -> None:
    wrong = device.zeros(2, np.uint32)
    count = (1 << 26 if device.architecture != "emulated" else 1 << 14) if stride > 1 else 4096
    arguments = np.uint32(first), np.uint32(stride), np.uint32(count), wrong
    device.kernel(_SOURCE, "compare")((min(1024, count // 256),), (256,), arguments)
    assert device.to_host(wrong).tolist() == [0, 0]
