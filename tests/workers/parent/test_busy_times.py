"""A worker and its companion read of each other when they compute, and share what their device takes meanwhile."""

import os
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from warpdesk_server.workers.parent.busy_times import BusyTimes


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def both(clock: Clock) -> tuple[BusyTimes, BusyTimes]:
    worker = BusyTimes(clock=clock)
    return worker, BusyTimes(os.dup(worker.fd), clock)


def test_alone_a_launch_has_the_whole_device(both: tuple[BusyTimes, BusyTimes], clock: Clock) -> None:
    for busy in both:
        busy.begin()
        clock.now += 5
        assert busy.end() == 1.0


def test_while_both_compute_each_has_half(both: tuple[BusyTimes, BusyTimes], clock: Clock) -> None:
    worker, companion = both
    companion.begin()
    clock.now += 10
    worker.begin()
    clock.now += 2
    assert worker.end() == 0.5
    clock.now += 4
    worker.begin()
    clock.now += 1
    share = companion.end()
    assert share == 1 - 3 / 17 / 2  # of 17 seconds, three with the other
    clock.now += 1
    assert worker.end() == 0.75


def test_a_companion_that_died_in_a_launch_takes_nothing_any_more(
    both: tuple[BusyTimes, BusyTimes], clock: Clock
) -> None:
    worker, companion = both
    companion.begin()
    assert worker.processes == 2
    worker.forget_other()
    worker.begin()
    clock.now += 2
    assert (worker.end(), worker.processes) == (1.0, 1)


def test_another_process_reads_what_this_one_wrote() -> None:
    worker = BusyTimes()
    assert worker.processes == 1
    code = "import sys; from warpdesk_server.workers.parent.busy_times import BusyTimes; BusyTimes(int(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", code, str(worker.fd)], pass_fds=(worker.fd,), check=True)
    assert worker.processes == 2


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 1), st.sampled_from([0.0, 0.5, 1.0, 4.0])), max_size=30))
def test_both_together_count_each_second_once(steps: list[tuple[int, float]]) -> None:
    clock = Clock()
    worker = BusyTimes(clock=clock)
    sides, began = (worker, BusyTimes(os.dup(worker.fd), clock)), dict[int, float]()
    counted = busy = 0.0
    for side, seconds in [*steps, (0, 1.0), (1, 1.0), (0, 1.0), (1, 0.0)]:
        if side in began:
            counted += sides[side].end() * (clock.now - began.pop(side))
        else:
            sides[side].begin()
            began[side] = clock.now
        clock.now += seconds
        busy += seconds if began else 0.0
    for side in list(began):
        counted += sides[side].end() * (clock.now - began.pop(side))
    assert counted == pytest.approx(busy)
