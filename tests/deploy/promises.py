"""What the manifests of deploy/kubernetes promise, each as a function that raises AssertionError where it is broken."""

import re
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import yaml

from tests.conftest import ROOT
from tests.deploy.tools import tool
from warpdesk_server.workers.metrics import METRICS

KUBERNETES = "1.34"  # whose schemas are asked
Object = dict[str, Any]


def _record(required: str = "", **properties: Any) -> Object:
    """A JSON schema of an object that has these and no others."""
    return {"type": "object", "properties": properties, "required": required.split(), "additionalProperties": False}


def _list(items: Object) -> Object:
    return {"type": "array", "items": items, "minItems": 1}


_TEXT, _WHOLE = {"type": "string", "minLength": 1}, {"type": "integer", "minimum": 0}
_TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
_NUMBER_AS_TEXT = {"type": "string", "pattern": r"^\d+(\.\d+)?$"}
_SECONDS = {"type": "string", "pattern": r"^\d+[smhd]$"}
_NAMED = _record("name", name=_TEXT, namespace=_TEXT, labels=_TEXTS)


def _kind(group: str, kind: str, spec: Object) -> Object:
    return _record(
        "apiVersion kind metadata spec", apiVersion={"const": group}, kind={"const": kind}, metadata=_NAMED, spec=spec
    )


# Of kinds that Kubernetes itself does not have: what is used of them, as their operators' documents have it.
CUSTOM = {
    "PodMonitor": _kind(
        "monitoring.coreos.com/v1",
        "PodMonitor",
        _record(
            "selector podMetricsEndpoints",
            selector=_record("matchLabels", matchLabels=_TEXTS),
            podMetricsEndpoints=_list(
                _record(
                    "port",
                    port=_TEXT,
                    path={"type": "string", "pattern": "^/"},
                    interval=_SECONDS,
                    scrapeTimeout=_SECONDS,
                    relabelings=_list(
                        _record("action", action={"enum": ["replace"]}, targetLabel=_TEXT, replacement=_TEXT)
                    ),
                )
            ),
        ),
    ),
    "PrometheusRule": _kind(
        "monitoring.coreos.com/v1",
        "PrometheusRule",
        _record(
            "groups",
            groups=_list(
                _record(
                    "name rules",
                    name=_TEXT,
                    interval=_SECONDS,
                    rules=_list(
                        {
                            **_record(
                                "expr",
                                alert=_TEXT,
                                record=_TEXT,
                                expr=_TEXT,
                                labels=_TEXTS,
                                annotations=_TEXTS,
                                **{"for": _SECONDS, "keep_firing_for": _SECONDS},
                            ),
                            "oneOf": [{"required": ["alert"]}, {"required": ["record"]}],
                        }
                    ),
                )
            ),
        ),
    ),
    "ScaledObject": _kind(
        "keda.sh/v1alpha1",
        "ScaledObject",
        _record(
            "scaleTargetRef triggers",
            scaleTargetRef=_record("name", name=_TEXT),
            pollingInterval=_WHOLE,
            cooldownPeriod=_WHOLE,
            minReplicaCount=_WHOLE,
            maxReplicaCount=_WHOLE,
            fallback=_record(
                "failureThreshold replicas",
                failureThreshold=_WHOLE,
                replicas=_WHOLE,
                behavior={"enum": ["static", "currentReplicas", "currentReplicasIfHigher", "currentReplicasIfLower"]},
            ),
            advanced=_record(
                horizontalPodAutoscalerConfig=_record(
                    behavior=_record(
                        scaleDown=_record(
                            stabilizationWindowSeconds=_WHOLE,
                            policies=_list(
                                _record(
                                    "type value periodSeconds",
                                    type={"enum": ["Percent", "Pods"]},
                                    value=_WHOLE,
                                    periodSeconds=_WHOLE,
                                )
                            ),
                        )
                    )
                )
            ),
            triggers=_list(
                _record(
                    "type metadata",
                    type={"const": "prometheus"},
                    metricType={"const": "AverageValue"},  # with any other a fallback is not allowed
                    metadata=_record(
                        "serverAddress query threshold",
                        serverAddress={"type": "string", "pattern": "^https?://"},
                        query=_TEXT,
                        threshold=_NUMBER_AS_TEXT,
                        activationThreshold=_NUMBER_AS_TEXT,
                        ignoreNullValues={"enum": ["true", "false"]},
                    ),
                )
            ),
        ),
    ),
}


