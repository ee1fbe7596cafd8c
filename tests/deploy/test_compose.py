"""What docker-compose.yml promises, read as Compose reads it; and its commands and files, run without an engine."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
import yaml

from tests.conftest import ROOT, free_port
from tests.deploy.image import DOCKERFILE, environment, stages, words
from tests.deploy.redis_of_deploy import has_tls
from tests.deploy.tools import tool
from tests.waiting import wait_until
from warpdesk_server.service.processes import stop
from warpdesk_server.service.redis_server import find_binary
from warpdesk_server.workers.settings import WorkerSettings

FILE = ROOT / "docker-compose.yml"
ONE_SHOT = "init"
OURS = ("init", "api", "worker", "worker-gpu")


def compose(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("WARPDESK_", "COMPOSE_"))}
    return subprocess.run(
        [tool("docker-compose"), "--file", str(FILE), *arguments],
        cwd=ROOT, env={**clean, **environment}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


@pytest.fixture(scope="module")
def services() -> dict[str, dict[str, Any]]:
    """Every service of every profile."""
    result = compose("--profile", "*", "config", "--format", "json")
    assert result.returncode == 0, result.stderr
    found: dict[str, dict[str, Any]] = json.loads(result.stdout)["services"]
    return found


@pytest.mark.parametrize("profile", [[], ["--profile", "gpu"]])
def test_compose_takes_the_file_and_warns_of_nothing(profile: list[str]) -> None:
    result = compose(*profile, "config", "--quiet")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_a_machine_without_a_gpu_is_asked_for_none() -> None:
    rendered = json.loads(compose("config", "--format", "json").stdout)
    assert set(rendered["services"]) == {"init", "redis", "api", "worker", "prometheus", "alertmanager", "grafana"}
    assert not re.search(r"nvidia|devices|capabilities|runtime", json.dumps(rendered))


def test_the_gpu_worker_is_the_only_more_and_has_one_gpu(services: dict[str, dict[str, Any]]) -> None:
    rendered = json.loads(compose("--profile", "gpu", "config", "--format", "json").stdout)
    assert set(rendered["services"]) == set(services)
    (device,) = services["worker-gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["count"]) == ("nvidia", 1)
    assert {"gpu", "compute", "utility"} == set(device["capabilities"])
    assert [name for name, service in services.items() if "reservations" in service["deploy"]["resources"]] == [
        "worker-gpu"
    ]


def test_no_service_can_become_more_than_it_is(services: dict[str, dict[str, Any]]) -> None:
    for name, service in services.items():
        assert service["user"] == "10001:10001", name
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["tmpfs"] == ["/tmp:size=64m,mode=1777,nosuid,nodev"], name  # noqa: S108
        unwanted = {"privileged", "cap_add", "devices", "pid", "ipc", "userns_mode", "container_name"}
        assert unwanted & service.keys() == set(), name


def test_every_service_has_limits_and_its_logs_an_end(services: dict[str, dict[str, Any]]) -> None:
    for name, service in services.items():
        limits = service["deploy"]["resources"]["limits"]
        assert min(float(limits["cpus"]), int(limits["memory"]) / 2**28, int(limits["pids"]) / 32) >= 1, name
        assert service["logging"] == {"driver": "json-file", "options": {"max-file": "3", "max-size": "10m"}}, name


def test_ports_are_on_loopback_and_redis_and_workers_have_none(services: dict[str, dict[str, Any]]) -> None:
    published = {name: service["ports"] for name, service in services.items() if "ports" in service}
    assert published.keys() == {"api", "prometheus", "alertmanager", "grafana"}
    assert {port["host_ip"] for ports in published.values() for port in ports} == {"127.0.0.1"}
    assert {name for name, service in services.items() if "front" in service.get("networks", {})} == published.keys()
    assert services["init"]["network_mode"] == "none"
    networks = json.loads(compose("config", "--format", "json").stdout)["networks"]
    assert networks["back"]["internal"] is True


def test_no_secret_is_in_an_environment_or_a_command(services: dict[str, dict[str, Any]]) -> None:
    for name, service in services.items():
        for variable, value in (service.get("environment") or {}).items():
            if re.search(r"PASSWORD|SECRET|TOKEN|KEY|URL", variable):
                if str(value).startswith("sqlite:"):  # a path, without a password
                    continue
                assert variable.endswith("_FILE"), (name, variable)
                assert value.startswith("/run/"), (name, variable)
        assert not re.search(r"requirepass|password=|://", " ".join(service.get("command") or [])), name
        mounted = {entry["source"] for entry in service["volumes"] if entry["target"] == "/run/secrets"}
        assert mounted <= {f"secrets-{name.removesuffix('-gpu')}"}  # and nobody sees another's
        ledger = [entry.get("read_only", False) for entry in service["volumes"] if entry["source"] == "ledger-key"]
        # The API replaces it when it is rotated, workers read it, Redis and Grafana have none.
        assert ledger == {"init": [False], "api": [False], "worker": [True], "worker-gpu": [True]}.get(name, []), name


def test_only_the_first_container_gives_a_volume_its_owner(services: dict[str, dict[str, Any]]) -> None:
    directories = " ".join(stages(DOCKERFILE.read_text())["runtime"].all("RUN"))
    for entry in services["init"]["volumes"]:
        if entry["type"] == "volume":
            assert f" {entry['target']}" in directories  # there it belongs to 10001
    for name, service in services.items():
        for entry in service["volumes"]:
            if entry["type"] == "bind":
                assert entry["read_only"], (name, entry)
                assert Path(entry["source"]).exists(), (name, entry)
            elif name != ONE_SHOT and entry["source"] != "home":
                assert entry["volume"] == {"nocopy": True}, (name, entry)
            assert name == ONE_SHOT or "init" in service["depends_on"]
    homes = [entry["target"] for name in OURS for entry in services[name]["volumes"] if entry["source"] == "home"]
    assert homes == [environment(stages(DOCKERFILE.read_text()), "cpu")["WARPDESK_HOME"]] * len(OURS)


def test_what_lasts_is_asked_how_it_is_and_waits_for_what_it_needs(services: dict[str, dict[str, Any]]) -> None:
    for name, service in services.items():
        if name == ONE_SHOT:
            assert (service["restart"], service["healthcheck"]["disable"]) == ("no", True)
            continue
        assert service["restart"] == "unless-stopped"
        assert service["healthcheck"]["test"][0] in ("CMD", "CMD-SHELL"), name
        assert {"interval", "timeout", "retries", "start_period"} <= service["healthcheck"].keys(), name
        assert service["depends_on"]["init"]["condition"] == "service_completed_successfully"
    for name in ("api", "worker", "worker-gpu"):
        assert services[name]["depends_on"]["redis"]["condition"] == "service_healthy"
        assert services[name]["healthcheck"]["test"][:3] == ["CMD", "warpdesk", "health"]
    assert services["worker"]["healthcheck"]["test"][3:] == ["--worker"]


def test_a_stopping_service_has_the_time_it_takes(services: dict[str, dict[str, Any]]) -> None:
    def seconds(text: str) -> float:
        return sum(float(number) * {"m": 60, "s": 1}[unit] for number, unit in re.findall(r"(\d+)([ms])", text))

    for name in ("worker", "worker-gpu"):
        drain = float(services[name]["environment"]["WARPDESK_DRAIN_SECONDS"])
        assert drain >= WorkerSettings.model_fields["drain_seconds"].default
        assert seconds(services[name]["stop_grace_period"]) >= drain + 10
    for name in ("api", "redis", "prometheus", "alertmanager", "grafana"):
        assert seconds(services[name]["stop_grace_period"]) >= 30  # Docker's own is 10


def test_the_directory_of_redis_is_its_volume(services: dict[str, dict[str, Any]]) -> None:
    """Redis enters the one that its file names, whatever its command says after it, and the image has none there."""
    (directory,) = re.findall(r"^dir (.*)$", (ROOT / "deploy" / "redis" / "redis.conf").read_text(), re.MULTILINE)
    command = services["redis"]["command"]
    assert command[command.index("--dir") + 1] == directory
    assert [entry["source"] for entry in services["redis"]["volumes"] if entry["target"] == directory] == ["redis"]


def test_alerts_go_from_prometheus_to_an_alertmanager_that_reads_addresses_from_its_volume(
    services: dict[str, dict[str, Any]],
) -> None:
    settings = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    [[target]] = [one["targets"] for one in settings["alerting"]["alertmanagers"][0]["static_configs"]]
    name, port = target.split(":")
    assert name in services
    assert [one["target"] for one in services[name]["ports"]] == [int(port)]
    assert services["prometheus"]["networks"].keys() & services[name]["networks"].keys() == {"front"}
    mounted = {entry["target"]: entry for entry in services[name]["volumes"]}
    receivers = yaml.safe_load((ROOT / "deploy/alertmanager/alertmanager.yml").read_text())["receivers"]
    files = [Path(hook["url_file"]) for one in receivers for hook in one["webhook_configs"]]
    assert {str(file.parent) for file in files} == {"/run/secrets"} <= mounted.keys()
    assert f"--storage.path={mounted['/alertmanager']['target']}" in services[name]["command"]
    assert Path(mounted["/etc/alertmanager"]["source"], "alertmanager.yml").exists()
    assert "--config.file=/etc/alertmanager/alertmanager.yml" in services[name]["command"]


def test_images_are_of_one_version(services: dict[str, dict[str, Any]]) -> None:
    version = (ROOT / "clients/python/VERSION").read_text().strip()
    targets = stages(DOCKERFILE.read_text())
    for name, service in services.items():
        tag = service["image"].rpartition(":")[2]
        assert re.match(r"v?\d+\.\d+\.\d+", tag), name
        if name in OURS:
            assert service["image"] == f"warpdesk:{version}-{service['build']['target']}"
            assert service["build"]["dockerfile"] == DOCKERFILE.name
            assert service["build"]["target"] in targets


class Machine:
    """The volumes of the stack as directories, and its services as processes: what they are told is what the file says,
    with the directories and ports of this machine in the place of the containers'."""

    def __init__(self, folder: Path, services: dict[str, dict[str, Any]]) -> None:
        self.volumes = folder / "volumes"
        self._services = services
        self.home = folder / "home"
        self.redis_port, self.port, self.metrics_port = free_port(), free_port(), free_port()
        for entry in services["init"]["volumes"]:
            if entry["target"].startswith("/volumes/"):
                (folder / entry["target"][1:]).mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / "bin").mkdir()
        script = folder / "bin" / "warpdesk"  # of the environment that runs the tests
        script.write_text(f'#!/bin/sh\nexec {sys.executable} -P -m warpdesk "$@"\n')
        script.chmod(0o755)
        self._path = f"{folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"

    def here(self, name: str, text: str) -> str:
        """What a path or an address in a container is on this machine."""
        for entry in self._services[name]["volumes"]:
            volume = self.volumes / entry["source"].replace("secrets-", "secrets/")
            place = entry["source"] if entry["type"] == "bind" else self.home if entry["source"] == "home" else volume
            text = text.replace(entry["target"], str(place))
        return str(self.volumes) if text == "/volumes" else text.replace("0.0.0.0", "127.0.0.1")  # noqa: S104

    def environment(self, name: str) -> dict[str, str]:
        clean = {key: value for key, value in os.environ.items() if not key.startswith("WARPDESK_")}
        written = self._services[name].get("environment") or {}
        environment = {key: self.here(name, value) for key, value in written.items()}
        ours = {"WARPDESK_HOME": str(self.home), "PATH": self._path, "PYTHONPATH": str(ROOT)}
        return {**clean, **ours, "LC_ALL": "C", **environment}

    def run(self, name: str, command: list[str]) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(command, env=self.environment(name), capture_output=True, text=True, timeout=60)

    @contextmanager
    def start(self, name: str, **changed: str) -> Iterator[None]:
        of_image = words(stages(DOCKERFILE.read_text())["runtime"].all("CMD")[0])
        command = [self.here(name, word) for word in self._services[name]["command"] or of_image]
        if name == "redis":  # which enters the directory that its file names
            file = self.volumes.parent / "redis.conf"
            text = self.here(name, Path(command[1]).read_text())
            if not has_tls(Path(find_binary())):  # as the one that a wheel brings; the stack's listens without
                text = re.sub(r"(?m)^tls-.*\n", "", text)
                place = command.index("--tls-port")
                del command[place : place + 2]
            file.write_text(text)
            command[1] = str(file)
        changes = {"8000": str(self.port), "6379": str(self.redis_port), "redis-server": str(find_binary())}
        command = [changes.get(word, word) for word in command]
        process = subprocess.Popen(command, env={**self.environment(name), **changed}, stdin=subprocess.DEVNULL)
        try:
            yield
        finally:
            assert stop(process, 60) == 0

    def healthy(self, name: str) -> bool:
        """What its health check says."""
        kind, *command = self._services[name]["healthcheck"]["test"]
        if kind == "CMD-SHELL":
            text = self.here(name, command[0]).replace("$$", "$")
            text = text.replace("redis-cli", f"redis-cli -p {self.redis_port}")
            return self.run(name, ["/bin/sh", "-c", text]).returncode == 0
        more = ["--url", f"http://127.0.0.1:{self.port}"] if name == "api" else []
        return self.run(name, [*command, *more]).returncode == 0

    def until_healthy(self, name: str) -> None:
        wait_until(lambda: self.healthy(name), f"{name} is not healthy", 240)

    def until_ready(self) -> None:
        command = ["warpdesk", "health", "--ready", "--url", f"http://127.0.0.1:{self.port}"]
        wait_until(lambda: self.run("api", command).returncode == 0, "no worker is ready", 240)

    def init(self) -> str:
        _, *arguments = self._services["init"]["command"]
        result = self.run("init", [sys.executable, *(self.here("init", word) for word in arguments)])
        assert result.returncode == 0, result.stderr
        return result.stdout

    def secrets(self) -> dict[str, str]:
        folder = self.volumes / "secrets"
        return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.timeout(400)
