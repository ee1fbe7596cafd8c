"""The service's supervisor: runs and restarts Redis if none is configured, the API, and workers."""

import http.client
import importlib.util
import json
import logging
import os
import shlex
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from warpdesk_server.app.access.keys import UnusableKeys, read_keys, require_key_file
from warpdesk_server.app.access.loopback import is_loopback
from warpdesk_server.app.settings import Settings
from warpdesk_server.kernels.catalogue import OPERATIONS
from warpdesk_server.privacy.opening import LEDGER_ERRORS, examine
from warpdesk_server.service.home import UnusableHome, command, make_private
from warpdesk_server.service.processes import module, raise_file_limit, spawn, stop
from warpdesk_server.service.redis_server import URL_VARIABLE, RedisServer, RedisUnavailable
from warpdesk_server.workers.gpu.nvml import gpus, library, visible
from warpdesk_server.workers.queue.replication import Unreplicable, require_replicable
from warpdesk_server.workers.settings import WorkerSettings
from warpdesk_server.workers.store.secret import UnusableStore, known_secret

log = logging.getLogger("warpdesk.serve")

TICK = 0.1  # seconds between two looks at the children
FIRST_DELAY, LONGEST_DELAY = 0.1, 10.0  # seconds before a child that died is started again; doubles each time
_LOOK = 0.3  # seconds between two looks at how far a service is that answers
_QUIET, _PROGRESS = 6.0, 10.0  # seconds until the first line about a first start's compilation, and between two
CALM = 30.0  # a child that lived this long is forgiven its earlier deaths
GRACE = 5.0  # seconds a worker has beyond its own drain time, in which a running job may end; others run again
_SILENT = 2.0  # seconds of stopping, after which it is said what is waited for
_TOGETHER = 1.0  # signals to stop that come within so many seconds are one: a group's often comes twice


class CannotServe(Exception):
    """The service cannot start; the message says why and what to do."""


@dataclass(frozen=True)
class Options:
    host: str = "127.0.0.1"
    port: int = 8000  # 0 takes a free one
    worker: bool = True
    workers: int | None = None  # None: one per GPU, and one on the CPU


def serve(options: Options, settings: Settings, say: Callable[[str], None]) -> None:
    """Run the service until SIGINT, SIGTERM or SIGHUP. Call it from the main thread; `say` prints to the user.

    Raises CannotServe when the port is taken, when the address can be reached from elsewhere but there are no API keys,
    when no Redis can be started, or when the API does not come up.
    """
    raise_file_limit()
    settings = settings.model_copy(update={"home": settings.home.resolve()})
    listening = _bind(options)
    with listening:
        fd = listening.fileno()
        host, port = listening.getsockname()[:2]
        _check_state(options.host, settings)
        try:
            make_private(settings.home)
        except UnusableHome as error:
            raise CannotServe(str(error)) from None
        stop_signals = _StopSignals()
        for wish in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(wish, stop_signals.on_signal)
        given = "redis_url" in settings.model_fields_set and settings.redis_url
        if settings.durability == "replicated":
            _check_replicable(settings if given else None)
        redis = None if given else RedisServer(settings.home, settings.durability, settings.redis_server)
        environment = _environment(settings, host=options.host, redis_url=redis.url if redis else None)
        api = _Child(
            "API", partial(_launch, environment, ("warpdesk_server.service.api", "--fd", str(fd)), pass_fds=(fd,))
        )
        workers = _workers(options, environment)
        children = [*([_Child("Redis", redis.start)] if redis is not None else []), api, *workers]
        try:
            for child in children:
                child.start()
            shown = f"[{host}]" if ":" in host else host
            url = f"http://{shown}:{port}"
            say(f"Warpdesk is starting at {url}, its state is in {settings.home}")
            _watch(stop_signals.stopping, children, api, _Announcement(host, port, url, bool(workers), settings, say))
        except RedisUnavailable as error:
            raise CannotServe(str(error)) from None
        finally:
            # The API and the workers stop at the same time; both need Redis until then.
            _end((api, *workers), WorkerSettings().drain_seconds + GRACE, stop_signals)
            if redis is not None:
                redis.stop()
        say("Stopped.")


class _StopSignals:
    """The signals that stop the service: the first one asks its processes to end, a later one ends their patience."""

    def __init__(self) -> None:
        self.stopping = threading.Event()
        self.at_once = False
        self._first_at = 0.0  # time.monotonic()

    def on_signal(self, *_: object) -> None:
        now = time.monotonic()
        if not self.stopping.is_set():
            self._first_at = now
            self.stopping.set()
        elif now > self._first_at + _TOGETHER:
            self.at_once = True


def _end(children: Sequence["_Child"], patience: float, stop_signals: _StopSignals) -> None:
    """Have the service's processes end within so many seconds, or soon if another signal comes; kill what is left."""
    for child in children:
        child.terminate()
    began = time.monotonic()
    until, silent, hurried = began + patience, True, False
    while (left := [child for child in children if child.runs]) and (now := time.monotonic()) < until:
        if stop_signals.at_once and not hurried:
            hurried, until = True, min(until, now + GRACE)
            for child in left:  # the second signal to a worker has it give its job back
                child.terminate()
        elif silent and now - began >= _SILENT:
            silent = False
            log.warning(
                "Stopping: waiting for the %s, for at most %.0f s, so that what runs may end. A second signal ends it "
                "at once, and unfinished jobs go back to the queue",
                " and the ".join(child.name for child in left),
                until - now,
            )
        time.sleep(TICK)
    for child in children:
        child.stop(0.0)


