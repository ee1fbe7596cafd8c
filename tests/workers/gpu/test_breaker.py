"""A breaker opens after faults of several jobs, tries again after a cool-down, and takes longer each time it fails."""

import pytest

from warpdesk_server.workers.gpu.breaker import LONGEST_COOL_DOWN, Breaker


def broken(now: float = 100.0) -> Breaker:
    breaker = Breaker(cool_down=30)
    for job in ("a", "b", "c"):
        breaker.fault(job, f"{job} was refused", now)
    return breaker


def test_it_opens_at_the_third_job_within_the_minute() -> None:
    breaker = Breaker()
    assert [breaker.fault(job, "refused", now) for job, now in (("a", 0.0), ("b", 30.0), ("c", 59.9))] == [
        False, False, True,
    ]  # fmt: skip
    assert breaker.state(60.0) == "open"


def test_faults_that_are_a_minute_old_count_no_more() -> None:
    breaker = Breaker()
    for job, now in (("a", 0.0), ("b", 30.0), ("c", 60.0)):
        assert not breaker.fault(job, "refused", now)
    assert breaker.state(60.0) == "closed"
    assert breaker.fault("d", "refused", 61.0)


def test_one_job_that_fails_again_and_again_is_no_fault_of_the_kernel() -> None:
    breaker = Breaker()
    assert not any(breaker.fault("odd", "refused", float(now)) for now in range(20))
    assert breaker.state(20.0) == "closed"


def test_it_tells_since_when_why_and_when_it_is_tried_next() -> None:
    breaker = broken(now=100.0)
    assert (breaker.since, breaker.next_probe, breaker.reason) == (100.0, 130.0, "c was refused")


@pytest.mark.parametrize(("now", "state"), [(100.0, "open"), (129.9, "open"), (130.0, "half-open"), (1e6, "half-open")])
def test_it_is_half_open_once_it_has_cooled_down(now: float, state: str) -> None:
    assert broken(now=100.0).state(now) == state


def test_a_success_closes_it_only_when_it_was_to_be_tried() -> None:
    breaker = broken(now=100.0)
    assert not breaker.success(120.0)
    assert breaker.success(130.0)
    assert breaker.state(130.0) == "closed"
    assert not breaker.success(131.0)


def test_closed_again_it_takes_three_new_jobs_to_open_and_the_first_cool_down() -> None:
    breaker = broken(now=100.0)
    breaker.success(130.0)
    assert [breaker.fault(job, "refused", 131.0) for job in ("d", "e", "f")] == [False, False, True]
    assert (breaker.since, breaker.next_probe) == (131.0, 161.0)


def test_each_failed_trial_doubles_the_cool_down_to_ten_minutes_at_most() -> None:
    breaker, waits = broken(now=0.0), []
    for _ in range(7):
        now = breaker.next_probe
        assert breaker.fault("d", "refused", now)
        waits.append(breaker.next_probe - now)
    assert waits == [60, 120, 240, 480, 600, 600, 600]
    assert max(waits) == LONGEST_COOL_DOWN
    assert breaker.since == 0.0


def test_a_fault_of_a_job_that_was_under_way_when_it_opened_changes_nothing() -> None:
    breaker = broken(now=100.0)
    assert not breaker.fault("late", "refused", 101.0)
    assert breaker.next_probe == 130.0


def test_opened_by_hand_it_needs_no_faults() -> None:
    breaker = Breaker(cool_down=5)
    breaker.open("it computes wrongly", 7.0)
    assert (breaker.state(11.9), breaker.state(12.0), breaker.reason) == ("open", "half-open", "it computes wrongly")
