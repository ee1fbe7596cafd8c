"""The doctor's checks of the job queue's Redis: the one of WARPDESK_REDIS_URL, or the one a service would start."""

import re
import subprocess

import redis

from warpdesk_server.app.settings import Settings
from warpdesk_server.doctor.check import Check
from warpdesk_server.kernels import install
from warpdesk_server.service import redis_server
from warpdesk_server.workers.queue.sentinel import primary_url

NEWER = "apt-get install redis-server (7 or later) or valkey-server, and start the service again: it reads the old file"


def broker(settings: Settings) -> Check:
    home = settings.home
    if "redis_url" in settings.model_fields_set and (configured := settings.redis_url):
        return _ping(configured, f"{redis_server.URL_VARIABLE}={_without_password(configured)}")
    try:
        binary = redis_server.find_binary(settings.redis_server)
        if redis_server.socket_path(home).exists():
            return _ping(redis_server.url(home), f"{binary}, started by the service of this home")
        version = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=10, check=True).stdout
    except redis_server.RedisUnavailable as error:
        return _failed(str(error), f"apt-get install redis-server, or {install.warpdesk('embedded')}")
    except (OSError, subprocess.SubprocessError) as error:
        return _failed(f"{binary} does not run: {error}", "apt-get install --reinstall redis-server")
    number = version.partition("v=")[2].partition(" ")[0]
    return _aged(f"{binary}, version {number}, not running; `warpdesk serve` starts it", number)


def _ping(url: str, source: str) -> Check:
    try:
        with redis.Redis.from_url(primary_url(url), socket_timeout=2, socket_connect_timeout=2) as connection:
            information = connection.info("server")
            policy = _policy(connection)
    except (ValueError, TypeError):  # unreadable, or an unknown option; the message may hold a part of the password
        return _failed(
            f"{source}, not a URL such as redis://user:password@host:6379/0", f"set {redis_server.URL_VARIABLE}"
        )
    except redis.AuthenticationError as error:
        return _failed(f"{source}, does not let us in: {error}", "correct the user or the password in the URL")
    except (redis.RedisError, OSError) as error:
        if "certificate" in str(error).lower():
            return _failed(
                f"{source}, the certificates do not fit: {error}",
                "name the authority that signed the server's certificate by ?ssl_ca_certs=/path/ca.crt, and where the "
                "server wants one of ours, &ssl_certfile=/path/own.crt&ssl_keyfile=/path/own.key",
            )
        return _failed(f"{source}, no answer: {error}", f"start it, or correct or unset {redis_server.URL_VARIABLE}")
    if policy != "noeviction":
        return _failed(
            f"{source}, its maxmemory-policy is {policy}: jobs could vanish, set it to noeviction",
            "redis-cli CONFIG SET maxmemory-policy noeviction, and the same in its redis.conf",
        )
    version = str(information["redis_version"])
    return _aged(f"{source}, version {version}, answers", version)


def _aged(found: str, version: str) -> Check:
    """The doctor's check of a Redis server that works, with a warning if its version gets no more fixes."""
    if not outdated(version):
        return Check("redis", "ok", found)
    return Check("redis", "warning", f"{found}; Redis before 7 gets no security fixes any more", NEWER)


def outdated(version: str) -> bool:
    major = version.partition(".")[0]
    return major.isdecimal() and (int(major),) < redis_server.FIXED_SINCE


def _policy(connection: redis.Redis) -> str:
    try:
        return connection.config_get("maxmemory-policy").get("maxmemory-policy") or "unknown"
    except redis.exceptions.NoPermissionError:  # a worker's user may not ask: it is the API's to know
        return "noeviction"


def _failed(found: str, remedy: str) -> Check:
    return Check("redis", "failed", found, remedy)


def _without_password(url: str) -> str:
    """A Redis URL for the doctor's findings, with three stars for everything before an "@" and for a password in the
    query.

    No URL parser is used: a "/" or "?" in a password would end the host for it, and the rest would be shown.
    """
    hidden = re.sub(r"://.*@", "://***@", url, flags=re.DOTALL)
    return re.sub(r"([?&][^=&]*password=)[^&]*", r"\1***", hidden, flags=re.IGNORECASE)
