"""A running service for a real Prometheus to look at: an emulated GPU, a driver that is played, a healthy load."""

import itertools
import json
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

import httpx
import redis
import yaml

from tests.conftest import Service, free_port, serve
from tests.cudasim.device import EmulatedDevice
from tests.deploy.tools import tool
from tests.stand_ins.nvml import A100
from warpdesk_server.kernels.catalogue import OPERATIONS

DEPLOY = Path(__file__).parents[2] / "deploy"
SCRIPTS = Path(__file__).parents[1] / "workers" / "gpu" / "nvml"


class NumberedEmulation(EmulatedDevice):
    """The emulated GPU, in the place of the one with that UUID."""

    def __init__(self, uuid: str = "") -> None:
        super().__init__()
        self.name = f"NVIDIA A100-SXM4-80GB, emulated for {uuid}"


def script(path: Path) -> Path:
    """An A100 in good health, with performance monitoring, whose driver has logged the fault of some program."""
    played = json.loads((SCRIPTS / "a100.json").read_text())
    [gpu] = played["moments"][0]["devices"]
    gpu["gpm"] = {
        "NVML_GPM_METRIC_SM_UTIL": 62.5,
        "NVML_GPM_METRIC_SM_OCCUPANCY": 31.25,
        "NVML_GPM_METRIC_ANY_TENSOR_UTIL": 12.5,
        "NVML_GPM_METRIC_DRAM_BW_UTIL": 15.625,
    }
    gpu["xids"] = [31]
    path.write_text(json.dumps(played))
    return path


@contextmanager
def serving(home: Path, metrics_port: int) -> Iterator[Service]:
    """A service with one worker that computes on both backends."""
    environment = {
        "STAND_IN_NVML": str(script(home.parent / "driver.json")),
        "WARPDESK_GPM": "true",
        "WARPDESK_DEVICE": f"tests.deploy.live:NumberedEmulation@{A100}",
        "WARPDESK_METRICS_PORT": str(metrics_port),
        "WARPDESK_PRICES": json.dumps({"NVIDIA A100": 1.5, "cpu": 0.1}),
        "WARPDESK_CANARY_SECONDS": "2",
        "STAND_IN_FAULTS": "launch@1/once",  # the first job's launch is refused: the CPU answers it
        "WARPDESK_AUTO": "gpu",
    }
    with serve(home, **environment) as service:
        yield service


def give_redis_a_limit(home: Path) -> None:
    """As deploy/redis does; the server that `warpdesk serve` starts itself has none."""
    with redis.Redis(unix_socket_path=str(next(home.rglob("redis.sock")))) as connection:
        connection.config_set("maxmemory", 1 << 30)


