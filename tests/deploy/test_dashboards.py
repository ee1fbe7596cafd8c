"""The dashboards are those that `build.py` makes, and Grafana can load them: our own check of their JSON."""

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.grafana import build
from deploy.prometheus import write_reference
from warpdesk_server.workers.metrics import METRICS, Metric

DEPLOY = Path(__file__).parents[2] / "deploy"
FOLDER = DEPLOY / "grafana" / "dashboards"
PANELS = {"row", "timeseries", "stat", "heatmap", "table", "state-timeline"}  # graph, singlestat and the like are gone
GRID = 24  # columns
ADDRESS = "https://git.example.com/warpdesk/blob/main/deploy/runbook/"

Panel = dict[str, Any]


def load(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return loaded


def panels(name: str) -> list[Panel]:
    return [panel for panel in load(name)["panels"] if panel["type"] != "row"]


def test_the_files_are_what_the_builder_makes() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(build.DASHBOARDS)
    stale = [name for name in build.DASHBOARDS if (FOLDER / f"{name}.json").read_text() != build.text(name)]
    assert stale == [], "run `python deploy/grafana/build.py`"


def test_every_declared_metric_is_drawn_and_nothing_else_is_asked_for() -> None:
    drawn = write_reference.panels()
    assert [metric.name for metric in METRICS.values() if not build.users(metric, drawn)] == []
    names = set(re.findall(r"\bwarpdesk_(\w+)", "".join([*drawn.values(), *write_reference.alerts().values()])))
    series = {f"{name}{end}" for name in METRICS for end in ("", "_bucket", "_sum", "_count")}
    assert names - series == set()


def test_a_metric_that_no_panel_draws_gets_one(monkeypatch: pytest.MonkeyPatch) -> None:
    added = Metric("nights_total", "counter", "worker", "Nights that passed", ("operation",))
    monkeypatch.setitem(build.METRICS, "nights_total", added)  # type: ignore[arg-type]
    *_, (title, panels) = build.all_rows("service")
    assert title == "Other metrics"
    [panel] = [panel for panel in panels if panel["title"] == "nights_total"]
    assert panel["targets"][0]["expr"] == f"sum by (operation) ({build.rate('warpdesk_nights_total')})"
    assert panel["description"] == "Nights that passed."


def test_the_reference_of_metrics_is_what_is_declared_drawn_and_raised() -> None:
    assert write_reference.WRITTEN.read_text() == write_reference.text(), "run `make dashboards`"


def test_uids_and_titles_are_unique_and_the_schema_is_pinned() -> None:
    loaded = [load(name) for name in build.DASHBOARDS]
    for what in ("uid", "title"):
        assert len({dashboard[what] for dashboard in loaded}) == len(loaded)
    assert {dashboard["schemaVersion"] for dashboard in loaded} == {39}
    assert {dashboard["id"] for dashboard in loaded} == {None}  # Grafana gives its own
    assert all(len(dashboard["uid"]) <= 40 for dashboard in loaded)


@pytest.mark.parametrize("name", build.DASHBOARDS)
def test_panels_have_ids_of_their_own_and_kinds_that_grafana_still_has(name: str) -> None:
    shown = load(name)["panels"]
    assert len({panel["id"] for panel in shown}) == len(shown)
    assert {panel["type"] for panel in shown} <= PANELS
    titles = [panel["title"] for panel in panels(name)]
    assert sorted(titles) == sorted(set(titles))


@pytest.mark.parametrize("name", build.DASHBOARDS)
def test_no_panel_covers_another(name: str) -> None:
    places = [panel["gridPos"] for panel in load(name)["panels"]]
    assert all(at["x"] >= 0 and at["x"] + at["w"] <= GRID and at["h"] > 0 for at in places)
    assert [(one, other) for one, other in itertools.combinations(places, 2) if overlap(one, other)] == []


def overlap(one: dict[str, int], other: dict[str, int]) -> bool:
    return (
        one["x"] < other["x"] + other["w"] and other["x"] < one["x"] + one["w"]
        and one["y"] < other["y"] + other["h"] and other["y"] < one["y"] + one["h"]
    )  # fmt: skip


def test_the_check_of_overlaps_can_fail() -> None:
    assert overlap({"x": 0, "y": 0, "w": 8, "h": 8}, {"x": 7, "y": 7, "w": 8, "h": 8})
    assert not overlap({"x": 0, "y": 0, "w": 8, "h": 8}, {"x": 8, "y": 0, "w": 8, "h": 8})


@pytest.mark.parametrize("name", build.DASHBOARDS)
def test_each_panel_asks_the_provisioned_source_and_says_what_it_shows(name: str) -> None:
    [provisioned] = yaml.safe_load((DEPLOY / "grafana/provisioning/datasources/prometheus.yml").read_text())[
        "datasources"
    ]
    source = {"type": "prometheus", "uid": provisioned["uid"]}
    for panel in panels(name):
        assert panel["datasource"] == source, panel["title"]
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["targets"], panel["title"]
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
        for target in panel["targets"]:
            assert target["datasource"] == source
            assert target["expr"].strip()
    for variable in load(name)["templating"]["list"]:
        assert variable["datasource"] == source


@pytest.mark.parametrize("name", build.DASHBOARDS)
def test_every_variable_is_used_and_no_other_is(name: str) -> None:
    dashboard = load(name)
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    used = set(
        re.findall(r"\$(\w+)", " ".join(target["expr"] for panel in panels(name) for target in panel["targets"]))
    )
    assert used - {"__rate_interval"} == variables


@pytest.mark.parametrize("name", build.DASHBOARDS)
def test_dashboards_lead_to_each_other_and_to_pages_of_the_runbook_that_exist(name: str) -> None:
    dashboard = load(name)
    assert [link["tags"] for link in dashboard["links"] if link["type"] == "dashboards"] == [dashboard["tags"]]
    links = [link["url"] for panel in panels(name) for link in panel["links"]]
    assert links, "no panel leads to the runbook"
    assert all(link.startswith(ADDRESS) for link in links)
    missing = [link for link in links if not (DEPLOY / "runbook" / link.removeprefix(ADDRESS)).is_file()]
    assert missing == []


def test_utilisation_says_what_it_does_not_mean() -> None:
    [panel] = [panel for panel in panels("gpus") if panel["title"] == "Utilisation"]
    assert "does not say how much of the GPU worked" in panel["description"]


def test_the_provider_looks_where_the_readme_says() -> None:
    [provider] = yaml.safe_load((DEPLOY / "grafana/provisioning/dashboards/warpdesk.yml").read_text())["providers"]
    assert provider["type"] == "file"
    assert provider["options"]["path"] in (DEPLOY / "grafana" / "README.md").read_text()
