"""The secret of a store, and the digests keyed with it: array ids, names of owners' directories, MACs of records."""

import os
import secrets
from contextlib import suppress
from pathlib import Path

from blake3 import blake3

from warpdesk.durable import force, write_new
from warpdesk_server.kernels.array import ArrayInfo

_SECRET_BYTES = 32


class UnusableStore(Exception):
    """The directory cannot be used as a store; the message says what to do."""


class StoreKeys:
    """Keyed digests under the secret of one store."""

    def __init__(self, root: Path) -> None:
        """Reads the secret of the store, or makes one for a new store. Raises UnusableStore if it is lost."""
        self._secret = known_secret(root) or _new_secret(root / "secret")
        self._record_key = self._keyed(b"record|", "")

    def mac_of(self, text: str) -> str:
        """A MAC of a job's record: a digest of its text under a key of the store's secret that has no other use."""
        return blake3(text.encode(), key=self._record_key).hexdigest()

    def directory(self, owner: str) -> str:
        """The name of an owner's directory in the store. It is a digest, since an owner's id may hold anything, "../"
        included."""
        return self._keyed(b"directory|", owner).hex()[:32]

    def array_mac(self, owner: str, info: ArrayInfo) -> blake3:
        """The store's keyed hash of an array, which becomes the array's id once it was updated with the content."""
        described = f"{info.dtype}|{','.join(str(length) for length in info.shape)}|"
        return blake3(described.encode(), key=self._keyed(b"owner|", owner))

    def _keyed(self, purpose: bytes, owner: str) -> bytes:
        return blake3(purpose + owner.encode(), key=self._secret).digest()


def id_of(mac: blake3) -> str:
    return f"blake3:{mac.hexdigest()}"


def known_secret(root: Path) -> bytes | None:
    """The secret that a store's array ids are keyed with; None in a new store. Raises UnusableStore if it is lost."""
    file, wrong = root / "secret", "is gone"
    with suppress(FileNotFoundError):
        secret = file.read_bytes()
        if len(secret) == _SECRET_BYTES:
            return secret
        wrong = f"has {len(secret)} bytes, not {_SECRET_BYTES}"
    owners = root / "owners"
    if wrong == "is gone" and not (owners.is_dir() and any(owners.iterdir())):
        return None
    raise UnusableStore(
        f"the store's secret {file} {wrong}, and no array can be found without it: put it back from a backup, or move "
        f"{root} away and begin without its arrays and results"
    )


def _new_secret(file: Path) -> bytes:
    """Make the secret of a new store. If two processes do so at once, both get the secret of the first."""
    temporary = file.with_name(f"secret.{secrets.token_hex(8)}")
    write_new(temporary, secrets.token_bytes(_SECRET_BYTES))
    with suppress(FileExistsError):
        os.link(temporary, file)  # unlike a rename, a link never replaces another process' secret
    temporary.unlink()
    force(file.parent, file.parent.parent)  # the ids of every array depend on it
    return file.read_bytes()
