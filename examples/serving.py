"""Run a service of one's own for an example, and stop it at the end."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from warpdesk_server.service.processes import free_port, spawn, stop

ROOT = Path(__file__).resolve().parent.parent
PATIENCE = 300.0  # seconds without a word from the service: a first start compiles every operation, and tells of each


@contextmanager
def serving(home: Path | None = None, log: str = "example.log") -> Iterator[str]:
    """`warpdesk serve` in a home, WARPDESK_HOME or .warpdesk without one; gives its URL once it is ready."""
    home = (home or Path(os.environ.get("WARPDESK_HOME", ROOT / ".warpdesk"))).resolve()
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    port = free_port()
    print("starting Redis, the API and a worker (a first start compiles every operation) ...", flush=True)
    began, written = time.monotonic(), home / log
    written.unlink(missing_ok=True)  # what an earlier one said
    service = spawn(
        [sys.executable, "-m", "warpdesk", "serve", "--port", str(port)],
        env={**os.environ, "WARPDESK_HOME": str(home)},
        cwd=ROOT,
        log=written,
    )
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_until_ready(url, lambda: service.poll() is None, written)
        print(f"ready after {time.monotonic() - began:.1f} s\n", flush=True)
        yield url
    finally:
        stop(service, patience=60)


def _wait_until_ready(url: str, alive: Callable[[], bool], log: Path) -> None:
    deadline, shown = time.monotonic() + PATIENCE, 0
    while time.monotonic() < deadline and alive():
        try:
            if httpx.get(f"{url}/readyz", timeout=5).status_code == 200:
                return
        except httpx.TransportError:  # not listening yet
            pass
        if log.stat().st_size > shown:
            deadline, shown = time.monotonic() + PATIENCE, log.stat().st_size
        time.sleep(0.1)
    why = f"said nothing for {PATIENCE:g} s; what it compiled is kept, so try again" if alive() else "ended"
    raise SystemExit(f"the service did not become ready: it {why}. {log} says:\n{log.read_text()[-2000:]}")
