"""Errors that a caller or an operator can act on: each class carries the code that programs read."""

from typing import ClassVar


class Refused(ValueError):
    """A request that is refused and changes nothing. The message is the sentence for the caller.

    `pointer` is the JSON pointer to what it is about: "" is the request as a whole, None is nothing in its body.
    """

    code: ClassVar[str]
    pointer: str | None = None


class NoRelease(ValueError):
    """A charge on which nothing may be released. `code` is that of the job's failure."""

    code: ClassVar[str]


class Tampered(NoRelease):
    """A row is not as the ledger wrote it."""

    code = "charge-changed"
