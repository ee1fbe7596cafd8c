"""API keys: kept as hashes in a file, compared in constant time, rotated without a moment in which none is valid."""

import fcntl
import hashlib
import hmac
import ipaddress
import json
import logging
import math
import os
import re
import secrets
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import anyio.to_thread
from fastapi import Depends, Request

from warpdesk_server.app.access.peers import user_of
from warpdesk_server.app.kit.errors import Refusal
from warpdesk_server.app.kit.limits import Limits, network

log = logging.getLogger("warpdesk_server.service.api")

Scope = Literal["submit", "realtime", "read", "cancel", "metrics", "admin", "worker"]
SCOPES: tuple[Scope, ...] = get_args(Scope)

# Of the key file. In files without a version, of releases before there was the scope, `submit` includes `realtime`.
_VERSION = 2

LOCAL = "local"  # the owner of everything while no keys exist

# A file of the home: there are API keys, or there were. Only `warpdesk keys open` removes it.
KEYS_EXISTED = "keys-existed"

_TOLD_FOR = 30 * 86_400.0  # seconds for which who sends an expired token is told so

# 32 random bytes: a plain hash of it cannot be guessed back, so no slow password hash is needed.
_TOKEN = re.compile(r"^wd_([0-9a-f]{12})_([A-Za-z0-9_-]{43})$")

# Names of headers that proxies add to what they forward.
_FORWARDED = re.compile(
    r"forwarded(?:-.+)?|via|cdn-loop|x-forwarded|x-scheme|(?:cf|fly|fastly)-.+|(?:.+-)?client-?ip"
    r"|x-(?:amzn|appengine|arr|azure|bluecoat|envoy|forwarded|nginx|original|proxyuser|real|remote)-.+"
)


class UnusableKeys(Exception):
    """The key file cannot be used; the message says what to do."""


class UnknownScope(ValueError):
    """A key would have scopes that no key can have; the message says which there are."""


class UnknownKey(LookupError):
    """There is no key of this id."""


@dataclass(frozen=True)
class Earlier:
    """A token that another has replaced, and until when it is taken all the same (Unix seconds)."""

    sha256: str
    expires_at: float


@dataclass(frozen=True)
class Key:
    """One caller. `admin` includes every other scope but `worker`, which is no caller's: it is alone in its key.

    Its id is the owner of jobs, arrays and charges and outlives its tokens: `sha256` is that of the newest.
    """

    id: str
    name: str
    scopes: tuple[Scope, ...]
    sha256: str
    created_at: float
    rotated_at: float | None = None
    earlier: tuple[Earlier, ...] = ()

    def allows(self, scope: Scope) -> bool:
        return scope in self.scopes or ("admin" in self.scopes and scope != "worker")

    def until(self, digest: str) -> float | None:
        """When a token with this digest stops being taken: never is infinity, None is no token of this key."""
        found = math.inf if hmac.compare_digest(digest, self.sha256) else None
        for one in self.earlier:  # all are compared, whichever it is
            if hmac.compare_digest(digest, one.sha256):
                found = one.expires_at
        return found


_NOBODY = Key("", "", (), "0" * 64, 0.0)


def create_key(home: Path, name: str, scopes: Iterable[str], *, file: Path | None = None) -> str:
    """Add a key to `home`/keys.json (or `file`) and return its token, which is shown nowhere else ever again."""
    chosen = _scopes(scopes)
    path = file or home / "keys.json"
    token = _token(secrets.token_hex(6))
    with _changing(path) as keys:
        _remember(home)
        key = Key(token.split("_")[1], name, chosen, _digest(token), time.time())
        keys[key.id] = key
    return token


