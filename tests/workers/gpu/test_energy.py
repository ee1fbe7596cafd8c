"""What a GPU took while something ran on it."""

from typing import Any

import pytest

from warpdesk_server.workers.gpu.energy import Energy
from warpdesk_server.workers.queue.reports import GpuReading, MigSlice


def reading(energy: float | None = None, power: float | None = None, **fields: Any) -> GpuReading:
    return GpuReading(uuid="GPU-1", name="a GPU", energy=energy, power=power, **fields)


def read(*points: tuple[float, float | None, float | None], **fields: Any) -> Energy:
    """After readings of (when, joules of the counter, watts)."""
    energy = Energy(interval=1.0)
    for at, joules, watts in points:
        energy.see(reading(joules, watts, **fields), at)
    return energy


COUNTED = [(0.0, 1000.0, 100.0), (1.0, 1100.0, 300.0), (2.0, 1400.0, 300.0), (3.0, 1700.0, 50.0)]


@pytest.mark.parametrize(
    ("since", "until", "joules"),
    [
        (1.0, 3.0, 600.0),  # exactly what the counter says, whatever the power was
        (0.5, 2.0 + 1.0, 650.0),  # half a second at the 100 W between the first two
        (1.25, 3.0, 525.0),
        (1.0, 3.2, 600.0 + 0.2 * 50.0),  # after the last reading: at its power
        (3.5, 3.6, 0.1 * 50.0),  # between two readings
        (-1.0, 3.0, 700.0 * 4 / 3),  # it began before the first: as in the time that is known
    ],
)
def test_a_launch_takes_what_the_counter_grew_by_and_at_its_ends_power_times_time(
    since: float, until: float, joules: float
) -> None:
    assert read(*COUNTED).joules(since, until) == pytest.approx(joules)


def test_without_a_counter_it_is_power_times_time() -> None:
    energy = read((0.0, None, 100.0), (1.0, None, 300.0), (2.0, None, 300.0))
    assert energy.joules(0.0, 2.0) == pytest.approx(200.0 + 300.0)
    assert energy.joules(2.0, 2.5) == pytest.approx(150.0)


def test_without_power_a_counter_is_enough_and_one_reading_of_it_is_not() -> None:
    assert read((0.0, 1000.0, None), (1.0, 1100.0, None)).joules(1.5, 2.0) == pytest.approx(50.0)
    assert read((0.0, 1000.0, None)).joules(0.1, 0.2) is None


@pytest.mark.parametrize(
    "energy",
    [
        Energy(1.0),
        read((0.0, None, None)),
        read(*COUNTED, mig=MigSlice(parent="GPU-1")),
        read(*COUNTED, processes=2),
    ],
    ids=["unread", "untold", "slice", "shared"],
)
def test_where_nobody_can_tell_it_is_none(energy: Energy) -> None:
    assert energy.joules(1.0, 3.0) is None
    assert energy.joules(3.1, 3.2) is None


def test_company_counts_only_while_it_is_there() -> None:
    energy = read(*COUNTED, processes=1)
    energy.see(reading(2000.0, 50.0, processes=2), 4.0)
    energy.see(reading(2300.0, 50.0, processes=1), 5.0)
    energy.see(reading(2350.0, 50.0, processes=1), 6.0)
    assert energy.joules(3.5, 6.0) is None
    assert energy.joules(4.5, 6.0) is None
    assert energy.joules(5.0, 6.0) == pytest.approx(50.0)


def test_a_driver_that_was_silent_or_loaded_anew_leaves_nothing_to_count_from() -> None:
    energy = read(*COUNTED)
    assert energy.joules(3.0, 20.0) is None  # it hangs
    energy.see(reading(12.0, 80.0), 4.0)  # it was loaded anew
    assert energy.joules(4.0, 4.5) == pytest.approx(40.0)
    energy.see(reading(9000.0, 80.0), 400.0)
    assert energy.joules(400.0, 401.0) == pytest.approx(80.0)


def test_a_companion_on_the_gpu_is_nobody_else() -> None:
    energy = Energy(interval=1.0)
    for at, joules, watts in COUNTED:
        energy.see(reading(joules, watts, processes=2), at, own=2)
    assert energy.joules(1.0, 3.0) == pytest.approx(600.0)
    energy.see(reading(2000.0, 300.0, processes=3), 4.0, own=2)
    assert energy.joules(1.0, 4.0) is None
