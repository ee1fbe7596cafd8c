"""The manifests of deploy/kubernetes, as Kustomize makes them. Nothing here has met a cluster."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml

from tests.conftest import ROOT
from tests.deploy import promises
from tests.deploy.promises import PROMISES, main, pod, secrets_wanted, workers, workloads
from tests.deploy.redis_of_deploy import secured_redis
from tests.deploy.tools import tool
from warpdesk.cli.main import parser
from warpdesk_server.app.access.keys import create_key, read_keys
from warpdesk_server.kernels.gpu.cubins import Cubins
from warpdesk_server.kernels.gpu.nvrtc import Nvrtc
from warpdesk_server.privacy.seeds import Ring

KUBERNETES = ROOT / "deploy" / "kubernetes"
OVERLAYS = ("cpu", "gpu", "keda")
PROMISE = {promise.__name__: promise for promise in (*PROMISES, promises.autoscaling_counts_what_waits_and_what_runs)}


def kustomize(folder: Path) -> str:
    made = subprocess.run([tool("kubectl"), "kustomize", folder], capture_output=True, text=True, timeout=60)
    assert made.returncode == 0, made.stderr
    return made.stdout


@cache
def overlay(name: str) -> str:
    return kustomize(KUBERNETES / "overlays" / name)


def objects(text: str) -> list[dict[str, Any]]:
    # CSafeLoader reads the rules and dashboards ten times as quickly.
    return list(yaml.load_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))


@pytest.mark.parametrize("name", OVERLAYS)
@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_an_overlay_keeps(promise: Callable[[list[dict[str, Any]]], None], name: str) -> None:
    promise(objects(overlay(name)))


def test_autoscaling_counts_what_waits_and_what_runs() -> None:
    promises.autoscaling_counts_what_waits_and_what_runs(objects(overlay("keda")))


def test_an_overlay_has_the_workers_of_its_name() -> None:
    assert [workers(objects(overlay(name))).keys() for name in OVERLAYS] == [
        {"warpdesk-worker-cpu"},
        {"warpdesk-worker-cpu", "warpdesk-worker-gpu"},
        {"warpdesk-worker-cpu", "warpdesk-worker-gpu"},
    ]
    assert "nvidia" not in overlay("cpu")
    images = {name: main(made)["image"] for name, made in workloads(objects(overlay("gpu"))).items()}
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    assert images == {
        "warpdesk-redis": compose["redis"]["image"],
        "warpdesk-api": compose["api"]["image"],
        "warpdesk-worker-cpu": compose["worker"]["image"],
        "warpdesk-worker-gpu": compose["worker-gpu"]["image"],
    }


def test_a_redis_outside_of_the_cluster_is_reached_and_none_is_started(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy")
    file = tmp_path / "deploy/kubernetes/overlays/cpu/kustomization.yaml"
    file.write_text(file.read_text().replace("components/redis", "components/external-redis"))
    made = objects(kustomize(file.parent))
    assert workloads(made).keys() == {"warpdesk-api", "warpdesk-worker-cpu"}
    for promise in PROMISES:
        promise(made)


# What is planted in the overlay `keda`, which has everything, and the promise that it breaks.
MISTAKES = [
    ("readOnlyRootFilesystem: true", "readonlyRootFilesystem: true", "every_object_is_what_its_schema_says"),
    ("minReplicaCount: 0", "minReplicas: 0", "every_object_is_what_its_schema_says"),
    ("podMetricsEndpoints:", "podMetricEndpoints:", "every_object_is_what_its_schema_says"),
    ("metricType: AverageValue", "metricType: Value", "every_object_is_what_its_schema_says"),
    ("targetPort: http", "targetPort: htpp", "a_selector_takes_the_pods_it_is_meant_for"),
    ("\n  selector:\n    app.kubernetes.io/component: api", "\n  selector:\n    app.kubernetes.io/component: worker",
     "a_selector_takes_the_pods_it_is_meant_for"),
    ("\n  selector:\n    app.kubernetes.io/component: api\n", "\n  selector:\n",
     "a_selector_takes_the_pods_it_is_meant_for"),
    ("      app.kubernetes.io/component: worker\n      app.kubernetes.io/name: warpdesk\n      warpdesk-backend: gpu\n"
     "  strategy", "      app.kubernetes.io/component: worker\n      app.kubernetes.io/name: warpdesk\n  strategy",
     "a_selector_takes_the_pods_it_is_meant_for"),
    ("maxUnavailable: 1\n  selector:", "minAvailable: 1\n  selector:",
     "every_budget_takes_one_workload_and_lets_a_node_be_emptied"),
    ("name: default-deny\n  namespace: warpdesk\nspec:\n  podSelector: {}\n  policyTypes:\n  - Ingress\n",
     "name: default-deny\n  namespace: warpdesk\nspec:\n  podSelector: {}\n  policyTypes:\n",
     "the_network_lets_through_what_is_needed_and_nothing_else"),
    ("- namespaceSelector:\n        matchLabels:\n          kubernetes.io/metadata.name: monitoring\n      podSelector",
     "- podSelector", "the_network_lets_through_what_is_needed_and_nothing_else"),
    ("\n      podSelector:\n        matchLabels:\n          app.kubernetes.io/name: prometheus\n", "\n",
     "the_network_lets_through_what_is_needed_and_nothing_else"),
    ("          app.kubernetes.io/name: prometheus\n    ports:\n    - port: metrics",
     "          app.kubernetes.io/name: prometheus\n    ports:\n    - port: http",
     "the_network_lets_through_what_is_needed_and_nothing_else"),
    ("terminationGracePeriodSeconds: 660", "terminationGracePeriodSeconds: 600",
     "a_worker_that_is_taken_away_ends_its_job_first"),
    ('WARPDESK_JOB_TIMEOUT: "600"', 'WARPDESK_JOB_TIMEOUT: "900"', "a_worker_that_is_taken_away_ends_its_job_first"),
    ('value: "600"', 'value: "20"', "a_worker_that_is_taken_away_ends_its_job_first"),
    ("failureThreshold: 11", "failureThreshold: 3", "a_worker_that_is_taken_away_ends_its_job_first"),
    ("path: /livez", "path: /readyz", "probes_ask_what_they_are_to_know"),
    ("        startupProbe:", "        startupProbes:", "probes_ask_what_they_are_to_know"),
    ("- --worker\n", "- --url\n", "probes_ask_what_they_are_to_know"),
    ("runAsUser: 10001", "runAsUser: 0", "nobody_is_root_and_nothing_is_written_but_volumes"),
    ("readOnlyRootFilesystem: true", "readOnlyRootFilesystem: false",
     "nobody_is_root_and_nothing_is_written_but_volumes"),
    ("            - ALL", "            - CHOWN", "nobody_is_root_and_nothing_is_written_but_volumes"),
    ("fsGroupChangePolicy: OnRootMismatch", "fsGroupChangePolicy: Always",
     "nobody_is_root_and_nothing_is_written_but_volumes"),
    ("automountServiceAccountToken: false", "automountServiceAccountToken: true",
     "nobody_is_root_and_nothing_is_written_but_volumes"),
    ("mountPath: /var/lib/warpdesk", "mountPath: /var/lib/elsewhere", "what_is_mounted_is_there"),
    ("name: WARPDESK_DEVICE\n          value: cpu", "name: WARPDESK_KERNEL_CACHE\n          value: /var/lib/warpdesk",
     "what_is_mounted_is_there"),
    ("name: WARPDESK_DEVICE\n          value: cpu", "name: WARPDESK_API_KEY\n          value: wd_1",
     "no_secret_is_in_the_files"),
    ("WARPDESK_REDIS_URL_FILE", "WARPDESK_REDIS_URL", "no_secret_is_in_the_files"),
    ("nvidia.com/gpu: 1", "nvidia.com/gpu: 2", "every_container_says_what_it_needs"),
    ("maxmemory 4gb", "maxmemory 6gb", "every_container_says_what_it_needs"),
    ("maxSurge: 0\n      maxUnavailable: 1", "maxSurge: 1\n      maxUnavailable: 0",
     "every_container_says_what_it_needs"),
    ("type: Recreate", "type: RollingUpdate", "the_home_has_one_api"),
    ("namespace: warpdesk\nspec:\n  replicas: 1", "namespace: warpdesk\nspec:\n  replicas: 2", "the_home_has_one_api"),
    ("port: metrics\n    relabelings", "port: http\n    relabelings", "prometheus_finds_the_api_and_no_worker"),
    ("replacement: warpdesk-api", "replacement: api", "prometheus_finds_the_api_and_no_worker"),
    ("record: warpdesk:queue_work", "record: warpdesk-queue_work", "rules_are_what_promtool_takes"),
    ('ignoreNullValues: "false"', 'ignoreNullValues: "true"', "autoscaling_counts_what_waits_and_what_runs"),
    ('(warpdesk_queue_jobs{state=~"queued|running"})', '(warpdesk_queue_jobs{state="queued"})',
     "autoscaling_counts_what_waits_and_what_runs"),
    ("warpdesk_queue_jobs{", "warpdesk_queue_job{", "autoscaling_counts_what_waits_and_what_runs"),
    ("query: sum(", "query: som(", "autoscaling_counts_what_waits_and_what_runs"),
    ("minReplicaCount: 0", "minReplicaCount: 1", "autoscaling_counts_what_waits_and_what_runs"),
]  # fmt: skip


@pytest.mark.parametrize("promise", sorted({promise for *_, promise in MISTAKES}))
def test_a_mistake_that_is_planted_is_found(promise: str) -> None:
    assert {planted for *_, planted in MISTAKES} == PROMISE.keys()
    text = overlay("keda")
    for right, wrong, broken in MISTAKES:
        if broken != promise:
            continue
        assert right in text, f"there is nothing to plant {wrong!r} in"
        assert not _keeps(promise, text.replace(right, wrong)), f"{wrong!r} was not found"


def _keeps(promise: str, text: str) -> bool:
    try:
        PROMISE[promise](objects(text))
    except (AssertionError, KeyError):
        return False
    return True


def test_what_containers_run_is_what_the_command_line_takes() -> None:
    commands = []
    for name, made in workloads(objects(overlay("gpu"))).items():
        if name != "warpdesk-redis":
            probes = [main(made)[f"{kind}Probe"].get("exec", {}).get("command") for kind in ("startup", "liveness")]
            commands += [main(made)["args"], *(probe for probe in probes if probe is not None)]
    assert len(commands) == 7
    for program, *arguments in commands:
        assert program == "warpdesk"
        parser().parse_args(arguments)  # ends the process where it does not know one


def test_the_rules_are_those_of_prometheus() -> None:
    written = KUBERNETES / "components" / "monitoring" / "rules.yaml"
    groups = [
        group
        for file in sorted((ROOT / "deploy" / "prometheus" / "rules").glob("*.yml"))
        for group in yaml.safe_load(file.read_text())["groups"]
    ]
    assert yaml.safe_load(written.read_text())["spec"]["groups"] == groups, (
        "run `python deploy/kubernetes/write_rules.py`"
    )


def test_the_readme_makes_every_secret_that_is_mounted() -> None:
    made: dict[str, set[str]] = {}
    text = (KUBERNETES / "README.md").read_text().replace("\\\n", " ")
    for name, given in re.findall(r"create secret generic (\S+)([^\n]*)", text):
        made[name] = set(re.findall(r"--from-file=([\w.-]+)=", given))
    wanted = secrets_wanted(objects(overlay("gpu")))
    for name in ("warpdesk-api", "warpdesk-worker"):
        wanted[name].add("ca.crt")  # named by the URL of Redis
    assert text.count("ssl_ca_certs=/run/secrets/warpdesk/ca.crt") == 2
    assert made == wanted


def test_keys_reach_their_readers_with_the_mode_that_these_ask_for(tmp_path: Path) -> None:
    """The script of the API's first container, on directories of this machine, and once more after a restart."""
    secrets, home, keys = tmp_path / "secrets", tmp_path / "home", tmp_path / "run"
    for folder in (secrets, home, keys):
        folder.mkdir()
    create_key(tmp_path, "first", ["admin"], file=secrets / "keys.json")
    (secrets / "ledger-key").write_text("0f" * 32)
    for file in secrets.iterdir():
        file.chmod(0o440)  # as the kubelet leaves them for a group
    (first,) = pod(workloads(objects(overlay("cpu")))["warpdesk-api"])["initContainers"]
    script = first["command"][2]
    places = {"/run/secrets/warpdesk": secrets, "/run/warpdesk": keys, "/var/lib/warpdesk": home}
    for place, folder in places.items():
        script = script.replace(place, str(folder))
    for _ in range(2):
        subprocess.run(["sh", "-ec", script], check=True, timeout=20)
        assert Ring(keys / "ledger.key").keys() == (bytes.fromhex("0f" * 32),)
        assert [key.name for key in read_keys(home / "keys.json").values()] == ["first"]
        create_key(home, "later", ["read"])
        assert len(read_keys(home / "keys.json")) == 2
        (home / "keys.json").unlink()


