"""The limits on open HTTP connections, for one address and for all, and which one is closed to make room."""

import logging
import resource
import time
from typing import Protocol

from warpdesk_server.app.kit.errors import Refusal
from warpdesk_server.app.kit.limits import FEWEST_CONNECTIONS, FILES_OF_OTHERS, REFUSED_CONNECTIONS, Share, Shares

log = logging.getLogger("warpdesk.api")

_TOLD_EVERY = 60.0


class Connection(Protocol):
    """An HTTP connection that can be closed at once."""

    def evict(self) -> None: ...


class Connections:
    """The register of open HTTP connections, with a limit for each address and for all.

    If all places are taken, a connection without a request in progress is closed for a new one. Closed is the oldest
    one that never had a request, else the one whose last response is longest ago.
    """

    def __init__(self, each: int, whole: int) -> None:
        self._shares = Shares("Connections", each=each, whole=whole, owner="address")
        self._new: dict[Connection, None] = {}  # in the order in which they came
        self._idle: dict[Connection, None] = {}  # in the order of their last answers
        self.refused = Shares(
            "Refused connections", each=REFUSED_CONNECTIONS, whole=REFUSED_CONNECTIONS, owner="server"
        )
        self._logged_at = -_TOLD_EVERY

    def admit(self, connection: Connection, address: str) -> Share:
        """Register a new HTTP connection and return its place. Raises a Refusal if its address, or all, have too
        many."""
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
        """Note that an HTTP connection has a request, or is closed: it is no longer closed to make room."""
        self._new.pop(connection, None)
        self._idle.pop(connection, None)

    def answered(self, connection: Connection) -> None:
        """Note that an HTTP connection's last request was answered: it may be closed to make room."""
        self._idle[connection] = None

    def _tell(self) -> None:
        now = time.monotonic()
        if now - self._logged_at >= _TOLD_EVERY:
            self._logged_at = now
            log.warning("all %d connections are taken: idle ones are closed for new ones", self._shares.whole)


def most_connections(wanted: int) -> int:
    """The most connections that the HTTP server takes, up to `wanted`: each may need two of the files it may open."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return wanted
    return min(wanted, max(FEWEST_CONNECTIONS, (files - FILES_OF_OTHERS) // 2))
