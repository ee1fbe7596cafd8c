"""OpenTelemetry gets nothing from the API, even where the machine has it configured."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_the_api_gives_opentelemetry_no_span_no_metric_and_no_log(tmp_path: Path, redis_url: str) -> None:
    """The span of a request that waits for a private job would reveal the job's time, which depends on its noise."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "FASTAPI_OTEL_AUTO_CONFIGURE": "true",
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9",
    }
    ran = subprocess.run(
        [sys.executable, "-m", "tests.app.http.traced", tmp_path, redis_url],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=110,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    report = json.loads(ran.stdout)
    assert report["statuses"] == [200, 500]
    assert report["exported"] == []
    # A plain application of the same process is seen, so the exporters work.
    assert {"GET /", "http.server.request.duration", "http.server.request.exception"} <= set(report["control"])
