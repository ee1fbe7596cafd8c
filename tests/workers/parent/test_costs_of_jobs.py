"""What a job is said to have taken of energy and money, by real workers on stand-ins for a GPU."""

import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.stand_ins.nvml import A100
from tests.workers.conftest import Desk
from warpdesk_server.workers.parent.busy_times import BusyTimes
from warpdesk_server.workers.parent.child_process import ChildProcess
from warpdesk_server.workers.parent.examples import Examples
from warpdesk_server.workers.parent.supervisor import ChildSupervisor
from warpdesk_server.workers.pipe import Answer, Assignment, Attempt, Orders, send
from warpdesk_server.workers.queue.counts import Tally
from warpdesk_server.workers.queue.protocol import Failed, JobRequest, Provenance, Succeeded, Together, Transfers
from warpdesk_server.workers.queue.reports import GpuReading
from warpdesk_server.workers.settings import WorkerSettings
from warpdesk_server.workers.store.spool import SpoolStore

ON_GPU = {
    "WARPDESK_DEVICE": f"tests.workers.several:NumberedDevice@{A100}",
    "STAND_IN_NVML": str(ROOT / "tests" / "workers" / "gpu" / "nvml" / "a100.json"),
    "WARPDESK_PRICES": '{"paper": 3600, "cpu": 0.5}',
}


def test_a_job_on_a_gpu_tells_its_energy_and_its_cost_and_the_worker_its_price(desk: Desk) -> None:
    worker = desk.start_worker(**ON_GPU)
    assert worker is not None
    assert worker.dollars_per_hour == 3600
    how = desk.wait(desk.submit()).provenance
    assert how is not None
    assert how.compute_seconds is not None
    assert how.cost_dollars == pytest.approx(how.compute_seconds)  # a dollar a second
    assert worker.device is not None
    assert how.device_uuid == worker.device.uuid == A100
    assert how.energy_joules == pytest.approx(how.compute_seconds * 318.25, rel=0.5, abs=1e-6)


def test_a_child_tells_what_its_launches_copied_and_what_became_of_kernels_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WARPDESK_HOME", str(tmp_path))
    monkeypatch.setenv("WARPDESK_OPERATIONS", "tests.workers.operations:OPERATIONS")
    monkeypatch.setenv("WARPDESK_AUTO", "gpu")
    monkeypatch.setenv("WARPDESK_DEVICE", "tests.workers.device:CachedDevice")
    store = SpoolStore(tmp_path / "store")
    with store.writer("key_a", "float64", (3,), 60.0) as writer:
        writer.take(bytes(24))
        values = writer.commit(has_nan=False, has_inf=False).id
    copied = Transfers(h2d_bytes=800, h2d_seconds=0.125, d2h_bytes=8, d2h_seconds=0.125)
    tally = Tally()
    child = ChildProcess(WorkerSettings(), tally)
    child.spawn(Orders())
    try:
        while not child.ready:
            child.hear()
        # The canary, and double_values for its example.
        assert tally.addition()[2] == {"kernel_compilations_total|hit": 1, "kernel_compilations_total|miss": 1}
        for private, transfers in ((False, copied), (True, None)):
            request = JobRequest(
                id=f"job_{private}", owner="key_a", operation="double", params={}, inputs={"values": values},
                timeout=9, result_ttl=9, private=private,
            )  # fmt: skip
            send(child.pipe, Assignment(jobs=(Attempt(request=request, attempt=1),)))
            while not isinstance(answer := child.hear(), Answer):
                pass
            assert isinstance(answer.outcomes[0], Succeeded), answer
            assert (answer.transfers, answer.compilations) == (transfers, {})
    finally:
        child.kill()


def test_without_a_price_a_job_has_no_cost(desk: Desk) -> None:
    worker = desk.start_worker()
    assert worker is not None
    assert worker.dollars_per_hour is None
    how = desk.wait(desk.submit()).provenance
    assert how is not None
    assert (how.energy_joules, how.cost_dollars) == (None, None)


@pytest.mark.parametrize("private", [True, False])
def test_what_a_private_job_took_is_told_to_nobody(desk: Desk, private: bool) -> None:
    desk.start_worker(**ON_GPU)
    how = desk.wait(desk.submit(private=private)).provenance
    assert how is not None
    assert (how.energy_joules is None, how.cost_dollars is None) == (private, private)


