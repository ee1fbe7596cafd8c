"""Every kernel gives the CPU's answer: in each order of threads, on each device, clean under the sanitizers."""

from functools import cache

import pytest

from tests.cudasim.device import CAN_FLUSH, FINITE, NAN, EmulatedDevice, Order
from tests.cudasim.sanitized import Mode, run_sanitized
from tests.kernels import verdicts
from tests.kernels.families import all_cases, cases, cuda_files, families, kernels_of
from tests.kernels.parity import Answer, Case, assert_same
from warpdesk_server.kernels.gpu.compile import describe, sources
from warpdesk_server.kernels.gpu.contract import Device

pytestmark = pytest.mark.timeout(600)  # the emulator compiles and runs kernels, also on a busy machine

ALL = [pytest.param(case, id=str(case)) for _, case in all_cases()]
FLOAT32 = [pytest.param(case, id=str(case)) for _, case in all_cases() if case.in_float32()]
SMALL = [pytest.param(case, id=str(case)) for _, case in all_cases() if case.small]
# Small cases and flushed ones run with finite numbers in fresh memory anyway.
LARGE = [
    pytest.param(case, id=str(case))
    for _, case in all_cases()
    if not case.small and not (CAN_FLUSH and case.in_float32())
]


@cache
def on_cpu(case: Case) -> Answer:
    return case.run()


@cache
def emulated(case: Case, order: Order = "forward", poison: int = NAN) -> tuple[Answer, frozenset[tuple[str, str]]]:
    """The answer, and the kernels launched for it as `kernels_of` names them."""
    device = EmulatedDevice(order, seed=7, poison=poison)
    return case.run(device), frozenset((describe(source), kernel) for source, kernel in device.launches)


@pytest.mark.parametrize("case", ALL)
def test_the_emulated_device_answers_like_the_cpu(case: Case) -> None:
    assert_same(case, on_cpu(case), emulated(case)[0])


@pytest.mark.parametrize("order", ["backward", "random"])
@pytest.mark.parametrize("case", SMALL)
def test_no_answer_depends_on_the_order_of_threads_or_on_what_fresh_memory_holds(case: Case, order: Order) -> None:
    # In the forward run it holds NaN, which is also what many an output that nobody writes should hold.
    assert_same(case, on_cpu(case), emulated(case, order, FINITE)[0])


@pytest.mark.parametrize("case", LARGE)
def test_no_answer_of_a_large_case_depends_on_what_fresh_memory_holds(case: Case) -> None:
    assert_same(case, on_cpu(case), emulated(case, poison=FINITE)[0])


@pytest.mark.skipif(not CAN_FLUSH, reason="only an x86 processor can be told to flush denormals")
@pytest.mark.parametrize("case", FLOAT32)
def test_no_answer_in_float32_depends_on_denormals_being_flushed_as_a_gpu_does(case: Case) -> None:
    assert_same(case, on_cpu(case), case.run(EmulatedDevice(flush=True, poison=FINITE)))


@pytest.mark.gpu
@pytest.mark.parametrize("case", ALL)
def test_the_gpu_answers_like_the_cpu(case: Case, cuda: Device) -> None:
    assert_same(case, on_cpu(case), case.run(cuda))


@pytest.mark.parametrize("family", families())
def test_every_kernel_of_a_family_is_launched_by_a_case_in_every_variant(family: str) -> None:
    launched = frozenset().union(*(emulated(case)[1] for case in cases(family)))
    assert kernels_of(family) - launched == set()


def test_every_cuda_file_is_among_the_sources_that_are_compiled_for_all_gpus() -> None:
    assert cuda_files() == {source.path.resolve() for _, source in sources()}


@pytest.mark.sanitize
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("family", families())
def test_no_kernel_leaves_its_memory_or_defined_behaviour(family: str) -> None:
    _sanitized(family, "address,undefined")


@pytest.mark.sanitize
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("family", families())
def test_no_kernel_has_a_data_race(family: str) -> None:
    _sanitized(family, "thread")


def _sanitized(family: str, mode: Mode) -> None:
    if verdicts.is_known(mode, family):
        pytest.skip("nothing changed since it was found clean (tests/kernels/sanitized.json); SANITIZE=all asks again")
    done = run_sanitized(mode, "tests.kernels.sanitized_cases", family)
    assert done.returncode == 0, done.stderr[-6000:]
    ran = {tuple(line.split()) for line in done.stdout.splitlines()}
    expected = {(source.split()[0], kernel) for source, kernel in kernels_of(family)}  # in one variant at least
    assert expected - ran == set(), f"not run by any small case:\n{done.stderr}"
    verdicts.keep(mode, family)
