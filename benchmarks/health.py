"""Benchmark of the health routes: how soon do they answer while a GPU's driver hangs?

An API and a real worker on a device of paper, whose driver is played: it answers, and then a call of it does not return
any more. Each route is asked in turn by one client over one connection, so that what is measured is an answer, and not
a queue of askers. Both processes are this machine's, and share its cores with the client.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from tests.stand_ins.nvml import A100
from warpdesk_server.benchmarks.processes import ROOT, api, redis, worker
from warpdesk_server.benchmarks.report import Row, show

ROUTES = ("/livez", "/readyz", "/health", "/gpu-health", "/gpu-memory")
REQUESTS = 500  # times each
GOAL = 0.050  # seconds, for the 99th percentile
PATIENCE = 60.0

_SCRIPT = ROOT / "tests" / "workers" / "gpu" / "nvml" / "a100.json"


def main() -> int:
    with redis() as redis_url, TemporaryDirectory(prefix="warpdesk-bench-") as folder:
        home = Path(folder)
        script = home / "driver.json"
        script.write_text(_SCRIPT.read_text())
        settings = {
            "WARPDESK_OPERATIONS": "tests.workers.operations:SOUND",
            "WARPDESK_DEVICE": f"tests.workers.several:NumberedDevice@{A100}",
            "STAND_IN_NVML": str(script),
        }
        with (
            api(redis_url, home) as url,
            worker(redis_url, home, settings, through=("tests.stand_ins",)),
            httpx.Client(base_url=url) as client,
        ):
            _until(lambda: _driver(client).get("energy_joules") is not None, "the driver was not read")
            rows = _measure(client, "answers")
            _hang(script)
            _until(lambda: _driver(client)["hung_since"] is not None, "nobody told that the driver hangs")
            rows += _measure(client, "hangs")
            script.write_text(_SCRIPT.read_text())  # lets the call return
    show("health", rows)
    return int(any(row["p99 ms"] > GOAL * 1e3 for row in rows))


def _measure(client: httpx.Client, driver: str) -> list[Row]:
    taken: dict[str, list[float]] = {route: [] for route in ROUTES}
    for _ in range(REQUESTS):
        for route, seconds in taken.items():
            began = time.perf_counter()
            answer = client.get(route)
            seconds.append(time.perf_counter() - began)
            if answer.status_code not in (200, 503):  # the worker leaves a GPU alone whose driver hangs for ten seconds
                raise SystemExit(f"{route} answered {answer.status_code}: {answer.text[:500]}")
    return [
        {
            "route": route,
            "driver": driver,
            "asked": REQUESTS,
            "median ms": median(seconds) * 1e3,
            "p99 ms": quantiles(seconds, n=100)[98] * 1e3,
            "slowest ms": max(seconds) * 1e3,
            "goal p99 ms": GOAL * 1e3,
        }
        for route, seconds in taken.items()
    ]


def _hang(script: Path) -> None:
    """Make the simulated driver hang: no further call for the GPU's memory returns."""
    played = json.loads(_SCRIPT.read_text())
    played["moments"][0]["devices"][0]["nvmlDeviceGetMemoryInfo"] = {"hang": True}
    new = script.with_suffix(".new")
    new.write_text(json.dumps(played))
    new.replace(script)


def _driver(client: httpx.Client) -> dict[str, Any]:
    devices = client.get("/gpu-health").raise_for_status().json()["devices"]
    return dict(devices[0]["driver"] or {}) if devices else {}


def _until(true: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        if time.monotonic() > deadline:
            raise SystemExit(f"{otherwise} in {PATIENCE:g} s")
        time.sleep(0.05)
