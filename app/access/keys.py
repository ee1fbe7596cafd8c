"""API keys: stored as hashes in a file, compared in constant time. After a rotation the old token works for a while."""

import fcntl
import hashlib
import hmac
import json
import math
import re
import secrets
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from warpdesk.durable import force, write_new

Scope = Literal["submit", "realtime", "read", "cancel", "metrics", "admin", "worker"]
SCOPES: tuple[Scope, ...] = get_args(Scope)

# Of the key file. In files without a version, of releases before there was the scope, `submit` includes `realtime`.
_VERSION = 2

LOCAL = "local"  # the owner of everything while no keys exist

# A file of the home: there are API keys, or there were. Only `warpdesk keys open` removes it.
KEYS_EXISTED = "keys-existed"

_TOLD_FOR = 30 * 86_400.0  # seconds for which who sends an expired token is told so

# 32 random bytes: a plain hash of it cannot be guessed back, so no slow password hash is needed.
TOKEN = re.compile(r"^wd_([0-9a-f]{12})_([A-Za-z0-9_-]{43})$")


class UnusableKeys(Exception):
    """Raised if the API key file cannot be used; the message says what to do."""


class UnknownScope(ValueError):
    """Raised for a scope that no API key can have; the message lists those there are."""


class UnknownKey(LookupError):
    """Raised if no API key has this id."""


@dataclass(frozen=True)
class Earlier:
    """A rotated token of an API key, and the time until which it is accepted (Unix seconds)."""

    sha256: str
    expires_at: float


@dataclass(frozen=True)
class Key:
    """An API key. `admin` includes every other scope but `worker`, which must be a key's only scope.

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
        """Whether the API key has a scope."""
        return scope in self.scopes or ("admin" in self.scopes and scope != "worker")

    def until(self, digest: str) -> float | None:
        """The time until which an API token with this digest is accepted: infinity means forever, None that it is no
        token of this key."""
        found = math.inf if hmac.compare_digest(digest, self.sha256) else None
        for one in self.earlier:  # all are compared, whichever it is
            if hmac.compare_digest(digest, one.sha256):
                found = one.expires_at
        return found


NOBODY = Key("", "", (), "0" * 64, 0.0)


def create_key(home: Path, name: str, scopes: Iterable[str], *, file: Path | None = None) -> str:
    """Add an API key to `home`/keys.json (or `file`) and return its token, which is never shown again."""
    chosen = _scopes(scopes)
    path = file or home / "keys.json"
    token = _token(secrets.token_hex(6))
    with _changing(path) as keys:
        remember(home)
        key = Key(token.split("_")[1], name, chosen, digest_of(token), time.time())
        keys[key.id] = key
    return token


def rotate_key(path: Path, key_id: str, overlap: float) -> str:
    """Give an API key a new token, which is returned. Its earlier tokens are accepted for at most `overlap` seconds
    more.

    The key stays the same owner with the same scopes. Raises UnknownKey.
    """
    with _changing(path) as keys:
        if (key := keys.get(key_id)) is None:
            raise UnknownKey(f"there is no key {key_id}")
        now, token = time.time(), _token(key_id)
        before = [Earlier(one.sha256, min(one.expires_at, now + overlap)) for one in key.earlier]
        before.append(Earlier(key.sha256, now + overlap))
        kept = tuple(one for one in before if one.expires_at > now - _TOLD_FOR)
        keys[key_id] = replace(key, sha256=digest_of(token), rotated_at=now, earlier=kept)
    return token


def revoke_key(path: Path, key_id: str) -> bool:
    """Remove an API key with all its tokens from the key file; False if there is no such key."""
    with _changing(path) as keys:
        return keys.pop(key_id, None) is not None


def require_key_file(path: Path, home: Path) -> None:
    """Raise UnusableKeys if API keys existed and the key file is gone: without it everything would be open."""
    if (home / KEYS_EXISTED).exists() and stamp(path) is None:
        raise UnusableKeys(
            f"there were API keys, and the key file {path} is gone: put it back from a backup, or create a key (which "
            f"sees no jobs and arrays of earlier ones) with `WARPDESK_HOME={home} warpdesk keys create NAME`, or start "
            f"without keys again with `WARPDESK_HOME={home} warpdesk keys open`"
        )


def serve_without_keys(path: Path, home: Path) -> None:
    """Forget that API keys existed, so that a service may start without. Raises UnusableKeys if the file still has
    keys."""
    with _changing(path) as keys:
        if keys:
            raise UnusableKeys(f"the key file {path} has {len(keys)} keys: revoke them first (warpdesk keys revoke ID)")
        path.unlink(missing_ok=True)
        (home / KEYS_EXISTED).unlink(missing_ok=True)


def remember(home: Path) -> None:
    """Note in the home that API keys exist."""
    if not (note := home / KEYS_EXISTED).exists():
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        note.touch(mode=0o600)
        force(home)


def read_keys(path: Path) -> dict[str, Key]:
    """Read the API keys from the key file, by id; empty if there is no file."""
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
        document = json.loads(text)
        keys = [_key(entry) for entry in document["keys"]]
        if "version" not in document:
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
    """The API key with the scope realtime too if it may submit: files without a version are older than that scope."""
    return replace(key, scopes=_scopes({*key.scopes, "realtime"})) if "submit" in key.scopes else key


def _scopes(named: Iterable[str]) -> tuple[Scope, ...]:
    """The scopes of an API key in the order of SCOPES. Raises UnknownScope."""
    wanted = set(named)
    chosen = tuple(scope for scope in SCOPES if scope in wanted)
    unknown = sorted(str(scope) for scope in wanted - set(SCOPES))
    if unknown or not chosen:
        raise UnknownScope(f"scopes are {', '.join(SCOPES)}; got {', '.join(unknown) or 'none'}")
    if "worker" in chosen and len(chosen) > 1:
        raise UnknownScope("a worker's key has the scope worker alone: it reads what jobs of other keys read")
    return chosen


def _entry(key: Key) -> dict[str, Any]:
    """The JSON entry of an API key. A key that was never rotated has the format of releases before rotation."""
    return {name: value for name, value in asdict(key).items() if value or name not in ("rotated_at", "earlier")}


def _token(key_id: str) -> str:
    return f"wd_{key_id}_{secrets.token_urlsafe(32)}"


def digest_of(token: str) -> str:
    """The hash under which an API token is stored."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


@contextmanager
def _changing(path: Path) -> Iterator[dict[str, Key]]:
    """The key file's API keys, locked for change and written back when the block is left."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with path.with_name(f".{path.name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = read_keys(path)
        keys = dict(before)
        yield keys
        if keys != before:
            _write_keys(path, list(keys.values()))


def _write_keys(path: Path, keys: list[Key]) -> None:
    temporary = path.with_name(f".keys-{secrets.token_hex(8)}")
    entries = {"version": _VERSION, "keys": [_entry(key) for key in keys]}
    try:
        write_new(temporary, json.dumps(entries, indent=2).encode())
        temporary.replace(path)
        force(path.parent)  # a token that was shown is known after a power cut too
    finally:
        temporary.unlink(missing_ok=True)


def stamp(path: Path) -> tuple[int, int, int] | None:
    """A stamp of the API key file that changes when the file does; None if there is no file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return (status.st_mtime_ns, status.st_size, status.st_ino)
