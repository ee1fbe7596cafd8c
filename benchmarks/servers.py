"""Benchmark of small jobs beside servers that keep nothing: the same RSI of 1,000 prices as JSON both ways.

The peers are one process of FastAPI that computes by itself, LitServe, BentoML and Ray Serve, each with one worker, by
TA-Lib (`peers`). Warpdesk runs with one worker and every step on the disk, with the prices in the body and with prices
that were uploaded before. Each peer alternates with Warpdesk in bursts of wrk with one caller and with sixteen; each
body is new. Ratios are of medians of the bursts beside each other.
"""

import json
import os
import shutil
import signal
import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import numpy as np

from warpdesk_server.benchmarks.processes import ROOT, redis, service
from warpdesk_server.benchmarks.report import Row, show
from warpdesk_server.service.processes import free_port

PEERS = ("fastapi", "litserve", "bentoml", "ray")
OURS = {"warpdesk": "body", "warpdesk, prices uploaded before": "uploaded"}
PYTHON = ROOT / ".venv" / "servers" / "bin" / "python"
SECONDS, ROUNDS, BODIES = 5, 3, 2_000
CALLERS = (1, 16)
# Of LitServe: the most times its median with one caller, and the least of its requests a second with sixteen, with the
# prices in the body and uploaded before.
MEDIAN, REQUESTS, UPLOADED = 1.5, 1.0, 1.5

_HERE = Path(__file__).resolve().parent


def main() -> int:
    if not PYTHON.exists():
        raise SystemExit("the peers are not installed: make .venv/servers/ready")
    if shutil.which("wrk") is None:
        raise SystemExit("wrk is not installed: apt-get install wrk")
    rows = list[Row]()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="warpdesk-bench-")))
        url = stack.enter_context(service(stack.enter_context(redis()))) + "/v1/jobs"
        bodies = _write_bodies(folder, url)
        for peer in PEERS:
            with _peer(peer, folder) as peer_url:
                ours = {
                    "warpdesk": (url, bodies["body"]),
                    "warpdesk, prices uploaded before": (url, bodies["uploaded"]),
                }
                rows += _beside(peer, {peer: (peer_url, bodies["peer"]), **ours})
    show("servers", rows)
    return int(not _reaches_goals(rows))


def _reaches_goals(rows: list[Row]) -> bool:
    found = {(row["beside"], row["server"], row["callers"]): row for row in rows}
    inline, uploaded = (found["litserve", name, 16] for name in OURS)
    return (
        found["litserve", "warpdesk", 1]["p50 ratio"] <= MEDIAN
        and inline["requests ratio"] >= REQUESTS
        and uploaded["requests ratio"] >= UPLOADED
    )


def _write_bodies(folder: Path, url: str) -> dict[str, Path]:
    """Write the files of bodies for wrk, and return them: of the peers, of Warpdesk, and of Warpdesk with prices that
    are uploaded here."""
    numbers = np.random.default_rng(7)
    files = {name: folder / f"{name}.txt" for name in ("peer", "body", "uploaded")}
    with ExitStack() as stack, httpx.Client(base_url=url.removesuffix("/v1/jobs")) as client:
        streams = {name: stack.enter_context(file.open("w")) for name, file in files.items()}
        for _ in range(BODIES):
            prices = (100 + numbers.normal(size=1000).cumsum()).round(4).tolist()
            csv = "\n".join(map(str, prices))
            stored = client.put("/v1/arrays", content=csv, headers={"Content-Type": "text/csv"}).raise_for_status()
            given = {"body": {"data": prices, "dtype": "float64"}, "uploaded": {"array": stored.json()["id"]}}
            streams["peer"].write(json.dumps({"prices": prices, "period": "@"}).replace('"@"', "@") + "\n")
            for name, close in given.items():
                body = {"operation": "rsi", "params": {"period": "@"}, "inputs": {"close": close}}
                streams[name].write(json.dumps(body).replace('"@"', "@") + "\n")
    return files


def _beside(peer: str, servers: dict[str, tuple[str, Path]]) -> list[Row]:
    """The rows of one peer and Warpdesk, in turns."""
    taken: dict[tuple[str, int], list[tuple[float, float, float]]] = {}
    for url, bodies in servers.values():
        _burst(url, bodies, 4, 2)
    for _ in range(ROUNDS):
        for callers in CALLERS:
            for name, (url, bodies) in servers.items():
                taken.setdefault((name, callers), []).append(_burst(url, bodies, callers, SECONDS))
    rows = list[Row]()
    for (name, callers), bursts in taken.items():
        p50, p99, rate = (statistics.median(burst[at] for burst in bursts) for at in range(3))
        base = taken[peer, callers]
        rows.append(
            {
                "beside": peer,
                "server": name,
                "callers": callers,
                "p50 ms": p50,
                "p99 ms": p99,
                "requests a second": rate,
                "p50 ratio": p50 / statistics.median(burst[0] for burst in base),
                "requests ratio": rate / statistics.median(burst[2] for burst in base),
            }
        )
    return rows


def _burst(url: str, bodies: Path, callers: int, seconds: int) -> tuple[float, float, float]:
    """Median and 99th percentile in ms, and requests a second, of a burst of wrk."""
    headers = ["Prefer", "wait=30"]
    command = ["wrk", "-t1", f"-c{callers}", f"-d{seconds}s", "--timeout", "20s", "-s", str(_HERE / "servers.lua"), url]
    ran = subprocess.run([*command, "--", str(bodies), *headers], capture_output=True, text=True, check=True)
    words = next(line for line in ran.stdout.splitlines() if line.startswith("result ")).split()
    if int(words[5]):
        raise SystemExit(f"{url} answered {words[5]} of {words[1]} requests with an error")
    return float(words[3]), float(words[4]), int(words[1]) / float(words[2])


@contextmanager
def _peer(name: str, folder: Path) -> Iterator[str]:
    """Run a peer; gives the address of its RSI."""
    url, log = f"http://127.0.0.1:{(port := free_port())}/rsi", folder / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [PYTHON, _HERE / "peers" / f"{name}_server.py", str(port)],
            cwd=folder, stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + 90
        while not _answers(url):
            if time.monotonic() > deadline or process.poll() is not None:
                raise SystemExit(f"{name} does not answer: {log.read_text()[-2000:]}")
            time.sleep(0.2)
        yield url
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        with suppress(ProcessLookupError):  # LitServe's workers outlive it
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _answers(url: str) -> bool:
    try:
        return httpx.post(url, json={"prices": [1.0, 2.0, 3.0, 2.0], "period": 2}, timeout=20).status_code == 200
    except httpx.TransportError:
        return False