def rotate_key(path: Path, key_id: str, overlap: float) -> str:
    """Give a key another token, which it returns; those before it are taken for `overlap` seconds more at the most.

    The key stays the same owner with the same scopes. Raises UnknownKey.
    """
    with _changing(path) as keys:
        if (key := keys.get(key_id)) is None:
            raise UnknownKey(f"there is no key {key_id}")
        now, token = time.time(), _token(key_id)
        before = [Earlier(one.sha256, min(one.expires_at, now + overlap)) for one in key.earlier]
        before.append(Earlier(key.sha256, now + overlap))
        kept = tuple(one for one in before if one.expires_at > now - _TOLD_FOR)
        keys[key_id] = replace(key, sha256=_digest(token), rotated_at=now, earlier=kept)
    return token


def revoke_key(path: Path, key_id: str) -> bool:
    """Remove a key with all its tokens from the file; False when there is no such key."""
    with _changing(path) as keys:
        return keys.pop(key_id, None) is not None


def require_key_file(path: Path, home: Path) -> None:
    """Raises UnusableKeys where keys existed and the key file is gone: without it everything would be open."""
    if (home / KEYS_EXISTED).exists() and _stamp(path) is None:
        raise UnusableKeys(
            f"there were API keys, and the key file {path} is gone: put it back from a backup, or create a key (which "
            f"sees no jobs and arrays of earlier ones) with `WARPDESK_HOME={home} warpdesk keys create NAME`, or start "
            f"without keys again with `WARPDESK_HOME={home} warpdesk keys open`"
        )


def serve_without_keys(path: Path, home: Path) -> None:
    """Forget that there were keys, so that a service may start without. Raises UnusableKeys while there are any."""
    with _changing(path) as keys:
        if keys:
            raise UnusableKeys(f"the key file {path} has {len(keys)} keys: revoke them first (warpdesk keys revoke ID)")
        path.unlink(missing_ok=True)
        (home / KEYS_EXISTED).unlink(missing_ok=True)


def _remember(home: Path) -> None:
    """Note in the home that there are keys."""
    if not (note := home / KEYS_EXISTED).exists():
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        note.touch(mode=0o600)
        _sync(home)


