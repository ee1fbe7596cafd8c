"""The privacy ledger's secrets: its key ring, the noise seeds that the keys wrap, and keyed digests.

Whoever has the database and not the key learns no seed, and can neither find an input by hashing guesses nor change
what a digest covers unseen. Whoever has both can compute the noise of charges that are not released yet.
"""

import fcntl
import hashlib
import hmac
import json
import os
import secrets
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from warpdesk.durable import force, write_new

SIZE = 32  # bytes of the key, and of a seed

_NONCE = 12  # of ChaCha20-Poly1305
_SETTLED = 3600.0  # seconds in which whatever was begun with an older key is in the database, or never will be


class UnusableKey(ValueError):
    """Raised if the ledger's key file holds no key, or others may read it. The message gives the remedy."""


class WrongKey(ValueError):
    """Raised if the ledger's database was made with another key, or a seed was wrapped by one."""


class Ring:
    """The ledger's key ring: a file of keys, 64 hexadecimal digits in each line.

    The first key makes digests, the last wraps seeds, all unwrap. Digests are in chains that nobody may change, so the
    first key stays as long as the database does. The file is read again when it was replaced. A missing file is created
    with one key, readable by its owner alone; processes that start at once agree on it. Raises UnusableKey, here and at
    the first use of a ring that has become unusable.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._stamp, self._keys = _read(path)
        except FileNotFoundError:
            _write(path, (secrets.token_bytes(SIZE),), anew=True)
            self._stamp, self._keys = _read(path)
        force(path.parent)  # its name is on the disk before anything is wrapped by it, whoever made it

    def keys(self) -> tuple[bytes, ...]:
        """The current keys of the ledger's key ring, read again if the file was replaced. If it cannot be opened, the
        earlier keys stay."""
        with suppress(OSError):
            status = self._path.stat()
            if (status.st_mtime_ns, status.st_size, status.st_ino) != self._stamp:
                stamp, found = _read(self._path)
                if found[0] != self._keys[0]:
                    raise UnusableKey(f"the first key of {self._path} is another now: digests would not fit")
                force(self._path.parent)  # whoever wrote it may not have come so far
                self._stamp, self._keys = stamp, found
        return self._keys

    def grow(self, path: Path, *, forget: bool) -> None:
        """Write the ledger's key ring with one new key to `path`, in one step.

        With `forget`, for when every seed is wrapped with the newest key, the keys between it and the first are left
        out. They stay if the newest is less than `_SETTLED` old: a process may still be writing a seed that an older
        key wrapped.
        """
        with alone(path.parent):  # of two at once one's key would be lost, and what was wrapped with it meanwhile
            first, *later = self.keys()
            old = time.time() - self._stamp[0] / 1e9 > _SETTLED
            _write(path, (first, *(later[-1:] if forget and old else later), secrets.token_bytes(SIZE)), anew=False)
            force(path.parent)


class Secrets:
    """The ledger's cryptography: digests, seals and wrapped seeds. Each purpose has a derived key of its own."""

    def __init__(self, ring: Ring | bytes) -> None:
        self._ring = ring
        self._wrapping: dict[bytes, ChaCha20Poly1305] = {}
        self._digesting = _derive(self._keys()[0], b"warpdesk/ledger/v1/digest")

    def _keys(self) -> tuple[bytes, ...]:
        keys = (self._ring,) if isinstance(self._ring, bytes) else self._ring.keys()
        if len(keys[0]) != SIZE:
            raise UnusableKey(f"the ledger's key has {len(keys[0])} bytes and not {SIZE}")
        return keys

    def _ciphers(self) -> list[ChaCha20Poly1305]:
        """The ciphers of the ledger's key ring, the newest first."""
        keys = self._keys()
        for key in keys:
            if key not in self._wrapping:
                self._wrapping[key] = ChaCha20Poly1305(_derive(key, b"warpdesk/ledger/v1/wrap"))
        return [self._wrapping[key] for key in reversed(keys)]

    def digest(self, purpose: str, *parts: str | None) -> str:
        """A digest with the ledger's key: HMAC-SHA256 of the parts for one purpose, in hexadecimal."""
        message = json.dumps([purpose, *parts], separators=(",", ":")).encode()
        return hmac.new(self._digesting, message, hashlib.sha256).hexdigest()

    def seal(self, purpose: str, row: Mapping[str, Any]) -> str:
        """The seal of a row of the ledger: a keyed digest of its other fields. Without the ledger's key a change is
        detected."""
        fields = {name: value for name, value in row.items() if name != "seal"}
        return self.digest(purpose, json.dumps(fields, sort_keys=True, separators=(",", ":")))

    def wrap(self, seed: bytes, charge_id: str) -> bytes:
        """Encrypt a charge's noise seed for the ledger's database. It can be decrypted for this charge alone."""
        nonce = secrets.token_bytes(_NONCE)
        return nonce + self._ciphers()[0].encrypt(nonce, seed, charge_id.encode())

    def unwrap(self, wrapped: bytes, charge_id: str) -> bytes:
        """Decrypt a charge's noise seed with the ledger's key ring. Raises WrongKey if no key fits, it is another
        charge's, or it was changed."""
        for cipher in self._ciphers():
            with suppress(InvalidTag, ValueError):
                return cipher.decrypt(wrapped[:_NONCE], wrapped[_NONCE:], charge_id.encode())
        raise WrongKey(f"the seed of {charge_id} does not open with this key")

    def rewrapped(self, wrapped: bytes, charge_id: str) -> bytes | None:
        """Wrap a charge's noise seed with the newest key; None if it already is. Raises WrongKey."""
        with suppress(InvalidTag, ValueError):
            self._ciphers()[0].decrypt(wrapped[:_NONCE], wrapped[_NONCE:], charge_id.encode())
            return None
        return self.wrap(self.unwrap(wrapped, charge_id), charge_id)


