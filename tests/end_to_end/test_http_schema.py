"""The OpenAPI document is true: requests made up from it are answered as it says, and its examples are taken."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    ignored_auth,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.app.conftest import Live, live
from tests.conftest import redis_of_its_own
from warpdesk_server.app.access.keys import create_key
from warpdesk_server.kernels.catalogue import CATALOGUE
from warpdesk_server.workers.queue.reports import DeviceReport, WorkerReport

ROOT = Path(__file__).resolve().parents[2]


@schemathesis.check
def nothing_fails(context: Any, response: Any, case: Any) -> bool | None:
    """Of a deadline that cannot be met, where nobody works, the 503 is the right answer."""
    if response.status_code == 503 and '"code":"deadline-unreachable"' in response.text:
        return None
    return not_a_server_error(context, response, case)


# Left out: positive_data_acceptance, because what fits together (a period and the number of prices, two shapes) is
# checked across fields, which no JSON Schema can say; that refusal is a documented 422.
CHECKS = (
    nothing_fails,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
    ignored_auth,
)


# Headers that say where a message ends. With wrong ones it is no HTTP and has no route; test_reception.py sends such.
_FRAMING = {"content-length", "transfer-encoding"}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """An API with a key, and a GPU worker that says it is ready; nobody waits, since nothing runs."""
    home = tmp_path_factory.mktemp("home")
    token = create_key(home, "fuzz", ["admin"])
    # On a fast machine its checks of authentication fail more often in a second than one address may.
    limits = {"max_wait": 0, "max_queue": 1_000_000, "failed_login_burst": 1_000_000}
    with redis_of_its_own() as url, live(home, url, CATALOGUE, **limits) as running:
        running.http.headers["Authorization"] = f"Bearer {token}"
        now = time.time()
        gpu = DeviceReport(backend="gpu", name="a GPU", memory_bytes=1 << 34)
        running.queue.report(
            WorkerReport(
                name="one", host="here", pid=1, child_pid=2, state="ready", device=gpu, started_at=now, reported_at=now
            ),
            ttl=3600,
        )
        yield running


@pytest.fixture(scope="module")
def document(api: Live) -> Any:
    return schemathesis.openapi.from_url(f"{api.url}/openapi.json")


ROUTES = (
    "GET /v1/operations", "GET /v1/operations/{name}", "PUT /v1/arrays", "GET /v1/arrays",
    "GET /v1/arrays/{array_id}",
    "PUT /v1/datasets/{name}", "GET /v1/datasets", "GET /v1/datasets/{name}", "DELETE /v1/datasets/{name}",
    "POST /v1/datasets/{name}/rows", "GET /v1/datasets/{name}/rows",
    "HEAD /v1/arrays/{array_id}", "DELETE /v1/arrays/{array_id}", "POST /v1/jobs", "POST /v1/jobs/batch",
    "GET /v1/jobs",
    "GET /v1/jobs/{job_id}", "DELETE /v1/jobs/{job_id}", "POST /v1/jobs/{job_id}/cancel",
    "POST /v1/jobs/{job_id}/pause", "POST /v1/jobs/{job_id}/resume", "GET /v1/jobs/{job_id}/progress",
    "GET /v1/jobs/{job_id}/result", "GET /v1/jobs/{job_id}/result/{output}",
    "GET /v1/jobs/{job_id}/events", "GET /v1/dead-letters", "POST /v1/dead-letters/{job_id}/rerun",
    "POST /v1/budgets", "GET /v1/budgets", "GET /v1/budgets/{budget_id}", "POST /v1/budgets/{budget_id}/close",
    "GET /v1/budgets/{budget_id}/rules", "PUT /v1/budgets/{budget_id}/rules",
    "POST /v1/budgets/{budget_id}/quote", "GET /v1/budgets/{budget_id}/history", "GET /v1/budgets/{budget_id}/verify",
    "GET /v1/charges/{charge_id}", "GET /v1/keys", "GET /v1/audit", "GET /v1/queue",
    "POST /v1/queue/pause", "POST /v1/queue/resume",
    "POST /v1/secagg/rounds", "GET /v1/secagg/rounds", "GET /v1/secagg/rounds/{round_id}",
    "DELETE /v1/secagg/rounds/{round_id}",
    "POST /v1/secagg/rounds/{round_id}/keys",
    "GET /v1/secagg/rounds/{round_id}/roster", "POST /v1/secagg/rounds/{round_id}/shares",
    "GET /v1/secagg/rounds/{round_id}/shares", "PUT /v1/secagg/rounds/{round_id}/masked",
    "GET /v1/secagg/rounds/{round_id}/survivors", "POST /v1/secagg/rounds/{round_id}/unmask",
    "GET /v1/secagg/rounds/{round_id}/result",
    "GET /livez", "GET /readyz",
    "GET /health", "GET /gpu-health", "GET /gpu-memory", "GET /performance-metrics", "GET /metrics",
    "GET /problems/{code}",
)  # fmt: skip

ENDLESS = "GET /v1/events"  # its answer never ends: tests/app/jobs/test_events_of_all.py tries it


def test_every_route_is_tried(api: Live) -> None:
    document = api.http.get("/openapi.json").json()

    found = {f"{method.upper()} {path}" for path, methods in document["paths"].items() for method in methods}
    assert found == {*ROUTES, ENDLESS}


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=lambda mode: mode.value)
@pytest.mark.parametrize("route", ROUTES)
def test_what_the_document_says_is_what_happens(document: Any, api: Live, route: str, mode: GenerationMode) -> None:
    method, path = route.split()
    authorization = {"Authorization": api.http.headers["Authorization"]}
    examples = 60 if route == "POST /v1/jobs" else 8

    # A CSV is text, and any wrong JSON value written as text is one as well.
    checks = [check for check in CHECKS if (route, check) != ("PUT /v1/arrays", negative_data_rejection)]

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(case=document[path][method].as_strategy(generation_mode=mode))
    def answers_as_documented(case: schemathesis.Case) -> None:
        for name in [name for name in case.headers or () if name.lower() in _FRAMING]:
            del case.headers[name]
        case.call_and_validate(headers=authorization, checks=checks, timeout=20)

    try:
        answers_as_documented()
    except Unsatisfiable:  # a route without parameters cannot be asked wrongly
        assert mode is GenerationMode.NEGATIVE


@pytest.mark.parametrize("operation", CATALOGUE)
def test_the_example_of_each_operation_is_accepted_as_shown(api: Live, operation: str) -> None:
    content = api.http.get("/openapi.json").json()["paths"]["/v1/jobs"]["post"]["requestBody"]["content"]
    shown = content["application/json"]["examples"][operation]["value"]

    answer = api.http.post("/v1/jobs", json=shown)

    assert answer.status_code == 202, answer.text
    assert shown == api.http.get(f"/v1/operations/{operation}").json()["example"]


def test_every_answer_that_is_not_a_success_is_a_problem_document(api: Live) -> None:
    document = api.http.get("/openapi.json").json()

    for path, methods in document["paths"].items():
        for method, route in methods.items():
            for status, answer in route["responses"].items():
                if status[0] in "45" and not (status == "503" and path in ("/readyz", "/health")):
                    assert list(answer["content"]) == ["application/problem+json"], (path, method, status)
            assert "`invalid-request`" in route["responses"]["422"]["description"]  # of an unknown query parameter
            protected = "401" in route["responses"]
            assert (
                ("security" in route)
                == protected
                == path.startswith(
                    (
                        "/v1/jobs",
                        "/v1/arrays",
                        "/v1/datasets",
                        "/v1/dead",
                        "/v1/budgets",
                        "/v1/charges",
                        "/v1/keys",
                        "/v1/queue",
                        "/v1/events",
                        "/v1/audit",
                        "/v1/secagg",
                        "/gpu",
                        "/perf",
                        "/met",
                    )
                )
            )


def test_validating_every_example_loads_no_compiler_and_no_gpu_library() -> None:
    """What the API process loads stays small: it enqueues by name and computes nothing."""
    program = """
import json, sys, tempfile, types
from pathlib import Path
from warpdesk_server.app.jobs import operations
from warpdesk_server.app.settings import Settings
from warpdesk_server.kernels.catalogue import CATALOGUE
from warpdesk_server.workers.store.spool import SpoolStore
home = Path(tempfile.mkdtemp())
desk = types.SimpleNamespace(operations=CATALOGUE, settings=Settings(home=home), store=SpoolStore(home / "store"))
for operation in CATALOGUE.values():
    submission = operations.submission(operations.example(operation))
    operations.keep_inputs(desk, "someone", operations.check(desk, submission, operations.Sources(desk, "someone")))
print(json.dumps([name for name in ("numba", "llvmlite", "cupy", "torch") if name in sys.modules]))
"""
    ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=100)

    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == []
