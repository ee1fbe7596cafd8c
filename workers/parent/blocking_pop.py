"""Wait for work without holding a thread: a blocking pop on the queue's lists, whose socket can be waited for.

What is lost with its connection costs a worker the time until it looks by itself, never a job.
"""

import logging
from collections.abc import Sequence
from contextlib import suppress
from socket import socket
from typing import Any

import redis

log = logging.getLogger("warpdesk.worker")


class BlockingPop:
    """A connection of its own, made when it is first listened to."""

    def __init__(self, connection: redis.Redis, seconds: int) -> None:
        """Redis answers after so many seconds even where nothing came."""
        self._pool = connection.connection_pool
        self._seconds = seconds
        self._connection: Any = None
        self._pending: tuple[str, ...] = ()  # the lists Redis has been asked for and has not answered yet

    def listen(self, lists: Sequence[str]) -> list[socket]:
        """What becomes readable when one of the lists gets an entry; nothing while Redis is away."""
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
        """Take the answer, once there is one: a list and its first entry."""
        self._pending, answer = (), None
        try:
            answer = self._connection.read_response()
        except (redis.RedisError, OSError):
            self.close()
        return None if answer is None else (answer[0].decode(), answer[1])

    def close(self) -> None:
        """Redis forgets what it was asked with the connection."""
        if self._connection is not None:
            with suppress(redis.RedisError, OSError):
                self._connection.disconnect()
        self._connection, self._pending = None, ()
