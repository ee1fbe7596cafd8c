"""A Redis behind Sentinels: the form of its URL, and connections that find the present primary.

    redis+sentinel://user:password@sentinel-a:26379,sentinel-b:26379,sentinel-c:26379/primary-name/0

`rediss+sentinel` speaks TLS, to the servers and to the Sentinels. User, password and options are those of a Redis URL
and are for the servers; `sentinel_username` and `sentinel_password` are options for the Sentinels.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from redis import Redis
from redis.backoff import NoBackoff
from redis.connection import SSLConnection, parse_url
from redis.exceptions import ConnectionError as Disconnected
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry
from redis.sentinel import (
    MasterNotFoundError,
    Sentinel,
    SentinelConnectionPool,
    SentinelManagedConnection,
    SentinelManagedSSLConnection,
)

PORT = 26379
_SECONDS = 0.5  # for one Sentinel's answer: the others are asked after it
_SCHEMES = {"redis+sentinel": "redis", "rediss+sentinel": "rediss"}
_OWN = ("sentinel_username", "sentinel_password")


@dataclass(frozen=True)
class Named:
    """What a Redis URL with Sentinels names."""

    sentinels: tuple[tuple[str, int], ...]
    primary: str  # its name in the Sentinels
    before: str  # of a server's URL: what stands before its host, and what stands behind its port
    behind: str
    options: Mapping[str, Any]  # of connections to the Sentinels

    def url(self, host: str, port: int) -> str:
        """The URL of one server."""
        shown = f"[{host}]" if ":" in host else host
        return f"{self.before}{shown}:{port}{self.behind}"


def named(url: str) -> Named | None:
    """What a Redis URL with Sentinels names; None for the URL of one server. Raises ValueError for a malformed one."""
    parts = urlsplit(url)
    scheme = _SCHEMES.get(parts.scheme)
    if scheme is None:
        return None
    user, at, hosts = parts.netloc.rpartition("@")
    primary, _, database = parts.path.strip("/").partition("/")
    each = [urlsplit(f"//{host}") for host in hosts.split(",")]
    if not primary or not all(host.hostname for host in each):
        raise ValueError("a URL with Sentinels is redis+sentinel://host:26379,host:26379/name-of-the-primary/0")
    query = parse_qsl(parts.query, keep_blank_values=True)
    before = f"{scheme}://{user}{at}"
    behind = f"/{int(database or 0)}?" + urlencode([option for option in query if option[0] not in _OWN])
    given = parse_url(f"{before}host{behind}")  # type: ignore[no-untyped-call]
    options = {name: value for name, value in given.items() if name.startswith("ssl_")}
    options |= {name.removeprefix("sentinel_"): value for name, value in query if name in _OWN}
    options["ssl"] = scheme == "rediss"
    sentinels = tuple((str(host.hostname), host.port or PORT) for host in each)
    return Named(sentinels, primary, before, behind, options)


def primary_url(url: str) -> str:
    """The URL of the server that a Redis URL means now: the primary that its Sentinels name, or the URL itself."""
    found = named(url)
    return url if found is None else found.url(*_Sentinels(found).discover_master(found.primary))


def client(found: Named, **options: Any) -> Redis:
    """A client of the present primary: each new connection asks the Sentinels where that is."""
    given = parse_url(found.url("host", PORT))  # type: ignore[no-untyped-call]
    secured = given.pop("connection_class", None) is SSLConnection
    del given["host"], given["port"]
    kind = _SecuredConnection if secured else _Connection
    pool = SentinelConnectionPool(found.primary, _Sentinels(found), connection_class=kind, **given, **options)  # type: ignore[no-untyped-call]
    return Redis.from_pool(pool)


class _Sentinels(Sentinel):
    """The Sentinels of a primary. The answer of the latest failover counts, among those of a majority of them.

    redis-py takes the first answer. While a network is split that may be one from the side of the old primary.
    """

    def __init__(self, found: Named) -> None:
        options = {
            "socket_timeout": _SECONDS,
            "socket_connect_timeout": _SECONDS,
            "retry": Retry(NoBackoff(), 0),
            **found.options,
        }
        super().__init__(found.sentinels, sentinel_kwargs=options)  # type: ignore[no-untyped-call]

    def discover_master(self, service_name: str) -> tuple[str, int]:
        sentinels, answers, silent = list(self.sentinels), list[dict[str, Any]](), list[Redis]()
        for sentinel in sentinels:
            try:
                states: dict[str, Any] = sentinel.sentinel_masters()  # type: ignore[assignment]
            except (RedisError, OSError):
                silent.append(sentinel)
                continue
            finally:
                with suppress(RedisError, OSError):
                    # They are asked seldom. Another thread may be asking now, on a connection of its own.
                    sentinel.connection_pool.disconnect(inuse_connections=False)
            if service_name in states:
                answers.append(states[service_name])
            if len(answers) > len(sentinels) // 2:
                break
        # The next time those that did not answer are asked last: each may take half a second.
        self.sentinels = [each for each in sentinels if each not in silent] + silent
        if not answers:
            raise MasterNotFoundError(f"none of {len(sentinels)} Sentinels names a primary {service_name!r}")
        latest = max(answers, key=lambda state: int(state["config-epoch"]))
        if not self.check_master_state(latest, service_name):  # type: ignore[no-untyped-call]
            raise MasterNotFoundError(f"the Sentinels take {service_name!r} for down, and have no other primary yet")
        return str(latest["ip"]), int(latest["port"])


class _Primary:
    """A connection to the primary: where it has to connect again, the Sentinels are asked again.

    redis-py (8.1) does so for a connection that is new or comes from the pool. A command that is tried again would go
    to the same server, although that has become a replica. A primary that has lost its replicas and takes no write is
    left as well.
    """

    def send_packed_command(self, *arguments: Any, **options: Any) -> None:
        if not self._sock:  # type: ignore[attr-defined]
            self.connect()  # type: ignore[attr-defined]
        super().send_packed_command(*arguments, **options)  # type: ignore[misc]

    def read_response(self, *arguments: Any, **options: Any) -> Any:
        try:
            return super().read_response(*arguments, **options)  # type: ignore[misc]
        except ResponseError as error:
            if not str(error).startswith("NOREPLICAS"):
                raise
            self.disconnect()  # type: ignore[attr-defined]
            raise Disconnected("the primary has no replica and takes no write") from error


class _Connection(_Primary, SentinelManagedConnection):
    pass


class _SecuredConnection(_Primary, SentinelManagedSSLConnection):
    pass
