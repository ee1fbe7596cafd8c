"""The errors of secure-aggregation rounds: one class for each code that a program reads."""

from warpdesk_server.privacy.errors import Refused


class UnknownRound(Refused):
    """Raised if the database has no round of secure aggregation with this id."""

    code = "unknown-round"


class UnknownMember(Refused):
    """Raised if a join token belongs to no member of this round in the database."""

    code = "unknown-member"


class NotYet(Refused):
    """Raised for a message to a round of secure aggregation, or a question, whose phase has not begun."""

    code = "not-yet"


class PhaseOver(Refused):
    """Raised for a message to a round of secure aggregation whose phase has ended, or whose sender was dropped."""

    code = "phase-over"


class AlreadySent(Refused):
    """Raised if the database has this message from a client of a round already."""

    code = "already-sent"


class WrongLength(Refused):
    """Raised if a part of a message to a round of secure aggregation has the wrong number of bytes."""

    code = "wrong-length"


class DoubleReveal(Refused):
    """Raised for a share, revealed to a round, of one secret of a client whose other secret is being recovered."""

    code = "double-reveal"


class ForgedShare(Refused):
    """Raised for a share, revealed to a round, that does not match its owner's commitment."""

    code = "forged-share"


class NotANeighbour(Refused):
    """Raised if a message to a round of secure aggregation names a client that is not one of those expected."""

    code = "not-a-neighbour"


class MissingShare(Refused):
    """Raised if a message to a round of secure aggregation lacks an entry for one of the clients expected."""

    code = "missing-share"


class UnusableKey(Refused):
    """Raised for a public key, sent to a round, of low order, in a second encoding, or equal to another client's."""

    code = "invalid-request"


class Aborted(Refused):
    """Raised if a round of secure aggregation was aborted, or must be aborted now; the message says why."""

    code = "round-aborted"


class TooManyRounds(Refused):
    """Raised if an owner has as many live rounds of secure aggregation as allowed."""

    code = "too-many-rounds"


class NoRoom(Refused):
    """Raised if a new round's masked vectors would exceed the bytes that live rounds of all owners may hold."""

    code = "storage-full"


class NoShare(Refused):
    """Raised if a new round's masked vectors would exceed the bytes that live rounds of one owner may hold."""

    code = "storage-quota"
