"""API keys: created once, kept as hashes in a file, compared in constant time."""

import hashlib
import hmac
import ipaddress
import json
import logging
import os
import re
import secrets
import stat
import tempfile
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal, get_args

import anyio.to_thread
from fastapi import Depends, Request

from app.errors import Refusal

log = logging.getLogger("warpdesk.api")

Scope = Literal["submit", "read", "cancel", "admin", "worker"]
SCOPES: tuple[Scope, ...] = get_args(Scope)

LOCAL = "local"  # the owner of everything while no keys exist

# 32 random bytes: a plain hash of it cannot be guessed back, so no slow password hash is needed.
_TOKEN = re.compile(r"^wd_([0-9a-f]{12})_([A-Za-z0-9_-]{43})$")


class UnusableKeys(Exception):
    """The key file cannot be used; the message says what to do."""


@dataclass(frozen=True)
class Key:
    """One caller. `admin` includes every other scope but `worker`, which is no caller's: it is alone in its key."""

    id: str
    name: str
    scopes: tuple[Scope, ...]
    sha256: str
    created_at: float

    def allows(self, scope: Scope) -> bool:
        return scope in self.scopes or ("admin" in self.scopes and scope != "worker")


def create_key(home: Path, name: str, scopes: Iterable[str], *, file: Path | None = None) -> str:
    """Add a key to `home`/keys.json (or `file`) and return its token, which is shown nowhere else ever again."""
    chosen = tuple(scope for scope in SCOPES if scope in set(scopes))
    unknown = sorted(set(scopes) - set(SCOPES))
    if unknown or not chosen:
        raise ValueError(f"scopes are {', '.join(SCOPES)}; got {', '.join(unknown) or 'none'}")
    if "worker" in chosen and len(chosen) > 1:
        raise ValueError("a worker's key has the scope worker alone: it reads what jobs of other keys read")
    path = file or home / "keys.json"
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    keys = read_keys(path)
    token = f"wd_{secrets.token_hex(6)}_{secrets.token_urlsafe(32)}"
    key = Key(token.split("_")[1], name, chosen, hashlib.sha256(token.encode()).hexdigest(), time.time())
    _write_keys(path, [*keys.values(), key])
    return token


def revoke_key(path: Path, key_id: str) -> bool:
    """Remove a key from the file; False when there is no such key."""
    keys = read_keys(path)
    if keys.pop(key_id, None) is None:
        return False
    _write_keys(path, list(keys.values()))
    return True


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
        keys = [Key(**{**entry, "scopes": tuple(entry["scopes"])}) for entry in entries]
    except (ValueError, KeyError, TypeError) as error:
        raise UnusableKeys(f"the key file {path} is not a list of keys: {error}") from error
    return {key.id: key for key in keys}


def _write_keys(path: Path, keys: list[Key]) -> None:
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".keys-")  # mode 0600
    try:
        with os.fdopen(descriptor, "w") as file:
            json.dump({"keys": [asdict(key) for key in keys]}, file, indent=2)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
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

    def __init__(self, path: Path, host: str) -> None:
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
        match = _TOKEN.fullmatch(token)
        key_id = match[1] if match else ""
        if match and key_id not in self._keys:
            await anyio.to_thread.run_sync(self.reload)  # it may have been created a moment ago
        key = self._keys.get(key_id)
        digest = hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()
        # Compared even when there is no such key, so that time does not tell which ids exist.
        if not hmac.compare_digest(digest, key.sha256 if key else "0" * 64) or key is None:
            sentence = "The API key is not valid" if token else "Send an API key: Authorization: Bearer <key>"
            raise Refusal("unauthorized", sentence, headers={"WWW-Authenticate": 'Bearer realm="warpdesk"'})
        return key


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
        return key


submitter = Needs("submit")
Submitter = Annotated[Key, Depends(submitter)]
reader = Needs("read")
Reader = Annotated[Key, Depends(reader)]
Canceler = Annotated[Key, Depends(Needs("cancel"))]
Worker = Annotated[Key, Depends(Needs("worker"))]
