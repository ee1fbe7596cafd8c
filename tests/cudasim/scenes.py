"""Kernels with a planted defect and what must catch each, and sound kernels that nothing may object to.

`python -m tests.cudasim.scenes <sanitizer>` plays those that concern a sanitizer and prints its reports as JSON.
"""

import json
import os
import sys
import tempfile
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.cudasim.device import EmulatedDevice
from tests.cudasim.sound import SOUND
from warpdesk_server.kernels.gpu.source import Source

DEFECTS = Source(Path(__file__).parent / "sources" / "defects.cu")
ORDERS = ("forward", "backward", "random")
POISON = ("finite poison",)  # fresh memory holds an ordinary number, not NaN
MEMORY = ("address,undefined",)
RACE = ("thread",)


class WrongAnswer(Exception):
    """The kernel ran to its end and computed something else."""


@dataclass(frozen=True)
class Scene:
    """A defective kernel, its launch, and the modes that must catch it with a report that matches `says`."""

    kernel: str
    caught_by: tuple[str, ...]
    says: str
    expected: Any = None  # the right answer as a function of the input, where an answer comes out at all
    blocks: int = 1
    threads: int = 64
    inputs: int = 64
    outputs: int | None = None  # one for each thread of the grid
    zeroed: bool = False
    flags: int = 0
    scalars: tuple[Any, ...] = ()
    shared_mem: int = 0
    dtype: str = "uint32"
    values: Any = field(default=None)

    def play(self, device: EmulatedDevice) -> None:
        """Launch; raise what the device reports, or WrongAnswer."""
        given = np.arange(self.inputs, dtype=self.dtype) if self.values is None else self.values
        outputs = self.blocks * self.threads if self.outputs is None else self.outputs
        out = (device.zeros if self.zeroed else device.empty)(outputs, self.dtype)
        flags = (device.zeros(self.flags, "uint32"),) if self.flags else ()
        device.kernel(DEFECTS, self.kernel)(
            (self.blocks,), (self.threads,), (device.to_device(given), out, *flags, *self.scalars), self.shared_mem
        )
        if self.expected is not None:
            got, expected = device.to_host(out), np.broadcast_to(self.expected(given), outputs)
            if not np.array_equal(got, expected, equal_nan=True):
                raise WrongAnswer(f"{self.kernel}: {got[:4]}… instead of {expected[:4]}…")


def _weighted(given: Any) -> Any:
    return np.uint32(sum(int(value) * (i % 64 + 1) for i, value in enumerate(given)))


def _same(given: Any) -> Any:
    return given


_WARM_UP = np.where(np.arange(64) < 13, np.float32(np.nan), np.arange(64, dtype="float32"))

SCENES = (
    Scene("missing_second_barrier", (*ORDERS, *RACE), "instead of|data race", _weighted, inputs=256),
    Scene("missing_first_barrier", (*ORDERS, *RACE), "instead of|data race", lambda given: given[::-1]),
    Scene("missing_syncwarp", (*ORDERS, *RACE), "instead of|data race", np.sum, threads=32, inputs=32),
    Scene("shuffle_taken_for_a_fence", RACE, "data race", threads=32),
    Scene("harmless_looking_rewrite", RACE, "data race", _same),
    Scene("barrier_for_some", ORDERS, r"has returned.*__syncthreads|__syncthreads.*has returned"),
    Scene("two_barriers_for_one", ORDERS, r"\.cu:\d+: divergent barrier.* in __syncthreads, defects\.cu:\d+"),
    Scene("return_before_barrier", ORDERS, "every thread of the block must reach a barrier"),
    Scene("mask_without_caller", ORDERS, r"defects\.cu:\d+: lane \d+ calls __shfl_sync with mask 0x0000ffff"),
    Scene("lanes_that_never_come", ORDERS, r"deadlock.*__shfl_down_sync, defects\.cu:\d+.*__syncthreads"),
    Scene("lane_outside_mask", ORDERS, r"reads lane \d+, which does not take part"),
    Scene("two_collectives_for_one", ORDERS, "divergent warp: lane .* is in __(shfl|ballot)_sync while"),
    Scene("uninitialised_shared", (*ORDERS, *POISON), "instead of", np.sum),
    Scene("uninitialised_global", (*ORDERS, *POISON), "instead of", _same),
    Scene("warm_up_never_written", POISON, "instead of", _same, dtype="float32", values=_WARM_UP),
    Scene("predecessor_by_index", ("backward",), "livelock.*nanosleep", blocks=8, inputs=512, flags=8),
    Scene("flag_nobody_sets", ORDERS, r"livelock.*__nanosleep, defects\.cu:\d+", flags=1),
    Scene("lost_updates", RACE, "data race", blocks=2, inputs=128, outputs=1, zeroed=True),
    Scene("published_under_relaxed_flag", RACE, "data race", blocks=2, outputs=1, flags=3),
    Scene("released_too_early", RACE, "data race", blocks=2, outputs=1, flags=3),
    Scene("two_writers", RACE, "data race", outputs=1),
    Scene("read_one_past", MEMORY, "heap-buffer-overflow", threads=65, scalars=(np.uint32(64),)),
    Scene("write_before", MEMORY, "heap-buffer-overflow"),
    Scene("grid_too_large", MEMORY, "heap-buffer-overflow"),
    Scene("shared_pointer_overrun", MEMORY, "global-buffer-overflow"),
    Scene("shared_index_past_the_end", MEMORY, "out of bounds|global-buffer-overflow", scalars=(np.uint32(1),)),
    Scene("dynamic_shared_too_small", MEMORY, "heap-buffer-overflow", shared_mem=63 * 4),
    Scene("local_array_overrun", MEMORY, "stack-buffer-overflow", scalars=(np.uint32(5),)),
    Scene("misaligned_vector", MEMORY, "misaligned address", dtype="float32"),
    Scene("shift_by_width", MEMORY, "shift exponent 32 is too large", scalars=(np.uint32(32),)),
    Scene("signed_overflow", MEMORY, "signed integer overflow", dtype="int32"),
    Scene("failed_assertion", ORDERS, r"thread \(6[0-3],0,0\).*:\d+: assertion failed: in\[THREAD\] < 60"),
)  # fmt: skip


def main(mode: str) -> None:
    """Play what this sanitizer must catch, and the sound kernels, each in its own process; print the reports."""
    reports = {}
    plays = {scene.kernel: scene.play for scene in SCENES if mode in scene.caught_by}
    for name, play in {**plays, **SOUND}.items():
        with tempfile.TemporaryFile() as report:
            child = os.fork()
            if child == 0:
                os.dup2(report.fileno(), 2)
                try:
                    play(EmulatedDevice(sanitize=mode))
                except BaseException:  # noqa: BLE001 (it is reported, and the process ends)
                    traceback.print_exc()
                    os._exit(1)
                os._exit(0)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            report.seek(0)
            reports[name] = {"status": status, "report": report.read().decode(errors="replace")}
    print(json.dumps(reports))  # noqa: T201 (the test reads it)


if __name__ == "__main__":
    main(sys.argv[1])
