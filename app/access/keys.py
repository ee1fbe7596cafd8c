"""API keys: kept as hashes in a file, compared in constant time, rotated without a moment in which none is valid."""

import fcntl
import hashlib
import hmac
import json
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
from pathlib import Path
from typing import Any, Literal, get_args

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


NOBODY = Key("", "", (), "0" * 64, 0.0)


def create_key(home: Path, name: str, scopes: Iterable[str], *, file: Path | None = None) -> str:
    """Add a key to `home`/keys.json (or `file`) and return its token, which is shown nowhere else ever again."""
    chosen = _scopes(scopes)
    path = file or home / "keys.json"
    token = _token(secrets.token_hex(6))
    with _changing(path) as keys:
        remember(home)
        key = Key(token.split("_")[1], name, chosen, digest_of(token), time.time())
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
        keys[key_id] = replace(key, sha256=digest_of(token), rotated_at=now, earlier=kept)
    return token


def revoke_key(path: Path, key_id: str) -> bool:
    """Remove a key with all its tokens from the file; False when there is no such key."""
    with _changing(path) as keys:
        return keys.pop(key_id, None) is not None


def require_key_file(path: Path, home: Path) -> None:
    """Raises UnusableKeys where keys existed and the key file is gone: without it everything would be open."""
    if (home / KEYS_EXISTED).exists() and stamp(path) is None:
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


def remember(home: Path) -> None:
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


def digest_of(token: str) -> str:
    """The hash by which a token is kept."""
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


def stamp(path: Path) -> tuple[int, int, int] | None:
    """What changes when the file does; None where there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return (status.st_mtime_ns, status.st_size, status.st_ino)
