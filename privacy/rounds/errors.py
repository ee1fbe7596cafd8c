"""The errors of rounds: one class for each code that a program reads."""

from warpdesk_server.privacy.errors import Refused


class UnknownRound(Refused):
    code = "unknown-round"


class UnknownMember(Refused):
    """The join token belongs to no member of this round."""

    code = "unknown-member"


class NotYet(Refused):
    """It belongs to a phase that has not begun."""

    code = "not-yet"


class PhaseOver(Refused):
    """It belongs to a phase that has ended, or comes from a client that was dropped."""

    code = "phase-over"


class AlreadySent(Refused):
    code = "already-sent"


class WrongLength(Refused):
    code = "wrong-length"


class DoubleReveal(Refused):
    """A share of the one secret of a client whose other secret is being recovered."""

    code = "double-reveal"


class ForgedShare(Refused):
    """A share that is not the one its owner committed to."""

    code = "forged-share"


class NotANeighbour(Refused):
    code = "not-a-neighbour"


class MissingShare(Refused):
    code = "missing-share"


class UnusableKey(Refused):
    """A public key that cannot be used: of low order, in a second encoding, or that of another client."""

    code = "invalid-request"


class Aborted(Refused):
    code = "round-aborted"


class TooManyRounds(Refused):
    code = "too-many-rounds"


class NoRoom(Refused):
    """The live rounds of all keys hold as many bytes as they may."""

    code = "storage-full"


class NoShare(Refused):
    """The live rounds of one key hold as many bytes as they may."""

    code = "storage-quota"
