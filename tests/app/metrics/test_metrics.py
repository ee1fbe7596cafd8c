"""`/metrics`: the same numbers from every process, with bounded labels, also when something restarts, dies or hangs."""

import itertools
import os
import re
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.app.access.test_auth import bearer
from tests.app.budgets.test_budgets import create, release, submit
from tests.app.computations import COMPUTATIONS, work
from tests.app.conftest import SCALE, Live, live, unlike
from tests.app.health.test_health import redis_pid, report
from tests.app.metrics.test_gpu_metrics import condition, read, worker
from tests.claims import computed, take
from tests.conftest import free_port, redis_of_its_own
from tests.deploy.tools import tool
from tests.waiting import wait_until
from warpdesk_server.app import background
from warpdesk_server.app.access.keys import create_key
from warpdesk_server.app.jobs.submission import new_job_id
from warpdesk_server.app.metrics import exposition as metrics
from warpdesk_server.app.metrics import families as declared
from warpdesk_server.app.metrics import privacy as privacy_metrics
from warpdesk_server.app.metrics.collector import Collector
from warpdesk_server.kernels.catalogue import OPERATIONS
from warpdesk_server.kernels.operation import Operation
from warpdesk_server.service.redis_server import RedisServer
from warpdesk_server.workers.metrics import METRICS
from warpdesk_server.workers.queue.counts import Amounts, Counts
from warpdesk_server.workers.queue.jobs import connect
from warpdesk_server.workers.queue.protocol import MAX_STRIKES, PRIORITIES, Failed, JobRequest, Provenance, Succeeded
from warpdesk_server.workers.queue.records import Ending

# The labels that a series may have. No ids of jobs, arrays, requests, keys, budgets, processes or hosts.
LABELS = {
    "queue", "operation", "backend", "state", "reason", "code", "route", "method", "trigger", "direction", "kind",
    "uuid", "slot", "dataset", "size_class", "what", "phase", "version", "python", "commit", "collector", "le",
    "quantile", "name", "index", "driver", "cuda", "mig", "domain", "architecture", "xid",
}  # fmt: skip
NO_UNIT = re.compile("milli|micro|nano|_ms$|_us$|percent|kilo|mega|giga|_kb|_mb|_gb|minutes|hours_|_days|fahrenheit")
# Series of a name that operations are counted by, of a route, and of neither.
MOST_OF_A_NAME, MOST_OF_A_ROUTE, MOST_OTHERS = 55, 9, 615

EVERY = {**OPERATIONS, "scale": COMPUTATIONS["scale"]}


def text(api: Live) -> str:
    answer = api.http.get("/metrics")
    assert answer.status_code == 200
    return answer.text


