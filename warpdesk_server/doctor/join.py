"""The doctor's checks for a worker on another host: its connections to Redis, to the API and to the privacy ledger.

The checks use the worker's URLs and key, and change nothing. Redis reports the user's rights without running commands.
The array sent to the API belongs to an attempt that does not run, so the API reads it and refuses it.
"""

import ipaddress
import json
import re
import socket
import ssl
import statistics
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any
from urllib.parse import urlsplit

import httpx
import redis
from redis.connection import parse_url
from redis.exceptions import NoPermissionError
from redis.sentinel import MasterNotFoundError

from warpdesk_server.app.settings import Settings
from warpdesk_server.doctor.broker import outdated
from warpdesk_server.doctor.check import Check, Findings
from warpdesk_server.doctor.ledger import ledger_of_worker
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.workers.queue import keys, scripts
from warpdesk_server.workers.queue.keys import EVENTS, handed_key, job_key, owner_key, worker_key
from warpdesk_server.workers.queue.lua import ScriptsMissing, evaluate
from warpdesk_server.workers.queue.protocol import ArrayOutput, ResultDocument, SentResult, SentResults, WantedInputs
from warpdesk_server.workers.queue.sentinel import primary_url
from warpdesk_server.workers.settings import WorkerSettings
from warpdesk_server.workers.store import npy

_PATIENCE = 5.0  # seconds for each step of the way
_DAYS_LEFT = 14  # of a certificate, below which it is time to renew it
_FAR = 0.050  # seconds of a round trip beyond which batches wait longer for their claim than small jobs compute
_SKEW = 1.0  # seconds
_PINGS = 20
_SENT = 4 << 20  # bytes of the array that is sent: above what proxies allow unless they are told otherwise
_ATTEMPT = "job_doctor00.1"  # the name of an attempt that no service ever has

_ACL = "give the user the line `user worker` of deploy/redis/users.acl of this release: ACL SETUSER, or ACL LOAD"

# The Redis commands of the worker's process: these scripts, and a few commands of its own and of RQ.
_SCRIPTS = (
    scripts.CLAIM, scripts.LEAVE, scripts.RENEW, scripts.FINISH, scripts.REAP, scripts.PROGRESS, scripts.CANCEL,
    scripts.COUNT, scripts.TAKE_SLOT, scripts.LEAVE_SLOT,
)  # fmt: skip
_OWN = (
    ("ping",), ("info",), ("time",), ("multi",), ("exec",), ("client", "setname", "x"), ("evalsha", "x", "0"),
    ("blpop", handed_key("x"), "1"), ("hset", f"{keys.RQ_WORKER}x", "a", "b"), ("hgetall", f"{keys.RQ_WORKER}x"),
    ("expire", f"{keys.RQ_WORKER}x", "1"), ("sadd", keys.RQ_WORKERS, "x"), ("get", keys.RQ_SUSPENDED),
    ("mget", worker_key("x")), ("pexpire", worker_key("x"), "1"), ("zscore", keys.WORKERS, "x"),
    ("sadd", keys.RQ_WORKERS_OF_QUEUE, "x"), ("scard", f"{keys.USES}x"), ("set", f"{keys.TALLY}x", "1"),
    ("exists", f"{keys.FORBIDDEN}x"), ("subscribe", keys.RQ_COMMANDS % "x"), ("publish", EVENTS, "x"),
)  # fmt: skip
_REPLICATED = (("waitaof", "1", "1", "1"), ("set", keys.PROBE, "x"))  # with durability `replicated`
# Commands that a worker's Redis user must not have: on others' jobs, on the service, on the server.
_NOT_ITS = (
    ("lrange", owner_key("x"), "0", "1"), ("get", f"{keys.IDEMPOTENCY}x"), ("get", "another:key"),
    ("set", "another:key", "x"), ("keys", "*"), ("scan", "0"), ("flushall",), ("flushdb",), ("shutdown",), ("monitor",),
    ("config", "get", "*"), ("config", "set", "maxmemory", "0"), ("acl", "list"), ("client", "list"),
    ("script", "flush"), ("script", "load", "x"), ("eval", "x", "0"), ("fcall", "x", "0"), ("function", "load", "x"),
    ("replicaof", "no", "one"), ("publish", "another", "x"),
)  # fmt: skip
_ALL_KEYS = frozenset({"del", "exists", "mget", "unlink", "smembers"})  # whose arguments are keys, or a key alone


