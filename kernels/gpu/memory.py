"""The device memory of one process: its limit, reservations, and the account of each job's arrays.

with device.memory.job() as account:
    outcome = run(request)  # catches its exceptions: a traceback would keep the arrays of its frames alive
account.before, account.after, account.peak  # bytes in arrays
account.left  # arrays that the job made and did not free, by shape and bytes: if not empty, a leak

report = device.memory.report()
report.stuck  # if these bytes stay, the worker needs a new process
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

SHARE = 0.9  # default limit, as a share of the device: the rest is for context, modules, libraries, other processes


@dataclass(frozen=True)
class MemoryReport:
    """The state of a process's device memory for kernels, in bytes.

    `used` is in arrays. `held` is what the pool took from the driver, used or kept for reuse; it never exceeds `limit`.
    `stuck` is held and unused, but could not be released. `peak` is the most used at a time since the last job began.
    """

    used: int
    held: int
    limit: int
    stuck: int = 0
    peak: int = 0


@dataclass(frozen=True)
class Block:
    """A block of device memory for one array: its bytes, as the pool rounds them, and its purpose."""

    nbytes: int
    what: str

    def __str__(self) -> str:
        return f"{self.what} in {self.nbytes} bytes"


@dataclass
class JobMemory:
    """The account of one job's device memory: bytes in arrays before, after and at the peak, and leaked blocks.

    It is complete when the `with` of `Memory.job` has ended.
    """

    before: int
    after: int = 0
    peak: int = 0
    left: tuple[Block, ...] = ()


class Memory(Protocol):
    """The interface of device memory on a GPU: its limit, free bytes, reservations and accounts."""

    limit: int  # bytes that this process may take

    def room(self) -> int:
        """Bytes of device memory that new arrays could take now: within the limit, and free or held for reuse."""

    def unreserved(self) -> int:
        """Bytes of `room` in device memory that no thread has reserved."""

    def short(self, nbytes: int) -> bool:
        """Whether other processes, and not this one's limit, leave no room for `nbytes` of device memory."""

    def release(self) -> None:
        """Give held but unused device memory back to the driver."""

    def reserve(self, nbytes: int, patience: float = 0.0) -> AbstractContextManager[None]:
        """Reserve device memory for the arrays made in the block, so that no other thread plans with the same bytes.

        Waits up to `patience` seconds for other reservations to end, then raises OutOfMemory. If there is no other, any
        size is granted: only the allocation shows whether the device has the bytes.
        """

    def job(self) -> AbstractContextManager[JobMemory]:
        """Account for one job's arrays in device memory during the block; one job at a time."""

    def report(self) -> MemoryReport: ...


class Ledger(ABC):
    """The base of every device memory of a GPU: reservations, and the list of live blocks."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.peak = 0  # the most bytes used at a time since the last job began
        self._changed = threading.Condition()
        self._holders = 0
        self._reserved = 0
        self._used_before = 0  # bytes used when the first of the present reservations was made
        self._numbers = itertools.count()
        self._alive: dict[int, Block] = {}
        # Arrays may be freed in any thread at any moment, when no lock can be taken. Their numbers wait here.
        self._dead: deque[int] = deque()

    @abstractmethod
    def used(self) -> int:
        """Bytes of device memory in arrays."""

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
            # Arrays in a reference cycle are freed late, which is not a leak. Collecting takes 0.1 s, so not after a
            # failure, when a fallback waits: its arrays are freed with the error.
            if not failed and self._made_since(first):
                gc.collect()
            account.left = self._made_since(first)
            account.after, account.peak = self.used(), max(self.peak, account.before)
            if account.left:
                self.release()  # so that the next report shows how much of it is stuck

    def born(self, nbytes: int, what: str) -> "Life":
        """Count a new block of device memory as alive, until the returned object is freed."""
        number = next(self._numbers)
        self._bury()
        self._alive[number] = Block(nbytes, what)
        self.peak = max(self.peak, self.used())
        return Life(number, self._dead)

    def _bury(self) -> None:
        while True:
            try:
                number = self._dead.popleft()
            except IndexError:  # no check before: another lane might take the last one in between
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
    """A companion object of a live block of device memory: it is freed with the block, and notes that."""

    __slots__ = ("_dead", "_number")

    def __init__(self, number: int, dead: deque[int]) -> None:
        self._number = number
        self._dead = dead

    def __del__(self) -> None:
        self._dead.append(self._number)


def limit_of(setting: str, total: int) -> int:
    """The limit of device memory, in bytes, for one process on a device of `total` bytes.

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
    """Drop the variables, such as arrays in device memory, that an error's traceback keeps alive, also of its causes.

    The lines of a bug's traceback stay for the log. For a fault of the device the whole traceback is dropped, since its
    message says enough: clearing the frame of a nested function does not free the variables of the function around it.
    """
    is_fault = isinstance(error, DeviceFault)
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        if is_fault:
            error.__traceback__ = None
        error = error.__cause__ or error.__context__
