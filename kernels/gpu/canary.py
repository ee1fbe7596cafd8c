"""The canary: a kernel with known answers. Any other answer proves that the GPU computes wrongly."""

from functools import cache
from pathlib import Path

import numpy as np

from warpdesk_server.kernels.gpu.contract import Device
from warpdesk_server.kernels.gpu.faults import DeviceLost
from warpdesk_server.kernels.gpu.source import Source

CANARY = Source(Path(__file__).resolve().parents[1] / "device" / "canary.cu")
THREADS = 128
STEPS = 64
# Random123's known answer of Philox4x32-10 for the counter and the key 0 (Salmon et al. 2011, kat_vectors).
KNOWN_WORDS = (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)

Answers = tuple["np.ndarray[tuple[int], np.dtype[np.uint32]]", "np.ndarray", "np.ndarray"]

WRONG_ANSWER = -1  # the `code` of Miscomputed: CUDA has no number for it


class Miscomputed(DeviceLost):
    """Raised if the GPU's answer to the canary is wrong. Results since its last right answer cannot be trusted."""

    def __init__(self, message: str) -> None:
        super().__init__(message, WRONG_ANSWER)


def check(device: Device) -> None:
    """Launch the canary on every multiprocessor of a GPU. Raises Miscomputed, or the fault that prevents an answer."""
    size = THREADS * device.multiprocessors
    given = device.to_device(np.arange(size, dtype=np.uint32))
    words, doubles, singles = device.empty(4 * size, "uint32"), device.empty(size, "float64"), device.empty(size, "f4")
    device.kernel(CANARY, "canary")((device.multiprocessors,), (THREADS,), (given, words, doubles, singles))
    got = tuple(device.to_host(array) for array in (words, doubles, singles))
    for name, answer, right in zip(("words", "float64", "float32"), got, answers(device.multiprocessors), strict=True):
        wrong = np.flatnonzero(answer != right)
        if wrong.size:
            first = int(wrong[0])
            raise Miscomputed(
                f"{device.name} computes wrongly: {wrong.size} of {right.size} known answers in {name}, the first at "
                f"{first}: {answer[first]!r} instead of {right[first]!r}"
            )
    device.times()


@cache
def answers(blocks: int) -> Answers:
    """The right answers of the GPU's canary kernel for so many blocks: words, float64 and float32 numbers."""
    from warpdesk_server.kernels.device.philox import philox4x32  # with Numba, which a child without a GPU may not need

    taken = np.arange(THREADS * blocks, dtype=np.uint64).reshape(blocks, THREADS)[:, ::-1].ravel()
    zero = np.uint64(0)
    drawn = np.stack(philox4x32.py_func(taken, zero, zero, zero, zero, zero), axis=1)
    assert tuple(drawn[THREADS - 1]) == KNOWN_WORDS  # noqa: S101
    x = drawn[:, 0].astype(np.float64) * 2.0**-32
    y = (drawn[:, 1] >> np.uint64(8)).astype(np.float32) * np.float32(2.0**-24)
    for _ in range(STEPS):
        x = np.sqrt(x * x * 0.5 + 1.0 / (1.0 + x))
        y = np.sqrt(y * y * np.float32(0.5) + np.float32(1.0) / (np.float32(1.0) + y))
    return drawn.astype(np.uint32).ravel(), x, y
