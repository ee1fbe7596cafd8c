"""A real Prometheus looks at a running service: each expression of each panel, rule and alert has something to say.

The service is `warpdesk serve` with its Redis and a worker whose GPU is emulated and whose driver is played; the load
is healthy. So a metric that is misspelt, or has lost a label, is an expression without data here.
"""

import json
import math
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.conftest import free_port
from tests.deploy.live import DEPLOY, Load, Prometheus, give_redis_a_limit, once, serving
from tests.deploy.promql import operands, selectors
from tests.deploy.tools import tool

pytestmark = pytest.mark.timeout(300)  # seconds

LOAD_SECONDS = 15.0

# What may say nothing here, and why. Five at most.
MAY_BE_EMPTY = {
    "warpdesk:kernel_seconds:baseline7d": "needs three hours of history and one more",
    "warpdesk_gpu_breaker_open": "something has to be kept off the GPU",
    'warpdesk_gpu_xid_last_timestamp_seconds{xid=~"46': "the driver has to log a fault that asks for a reset",
}
# What is for looking, not for watching.
RAW: set[str] = set()


@dataclass(frozen=True)
class Observation:
    """What Prometheus saw at the end of the load, with what was sent."""

    prometheus: Prometheus
    load: Load
    exposition: str
    alerts: list[dict[str, Any]]


@pytest.fixture(scope="module")
def observation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Observation]:
    tool("prometheus")
    folder, port = tmp_path_factory.mktemp("live"), free_port()
    home = folder / "home"
    home.mkdir(mode=0o700)
    with serving(home, port) as service, Prometheus(folder / "prometheus", f"127.0.0.1:{port}") as prometheus:
        give_redis_a_limit(home)
        once(service.url)
        with Load(service.url) as load:
            load.last(LOAD_SECONDS)
            for _ in range(20):  # on a busy machine a scrape may take too long, and then no series has data
                prometheus.now = time.time()
                if all(has_data(prometheus, name) for name in recorded() if name not in MAY_BE_EMPTY):
                    break
                load.last(2.0)
            exposition = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=10).text
            alerts = prometheus.alerts()
        yield Observation(prometheus, load, exposition, alerts)


def panels() -> dict[str, str]:
    """The expressions of all panels, by where they are, as Grafana would ask them."""
    found = {}
    for path in sorted((DEPLOY / "grafana" / "dashboards").glob("*.json")):
        dashboard = json.loads(path.read_text())
        for panel in dashboard["panels"]:
            for target in panel.get("targets", ()):
                expr = target["expr"].replace("$__rate_interval", "30s")
                for variable in dashboard["templating"]["list"]:
                    expr = expr.replace(f"${variable['name']}", variable["allValue"])
                found[f"{path.stem}: {panel['title']} {target['refId']}"] = expr
    return found


def rules() -> list[dict[str, Any]]:
    paths = sorted((DEPLOY / "prometheus" / "rules").glob("*.yml"))
    return [rule for path in paths for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]]


def recorded() -> dict[str, str]:
    return {rule["record"]: rule["expr"] for rule in rules() if "record" in rule}


def alerted() -> dict[str, str]:
    return {rule["alert"]: rule["expr"] for rule in rules() if "alert" in rule}


def may_be_empty(expr: str) -> bool:
    return any(name in expr for name in MAY_BE_EMPTY)


def has_data(prometheus: Prometheus, expr: str) -> bool:
    return any(not math.isnan(float(sample["value"][1])) for sample in prometheus.query(expr))


def test_the_load_was_healthy_and_ran_every_operation_on_both_backends(observation: Observation) -> None:
    load = observation.load
    assert load.failures == []
    assert load.ends == {(name, backend, "succeeded") for name, backend in load.WORK}
    computed = observation.prometheus.query("sum by (operation, backend) (warpdesk_jobs_computed_total) > 0")
    ran = {(sample["metric"]["operation"], sample["metric"]["backend"]) for sample in computed}
    assert {(load.COUNTED[counted], backend) for counted, backend in ran} == set(load.WORK)


def test_every_panel_has_data(observation: Observation) -> None:
    expressions = {where: expr for where, expr in panels().items() if not may_be_empty(expr)}
    assert [
        f"{where}: {expr}" for where, expr in expressions.items() if not has_data(observation.prometheus, expr)
    ] == []


def test_every_recording_rule_has_data(observation: Observation) -> None:
    expressions = {name: expr for name, expr in recorded().items() if name not in MAY_BE_EMPTY}
    assert [name for name in expressions if not has_data(observation.prometheus, name)] == []


def test_every_side_of_every_alert_has_data(observation: Observation) -> None:
    empty = [
        f"{name}: {part}"
        for name, expr in alerted().items()
        for part in operands(expr)
        if not may_be_empty(part) and not has_data(observation.prometheus, part)
    ]
    assert empty == []


def test_every_series_that_a_rule_names_is_there(observation: Observation) -> None:
    named = {series for expr in (*alerted().values(), *recorded().values()) for series in selectors(expr)}
    expressions = sorted(series for series in named if not may_be_empty(series))
    assert [series for series in expressions if not has_data(observation.prometheus, series)] == []


def test_every_query_of_the_runbook_is_understood_and_names_what_is_there(observation: Observation) -> None:
    pages = sorted((DEPLOY / "runbook").glob("*.md"))
    expressions = [
        line
        for page in pages
        for block in re.findall(r"```promql\n(.*?)```", page.read_text(), re.DOTALL)
        for line in block.splitlines()
    ]
    assert len(expressions) >= 30
    for line in expressions:
        observation.prometheus.query(line)  # a mistake is an answer of 400
    names = {selector.partition("{")[0] for line in expressions for selector in selectors(line)}
    assert [name for name in names if not may_be_empty(name) and not has_data(observation.prometheus, name)] == []


def test_no_rule_fails_and_no_alert_is_near(observation: Observation) -> None:
    assert [rule["name"] for rule in observation.prometheus.rules() if rule["health"] != "ok"] == []
    assert [alert["labels"] for alert in observation.alerts if alert["state"] == "firing"] == []
    # Neither is any about to, but for those that tell of a slow machine, which one that runs tests is.
    pending = {alert["labels"]["alertname"] for alert in observation.alerts}
    assert pending <= {"WarpdeskRealtimeBurnsFast", "WarpdeskRealtimeBurnsSlowly"}


def test_every_metric_is_watched_by_somebody(observation: Observation) -> None:
    used = " ".join((*panels().values(), *recorded().values(), *alerted().values()))
    names = {selector.partition("{")[0] for selector in selectors(used)}
    unused = set()
    for family in text_string_to_metric_families(observation.exposition):
        if family.name.startswith("warpdesk_"):
            parts = {family.name} | {f"{family.name}_{end}" for end in ("total", "bucket", "sum", "count")}
            unused |= set() if parts & names else {family.name}
    assert unused == RAW


def test_five_expressions_at_most_may_say_nothing(observation: Observation) -> None:
    assert len(MAY_BE_EMPTY) <= 5
    present = [name for name in MAY_BE_EMPTY if "=~" not in name and has_data(observation.prometheus, name)]
    assert present == [], "they do say something: take them out of the list"


def test_a_misspelt_metric_would_be_found(observation: Observation) -> None:
    assert not has_data(observation.prometheus, "warpdesk_queue_job")
    assert selectors('max(warpdesk_a{b="c"}) > warpdesk:d') == {'warpdesk_a{b="c"}', "warpdesk:d"}
    assert list(operands("a / (b > 0) > 2 and on (x) (c == 1 unless on () d)")) == ["a / (b > 0)", "c", "d"]