def read_keys(path: Path) -> dict[str, Key]:
    """The keys by id; none when there is no file."""
    try:
        mode = path.stat().st_mode
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise UnusableKeys(f"the key file {path} cannot be read: {error.strerror}") from error
    if stat.S_IMODE(mode) & 0o077:
        raise UnusableKeys(f"the key file {path} has mode {stat.S_IMODE(mode):04o}; run chmod 600 {path}")
    try:
        told = json.loads(text)
        keys = [_key(entry) for entry in told["keys"]]
        if "version" not in told:
            keys = [_with_realtime(key) for key in keys]
    except UnknownScope as error:
        raise UnusableKeys(f"a key of the key file {path} cannot be used: {error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise UnusableKeys(f"the key file {path} is not a list of keys: {error}") from error
    return {key.id: key for key in keys}


def _key(entry: dict[str, Any]) -> Key:
    earlier = tuple(Earlier(**one) for one in entry.get("earlier", ()))
    return Key(**{**entry, "scopes": _scopes(entry["scopes"]), "earlier": earlier})


def _with_realtime(key: Key) -> Key:
    return replace(key, scopes=_scopes({*key.scopes, "realtime"})) if "submit" in key.scopes else key


def _scopes(named: Iterable[str]) -> tuple[Scope, ...]:
    """These scopes in the order of SCOPES. Raises UnknownScope."""
    wanted = set(named)
    chosen = tuple(scope for scope in SCOPES if scope in wanted)
    unknown = sorted(str(scope) for scope in wanted - set(SCOPES))
    if unknown or not chosen:
        raise UnknownScope(f"scopes are {', '.join(SCOPES)}; got {', '.join(unknown) or 'none'}")
    if "worker" in chosen and len(chosen) > 1:
        raise UnknownScope("a worker's key has the scope worker alone: it reads what jobs of other keys read")
    return chosen


def _entry(key: Key) -> dict[str, Any]:
    """A key that was never rotated is written as releases before there was rotation read it."""
    return {name: value for name, value in asdict(key).items() if value or name not in ("rotated_at", "earlier")}


def _token(key_id: str) -> str:
    return f"wd_{key_id}_{secrets.token_urlsafe(32)}"


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


@contextmanager
def _changing(path: Path) -> Iterator[dict[str, Key]]:
    """The keys of the file, written back when the block is left; one who changes them at a time."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with path.with_name(f".{path.name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = read_keys(path)
        keys = dict(before)
        yield keys
        if keys != before:
            _write_keys(path, list(keys.values()))


def _write_keys(path: Path, keys: list[Key]) -> None:
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".keys-")  # mode 0600
    try:
        with os.fdopen(descriptor, "w") as file:
            json.dump({"version": _VERSION, "keys": [_entry(key) for key in keys]}, file, indent=2)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
        _sync(path.parent)  # a token that was shown is known after a power cut too
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@lru_cache(maxsize=16)
def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Gate:
    """Decides whose request it is. Once there is a key file, even one without keys, requests need a key."""

    def __init__(self, path: Path, home: Path, host: str, failures: Limits) -> None:
        self._failures = failures  # requests that nobody knows, by the network they come from
        self._path, self._home = path, home
        require_key_file(path, home)
        self._stamp = _stamp(path)
        self._keys = read_keys(path)
        self.open = self._stamp is None  # a file without keys is what revoking the last one leaves
        if self.open and not is_loopback(host):
            raise UnusableKeys(
                f"there are no API keys in {path} and {host} can be reached from other machines: "
                "create a key (warpdesk keys create) or bind to 127.0.0.1"
            )
        self._note()

    def reload(self) -> None:
        """Read the file again if it changed; a file that cannot be used leaves the keys as they were."""
        stamp = _stamp(self._path)
        if stamp == self._stamp:
            return
        try:
            self._keys = read_keys(self._path)
        except UnusableKeys as error:
            log.error("keys unchanged: %s", error)
            return
        self._stamp = stamp
        self.open = self.open and stamp is None
        self._note()

    def _note(self) -> None:
        """The file may have come by another way than `create_key`, or from a release that noted nothing."""
        if self._stamp is not None:
            try:
                _remember(self._home)
            except OSError as error:
                log.warning("it cannot be noted that there are API keys: %s", error)

    async def identify(self, request: Request) -> Key:
        """The key of a request, or a 401; while there are no keys, the service's own user is "local"."""
        if self.open:
            request.state.token = None, ""  # which lets it in nowhere, once there are keys
            await _require_local(request)
            return Key(LOCAL, LOCAL, ("admin",), "", 0.0)
        token = token_of(request)
        match, digest = request.state.token = _TOKEN.fullmatch(token), _digest(token)
        until = self._until(match, digest)
        known = match and until is not None and until > time.time()
        if not known:  # a valid key is let in however many others are tried from the same address
            self.count_failure(request)
        if until is None and match:
            await anyio.to_thread.run_sync(self.reload)  # it may have been made a moment ago
            until = self._until(match, digest)
        if match and until is not None and until > time.time():
            return self._keys[match[1]]
        sentence = "The API key is not valid" if token else "Send an API key: Authorization: Bearer <key>"
        if until is not None:
            sentence = "The API key was rotated and this token of it has expired: use the one that replaced it"
        raise _unauthorized(sentence)

    def lets_in(self, request: Request) -> bool:
        """Whether a request that was let in would be now: its key may have been revoked, or its token have expired."""
        if self.open:
            return True
        match, digest = request.state.token
        until = self._until(match, digest)
        return match is not None and until is not None and until > time.time()

    def count_failure(self, request: Request) -> None:
        """A request had no valid token. Raises a 429 where its address has sent too many such."""
        self._failures.take(network(request.client.host if request.client else ""))

    def _until(self, match: re.Match[str] | None, digest: str) -> float | None:
        # Compared even when there is no such key, so that time does not tell which ids exist.
        key = self._keys.get(match[1]) if match else None
        return (key or _NOBODY).until(digest)


def _unauthorized(sentence: str) -> Refusal:
    return Refusal("unauthorized", sentence, headers={"WWW-Authenticate": 'Bearer realm="warpdesk"'})


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return (status.st_mtime_ns, status.st_size, status.st_ino)


def token_of(request: Request) -> str:
    """What a request brings to be let in; empty where it brings nothing."""
    scheme, _, credentials = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return credentials.strip()
    return request.headers.get("x-api-key", "").strip()


async def _require_local(request: Request) -> None:
    """Refuse other machines, other users of this one, what a proxy forwards, and pages of other sites in a browser.

    A proxy that adds no header is known by its user, which is another one where it is a system's. A page of another
    site reaches 127.0.0.1 by the address, or by a name of its own (DNS rebinding).
    """
    headers = request.headers
    host = headers.get("host", "").strip().lower()
    name = host.rsplit(":", 1)[0] if re.search(r":\d+$", host) else host
    peer = request.client.host if request.client else "127.0.0.1"  # none: a unix socket
    why = None
    if (header := next(filter(_FORWARDED.fullmatch, headers), None)) is not None:
        why = f"a proxy forwards this request: it has the header {header!r}"
    elif not is_loopback(name) or not (is_loopback(peer) or not peer):
        why = f"the host asked for is {name!r}"
    elif request.scope["http_version"] == "1.0":  # what nginx before 1.29.7 speaks unless told otherwise
        why = "a proxy may forward this request: it is HTTP/1.0"
    elif any(origin.partition("://")[2] != host for origin in headers.getlist("origin")):
        why = f"the page that asks is of the origin {headers['origin']!r}"
    elif (site := headers.get("sec-fetch-site", "none")) not in ("none", "same-origin"):
        why = f"the page that asks is of another site (Sec-Fetch-Site: {site!r})"
    elif request.client and (user := await user_of(request)) != os.geteuid():  # (a unix socket has a mode of its own)
        why = f"the user that asks is {'not known' if user is None else f'another (uid {user})'}"
    if why is not None:
        raise Refusal(
            "foreign-host",
            f"No API keys exist, so only its own user on this machine is served; {why}. "
            "Create a key: warpdesk keys create NAME",
        )


def require(key: Key, scope: Scope, what: str) -> None:
    """Refuse what a key has no scope for; `what` begins the sentence."""
    if not key.allows(scope):
        have = ", ".join(key.scopes)
        raise Refusal("missing-scope", f"{what} needs the scope {scope!r}; the key has {have}")


class Needs:
    """A dependency: the caller's key, which must have a scope."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope

    async def __call__(self, request: Request) -> Key:
        gate: Gate = request.app.state.gate
        key = await gate.identify(request)
        require(key, self.scope, "This")
        request.state.owner = key.id
        services, worker = request.app.state.services, "worker" in key.scopes
        if not worker:  # how often workers ask is set by the jobs they are given
            services.requests.take(key.id)
        if not hasattr(request.state, "shares"):
            under_way = services.under_way_of_workers if worker else services.under_way
            request.state.shares = [under_way.take(key.id)]  # until the request ends (`observe`)
        return key


def still(request: Request) -> Callable[[], bool]:
    """Whether a request that was let in would be now, asked as often as it is answered."""
    gate: Gate = request.app.state.gate
    return lambda: gate.lets_in(request)


def require_still(request: Request) -> None:
    """Refuse a request that waited, and whose key was revoked or has expired meanwhile."""
    if not still(request)():
        raise _unauthorized("The API key was revoked, or its token has expired, while the request waited")


submitter = Needs("submit")
Submitter = Annotated[Key, Depends(submitter)]
reader = Needs("read")
Reader = Annotated[Key, Depends(reader)]
Watcher = Annotated[Key, Depends(Needs("metrics"))]  # of the service, and so of what all keys do
Canceler = Annotated[Key, Depends(Needs("cancel"))]
Worker = Annotated[Key, Depends(Needs("worker"))]
