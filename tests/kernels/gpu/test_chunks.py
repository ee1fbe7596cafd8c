"""A job runs in as many chunks at a time as memory holds, and goes down a ladder when it holds fewer."""

import gc
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from tests.cudasim import sound
from tests.cudasim.device import EmulatedDevice
from warpdesk_server.kernels.gpu import chunks
from warpdesk_server.kernels.gpu.faults import DeviceLost, LaunchFailed, OutOfMemory
from warpdesk_server.kernels.operation import Grid

EACH, FIXED = 1000, 500


class Job:
    """Doubles numbers, EACH bytes of a device for each, and notes which calls it got and in which threads."""

    def __init__(self, device: EmulatedDevice, count: int) -> None:
        self.device = device
        self.grid = Grid(count, EACH, FIXED)
        self.answer = np.full(count, -1)
        self.calls: list[tuple[int, int]] = []
        self.threads: set[str] = set()
        self.before: Callable[[int, int], None] = lambda first, end: None

    def work(self, first: int, end: int) -> None:
        self.calls.append((first, end))
        self.threads.add(threading.current_thread().name)
        fixed = self.device.zeros(FIXED, np.uint8)
        resident = [self.device.zeros(EACH, np.uint8) for _ in range(first, end)]
        self.before(first, end)
        self.answer[first:end] = 2 * np.arange(first, end)
        assert fixed.size + sum(array.size for array in resident) == FIXED + EACH * (end - first)

    def run(self, **options: Any) -> list[tuple[int, int]]:
        chunks.run(self.device, self.grid, self.work, **options)
        np.testing.assert_array_equal(self.answer, 2 * np.arange(self.grid.chunks))
        gc.collect()
        assert self.device.memory.used() == 0
        assert self.device.memory.unreserved() == self.device.memory.room()
        return self.calls


def failing(error: BaseException, *calls: int) -> Callable[[int, int], None]:
    """Raise `error` in the calls of these numbers, counted from 0."""
    number = iter(range(1 << 30))
    lock = threading.Lock()

    def before(_first: int, _end: int) -> None:
        with lock:
            now = next(number)
        if now in calls:
            raise type(error)(*error.args)

    return before


OOM = OutOfMemory("out of memory: needed 77 bytes, free 3 bytes", 2)


# ---------------------------------------------------------------- how many at a time


def test_a_job_that_fits_runs_in_one_call() -> None:
    assert Job(EmulatedDevice(), 7).run() == [(0, 7)]


def test_a_job_without_chunks_calls_nothing() -> None:
    assert Job(EmulatedDevice(), 0).run() == []


@pytest.mark.parametrize(("room", "calls"), [(3, [(0, 3), (3, 6), (6, 7)]), (1, [(i, i + 1) for i in range(7)])])
def test_as_many_chunks_are_resident_as_memory_holds(room: int, calls: list[tuple[int, int]]) -> None:
    assert Job(EmulatedDevice(memory=FIXED + room * EACH + 999), 7).run() == calls


def test_a_job_that_declares_no_bytes_runs_in_one_call_and_in_halves_of_it_where_that_fails() -> None:
    job = Job(EmulatedDevice(), 8)
    job.grid = Grid(8, 0)
    job.before = failing(OOM, 0, 1)
    assert job.run() == [(0, 8), (0, 4), (0, 2), (2, 4), (4, 6), (6, 8)]


def test_what_the_pool_keeps_is_given_back_before_fewer_chunks_are_taken() -> None:
    job = Job(EmulatedDevice(memory=FIXED + 7 * EACH), 7)
    kept = [job.device.zeros(2000, np.uint8)]
    job.device.memory.release = kept.clear  # type: ignore[method-assign]
    assert job.run() == [(0, 7)]


def test_memory_that_another_process_gives_back_in_time_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(EmulatedDevice(memory=FIXED + 7 * EACH), 7)
    job.device.memory.others = 2000
    looks = _look_when_waiting(monkeypatch, lambda looks: looks == 3 and setattr(job.device.memory, "others", 0))
    assert job.run() == [(0, 7)]
    assert looks == [1, 2, 3]


def test_memory_that_another_process_keeps_means_fewer_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(EmulatedDevice(memory=FIXED + 7 * EACH), 7)
    job.device.memory.others = 3000
    monkeypatch.setattr(chunks, "PATIENCE", 0.05)
    assert job.run() == [(0, 4), (4, 7)]


