"""The cost model: it predicts an operation's time on each backend, T = a + b * work, and picks the quicker.

T includes the copies to and from the device: it is the time a caller waits for. A `Line` of
`workers.predicted_times` is one operation on one device.

Private operations teach nothing here, though they are predicted: an exact sampler's time depends on its noise, and even
a mean of such times on disk would tell something of it. Theirs are measured by `calibrate` alone, on made-up data.

Nothing is refused on a prediction.
"""

import json
import logging
import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from warpdesk_server.kernels.fingerprint import fingerprint
from warpdesk_server.kernels.operation import Backend
from warpdesk_server.workers.child.device import cpu_name
from warpdesk_server.workers.predicted_times import TRUSTED, Job, Line, Mean, rounded
from warpdesk_server.workers.queue.reports import DeviceReport
from warpdesk_server.workers.settings import WorkerSettings

log = logging.getLogger("warpdesk.cost")

_FORMAT = 1
_SAVE_SECONDS = 5.0  # between two writings

_EVERY = 32  # jobs after which the slower backend is measured again
_SHARE = 0.01  # of all time, at most, goes into measuring what is expected to be slower
# The CPU is measured for the first time where the GPU takes no longer: unknown, it may take 100 times as long.
_SMALL = 0.001


@dataclass(frozen=True)
class Pick:
    backend: Backend
    reason: str | None  # None where nothing is known yet


