"""Hosts of their own for a test: network namespaces, each at the other end of a cable."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path

import pytest

_PREFIX = "warpdesk-test-"


@dataclass(frozen=True)
class Cable:
    """Two ends of a network of two hosts: this one, and a namespace."""

    namespace: str
    here: str  # the address of this end
    device: str

    def pull(self) -> None:
        subprocess.run(["ip", "link", "set", self.device, "down"], check=True)

    def plug(self) -> None:
        subprocess.run(["ip", "link", "set", self.device, "up"], check=True)


@contextmanager
def cable(number: int = 0) -> Iterator[Cable]:
    """Skips the test where this user may not make one. Whatever happens, it is gone afterwards, or with the next.

    A process has at most four, by their numbers.
    """
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and the command ip")
    for line in subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout.splitlines():
        name = line.split()[0]
        if name.startswith(_PREFIX) and not Path("/proc", name.removeprefix(_PREFIX).partition("-")[0]).exists():
            subprocess.run(["ip", "netns", "delete", name])
    pid = os.getpid()
    name, near, far = f"{_PREFIX}{pid}-{number}", f"wd{pid}-{number}a", f"wd{pid}-{number}b"
    networks = list(ip_network("198.18.0.0/15").subnets(new_prefix=30))  # RFC 2544: used by no network
    here, there = map(str, networks[(4 * pid + number) % len(networks)].hosts())
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"no network namespace can be made here: {made.stderr.strip()}")
    try:
        inside = ["ip", "-n", name]
        for command in (
            ["ip", "link", "add", near, "type", "veth", "peer", "name", far, "netns", name],
            ["ip", "address", "add", f"{here}/30", "dev", near],
            [*inside, "address", "add", f"{there}/30", "dev", far],
            ["ip", "link", "set", near, "up"],
            [*inside, "link", "set", far, "up"],
            [*inside, "link", "set", "lo", "up"],
        ):
            subprocess.run(command, check=True, capture_output=True)
        yield Cable(name, here, near)
    finally:
        subprocess.run(["ip", "netns", "delete", name])
        subprocess.run(["ip", "link", "delete", near], capture_output=True)  # else it goes a moment later