def test_the_first_start_makes_what_is_missing_and_the_stack_answers_a_job_with_the_key_it_made(
    tmp_path: Path, services: dict[str, dict[str, Any]]
) -> None:
    machine = Machine(tmp_path, services)
    printed = machine.init()
    made = machine.secrets()
    assert {path.stat().st_mode & 0o777 for path in machine.volumes.rglob("*") if path.is_file()} == {0o600}
    assert re.fullmatch("[0-9a-f]{64}\n?", (machine.volumes / "ledger-key" / "ledger.key").read_text())
    assert made["grafana/admin_password"] == made["operator/grafana_password"]
    assert not [secret for secret in made.values() if secret.strip() in printed]
    assert "operator/api_key" in printed
    assert [line.split(":")[0] for line in printed.splitlines()[:2]] == [
        "Nobody is told of a page", "Nobody is told of a ticket"
    ]  # fmt: skip
    for file in ("page_url", "ticket_url"):
        (machine.volumes / "secrets" / "alertmanager" / file).write_text("http://127.0.0.1:9/")
    made = machine.secrets()
    assert "Nobody is told" not in machine.init()
    assert machine.secrets() == made  # what is there stays
    keys = machine.home / "keys.json"
    lost = keys.rename(machine.home / "lost")
    with pytest.raises(AssertionError, match="there were API keys, and the key file"):
        machine.init()
    lost.rename(keys)

    with ExitStack() as stack:
        assert not machine.healthy("redis")
        stack.enter_context(machine.start("redis"))
        machine.until_healthy("redis")
        for user in ("api", "worker"):  # the name `redis` is of the stack's network
            url = machine.volumes / "secrets" / user / "redis_url"
            url.write_text(url.read_text().replace("redis:6379", f"127.0.0.1:{machine.redis_port}"))
        password = made["operator/redis_password"]
        with redis.Redis(port=machine.redis_port, username="operator", password=password) as operator:
            kept = operator.config_get("*")
        assert [kept[name] for name in ("appendonly", "appendfsync", "maxmemory-policy", "maxmemory")] == [
            "yes", "always", "noeviction", str(1 << 30)
        ]  # fmt: skip
        with redis.Redis(port=machine.redis_port) as stranger, pytest.raises(redis.AuthenticationError):
            stranger.ping()
        stack.enter_context(machine.start("api", WARPDESK_METRICS_PORT=str(machine.metrics_port)))
        machine.until_healthy("api")
        assert not machine.healthy("worker")
        stack.enter_context(machine.start("worker"))
        machine.until_healthy("worker")
        machine.until_ready()

        http = stack.enter_context(httpx.Client(base_url=f"http://127.0.0.1:{machine.port}", timeout=60))
        assert http.get("/v1/jobs").status_code == 401
        http.headers["Authorization"] = f"Bearer {made['operator/api_key']}"
        example = http.get("/v1/operations/rsi").json()["example"]
        answer = http.post("/v1/jobs", json=example, headers={"Prefer": "wait=50"})
        assert answer.json()["status"] == "succeeded", answer.text
        scraped = httpx.get(f"http://127.0.0.1:{machine.metrics_port}/metrics", timeout=10)
        assert "warpdesk_jobs" in scraped.text
