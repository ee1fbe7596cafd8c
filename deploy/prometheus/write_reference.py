"""Write the reference of all metrics: `python -m deploy.prometheus.write_reference` writes docs/reference/metrics.md.

What a metric is comes from its declaration, which panels and alerts use it from the dashboards and rules themselves.
"""

import json
import re
from pathlib import Path

import yaml

from deploy.grafana import build
from warpdesk_server.workers.metrics import METRICS, Metric

ROOT = Path(__file__).resolve().parents[2]
WRITTEN = ROOT / "docs" / "reference" / "metrics.md"
SOURCES = {
    "api": "Counted by API processes",
    "transition": "Counted by the queue's scripts, each exactly once",
    "worker": "Counted by workers",
    "process": "Of one API process alone",
    "queue": "Read from the queue",
    "store": "Read from the store",
    "redis": "Read from Redis",
    "report": "From workers' reports",
    "gpu": "Of GPUs, from workers' reports",
    "ledger": "Read from the privacy ledger",
}
KINDS = {"times": "histogram of seconds", "sizes": "histogram"}


def panels() -> dict[str, str]:
    """The expressions of each panel, by its dashboard and title."""
    return {
        f"{name}: {panel['title']}": json.dumps(panel["targets"])
        for name in build.DASHBOARDS
        for _, row in build.all_rows(name)
        for panel in row
    }


def alerts() -> dict[str, str]:
    """The expression of each alert, with those of the recording rules in it."""
    files = sorted((ROOT / "deploy" / "prometheus" / "rules").glob("*.yml"))
    rules = [rule for file in files for group in yaml.safe_load(file.read_text())["groups"] for rule in group["rules"]]
    records = {rule["record"]: rule["expr"] for rule in rules if "record" in rule}
    found = {}
    for rule in rules:
        if "alert" not in rule:
            continue
        text, before = rule["expr"], ""
        while text != before:
            before = text
            text += "".join(expr for name, expr in records.items() if name in text and expr not in text)
        found[rule["alert"]] = text
    return found


def row(metric: Metric, panels: dict[str, str], alerts: dict[str, str]) -> str:
    kind = KINDS.get(metric.kind, metric.kind) if metric.bounds or metric.kind in ("counter", "gauge") else "summary"
    drawn = ", ".join(build.users(metric, panels))
    raised = ", ".join(f"[{name}](../../deploy/runbook/{name}.md)" for name in build.users(metric, alerts))
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `warpdesk_{metric.name}` | {kind} | {labels} | {metric.help} | {drawn} | {raised} |"


def text() -> str:
    shown, raised = panels(), alerts()
    lines = [
        "# Metrics",
        "",
        "Written by `make dashboards` from `workers/metrics.py`, the dashboards and the rules: change it there.",
        "Every API process exports the same series, so a query begins with `max without (instance, pod)`.",
    ]
    for source, title in SOURCES.items():
        head = [
            "",
            f"## {title}",
            "",
            "| metric | kind | labels | meaning | panels | alerts |",
            "|---|---|---|---|---|---|",
        ]
        lines += head + [row(metric, shown, raised) for metric in METRICS.values() if metric.source == source]
    return re.sub(r" +\n", "\n", "\n".join(lines)) + "\n"


if __name__ == "__main__":
    WRITTEN.parent.mkdir(parents=True, exist_ok=True)
    WRITTEN.write_text(text())
