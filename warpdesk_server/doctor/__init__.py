"""The doctor: checks a machine from the system up to each operation's result, and names a remedy for each failure."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from warpdesk_server.app.settings import Settings
from warpdesk_server.doctor import gpu, kernels, machine
from warpdesk_server.doctor.broker import broker
from warpdesk_server.doctor.check import Check, Findings
from warpdesk_server.doctor.ledger import ledger
from warpdesk_server.doctor.replicas import replicas
from warpdesk_server.kernels.gpu.cubins import Cubins, default_directory
from warpdesk_server.kernels.gpu.faults import DeviceLost
from warpdesk_server.workers.child.calibrate import calibrate
from warpdesk_server.workers.child.cost import costs_of
from warpdesk_server.workers.child.device import Probe, probe, without_gpu
from warpdesk_server.workers.gpu import nvml
from warpdesk_server.workers.settings import WorkerSettings


@dataclass(frozen=True)
class Wish:
    """Options of a run of the doctor.

    `quick` leaves out checks that compile: the kernels' registers, and the examples, whose CPU code is compiled and
    kept as by a worker. `architecture` replaces that of a GPU that is not here. `calibrate` measures each operation's
    time on both backends, for jobs with `backend: auto`.
    """

    quick: bool = False
    architecture: str | None = None
    calibrate: bool = False


def examine(worker: WorkerSettings, settings: Settings, wish: Wish) -> Findings:
    """Run the doctor's checks. A GPU is opened, once per process; no process is left running."""
    return Findings(tuple(_checks(worker, settings, wish)))


def _checks(worker: WorkerSettings, settings: Settings, wish: Wish) -> Iterator[Check]:
    yield machine.system()
    yield machine.python()
    yield machine.memory(settings)
    yield machine.processors()
    yield machine.home(settings)
    yield broker(settings)
    if settings.durability == "replicated":
        yield replicas(settings)
    yield ledger(settings)

    library, stands_in, unused = nvml.library(), ":" in worker.device, worker.device == "cpu"
    here = gpu.here(worker.device, library)
    if not (stands_in or unused):
        yield gpu.driver(here)
        if (toolkit := gpu.container_toolkit(here)) is not None:
            yield toolkit
    answering = True
    driver_name = nvml.driver_name(worker.device)
    if not unused and (here.driver or (stands_in and driver_name)):
        report = nvml.look(driver_name, library)
        answering = report.hung_since is None
        yield from gpu.state(report)
    if not (stands_in or unused):
        yield gpu.cupy(here)
    found = probe(worker.device, worker.gpu_memory) if answering else without_gpu("the driver does not answer")
    yield gpu.device(found.report, replace(here, gpu=False) if unused else here)

    name = wish.architecture or (found.report.architecture if not stands_in else None)
    check, compiler = gpu.compiler(needed=found.device is not None and not stands_in)
    yield check
    if compiler is not None:
        if name is not None:
            yield gpu.architecture(name, compiler)
        yield gpu.kernel_cache(Cubins(default_directory(), compiler), name)
    if not wish.quick:
        shown = wish.architecture is not None
        yield from _launches(worker, found, name if compiler is not None else None, shown)
    if wish.calibrate:
        yield _calibration(worker, found)


def _launches(worker: WorkerSettings, found: Probe, architecture: str | None, show: bool) -> Iterator[Check]:
    used: list[dict[str, object]] = []
    if architecture is None:
        yield Check(
            "kernels", "absent", "no architecture to look at: there is no GPU, and none is named (--arch sm_90)"
        )
    else:
        check = kernels.usage(worker.catalogue(), architecture, found.device, show)
        used = check.details.get("kernels", [])
        yield check
    yield from kernels.answers(worker.catalogue(), found.device, found.report.reason, used)


def _calibration(worker: WorkerSettings, found: Probe) -> Check:
    costs = costs_of(worker, found.report)
    if costs is None or found.device is None:
        return Check("calibration", "absent", "nothing to choose: " + (found.report.reason or "WARPDESK_AUTO is gpu"))
    lines: list[str] = []
    try:
        calibrate(worker.catalogue().values(), found, costs, lines.append)
    except DeviceLost as fault:
        return Check("calibration", "failed", str(fault), gpu.BROKEN)
    return Check("calibration", "ok", f"{len(lines)} measured, kept in {costs.directory}", lines=tuple(lines))
