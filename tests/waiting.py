"""The waiter of all tests: a condition is looked at again and again, until it is true or time is up."""

import time
from collections.abc import Callable
from typing import TypeVar

_Value = TypeVar("_Value")


def wait_until(
    found: Callable[[], _Value],
    otherwise: str | Callable[[], str] = "it is not true",
    patience: float = 60.0,
    *,
    unknown: tuple[type[Exception], ...] = (KeyError, ConnectionError),
    pause: Callable[[float], object] = time.sleep,
) -> _Value:
    """The first true value of `found`. An exception of `unknown` counts as false.

    After `patience` seconds it fails with `otherwise`: a sentence, or a function that makes one.
    `pause` is what happens between two looks.
    """
    deadline = time.monotonic() + patience
    while True:
        last: Exception | None = None
        try:
            if value := found():
                return value
        except unknown as error:
            last = error
        if time.monotonic() >= deadline:
            sentence = otherwise if isinstance(otherwise, str) else otherwise()
            raise AssertionError(f"after {patience:g} s: {sentence}") from last
        pause(0.02)
