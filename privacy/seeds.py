"""Secrets of the ledger: the key outside the database, the seeds it wraps, the digests it keys.

Whoever has the database and not the key learns no seed, and can neither find an input by hashing guesses nor change
what a digest covers unseen. Whoever has both can compute the noise of charges that are not released yet.
"""

import hashlib
import hmac
import json
import os
import secrets
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

SIZE = 32  # bytes of the key, and of a seed

_NONCE = 12  # of ChaCha20-Poly1305


class UnusableKey(ValueError):
    """The key file holds no key, or others may read it; the message says which file and what to do."""


class WrongKey(ValueError):
    """The database was made with another key, or a seed was wrapped by one."""


def load_key(path: Path) -> bytes:
    """Return the key kept at `path`, 64 hexadecimal digits; makes one, readable by its owner alone, where none is.

    Processes that start at once agree on one. Raises UnusableKey.
    """
    try:
        key = _read(path)
    except FileNotFoundError:
        _make(path)
        key = _read(path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)  # its name is on the disk before anything is wrapped by it, whoever made it
    finally:
        os.close(directory)
    return key


class Secrets:
    """What one key does. Digests and wrapped seeds of different purposes never meet: each has a key of its own."""

    def __init__(self, key: bytes) -> None:
        if len(key) != SIZE:
            raise UnusableKey(f"the ledger's key has {len(key)} bytes and not {SIZE}")
        self._wrapping = ChaCha20Poly1305(_derive(key, b"warpdesk/ledger/v1/wrap"))
        self._digesting = _derive(key, b"warpdesk/ledger/v1/digest")

    def digest(self, purpose: str, *parts: str | None) -> str:
        """HMAC-SHA256 of the parts for one purpose, in hexadecimal."""
        message = json.dumps([purpose, *parts], separators=(",", ":")).encode()
        return hmac.new(self._digesting, message, hashlib.sha256).hexdigest()

    def seal(self, purpose: str, row: Mapping[str, Any]) -> str:
        """The digest of a row's fields but its seal: who has not the key cannot change it unseen."""
        fields = {name: value for name, value in row.items() if name != "seal"}
        return self.digest(purpose, json.dumps(fields, sort_keys=True, separators=(",", ":")))

    def wrap(self, seed: bytes, charge_id: str) -> bytes:
        """A seed for the database, which opens for this charge alone."""
        nonce = secrets.token_bytes(_NONCE)
        return nonce + self._wrapping.encrypt(nonce, seed, charge_id.encode())

    def unwrap(self, wrapped: bytes, charge_id: str) -> bytes:
        """Raises WrongKey where it was wrapped by another key, for another charge, or changed since."""
        try:
            return self._wrapping.decrypt(wrapped[:_NONCE], wrapped[_NONCE:], charge_id.encode())
        except (InvalidTag, ValueError):
            raise WrongKey(f"the seed of {charge_id} does not open with this key") from None


def noise_key(seed: bytes, *told: str) -> bytes:
    """The 32 bytes that all noise of one release is drawn from: HKDF-SHA256 over everything its bytes depend on."""
    return _derive(seed, json.dumps(["warpdesk/noise/v1", *told], separators=(",", ":")).encode())


def _derive(key: bytes, info: bytes) -> bytes:
    return HKDF(SHA256(), SIZE, salt=None, info=info).derive(key)


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
            raise UnusableKey(f"others may read the ledger's key {path}: chmod 600 it, and think of it as known")
        text = file.read(4 * SIZE).strip()
    try:
        key = bytes.fromhex(text.decode())
    except ValueError:
        key = b""
    if len(key) != SIZE:
        raise UnusableKey(f"{path} does not hold the {2 * SIZE} hexadecimal digits of a ledger's key")
    return key


def _make(path: Path) -> None:
    """Whole or not at all, and only where none is: a link to a finished file takes the name, or finds it taken."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(SIZE) + "\n")
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(temporary, path)
    except OSError as error:
        raise UnusableKey(f"no key can be made for the ledger: {error}") from error
    finally:
        temporary.unlink(missing_ok=True)
