"""The cost model: it predicts an operation's time on each backend, T = a + b * work, and picks the quicker.

A `Line` is one operation on one device. It keeps a mean for each range of sizes, in which the latest jobs count most,
fits a and b through them, and corrects the fit where the jobs of a size say otherwise. A device that slows down or
recovers is noticed at the sizes that run and believed of the others too; one odd measurement counts for little. T
includes the copies to and from the device: it is the time a caller waits for.

Private operations teach nothing here, though they are predicted: an exact sampler's time depends on its noise, and even
a mean of such times on disk would tell something of it. Theirs are measured by `calibrate` alone, on made-up data.

Nothing is refused on a prediction.
"""

import json
import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.fingerprint import fingerprint
from warpdesk_server.kernels.operation import Backend, Operation
from warpdesk_server.kernels.params import Params
from warpdesk_server.workers.child.device import cpu_name
from warpdesk_server.workers.queue.reports import DeviceReport
from warpdesk_server.workers.settings import WorkerSettings

log = logging.getLogger("warpdesk.cost")

_FORMAT = 1
_SAVE_SECONDS = 5.0  # between two writings

_RANGE = 4.0  # sizes that differ by less share a mean
_LATEST = 0.2  # how much the latest job counts in its mean, once there are some
_OTHERS = 0.1  # how much of a change at one size is believed of the others
_FAR = 2.0  # a measurement that many times its mean or more counts as that much
_TRUSTED = 3  # jobs before a mean is one

_BEYOND = 4.0  # how far above the largest job that ran a line is drawn on
_EVERY = 32  # jobs after which the slower backend is measured again
_SHARE = 0.01  # of all time, at most, goes into measuring what is expected to be slower
# The CPU is measured for the first time where the GPU takes no longer: unknown, it may take 100 times as long.
_SMALL = 0.001


@dataclass
class Mean:
    """What the cost model keeps of one range of sizes: the mean work and seconds of its jobs, and their number."""

    work: float
    seconds: float
    jobs: int = 1


@dataclass
class Line:
    """The predicted time of an operation on a device: T = (a + b * work) * c, in seconds.

    c is how far the jobs of a size are off the fit, and 1 where none ran.
    """

    means: dict[int, Mean] = field(default_factory=dict)
    a: float = 0.0
    b: float = 0.0

    @property
    def jobs(self) -> int:
        return sum(mean.jobs for mean in self.means.values())

    def seconds(self, work: float) -> float:
        """The predicted time of a job of this work.

        Outside the sizes that ran, time is taken to go with the work: above them it takes no longer, so that nobody is
        caught by a job without end, and below them no less, so that it is tried there.
        """
        bounded = min(max(work, self._least / _BEYOND), self._most * _BEYOND)
        return self.fitted(bounded) * self._correction(bounded) * (work / bounded)

    def fitted(self, work: float) -> float:
        return self.a + self.b * work

    def covers(self, work: float) -> bool:
        """Whether the prediction rests on jobs about as small and about as large as this work."""
        return self._least / _BEYOND <= work <= self._most * _BEYOND

    @property
    def _least(self) -> float:
        return min(mean.work for mean in self.means.values())

    @property
    def _most(self) -> float:
        return max(mean.work for mean in self.means.values())

    def learn(self, work: float, seconds: float) -> None:
        """Update the predicted times with a job of this work that took `seconds`."""
        mean = self.means.get(_range(work))
        if self.jobs >= _TRUSTED and self.covers(work):
            expected = self.seconds(work)
            seconds = max(expected / _FAR, min(seconds, expected * _FAR))
            if mean is not None and mean.jobs >= _TRUSTED:
                for other in self.means.values():
                    other.seconds *= (seconds / expected) ** _OTHERS
        if mean is None:
            self.means[_range(work)] = Mean(work, seconds)
        else:
            mean.jobs += 1
            latest = max(_LATEST, 1 / mean.jobs)
            mean.work += latest * (work - mean.work)
            mean.seconds += latest * (seconds - mean.seconds)
        self.fit()

    def fit(self) -> None:
        """Fit the predicted times to the means: the line with the least relative errors.

        Neither of its numbers is below zero.
        """
        points = [(1 / mean.seconds, mean.work / mean.seconds) for mean in self.means.values()]
        if len(points) == 1:  # as likely to be overhead as to be work
            self.a, self.b = 0.5 / points[0][0], 0.5 / points[0][1]
            return
        # Least squares of a * p + b * q = 1.
        p, q = (sum(point[at] for point in points) for at in (0, 1))
        pp, qq, pq = (sum(point[i] * point[j] for point in points) for i, j in ((0, 0), (1, 1), (0, 1)))
        whole = pp * qq - pq * pq
        self.a, self.b = (qq * p - pq * q) / whole, (pp * q - pq * p) / whole
        if self.a < 0 or not math.isfinite(self.a):
            self.a, self.b = 0.0, q / qq
        elif self.b < 0:
            self.a, self.b = p / pp, 0.0

    def _correction(self, work: float) -> float:
        """The factor by which the predicted time of this work is corrected.

        Between two sizes that ran it goes from the one's to the other's as the logarithm of the work does.
        """
        if (mean := self.means.get(_range(work))) is not None:
            return self._off(mean)
        low = max((mean for mean in self.means.values() if mean.work < work), key=lambda mean: mean.work, default=None)
        high = min((mean for mean in self.means.values() if mean.work > work), key=lambda mean: mean.work, default=None)
        if low is None or high is None:
            return 1.0
        share = math.log(work / low.work) / math.log(high.work / low.work)
        return self._off(low) ** (1 - share) * self._off(high) ** share

    def _off(self, mean: Mean) -> float:
        """How far the jobs of a size are off the predicted time, less where they are few."""
        return (mean.seconds / self.fitted(mean.work)) ** (mean.jobs / (mean.jobs + 1))


