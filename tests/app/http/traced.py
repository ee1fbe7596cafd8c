"""A process whose OpenTelemetry providers keep what they are given, and what it kept as JSON: run by test_telemetry.

Providers are set once for a whole process, so this is no place for a test that shares it.
"""

import json
import sys
import threading
from dataclasses import replace
from pathlib import Path

import httpx
from fastapi import FastAPI
from fastapi.testclient import TestClient
from opentelemetry import _logs, metrics, trace
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.app.computations import work
from tests.app.conftest import live
from tests.waiting import wait_until

HIDE = {"operation": "hide", "params": {"count": 3}, "inputs": {"values": {"data": [1.0], "dtype": "float64"}}}


class Kept:
    """What the three in-memory exporters of this process have received."""

    def __init__(self) -> None:
        self._spans, self._metrics = InMemorySpanExporter(), InMemoryMetricReader()
        self._logs = InMemoryLogRecordExporter()
        tracers, loggers = TracerProvider(), LoggerProvider()
        tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        loggers.add_log_record_processor(SimpleLogRecordProcessor(self._logs))
        trace.set_tracer_provider(tracers)
        metrics.set_meter_provider(MeterProvider([self._metrics]))
        _logs.set_logger_provider(loggers)

    def take(self) -> list[str]:
        """The names of everything exported since the last call."""
        data = self._metrics.get_metrics_data()
        measured = [
            metric.name
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
        ]
        names = [span.name for span in self._spans.get_finished_spans()] + measured
        names += [str(log.log_record.event_name) for log in self._logs.get_finished_logs()]
        self._spans.clear()
        self._logs.clear()
        return names


def served(home: Path, redis_url: str) -> list[int]:
    """The statuses of two answers of the API: one waited for a private job, one met a fault."""
    with live(home, redis_url) as api:

        def compute() -> None:
            wait_until(lambda: api.queue.length() == 1)
            (job,) = api.http.get("/v1/jobs").json()["jobs"]
            work(api.queue, api.store, job["id"])

        worker = threading.Thread(target=compute)
        worker.start()
        waited = httpx.post(f"{api.url}/v1/jobs", json=HIDE, headers={"Prefer": "wait=60"}, timeout=90)
        worker.join()
        api.app.state.services = replace(api.app.state.services, store=None)  # the next request meets a fault
        return [waited.status_code, api.http.get("/v1/arrays/blake3:" + "0" * 64).status_code]


def control() -> None:
    """One request to a plain application and one to one that fails."""
    app = FastAPI()

    @app.get("/")
    def answer() -> int:
        return 1

    @app.get("/fault")
    def fault() -> int:
        raise ZeroDivisionError

    with TestClient(app, raise_server_exceptions=False) as client:
        client.get("/")
        client.get("/fault")


if __name__ == "__main__":
    kept = Kept()
    statuses = served(Path(sys.argv[1]), sys.argv[2])
    ours = kept.take()
    control()
    sys.stdout.write(json.dumps({"statuses": statuses, "exported": ours, "control": kept.take()}))