@dataclass(frozen=True)
class _Place:
    """The host and port of a server that the doctor connects to, without the secrets of its URL."""

    name: str  # of the check
    host: str
    port: int
    variable: str

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def join(worker: WorkerSettings, settings: Settings) -> Findings:
    """The doctor's check of each connection of a worker on another host. A failure ends the checks of its own
    connection only."""
    return Findings((*_redis(worker), *_api(worker), _ledger(worker, settings)))


# ---------------------------------------------------------------- the way to Redis


def _redis(worker: WorkerSettings) -> Iterator[Check]:
    try:
        url = primary_url(worker.redis_url)
        parts: dict[str, Any] = parse_url(url)  # type: ignore[no-untyped-call]
    except MasterNotFoundError as error:
        remedy = "let this machine reach the Sentinels of WARPDESK_REDIS_URL, and name a primary that they know"
        yield Check("redis sentinels", "failed", str(error), remedy)
        return
    except (ValueError, TypeError):  # its text may hold a password
        yield Check("redis", "failed", "WARPDESK_REDIS_URL is not a URL of a Redis",
                    "write it as rediss://worker:PASSWORD@HOST:6379/0?ssl_ca_certs=/path/ca.crt")  # fmt: skip
        return
    if "path" in parts:
        yield Check("redis", "failed", f"WARPDESK_REDIS_URL is the socket {parts['path']}: of this machine alone",
                    "set it to the Redis of the service, rediss://worker:PASSWORD@HOST:6379/0")  # fmt: skip
        return
    place = _Place("redis", parts.get("host", "localhost"), parts.get("port", 6379), "WARPDESK_REDIS_URL")
    context = _context(parts.get("ssl_ca_certs")) if url.startswith("rediss:") else None
    if not (yield from _way(place, context)):
        return
    with redis.Redis.from_url(url, socket_timeout=_PATIENCE, socket_connect_timeout=_PATIENCE) as connection:
        more = _REPLICATED if worker.durability == "replicated" else ()
        yield from _within(connection, parts.get("username", "default"), more)


def _within(connection: redis.Redis, user: str, more: Sequence[tuple[str, ...]] = ()) -> Iterator[Check]:
    """The doctor's check of Redis from the inside: login, the user's rights, the server and its response times."""
    try:
        connection.ping()
    except redis.AuthenticationError as error:
        yield Check("redis user", "failed", f"{user} is not let in: {error}",
                    "correct the user and password of WARPDESK_REDIS_URL; the user is `worker`")  # fmt: skip
        return
    except (redis.RedisError, OSError) as error:
        remedy = "if the server speaks TLS, write rediss:// and not redis://; else see what its log says"
        yield Check("redis user", "failed", f"no answer to PING: {type(error).__name__}", remedy)
        return
    yield Check("redis user", "ok", f"{user} is let in")
    try:
        if not (yield from _rights(connection, user, more)):
            return
        yield _server(connection.info())
        yield from _times(connection)
    except ScriptsMissing:
        yield Check("redis scripts", "failed", "Redis does not know the scripts of this release, so workers wait",
                    "start the API, of the same release as this machine's: it loads them")  # fmt: skip
    except NoPermissionError as error:
        yield Check("redis rights", "failed", f"{user} may not do what a worker does: {error}", _ACL)
    except (redis.RedisError, OSError) as error:
        yield Check("redis", "failed", f"it stopped answering: {type(error).__name__}", "look at the server's log")


def _rights(connection: redis.Redis, user: str, more: Sequence[tuple[str, ...]] = ()) -> Generator[Check, None, bool]:
    """The doctor's check of the Redis user's rights to each command of this release's scripts; returns whether none is
    missing."""
    needed = [*_needed(), *more]
    lines = [json.dumps(command) for command in (*needed, *_NOT_ITS)]
    answer: Any = evaluate(connection, scripts.MAY, *lines)
    if answer is None:
        yield Check("redis rights", "warning", "a Redis before 7 does not tell what a user may do",
                    "use Redis 7 or Valkey: deploy/redis is made for them")  # fmt: skip
        return True
    short = [_shown(command) for command, may in zip(needed, answer, strict=False) if may != 1]
    if short:
        shown = "; ".join(short[:5]) + (f" and {len(short) - 5} more" if len(short) > 5 else "")
        yield Check("redis rights", "failed", f"{user} may not: {shown}", _ACL, {"missing": short})
    else:
        yield Check("redis rights", "ok", f"{user} may do all {len(needed)} things that a worker does")
    beyond = [_shown(command) for command, may in zip(_NOT_ITS, answer[len(needed) :], strict=True) if may == 1]
    if beyond:
        yield Check("redis least rights", "warning", f"{user} may do what no worker needs: {'; '.join(beyond)}", _ACL,
                    {"beyond": beyond})  # fmt: skip
    else:
        yield Check("redis least rights", "ok", f"{user} may do none of {len(_NOT_ITS)} things that a worker must not")
    return not short


