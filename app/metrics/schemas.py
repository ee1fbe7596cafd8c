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

    launches: Annotated[
        int, Field(description="Launches in this clock hour, and in the one before if these are fewer than 30")
    ]
    mean: Annotated[float | None, Field(description="Mean seconds of these launches")]
    baseline: Annotated[
        float | None,
        Field(description="Median of the hourly means of the last 7 days; null below 3 hours with launches"),
    ]
    hours: Annotated[int, Field(description="Number of hours with launches in the baseline")]
    ratio: Annotated[float | None, Field(description="Mean divided by baseline; above 1 launches became slower")]
    sentence: str


class Launches(Reply):
    seconds: Annotated[
        Quantiles, Field(description="Duration of a launch: on a GPU by CUDA events, on a CPU of the whole call")
    ]
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
        Field(description="Launches by the reason why they had no more jobs: full, bytes, waited, drained, alone"),
    ]


class Computing(Reply):
    """The rates and costs of computed jobs. Rates of bytes and work are per second of launches, not of the clock.

    Times, energy and cost do not include private jobs.
    """

    computed: Annotated[int, Field(description="Computed jobs, without jobs answered with an identical job's result")]
    computed_per_second: float
    run_seconds: Annotated[Quantiles | None, Field(description="Computing time; each job has the time of its launch")]
    bytes_per_second: Annotated[float | None, Field(description="Bytes of inputs and outputs: the achieved bandwidth")]
    work_per_second: Annotated[float | None, Field(description="Elementary steps")]
    joules_per_thousand_jobs: Annotated[float | None, Field(description="Null if no device reports its energy")]
    dollars_per_thousand_jobs: Annotated[float | None, Field(description="Null if no price is set")]
    launches: Annotated[
        dict[str, Launches],
        Field(description="By size class, which counts the elementary steps of a launch: small below 1e6, medium "
              "below 1e8, large below 1e10, huge"),
    ]  # fmt: skip


class BackendPerformance(Computing):
    devices: Annotated[
        dict[str, Computing],
        Field(description="The same for each device, its trend against its own past: GPUs by UUID, as in /gpu-health, "
              "CPUs by name and cores"),
    ]  # fmt: skip


class OperationPerformance(Reply):
    jobs: Annotated[dict[str, int], Field(description="Ended jobs by final state, since `counted_since`")]
    jobs_per_second: Annotated[float, Field(description="Jobs that ended, in whatever state")]
    failures: Annotated[dict[str, int], Field(description="Failed jobs by error code")]
    coalesced: Annotated[int, Field(description="Jobs answered with the result of an identical job in flight")]
    retries: Annotated[int, Field(description="Attempts beyond the first")]
    fallbacks: Annotated[
        dict[str, int], Field(description="Jobs that the CPU computed although a GPU was wanted, by the reason")
    ]
    gpu_share: Annotated[float | None, Field(description="Share of the computed jobs that a GPU computed, 0 to 1")]
    batches: Batches | None
    backends: dict[str, BackendPerformance]


class QueuePerformance(Reply):
    waiting: Annotated[int, Field(description="Jobs that wait now, without those in a backoff")]
    jobs: Annotated[dict[str, int], Field(description="Ended jobs by final state, since `counted_since`")]
    jobs_per_second: Annotated[float, Field(description="Jobs that ended, in whatever state")]
    wait_seconds: Annotated[
        Quantiles | None, Field(description="From submission to the start of the attempt that answered")
    ]
    seconds: Annotated[Quantiles | None, Field(description="From submission to the end, of jobs that succeeded")]


class ServicePerformance(Reply):
    """The performance report of the service, the same from every API process.

    Unless a field says otherwise, it covers jobs that ended from `since` to `at`. Private jobs are counted, but their
    times are not.
    """

    at: datetime
    since: Annotated[datetime, Field(description="`hours` before this clock hour, or when counting began")]
    counted_since: Annotated[datetime | None, Field(description="Null if no job was counted yet")]
    quantile_error: Annotated[float, Field(description="The largest relative error of a quantile")]
    queues: dict[str, QueuePerformance]
    operations: dict[str, OperationPerformance]