def _bind(options: Options) -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(options.host, options.port, type=socket.SOCK_STREAM)[0]
        both = options.host == "::" and socket.has_dualstack_ipv6()  # as other servers take it: IPv4 too
        return socket.create_server(address[:2], family=family, backlog=2048, dualstack_ipv6=both)
    except socket.gaierror as error:
        raise CannotServe(f"the host {options.host!r} has no address: {error.strerror}") from None
    except OSError as error:
        hint = "; another program listens there: choose another --port" if error.errno == 98 else ""
        raise CannotServe(f"cannot listen on {options.host} port {options.port}: {error.strerror}{hint}") from None


def _check_state(host: str, settings: Settings) -> None:
    """Raise CannotServe if the service's keys, array store or ledger are unusable, or if a public host has no API
    keys."""
    try:
        require_key_file(settings.keys_path, settings.home)
        keys = read_keys(settings.keys_path)
        known_secret(settings.store_directory)
        if (ledger := examine(settings.ledger_place)) is not None:
            ledger.dispose()
    except (UnusableKeys, UnusableStore, *LEDGER_ERRORS) as error:
        raise CannotServe(str(error)) from None
    if not keys and not is_loopback(host):
        raise CannotServe(
            f"{host} can be reached from other machines and there are no API keys in {settings.keys_path}: "
            f"create one with `{command(settings.home, 'keys create NAME')}`, or listen on 127.0.0.1"
        )


def _check_replicable(settings: Settings | None) -> None:
    """Check that the Redis of the settings can confirm writes, if it answers. None: it is the service's own."""
    if settings is None:
        raise CannotServe(
            "WARPDESK_DURABILITY is replicated, and the service's own Redis has no replica: set "
            f"{URL_VARIABLE} to one that has, or WARPDESK_DURABILITY to always"
        )
    try:
        require_replicable(settings.redis_url)
    except Unreplicable as error:
        raise CannotServe(str(error)) from None


def _environment(settings: Settings, *, host: str, redis_url: str | None) -> dict[str, str]:
    """The environment of the service's API and workers: where state and compiled code are kept, so a restart is
    quick."""
    environment = {**os.environ, **WorkerSettings(home=settings.home).cache_environment()}
    environment["WARPDESK_HOME"] = str(settings.home)
    environment["WARPDESK_HOST"] = host
    if redis_url is not None:
        environment[URL_VARIABLE] = redis_url
    return environment


