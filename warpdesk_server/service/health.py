"""The health check of a container: asks once whether a service answers, or whether a worker of this host is alive."""

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
    """The health check of a service: ask it at `url` whether it is alive, or with `ready` whether it can run jobs.

    Raises ValueError if `url` is not a service's URL.
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
    """The health check of a container with workers: whether one of this host has a report in Redis that has not
    expired.

    Raises ValueError for an invalid Redis URL. Its text holds no part of the URL, which has a password in it.
    """
    # Imported here: a service's health check runs every few seconds and needs no Redis library.
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
