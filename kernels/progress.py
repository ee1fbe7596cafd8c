"""The progress of a job: kernels report a fraction, and the listener of the job's thread receives it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass
class _Stage:
    """A part of the progress that a job's kernels report, from the fraction `first` to `end`."""

    tell: Callable[[float], None]
    first: float = 0.0
    end: float = 1.0


# A new thread begins without a listener: threads that help with a job report nothing, so `tell` runs in one thread.
_stage: ContextVar[_Stage | None] = ContextVar("stage", default=None)


@contextmanager
def telling(tell: Callable[[float], None] | None) -> Iterator[None]:
    """Call `tell` with the progress that kernels report in the block: the fraction done, never less than before.

    `tell` is called often, in this thread, and should return at once. None: no listener.
    """
    latest = 0.0

    def hear(done: float) -> None:
        nonlocal latest
        if tell is not None and latest < done <= 1.0:
            latest = done
            tell(done)

    token = _stage.set(None if tell is None else _Stage(hear))
    try:
        yield
    finally:
        _stage.reset(token)


@contextmanager
def stage(first: float, end: float) -> Iterator[None]:
    """Scale kernels' progress in the block to a part of the job, or of the stage around it: between two fractions."""
    whole = _stage.get()
    if whole is None:
        yield
        return
    length = whole.end - whole.first
    token = _stage.set(_Stage(whole.tell, whole.first + first * length, whole.first + end * length))
    try:
        yield
    finally:
        _stage.reset(token)


def has_listener() -> bool:
    """Whether the job of this thread has a listener for its kernels' progress."""
    return _stage.get() is not None


def report(done: float) -> None:
    """Report a kernel's progress: the fraction of this stage that is done. Without a listener it takes 0.1 us."""
    if (now := _stage.get()) is not None:
        now.tell(now.first + done * (now.end - now.first))
