"""Predicted times: what an operation takes on a device, T = a + b * work, fitted through the jobs that ran there.

A `Line` is one operation on one device. It keeps a mean for each range of sizes, in which the latest jobs count most,
fits a and b through them, and corrects the fit where the jobs of a size say otherwise. A device that slows down or
recovers is noticed at the sizes that run and believed of the others too; one odd measurement counts for little.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args, get_origin

from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.operation import Operation
from warpdesk_server.kernels.params import Params

_RANGE = 4.0  # sizes that differ by less share a mean
_LATEST = 0.2  # how much the latest job counts in its mean, once there are some
_OTHERS = 0.1  # how much of a change at one size is believed of the others
_FAR = 2.0  # a measurement that many times its mean or more counts as that much
TRUSTED = 3  # jobs before a mean is one

_BEYOND = 4.0  # how far above the largest job that ran a line is drawn on


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

    @classmethod
    def of(cls, means: Sequence[Mean]) -> "Line":
        """The line through means that were kept. Raises ValueError where they are no times."""
        if not means or any(not (0 < mean.work < math.inf and 0 < mean.seconds < math.inf) for mean in means):
            raise ValueError(f"no times: {means}")
        line = cls({_range(mean.work): mean for mean in means})
        line.fit()
        return line

    def joined(self, other: "Line") -> "Line":
        """The line through the means of both; of a range of sizes that both have, through that of more jobs."""
        means = [*other.means.values(), *self.means.values()]
        best: dict[int, Mean] = {}
        for mean in means:  # on a tie one's own
            kept = best.get(_range(mean.work))
            if kept is None or mean.jobs >= kept.jobs:
                best[_range(mean.work)] = mean
        return Line.of(list(best.values()))

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
        if self.jobs >= TRUSTED and self.covers(work):
            expected = self.seconds(work)
            seconds = max(expected / _FAR, min(seconds, expected * _FAR))
            if mean is not None and mean.jobs >= TRUSTED:
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


def rounded(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
