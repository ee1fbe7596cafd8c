"""The energy that a GPU used between two moments, from its driver's readings.

From readings of the driver's energy counter, which are a second apart: between two readings the power is taken to be
the same. Where there is no counter, power times time is summed up in its place. So a launch that is long against a
second is measured, and a short one gets its share of what the GPU took around it, idle time included.

The counter is the whole GPU's. Of a slice of a GPU, and of a GPU that other processes compute on too, nobody can say
whose joules they were; a worker and its companion share them (`workers.parent.busy_times`). Nor is anything said of a
CPU: its counters (RAPL) are the whole package's, and only root may read them since they were found to tell of secrets
(CVE-2020-8694).
"""

import threading
from bisect import bisect_right
from dataclasses import dataclass

from warpdesk_server.workers.queue.reports import GpuReading

_KEPT = 2048  # readings: 24 minutes of them. Of what ran longer, the rest is taken to have been like that
_MISSED = 4  # readings in a row that may be late


@dataclass(frozen=True)
class _Point:
    at: float  # seconds
    joules: float  # so far
    watts: float | None
    alone: bool  # nobody else computed on it but a companion


class Energy:
    """The energy readings of one GPU, added by one thread and read by others. `interval`: seconds between readings."""

    def __init__(self, interval: float) -> None:
        self._patience = _MISSED * interval + 1.0
        self._points: list[_Point] = []
        self._lock = threading.Lock()

    def see(self, reading: GpuReading, now: float, own: int = 1) -> None:
        """Add a reading. `own` is how many processes on the GPU are this worker's and its companion's."""
        alone = reading.mig is None and (reading.processes or 0) <= own
        with self._lock:
            last = self._points[-1] if self._points else None
            if reading.energy is not None:
                joules = reading.energy
            elif reading.power is None:
                self._points = []
                return
            elif last is None:
                joules = 0.0
            else:
                joules = last.joules + (now - last.at) * (reading.power + (last.watts or reading.power)) / 2
            if last is not None and (joules < last.joules or now - last.at > self._patience):
                self._points = []  # the driver was loaded anew, or was silent
            self._points.append(_Point(now, joules, reading.power, alone))
            del self._points[:-_KEPT]

    def joules(self, since: float, until: float) -> float | None:
        """The joules that the GPU used between two moments, the later of them recent; None if they are unknown."""
        with self._lock:
            first = max(0, bisect_right(self._points, since, key=_when) - 1)
            concerned, around = self._points[first:], self._points[max(0, first - 1) :]
        if not around or until <= since or until - around[-1].at > self._patience:
            return None
        before, after = _so_far(around, since), _so_far(around, until)
        if before is None or after is None or not all(point.alone for point in concerned):
            return None
        return max(0.0, after - before)


def _when(point: _Point) -> float:
    return point.at


def _so_far(points: list[_Point], at: float) -> float | None:
    """The joules that the GPU used up to a moment.

    After the last reading the power stays the same; before the first it is the mean.
    """
    place = bisect_right(points, at, key=_when)
    if place == len(points):
        near, watts = points[-1], points[-1].watts
        if watts is None:
            watts = _mean(points[-2:])
    else:
        near = points[max(0, place - 1)]
        watts = _mean(points[place - 1 : place + 1] if place > 0 else points)
    return None if watts is None else near.joules + watts * (at - near.at)


def _mean(points: list[_Point]) -> float | None:
    """The mean power of a GPU in watts, from the first reading to the last."""
    first, last = points[0], points[-1]
    return last.watts if last.at <= first.at else (last.joules - first.joules) / (last.at - first.at)