def test_kernels_are_kept_below_a_volume_that_everyone_can_write_to(tmp_path: Path) -> None:
    (worker,) = workers(objects(overlay("cpu"))).values()
    variables = promises.settings(objects(overlay("cpu")), main(worker))
    assert "WARPDESK_KERNEL_CACHE" not in variables  # the image's, or <home>/cache/kernels
    volume = tmp_path / "volume"
    volume.mkdir()
    volume.chmod(0o2777)  # an emptyDir, after fsGroup
    before = os.umask(0o002)
    try:
        compiler = cast(Nvrtc, SimpleNamespace(version="12.9.86"))  # asked for its version alone
        kept = Cubins(volume / "cache" / "kernels", compiler)
        kept._write("source", "sm_90", b"cubin")
    finally:
        os.umask(before)
    assert (kept.refusal(), kept.find("source", "sm_90")) == (None, b"cubin")
    refused = Cubins(volume, compiler).refusal()
    assert refused is not None
    assert "others could put code there" in refused.reason


def test_the_probe_of_redis_tells_one_that_answers_from_one_that_hangs(tmp_path: Path) -> None:
    command = main(workloads(objects(overlay("cpu")))["warpdesk-redis"])["livenessProbe"]["exec"]["command"]
    if shutil.which("redis-cli") is None:
        pytest.skip("there is no redis-cli")
    with secured_redis(tmp_path) as server:
        if server.plain_port is not None:
            pytest.skip("this Redis has no TLS of its own")
        script = command[2].replace("/etc/redis/tls", str(tmp_path / "tls")).replace("-p 6379", f"-p {server.port}")
        assert script != command[2]
        assert subprocess.run([*command[:2], script], timeout=10).returncode == 0
        with server.client("operator") as operator:
            operator.acl_setuser("default", enabled=True, nopass=True)  # one that is not ours
        assert subprocess.run([*command[:2], script], timeout=10).returncode != 0
    assert subprocess.run([*command[:2], script], timeout=10).returncode != 0


def test_every_dashboard_is_a_map_that_fits_into_an_annotation() -> None:
    """`kubectl apply` keeps an object in an annotation of 256 KiB, and a ConfigMap may have 1 MiB."""
    made = [found for found in objects(overlay("cpu")) if "grafana_dashboard" in found["metadata"].get("labels", {})]
    files = {file: text for found in made for file, text in found["data"].items()}
    assert files == {file.name: file.read_text() for file in (ROOT / "deploy/grafana/dashboards").glob("*.json")}
    for found in objects(overlay("keda")):
        assert len(json.dumps(found)) < 256 << 10, found["metadata"]["name"]
