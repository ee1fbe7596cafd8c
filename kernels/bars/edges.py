"""The edges of bars: which entries each has, and when it starts and ends.

Found on the CPU for every backend. Sums by volume and dollars depend on every entry before
and cannot be cut.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from warpdesk_server.kernels.bars.spec import FILLED, FILLED_OF_ENTRY, LIMIT, SECOND, Bars, most_bars, nanoseconds
from warpdesk_server.kernels.cpu.compiled import inner
from warpdesk_server.kernels.cpu.cores import share
from warpdesk_server.kernels.problems import refuse

Times = NDArray[np.int64]

_AT_LEAST = 1 << 16  # times: fewer are not worth another thread


@dataclass(frozen=True)
class Edges:
    """The edges of bars. Bar b has the entries `first[b]` to `end[b]`, less those that are not kept.

    `places` are the bars' places among `count` bars, of which those between have no entry.
    """

    first: Times
    end: Times
    time: Times
    close_time: Times
    complete: NDArray[np.uint8]
    places: Times
    left_out: int

    @property
    def count(self) -> int:
        return self.time.size


@dataclass(frozen=True)
class _Sessions:
    """Sessions, and the grid of bars of time in them: `anchor` is where bars begin, `base` the number of the first."""

    opens: Times
    closes: Times
    anchor: Times
    base: Times


def edges_of(
    params: Bars,
    time: Times,
    keep: NDArray[np.uint8],
    amounts: NDArray[np.float64],
    rows: int,
    inputs: Mapping[str, Times],
) -> Edges:
    """The edges of the bars of entries at `time` (n).

    `keep` (n) is 0 for entries that are left out, or empty if none is; `amounts` (n) are what is summed by volume and
    dollars, otherwise empty. Raises InvalidRequest for times that decrease or are out of range, for sessions that
    overlap, and for too many bars.
    """
    _require_ascending(time)
    _require_in_range("time", time[[0, -1]])
    sessions = _sessions(params, inputs)
    first, end, place = (np.empty(time.size, np.int64) for _ in range(3))
    given = time, keep, sessions.opens, sessions.closes
    if params.by == "time":
        bars, kept = by_time(*given, sessions.anchor, sessions.base, nanoseconds(params), first, end, place)
    else:
        bars, kept = by_amount(*given, amounts, params.every, first, end, place)
    # Copies, so that the rest is let go of.
    first, end, place = (part[:bars].copy() for part in (first, end, place))
    if params.by == "time":
        starts, ends = _times(sessions, nanoseconds(params), place)
        complete = (ends <= time[-1]).astype(np.uint8)
    else:
        starts, ends, complete = time[first], time[end - 1], place.astype(np.uint8)
        place = np.arange(bars)
    found = Edges(first, end, starts, ends, complete, place, time.size - int(kept))
    if params.incomplete == "drop":
        found = _of(found, complete == 1)
    if params.gaps != "omit":
        return _filled(found, sessions, params, rows, time.size)
    return replace(found, places=np.arange(found.count))


def _of(edges: Edges, which: NDArray[np.bool_]) -> Edges:
    arrays: dict[str, Any] = {
        name: array[which] for name, array in vars(edges).items() if isinstance(array, np.ndarray)
    }
    return replace(edges, **arrays)


def _filled(edges: Edges, sessions: _Sessions, params: Bars, rows: int, entries: int) -> Edges:
    """The edges with the bars of time between them that have no entry. All of them are complete but the last."""
    if not edges.count:
        return edges
    begin, last = int(edges.places[0]), int(edges.places[-1])
    count, most = last - begin + 1, most_bars(rows * entries)
    if rows * count > most:
        span = f"{_date(edges.time[0])} to {_date(edges.close_time[-1])}"
        of_all = f" of {rows} assets" if rows > 1 else ""
        raise refuse(
            "/params/gaps",
            f"{span} holds {count} bars of {params.every!r} s{of_all}, and with gaps filled at most {most} are made of "
            f"{rows * entries} entries ({FILLED} and {FILLED_OF_ENTRY} for each): choose longer bars, or omit gaps",
        )
    starts, ends = _times(sessions, nanoseconds(params), np.arange(begin, last + 1))
    complete = np.ones(count, np.uint8)
    complete[-1] = edges.complete[-1]
    return replace(edges, time=starts, close_time=ends, complete=complete, places=edges.places - begin)


def _date(time: Any) -> str:
    return datetime.fromtimestamp(int(time) // SECOND, UTC).isoformat()


def _sessions(params: Bars, inputs: Mapping[str, Times]) -> _Sessions:
    opens, closes = inputs.get("session_open"), inputs.get("session_close")
    if opens is None or closes is None:
        return _Sessions(*(np.array([number]) for number in (-LIMIT, LIMIT, params.origin, 0)))
    _require_in_range("session_open", opens)
    _require_in_range("session_close", closes)
    if (wrong := np.flatnonzero(closes <= opens)).size:
        at = wrong[0]
        raise refuse("/inputs/session_close", f"session {at} opens at {opens[at]} and closes at {closes[at]}")
    if (wrong := np.flatnonzero(opens[1:] < closes[:-1])).size:
        at = wrong[0]
        raise refuse(
            "/inputs/session_open",
            f"session {at + 1} opens at {opens[at + 1]}, before session {at} closes at {closes[at]}",
        )
    base = np.zeros(opens.size, np.int64)
    if params.by == "time":
        every = nanoseconds(params)
        np.cumsum((closes - opens)[:-1] // every + ((closes - opens)[:-1] % every > 0), out=base[1:])
    return _Sessions(opens.astype(np.int64), closes.astype(np.int64), opens.astype(np.int64), base)


def _require_ascending(time: Times) -> None:
    falls: list[int] = []

    def part(begin: int, stop: int) -> None:
        ahead, behind = time[begin + 1 : stop + 1], time[begin:stop]
        if (ahead < behind).any():
            falls.append(begin + 1 + int(np.argmax(ahead < behind)))

    if time.size > 1:
        share(time.size - 1, part, at_least=_AT_LEAST)
    if falls:
        at = min(falls)
        raise refuse("/inputs/time", f"time decreases at entry {at}: from {time[at - 1]} to {time[at]}")


def _require_in_range(name: str, times: Times) -> None:
    outside = np.flatnonzero((times <= -LIMIT) | (times >= LIMIT))
    if outside.size:
        raise refuse(
            f"/inputs/{name}", f"{name} {times[outside[0]]} is beyond +-{LIMIT} nanoseconds, the years 1823 to 2116"
        )


def _times(sessions: _Sessions, every: int, places: Times) -> tuple[Times, Times]:
    """When bars of time at these places of the grid start and end; at a session's close at the latest."""
    session = np.maximum(np.searchsorted(sessions.base, places, "right") - 1, 0)  # before an origin too
    starts = sessions.anchor[session] + (places - sessions.base[session]) * every
    return starts, np.minimum(starts + every, sessions.closes[session])


