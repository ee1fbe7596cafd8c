"""Schemas of the performance report at `/performance-metrics`: quantiles, rates, trends and costs of jobs."""

from datetime import datetime
from typing import Annotated

from pydantic import Field

from warpdesk.models import Reply


class Quantiles(Reply):
    """Quantiles of durations in seconds. Count and mean are exact; `quantile_error` bounds the quantiles' error."""

    count: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float


class Trend(Reply):
    """The trend of launch durations in one size class: whether launches became slower."""

    launches: Annotated[int, Field(description="In this clock hour; where that is less than 30, in the one before too")]
    mean: Annotated[float | None, Field(description="Seconds that one of them took")]
    baseline: Annotated[
        float | None,
        Field(description="Median of what the mean was in each earlier hour of the last 7 days; null below 3 hours"),
    ]
    hours: Annotated[int, Field(description="With launches, of which the baseline is")]
    ratio: Annotated[float | None, Field(description="The mean over the baseline; above 1 it became slower")]
    sentence: str


class Launches(Reply):
    seconds: Annotated[Quantiles, Field(description="On a GPU by its own events, on a CPU of the call that computes")]
    trend: Trend


class Batches(Reply):
    """The sizes of batches: how many jobs each launch computed."""

    launches: int
    mean: float
    p50: int
    p95: int
    largest: int
    ended_by: Annotated[
        dict[str, int],
        Field(description="Launches by why there were no more jobs: full, bytes, waited, drained, alone"),
    ]


class Computing(Reply):
    """The rates and costs of computed jobs. Rates of bytes and work are per second of launches, not of the clock.

    Times, energy and cost do not include private jobs.
    """

    computed: Annotated[int, Field(description="Jobs; those an identical one was computed for are not among them")]
    computed_per_second: float
    run_seconds: Annotated[Quantiles | None, Field(description="Computing, for each job the time of its launch")]
    bytes_per_second: Annotated[float | None, Field(description="Inputs and outputs: the achieved bandwidth")]
    work_per_second: Annotated[float | None, Field(description="Elementary steps")]
    joules_per_thousand_jobs: Annotated[float | None, Field(description="Null where no device tells its energy")]
    dollars_per_thousand_jobs: Annotated[float | None, Field(description="Null where no price is set")]
    launches: Annotated[
        dict[str, Launches],
        Field(description="By size class, the elementary steps of all its jobs: small below 1e6, medium below 1e8, "
              "large below 1e10, huge"),
    ]  # fmt: skip


class BackendPerformance(Computing):
    devices: Annotated[
        dict[str, Computing],
        Field(description="The same of each device by itself, its trend against its own past: GPUs by UUID, as in "
              "/gpu-health, CPUs by name and cores"),
    ]  # fmt: skip


class OperationPerformance(Reply):
    jobs: Annotated[dict[str, int], Field(description="By final state, since `counted_since`")]
    jobs_per_second: Annotated[float, Field(description="That ended, in whatever state")]
    failures: Annotated[dict[str, int], Field(description="By the error's code")]
    coalesced: Annotated[int, Field(description="Jobs that an identical one was computed for")]
    retries: Annotated[int, Field(description="Attempts beyond the first")]
    fallbacks: Annotated[
        dict[str, int], Field(description="Answers of the CPU that were wanted from a GPU, by what kept them off it")
    ]
    gpu_share: Annotated[float | None, Field(description="Of the computed jobs, how many a GPU computed, 0 to 1")]
    batches: Batches | None
    backends: dict[str, BackendPerformance]


class QueuePerformance(Reply):
    waiting: Annotated[int, Field(description="Jobs that wait now, those in a backoff left out")]
    jobs: Annotated[dict[str, int], Field(description="By final state, since `counted_since`")]
    jobs_per_second: Annotated[float, Field(description="That ended, in whatever state")]
    wait_seconds: Annotated[
        Quantiles | None, Field(description="From the submission to the start of the attempt that answered")
    ]
    seconds: Annotated[Quantiles | None, Field(description="From the submission to the end of jobs that succeeded")]


class Performance(Reply):
    """The performance report of the service, the same from every API process.

    Unless a field says otherwise, it covers jobs that ended from `since` to `at`. Private jobs are counted, but their
    times are not.
    """

    at: datetime
    since: Annotated[datetime, Field(description="`hours` before this clock hour, or when counting began")]
    counted_since: Annotated[datetime | None, Field(description="Null where no job was counted yet")]
    quantile_error: Annotated[
        float, Field(description="How far a quantile may be from the time of that rank, relative to it")
    ]
    queues: dict[str, QueuePerformance]
    operations: dict[str, OperationPerformance]
