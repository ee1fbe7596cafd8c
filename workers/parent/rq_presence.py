"""The worker's record in RQ, for RQ's own tools: `rq info`, `rq suspend`, and the commands that RQ sends.

The worker claims, runs and ends jobs without RQ. Here RQ's code writes RQ's keys, so that its tools still work.
"""

import logging
import os
import signal
import time
from typing import Any, Literal, Protocol

import redis
from redis.client import PubSub, PubSubWorkerThread
from rq import Queue, Worker, worker_registration
from rq.command import parse_payload
from rq.serializers import JSONSerializer
from rq.suspension import WORKERS_SUSPENDED
from rq.utils import now, utcformat

from warpdesk_server.workers.parent.redis_retry import StopRequested
from warpdesk_server.workers.queue.keys import QUEUE

log = logging.getLogger("warpdesk.worker")

_TTL = 20  # seconds; RQ takes a silent worker for dead 60 s after it

RqState = Literal["started", "busy", "idle", "suspended"]


class Commanded(Protocol):
    """The interface of the worker that RQ's commands use."""

    @property
    def stopping(self) -> bool: ...

    def end_launch(self) -> None:
        """End the worker's running launch at RQ's command (`rq.command.send_kill_horse_command`)."""

    def stop_job(self, job_id: str) -> None:
        """End one job of the worker for good at RQ's command (`rq.command.send_stop_job_command`)."""


class RqPresence:
    """RQ's record of this one worker. `keep_registered` may be called by another thread."""

    def __init__(self, name: str, connection: redis.Redis, worker: Commanded) -> None:
        queue = Queue(QUEUE, connection=connection, serializer=JSONSerializer)
        self._record = Worker([queue], name=name, connection=connection, worker_ttl=_TTL, serializer=JSONSerializer)
        self._connection = connection
        self._worker = worker
        self._commands = connection.pubsub()  # type: ignore[no-untyped-call]
        self._listener: PubSubWorkerThread
        self.state: RqState = "started"  # as Redis has it: transitions of jobs write it too

    def register(self) -> None:
        """Register the worker with RQ, and listen for RQ's commands."""
        self._record.register_birth()
        self._commands.subscribe(**{self._record.pubsub_channel_name: self._obey})
        self._listener = self._commands.run_in_thread(sleep_time=60, daemon=True, exception_handler=self._not_heard)
        self._connection.hset(self._record.key, "state", self.state)

    def unregister(self) -> None:
        self._record.register_death()
        self._listener.stop()  # before it is woken, else it listens for another minute
        self._commands.unsubscribe()
        self._listener.join(timeout=1)
        self._commands.close()

    def set_state(self, state: RqState) -> None:
        if state != self.state:
            self.state = state
            self._connection.hset(self._record.key, "state", state)

    def suspended(self) -> bool:
        """Whether `rq suspend` keeps the worker from taking jobs; renews RQ's record of the worker too."""
        with self._connection.pipeline() as pipe:
            self._renew(pipe)
            pipe.exists(WORKERS_SUSPENDED)
            return bool(pipe.execute()[-1])

    def keep_registered(self, connection: redis.Redis) -> None:
        """Renew RQ's record of the worker, and write it again if Redis lost it or it expired."""
        with connection.pipeline() as pipe:
            if not connection.exists(self._record.key):
                pipe.hset(self._record.key, mapping={**self._record.serialize(), "state": self.state})
                worker_registration.register(self._record, pipe)
            self._renew(pipe)
            pipe.execute()

    def _renew(self, pipe: "redis.client.Pipeline") -> None:
        # In whole seconds: the heartbeat that calls it is woken as a private job ends.
        self._record.last_heartbeat = now().replace(microsecond=0)
        pipe.hset(self._record.key, "last_heartbeat", utcformat(self._record.last_heartbeat))
        pipe.expire(self._record.key, _TTL + 60)

    def _obey(self, message: dict[str, Any]) -> None:
        command = parse_payload(message)
        match command.get("command"):
            case "stop-job":
                self._worker.stop_job(command.get("job_id", ""))
            case "kill-horse":
                self._worker.end_launch()
            case "shutdown":
                os.kill(os.getpid(), signal.SIGINT)

    def _not_heard(self, error: BaseException, _commands: PubSub, listener: PubSubWorkerThread) -> None:
        if self._worker.stopping or isinstance(error, StopRequested):
            listener.stop()
            return
        log.warning("commands are not heard: %s", type(error).__name__)
        time.sleep(1.0)