def _range(work: float) -> int:
    return math.floor(math.log(work, _RANGE))


@dataclass(frozen=True)
class Job:
    """A job whose time is predicted: its kind and its work.

    The kind is the operation and what chooses its code.
    """

    kind: str
    work: float
    teaches: bool = True  # whether what it takes may be remembered


def job_of(operation: Operation, params: Params, inputs: Mapping[str, ArrayInfo]) -> Job:
    """The job whose time is predicted.

    Its kind is its operation, its inputs' dtypes and those parameters that choose code, not numbers.
    """
    cost = operation.cost(params, inputs)
    chosen = [
        str(getattr(params, name)) for name, about in type(params).model_fields.items() if _chooses(about.annotation)
    ]
    kind = " ".join([operation.name, *(info.dtype for info in inputs.values()), *chosen])
    return Job(kind, cost.steps, teaches=operation.randomness != "private")


def _chooses(annotation: Any) -> bool:
    """Whether a parameter chooses code in the cost model: it is one of a few words, or true or false.

    A caller's own words are none of our business.
    """
    if annotation is bool or get_origin(annotation) is Literal:
        return True
    members = [member for member in get_args(annotation) if member is not type(None)]
    return bool(members) and all(_chooses(member) for member in members)


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
            if gpu.jobs >= _TRUSTED and on_gpu <= _SMALL and left >= 0:
                return Pick("cpu", f"to measure it: {_rounded(on_gpu)} on the GPU, not known on the CPU")
            return Pick("gpu", None)
        on_cpu = cpu.seconds(job.work)
        predicted = f"{_rounded(on_cpu)} on the CPU, {_rounded(on_gpu)} on the GPU"
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
        """Write the predicted times to disk, whole or not at all.

        A disk that is full costs what was learned, not the job.
        """
        self._saved_at = time.monotonic()
        for backend, lines in self._lines.items():
            file = self._file(backend)
            if file is None or not lines:
                continue
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
        return {kind: _line([Mean(**mean) for mean in means]) for kind, means in written["lines"].items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, ArithmeticError) as error:
        log.warning("what operations take is learned anew, %s is not readable: %s", file, error)
        return {}


def _line(means: list[Mean]) -> Line:
    if not means or any(not (0 < mean.work < math.inf and 0 < mean.seconds < math.inf) for mean in means):
        raise ValueError(f"no times: {means}")
    line = Line({_range(mean.work): mean for mean in means})
    line.fit()
    return line


def _ordered(on_cpu: float, on_gpu: float) -> tuple[Backend, Backend]:
    """Both backends, the one with the shorter predicted time first."""
    return ("cpu", "gpu") if on_cpu < on_gpu else ("gpu", "cpu")


def _rounded(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
