"""The signals of a backtest's sets on the CPU, and the check that they do not look ahead."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdesk_server.kernels.backtest import spec
from warpdesk_server.kernels.backtest.job import Job
from warpdesk_server.kernels.backtest.operands import cuts_of, program_inputs
from warpdesk_server.kernels.backtest.strategy import DISTANCES, SIGNAL
from warpdesk_server.kernels.indicators import program_cpu

Array = NDArray[Any]
_NONE = np.empty((0, 0))


def chunks(job: Job) -> Iterator[tuple[int, int, int, list[Array]]]:
    """A backtest's assets, and sets from the first to the end, with their signals and distances (sets, bars)."""
    names = job.program.names
    cuts = cuts_of(job.operands.places, job.sets.count, spec.SETS_TOGETHER)
    for asset in range(job.assets):
        rows = job.operands.of_asset(asset)
        for first, end in pairwise(cuts):
            found = program_cpu.run(job.program, program_inputs(rows, job.operands.places, first, end))
            series = dict(zip(names, found, strict=True))
            yield asset, first, end, [series.get(name, _NONE) for name in (SIGNAL, *DISTANCES)]


def prefix_differences(job: Job) -> Array:
    """Of each of a backtest's cuts, how many runs have other signals or distances before it if later bars are
    replaced."""
    cuts = spec.cuts_of(job.params, job.bars)
    return np.array([differences(job, job.replaced(cut), cut) for cut in cuts], np.int64)


def differences(job: Job, other: Job, cut: int) -> int:
    """How many runs of a backtest have other signals or distances before a cut than in another job."""
    count = 0
    for (_, first, end, ours), (_, _, _, theirs) in zip(chunks(job), chunks(other), strict=True):
        same = np.ones(end - first, bool)
        for one, two in zip(ours, theirs, strict=True):
            bits = one[:, :cut].view(np.int64) == two[:, :cut].view(np.int64)
            same &= bits.all(axis=1) if one.size else True
        count += int(np.count_nonzero(~same))
    return count