def _needed() -> list[tuple[str, ...]]:
    """The Redis commands and keys the doctor expects a worker to need, read from the scripts so that the list is never
    out of date."""
    text = "".join(_SCRIPTS)
    calls = re.findall(r"redis\.call\(([^,)]*)", text)
    commands = sorted({name.lower() for call in calls for name in re.findall(r"'(\w+)'", call)})
    named = sorted({key for key in re.findall(r"'((?:warpdesk|rq):[^']*)'", text) if not _is_channel(key)})
    return [
        *_OWN,
        *(
            (command, job_key("x"), *(() if command in _ALL_KEYS else ("1", "1", "1")))
            for command in commands
            if command not in ("publish", "time")
        ),
        *(("get", f"{key}x" if key.endswith((":", "-")) else key) for key in named),
    ]


def _is_channel(key: str) -> bool:
    return "%" in key or "pubsub" in key or key == EVENTS


def _shown(command: Sequence[str]) -> str:
    name = " ".join(command[:2])
    return name.upper() if command[0] in ("config", "acl", "client", "script", "function") else name


def _server(info: dict[str, Any]) -> Check:
    version, policy = info.get("redis_version", "unknown"), info.get("maxmemory_policy", "unknown")
    found = (
        f"version {version}, maxmemory-policy {policy}, append-only file {'on' if info.get('aof_enabled') else 'off'}"
    )
    if policy != "noeviction":
        remedy = "set maxmemory-policy to noeviction (Upstash: eviction off): a full Redis must refuse, not forget jobs"
        return Check("redis server", "failed", found, remedy)
    if outdated(str(version)):
        return Check("redis server", "warning", f"{found}: Redis before 7 gets no security fixes any more",
                     "run Redis 7 or later, or Valkey, there: it reads the file of the old one")  # fmt: skip
    if not info.get("aof_enabled"):
        remedy = "set appendonly yes: jobs that were acknowledged end with the server otherwise"
        return Check("redis server", "warning", found, remedy)
    return Check("redis server", "ok", found)


def _times(connection: redis.Redis) -> Iterator[Check]:
    took, offsets = [], []
    for _ in range(_PINGS):
        began, began_at = time.perf_counter(), time.time()
        seconds, micros = connection.time()
        took.append(time.perf_counter() - began)
        offsets.append(seconds + micros / 1e6 - began_at - took[-1] / 2)
    middle, worst = statistics.median(took), max(took)
    found = f"{middle * 1e3:.1f} ms, at worst {worst * 1e3:.1f} ms of {_PINGS}"
    details = {"seconds": middle, "worst_seconds": worst}
    if middle > _FAR:
        remedy = "put the worker nearer to Redis, or give its region a service of its own: deploy/redis/README.md"
        yield Check("redis round trip", "warning", f"{found}: each batch waits for two of them", remedy, details)
    else:
        yield Check("redis round trip", "ok", found, details=details)
    offset = offsets[took.index(min(took))]  # that of the quickest is known best
    found = f"this machine is {abs(offset):.3f} s {'behind' if offset > 0 else 'ahead of'} Redis"
    status = "warning" if abs(offset) > _SKEW else "ok"
    remedy = "timedatectl set-ntp true: ages of reports and expiries of results are told by both clocks"
    yield Check("clock", status, found, remedy if status == "warning" else None, {"seconds": offset})  # type: ignore[arg-type]


# ---------------------------------------------------------------- names, connections, certificates


def _context(authority: str | None) -> ssl.SSLContext | OSError:
    context = ssl.create_default_context()
    try:
        if authority is not None:
            context.load_verify_locations(authority)
    except OSError as error:
        return error
    return context