def samples(page: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    found = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            key = sample.name.removeprefix("warpdesk_"), frozenset(sample.labels.items())
            assert key not in found, key
            found[key] = sample.value
    return found


def value(page: str, name: str, **labels: str) -> float:
    """The sum over the series with these labels; KeyError where there is none."""
    found = [
        amount
        for (named, having), amount in samples(page).items()
        if named == name and labels.items() <= dict(having).items()
    ]
    if not found:
        raise KeyError(name, labels)
    return sum(found)


def everything_happened(api: Live, operations: Mapping[str, Operation]) -> None:
    """Fill the queue with jobs and reports, so that every metric has its series, and call each route.

    Jobs of all operations in all queues on both backends, of three sizes, with each end; 8 GPU workers.
    """
    for number in range(8):
        gpu = read("a100", uuid=f"GPU-{number}")
        state = condition(gpu, faults={"lost": 1}, since=1.0)
        api.queue.report(worker(number, state, name=f"worker {number}", dollars_per_hour=2.0), ttl=60)
    for number, (name, operation) in enumerate(operations.items()):
        for backend in ("cpu", "gpu"):
            for place, (queue, ends) in enumerate(itertools.product(PRIORITIES, ("answered", "failed", "canceled"))):
                job_id = f"job_{number}_{backend}_{place}"
                api.queue.enqueue(
                    JobRequest(
                        id=job_id, owner="local", operation=name, params={}, inputs={}, timeout=1.0, result_ttl=60.0,
                        work=10.0 ** (4 + 3 * PRIORITIES.index(queue)), private=operation.randomness == "private",
                        priority=queue,
                    )
                )  # fmt: skip
                job = take(api.queue, job_id)
                how: dict[str, Any] = {"backend": backend, "device": "a device", "attempt": job.attempt}
                how |= {"compute_seconds": 0.1 + number, "kernel_seconds": 0.1 if backend == "gpu" else None}
                how |= {"energy_joules": 1.0, "cost_dollars": 0.1}
                outcome = Succeeded(result=f"{job_id}.1", provenance=Provenance(**how), bytes=8)
                kept_off = "out-of-memory" if backend == "cpu" else ""
                if ends == "answered":
                    computed(api.queue, [Ending(job, outcome, kept_off=kept_off)])
                elif ends == "failed":
                    api.queue.finish([Ending(job, Failed(code="operation-error", message="it failed"))])
                else:
                    api.queue.finish([Ending(job, how="struck")])
                    api.queue.cancel(job_id)
    document = api.http.get("/openapi.json").json()
    for path, methods in document["paths"].items():
        for method in methods:
            if not path.endswith("/events"):
                api.http.request(method, re.sub(r"\{\w+\}", "none_of_these", path))
    api.http.get("/nowhere")


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of a service after `everything_happened`."""
    with redis_of_its_own() as url, live(tmp_path_factory.mktemp("home"), url, EVERY) as api:
        everything_happened(api, EVERY)
        budget = create(api.http, dataset="people")
        assert submit(api.http, release(budget["id"]), "one").status_code in (200, 202)
        assert submit(api.http, release(budget["id"], "5"), "two").status_code == 409
        api.app.state.services.metrics._ledger.ask(100.0)
        return text(api)


def test_labels_are_bounded_and_units_are_base_units(full: str) -> None:
    families = list(text_string_to_metric_families(full))
    for family in families:
        assert family.name.startswith("warpdesk_"), family.name
        assert family.documentation, family.name
        assert not NO_UNIT.search(family.name), family.name
        for sample in family.samples:
            assert sample.labels.keys() <= LABELS, sample
            assert sample.name.endswith("_total") == (family.type == "counter"), sample
    operations = {s.labels["operation"] for family in families for s in family.samples if "operation" in s.labels}
    assert operations <= {*(operation.counted_as or name for name, operation in EVERY.items()), "other"}
    assert {"indicator", "cross_section", "backtest"} <= operations
    assert "macd" not in operations
    assert "none_of_these" not in full
    assert not re.search(r"job_\d|budget_[0-9a-f]|blake3", full)
    for name, metric in METRICS.items():
        assert set(metric.labels) <= LABELS, name


def test_a_full_service_has_a_bounded_number_of_series(full: str) -> None:
    names = [dict(labels).get("operation") for _, labels in samples(full)]
    of_routes = Counter(dict(labels).get("route") for _, labels in samples(full))
    in_all = sum(of_routes.values()) - of_routes.pop(None)
    assert in_all <= MOST_OF_A_ROUTE * len(of_routes)
    assert names.count(None) - in_all < MOST_OTHERS
    assert len(names) - names.count(None) < MOST_OF_A_NAME * len(set(names) - {None})
    # Operations of one family that share a name cost what one does.
    assert len(set(names) - {None}) < len(OPERATIONS) / 4
    assert len({labels for name, labels in samples(full) if name == "gpu_utilization_ratio"}) == 8
    routes = {dict(labels)["route"] for name, labels in samples(full) if name == "http_requests_total"}
    assert {"/v1/jobs", "/v1/jobs/{job_id}", "/v1/budgets/{budget_id}/quote", "unmatched"} <= routes
    assert len(routes) > 35


def test_promtool_finds_nothing_wrong_with_the_page(full: str) -> None:
    result = subprocess.run(
        [tool("promtool"), "check", "metrics"], input=full, capture_output=True, text=True, check=False, timeout=60
    )
    assert (result.returncode, result.stdout + result.stderr) == (0, "")


def test_the_page_has_every_declared_metric_with_its_help_and_labels_and_no_other(full: str) -> None:
    families = {family.name.removeprefix("warpdesk_"): family for family in text_string_to_metric_families(full)}
    assert families.keys() == {name.removesuffix("_total") for name in METRICS}
    for name, metric in METRICS.items():
        family = families[name.removesuffix("_total")]
        assert family.documentation == metric.help
        shown = "histogram" if metric.bounds else "summary" if metric.kind in ("times", "sizes") else metric.kind
        assert family.type == shown, name
        for sample in family.samples:
            assert sample.labels.keys() - {"le"} == {*metric.labels}, name


def test_a_sample_that_does_not_fit_its_declaration_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"queue_jobs has 2 labels .*, got 1"):
        declared.family("queue_jobs", {("batch",): 1})
    with pytest.raises(KeyError, match="not_declared"):
        declared.family("not_declared", {(): 1})
    assert all(not metric.bounds or metric.kind in ("times", "sizes") for metric in METRICS.values())


def test_budgets_and_charges_are_told_by_dataset(full: str) -> None:
    assert value(full, "privacy_epsilon_budget", dataset="people") == 1.0
    assert value(full, "privacy_epsilon_spent", dataset="people") == 0.1
    assert value(full, "privacy_charges_total", dataset="people", state="granted") == 1
    assert value(full, "privacy_charges_total", dataset="people", state="refused") == 1
    assert value(full, "privacy_datasets_left_out") == 0
    assert value(full, "rounds", phase="keys") == 0


def test_private_jobs_are_counted_and_timed_nowhere(full: str) -> None:
    private = [name for name, operation in EVERY.items() if operation.randomness == "private"]
    assert private
    for name in private:
        assert value(full, "jobs_computed_total", operation=name) == 6
        for (family, labels), amount in samples(full).items():
            if ("operation", name) in labels and re.search("seconds|joules|dollars|bytes|work", family):
                raise AssertionError((family, labels, amount))


def test_what_is_taken_into_the_queue_is_counted_and_what_was_there_is_not(
    serve_api: Callable[..., Any],
) -> None:
    with serve_api(max_live_jobs=2) as api:
        job_id = api.submit(**SCALE)
        keyed = {"Idempotency-Key": "one"}
        sent = [api.http.post("/v1/jobs", json={**SCALE, "params": {"factor": 5.0}}, headers=keyed) for _ in range(3)]
        refused = api.http.post("/v1/jobs", json={**SCALE, "params": {"factor": 6.0}})
        assert [answer.status_code for answer in (*sent, refused)] == [202, 202, 202, 429]
        page = text(api)
        assert value(page, "jobs_enqueued_total", queue="batch", operation="scale") == 2
        assert value(page, "jobs_replayed_total") == 2
        for _ in range(MAX_STRIKES):
            api.queue.finish([Ending(take(api.queue, job_id), how="struck")])
        again = [api.http.post(f"/v1/dead-letters/{job_id}/rerun").status_code for _ in range(2)]
        assert again == [202, 409]
        assert value(text(api), "jobs_enqueued_total", queue="batch", operation="scale") == 3


def test_an_operation_that_this_release_does_not_have_is_other(api: Live) -> None:
    request = JobRequest(
        id="job_1", owner="local", operation="of_tomorrow", params={}, inputs={}, timeout=1.0, result_ttl=60.0
    )
    api.queue.enqueue(request)
    api.queue.cancel("job_1")
    page = text(api)
    assert value(page, "jobs_finished_total", operation="other", state="canceled") == 1
    assert "of_tomorrow" not in page


def test_zeros_are_there_before_the_first(api: Live) -> None:
    page = text(api)
    assert value(page, "leases_expired_total") == 0
    assert value(page, "jobs_replayed_total") == 0
    assert value(page, "jobs_dead_total", operation="scale") == 0
    assert value(page, "job_failures_total", queue="realtime", reason="worker-died") == 0
    assert value(page, "http_failures_total", code="503") == 0
    assert value(page, "workers_lost_total") == 0
    assert value(page, "refusals_total", code="internal-error") == 0
    assert value(page, "job_seconds_bucket", queue="realtime", le="0.1") == 0
    assert value(page, "kernel_compilations_total", state="error") == 0
    assert value(page, "queue_jobs", queue="research", state="delayed") == 0


def test_requests_of_a_second_are_counted_by_route_and_answer() -> None:
    counted = Amounts()
    requests = [("POST", "/v1/jobs", 202, 0.5), ("POST", "/v1/jobs", 503, 1.0), ("POST", "/v1/jobs", 503, None)]
    metrics._requests(counted, [*requests, ("GET", "/healthz", 500, 2.0), ("GET", "/v1/jobs", 500, 2.0)])
    found = Counts.of(counted.fields())
    assert found.counters == {
        "http_requests_total": {
            ("/v1/jobs", "POST", "202"): 1,
            ("/v1/jobs", "POST", "503"): 2,
            ("/healthz", "GET", "500"): 1,
            ("/v1/jobs", "GET", "500"): 1,
        },
        "http_failures_total": {("503",): 2, ("500",): 1},
    }
    times = found.times["http_request_duration_seconds"]
    assert {labels: (of.count, of.sum) for labels, of in times.items()} == {
        ("/v1/jobs", "POST"): (2, 1.5),
        ("/healthz", "GET"): (1, 2.0),
        ("/v1/jobs", "GET"): (1, 2.0),
    }


def test_a_request_that_waits_for_a_private_job_is_counted_and_not_timed(api: Live) -> None:
    for private in (False, True):
        job_id = new_job_id()
        api.queue.enqueue(
            JobRequest(
                id=job_id, owner="local", operation="scale", params={}, inputs={}, timeout=1.0, result_ttl=60.0,
                private=private,
            )
        )  # fmt: skip
        answer = api.http.get(f"/v1/jobs/{job_id}", headers={"Prefer": "wait=1"})
        assert answer.headers["Preference-Applied"] == "wait=1"
        api.queue.cancel(job_id)
        assert "event: canceled" in api.http.get(f"/v1/jobs/{job_id}/events").text
    page = text(api)
    for route in ("/v1/jobs/{job_id}", "/v1/jobs/{job_id}/events"):
        assert value(page, "http_requests_total", route=route) == 2
        assert value(page, "http_request_duration_seconds_count", route=route) == 1


def test_an_event_loop_that_turns_has_no_lag(api: Live) -> None:
    assert value(text(api), "event_loop_lag_seconds") < 30


def test_redis_tells_whether_it_keeps_jobs(api: Live) -> None:
    page = text(api)
    assert value(page, "redis_keeps_jobs") == 1
    assert value(page, "redis_durable") == 1
    assert value(page, "redis_memory_used_bytes") > 100_000
    assert value(page, "redis_memory_max_bytes") == 0
    assert value(page, "redis_evicted_keys_total") == 0


def test_queues_are_told_by_state_and_the_age_of_the_oldest(api: Live) -> None:
    api.submit(**unlike())
    running = api.submit(**unlike(), priority="realtime")
    take(api.queue, running)
    back = api.submit(**unlike(), priority="research")
    job = take(api.queue, back)
    api.queue.finish([Ending(job, how="retry", delays=(1000.0,))])
    page = text(api)
    assert value(page, "queue_jobs", queue="batch", state="queued") == 1
    assert value(page, "queue_jobs", queue="realtime", state="running") == 1
    assert value(page, "queue_jobs", queue="research", state="delayed") == 1
    assert value(page, "queue_jobs") == 3
    assert 0 < value(page, "queue_oldest_job_age_seconds", queue="batch") < 60
    assert value(page, "queue_oldest_job_age_seconds", queue="research") == 0


def test_four_processes_of_one_redis_tell_the_same_and_lose_no_request(redis_url: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        apis = [stack.enter_context(live(tmp_path / "home", redis_url)) for _ in range(4)]
        for number in range(200):
            assert apis[number % 4].http.get("/v1/operations").status_code == 200

        def request_count(api: Live) -> float:
            return value(text(api), "http_requests_total", route="/v1/operations", code="200")

        wait_until(lambda: [request_count(api) for api in apis] == [200] * 4)
        assert value(text(apis[0]), "http_request_duration_seconds_count", route="/v1/operations") == 200
        assert value(text(apis[1]), "http_requests_in_progress") == 1  # the request for this page


def test_a_service_that_is_started_again_goes_on_counting(tmp_path: Path) -> None:
    def counts(api: Live) -> tuple[float, float, float]:
        page = text(api)
        return (
            value(page, "http_requests_total", route="/v1/operations"),
            value(page, "jobs_finished_total", operation="scale", state="succeeded"),
            value(page, "job_seconds_count", queue="batch"),
        )

    for times in (1, 2):
        with RedisServer(tmp_path / "redis") as server, live(tmp_path / "home", server.url) as api:
            api.http.get("/v1/operations")
            work(api.queue, api.store, api.submit(**unlike()))
            assert counts(api) == (times, times, times)
    with RedisServer(tmp_path / "redis") as server:
        for _ in range(2):
            with live(tmp_path / "home", server.url) as api:  # a clean stop writes the last counts to Redis
                api.http.get("/v1/operations")
        with live(tmp_path / "home", server.url) as api:
            assert counts(api) == (4, 2, 2)


def test_a_dead_workers_gauges_go_when_its_time_is_over_and_its_counts_stay(api: Live) -> None:
    work(api.queue, api.store, api.submit(**unlike()))
    api.queue.report(worker(3, condition(read("a100")), name="of another host"), ttl=3.0)
    before = text(api)
    assert value(before, "worker_last_heartbeat_timestamp_seconds", slot="3") > 0
    assert value(before, "workers", state="ready") == 1
    wait_until(lambda: value(text(api), "workers", state="ready") == 0)
    after = text(api)
    assert 'slot="3"' not in after
    assert "warpdesk_gpu_utilization_ratio{" not in after
    assert value(after, "jobs_computed_total", backend="cpu", operation="scale") == 1


def test_a_scrape_does_not_wait_for_a_redis_that_hangs(serve_api: Callable[..., Any]) -> None:
    with serve_api(redis_patience=0.3) as api:
        api.submit(**SCALE)
        api.queue.report(report("one", "ready"), ttl=60)
        before = text(api)
        pid = redis_pid(api)
        os.kill(pid, signal.SIGSTOP)
        try:
            for _ in range(3):
                page = api.http.get("/metrics", timeout=5).text
        finally:
            os.kill(pid, signal.SIGCONT)
        for collector in ("queue", "redis"):
            assert value(before, "collector_up", collector=collector) == 1
            assert value(page, "collector_up", collector=collector) == 0
        assert value(page, "queue_up") == 0
        assert value(page, "queue_jobs", queue="batch", state="queued") == 1
        assert value(page, "jobs_enqueued_total", operation="scale") == 1
        assert value(page, "workers") == 1
        # The process goes on counting its own requests, and the counts reach Redis once it is back.
        assert value(page, "http_requests_total", route="/metrics") >= 2
        wait_until(lambda: value(text(api), "collector_up", collector="redis") == 1)
        again = text(api)
        assert value(again, "http_requests_total", route="/metrics") > value(
            page, "http_requests_total", route="/metrics"
        )


def test_before_redis_was_heard_no_count_is_told(tmp_path: Path) -> None:
    """The counts of one process alone would look like a restarted service, and the next ones like a burst."""
    with live(tmp_path / "home", "redis://127.0.0.1:1/0", redis_patience=0.2) as api:
        page = text(api)
    assert "warpdesk_http_requests_total" not in page
    assert value(page, "collector_up", collector="redis") == 0
    assert value(page, "queue_up") == 0
    assert value(page, "build_info") == 1


def test_a_source_that_hangs_is_told_as_it_was_seen_last() -> None:
    second_look, gate = Event(), Event()
    values = iter([1, 2])

    def look(_: bool) -> int:
        found = next(values)
        if found == 2:
            second_look.set()
            gate.wait(60)
        return found

    collector = Collector("slow", look, every=3600.0)
    collector.start()
    wait_until(lambda: collector.last(60.0) == (1, True))
    assert collector.ask(0.01) == (1, False)
    assert second_look.wait(30)
    assert collector.last(60.0) == (1, True)
    assert collector.last(0.0) == (1, False)
    gate.set()
    collector.stop(30.0)


def test_a_source_that_fails_is_told_as_it_was_seen_last_until_it_is_well() -> None:
    answers: list[Any] = [1, OSError("away"), 2, 3]

    def look(_: bool) -> int:
        found = answers.pop(0) if answers else 3
        if isinstance(found, OSError):
            raise found
        return int(found)

    collector = Collector("flaky", look, every=3600.0)
    assert collector.last(60.0) == (None, False)
    collector.start()
    readings = [collector.ask(30.0) for _ in range(3)]
    assert (1, False) in readings
    assert readings[-1][1]
    collector.stop(30.0)


def test_the_metrics_port_is_taken_over_when_who_has_it_ends(
    serve_api: Callable[..., Any], tmp_path: Path, redis_url: str,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr(background, "PORT_EVERY", 0.05)
    port = free_port()
    with live(tmp_path / "two", redis_url) as alone:
        alone.http.get("/livez")
    with ExitStack() as first:
        first.enter_context(serve_api(metrics_port=port))
        with live(tmp_path / "two", redis_url, metrics_port=port):
            wait_until(lambda: [one for one in caplog.records if f":{port} " in one.message])
            first.close()
            wait_until(lambda: "warpdesk_queue_up 1.0" in _page(port))
            assert len([one for one in caplog.records if f":{port} " in one.message]) == 1


def _page(port: int) -> str:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/metrics").text
    except httpx.TransportError as error:
        raise ConnectionError from error


def test_more_datasets_than_are_told_are_counted(
    tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(privacy_metrics, "MOST", 1)
    with live(tmp_path / "home", redis_url, OPERATIONS) as api:
        first = create(api.http)["dataset"]
        create(api.http, accountant="zcdp", epsilon=None, rho="0.5")
        api.app.state.services.metrics._ledger.ask(20.0)
        page = text(api)
    assert value(page, "privacy_epsilon_budget", dataset=first) == 1.0
    assert value(page, "privacy_datasets_left_out") == 1
    assert "warpdesk_privacy_rho_budget{" not in page


def test_budgets_are_told_to_admins_and_on_the_private_port_alone(tmp_path: Path, redis_url: str) -> None:
    port = free_port()
    admin, watcher = (create_key(tmp_path / "home", scope, [scope]) for scope in ("admin", "metrics"))
    with live(tmp_path / "home", redis_url, OPERATIONS, metrics_port=port) as api:
        api.http.headers.update(bearer(admin))
        dataset = create(api.http)["dataset"]
        api.app.state.services.metrics._ledger.ask(20.0)
        by_watcher = api.http.get("/metrics", headers=bearer(watcher)).text
        wait_until(lambda: httpx.get(f"http://127.0.0.1:{port}/metrics").status_code == 200)
        on_port = httpx.get(f"http://127.0.0.1:{port}/metrics").text
        by_admin = text(api)

    for page in (by_admin, on_port):
        assert value(page, "privacy_epsilon_budget", dataset=dataset) == 1.0
    assert 'warpdesk_queue_jobs{queue="batch",state="queued"} 0.0' in by_watcher
    assert "dataset=" not in by_watcher
    assert dataset not in by_watcher


def test_what_a_process_counts_reaches_redis_without_being_asked_for(api: Live) -> None:
    api.http.get("/v1/operations")
    with connect(api.redis_url) as connection:
        counted = "http_requests_total|/v1/operations|GET|200"
        wait_until(lambda: float(connection.hget("warpdesk:counts", counted) or 0) == 1)