def of_kind(objects: Iterable[Object], *kinds: str) -> list[Object]:
    return [made for made in objects if made["kind"] in kinds]


def workloads(objects: Iterable[Object]) -> dict[str, Object]:
    """Deployments and StatefulSets by name."""
    return {made["metadata"]["name"]: made for made in of_kind(objects, "Deployment", "StatefulSet")}


def workers(objects: Iterable[Object]) -> dict[str, Object]:
    return {name: made for name, made in workloads(objects).items() if name.startswith("warpdesk-worker")}


def pod(workload: Object) -> Object:
    found: Object = workload["spec"]["template"]["spec"]
    return found


def labels(workload: Object) -> dict[str, str]:
    found: dict[str, str] = workload["spec"]["template"]["metadata"]["labels"]
    return found


def containers(workload: Object) -> Iterator[Object]:
    yield from pod(workload).get("initContainers", ())
    yield from pod(workload)["containers"]


def main(workload: Object) -> Object:
    (found,) = pod(workload)["containers"]
    made: Object = found
    return made


def settings(objects: Iterable[Object], container: Object) -> dict[str, str]:
    """What a container is told by its environment; a value that the kubelet fills in is empty."""
    maps = {made["metadata"]["name"]: made["data"] for made in of_kind(objects, "ConfigMap")}
    variables: dict[str, str] = {}
    for source in container.get("envFrom", ()):
        variables |= maps[source["configMapRef"]["name"]]
    return variables | {entry["name"]: entry.get("value", "") for entry in container.get("env", ())}


def matches(selector: Mapping[str, Any], given: Mapping[str, str]) -> bool:
    """A label selector, as Kubernetes reads it: an empty one takes all."""
    for expression in selector.get("matchExpressions", ()):
        assert expression["operator"] == "In", expression
        if given.get(expression["key"]) not in expression["values"]:
            return False
    return all(given.get(name) == value for name, value in selector.get("matchLabels", {}).items())


# The promises.


def every_object_is_what_its_schema_says(objects: list[Object]) -> None:
    for made in objects:
        try:
            if (schema := CUSTOM.get(made["kind"])) is not None:
                jsonschema.validate(made, schema)
            else:
                kubernetes_validate.validate(made, KUBERNETES, strict=True)
        except jsonschema.ValidationError as error:
            raise AssertionError(f"{made['kind']} {made['metadata']['name']}: {error.message}") from None
    assert len({(made["kind"], made["metadata"]["name"]) for made in objects}) == len(objects)


def a_selector_takes_the_pods_it_is_meant_for(objects: list[Object]) -> None:
    made = workloads(objects)
    for name, workload in made.items():
        taken = {other for other in made if matches(workload["spec"]["selector"], labels(made[other]))}
        assert taken == {name}, f"the selector of {name} takes {taken}"
        for spread in pod(workload).get("topologySpreadConstraints", ()):
            assert matches(spread["labelSelector"], labels(workload)), f"{name} is spread by labels it has not"
    for service in of_kind(objects, "Service"):
        name = service["metadata"]["name"]
        taken = {other for other in made if matches({"matchLabels": service["spec"]["selector"]}, labels(made[other]))}
        assert taken == {name}, f"the Service {name} takes {taken}"
        for port in service["spec"]["ports"]:
            assert port["targetPort"] in _ports(made[name]), f"the Service {name} names the port {port['targetPort']}"
            assert _ports(made[name])[port["targetPort"]] == port["port"], f"the Service {name} moves a port"


def _ports(workload: Object) -> dict[str, int]:
    return {port["name"]: port["containerPort"] for port in main(workload).get("ports", ())}


def every_budget_takes_one_workload_and_lets_a_node_be_emptied(objects: list[Object]) -> None:
    made, budgets = workloads(objects), of_kind(objects, "PodDisruptionBudget")
    assert {budget["metadata"]["name"] for budget in budgets} == {"warpdesk-api", *workers(objects)}
    for budget in budgets:
        spec = budget["spec"]
        taken = {name for name in made if matches(spec["selector"], labels(made[name]))}
        assert taken == {budget["metadata"]["name"]}, f"a budget takes {taken}"
        assert spec.get("maxUnavailable", 0) >= 1, f"a budget holds every drain: {spec}"