@dataclass
class Costs:
    """The learned costs of a GPU, and of the CPU beside it, by which the child predicts times.

    `directory` keeps them between processes, a file per device. `clock` is what times are measured by.
    """

    device: DeviceReport
    directory: Path | None = None
    cpu: str = "cpu"
    clock: Callable[[], float] = time.perf_counter
    _lines: dict[Backend, dict[str, Line]] = field(default_factory=lambda: {"gpu": {}, "cpu": {}})
    _since: dict[str, int] = field(default_factory=dict)  # jobs of a kind since the slower backend was measured
    _total: float = 0.0  # seconds of all jobs
    _spent: float = 0.0  # seconds that measuring the slower one took longer
    _saved_at: float = 0.0

    def __post_init__(self) -> None:
        for backend in self._lines:
            if (file := self._file(backend)) is not None:
                self._lines[backend] = _read(file, self._name(backend))

    def seconds(self, backend: Backend, job: Job) -> float | None:
        """The predicted time of a job on a backend; None where nothing like it ran."""
        line = self._lines[backend].get(job.kind)
        return None if line is None else line.seconds(job.work)

    def expected(self, job: Job) -> float | None:
        """The predicted time of a job on the GPU; None where none of about its size ran there."""
        line = self._lines["gpu"].get(job.kind)
        return line.seconds(job.work) if line is not None and line.covers(job.work) else None

    def pick(self, job: Job) -> Pick:
        """The backend with the shorter predicted time; the GPU until both are known at about this size.

        What is slower, or not known yet, is measured now and then as long as that costs no more than 1 % of all time.
        """
        gpu, cpu = self._lines["gpu"].get(job.kind), self._lines["cpu"].get(job.kind)
        if gpu is None or not gpu.covers(job.work):
            return Pick("gpu", None)
        on_gpu, left = gpu.seconds(job.work), _SHARE * self._total - self._spent
        if cpu is None:
            if gpu.jobs >= TRUSTED and on_gpu <= _SMALL and left >= 0:
                return Pick("cpu", f"to measure it: {rounded(on_gpu)} on the GPU, not known on the CPU")
            return Pick("gpu", None)
        on_cpu = cpu.seconds(job.work)
        predicted = f"{rounded(on_cpu)} on the CPU, {rounded(on_gpu)} on the GPU"
        if on_cpu > on_gpu > cpu.fitted(job.work) and not cpu.covers(job.work) and on_cpu - on_gpu <= left:
            return Pick("cpu", f"to measure it at this size: predicted at most {predicted}")
        quicker, slower = _ordered(on_cpu, on_gpu)
        since = self._since[job.kind] = self._since.get(job.kind, 0) + 1
        if since >= _EVERY and abs(on_cpu - on_gpu) <= left:
            return Pick(slower, f"to measure it again: predicted {predicted}")
        return Pick(quicker, f"predicted {predicted}")

    def learn(self, backend: Backend, job: Job, seconds: float) -> None:
        """Learn for the predicted times from a job that ended on a backend.

        Saves the costs if they were not saved for a while.
        """
        if not job.teaches or seconds <= 0:
            return
        self.add(backend, job, seconds)
        self._total += seconds
        on_cpu, on_gpu = (self.seconds(which, job) for which in ("cpu", "gpu"))
        if on_cpu is not None and on_gpu is not None and backend != _ordered(on_cpu, on_gpu)[0]:
            self._spent += abs(on_cpu - on_gpu)
            self._since[job.kind] = 0
        if time.monotonic() - self._saved_at > _SAVE_SECONDS:
            self.save()

    def add(self, backend: Backend, job: Job, seconds: float) -> None:
        """Add a measurement to the predicted times, of a job or for calibration."""
        self._lines[backend].setdefault(job.kind, Line()).learn(job.work, seconds)

    def save(self) -> None:
        """Write the predicted times to disk, whole or not at all, with those that another process wrote meanwhile.

        A worker's child and its companion's share the files, and each learns sizes that the other does not see. There
        is no lock: at the companion's priority it may be held for long. What one writes between the other's read and
        write is missing until it writes again, in five seconds.

        A disk that is full costs what was learned, not the job.
        """
        self._saved_at = time.monotonic()
        for backend, lines in self._lines.items():
            file = self._file(backend)
            if file is None or not lines:
                continue
            for kind, line in _read(file, self._name(backend)).items():
                lines[kind] = lines[kind].joined(line) if kind in lines else line
            means = {kind: [vars(mean) for mean in line.means.values()] for kind, line in lines.items()}
            written = {"format": _FORMAT, "device": self._name(backend), "lines": means}
            new = file.with_name(f"{file.name}.{os.getpid()}")
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                new.write_text(json.dumps(written))
                new.replace(file)
            except OSError as error:
                log.warning("what operations take could not be written: %s", error)
                with suppress(OSError):
                    new.unlink()

    def table(self) -> Iterable[tuple[Backend, str, Line]]:
        """All predicted times that are known, for those who print them."""
        for backend, lines in self._lines.items():
            for kind, line in sorted(lines.items()):
                yield backend, kind, line

    def _name(self, backend: Backend) -> str:
        """What predicted times are valid for: the device and the code that ran on it."""
        if backend == "cpu":
            return f"{self.cpu}, kernels {fingerprint()}"
        return f"{self.device.uuid or self.device.name}, driver {self.device.driver}, kernels {fingerprint()}"

    def _file(self, backend: Backend) -> Path | None:
        if self.directory is None or (backend == "gpu" and self.device.backend != "gpu"):
            return None
        device = self.cpu if backend == "cpu" else self.device.uuid or self.device.name
        return self.directory / f"{backend}-{sha256(device.encode()).hexdigest()[:12]}.json"


def costs_of(settings: WorkerSettings, device: DeviceReport) -> Costs | None:
    """The predicted times of a worker's GPU and its CPU; None where "auto" is to take the GPU whatever they are."""
    if settings.auto == "gpu" or device.backend != "gpu":
        return None
    threads = os.environ.get("NUMBA_NUM_THREADS", "all")  # workers that share a machine divide its cores
    return Costs(device, settings.home / "costs", f"{cpu_name()}, {threads} threads")


def _read(file: Path, name: str) -> dict[str, Line]:
    """The lines of predicted times in a file; none where it is missing, broken, or of another device or other code."""
    try:
        written = json.loads(file.read_text())
        if (written["format"], written["device"]) != (_FORMAT, name):
            log.info("what operations take is learned anew: %s is of %s", file, written["device"])
            return {}
        return {kind: Line.of([Mean(**mean) for mean in means]) for kind, means in written["lines"].items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, ArithmeticError) as error:
        log.warning("what operations take is learned anew, %s is not readable: %s", file, error)
        return {}


def _ordered(on_cpu: float, on_gpu: float) -> tuple[Backend, Backend]:
    """Both backends, the one with the shorter predicted time first."""
    return ("cpu", "gpu") if on_cpu < on_gpu else ("gpu", "cpu")