def noise_key(seed: bytes, *parts: str) -> bytes:
    """Derive the noise key of a charged release from its seed: 32 bytes that all its noise is drawn from.

    It is HKDF-SHA256 over everything the release's bytes depend on.
    """
    return _derive(seed, json.dumps(["warpdesk/noise/v1", *parts], separators=(",", ":")).encode())


def _derive(key: bytes, info: bytes) -> bytes:
    return HKDF(SHA256(), SIZE, salt=None, info=info).derive(key)


_Stamp = tuple[int, int, int]


def _read(path: Path) -> tuple[_Stamp, tuple[bytes, ...]]:
    """Read the ledger's key file: a stamp that changes when the file is replaced, and its keys."""
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        if stat.S_IMODE(status.st_mode) & 0o077:
            raise UnusableKey(f"others may read the ledger's key {path}: chmod 600 it, and think of it as known")
        text = file.read(1 << 20)
    try:
        keys = tuple(bytes.fromhex(line.decode()) for line in text.split())
    except ValueError:
        keys = ()
    if not keys or any(len(key) != SIZE for key in keys):
        raise UnusableKey(f"{path} does not hold the {2 * SIZE} hexadecimal digits of a ledger's key")
    return (status.st_mtime_ns, status.st_size, status.st_ino), keys


def _write(path: Path, keys: Sequence[bytes], *, anew: bool) -> None:
    """Write the ledger's key file whole or not at all. With `anew`, an existing file stays: the new one is linked to a
    free name only."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        write_new(temporary, b"".join(b"%s\n" % key.hex().encode() for key in keys))
        if anew:
            with suppress(FileExistsError):
                os.link(temporary, path)
        else:
            temporary.replace(path)
    except OSError as error:
        raise UnusableKey(f"no key can be made for the ledger: {error}") from error
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def alone(directory: Path) -> Iterator[None]:
    """Hold the lock of the directory of the ledger's key file: one process in the block at a time."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