def _way(place: _Place, context: ssl.SSLContext | OSError | None) -> Generator[Check, None, bool]:
    """The doctor's check of DNS, TCP and TLS to a server, up to the first that fails; returns whether none did."""
    name = f"{place.name} name"
    try:
        found = socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        remedy = f"correct {place.variable}, or the resolver; .internal is known inside fly.io's WireGuard alone"
        yield Check(name, "failed", f"{place.host} has no address: {error.strerror}", remedy)
        return False
    addresses = sorted({str(address[0]) for *_, address in found})
    yield Check(name, "ok", f"{place.host} is {', '.join(addresses[:4])}")
    name, began = f"{place.name} connection", time.perf_counter()
    try:
        connection = socket.create_connection((place.host, place.port), _PATIENCE)
    except OSError as error:
        why = "no answer in 5 s" if isinstance(error, TimeoutError) else error.strerror or type(error).__name__
        remedy = f"let this machine reach TCP port {place.port} there: firewall, security group, WireGuard; or start it"
        yield Check(name, "failed", f"{place} cannot be reached: {why}", remedy)
        return False
    with connection:
        yield Check(name, "ok", f"{place} answers in {(time.perf_counter() - began) * 1e3:.1f} ms")
        yield (secured := _certificate(place, connection, context))
        return secured.status != "failed"


def _certificate(place: _Place, connection: socket.socket, context: ssl.SSLContext | OSError | None) -> Check:
    name = f"{place.name} tls"
    if context is None:
        address = ipaddress.ip_address(connection.getpeername()[0])
        if address.is_loopback:
            return Check(name, "ok", "none, and none is needed on this machine")
        found = f"none: {place} is spoken to in the clear, password included"
        remedy = f"write {'rediss' if place.name == 'redis' else 'https'}:// in {place.variable}"
        if address.is_private:
            return Check(name, "warning", found, f"{remedy}, unless WireGuard or the like is between")
        return Check(name, "failed", found, remedy)
    if isinstance(context, OSError):
        why = context.strerror or type(context).__name__
        return Check(name, "failed", f"the authority's certificate cannot be read: {why}",
                     f"put it where ssl_ca_certs of {place.variable} says")  # fmt: skip
    try:
        with context.wrap_socket(connection, server_hostname=place.host) as secured:
            certificate, protocol = secured.getpeercert() or {}, secured.version()
    except ssl.SSLCertVerificationError as error:
        remedy = (
            f"give the authority that signed it (?ssl_ca_certs=/path/ca.crt, or SSL_CERT_FILE), use a name that it is "
            f"for in {place.variable}, or renew it"
        )
        return Check(name, "failed", f"the certificate of {place} is refused: {error.verify_message}", remedy)
    except OSError as error:  # ssl.SSLError is one
        why = getattr(error, "reason", None) or type(error).__name__
        return Check(name, "failed", f"{place} does not speak TLS: {why}", "turn TLS on there, or correct the port")
    names = ", ".join(sorted({str(entry[1]) for entry in certificate.get("subjectAltName", ())}))
    days = (ssl.cert_time_to_seconds(str(certificate["notAfter"])) - time.time()) / 86_400
    found = f"{protocol}, a certificate for {names}, valid for {days:.0f} more days"
    if days < _DAYS_LEFT:
        return Check(name, "warning", found, "renew it: workers are cut off the day it ends", {"days": days})
    return Check(name, "ok", found, details={"days": days})


# ---------------------------------------------------------------- the way to the API


