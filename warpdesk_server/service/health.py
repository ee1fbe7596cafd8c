"""Ask once whether a service answers, or whether a worker of this host is alive: the health check of a container."""

import http.client
import json
import socket
from dataclasses import dataclass
from urllib.parse import urlsplit

PATIENCE = 3.0  # seconds for each step; whoever asks has a time-out of its own, and asks again


@dataclass(frozen=True)
class Health:
    healthy: bool
    sentence: str


def of_service(url: str, ready: bool) -> Health:
    """What the service at `url` says of itself: that it is alive, or with `ready` that jobs can be run.

    Raises ValueError for what is no URL of a service.
    """
    target = url.rstrip("/") + ("/readyz" if ready else "/livez")
    parts = urlsplit(target)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url!r} is not a URL such as http://127.0.0.1:8000")
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname, parts.port, timeout=PATIENCE)
    try:
        connection.request("GET", parts.path)
        answer = connection.getresponse()
        body = answer.read(65_536)
    except (OSError, http.client.HTTPException) as error:
        return Health(False, f"{target} does not answer: {error or type(error).__name__}")
    finally:
        connection.close()
    try:
        document = json.loads(body)
        status, reasons = str(document["status"]), [str(reason) for reason in document["reasons"]]
    except (ValueError, KeyError, TypeError):
        return Health(False, f"{target} answers {answer.status}, and not as Warpdesk does")
    return Health(answer.status == 200, f"{target} answers {answer.status}, {'; '.join([status, *reasons])}")


def of_workers(redis_url: str) -> Health:
    """Whether a worker of this host has reported within the time its report is kept. Raises ValueError for what is no
    URL of a Redis; its text holds no part of that, which has a password in it."""
    # Here, because whoever asks for a service does so every few seconds and waits for no library of Redis.
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    from warpdesk_server.workers.queue.jobs import JobQueue, connect

    host = socket.gethostname()
    try:
        connection = connect(redis_url, Retry(NoBackoff(), 0), PATIENCE)
    except (ValueError, TypeError):
        raise ValueError("the URL of Redis is not one such as redis://user:password@host:6379/0") from None
    try:
        with connection:
            ours = [worker for worker in JobQueue(connection).workers() if worker.host == host]
    except (redis.RedisError, OSError) as error:
        return Health(False, f"Redis does not answer: {error}")
    if not ours:
        return Health(False, f"no worker of the host {host} has reported lately")
    return Health(True, f"on the host {host}: " + ", ".join(f"{worker.name} is {worker.state}" for worker in ours))
