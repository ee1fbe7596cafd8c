"""Write the rules of deploy/prometheus as a PrometheusRule: `python deploy/kubernetes/write_rules.py`."""

from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
RULES = HERE.parent / "prometheus" / "rules"
WRITTEN = HERE / "components" / "monitoring" / "rules.yaml"


def prometheus_rule() -> dict[str, Any]:
    """All groups, in the order of their files."""
    groups = [group for file in sorted(RULES.glob("*.yml")) for group in yaml.safe_load(file.read_text())["groups"]]
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "warpdesk", "labels": {"app.kubernetes.io/name": "warpdesk"}},
        "spec": {"groups": groups},
    }


if __name__ == "__main__":
    written = yaml.safe_dump(prometheus_rule(), sort_keys=False, width=1000)
    WRITTEN.write_text(f"# Written by write_rules.py from deploy/prometheus/rules: change them there.\n{written}")