@dataclass(frozen=True)
class Place:
    """Somebody on the network: a pod with its namespace, or an address outside of the cluster."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    namespace: Mapping[str, str] = field(default_factory=lambda: {"kubernetes.io/metadata.name": "warpdesk"})
    ports: Mapping[str, int] = field(default_factory=dict)
    address: str | None = None

    @property
    def ours(self) -> bool:
        return self.address is None and self.namespace["kubernetes.io/metadata.name"] == "warpdesk"


def _elsewhere(name: str, namespace: str, *, called: str = "", **more: str) -> Place:
    labels = {"app.kubernetes.io/name": called} if called else {}
    return Place(name, labels, {"kubernetes.io/metadata.name": namespace, **more})


ELSEWHERE = (
    Place("stranger"),
    _elsewhere("prometheus", "monitoring", called="prometheus"),
    _elsewhere("neighbour of prometheus", "monitoring"),
    _elsewhere("prometheus of another", "default", called="prometheus"),
    _elsewhere("caller", "ingress", **{"warpdesk-callers": "true"}),
    _elsewhere("postgresql", "databases", called="postgresql"),
    _elsewhere("other", "default"),
    Place("dns", {"k8s-app": "kube-dns"}, {"kubernetes.io/metadata.name": "kube-system"}),
    Place("outside", address="198.51.100.9", namespace={}),
    Place("redis outside", address="192.0.2.7", namespace={}),
)
PORTS = (
    ("TCP", 8000),
    ("TCP", 9091),
    ("TCP", 6379),
    ("TCP", 5432),
    ("TCP", 53),
    ("UDP", 53),
    ("TCP", 22),
    ("TCP", 443),
)


def flows(objects: list[Object]) -> set[tuple[str, str, str]]:
    """Who reaches whom at which port, by the policies of our namespace."""
    policies = [made["spec"] for made in of_kind(objects, "NetworkPolicy")]
    inside = [
        Place(name.removeprefix("warpdesk-"), labels(made), ports=_ports(made))
        for name, made in workloads(objects).items()
    ]
    places = [*inside, *ELSEWHERE]
    return {
        (source.name, target.name, f"{port}/{protocol}")
        for source in places
        for target in places
        for protocol, port in PORTS
        if source is not target
        and (source.ours or target.ours)
        and _lets(policies, "Egress", source, target, target, protocol, port)
        and _lets(policies, "Ingress", target, source, target, protocol, port)
    }


def _lets(
    policies: list[Object], direction: str, of: Place, peer: Place, target: Place, protocol: str, port: int
) -> bool:
    mine = [
        policy
        for policy in policies
        if of.ours and direction in policy["policyTypes"] and matches(policy["podSelector"], of.labels)
    ]
    if not mine:
        return True
    rules = [rule for policy in mine for rule in policy.get(direction.lower(), ())]
    side = "to" if direction == "Egress" else "from"
    return any(
        any(_is(taken, peer) for taken in rule[side])
        and any(
            named["protocol"] == protocol and target.ports.get(named["port"], named["port"]) == port
            for named in rule["ports"]
        )
        for rule in rules
    )  # fmt: skip


def _is(taken: Object, peer: Place) -> bool:
    if "ipBlock" in taken:
        return peer.address is not None and ip_address(peer.address) in ip_network(taken["ipBlock"]["cidr"])
    if peer.address is not None:
        return False
    if "namespaceSelector" in taken:
        return matches(taken["namespaceSelector"], peer.namespace) and matches(
            taken.get("podSelector", {}), peer.labels
        )
    return peer.ours and matches(taken["podSelector"], peer.labels)


def the_network_lets_through_what_is_needed_and_nothing_else(objects: list[Object]) -> None:
    ours = {name.removeprefix("warpdesk-") for name in workloads(objects)}
    working = {name.removeprefix("warpdesk-") for name in workers(objects)}
    redis = "redis" if "redis" in ours else "redis outside"
    expected = {
        *((name, "dns", f"53/{protocol}") for name in (*ours, "stranger") for protocol in ("TCP", "UDP")),
        *((name, redis, "6379/TCP") for name in ("api", *working)),
        *((name, "postgresql", "5432/TCP") for name in ("api", *working)),
        *((name, "api", "8000/TCP") for name in (*working, "caller")),
        ("prometheus", "api", "9091/TCP"),
    }
    found = flows(objects)
    assert found == expected, f"too much: {found - expected}, missing: {expected - found}"


def a_worker_that_is_taken_away_ends_its_job_first(objects: list[Object]) -> None:
    assert workers(objects)
    for name, made in workers(objects).items():
        variables = settings(objects, main(made))
        longest, drain = float(variables["WARPDESK_JOB_TIMEOUT"]), float(variables["WARPDESK_DRAIN_SECONDS"])
        grace = pod(made)["terminationGracePeriodSeconds"]
        assert grace >= drain + 30, f"{name} is killed {grace} s after SIGTERM and drains for {drain} s"
        assert drain >= longest, f"{name} drains for {drain} s, a job may take {longest} s"
        probe = main(made)["livenessProbe"]
        patience = probe["failureThreshold"] * probe["periodSeconds"]
        assert patience > longest, f"{name} is killed after {patience} s without Redis, a job may take {longest} s"
    api = workloads(objects)["warpdesk-api"]
    assert settings(objects, main(api))["WARPDESK_JOB_TIMEOUT"] == f"{longest:g}"
    # What `warpdesk serve` waits for its API at most, and the pause before it.
    assert pod(api)["terminationGracePeriodSeconds"] > 5 + 20 + 5


def probes_ask_what_they_are_to_know(objects: list[Object]) -> None:
    for name, made in workloads(objects).items():
        container = main(made)
        probes = [container[f"{kind}Probe"] for kind in ("startup", "readiness", "liveness")]
        if name == "warpdesk-api":
            # /readyz is 503 without a worker: the Service would be empty just when a job has to bring one.
            assert [probe["httpGet"] for probe in probes] == [{"path": "/livez", "port": "http"}] * 3
            assert "http" in _ports(made)
        elif name in workers(objects):
            assert [probe["exec"]["command"] for probe in probes] == [["warpdesk", "health", "--worker"]] * 3
            startup = container["startupProbe"]  # WARPDESK_START_SECONDS is for one example, and there are several
            assert startup["periodSeconds"] * startup["failureThreshold"] >= 600
        for probe in probes:
            assert probe["timeoutSeconds"] <= probe.get("periodSeconds", 10), f"probes of {name} overlap"


def nobody_is_root_and_nothing_is_written_but_volumes(objects: list[Object]) -> None:
    for name, made in workloads(objects).items():
        spec = pod(made)
        context = spec["securityContext"]
        assert (context["runAsNonRoot"], context["runAsUser"], context["runAsGroup"]) == (True, 10001, 10001), name
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert spec["automountServiceAccountToken"] is False, name
        assert spec["serviceAccountName"] == "warpdesk", name
        for key in ("hostNetwork", "hostPID", "hostIPC"):
            assert key not in spec, name
        for container in containers(made):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "runAsNonRoot": True,
                "runAsUser": 10001,
                "capabilities": {"drop": ["ALL"]},
                "seccompProfile": {"type": "RuntimeDefault"},
            }, f"{name}: {container['name']}"
        assert all("hostPath" not in volume for volume in spec["volumes"]), name
        if _claims(made):
            # `Always`, the default, opens key files and compiled code to the group at the next mount.
            assert context["fsGroupChangePolicy"] == "OnRootMismatch", name
    (account,) = of_kind(objects, "ServiceAccount")
    assert account["automountServiceAccountToken"] is False
    (namespace,) = of_kind(objects, "Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


def _claims(workload: Object) -> bool:
    kept = any("persistentVolumeClaim" in volume for volume in pod(workload)["volumes"])
    return kept or "volumeClaimTemplates" in workload["spec"]


def what_is_mounted_is_there(objects: list[Object]) -> None:
    for name, made in workloads(objects).items():
        volumes = {volume["name"] for volume in pod(made)["volumes"]}
        volumes |= {claim["metadata"]["name"] for claim in made["spec"].get("volumeClaimTemplates", ())}
        mounted = {mount["name"] for container in containers(made) for mount in container["volumeMounts"]}
        assert mounted == volumes, f"{name} mounts {mounted} of {volumes}"
        variables = settings(objects, main(made))
        places = {mount["mountPath"] for mount in main(made)["volumeMounts"]}
        for variable, value in variables.items():
            if value.startswith("/"):
                assert any(Path(value).is_relative_to(place) for place in places), f"{name}: {variable} is {value}"
        # Where everyone can write no compiled kernel is taken from: an emptyDir's root is such a place.
        assert variables.get("WARPDESK_KERNEL_CACHE") not in places, name


def no_secret_is_in_the_files(objects: list[Object]) -> None:
    assert of_kind(objects, "Secret") == []
    for made in workloads(objects).values():
        for container in containers(made):
            for entry in container.get("env", ()):
                assert "secretKeyRef" not in entry.get("valueFrom", {}), entry
                plain = re.search(r"REDIS_URL|LEDGER_URL|ANCHOR_URL|API_KEY|PASSWORD|TOKEN", entry["name"])
                assert plain is None or entry["name"].endswith("_FILE"), f"{entry['name']} is in the manifest"
                assert "@" not in entry.get("value", ""), entry["name"]


def secrets_wanted(objects: list[Object]) -> dict[str, set[str]]:
    """The keys of each Secret that pods look for."""
    wanted: dict[str, set[str]] = {}
    for made in workloads(objects).values():
        for volume in pod(made)["volumes"]:
            for source in volume.get("projected", {}).get("sources", ()):
                if "secret" in source:
                    keys = {item["key"] for item in source["secret"]["items"]}
                    wanted.setdefault(source["secret"]["name"], set()).update(keys)
            if "secret" not in volume:
                continue
            (mount,) = {mount["mountPath"] for mount in main(made)["volumeMounts"] if mount["name"] == volume["name"]}
            text = " ".join(str(container) for container in containers(made))
            keys = set(re.findall(rf"{mount}/([\w.-]+)", text))
            wanted.setdefault(volume["secret"]["secretName"], set()).update(keys)
    return wanted


def every_container_says_what_it_needs(objects: list[Object]) -> None:
    for name, made in workloads(objects).items():
        for container in containers(made):
            requests, most = container["resources"]["requests"], container["resources"]["limits"]
            assert {"cpu", "memory"} <= requests.keys(), f"{name}: {container['name']}"
            assert "memory" in most, f"{name}: {container['name']}"
            assert _bytes(requests["memory"]) <= _bytes(most["memory"]), f"{name}: {container['name']}"
            assert ("nvidia.com/gpu" in most) == (name == "warpdesk-worker-gpu" and container is main(made)), name
        if name in workers(objects):
            assert {"containerName": "worker", "resource": "limits.cpu", "divisor": "1"} in [
                entry.get("valueFrom", {}).get("resourceFieldRef") for entry in main(made)["env"]
            ]
            assert "cpu" in main(made)["resources"]["limits"], f"{name} counts the cores of its node"
            spreads = pod(made)["topologySpreadConstraints"]
            assert [spread["topologyKey"] for spread in spreads] == ["kubernetes.io/hostname"]
            cache = float(settings(objects, main(made))["WARPDESK_CACHE_BYTES"])
            (home,) = (volume for volume in pod(made)["volumes"] if volume["name"] == "home")
            assert cache <= _bytes(home["emptyDir"]["sizeLimit"]) / 2, f"{name}: inputs that are kept fill its home"
        if name == "warpdesk-worker-gpu":
            assert main(made)["resources"]["limits"]["nvidia.com/gpu"] == 1
            assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in pod(made)["tolerations"]
            assert pod(made)["nodeSelector"] == {"nvidia.com/gpu.present": "true"}
            assert made["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
    if (redis := workloads(objects).get("warpdesk-redis")) is not None:
        (conf,) = (made["data"]["redis.conf"] for made in of_kind(objects, "ConfigMap") if "redis.conf" in made["data"])
        found = re.search(r"(?m)^maxmemory (\d+)gb$", conf)
        assert found is not None
        most = _bytes(main(redis)["resources"]["limits"]["memory"])
        assert most >= 2 * int(found[1]) << 30, "a rewrite of Redis' file may need twice its maxmemory"


def _bytes(text: str) -> int:
    found = re.fullmatch(r"(\d+)(Ki|Mi|Gi)", text)
    assert found is not None, text
    return int(found[1]) << {"Ki": 10, "Mi": 20, "Gi": 30}[found[2]]


def the_home_has_one_api(objects: list[Object]) -> None:
    (claim,) = of_kind(objects, "PersistentVolumeClaim")
    assert claim["spec"]["accessModes"] == ["ReadWriteOnce"]
    api = workloads(objects)["warpdesk-api"]
    assert api["spec"]["replicas"] == 1
    assert api["spec"]["strategy"] == {"type": "Recreate"}, "a second pod would wait for the volume for ever"
    holders = [
        name
        for name, made in workloads(objects).items()
        if any("persistentVolumeClaim" in volume for volume in pod(made)["volumes"])
    ]
    assert holders == ["warpdesk-api"]


def prometheus_finds_the_api_and_no_worker(objects: list[Object]) -> None:
    (monitor,) = of_kind(objects, "PodMonitor")
    taken = {name for name, made in workloads(objects).items() if matches(monitor["spec"]["selector"], labels(made))}
    assert taken == {"warpdesk-api"}
    api = workloads(objects)["warpdesk-api"]
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    variables = settings(objects, main(api))
    assert str(_ports(api)[endpoint["port"]]) == variables["WARPDESK_METRICS_PORT"] == "9091"
    assert variables["WARPDESK_METRICS_HOST"] == "0.0.0.0"  # noqa: S104 (the pod's own)
    assert endpoint["relabelings"][0]["targetLabel"] == "job"
    assert endpoint["relabelings"][0]["replacement"] == "warpdesk-api"


def rules_are_what_promtool_takes(objects: list[Object]) -> None:
    (rule,) = of_kind(objects, "PrometheusRule")
    _check_rules(rule["spec"]["groups"])


def _check_rules(groups: list[Object]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rules.yml"
        file.write_text(yaml.safe_dump({"groups": groups}))
        result = subprocess.run([tool("promtool"), "check", "rules", file], capture_output=True, text=True, timeout=30)
    assert result.returncode == 0, result.stdout + result.stderr


def autoscaling_counts_what_waits_and_what_runs(objects: list[Object]) -> None:
    scaled = of_kind(objects, "ScaledObject")
    assert {made["spec"]["scaleTargetRef"]["name"] for made in scaled} == workers(objects).keys()
    # Those of the rules are asked of a live service by their own test.
    rules = "".join(file.read_text() for file in (ROOT / "deploy" / "prometheus" / "rules").glob("*.yml"))
    names = {*re.findall(r"warpdesk_\w+", rules), *(f"warpdesk_{name}" for name in METRICS)}
    queries = []
    for made in scaled:
        spec = made["spec"]
        name = spec["scaleTargetRef"]["name"]
        assert "replicas" not in workers(objects)[name]["spec"], f"{name} has a number that KEDA is to say"
        assert (spec["minReplicaCount"], spec["cooldownPeriod"] >= 300) == (0, True), name
        assert spec["fallback"]["replicas"] >= 1, name
        assert spec["fallback"]["failureThreshold"] >= 1, name
        for trigger in spec["triggers"]:
            metadata = trigger["metadata"]
            assert metadata["ignoreNullValues"] == "false", f"{name}: a Prometheus that is away reads as no work"
            queries.append(metadata["query"])
            unknown = set(re.findall(r"warpdesk_\w+", metadata["query"])) - names
            assert not unknown, f"{unknown} is not exported"
            assert "max without (instance, pod)" in metadata["query"], "each API process exports all of it"
        work = spec["triggers"][0]["metadata"]["query"]
        assert re.search(r'warpdesk_queue_jobs\{state=~"queued\|running"\}', work), f"{name} is scaled by {work}"
    _check_rules([{"name": "keda", "rules": [{"record": "work", "expr": query} for query in queries]}])


PROMISES: tuple[Callable[[list[Object]], None], ...] = (
    every_object_is_what_its_schema_says,
    a_selector_takes_the_pods_it_is_meant_for,
    every_budget_takes_one_workload_and_lets_a_node_be_emptied,
    the_network_lets_through_what_is_needed_and_nothing_else,
    a_worker_that_is_taken_away_ends_its_job_first,
    probes_ask_what_they_are_to_know,
    nobody_is_root_and_nothing_is_written_but_volumes,
    what_is_mounted_is_there,
    no_secret_is_in_the_files,
    every_container_says_what_it_needs,
    the_home_has_one_api,
    prometheus_finds_the_api_and_no_worker,
    rules_are_what_promtool_takes,
)
