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
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import anyio.to_thread
from fastapi import Depends, Request

from app.errors import Refusal
from app.limits import Limits, network

log = logging.getLogger("warpdesk.api")

Scope = Literal["submit", "read", "cancel", "admin", "worker"]
SCOPES: tuple[Scope, ...] = get_args(Scope)

LOCAL = "local"  # the owner of everything while no keys exist

_TOLD_FOR = 30 * 86_400.0  # seconds for which who sends an expired token is told so

# 32 random bytes: a plain hash of it cannot be guessed back, so no slow password hash is needed.
_TOKEN = re.compile(r"^wd_([0-9a-f]{12})_([A-Za-z0-9_-]{43})$")


class UnusableKeys(Exception):
    """The key file cannot be used; the message says what to do."""


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
    chosen = tuple(scope for scope in SCOPES if scope in set(scopes))
    unknown = sorted(set(scopes) - set(SCOPES))
    if unknown or not chosen:
        raise ValueError(f"scopes are {', '.join(SCOPES)}; got {', '.join(unknown) or 'none'}")
    if "worker" in chosen and len(chosen) > 1:
        raise ValueError("a worker's key has the scope worker alone: it reads what jobs of other keys read")
    path = file or home / "keys.json"
    token = _token(secrets.token_hex(6))
    with _changing(path) as keys:
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
        entries = json.loads(text)["keys"]
        keys = [_key(entry) for entry in entries]
    except (ValueError, KeyError, TypeError) as error:
        raise UnusableKeys(f"the key file {path} is not a list of keys: {error}") from error
    return {key.id: key for key in keys}


def _key(entry: dict[str, Any]) -> Key:
    earlier = tuple(Earlier(**one) for one in entry.get("earlier", ()))
    return Key(**{**entry, "scopes": tuple(entry["scopes"]), "earlier": earlier})


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
            json.dump({"keys": [_entry(key) for key in keys]}, file, indent=2)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)  # a token that was shown is known after a power cut too
        finally:
            os.close(directory)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


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

    def __init__(self, path: Path, host: str, failures: Limits) -> None:
        self._failures = failures  # requests that nobody knows, by the network they come from
        self._path = path
        self._stamp = _stamp(path)
        self._keys = read_keys(path)
        self.open = self._stamp is None  # a file without keys is what revoking the last one leaves
        if self.open and not is_loopback(host):
            raise UnusableKeys(
                f"there are no API keys in {path} and {host} can be reached from other machines: "
                "create a key (warpdesk keys create) or bind to 127.0.0.1"
            )

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

    async def identify(self, request: Request) -> Key:
        """The key of a request, or a 401; while there are no keys, everything local belongs to "local"."""
        if self.open:
            _require_local(request)
            return Key(LOCAL, LOCAL, ("admin",), "", 0.0)
        token = token_of(request)
        match, digest = _TOKEN.fullmatch(token), _digest(token)
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
        raise Refusal("unauthorized", sentence, headers={"WWW-Authenticate": 'Bearer realm="warpdesk"'})

    def count_failure(self, request: Request) -> None:
        """A request had no valid token. Raises a 429 where its address has sent too many such."""
        self._failures.take(network(request.client.host if request.client else ""))

    def _until(self, match: re.Match[str] | None, digest: str) -> float | None:
        # Compared even when there is no such key, so that time does not tell which ids exist.
        key = self._keys.get(match[1]) if match else None
        return (key or _NOBODY).until(digest)


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


def _require_local(request: Request) -> None:
    """Refuse other machines, and other names: a page in a browser could reach 127.0.0.1 by its own (DNS rebinding)."""
    host = (request.headers.get("host") or "").strip().lower()
    name = host.rsplit(":", 1)[0] if re.search(r":\d+$", host) else host
    peer = request.client.host if request.client else "127.0.0.1"  # none: a unix socket
    if not is_loopback(name) or not (is_loopback(peer) or not peer):
        raise Refusal(
            "foreign-host", f"No API keys exist, so only this machine is served; the host asked for is {name!r}"
        )


class Needs:
    """A dependency: the caller's key, which must have a scope."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope

    async def __call__(self, request: Request) -> Key:
        gate: Gate = request.app.state.gate
        key = await gate.identify(request)
        if not key.allows(self.scope):
            have = ", ".join(key.scopes)
            raise Refusal("missing-scope", f"This needs the scope {self.scope!r}; the key has {have}")
        if "worker" not in key.scopes:  # how much workers ask is set by the jobs they are given
            request.app.state.desk.requests.take(key.id)
        return key


submitter = Needs("submit")
Submitter = Annotated[Key, Depends(submitter)]
reader = Needs("read")
Reader = Annotated[Key, Depends(reader)]
Canceler = Annotated[Key, Depends(Needs("cancel"))]
Worker = Annotated[Key, Depends(Needs("worker"))]
