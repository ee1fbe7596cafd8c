"""Error base classes of the privacy ledger and of rounds. Each class carries the code that programs read."""

from typing import ClassVar


class Refused(ValueError):
    """Base class of refused ledger and round requests, which change nothing. The message is the sentence for the
    caller.

    `pointer` is the JSON pointer to the refused part: "" is the request as a whole, None is nothing in its body.
    """

    code: ClassVar[str]
    pointer: str | None = None


class NoRelease(ValueError):
    """Base class of the ledger's errors of a charge on which nothing may be released. `code` is that of the job's
    failure."""

    code: ClassVar[str]


class Tampered(NoRelease):
    """Raised if a row of the ledger was changed without the ledger's key."""

    code = "charge-changed"