def _workers(options: Options, environment: Mapping[str, str]) -> list["_Child"]:
    """The service's worker processes: one per GPU, which gets its UUID, and one on the CPU for quick jobs that end
    sooner there. If no GPU is known, one worker that looks for itself."""
    if not options.worker:
        return []
    devices = _devices(environment)
    if devices and options.workers is None and _may_spill(environment):
        devices.append("cpu")
    count = options.workers if options.workers is not None else max(1, len(devices))
    children = []
    for index in range(count):
        own = dict(environment)
        for limit in ("WARPDESK_IDLE_EXIT_SECONDS", "WARPDESK_MAX_SECONDS"):  # here it would only be started again
            own.pop(limit, None)
        if count > 1:  # each computes on the CPU too, and they share it
            own.setdefault("NUMBA_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // count)))
        if devices:
            own["WARPDESK_DEVICE"] = devices[index % len(devices)]
            if own["WARPDESK_DEVICE"] == "cpu":
                own["WARPDESK_TAKES"] = "quick"
        name = "worker" if count == 1 else f"worker {index + 1}"
        children.append(_Child(name, partial(_launch, own, ("warpdesk_server.workers.parent.main",))))
    return children


def _may_spill(environment: Mapping[str, str]) -> bool:
    """Whether quick jobs may go from the service's GPUs to the CPU (decision 14)."""
    return environment.get("WARPDESK_AUTO") != "gpu" and environment.get("WARPDESK_TAKES") != "long"


def _launch(
    environment: Mapping[str, str], what: tuple[str, ...], pass_fds: tuple[int, ...] = ()
) -> "subprocess.Popen[bytes]":
    command, needed = module(*what)
    return spawn(command, env={**environment, **needed}, pass_fds=pass_fds)


def _devices(environment: Mapping[str, str]) -> list[str]:
    """The GPUs for which the service starts a worker each, as values of WARPDESK_DEVICE. Asks the driver, never
    CUDA."""
    if "WARPDESK_DEVICE" in environment or importlib.util.find_spec("cupy") is None:
        return []
    try:
        found = gpus(library())
    except TimeoutError as error:
        log.warning("%s; one worker looks for a GPU by itself", error)
        return []
    return visible(found, environment.get("CUDA_VISIBLE_DEVICES"))


class _Child:
    """A child process that the service supervises. It is restarted whenever it ends, after a delay that doubles each
    time."""

    def __init__(self, name: str, launch: Callable[[], "subprocess.Popen[bytes]"]) -> None:
        self.name = name
        self._launch = launch
        self._process: subprocess.Popen[bytes] | None = None
        self._started = 0.0
        self._deaths = 0
        self._due: float | None = None

    def start(self) -> None:
        self._process = self._launch()
        self._started = time.monotonic()

    def look(self) -> None:
        """Notice the end of the service's child process, and restart it when its delay is over."""
        now = time.monotonic()
        if self._due is None:
            if self.ended:
                self._deaths = 1 if now - self._started > CALM else self._deaths + 1
                self.stop()  # whatever it left in its process group
                self._wait(now, self.ending)
        elif now >= self._due:
            self._due = None
            try:
                self.start()
            except (RedisUnavailable, OSError) as error:  # a full disk, or no process to be had: later, perhaps
                self._deaths += 1
                self._wait(now, str(error))

    def _wait(self, now: float, reason: str) -> None:
        delay = min(FIRST_DELAY * 2 ** (self._deaths - 1), LONGEST_DELAY)
        log.warning("the %s ended (%s); it starts again in %.1f s", self.name, reason, delay)
        self._due = now + delay

    @property
    def ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    @property
    def runs(self) -> bool:
        return self._process is not None and not self.ended

    @property
    def ending(self) -> str:
        code = self._process.returncode if self._process is not None else 0
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    def terminate(self) -> None:
        if self._process is not None and self.runs:
            self._process.terminate()

    def stop(self, patience: float = GRACE) -> None:
        if self._process is not None:
            stop(self._process, patience)


class _Announcement:
    """The service's start message: polls the service until it is ready, then prints its address once."""

    def __init__(
        self, host: str, port: int, url: str, workers: bool, settings: Settings, say: Callable[[str], None]
    ) -> None:
        self.host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 (compared, not bound)
        self.port = port
        self.url = url
        self.path = "/readyz" if workers else "/livez"  # without a worker of its own it is ready when others are
        self.keyed = bool(read_keys(settings.keys_path))
        self.home = settings.home
        self.say = say
        self.made = False
        self.answered = False
        self.look_at = 0.0
        self.progress_at = time.monotonic() + _QUIET  # when it is told next how far the compiler is

    def look(self) -> None:
        if self.made or time.monotonic() < self.look_at:
            return
        try:
            status, health = self._get(self.path)
        except (OSError, http.client.HTTPException):
            return
        self.answered = True
        self.look_at = time.monotonic() + _LOOK
        if status == 503 and time.monotonic() >= self.progress_at and (warm_up := json.loads(health).get("warm_up")):
            self.progress_at = time.monotonic() + _PROGRESS
            self.say(f"compiling {warm_up['done']} of {warm_up['of']}, about a minute; what is compiled runs already")
        if status == 200:
            self.made = True
            self.say(f"Ready. Documentation to click through: {self.url}/docs\nTry:\n  {self._curl()}")
            own, look = (command(self.home, what) for what in ("keys create NAME", "doctor"))
            if not self.keyed:
                self.say(
                    "There are no API keys: every process of this user on this machine is admin. Create a key before a "
                    "proxy or a tunnel leads here."
                )
            for reason in json.loads(health)["reasons"]:
                self.say(f"Not everything works: {reason}")
            with suppress(OSError, http.client.HTTPException):
                status, found = self._get("/gpu-health")
                if status == 200:  # else it takes a key
                    self.say(_devices_of(json.loads(found)))
            self.say(f"API keys of this service:\n  {own}\nDevice and Redis of this machine:\n  {look}")

    def _get(self, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=2)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def _curl(self) -> str:
        parts = ["curl", "-s", f"{self.url}/v1/jobs", "-H", "Content-Type: application/json", "-H", "Prefer: wait=10"]
        line = shlex.join(parts)
        if self.keyed:
            line += ' -H "Authorization: Bearer $WARPDESK_API_KEY"'
        shown = OPERATIONS.get("rsi") or next(iter(OPERATIONS.values()))
        example, names = asdict(shown.example), {each.name: each.shown for each in shown.inputs}
        example["inputs"] = {names[name]: given for name, given in example["inputs"].items()}
        body = {"operation": shown.name, **example}
        return f"{line} -d {shlex.quote(json.dumps(body))}"


def _devices_of(health: Mapping[str, Any]) -> str:
    """The start message's text of the devices that compute jobs, and why, from the body of `/gpu-health`."""
    names = [device["name"] for device in health["devices"] if device["state"] != "absent"]
    return f"Device: {', '.join(names) or 'the CPU'}" + "".join(f"; {reason}" for reason in health["reasons"])


def _watch(stopping: threading.Event, children: list[_Child], api: _Child, announcement: _Announcement) -> None:
    while not stopping.wait(TICK):
        if not announcement.answered and api.ended:
            raise CannotServe(f"the API ended at start ({api.ending}); the lines above say why")
        for child in children:
            child.look()
        announcement.look()
