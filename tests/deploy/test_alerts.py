"""Rules and alerts: promtool's own tests of them, and what each alert must have."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.tools import tool

DEPLOY = Path(__file__).parents[2] / "deploy"
PROMETHEUS = DEPLOY / "prometheus"
RULES = sorted((PROMETHEUS / "rules").glob("*.yml"))
TESTS = sorted((PROMETHEUS / "tests").glob("*.yml"))
ADDRESS = "https://git.example.com/warpdesk/blob/main/deploy/runbook/"
HEADINGS = ["## What it means", "## How to look", "## What to do"]

Rule = dict[str, Any]


def groups() -> list[dict[str, Any]]:
    return [group for path in RULES for group in yaml.safe_load(path.read_text())["groups"]]


def alerts() -> dict[str, Rule]:
    return {rule["alert"]: rule for group in groups() for rule in group["rules"] if "alert" in rule}


def promtool(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([tool("promtool"), *arguments], cwd=PROMETHEUS, capture_output=True, text=True, timeout=120)


def test_prometheus_takes_the_configuration_and_every_rule() -> None:
    checked = promtool("check", "config", "prometheus.yml")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"{len(RULES)} rule files found" in checked.stdout


def test_whoever_is_to_be_told_is_and_a_ticket_waits_while_its_reading_is_old() -> None:
    """By the meaning of Alertmanager's fields: its own checker is in no package of the tests."""
    routing = yaml.safe_load((DEPLOY / "alertmanager" / "alertmanager.yml").read_text())
    receivers = {one["name"]: one for one in routing["receivers"]}
    assert len(receivers) == len(routing["receivers"])
    routes = {one["matchers"][0].removeprefix("severity = "): one["receiver"] for one in routing["route"]["routes"]}
    assert all(len(one["matchers"]) == 1 and "routes" not in one for one in routing["route"]["routes"])
    severities = {rule["labels"]["severity"] for rule in alerts().values()}
    assert routes == {severity: severity for severity in severities}  # each has its own, and none is for nobody
    assert {routing["route"]["receiver"], *routes.values()} == receivers.keys()
    assert routing["route"]["receiver"] == "page"  # another severity is not lost
    assert routing["route"]["group_by"] == ["alertname"]
    [inhibits] = routing["inhibit_rules"]
    [sources] = re.findall(r'^alertname =~ "(.*)"$', inhibits["source_matchers"][0])
    assert {alerts()[name]["labels"]["severity"] for name in sources.split("|")} == {"page"}
    assert inhibits["source_matchers"][1:] == ["severity = page"]
    assert inhibits["target_matchers"] == ["severity = ticket"]  # a page is never kept back
    for receiver in receivers.values():
        assert [*receiver] == ["name", "webhook_configs"]
        assert [[*hook] for hook in receiver["webhook_configs"]] == [["url_file"]]


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.stem)
def test_alerts_fire_and_are_silent_as_their_tests_say(path: Path) -> None:
    ran = promtool("test", "rules", str(path))
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_every_alert_fires_in_a_test_and_is_silent_in_a_case_beside_it_and_on_a_healthy_service() -> None:
    fires, silent, healthy = set(), set(), set()
    for path in TESTS:
        for test in yaml.safe_load(path.read_text())["tests"]:
            for expectation in test["alert_rule_test"]:
                if expectation["exp_alerts"]:
                    fires.add(expectation["alertname"])
                else:
                    (healthy if path.stem == "healthy" else silent).add(expectation["alertname"])
    for which in (fires, silent, healthy):
        assert which == set(alerts())


def test_names_are_unique_and_begin_alike() -> None:
    named = [rule["alert"] for group in groups() for rule in group["rules"] if "alert" in rule]
    assert len(named) == len(set(named)) >= 30
    assert all(name.startswith("Warpdesk") for name in named)
    recorded = [rule["record"] for group in groups() for rule in group["rules"] if "record" in rule]
    assert len(recorded) == len(set(recorded))
    assert all(name.startswith("warpdesk:") for name in recorded)
    assert len({group["name"] for group in groups()}) == len(groups())


@pytest.mark.parametrize("name", alerts())
def test_an_alert_says_how_urgent_it_is_and_leads_to_a_page_that_helps(name: str) -> None:
    rule = alerts()[name]
    assert rule["labels"]["severity"] in ("page", "ticket")
    words = rule["annotations"]
    assert set(words) == {"summary", "description", "runbook_url"}
    assert words["description"].endswith(".")
    assert words["runbook_url"] == f"{ADDRESS}{name}.md"
    page = (DEPLOY / "runbook" / f"{name}.md").read_text().splitlines()
    assert page[0] == f"# {name}"
    assert [line for line in page if line.startswith("## ")] == HEADINGS
    for above, below in zip(HEADINGS, [*HEADINGS[1:], None], strict=True):
        end = page.index(below) if below is not None else len(page)
        assert any(line.strip() for line in page[page.index(above) + 1 : end]), f"{above} is empty"


def test_there_is_no_page_without_an_alert() -> None:
    pages = {path.stem for path in (DEPLOY / "runbook").glob("*.md")} - {"README"}
    assert pages == set(alerts())
    index = (DEPLOY / "runbook" / "README.md").read_text()
    assert [name for name in alerts() if f"({name}.md)" not in index] == []
