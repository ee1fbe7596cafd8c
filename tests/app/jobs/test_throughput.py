"""How fast the queue drains: measured while jobs wait, otherwise estimated from the times of finished jobs."""

from dataclasses import replace

import pytest

from warpdesk.models import State
from warpdesk_server.app.jobs.throughput import ThroughputEstimate
from warpdesk_server.workers.queue.protocol import Failed, JobRequest, Provenance
from warpdesk_server.workers.queue.records import JobRecord

REQUEST = JobRequest(id="job_1", owner="a", operation="scale", params={}, inputs={}, timeout=1, result_ttl=1)
CPU = Provenance(backend="cpu", device="here", attempt=1)
DONE = JobRecord(REQUEST, State.SUCCEEDED, 1, 90.0, started_at=100.0, ended_at=100.25, provenance=CPU)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def drained(
    *, seconds: float, each_look: int, waiting: int = 5, record: JobRecord = DONE
) -> tuple[ThroughputEstimate, Clock]:
    """The estimate after so many seconds with five looks a second, where `each_look` jobs end before each look."""
    clock = Clock()
    estimate = ThroughputEstimate(clock)
    estimate.look(waiting, 1)
    for _ in range(round(seconds / 0.2)):
        clock.now += 0.2
        for _ in range(each_look):
            estimate.ended(record)
        estimate.look(waiting, 1)
    return estimate, clock


def test_nothing_is_known_before_a_job_has_run() -> None:
    estimate = ThroughputEstimate()
    estimate.look(100, 3)

    assert (estimate.rate, estimate.recent_lower_bound, estimate.retry_after(5)) == (None, None, "1")


def test_while_jobs_wait_the_rate_is_what_ends() -> None:
    estimate, _ = drained(seconds=4, each_look=20)

    assert estimate.rate == pytest.approx(100)
    assert [estimate.retry_after(jobs) for jobs in (1, 100, 110, 400, 1000, 100_000)] == [
        "1",
        "1",
        "2",
        "4",
        "16",
        "64",
    ]


@pytest.mark.parametrize("idle", [5.0, 40.0])
def test_the_time_of_an_empty_queue_does_not_count(idle: float) -> None:
    estimate, clock = drained(seconds=4, each_look=20)
    for _ in range(round(idle / 0.2)):
        clock.now += 0.2
        estimate.look(0, 1)

    assert estimate.rate == pytest.approx(100, rel=0.1)


def test_an_idle_service_is_as_quick_as_its_workers() -> None:
    estimate, _ = drained(seconds=1, each_look=1, waiting=0)

    assert estimate.rate == pytest.approx(4)
    estimate.look(0, 3)
    assert estimate.rate == pytest.approx(12)


def test_jobs_of_one_launch_share_its_time() -> None:
    together = replace(DONE, provenance=CPU.model_copy(update={"batch_size": 50}))
    estimate, _ = drained(seconds=1, each_look=1, waiting=0, record=together)

    assert estimate.rate == pytest.approx(200)


def test_a_queue_of_which_nothing_ends_is_slow_and_not_unknown() -> None:
    estimate, _ = drained(seconds=10, each_look=0)

    assert estimate.rate == pytest.approx(0.1)
    assert estimate.retry_after(5) == "64"


def test_a_queue_that_became_slower_is_known_to_be_at_worst_as_slow_as_lately() -> None:
    estimate, clock = drained(seconds=10, each_look=20)
    for _ in range(20):
        clock.now += 0.2
        estimate.ended(DONE)
        estimate.look(5, 1)

    assert estimate.recent_lower_bound == pytest.approx(5)
    assert estimate.rate == pytest.approx(100 * 10 / 14 + 5 * 4 / 14)


def test_of_jobs_that_end_seldom_the_rate_is_measured_for_longer() -> None:
    """One ends every ten seconds. In the first three nobody can tell that from one every hundred."""
    clock = Clock()
    estimate = ThroughputEstimate(clock, pace=30.0)
    rates = []
    for tenths in range(3000):
        clock.now += 0.1
        if tenths % 100 == 99:
            estimate.ended(DONE)
        estimate.look(5, 1)
        if tenths in (50, 1200, 2999):
            rates.append(estimate.rate)

    assert rates == [None, pytest.approx(0.1, rel=0.1), pytest.approx(0.1, rel=0.1)]


def test_what_was_measured_a_minute_ago_no_longer_counts() -> None:
    estimate, clock = drained(seconds=4, each_look=0)
    clock.now += 100
    estimate.ended(DONE)
    estimate.look(0, 1)

    assert estimate.rate == pytest.approx(4)


@pytest.mark.parametrize(
    "record",
    [
        replace(DONE, state=State.CANCELED),
        replace(DONE, state=State.EXPIRED),
        replace(DONE, provenance=CPU.model_copy(update={"coalesced": True})),
    ],
    ids=["canceled", "expired", "coalesced"],
)
def test_what_no_worker_computed_is_no_work_done(record: JobRecord) -> None:
    estimate, _ = drained(seconds=1, each_look=1, waiting=0, record=record)

    assert estimate.rate is None


def test_a_failed_job_took_its_worker_as_long() -> None:
    failed = replace(DONE, state=State.FAILED, provenance=None, error=Failed(code="timeout", message="late"))
    estimate, _ = drained(seconds=1, each_look=1, waiting=0, record=failed)

    assert estimate.rate == pytest.approx(4)


def test_what_a_private_job_took_is_told_to_nobody() -> None:
    estimate = ThroughputEstimate()
    estimate.ended(replace(DONE, request=REQUEST.model_copy(update={"private": True})))
    estimate.look(1, 1)

    assert (estimate.rate, estimate.recent_lower_bound) == (None, None)