class Silent:
    """A parent that nothing is asked of."""

    stopping = True

    def pause(self, *_: Any) -> bool:
        return False

    def news(self) -> None: ...

    def release(self, why: str) -> None: ...


@pytest.fixture
def supervisor(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    for name, value in ON_GPU.items():
        monkeypatch.setenv(name, value)
    settings = WorkerSettings(home=tmp_path)
    made = ChildSupervisor(settings, Examples({}, None), Silent(), BusyTimes())  # type: ignore[arg-type]
    yield made
    made.end()


def answered(
    supervisor: ChildSupervisor, backend: str, sizes: list[int], seconds: float, share: float = 1.0, **fields: Any
) -> list[Provenance]:
    """What jobs are told that a launch of each of these sizes computed, in these seconds each."""
    jobs, outcomes = [], []
    for size in sizes:
        for _ in range(size):
            request = JobRequest(
                id=f"job_{len(jobs)}", owner="key_a", operation="double", params={}, inputs={}, timeout=9, result_ttl=9,
                together=Together(key="k", items=9, bytes=9), **fields,
            )  # fmt: skip
            how: dict[str, Any] = {"backend": backend, "device": "paper" if backend == "gpu" else "a CPU"}
            jobs.append(Attempt(request=request, attempt=1))
            outcomes.append(
                Succeeded(
                    result=request.id,
                    provenance=Provenance(**how, batch_size=size, attempt=1, compute_seconds=seconds),
                )
            )
    work = Assignment(jobs=tuple(jobs))
    answer = Answer(job="job_0", outcomes=tuple(outcomes))
    costed = supervisor.costed(work, answer, time.monotonic() - 1.0, share)
    return [outcome.provenance for outcome in costed.outcomes if isinstance(outcome, Succeeded)]


def test_the_jobs_of_a_launch_share_what_it_took(supervisor: ChildSupervisor) -> None:
    assert supervisor._driver is not None
    supervisor._driver.stop()
    now = time.monotonic()
    supervisor._driver._energy.see(GpuReading(uuid=A100, name="paper", energy=1000.0, power=200.0), now - 2.0)
    provenances = answered(supervisor, "gpu", [4, 1], 0.25)
    assert [how.cost_dollars for how in provenances] == [pytest.approx(0.25 / 4)] * 4 + [pytest.approx(0.25)]
    assert [how.energy_joules for how in provenances] == [pytest.approx(50 / 4, rel=0.05)] * 4 + [
        pytest.approx(50, rel=0.05)
    ]


def test_a_launch_beside_one_of_the_companion_has_its_share(supervisor: ChildSupervisor) -> None:
    assert supervisor._driver is not None
    supervisor._driver.stop()
    now = time.monotonic()
    supervisor._driver._energy.see(GpuReading(uuid=A100, name="paper", energy=1000.0, power=200.0), now - 2.0)
    (how,) = answered(supervisor, "gpu", [1], 0.25, share=0.5)
    assert how.cost_dollars == pytest.approx(0.25 / 2)
    assert how.energy_joules == pytest.approx(50 / 2, rel=0.05)
    assert how.device_share == 0.5


def test_on_the_cpu_of_a_gpu_worker_the_price_is_the_cpus(supervisor: ChildSupervisor) -> None:
    (how,) = answered(supervisor, "cpu", [1], 0.25)
    assert (how.energy_joules, how.cost_dollars) == (None, pytest.approx(0.25 * 0.5 / 3600))


def test_private_jobs_and_failures_are_passed_on_as_they_are(supervisor: ChildSupervisor) -> None:
    (how,) = answered(supervisor, "gpu", [1], 0.25, private=True)
    assert (how.energy_joules, how.cost_dollars) == (None, None)
    failure = Failed(code="operation-error", message="it failed")
    request = JobRequest(id="job_1", owner="o", operation="double", params={}, inputs={}, timeout=9, result_ttl=9)
    work = Assignment(jobs=(Attempt(request=request, attempt=1),))
    answer = Answer(job="job_1", outcomes=(failure,))
    assert supervisor.costed(work, answer, time.monotonic()).outcomes == (failure,)
