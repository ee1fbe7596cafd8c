"""The answer's bytes do not depend on how the work is cut, how many threads share it, or what the processor can do."""

import json
import tracemalloc
from typing import Any

import numba
import numpy as np
import pytest

from tests.cudasim.device import EmulatedDevice
from tests.kernels.monte_carlo.test_monte_carlo import PAYOFFS, params
from tests.kernels.processors import printed
from warpdesk_server.kernels.monte_carlo import cpu, gpu, spec
from warpdesk_server.kernels.monte_carlo.bridge import bridge
from warpdesk_server.kernels.monte_carlo.plan import hit_discounts, tame, terms
from warpdesk_server.kernels.monte_carlo.spec import BINS, OPERATION, SUMS, MonteCarloParams

SEED = (1 << 63) + 17
PROGRAM = """
import json, sys
from warpdesk_server.kernels.monte_carlo.cpu import monte_carlo
from warpdesk_server.kernels.monte_carlo.spec import MonteCarloParams
jobs = [MonteCarloParams.model_validate_json(json.dumps(job)) for job in json.loads(sys.argv[1])]
print(json.dumps([monte_carlo(job, seed=int(sys.argv[2])) for job in jobs]))
"""


def jobs(paths: int) -> list[MonteCarloParams]:
    return [params(payoff, steps=7, paths=paths) for payoff in PAYOFFS]


@pytest.mark.parametrize("paths", [2, 255, 257, 2_049, 70_001])
def test_the_cut_into_chunks_changes_no_byte(paths: int, monkeypatch: pytest.MonkeyPatch) -> None:
    wholes = [cpu.monte_carlo(job, seed=SEED) for job in jobs(paths)]
    for chunk in (256, 512, 2_048, 65_536):
        if paths / chunk < 40:
            monkeypatch.setattr(spec, "CHUNK", chunk)
            for job, whole in zip(jobs(paths), wholes, strict=True):
                assert cpu.monte_carlo(job, seed=SEED) == whole, (job.payoff, chunk)


def test_the_cut_into_chunks_changes_no_byte_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    device = EmulatedDevice()
    wholes = [cpu.monte_carlo(job, seed=SEED) for job in jobs(1_300)]
    for chunk in (256, 1_024, 1 << 20):
        monkeypatch.setattr(spec, "CHUNK", chunk)
        for job, whole in zip(jobs(1_300), wholes, strict=True):
            assert gpu.monte_carlo(job, seed=SEED, device=device) == whole, (job.payoff, chunk)


def test_all_chunks_that_memory_holds_are_one_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spec, "CHUNK", 256)
    job = params("european", steps=2, paths=1_300)
    grid, whole = OPERATION.grid(job, {}), cpu.monte_carlo(job, seed=SEED)
    assert grid.chunks == 6
    for resident, launches in ((6, 1), (3, 2), (1, 6)):
        device = EmulatedDevice(memory=grid.fixed + resident * grid.each)
        assert gpu.monte_carlo(job, seed=SEED, device=device) == whole
        assert len(device.launches) == launches


@pytest.mark.parametrize("payoff", PAYOFFS)
def test_the_grid_says_what_memory_a_job_takes(payoff: str) -> None:
    device, job = EmulatedDevice(), params(payoff, steps=7, paths=1_000)
    gpu.monte_carlo(job, seed=SEED, device=device)
    grid = OPERATION.grid(job, {})
    assert device.memory.peak == grid.fixed + grid.chunks * grid.each


def test_exponents_that_may_leave_the_range_are_held_in_it_on_both_devices() -> None:
    wild = params("asian_arithmetic", steps=800, paths=300, volatility=4.9, maturity=1.0)
    mild = params("asian_arithmetic", steps=400, paths=300)
    assert [tame(terms(job)) for job in (wild, mild)] == [False, True]
    for job in (wild, mild):
        assert gpu.monte_carlo(job, seed=SEED, device=EmulatedDevice()) == cpu.monte_carlo(job, seed=SEED)


def test_the_number_of_threads_changes_no_byte() -> None:
    most = numba.get_num_threads()
    answers = []
    try:
        for threads in range(1, most + 1):
            numba.set_num_threads(threads)
            answers.append([cpu.monte_carlo(job, seed=SEED) for job in jobs(30_011)])
    finally:
        numba.set_num_threads(most)
    assert all(answer == answers[0] for answer in answers)


def test_more_threads_and_a_plain_processor_change_no_byte() -> None:
    """A new process compiles for the least x86-64 (no AVX) or whatever "generic" is here, on three threads."""
    requests = jobs(5_001)
    given = json.dumps([job.model_dump(mode="json") for job in requests])
    plain = {"NUMBA_NUM_THREADS": "3", "NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
    answers = printed(PROGRAM, given, str(SEED), **plain)
    assert as_json([cpu.monte_carlo(job, seed=SEED) for job in requests]) == json.loads(answers)


def as_json(answers: Any) -> Any:
    return json.loads(json.dumps(answers))


def test_memory_does_not_grow_with_the_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    """On one thread, since each holds counts of its own; and once before, which compiles."""
    peaks = []
    most = numba.get_num_threads()
    monkeypatch.setattr(spec, "CHUNK", 1 << 16)
    try:
        numba.set_num_threads(1)
        cpu.monte_carlo(params("european", steps=1, paths=256), seed=SEED)
        for paths in (1 << 16, 1 << 20):
            least = []  # of three: other threads of this process may use memory too
            for _ in range(3):
                tracemalloc.start()
                cpu.monte_carlo(params("european", steps=1, paths=paths), seed=SEED)
                least.append(tracemalloc.get_traced_memory()[1])
                tracemalloc.stop()
            peaks.append(min(least))
    finally:
        numba.set_num_threads(most)
    assert peaks[1] < peaks[0] + 16_384, peaks


def test_paths_are_counted_in_64_bits() -> None:
    """Paths beyond 2^32 are other paths than those their low words name."""
    job = params("european", steps=2, paths=256)
    sums = []
    for first in (0, 1 << 32, 1 << 33):
        partials = np.empty((1, SUMS))
        counts = np.zeros(BINS, dtype=np.int64)
        far = terms(job)._replace(paths=first + 256)
        cpu._simulate(far, hit_discounts(job), bridge(job, 1, 2), np.uint64(1), np.uint64(2), first, partials, counts)
        assert counts.sum() == 256
        sums.append(partials[0, 0])
    assert len(set(sums)) == 3
