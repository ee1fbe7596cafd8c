"""The user of the process at the other end of a local connection, from the kernel's socket tables."""

import ipaddress
import struct
from pathlib import Path

import anyio.to_thread
from fastapi import Request

_TABLES = Path("/proc/net")

Address = tuple[str, int | None]


class Peer:
    """The process at the other end of a local connection, shared by all requests on it."""

    def __init__(self, here: Address | None, there: Address | None) -> None:
        self._here, self._there = here, there
        self._user: int | None = None

    async def user(self) -> int | None:
        """The uid of the process that is connected to the API, looked up once; None if the kernel does not tell."""
        if self._user is None and self._here and self._there:
            self._user = await anyio.to_thread.run_sync(owner, self._there, self._here)
        return self._user


async def user_of(request: Request) -> int | None:
    """The uid of the process that sent a request to the API; None if the kernel does not tell. Another server than
    ours makes no Peer."""
    peer = getattr(request.state, "peer", None) or Peer(request.scope["server"], request.scope["client"])
    found: int | None = await peer.user()
    return found


def owner(here: Address, there: Address) -> int | None:
    """The uid of the process whose local socket is bound to `here` and connected to `there`.

    None if no process has such a socket any more, or if there are no socket tables (they are Linux's).
    """
    ends = [_written(*end) for end in (here, there)]
    for table in ("tcp", "tcp6"):  # a client may speak IPv4 by a socket of IPv6
        wanted = " ".join(end[table] for end in ends if table in end).encode()
        try:
            rows = (_TABLES / table).read_bytes().splitlines()
        except OSError:
            continue
        for row in rows:
            if wanted and wanted in row:
                _, _, _, _, _, _, _, uid, _, inode, *_ = row.split()
                if int(inode):  # one that was closed is nobody's, and its uid is told as root's
                    return int(uid)
    return None


def _written(host: str, port: int | None) -> dict[str, str]:
    """The address of a calling process's connection as the kernel's socket tables write it: 32-bit words in native
    byte order."""
    address: ipaddress.IPv4Address | ipaddress.IPv6Address = ipaddress.ip_address(host)
    if isinstance(address, ipaddress.IPv6Address):
        address = address.ipv4_mapped or address
    packed = {"tcp6": address.packed}
    if isinstance(address, ipaddress.IPv4Address):
        packed = {"tcp": address.packed, "tcp6": b"\0" * 10 + b"\xff\xff" + address.packed}
    return {
        table: "".join(f"{word:08X}" for (word,) in struct.iter_unpack("=I", value)) + f":{port or 0:04X}"
        for table, value in packed.items()
    }
