"""Benchmark of a service's start: how soon does it answer, compute its first job, and compute every operation?

A cold start is that of an empty home, where all CPU code is compiled; a warm one is the next start of the same home.
The clock begins with the command. Files of the libraries are in the page cache.
"""

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import httpx

from warpdesk_server.benchmarks.processes import starting
from warpdesk_server.benchmarks.report import Row, show
from warpdesk_server.kernels.catalogue import OPERATIONS

REPEATS = 3
PATIENCE = 600.0

# Seconds, for the slowest start on two quiet cores.
GOALS = {("cold", "first job"): 10.0, ("cold", "every operation"): 30.0, ("warm", "every operation"): 5.0}


def main() -> int:
    os.environ.pop("NUMBA_CACHE_DIR", None)  # the home's own
    seconds: dict[tuple[str, str], list[float]] = {}
    for _ in range(REPEATS):
        with TemporaryDirectory(prefix="warpdesk-bench-") as folder:
            for start in ("cold", "warm"):
                for what, took in _start(Path(folder)).items():
                    seconds.setdefault((start, what), []).append(took)
    rows: list[Row] = [
        {
            "start": start,
            "until": what,
            "starts": REPEATS,
            "median s": median(taken),
            "slowest s": max(taken),
            "goal s": GOALS.get((start, what)),
        }
        for (start, what), taken in seconds.items()
    ]
    show("start", rows)
    return int(any(row["goal s"] is not None and row["slowest s"] > row["goal s"] for row in rows))


def _start(home: Path) -> dict[str, float]:
    """Start a service; returns the seconds until it answers, has computed one job, and has tried every operation."""
    began = time.monotonic()
    with starting(home) as url, httpx.Client(base_url=url, timeout=PATIENCE) as client:
        took = {"answer": _until(lambda: client.get("/livez").status_code == 200) - began}
        shown = OPERATIONS["add"]
        body = {"operation": shown.name, **asdict(shown.example)}
        answer = client.post("/v1/jobs", content=json.dumps(body), headers=_JSON).raise_for_status().json()
        job = f"/v1/jobs/{answer['id']}"
        took["first job"] = _until(lambda: client.get(job).json()["status"] == "succeeded") - began
        took["every operation"] = _until(lambda: client.get("/readyz").status_code == 200) - began
        _until(lambda: any((home / "cache" / "numba").glob("*/complete-*")))  # the variants too, in the background
    return took


_JSON = {"Content-Type": "application/json"}


def _until(true: Callable[[], bool]) -> float:
    """The time at which something became true."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            if true():
                return time.monotonic()
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise SystemExit(f"the service has not come up in {PATIENCE:g} s")
