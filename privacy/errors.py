"""Errors of budgets and rounds that a caller can act on: each class carries the code that programs read."""

from typing import ClassVar


class Refused(ValueError):
    """A request that is refused and changes nothing. The message is the sentence for the caller.

    `pointer` is the JSON pointer to what it is about: "" is the request as a whole, None is nothing in its body.
    """

    code: ClassVar[str]
    pointer: str | None = None
