"""The blocking pop of Redis lists by which a worker's parent waits for jobs. It gives a socket to wait on, not a
thread.

A message that is lost with the connection delays a worker until it polls the queue itself; it never costs a job.
"""

import logging
from collections.abc import Sequence
from contextlib import suppress
from socket import socket
from typing import Any

import redis

log = logging.getLogger("warpdesk.worker")


class BlockingPop:
    """The worker's Redis connection for BLPOP alone, opened at the first `listen`."""

    def __init__(self, connection: redis.Redis, seconds: int) -> None:
        """Redis answers the worker's BLPOP after `seconds`, even if no list got an entry."""
        self._pool = connection.connection_pool
        self._seconds = seconds
        self._connection: Any = None
        self._pending: tuple[str, ...] = ()  # the lists Redis has been asked for and has not answered yet

    def listen(self, lists: Sequence[str]) -> list[socket]:
        """The socket that becomes readable when Redis answers the worker's BLPOP, since one of the lists got an entry.

        No socket while Redis is away.
        """
        try:
            if self._pending != tuple(lists):
                if self._pending:
                    self.close()
                if self._connection is None:
                    self._connection = self._pool.make_connection()
                    self._connection.connect()
                self._connection.send_command("BLPOP", *lists, self._seconds)
                self._pending = tuple(lists)
        except (redis.RedisError, OSError):
            self.close()
            return []
        return [self._connection._sock]

    def hear(self) -> tuple[str, bytes] | None:
        """Read Redis' answer to the worker's BLPOP once the socket is readable.

        It is a list's name and its first entry, or None.
        """
        self._pending, answer = (), None
        try:
            answer = self._connection.read_response()
        except (redis.RedisError, OSError):
            self.close()
        return None if answer is None else (answer[0].decode(), answer[1])

    def close(self) -> None:
        """Close the worker's connection; Redis then drops its pending BLPOP."""
        if self._connection is not None:
            with suppress(redis.RedisError, OSError):
                self._connection.disconnect()
        self._connection, self._pending = None, ()
