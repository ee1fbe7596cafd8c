"""The open connections of this process: how many one address and all together may have, and which make room."""

import logging
import resource
import time
from typing import Protocol

from warpdesk_server.app.kit.errors import Refusal
from warpdesk_server.app.kit.limits import FEWEST_CONNECTIONS, FILES_OF_OTHERS, REFUSED_CONNECTIONS, Share, Shares

log = logging.getLogger("warpdesk.api")

_MOST_FILES = 1 << 20  # some systems allow so many that a program that counts them does not end
_TOLD_EVERY = 60.0


class Connection(Protocol):
    """One that can be closed at once."""

    def evict(self) -> None: ...


class Connections:
    """Counts connections. Where all places are taken, one without a request under way is closed for a newcomer: of
    those that never had a request the oldest, else the one whose last answer is longest ago."""

    def __init__(self, each: int, whole: int) -> None:
        self._shares = Shares("Connections", each=each, whole=whole, owner="address")
        self._new: dict[Connection, None] = {}  # in the order in which they came
        self._idle: dict[Connection, None] = {}  # in the order of their last answers
        self.refused = Shares(
            "Refused connections", each=REFUSED_CONNECTIONS, whole=REFUSED_CONNECTIONS, owner="server"
        )
        self._logged_at = -_TOLD_EVERY

    def admit(self, connection: Connection, address: str) -> Share:
        """The place of a new connection. Raises a Refusal where its address, or all together, have too many."""
        try:
            share = self._shares.take(address)
        except Refusal as refusal:
            if refusal.code != "busy":
                raise
            self._tell()
            oldest = next(iter(self._new), None) or next(iter(self._idle), None)
            if oldest is None:
                raise
            oldest.evict()
            share = self._shares.take(address)
        self._new[connection] = None
        return share

    def begun(self, connection: Connection) -> None:
        """It has a request, or is closed: it makes no room any more."""
        self._new.pop(connection, None)
        self._idle.pop(connection, None)

    def answered(self, connection: Connection) -> None:
        """Its last request has an answer: it may be closed for another."""
        self._idle[connection] = None

    def _tell(self) -> None:
        now = time.monotonic()
        if now - self._logged_at >= _TOLD_EVERY:
            self._logged_at = now
            log.warning("all %d connections are taken: idle ones are closed for new ones", self._shares.whole)


def raise_file_limit() -> None:
    """Let this process, and those it starts, open as many files as it may be allowed to."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def most_connections(wanted: int) -> int:
    """How many fit below the limit of open files, where each may have a file open for its request."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return wanted
    return min(wanted, max(FEWEST_CONNECTIONS, (files - FILES_OF_OTHERS) // 2))
