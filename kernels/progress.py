"""Progress of a job: code that computes reports a fraction, and a listener of the thread that runs the job gets it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass
class _Stage:
    """A part of a job, `first` to `end` of it, both as fractions."""

    tell: Callable[[float], None]
    first: float = 0.0
    end: float = 1.0


# A new thread begins without one: threads that help with a job report nothing, and `tell` is called in one thread.
_stage: ContextVar[_Stage | None] = ContextVar("stage", default=None)


@contextmanager
def telling(tell: Callable[[float], None] | None) -> Iterator[None]:
    """Within it `tell` is called with the fraction of the job that is done, never less than before; None: no listener.

    It is called often, in this thread, and should return at once.
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
    """Within it reports count for one part of the job, or of the stage around it: from one fraction to another."""
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
    """Whether this thread's job has a listener."""
    return _stage.get() is not None


def report(done: float) -> None:
    """Report that this fraction of the stage is done. Costs a tenth of a microsecond without a listener."""
    if (now := _stage.get()) is not None:
        now.tell(now.first + done * (now.end - now.first))