@inner
def _reached(time, first, until):  # type: ignore[no-untyped-def]
    """The first entry after `first` at `until` or later, found in steps that double and then halve."""
    step, low = 1, first
    while low + step < time.size and time[low + step] < until:
        low += step
        step *= 2
    high = min(low + step, time.size)
    while low + 1 < high:
        middle = (low + high) // 2
        if time[middle] < until:
            low = middle
        else:
            high = middle
    return high


@njit(cache=True, nogil=True)
def by_time(time, keep, opens, closes, anchor, base, every, first, end, place):  # type: ignore[no-untyped-def]
    """Fill the edges of bars of time, with their places in the grid; returns the number of bars, and of entries in
    them."""
    bars, kept, session, some, i = 0, 0, 0, keep.size > 0, 0
    while i < time.size:
        t = time[i]
        while session < opens.size and t >= closes[session]:
            session += 1
        if session == opens.size or t < opens[session] or (some and keep[i] == 0):
            i += 1
            continue
        step = (t - anchor[session]) // every
        stop = _reached(time, i, min(anchor[session] + (step + 1) * every, closes[session]))
        last, count = stop - 1, stop - i
        if some:
            count = 0
            for j in range(i, stop):
                if keep[j] != 0:
                    last = j
                    count += 1
        first[bars], end[bars], place[bars] = i, last + 1, base[session] + step
        bars += 1
        kept += count
        i = stop
    return bars, kept


@njit(cache=True, nogil=True)
def by_amount(time, keep, opens, closes, amounts, every, first, end, complete):  # type: ignore[no-untyped-def]
    """Fill the edges of bars by count (`amounts` is empty), volume or dollars, with 1 where the sum reached `every`.

    Sums begin with each bar and go in the order of entries. Returns what `by_time` does.
    """
    bars, kept, session, some, counts, i = 0, 0, 0, keep.size > 0, amounts.size == 0, 0
    while i < time.size:
        t = time[i]
        while session < opens.size and t >= closes[session]:
            session += 1
        if session == opens.size or t < opens[session] or (some and keep[i] == 0):
            i += 1
            continue
        total, last, until = 0.0, i, closes[session]
        first[bars] = i
        while i < time.size and time[i] < until and total < every:
            if not some or keep[i] != 0:
                total += 1.0 if counts else amounts[i]
                last = i
                kept += 1
            i += 1
        end[bars], complete[bars] = last + 1, total >= every
        bars += 1
    return bars, kept
