"""The sampler on words that a test chose: what random ones reach once in four billion draws, on CPU and device."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest

from warpdesk_server.kernels.dp_noise import sampler
from warpdesk_server.kernels.gpu.contract import Device
from warpdesk_server.kernels.gpu.source import Source

_SOURCE = Source(Path(__file__).with_name("sampler.cu"))
_KEY = np.arange(3, 11, dtype=np.uint32)
_MECHANISM = 7

Function = Literal["one_in", "below", "laplace", "gaussian"]
_FUNCTIONS: tuple[Function, ...] = ("one_in", "below", "laplace", "gaussian")
_ALL, _HIGH, _LOW = 0xFFFFFFFF, 0x80000000, 0x7FFFFFFF
_TOP = 0x12345678

# (function, number, bits, words, outcome, words read). `number` is the count, the numerator, or k.
_CHOSEN: list[tuple[Function, int, int, list[int], int, int]] = [
    # 2**32 words do not divide by 3 and 7: the last of them are drawn again, whichever outcome they would have given.
    ("one_in", 1, 0, [], 1, 0),
    ("one_in", 2, 0, [0x7FFFFFFE], 1, 1),
    ("one_in", 2, 0, [_LOW], 0, 1),
    ("one_in", 2, 0, [0xFFFFFFFE, 0], 1, 2),
    ("one_in", 2, 0, [_ALL, 0xFFFFFFFE, _ALL, 0], 1, 4),
    ("one_in", 3, 0, [0x55555554], 1, 1),
    ("one_in", 3, 0, [0x55555555], 0, 1),
    ("one_in", 3, 0, [0xFFFFFFFE], 0, 1),
    ("one_in", 3, 0, [_ALL, 0], 1, 2),
    ("one_in", 3, 0, [_ALL, _ALL, _HIGH], 0, 3),
    ("one_in", 7, 0, [0xFFFFFFFB], 0, 1),
    ("one_in", 7, 0, [0xFFFFFFFC, 0x24924923], 1, 2),
    ("one_in", 7, 0, [0xFFFFFFFC, 0x24924924], 0, 2),
    # One word decides, or a tie asks the next for the numerator's low bits.
    ("below", 5, 20, [4 << 12 | 0xFFF], 1, 1),
    ("below", 5, 20, [5 << 12], 0, 1),
    ("below", _ALL, 32, [0xFFFFFFFE], 1, 1),
    ("below", _ALL, 32, [_ALL], 0, 1),
    ("below", _TOP << 1 | 1, 33, [_TOP - 1], 1, 1),
    ("below", _TOP << 1 | 1, 33, [_TOP + 1], 0, 1),
    ("below", _TOP << 1 | 1, 33, [_TOP, _LOW], 1, 2),
    ("below", _TOP << 1 | 1, 33, [_TOP, _HIGH], 0, 2),
    ("below", _TOP << 1, 33, [_TOP, 0], 0, 2),
    ("below", _TOP << 9 | 3, 41, [_TOP, (3 << 23) - 1], 1, 2),
    ("below", _TOP << 9 | 3, 41, [_TOP, 3 << 23], 0, 2),
    ("below", _TOP << 29 | 9, 61, [_TOP, (9 << 3) - 1], 1, 2),
    ("below", _TOP << 29 | 9, 61, [_TOP, 9 << 3], 0, 2),
    ("below", (1 << 61) - 1, 61, [_ALL, _ALL - 8], 1, 2),
    ("below", (1 << 61) - 1, 61, [_ALL, _ALL], 0, 2),
    # u = 5 is kept by the second word; the third ends v at 0.
    ("laplace", 20, 0, [5 << 12, _ALL, _HIGH], 5, 3),
    ("laplace", 20, 0, [5 << 12 | 1, _ALL, _HIGH], -5, 3),
    # u = 0 and v = 0: with the sign bit it is the second zero, and everything is drawn again.
    ("laplace", 20, 0, [0, _ALL, _HIGH], 0, 3),
    ("laplace", 20, 0, [1, _ALL, _HIGH, 5 << 12, _ALL, _HIGH], 5, 6),
    ("laplace", 10, 0, [1, _ALL, _HIGH, 1, _ALL, _HIGH, 5 << 22 | 1, _ALL, _HIGH], -5, 9),
    ("laplace", 31, 0, [1, _ALL, _HIGH, 5 << 1, _ALL, _HIGH], 5, 6),
    ("laplace", 32, 0, [0, 1, _ALL, _HIGH, 5, 0, _ALL, _HIGH], 5, 8),
    ("laplace", 40, 0, [0, 1, _ALL, _HIGH, 0, 5 << 24, _ALL, _HIGH], 5, 8),
    # u = 0 with the sign bit and v = 1 is no zero: the scale itself, negative.
    ("laplace", 20, 0, [1, _ALL, 0, _HIGH, _HIGH], -(1 << 20), 5),
    # Both words of u, and a tie in their comparison: 32 bits equal, then 8 that say kept.
    ("laplace", 40, 0, [_TOP, 0xAB << 24, _TOP, 0xAB << 24, _HIGH], _TOP << 8 | 0xAB, 5),
    # |n| = 2**20 is the mode of the proposal: kept without a further draw but one below zero of 2**41.
    ("gaussian", 20, 0, [0, _ALL, 0, _HIGH, _HIGH, _ALL], 1 << 20, 6),
    # n = 0 is kept with exp(-1/2): the numerator 2**40 of 2**41 ties with its top word and has no low bits.
    ("gaussian", 20, 0, [0, _ALL, _HIGH, _HIGH, _ALL], 0, 5),
]


@pytest.mark.parametrize(("function", "number", "bits", "words", "outcome", "read"), _CHOSEN)
def test_chosen_words_give_the_outcome_worked_out_by_hand(
    function: Function, number: int, bits: int, words: list[int], outcome: int, read: int
) -> None:
    assert _on_cpu(function, number, bits, words) == (outcome, read)


@pytest.mark.parametrize(("function", "number", "bits", "words", "outcome", "read"), _CHOSEN)
def test_chosen_words_give_that_outcome_on_a_device(
    device: Device, function: Function, number: int, bits: int, words: list[int], outcome: int, read: int
) -> None:
    assert _on_device(device, function, number, bits, [words]) == [(outcome, read)]


@pytest.mark.parametrize(("function", "k"), [*(("laplace", k) for k in (0, 1, 31, 32, 33, 40)), ("gaussian", 30)])
def test_a_device_reads_extreme_words_as_the_cpu_does(device: Device, function: Function, k: int) -> None:
    random = np.random.default_rng(k)
    extreme = np.array([0, 1, 2, _LOW - 1, _LOW, _HIGH, 0x55555555, 0xFFFFFFFE, _ALL], np.uint32)
    streams = random.choice(extreme, (200, 16)).tolist()
    expected = [_on_cpu(function, k, 0, words, element) for element, words in enumerate(streams)]
    assert _on_device(device, function, k, 0, streams) == expected


def _on_cpu(function: Function, number: int, bits: int, words: Sequence[int], element: int = 0) -> tuple[int, int]:
    """The outcome, and how many words it took; after the chosen ones come those of block 1 and on."""
    stream: npt.NDArray[np.uint32] = np.zeros(sampler._SIZE, np.uint32)
    stream[: len(words)] = words
    stream[sampler._LOW], stream[sampler._MECHANISM] = element, _MECHANISM
    stream[sampler._KEY :] = _KEY
    run: Any = getattr(sampler, f"_{function}")
    outcome = run(stream, number, bits) if function == "below" else run(stream, number)
    return int(outcome), int(16 * stream[sampler._BLOCK] + stream[sampler._AT])


def _on_device(
    device: Device, function: Function, number: int, bits: int, streams: Sequence[Sequence[int]]
) -> list[tuple[int, int]]:
    chosen = np.zeros((len(streams), 16), np.uint32)
    for row, words in zip(chosen, streams, strict=True):
        row[: len(words)] = words
    drawn, read = device.empty(len(streams), np.int64), device.empty(len(streams), np.uint32)
    device.kernel(_SOURCE, "drawn_from")(
        (-(-len(streams) // 128),),
        (128,),
        (
            np.uint32(_FUNCTIONS.index(function)), device.to_device(chosen), device.to_device(_KEY), np.uint64(number),
            np.int32(bits), np.uint32(len(streams)), drawn, read,
        ),
    )  # fmt: skip
    return list(zip(device.to_host(drawn).tolist(), device.to_host(read).tolist(), strict=True))