def test_nobody_waits_for_memory_that_the_own_limit_forbids(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = _look_when_waiting(monkeypatch, lambda looks: None)
    assert len(Job(EmulatedDevice(memory=FIXED + EACH), 7).run()) == 7
    assert looks == []


def _look_when_waiting(monkeypatch: pytest.MonkeyPatch, at: Callable[[int], Any]) -> list[int]:
    looks: list[int] = []

    def sleep(_seconds: float) -> None:
        looks.append(len(looks) + 1)
        at(len(looks))

    monkeypatch.setattr(chunks.time, "sleep", sleep)
    monkeypatch.setattr(chunks, "PATIENCE", 60.0)
    return looks


# ---------------------------------------------------------------- running out


def test_after_running_out_half_as_many_chunks_are_taken_from_the_same_place() -> None:
    job = Job(EmulatedDevice(), 8)
    job.before = failing(OOM, 0, 2)
    assert job.run() == [(0, 8), (0, 4), (4, 8), (4, 6), (6, 8)]


def test_one_chunk_is_tried_twice_each_time_it_runs_out() -> None:
    job = Job(EmulatedDevice(memory=FIXED + EACH), 3)
    job.before = failing(OOM, 0, 2, 4)
    assert job.run() == [(0, 1), (0, 1), (1, 2), (1, 2), (2, 3), (2, 3)]


def test_one_chunk_that_does_not_fit_says_the_bytes_and_what_the_device_said() -> None:
    job = Job(EmulatedDevice(memory=FIXED + EACH - 1), 3)
    message = (
        r"^out of memory: needed 1000 bytes, free 999 bytes; one chunk needs 1500 bytes, the limit is 1499 bytes, "
        r"free are 1499$"
    )
    with pytest.raises(OutOfMemory, match=message) as error:
        job.run()
    assert error.value.code == 2
    assert isinstance(error.value.__cause__, OutOfMemory)
    assert str(error.value.__cause__) == "out of memory: needed 1000 bytes, free 999 bytes"
    assert job.calls == [(0, 1), (0, 1)]


@pytest.mark.parametrize("nested", [False, True])
def test_a_failed_call_keeps_no_array_while_the_next_one_runs(nested: bool) -> None:
    job = Job(EmulatedDevice(), 4)
    used = []

    def work(first: int, end: int) -> None:
        used.append(job.device.memory.used())
        held = job.device.zeros(5000, np.uint8)

        def fail() -> None:
            raise _caused_by(held)

        if len(used) < 3:
            if nested:
                fail()
            raise _caused_by(job.device.zeros(5000, np.uint8))

    chunks.run(job.device, job.grid, work)
    assert used == [0, 0, 0, 0, 0, 0]


def _caused_by(held: Any) -> OutOfMemory:
    try:
        raise MemoryError(held.size)
    except MemoryError as error:
        found = OutOfMemory("out of memory: needed 5000 bytes, free 0 bytes", 2)
        found.__cause__ = error
        return found


@pytest.mark.parametrize("error", [LaunchFailed("refused", 701), DeviceLost("gone", 700), ZeroDivisionError("a bug")])
@pytest.mark.parametrize("lanes", [1, 2])
def test_any_other_failure_ends_the_job_once(monkeypatch: pytest.MonkeyPatch, lanes: int, error: Exception) -> None:
    monkeypatch.setattr(chunks, "PART", 2 * EACH)
    job = Job(EmulatedDevice(lanes=lanes), 40)
    fail = failing(error, 3 if lanes == 2 else 0)

    def before(first: int, end: int) -> None:
        if len(job.calls) > 4:
            time.sleep(0.05)  # the other lane's calls, while the failed one is told of
        fail(first, end)

    job.before = before
    with pytest.raises(type(error), match=str(error)):
        job.run(overlap=True)
    assert len(job.calls) < 20, "of 20 parts"
    gc.collect()
    assert job.device.memory.used() == 0
    assert job.device.memory.unreserved() == job.device.memory.room()


def test_after_running_out_the_pool_gives_back_what_it_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(EmulatedDevice(), 4)
    monkeypatch.setattr(job.device.memory, "release", lambda: job.calls.append((-1, -1)))
    job.before = failing(OOM, 0)
    assert job.run() == [(0, 4), (-1, -1), (0, 2), (2, 4)]


# ---------------------------------------------------------------- lanes


@pytest.fixture
def two_lanes(monkeypatch: pytest.MonkeyPatch) -> EmulatedDevice:
    monkeypatch.setattr(chunks, "PART", 3 * EACH)
    return EmulatedDevice(lanes=2)


def together(job: Job, parties: int = 2) -> None:
    """Let no call go on before another one is there."""
    meeting = threading.Barrier(parties)
    job.before = lambda first, end: meeting.wait(30) and None


def test_two_parts_of_a_large_job_are_in_memory_at_a_time(two_lanes: EmulatedDevice) -> None:
    job = Job(two_lanes, 12)
    together(job)
    assert sorted(job.run(overlap=True)) == [(0, 3), (3, 6), (6, 9), (9, 12)]
    assert len(job.threads) == 2
    assert two_lanes.memory.peak == 2 * (FIXED + 3 * EACH)


def test_parts_that_share_something_run_one_after_the_other_and_whole(two_lanes: EmulatedDevice) -> None:
    job = Job(two_lanes, 12)
    assert job.run() == [(0, 12)]
    assert job.threads == {threading.current_thread().name}


def test_a_small_job_runs_in_one_part(two_lanes: EmulatedDevice) -> None:
    assert Job(two_lanes, 5).run(overlap=True) == [(0, 5)]


def test_a_part_is_no_smaller_than_what_it_brings_beside_its_chunks(two_lanes: EmulatedDevice) -> None:
    job = Job(two_lanes, 24)
    job.grid = Grid(24, EACH, 2 * EACH)
    assert max(end - first for first, end in job.run(overlap=True)) == 8


def test_two_lanes_share_what_memory_there_is(two_lanes: EmulatedDevice) -> None:
    two_lanes.memory.limit = 2 * (FIXED + 2 * EACH) + 100
    job = Job(two_lanes, 12)
    together(job)
    assert sorted(job.run(overlap=True)) == [(first, first + 2) for first in range(0, 12, 2)]


def test_where_two_parts_do_not_fit_there_is_one(two_lanes: EmulatedDevice) -> None:
    two_lanes.memory.limit = 2 * (FIXED + EACH) - 1
    job = Job(two_lanes, 6)
    assert job.run(overlap=True) == [(0, 2), (2, 4), (4, 6)]
    assert job.threads == {threading.current_thread().name}


@pytest.mark.parametrize("call", range(4))
def test_a_lane_that_runs_out_leaves_the_rest_to_one(two_lanes: EmulatedDevice, call: int) -> None:
    job = Job(two_lanes, 12)
    job.before = failing(OOM, call)
    job.run(overlap=True)


def test_a_failure_in_one_lane_stops_the_other(two_lanes: EmulatedDevice) -> None:
    job, meeting = Job(two_lanes, 12), threading.Barrier(2)
    lane: list[threading.Thread] = []

    def before(_first: int, _end: int) -> None:
        if threading.current_thread() is not threading.main_thread():
            lane.append(threading.current_thread())
            meeting.wait(30)
            raise LaunchFailed("refused", 701)
        meeting.wait(30)
        lane[0].join(30)

    job.before = before
    with pytest.raises(LaunchFailed):
        job.run(overlap=True)
    assert len(job.calls) == 2


def test_a_lost_device_is_what_is_told_where_lanes_fail_in_two_ways(two_lanes: EmulatedDevice) -> None:
    job, order = Job(two_lanes, 12), threading.Barrier(2)

    def before(_first: int, _end: int) -> None:
        order.wait(30)
        raise (
            DeviceLost("gone", 700) if threading.current_thread() is not threading.main_thread() else LaunchFailed("no")
        )

    job.before = before
    with pytest.raises(DeviceLost, match="gone"):
        job.run(overlap=True)


def test_a_lane_that_cannot_be_entered_or_left_fails_the_job(two_lanes: EmulatedDevice) -> None:
    @contextmanager
    def lane(_index: int) -> Iterator[None]:
        yield
        raise DeviceLost("seen at the end of the lane", 719)

    two_lanes.lane = lane  # type: ignore[method-assign]
    with pytest.raises(DeviceLost, match="seen at the end"):
        Job(two_lanes, 12).run(overlap=True)


def test_lanes_launch_kernels_beside_each_other(two_lanes: EmulatedDevice) -> None:
    given = np.random.default_rng(5).standard_normal((24, 125))
    scaled = np.empty_like(given)
    scale = two_lanes.kernel(sound.SOURCE, "scale")

    def work(first: int, end: int) -> None:
        part = two_lanes.to_device(given[first:end])
        scale((-(-part.size // 128),), (128,), (part, part, np.float64(2), np.uint32(part.size)))
        scaled[first:end] = two_lanes.to_host(part)

    chunks.run(two_lanes, Grid(24, EACH), work, overlap=True)
    np.testing.assert_array_equal(scaled, given * 2)
    assert len(two_lanes.launches) == 8


# ---------------------------------------------------------------- reservations


def test_a_part_is_reserved_before_it_starts() -> None:
    device, free_bytes = EmulatedDevice(memory=FIXED + 3 * EACH), []
    chunks.run(device, Grid(5, EACH, FIXED), lambda first, end: free_bytes.append(device.memory.unreserved()))
    assert free_bytes == [0, EACH]


@pytest.mark.timeout(60)
def test_no_two_threads_take_the_same_bytes() -> None:
    device = EmulatedDevice(memory=4 * EACH)
    holding, release = threading.Event(), threading.Event()

    def hold() -> None:
        with device.memory.reserve(3 * EACH):
            holding.set()
            release.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    holding.wait(30)
    assert device.memory.unreserved() == EACH
    with device.memory.reserve(EACH):
        assert device.memory.unreserved() == 0
    with pytest.raises(OutOfMemory, match="needed 1001 bytes, limit 4000 bytes, free 1000 bytes"):
        device.memory.reserve(EACH + 1).__enter__()
    threading.Timer(0.05, release.set).start()
    with device.memory.reserve(2 * EACH, patience=3600):
        assert release.is_set()
    thread.join()
    assert device.memory.unreserved() == 4 * EACH


def test_what_a_reservation_has_taken_is_not_counted_twice() -> None:
    device = EmulatedDevice(memory=4 * EACH)
    kept = device.zeros(EACH // 2, np.uint8)
    with device.memory.reserve(2 * EACH):
        assert device.memory.unreserved() == 1500
        taken = device.zeros(EACH, np.uint8)
        assert device.memory.unreserved() == 1500
        more = device.zeros(2 * EACH, np.uint8)  # than was said
        assert device.memory.unreserved() == 500
    del kept, taken, more
    assert device.memory.unreserved() == 4 * EACH


def test_the_first_reservation_is_granted_whatever_its_size() -> None:
    device = EmulatedDevice(memory=EACH)
    with device.memory.reserve(50 * EACH):
        assert device.memory.unreserved() < 0


def test_a_job_takes_fewer_chunks_while_another_thread_holds_a_reservation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "PATIENCE", 0.01)
    job = Job(EmulatedDevice(memory=FIXED + 8 * EACH), 8)
    with job.device.memory.reserve(6 * EACH):
        chunks.run(job.device, job.grid, job.work)
    assert job.calls == [(0, 2), (2, 4), (4, 6), (6, 8)]


# ---------------------------------------------------------------- the account of a job


def test_an_account_tells_bytes_before_after_and_at_most() -> None:
    device = EmulatedDevice()
    kept = device.zeros(100, np.uint8)
    for _ in range(2):
        with device.memory.job() as account:
            Job(device, 3).work(0, 3)
        assert (account.before, account.after, account.peak, account.left) == (100, 100, 100 + FIXED + 3 * EACH, ())
    del kept


def test_arrays_that_a_failure_holds_are_not_left_behind() -> None:
    device = EmulatedDevice()
    with pytest.raises(ZeroDivisionError), device.memory.job() as account:
        _fail_with(device.zeros(1000, np.uint8))
    assert account.left == ()


def _fail_with(held: Any) -> None:
    array = held
    _ = array.size / 0


def test_arrays_in_a_cycle_are_no_leak_and_others_are() -> None:
    device = EmulatedDevice()
    kept = []
    with device.memory.job() as account:
        cycle: list[Any] = [device.zeros(1000, np.uint8)]
        cycle.append(cycle)
        del cycle
        kept.append(device.zeros((2, 3), np.float32)[1])
    assert [str(block) for block in account.left] == ["float32 (2, 3) in 24 bytes"]
    assert account.after == 24


def test_two_lanes_may_make_and_drop_arrays_at_once() -> None:
    memory = EmulatedDevice(memory=1 << 20).memory
    failures: list[BaseException] = []

    def make_and_drop() -> None:
        try:
            for _ in range(3000):
                for _life in [memory.born(8, "a number") for _ in range(10)]:
                    pass  # all are dropped together
        except BaseException as error:  # noqa: BLE001 (raised in the test's thread)
            failures.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with memory.job() as account:
            threads = [threading.Thread(target=make_and_drop) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert failures == []
    assert account.left == ()
