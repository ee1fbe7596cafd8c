"""What all indicators share: limits, how gaps are closed, and what is compiled for them."""

from typing import Annotated, Literal

from pydantic import Field

from warpdesk_server.kernels.batching import Batching

LONGEST_PERIOD = 100_000
COMPILE_SECONDS = 13  # of the loop that all graphs share
COMPILED_WITH = "programs of indicators"
# Bars of a chunk: 32 MiB of float64. To read them takes hardly longer than a launch, and they fit on any GPU.
CHUNK_BARS = 1 << 22
CORES = 8  # of a worker that computes on the CPU, for what a job is said to need
BATCHING = Batching(steps=2e6)  # low, since prices with skipped gaps take ten times as long
ROUNDING = 1 << 14  # an allocator rounds each array up to 512 bytes

NanPolicy = Literal["window", "skip", "ffill", "error"]

Gaps = Annotated[
    NanPolicy,
    Field(
        description="window: no number while the window, or the bars a recursion starts from, hold a NaN; a recursion "
        "starts afresh after it. skip: as if bars without a price did not exist; they get NaN. ffill: the last price "
        "stands in. error: refuse prices with a NaN.",
    ),
]
