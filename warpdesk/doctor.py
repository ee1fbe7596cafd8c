"""Look at the machine as a service would: which device, which Redis, where state is kept."""

import os
import re
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path

import redis

from warpdesk import redis_server
from workers.device import probe
from workers.protocol import DeviceReport
from workers.settings import WorkerSettings


@dataclass(frozen=True)
class RedisFinding:
    healthy: bool
    source: str  # where it comes from: the variable, or the binary a service would start
    detail: str


@dataclass(frozen=True)
class Findings:
    home: Path
    device: DeviceReport
    redis: RedisFinding

    @property
    def healthy(self) -> bool:
        """A machine without a GPU is healthy: jobs run on its CPU."""
        return self.redis.healthy

    def as_json(self) -> dict[str, object]:
        device = self.device.model_dump(mode="json")
        return {"healthy": self.healthy, "home": str(self.home), "device": device, "redis": asdict(self.redis)}

    def as_text(self) -> str:
        device = f"{self.device.backend}: {self.device.name}"
        if self.device.architecture:
            device += f" ({self.device.architecture})"
        if self.device.reason:
            device += f"\n         no GPU, because {self.device.reason}"
        mark = "ok" if self.redis.healthy else "FAILED"
        return f"device   {device}\nredis    {mark}: {self.redis.source}, {self.redis.detail}\nhome     {self.home}"


def examine(home: Path) -> Findings:
    """Probe the device (a GPU is opened, once per process) and Redis; nothing is started that stays."""
    return Findings(home, probe(WorkerSettings().device).report, _redis(home))


def _redis(home: Path) -> RedisFinding:
    if configured := os.environ.get(redis_server.URL_VARIABLE):
        return _ping(configured, f"{redis_server.URL_VARIABLE}={_without_password(configured)}")
    try:
        binary = redis_server.find_binary()
        if redis_server.socket_path(home).exists():
            return _ping(redis_server.url(home), f"{binary}, started by the service of this home")
        version = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=10, check=True).stdout
    except redis_server.RedisUnavailable as error:
        return RedisFinding(False, "none", str(error))
    except (OSError, subprocess.SubprocessError) as error:
        return RedisFinding(False, str(binary), f"does not run: {error}")
    number = version.partition("v=")[2].partition(" ")[0]
    return RedisFinding(True, str(binary), f"version {number}, not running; `warpdesk serve` starts it")


def _ping(url: str, source: str) -> RedisFinding:
    try:
        with redis.Redis.from_url(url, socket_timeout=2, socket_connect_timeout=2) as connection:
            information = connection.info("server")
            policy = connection.config_get("maxmemory-policy").get("maxmemory-policy", "unknown")
    except (ValueError, TypeError):  # unreadable, or an unknown option; the message may hold a part of the password
        return RedisFinding(False, source, "not a URL such as redis://user:password@host:6379/0")
    except (redis.RedisError, OSError) as error:
        return RedisFinding(False, source, f"no answer: {error}")
    if policy != "noeviction":
        return RedisFinding(False, source, f"its maxmemory-policy is {policy}: jobs could vanish, set it to noeviction")
    return RedisFinding(True, source, f"version {information['redis_version']}, answers")


def _without_password(url: str) -> str:
    """The URL with all before an "@", and what the query calls a password, as three stars.

    By hand: a password with a "/" or "?" in it ends the host for a parser of URLs, and the rest would be shown.
    """
    hidden = re.sub(r"://.*@", "://***@", url, flags=re.DOTALL)
    return re.sub(r"([?&][^=&]*password=)[^&]*", r"\1***", hidden, flags=re.IGNORECASE)
