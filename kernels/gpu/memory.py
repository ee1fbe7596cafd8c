"""Memory of a device, as the one process that owns it sees it: a limit, reservations, and an account of each job.

with device.memory.job() as account:
    outcome = run(request)  # raises nothing that is still about: a traceback holds the arrays of its frames
account.before, account.after, account.peak  # bytes in arrays
account.left  # what the job made and did not let go of: empty, or a leak, each array by its shape and bytes

report = device.memory.report()
report.stuck  # a worker in which these bytes stay needs a new process
"""

import gc
import itertools
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

from warpdesk_server.kernels.gpu.faults import DeviceFault, OutOfMemory

SHARE = 0.9  # of a device, unless a limit is set: the rest is for the context, modules, libraries and other processes


@dataclass(frozen=True)
class MemoryReport:
    """Bytes. `used` is in arrays, `held` is what the pool took from the driver (used and kept for reuse) and never
    passes `limit`. `stuck` is held, not used, and did not go back when it was asked to. `peak` is the most used at a
    time since the last job began."""

    used: int
    held: int
    limit: int
    stuck: int = 0
    peak: int = 0


@dataclass(frozen=True)
class Block:
    """An array's memory: its bytes, as the pool rounds them, and what it was made for."""

    nbytes: int
    what: str

    def __str__(self) -> str:
        return f"{self.what} in {self.nbytes} bytes"


@dataclass
class JobMemory:
    """Bytes in arrays before and after a job and the most at a time, and the blocks it made and left behind.

    Complete when the `with` of `Memory.job` has ended.
    """

    before: int
    after: int = 0
    peak: int = 0
    left: tuple[Block, ...] = ()


class Memory(Protocol):
    """What a device answers about its memory, and what can be done about it."""

    limit: int  # bytes that this process may take

    def room(self) -> int:
        """Bytes that new arrays could take now: within the limit, and free on the device or held for reuse."""

    def unreserved(self) -> int:
        """The part of `room`, in bytes of device memory, that nobody has reserved."""

    def short(self, nbytes: int) -> bool:
        """Whether it is others on the device, and not this process and its limit, that leave no room for `nbytes`."""

    def release(self) -> None:
        """Give what is held and not used back to the driver."""

    def reserve(self, nbytes: int, patience: float = 0.0) -> AbstractContextManager[None]:
        """Set bytes aside for the arrays that are made inside, so that another thread does not count on them too.

        Waits up to `patience` seconds for other reservations to end, then raises OutOfMemory. Where there is no other,
        it is granted whatever its size: whether the device has the bytes is found out by taking them.
        """

    def job(self) -> AbstractContextManager[JobMemory]:
        """Keep the account of one job's arrays; one job at a time."""

    def report(self) -> MemoryReport: ...


class Ledger(ABC):
    """What the memory of every device has in common: reservations, and a list of what is alive."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.peak = 0  # the most bytes used at a time since the last job began
        self._changed = threading.Condition()
        self._holders = 0
        self._reserved = 0
        self._used_before = 0  # when the first of the present holders came
        self._numbers = itertools.count()
        self._alive: dict[int, Block] = {}
        # Arrays die in whatever thread and at whatever moment: their numbers wait here, since no lock can be taken.
        self._dead: deque[int] = deque()

    @abstractmethod
    def used(self) -> int:
        """Bytes in arrays."""

    @abstractmethod
    def room(self) -> int: ...

    @abstractmethod
    def release(self) -> None: ...

    def unreserved(self) -> int:
        with self._changed:
            return self._unreserved()

    def short(self, nbytes: int) -> bool:
        return self.room() < nbytes <= self.limit - self.used()

    @contextmanager
    def reserve(self, nbytes: int, patience: float = 0.0) -> Iterator[None]:
        self._hold(nbytes, time.monotonic() + patience)
        try:
            yield
        finally:
            with self._changed:
                self._holders -= 1
                self._reserved -= nbytes
                self._changed.notify_all()

    @contextmanager
    def job(self) -> Iterator[JobMemory]:
        first, account = next(self._numbers), JobMemory(self.used())
        self.peak = account.before
        failed = False
        try:
            yield account
        except BaseException as error:
            failed = True
            let_go(error)
            raise
        finally:
            # Arrays in a cycle die late, which is no leak. But it takes 0.1 s, for which no fallback waits: what a
            # failure still holds here goes with it.
            if not failed and self._made_since(first):
                gc.collect()
            account.left = self._made_since(first)
            account.after, account.peak = self.used(), max(self.peak, account.before)
            if account.left:
                self.release()  # so that the next report tells what of it is stuck

    def born(self, nbytes: int, what: str) -> "Life":
        """Count a new block: it is alive as long as what is returned."""
        number = next(self._numbers)
        self._bury()
        self._alive[number] = Block(nbytes, what)
        self.peak = max(self.peak, self.used())
        return Life(number, self._dead)

    def _bury(self) -> None:
        while True:
            try:
                number = self._dead.popleft()
            except IndexError:  # asked before, it may be another lane that takes the last one
                return
            self._alive.pop(number, None)

    def _made_since(self, first: int) -> tuple[Block, ...]:
        self._bury()
        return tuple(block for number, block in sorted(self._alive.copy().items()) if number > first)

    def _hold(self, nbytes: int, until: float) -> None:
        with self._changed:
            while self._holders and nbytes > (free := self._unreserved()):
                left = until - time.monotonic()
                if left <= 0:
                    raise OutOfMemory(
                        f"out of memory: needed {nbytes} bytes, limit {self.limit} bytes, free {free} bytes", 2
                    )
                self._changed.wait(left)
            if not self._holders:
                self._used_before = self.used()
            self._holders += 1
            self._reserved += nbytes

    def _unreserved(self) -> int:
        taken = self.used() - self._used_before if self._holders else 0
        return self.room() - max(0, self._reserved - taken)


class Life:
    """Lies beside a block; when the block goes, so does this."""

    __slots__ = ("_dead", "_number")

    def __init__(self, number: int, dead: deque[int]) -> None:
        self._number = number
        self._dead = dead

    def __del__(self) -> None:
        self._dead.append(self._number)


def limit_of(setting: str, total: int) -> int:
    """The bytes one process may take of a device of `total` bytes.

    `setting` is a number of bytes ("8000000000"), a share of the device up to 1 ("0.5"), or empty for SHARE. Raises
    ValueError for anything else.
    """
    try:
        value = float(setting or SHARE)
    except ValueError:
        value = 0.0
    if not 0 < value <= total:
        raise ValueError(
            f"a limit of device memory is a number of bytes up to {total}, or a share above 0 and up to 1; "
            f"got {setting!r}"
        )
    return int(value * total) if value <= 1 else int(value)


def let_go(error: BaseException | None) -> None:
    """Drop what the frames of an error's traceback hold, and of what caused it.

    A bug's lines stay for the log. Those of a device's fault, which its words tell, go as well: the frame of a nested
    function holds what that sees of the function around it, and clearing does not drop that.
    """
    is_fault = isinstance(error, DeviceFault)
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        if is_fault:
            error.__traceback__ = None
        error = error.__cause__ or error.__context__