class Load:
    """Jobs of every operation on both backends, one after another in a few threads, until it is left; of operations
    that the page counts as one, the last stands for all that a GPU has."""

    COUNTED: ClassVar = {operation.counted_as or name: name for name, operation in OPERATIONS.items() if operation.gpu}
    WORK = tuple(itertools.product(COUNTED.values(), ("gpu", "cpu")))
    PAUSE = 0.03  # seconds of a thread between two jobs

    def __init__(self, url: str, threads: int = 2) -> None:
        self._url = url
        self._stop = threading.Event()
        self._turns = itertools.count()
        self._threads = [threading.Thread(target=self._run) for _ in range(threads)]
        self.ends: set[tuple[str, str, str]] = set()  # operation, backend that was asked for, how it ended
        self.failures: list[str] = []
        self.ended = 0

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)

    def last(self, seconds: float) -> None:
        """Wait so long, and until every kind of job has ended twice."""
        began = time.monotonic()
        while time.monotonic() < began + seconds or self.ended < 2 * len(self.WORK):
            assert not self.failures, self.failures
            assert time.monotonic() < began + 120, f"{self.ended} jobs in 120 s"
            time.sleep(0.1)

    def _run(self) -> None:
        with httpx.Client(base_url=self._url, timeout=60) as http:
            while not self._stop.wait(self.PAUSE):
                turn = next(self._turns)
                name, backend = self.WORK[turn % len(self.WORK)]
                # What is small is urgent: an emulated GPU takes long for what a real one does at once.
                priority = "realtime" if name in ("sum", "min", "max") else ("batch", "research")[turn // 2 % 2]
                body = {"operation": name, "backend": backend, "priority": priority, **asdict(OPERATIONS[name].example)}
                sent = http.post("/v1/jobs", json=body, headers={"Prefer": "wait=30"})
                if sent.status_code != 200:
                    self.failures.append(f"{name} on {backend}: {sent.status_code} {sent.text}")
                    return
                self.ends.add((name, backend, sent.json()["status"]))
                self.ended += 1


def once(url: str) -> None:
    """What the load has not: a job that the GPU refuses, releases of budgets of every accountant, a release
    that is refused, a replay, a request that is wrong, and values that are."""
    with httpx.Client(base_url=url, timeout=60, headers={"Prefer": "wait=30"}) as http:
        fell_back = http.post("/v1/jobs", json={"operation": "rsi", **asdict(OPERATIONS["rsi"].example)})
        assert fell_back.json()["provenance"]["fallback_reason"], fell_back.text[:2000]
        for accountant, held in (
            ("pure", {"epsilon": "0.4"}),
            ("approx", {"epsilon": "1", "delta": "1e-6"}),
            ("zcdp", {"rho": "1"}),
        ):
            budget = {"name": "autumn", "dataset": f"orders, {accountant}", "accountant": accountant, **held}
            made = http.post("/v1/budgets", json={**budget, "neighbouring": "add_remove"})
            assert made.status_code == 201, made.text
            release = _release(made.json()["id"], "0.1")
            for _ in range(2):  # the second time it is a replay
                answer = http.post("/v1/jobs", json=release, headers={"Idempotency-Key": accountant})
                assert answer.status_code == 200, answer.text
        refused = http.post("/v1/jobs", json=_release(made.json()["id"], "9"), headers={"Idempotency-Key": "too much"})
        assert refused.status_code == 409, refused.text
        assert http.post("/v1/jobs", json={"operation": "rsi", "params": {"period": 0}}).status_code == 422
        contradicting = asdict(OPERATIONS["shamir_reconstruct"].example)
        contradicting["inputs"]["shares"]["data"][0][0] += 1
        failed = http.post("/v1/jobs", json={"operation": "shamir_reconstruct", **contradicting})
        assert failed.json()["status"] == "failed", failed.text


def _release(budget: str, epsilon: str) -> dict[str, Any]:
    return {
        "operation": "dp_noise",
        "params": {
            "mechanism": "discrete_laplace", "mode": "records", "epsilon": epsilon, "neighbouring": "add_remove",
            "clip": {"norm": "linf", "bound": "100"}, "budget": budget,
        },
        "inputs": {"values": {"data": [12.5, 99.0, 3.25], "dtype": "float64"}},
    }  # fmt: skip


class Prometheus:
    """A real one, with our rules, that looks every second."""

    def __init__(self, folder: Path, target: str) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        settings = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
        settings["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
        [ours] = [job for job in settings["scrape_configs"] if job["job_name"] == "warpdesk-api"]
        settings["scrape_configs"] = [{"job_name": ours["job_name"], "static_configs": [{"targets": [target]}]}]
        (folder / "rules").mkdir(parents=True)
        for path in (DEPLOY / "prometheus" / "rules").glob("*.yml"):
            text = re.sub(r"^    interval: \S+$", "    interval: 1s", path.read_text(), flags=re.MULTILINE)
            (folder / "rules" / path.name).write_text(text)
        (folder / "prometheus.yml").write_text(yaml.safe_dump(settings))
        self._folder = folder
        self._http = httpx.Client(base_url=self.url, timeout=30)
        self.now: float | None = None  # Unix seconds: what is asked is asked of this time

    def __enter__(self) -> "Prometheus":
        command = [
            tool("prometheus"),
            f"--config.file={self._folder}/prometheus.yml",
            f"--storage.tsdb.path={self._folder}/data",
            f"--web.listen-address={self.url.removeprefix('http://')}",
            "--log.level=warn",
        ]
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + 30
        while True:
            try:
                if self._http.get("/-/ready").status_code == 200:
                    return self
            except httpx.TransportError:
                pass
            assert self._process.poll() is None, (self._folder / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def __exit__(self, *error: object) -> None:
        self._process.terminate()
        self._process.wait(30)
        self._http.close()

    def query(self, expr: str) -> list[dict[str, Any]]:
        """The samples at that time; of a scalar one without labels."""
        at = {} if self.now is None else {"time": str(self.now)}
        answer = self._http.post("/api/v1/query", data={"query": expr, **at})
        assert answer.status_code == 200, f"{expr}: {answer.text}"
        data = answer.json()["data"]
        return [{"metric": {}, "value": data["result"]}] if data["resultType"] == "scalar" else list(data["result"])

    def alerts(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._http.get("/api/v1/alerts").json()["data"]["alerts"]
        return found

    def rules(self) -> list[dict[str, Any]]:
        groups = self._http.get("/api/v1/rules").json()["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]