def _api(worker: WorkerSettings) -> Iterator[Check]:
    parts = urlsplit(worker.api_url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        found = "WARPDESK_API_URL is no URL" if worker.api_url else "WARPDESK_API_URL is not set: arrays cannot be had"
        yield Check(
            "api", "failed", found, "set it to the service, https://HOST, and WARPDESK_API_KEY to a worker's key"
        )
        return
    try:
        place = _Place(
            "api", parts.hostname, parts.port or (443 if parts.scheme == "https" else 80), "WARPDESK_API_URL"
        )
    except ValueError:
        yield Check("api", "failed", "the port in WARPDESK_API_URL is no port", "correct it")
        return
    if not (yield from _way(place, _context(None) if parts.scheme == "https" else None)):
        return
    headers = {"Authorization": f"Bearer {worker.api_key.get_secret_value()}"}
    try:
        with httpx.Client(base_url=worker.api_url.rstrip("/"), headers=headers, timeout=30) as api:
            greeted = api.get("/v1/worker")
            yield (key := _key(greeted, api))
            if key.status != "failed":
                yield _read(api)
                yield _write(api)
                yield _versions(greeted.headers.get("Warpdesk-Version"))
    except httpx.HTTPError as error:
        remedy = "see what stands between: a proxy must let requests of a minute and bodies of 1 GiB pass"
        yield Check("api", "failed", f"{place} stopped answering: {type(error).__name__}", remedy)


def _key(greeted: httpx.Response, api: httpx.Client) -> Check:
    create = "create one there with `warpdesk keys create NAME --scopes worker`, and set WARPDESK_API_KEY to it"
    status = greeted.status_code
    if status == 401:
        return Check("api key", "failed", "the API does not know WARPDESK_API_KEY", create)
    if status == 403:
        return Check("api key", "failed", "WARPDESK_API_KEY has not the scope worker", create)
    if status != 204:
        remedy = "correct WARPDESK_API_URL: it is the service's root, and a proxy must pass /v1/worker"
        return Check("api key", "failed", f"/v1/worker is answered with {status}: no Warpdesk, or not its root", remedy)
    if (other := api.get("/v1/jobs").status_code) != 403:
        found = f"taken, but it opens others' routes too (/v1/jobs: {other}); a service without keys takes any"
        return Check("api key", "warning", found, create)
    return Check("api key", "ok", "taken, with the scope worker and no other")


def _read(api: httpx.Client) -> Check:
    wanted = WantedInputs(inputs=((_ATTEMPT, "doctor"),))
    began = time.perf_counter()
    answer = api.post(
        "/v1/worker/inputs", content=wanted.model_dump_json(), headers={"Content-Type": "application/json"}
    )
    took = (time.perf_counter() - began) * 1e3
    if answer.status_code == 200 and b'"arrays":[null]' in answer.content:
        return Check("api read", "ok", f"inputs are asked for and answered in {took:.1f} ms")
    return Check("api read", "failed", f"a request for inputs is answered with {answer.status_code}",
                 "see the API's log, and let proxies pass /v1/worker unchanged")  # fmt: skip


def _write(api: httpx.Client) -> Check:
    """The doctor's check that the API receives a worker's array. It is sent for an attempt that does not run, so
    nothing is kept."""
    info = ArrayInfo("float64", (_SENT // 8,))
    output = ArrayOutput(file="doctor.npy", dtype=info.dtype, shape=info.shape, id="", has_nan=False, has_inf=False)
    document = ResultDocument(job=_ATTEMPT.partition(".")[0], operation="doctor", outputs={"doctor": output},
                              expires_at=time.time())  # fmt: skip
    head = SentResults(results=(SentResult(name=_ATTEMPT, document=document),)).model_dump_json().encode()
    body = b"".join([len(head).to_bytes(4, "big"), head, npy.header(info.dtype, info.shape), bytes(_SENT)])
    began = time.perf_counter()
    answer = api.post("/v1/worker/results", content=body, headers={"Content-Type": "application/octet-stream"})
    took = time.perf_counter() - began
    if answer.status_code == 200 and answer.json()["refused"].get(_ATTEMPT, {}).get("code") == "stale-attempt":
        found = f"{_SENT >> 20} MiB are sent in {took:.2f} s, {_SENT / took / 1e6:.0f} MB/s; nothing is kept"
        return Check("api write", "ok", found, details={"bytes_per_second": _SENT / took})
    remedy = "let the proxy take larger bodies (nginx: client_max_body_size 0)" if answer.status_code == 413 else None
    return Check("api write", "failed", f"{_SENT >> 20} MiB of a result are answered with {answer.status_code}",
                 remedy or "see the API's log, and let proxies pass /v1/worker unchanged")  # fmt: skip


def _versions(service: str | None) -> Check:
    try:
        here = metadata.version("warpdesk")
    except metadata.PackageNotFoundError:  # run from the sources
        here = None
    found = f"{here or 'unknown'} here, {service or 'unknown'} there"
    if here != service or here is None:
        remedy = "install the service's release here; two may share a Redis while one replaces the other, not for long"
        return Check("versions", "warning", found, remedy)
    return Check("versions", "ok", found)


# ---------------------------------------------------------------- the ledger


def _ledger(worker: WorkerSettings, settings: Settings) -> Check:
    if worker.ledger is None:
        return Check("ledger", "absent", "none (WARPDESK_LEDGER_URL): jobs that charge a budget are given back")
    return ledger_of_worker(settings)
