"""The GPUs that workers report, each once: a worker and its companion use the same one."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from warpdesk_server.workers.queue.reports import ConditionState, GpuCondition, WorkerReport

_WORST: tuple[ConditionState, ...] = ("absent", "healthy", "degraded", "restarting", "lost", "quarantined")


@dataclass(frozen=True)
class ReportedGpu:
    """A GPU, or that there is none, in the reports of the worker processes that use it: at least one."""

    reports: tuple[tuple[WorkerReport, GpuCondition], ...]  # the worst judgement first

    @property
    def worker(self) -> WorkerReport:
        """The worker whose judgement of the GPU is the worst."""
        return self.reports[0][0]

    @property
    def condition(self) -> GpuCondition:
        """That judgement, with the breakers and faults of all, and the latest reading of the driver."""
        conditions = [condition for _, condition in self.reports]
        opened = {(breaker.kind, breaker.what): breaker for each in reversed(conditions) for breaker in each.breakers}
        faults = sum((Counter(each.faults) for each in conditions), Counter[str]())
        latest = min(self.reports, key=lambda report: reading_age(*report))[1].driver
        update = {"breakers": tuple(opened.values()), "faults": dict(faults), "driver": latest}
        return conditions[0].model_copy(update=update)

    @property
    def read_by(self) -> WorkerReport:
        """The worker that has the driver's latest reading."""
        return min(self.reports, key=lambda report: reading_age(*report))[0]


def reported_gpus(workers: Sequence[WorkerReport]) -> list[ReportedGpu]:
    """What the workers' reports say of each GPU, in the order of the workers."""
    found: dict[tuple[str, ...], list[tuple[WorkerReport, GpuCondition]]] = defaultdict(list)
    processes = {(worker.host, worker.pid) for worker in workers}
    for worker in workers:
        if worker.gpu is None:
            continue
        starter = worker.started_by if (worker.host, worker.started_by) in processes else worker.pid
        reading = None if worker.gpu.driver is None else worker.gpu.driver.reading
        uuid = worker.gpu.uuid if reading is None or not reading.uuid else reading.uuid
        found[(uuid,) if uuid is not None else (worker.host, str(starter))].append((worker, worker.gpu))
    return [ReportedGpu(tuple(sorted(reports, key=_goodness))) for reports in found.values()]


def _goodness(report: tuple[WorkerReport, GpuCondition]) -> tuple[int, bool]:
    """How good a judgement is; of equal ones a worker of quick jobs comes first."""
    return -_WORST.index(report[1].state), not report[0].serves_quick_jobs


def reading_age(worker: WorkerReport, gpu: GpuCondition) -> float:
    """Seconds for which the driver's reading in a report is older than that of a report of now."""
    if gpu.driver is None or gpu.driver.age_seconds is None:
        return float("inf")
    return gpu.driver.age_seconds - worker.reported_at
