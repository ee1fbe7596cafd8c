"""fly.toml and its autoscaler: what a strict validator refuses, what its commands do, what its query counts."""

import json
import math
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from deploy.fly import validate
from tests.app.conftest import live, unlike
from tests.conftest import ROOT, free_port
from tests.deploy.tools import tool
from tests.waiting import wait_until
from warpdesk.cli.main import parser
from warpdesk_server.service.serve import GRACE
from warpdesk_server.workers.settings import WorkerSettings

APP, AUTOSCALER = (ROOT / "fly.toml").read_text(), (ROOT / "deploy/fly/autoscaler/fly.toml").read_text()


def planted(old: str, new: str, text: str = APP) -> str:
    assert text.count(old) >= 1, f"{old!r} is not in the file any more"
    return text.replace(old, new)


def test_both_files_are_right_and_the_command_says_so() -> None:
    assert validate.mistakes(APP) == []
    assert validate.mistakes(AUTOSCALER) == []
    command = [sys.executable, "deploy/fly/validate.py"]
    ran = subprocess.run([*command, "fly.toml"], cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert (ran.returncode, ran.stdout) == (0, "fly.toml: right\n")


MISTAKES = {
    "an unknown section": (APP + "\n[deployment]\n", "deployment is unknown to fly.io"),
    "an unknown key": (planted("internal_port", "inner_port"), "http_service.inner_port is unknown"),
    "an unknown key of a check": (planted("grace_period", "patience"), "http_service.checks.patience is unknown"),
    "autoscaling on a GPU's use": (APP + '\n[[autoscaling]]\nmetric = "gpu"\n', "autoscaling does not exist"),
    "scale": (APP + "\n[scale]\nmin = 1\n", "scale does not exist: the number of machines is set by `fly scale count`"),
    "regions": (planted('app = "warpdesk"', 'app = "warpdesk"\nregions = ["iad"]'), "regions does not exist"),
    "health_check": (APP + "\n[health_check]\n", "health_check does not exist"),
    "a GPU": (planted('memory = "8gb"', 'memory = "8gb"\n  gpu_kind = "l40s"'), "vm.gpu_kind does not exist: fly.io"),
    "GPUs": (planted('memory = "8gb"', 'memory = "8gb"\n  gpus = 1'), "vm.gpus does not exist"),
    "an A100": (planted("performance-4x", "a100-40gb"), "vm.size a100-40gb does not exist: fly.io has had no GPU"),
    "an A10": (planted("performance-4x", "a10"), "vm.size a10 does not exist"),
    "an L40S": (planted("performance-4x", "l40s"), "vm.size l40s does not exist"),
    "a size nobody has": (planted("performance-4x", "performance-5x"), "vm.size performance-5x is unknown"),
    "a number in env": (planted('"270"', "270"), "env.WARPDESK_DRAIN_SECONDS is 270, and environment variables"),
    "fly.io's own name": (planted("WARPDESK_PRICES", "FLY_PRICES"), "env.FLY_PRICES: names that begin with FLY_"),
    "too long a wait": (planted('"300s"', '"10m"'), "kill_timeout is 600 s, and fly.io allows 300 s"),
    "no wait": (planted('kill_timeout = "300s"', ""), "kill_timeout is not set"),
    "a wait shorter than the drain": (planted('"300s"', '"270s"'), "and a worker drains for 270 s"),
    "fly.io's own signal": (planted('"SIGTERM"', '"SIGINT"'), "kill_signal is not SIGTERM"),
    "what is no duration": (planted('"300s"', '"long"'), "kill_timeout is 'long', and not a duration"),
    "a group that is not there": (planted('["worker"]', '["workers"]'), "names workers, and the process groups are"),
    "another port of metrics": (planted('PORT = "9091"', 'PORT = "9092"'), "no [[metrics]] is at port 9092"),
    "metrics of workers": (planted('["api"]\n  port', '["api", "worker"]\n  port'), "metrics are asked of worker"),
    "another port": (planted("--port 8000", "--port 8080"), "internal_port is 8000, and api listens on 8080"),
    "IPv4 alone": (planted("--host ::", "--host 0.0.0.0"), "workers come by IPv6 and the proxy by IPv4"),
    "a volume of workers": (planted('["api"]\n  source', '["worker"]\n  source'), "workers share nothing by files"),
    "an API that stops": (planted('"off"', '"stop"'), "auto_stop_machines off"),
    "an unknown way to stop": (planted('"off"', '"always"'), "is 'always', and can be off, stop, suspend"),
    "a worker started again": (planted('"on-failure"', '"always"'), "only with restart policy on-failure"),
    "a check without a path": (planted('path = "/livez"', ""), "http_service.checks have no path"),
    "a check longer than its pause": (planted('timeout = "3s"', 'timeout = "15s"'), "may take as long as the time"),
    "no TOML": (planted("[env]", "[env"), "it is not TOML"),
    "the autoscaler's section": (AUTOSCALER + "\n[autoscaling]\n", "autoscaling does not exist"),
    "the autoscaler's key": (planted("[metrics]", "[metrics]\n  ports = 1", AUTOSCALER), "metrics.ports is unknown"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_refused_with_a_sentence(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, sentence = MISTAKES[name]
    file = tmp_path / "fly.toml"
    file.write_text(text)
    assert validate.main([str(file)]) == 1
    assert sentence in capsys.readouterr().out


def test_the_validator_knows_the_drain_and_the_grace_of_this_release() -> None:
    assert WorkerSettings.model_fields["drain_seconds"].default == validate.DEFAULT_DRAIN
    assert validate.SERVE_GRACE == GRACE


def environment_of(group: str, text: str = APP) -> str:
    """The command of a process group."""
    command: str = tomllib.loads(text)["processes"][group]
    return command


def environment(home: Path, **more: str) -> dict[str, str]:
    """What a machine would have: the file's variables, with a home and a `warpdesk` of this test's."""
    shim = home.parent / "bin"
    shim.mkdir(exist_ok=True)
    (shim / "warpdesk").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m warpdesk "$@"\n')
    (shim / "warpdesk").chmod(0o755)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("WARPDESK_")}
    ours = {name: value for name, value in tomllib.loads(APP)["env"].items() if "METRICS" not in name}
    return {**clean, **ours, "PATH": f"{shim}:{clean['PATH']}", "WARPDESK_HOME": str(home), **more}


def test_the_api_waits_for_its_keys_and_then_listens_on_both_kinds_of_address(redis_url: str, tmp_path: Path) -> None:
    port, home = free_port(), tmp_path / "home"
    home.mkdir(0o700)
    settings = environment(home, API_REDIS_URL=redis_url)
    script = planted("--port 8000", f"--port {port}", environment_of("api"))
    log = tmp_path / "log"
    with log.open("wb") as file:
        api = subprocess.Popen(["sh", "-c", f"exec {script}"], cwd=ROOT, env=settings, stdout=file, stderr=file)
    try:
        wait_until(lambda: "waiting for" in log.read_text(), log.read_text)
        create = ["warpdesk", "keys", "create", "first", "--scopes", "submit,read,cancel,admin"]
        made = subprocess.run(create, cwd=ROOT, env=settings, capture_output=True, text=True, check=True)
        for host in ("127.0.0.1", "[::1]"):
            wait_until(lambda host=host: answers(f"http://{host}:{port}/livez"), log.read_text)
        assert answers(f"http://[::1]:{port}/v1/operations", made.stdout.strip())
        assert made.stdout.strip() not in log.read_text()
    finally:
        api.send_signal(signal.SIGTERM)
        assert api.wait(30) == 0


def answers(url: str, key: str | None = None) -> bool:
    try:
        return httpx.get(url, headers={"Authorization": f"Bearer {key}"} if key else {}, timeout=5).is_success
    except httpx.TransportError:
        return False


def test_a_worker_of_the_app_is_told_its_own_redis_the_apis_private_name_and_the_ledgers_key(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    machine = environment(
        home, WORKER_REDIS_URL="rediss://worker:x@r:6379/0", FLY_APP_NAME="mine", LEDGER_KEY="ab" * 32
    )
    Path(machine["PATH"].partition(":")[0], "warpdesk").write_text(
        '#!/bin/sh\nprintf "%s\\n" "$*" "$WARPDESK_REDIS_URL" "$WARPDESK_API_URL"\n'
    )
    ran = subprocess.run(
        ["sh", "-c", environment_of("worker")], env=machine, capture_output=True, text=True, timeout=20
    )
    arguments, redis_url, api_url = ran.stdout.splitlines()
    assert redis_url == "rediss://worker:x@r:6379/0"
    assert api_url == "http://api.process.mine.internal:8000"
    assert (home / "ledger.key").read_text() == "ab" * 32
    assert (home / "ledger.key").stat().st_mode & 0o777 == 0o600
    assert parser().parse_args(arguments.split()).idle_exit == 300


def scaling() -> dict[str, str]:
    env: dict[str, str] = tomllib.loads(AUTOSCALER)["env"]
    return env


@contextmanager
def prometheus(folder: Path, targets: list[str]) -> Iterator[str]:
    """One that asks these each second as one app's machines; its URL."""
    port = free_port()
    config = {
        "global": {"scrape_interval": "1s"},
        "scrape_configs": [
            {"job_name": "warpdesk", "static_configs": [{"targets": targets, "labels": {"app": "mine"}}]}
        ],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [
                tool("prometheus"),
                f"--config.file={folder}/prometheus.yml",
                f"--storage.tsdb.path={folder}/data",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def test_the_autoscaler_counts_queued_and_running_jobs_once_however_many_apis_tell_of_them(
    redis_url: str, tmp_path: Path
) -> None:
    query = scaling()["FAS_PROMETHEUS_QUERY"].replace("${APP_NAME}", "mine")
    metrics = [free_port(), free_port()]
    home = tmp_path / "home"
    with (
        live(home, redis_url, metrics_port=metrics[0]) as api,
        live(home, redis_url, metrics_port=metrics[1]),
        prometheus(tmp_path, [f"127.0.0.1:{port}" for port in metrics]) as url,
    ):
        for _ in range(5):
            api.submit(**unlike())

        def counted() -> list[float]:
            try:
                found = httpx.get(f"{url}/api/v1/query", params={"query": query}).json()["data"]["result"]
                ups = httpx.get(f"{url}/api/v1/query", params={"query": "sum(up)"}).json()["data"]["result"]
            except (httpx.TransportError, ValueError):  # it is not up, or says so in plain text
                return []
            both = bool(ups) and float(ups[0]["value"][1]) == 2
            return [float(one["value"][1]) for one in found] if both else []

        wait_until(lambda: counted() == [5.0], (tmp_path / "prometheus.log").read_text, 90)


@pytest.mark.parametrize(("jobs", "machines"), [(0, 0), (1, 1), (4, 1), (5, 2), (32, 8), (1000, 8)])
def test_machines_follow_jobs_down_to_none_and_up_to_a_limit(jobs: int, machines: int) -> None:
    formula = scaling()["FAS_MIN_STARTED_MACHINE_COUNT"]
    assert eval(formula, {"__builtins__": {}}, {"min": min, "ceil": math.ceil, "jobs": jobs}) == machines  # noqa: S307


def test_the_autoscaler_stops_no_machine_since_workers_stop_themselves() -> None:
    """It cannot tell a busy machine from an idle one; a greatest number would make it choose."""
    assert not {"FAS_STARTED_MACHINE_COUNT", "FAS_MAX_STARTED_MACHINE_COUNT"} & scaling().keys()
    assert "--idle-exit" in environment_of("worker")
    assert scaling()["FAS_PROCESS_GROUP"] in tomllib.loads(APP)["processes"]
    assert scaling()["FAS_APP_NAME"] == tomllib.loads(APP)["app"]
