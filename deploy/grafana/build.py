"""Write the dashboards of Grafana: `python deploy/grafana/build.py` writes `dashboards/*.json`, which are committed.

A dashboard is a list of rows, a row a list of panels, a panel what a function below makes of PromQL. Every API process
exports the same truth, so what comes from it is taken `max without (instance, pod)` first: `one`, `rate`, `increase`.
A declared metric that no panel draws gets a panel of its own, at the end of the dashboard of the service.
"""

# ruff: noqa: E501 (a panel is read as a whole: what it says of itself stays on its line)

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from warpdesk_server.workers.metrics import METRICS, Metric

Panel = dict[str, Any]
Row = tuple[str, Sequence[Panel]]

HERE = Path(__file__).parent
RUNBOOK = "https://git.example.com/warpdesk/blob/main/deploy/runbook/"
SOURCE = {"type": "prometheus", "uid": "prometheus"}
SCHEMA = 39  # of Grafana 10.4 to 11; later ones migrate it
COLUMNS = 24  # of Grafana's grid
GREEN, YELLOW, RED, BLUE = "green", "yellow", "red", "blue"

BUSY = (
    "The share of time in which any kernel ran. It does not say how much of the GPU worked: one block on one "
    "multiprocessor for a second is 100 %. The roofline of the kernels says how much was reached."
)


def one(expr: str) -> str:
    """The same series of several API processes are one."""
    return f"max without (instance, pod) ({expr})"


def rate(metric: str, which: str = "") -> str:
    return one(f"rate({metric}{{{which}}}[$__rate_interval])" if which else f"rate({metric}[$__rate_interval])")


def increase(metric: str, which: str = "", window: str = "1h") -> str:
    return one(f"increase({metric}{{{which}}}[{window}])" if which else f"increase({metric}[{window}])")


def quantiles(metric: str, by: str, which: str = "", shares: Sequence[float] = (0.5, 0.95, 0.99)) -> dict[str, str]:
    """Legends and expressions of a histogram's quantiles."""
    legend = " ".join(f"{{{{{label}}}}}" for label in by.split(", "))
    buckets = f"sum by (le, {by}) ({rate(f'{metric}_bucket', which)})"
    return {f"p{share * 100:g} {legend}": f"histogram_quantile({share:g}, {buckets})" for share in shares}


def ratio(above: str, below: str) -> str:
    """Of two sums by the same labels; nothing where there is nothing below."""
    return f"{above} / ({below} > 0)"


def panel(
    kind: str,
    title: str,
    expressions: str | dict[str, str],
    words: str,
    *,
    unit: str = "short",
    width: int = 8,
    height: int = 8,
    steps: Sequence[tuple[float | None, str]] = (),
    least: float | None = 0,
    most: float | None = None,
    options: dict[str, Any] | None = None,
    custom: dict[str, Any] | None = None,
    target: dict[str, Any] | None = None,
    runbook: str = "",
    **more: Any,
) -> Panel:
    """`expressions` by legend; `steps` are thresholds, each with the colour from it on, the first from None."""
    legends = {"": expressions} if isinstance(expressions, str) else expressions
    defaults: dict[str, Any] = {
        "unit": unit,
        "custom": custom or {},
        "color": {"mode": "thresholds" if steps and kind in ("stat", "state-timeline") else "palette-classic"},
        "thresholds": {
            "mode": "absolute",
            "steps": [{"value": value, "color": color} for value, color in steps or ((None, GREEN),)],
        },
    }
    defaults |= {name: value for name, value in (("min", least), ("max", most)) if value is not None}
    return {
        "type": kind,
        "title": title,
        "description": words,
        "datasource": SOURCE,
        "gridPos": {"w": width, "h": height},
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options or {},
        "links": [{"title": f"Runbook: {runbook}", "url": f"{RUNBOOK}{runbook}.md", "targetBlank": True}] if runbook else [],
        "targets": [
            {
                "refId": chr(ord("A") + place),
                "datasource": SOURCE,
                "expr": expr,
                "legendFormat": legend or "__auto",
                **(target or {}),
            }
            for place, (legend, expr) in enumerate(legends.items())
        ],
        **more,
    }  # fmt: skip


def timeseries(title: str, expressions: str | dict[str, str], words: str, *, stack: bool = False, **more: Any) -> Panel:
    custom: dict[str, Any] = {"drawStyle": "line", "lineWidth": 1, "fillOpacity": 10, "showPoints": "never"}
    if stack:
        custom |= {"stacking": {"mode": "normal", "group": "A"}, "fillOpacity": 40}
    if more.get("steps"):
        custom["thresholdsStyle"] = {"mode": "line"}
    options = {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    return panel("timeseries", title, expressions, words, custom=custom, options=options, **more)


def stat(title: str, expressions: str | dict[str, str], words: str, **more: Any) -> Panel:
    options = {
        "colorMode": "value",
        "graphMode": "area",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "textMode": "auto",
    }
    return panel("stat", title, expressions, words, options=options, **{"width": 4, "height": 5, **more})


def heatmap(title: str, metric: str, words: str, which: str = "", **more: Any) -> Panel:
    """Of a histogram's buckets."""
    expr = f"sum by (le) ({one(f'increase({metric}_bucket{{{which}}}[$__rate_interval])')})"
    unit = more.pop("unit", "s")
    options = {
        "calculate": False,
        "cellGap": 1,
        "color": {"mode": "scheme", "scheme": "Spectral", "steps": 64},
        "yAxis": {"axisPlacement": "left", "unit": unit},
        "tooltip": {"show": True, "yHistogram": False},
    }
    return panel(
        "heatmap", title, {"{{le}}": expr}, words, unit="short", options=options, target={"format": "heatmap"}, **more
    )


def table(title: str, expressions: str | dict[str, str], words: str, **more: Any) -> Panel:
    """Of the values now; columns are labels and, where several expressions are asked, their legends."""
    hidden = dict.fromkeys(("Time", "__name__", "instance", "pod", "job"), True)
    legends = [""] if isinstance(expressions, str) else list(expressions)
    names = (
        {f"Value #{chr(ord('A') + place)}": legend for place, legend in enumerate(legends)} if len(legends) > 1 else {}
    )
    organize = {"id": "organize", "options": {"excludeByName": hidden, "renameByName": names}}
    return panel(
        "table", title, expressions, words, target={"format": "table", "instant": True}, options={"showHeader": True},
        transformations=[{"id": "merge", "options": {}}, organize], **more,
    )  # fmt: skip


def states(title: str, expressions: str | dict[str, str], words: str, **more: Any) -> Panel:
    options = {
        "mergeValues": True,
        "showValue": "never",
        "rowHeight": 0.8,
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": False},
        "tooltip": {"mode": "single"},
    }
    more.setdefault("steps", ((None, "transparent"), (1, BLUE)))
    return panel(
        "state-timeline", title, expressions, words, custom={"fillOpacity": 80, "lineWidth": 0}, options=options, **more
    )


def variable(name: str, metric: str, words: str) -> dict[str, Any]:
    return {
        "type": "query",
        "name": name,
        "label": name,
        "description": words,
        "datasource": SOURCE,
        "definition": f"label_values({metric}, {name})",
        "query": {"query": f"label_values({metric}, {name})", "refId": name},
        "refresh": 2,  # when the range of time changes
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "sort": 1,
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


OPERATION = variable("operation", "warpdesk_jobs_enqueued_total", "operations of the catalogue")
QUEUE = variable("queue", "warpdesk_queue_jobs", "realtime, batch and research")
UUID = variable("uuid", "warpdesk_gpu_state", "GPUs of live workers, slices of them by names of their own")
ON_GPU, FAILED, WANTED = 'backend="gpu"', 'state="failed"', 'reason!="no-gpu"'
READY = 'warpdesk_workers{state=~"ready|busy"}'
OF_OPERATION, OF_QUEUE, OF_UUID = 'operation=~"$operation"', 'queue=~"$queue"', 'uuid=~"$uuid"'


def gpu(metric: str, which: str = "", by: str = "uuid") -> str:
    """A reading of GPUs: each once."""
    selector = ",".join(filter(None, (OF_UUID, which)))
    return f"max by ({by}) (warpdesk_gpu_{metric}{{{selector}}})"


def service() -> list[Row]:
    level = ((None, RED), (0.999, GREEN))
    return [
        ("Service levels", [
            stat("Requests answered well", "1 - warpdesk:http_errors:ratio_rate1h",
                 "Of requests under /v1 in the last hour, those that were not answered with a 5xx. The level is 99.9 %. "
                 "It does not say that answers were quick, and requests that never arrived are not in it.",
                 unit="percentunit", steps=level, least=None, runbook="WarpdeskAvailabilityBurnsFast"),
            stat("Allowance left", "1 - warpdesk:http_errors:ratio_rate3d / 0.001",
                 "What is left of the allowed failures if the last three days are like the month. Below 0 the level is missed.",
                 unit="percentunit", steps=((None, RED), (0, YELLOW), (0.5, GREEN)), least=None,
                 runbook="WarpdeskAvailabilityBurnsSlowly"),
            stat("Realtime jobs within 0.1 s", "1 - warpdesk:realtime_slow:ratio_rate1h",
                 "Of realtime jobs that succeeded in the last hour, from submission to end. The level is 99 %. Private jobs are in no time.",
                 unit="percentunit", steps=((None, RED), (0.99, GREEN)), least=None, runbook="WarpdeskRealtimeBurnsFast"),
            stat("Alerts", 'count(ALERTS{alertstate="firing"}) or vector(0)', "Alerts that fire now.",
                 steps=((None, GREEN), (1, RED))),
            stat("API processes", 'count(up{job="warpdesk-api"} == 1)',
                 "Processes that Prometheus reaches. Of several on one host one has the metrics port: this counts hosts then.",
                 steps=((None, RED), (1, GREEN)), runbook="WarpdeskApiMissing"),
            stat("Requests in progress", "sum(warpdesk_http_requests_in_progress)",
                 "Of all processes together. Waiting for a job (`Prefer: wait`) and event streams count for as long as they last."),
        ]),
        ("Requests", [
            timeseries("Requests by code", {"{{code}}": f"sum by (code) ({rate('warpdesk_http_requests_total')})"},
                       "All routes, probes too.", unit="reqps", stack=True),
            timeseries("Requests by route", {"{{route}}": f"sum by (route) ({rate('warpdesk_http_requests_total')})"},
                       "Routes as templates; what matches none is `unmatched`.", unit="reqps"),
            timeseries("Event loop", {"{{instance}}": "max by (instance) (warpdesk_event_loop_lag_seconds)"},
                       "How long ago each API process last turned to its requests: a second or less in health. While it grows, nobody is answered there.",
                       unit="s", steps=((None, GREEN), (30, RED)), runbook="WarpdeskApiHangs"),
            timeseries("Failures by code", {"{{code}}": f"sum by (code) ({increase('warpdesk_http_failures_total', window='5m')})"},
                       "5xx answers under /v1 within five minutes, the first ones too.", runbook="WarpdeskHttpErrors"),
            timeseries("Failures", {"of requests under /v1, 5 min": "warpdesk:http_errors:ratio_rate5m"},
                       "5xx answers. A 503 of a full queue is one, since the caller got nothing.",
                       unit="percentunit", steps=((None, GREEN), (0.05, RED)), runbook="WarpdeskHttpErrors"),
            timeseries("Time of requests", quantiles("warpdesk_http_request_duration_seconds", "route", 'route=~"/v1/.+"', (0.5, 0.99)),
                       "From the request's head to the end of the response. A request that waits for its job takes as long as the job: "
                       "it is no measure of the API.", unit="s", width=12),
            heatmap("Time of submissions", "warpdesk_http_request_duration_seconds",
                    "POST /v1/jobs, with those that wait for their result.", 'route="/v1/jobs",method="POST"', width=12),
            timeseries("Refusals", {"{{code}}": f"sum by (code) ({rate('warpdesk_refusals_total')})"},
                       "By the code of the problem: what the caller can do about it is in the answer. Many are no fault of the service.",
                       unit="reqps"),
            timeseries("Replays", f"sum({rate('warpdesk_jobs_replayed_total')})",
                       "Submissions answered with the job of their Idempotency-Key: clients that lost an answer and asked again.", unit="reqps"),
            timeseries("Burn of the allowance", {
                "requests, 1 h": "warpdesk:http_errors:ratio_rate1h / 0.001",
                "requests, 6 h": "warpdesk:http_errors:ratio_rate6h / 0.001",
                "realtime, 1 h": "warpdesk:realtime_slow:ratio_rate1h / 0.01",
                "realtime, 6 h": "warpdesk:realtime_slow:ratio_rate6h / 0.01",
            }, "1 spends a month's allowance in a month; 14.4 for an hour pages.", steps=((None, GREEN), (14.4, RED)),
               runbook="WarpdeskAvailabilityBurnsFast"),
        ]),
        ("Metrics themselves", [
            states("Collectors", {"{{collector}}": "min by (collector) (warpdesk_collector_up)"},
                   "Parts of /metrics that could be read. What is not blue is missing everywhere else.",
                   runbook="WarpdeskCollectorDown"),
            timeseries("Time of a scrape", {"{{instance}}": 'scrape_duration_seconds{job="warpdesk-api"}'},
                       "As Prometheus sees it. Alerts see nothing of what takes longer than 10 s.", unit="s",
                       steps=((None, GREEN), (2, RED)), runbook="WarpdeskScrapeSlow"),
            timeseries("Series", {"{{instance}}": 'scrape_samples_scraped{job="warpdesk-api"}'},
                       "Samples of a scrape. 2,000 is what 8 workers and 20 operations on both backends, with every route asked, stay under; a larger fleet may have more. "
                       "What grows while the fleet does not is a label without a bound.", runbook="WarpdeskScrapeSlow"),
            table("Versions", "max by (version, python) (warpdesk_build_info)", "Several while one release replaces another.", width=8),
        ]),
    ]  # fmt: skip


def queue() -> list[Row]:
    finished = "warpdesk_jobs_finished_total"
    return [
        ("Now", [
            stat("Waiting", f'sum(warpdesk:queue_jobs{{state="queued",{OF_QUEUE}}})', "Jobs that wait for a worker. A long queue that is worked through is no trouble: look at the oldest."),
            stat("Running", f'sum(warpdesk:queue_jobs{{state="running",{OF_QUEUE}}})', "Jobs claimed by a worker, batches of them counted one by one."),
            stat("Oldest", f"max({one(f'warpdesk_queue_oldest_job_age_seconds{{{OF_QUEUE}}}')})", "How long the job that waits longest has waited.",
                 unit="s", steps=((None, GREEN), (60, YELLOW), (300, RED)), runbook="WarpdeskQueueStalled"),
            stat("Workers", f"sum({one(READY)})", "That are ready or at work.",
                 steps=((None, RED), (1, GREEN)), runbook="WarpdeskNoWorkers"),
            stat("Dead letters", f"max({one('warpdesk_dead_letters')})", "Jobs that were given up, and wait for somebody to look.",
                 steps=((None, GREEN), (1, RED)), runbook="WarpdeskDeadLetters"),
            stat("Redis", "min(warpdesk_queue_up)", "1 while every API process reaches Redis.", steps=((None, RED), (1, GREEN)),
                 runbook="WarpdeskRedisAway"),
        ]),
        ("Queues", [
            timeseries("Jobs", {"{{queue}} {{state}}": f"sum by (queue, state) (warpdesk:queue_jobs{{{OF_QUEUE}}})"},
                       "Waiting, running, and delayed: in a backoff after a fault that may pass.", stack=True),
            timeseries("Age of the oldest", {"{{queue}}": f"max by (queue) ({one(f'warpdesk_queue_oldest_job_age_seconds{{{OF_QUEUE}}}')})"},
                       "It grows by a second each second while nothing is taken.", unit="s",
                       steps=((None, GREEN), (300, YELLOW), (1800, RED)), runbook="WarpdeskJobsStarve"),
            timeseries("Came and ended", {
                "{{queue}} came": f"sum by (queue) ({rate('warpdesk_jobs_enqueued_total', OF_QUEUE)})",
                "{{queue}} ended": f"sum by (queue) (warpdesk:jobs_finished:rate5m{{{OF_QUEUE}}})",
            }, "What ends is a mean of five minutes.", unit="ops"),
            timeseries("Wait", quantiles("warpdesk_job_wait_seconds", "queue", OF_QUEUE),
                       "From submission to the start of the attempt that answered. Private jobs are in no time.", unit="s"),
            timeseries("Submission to end", quantiles("warpdesk_job_seconds", "queue", OF_QUEUE),
                       "Of jobs that succeeded; what a caller waits, without the way to them.", unit="s",
                       steps=((None, GREEN), (0.1, YELLOW)), runbook="WarpdeskRealtimeBurnsFast"),
            heatmap("Realtime jobs", "warpdesk_job_seconds", "Submission to end.", 'queue="realtime"'),
            timeseries("How they ended", {"{{state}}": f"sum by (state) ({rate(finished, f'{OF_QUEUE},{OF_OPERATION}')})"},
                       "Canceled and expired are the caller's wish.", unit="ops", stack=True),
            timeseries("Why they failed", {"{{reason}}": f"sum by (reason) ({rate(finished, f'{FAILED},{OF_QUEUE},{OF_OPERATION}')})"},
                       "`invalid-input` is what the values said when they were read; the rest is ours.", unit="ops", runbook="WarpdeskJobErrors"),
            timeseries("Failures by reason", {"{{reason}}": f"sum by (reason) ({increase('warpdesk_job_failures_total', OF_QUEUE, '10m')})"},
                       "Jobs within ten minutes, of all operations, the first ones too.", runbook="WarpdeskJobErrors"),
            timeseries("Wanted by autoscalers", {"{{queue}}": f"warpdesk:queue_work{{{OF_QUEUE}}}"},
                       "Waiting and running jobs. One that counts the waiting alone takes workers from under their jobs."),
        ]),
        ("Workers", [
            timeseries("Workers by state", {"{{backend}} {{state}}": f"sum by (backend, state) ({one('warpdesk_workers')})"},
                       "Those that reported within 15 s; `unknown` has not found its device yet.", stack=True),
            timeseries("Age of their last word", {"slot {{slot}}": f"time() - max by (slot) ({one('warpdesk_worker_last_heartbeat_timestamp_seconds')})"},
                       "Every few seconds each reports. After 15 s it is forgotten: its line ends.", unit="s",
                       steps=((None, GREEN), (15, RED)), runbook="WarpdeskWorkerLost"),
            timeseries("Workers lost", f"sum({increase('warpdesk_workers_lost_total')})",
                       "Within an hour: those that disappeared without a word. Those that were stopped are none.", runbook="WarpdeskWorkerLost"),
            timeseries("Children replaced", {"slot {{slot}}": f"max by (slot) ({one('warpdesk_worker_restarts')})"},
                       "Since the worker in that slot started. Some are replaced on purpose: a canceled job in native code, stuck memory.",
                       runbook="WarpdeskWorkerRestarts"),
            timeseries("Tried again", {
                "attempts beyond the first": f"sum({rate('warpdesk_job_retries_total', OF_OPERATION)})",
                "strikes": f"sum({rate('warpdesk_job_strikes_total', OF_OPERATION)})",
                "jobs whose lease ran out": f"sum({rate('warpdesk_leases_expired_total')})",
            }, "An attempt again costs time and no answer. A strike is an attempt that ended its worker's child while it ran alone.",
               unit="ops", runbook="WarpdeskLeasesExpire"),
            timeseries("Given up", {"{{operation}}": f"sum by (operation) ({increase('warpdesk_jobs_dead_total', OF_OPERATION)})"},
                       "Within an hour. See /v1/dead-letters.", runbook="WarpdeskDeadLetters"),
            timeseries("Computed once for several", {"{{operation}}": f"sum by (operation) ({rate('warpdesk_jobs_coalesced_total', OF_OPERATION)})"},
                       "Jobs that got the answer of an identical one that was live.", unit="ops"),
        ]),
        ("Redis", [
            timeseries("Memory", {
                "used": f"max({one('warpdesk_redis_memory_used_bytes')})",
                "maxmemory (0: no limit)": f"max({one('warpdesk_redis_memory_max_bytes')})",
            }, "New jobs are refused from 80 % of maxmemory on; results are taken beyond it.", unit="bytes", width=8,
               runbook="WarpdeskRedisMemoryHigh"),
            timeseries("Store", {
                "free": f"min({one('warpdesk_store_free_bytes')})",
                "kept free": f"max({one('warpdesk_store_kept_free_bytes')})",
                "used": f"max({one('warpdesk_store_used_bytes')})",
                "most": f"max({one('warpdesk_store_max_bytes')})",
                "rounds": f"max({one('warpdesk_round_bytes')})",
            }, "Of the disk of arrays and results, and beside them the vectors of rounds. Nothing is stored where less is free than is kept free.", unit="bytes", width=8,
               runbook="WarpdeskStoreLow"),
            timeseries("Keys evicted", f"sum({increase('warpdesk_redis_evicted_keys_total')})",
                       "Within an hour. Any at all is a loss: the policy is to be noeviction.", runbook="WarpdeskRedisEvicts"),
            states("Keeps jobs", {
                "noeviction and append-only": f"min({one('warpdesk_redis_keeps_jobs')})",
                "each write on the disk first": f"min({one('warpdesk_redis_durable')})",
            }, "Whether Redis is set up so that a job that was acknowledged is kept; and after a power cut too.", runbook="WarpdeskRedisMayLoseJobs"),
        ]),
    ]  # fmt: skip


def kernels() -> list[Row]:
    computed = f"sum by (operation) ({rate('warpdesk_jobs_computed_total', OF_OPERATION)})"
    seconds = "warpdesk_kernel_duration_seconds"
    per_size = "operation, backend, size_class"
    sized = "{{operation}} {{backend}} {{size_class}}"
    return [
        ("Where it runs", [
            timeseries("Share on the GPU", {"GPU": ratio(f"sum({rate('warpdesk_jobs_computed_total', f'{ON_GPU},{OF_OPERATION}')})",
                       f"sum({rate('warpdesk_jobs_computed_total', OF_OPERATION)})")},
                       "`auto` takes what is expected to be quicker, so small jobs on the CPU are no fault.", unit="percentunit", most=1),
            timeseries("Jobs computed", {"{{operation}} {{backend}}": f"sum by (operation, backend) ({rate('warpdesk_jobs_computed_total', OF_OPERATION)})"},
                       "Answers that were computed; one that several got is counted once.", unit="ops"),
            timeseries("Fallbacks", {"{{operation}} {{reason}}": f"sum by (operation, reason) ({increase('warpdesk_fallbacks_total', OF_OPERATION)})"},
                       "Within an hour: answers of the CPU that were wanted from a GPU, and why. `no-gpu` is a service without one.",
                       runbook="WarpdeskFallbackBurst"),
            timeseries("Share that fell back", {"{{operation}}": ratio(
                f"sum by (operation) ({rate('warpdesk_fallbacks_total', f'{OF_OPERATION},{WANTED}')})", computed)},
                       "Of the jobs computed. The alert begins at 10 %.", unit="percentunit", steps=((None, GREEN), (0.1, RED)),
                       runbook="WarpdeskFallbackBurst"),
            timeseries("Compilations", {"{{state}}": f"sum by (state) ({increase('warpdesk_kernel_compilations_total')})"},
                       "Within an hour. A hit is a cubin that was kept; a miss costs seconds once; an error sends jobs to the CPU.",
                       runbook="WarpdeskCompileErrors"),
            timeseries("Copies", {"{{direction}}": ratio(f"sum by (direction) ({rate('warpdesk_transfer_bytes_total')})",
                       f"sum by (direction) ({rate('warpdesk_transfer_seconds_total')})")},
                       "Bytes per second while a copy runs, not how busy the bus is: a GPU computes beside it.", unit="Bps"),
        ]),
        ("How quickly", [
            timeseries("Roofline", {"{{operation}}":
                f'warpdesk:kernel_bandwidth:bytes_per_second{{backend="gpu",{OF_OPERATION}}} / on () group_left () max(warpdesk_gpu_peak_memory_bandwidth_bytes_per_second)'},
                       "Compulsory traffic (inputs and outputs, once) over kernel time, as a share of the memory's peak. Near 1 nothing is left to gain. "
                       "Low is right for what arithmetic bounds (`matmul`, `monte_carlo`), and for launches too small to fill the GPU.",
                       unit="percentunit", width=12),
            timeseries("Achieved bandwidth", {"{{operation}} {{backend}}": f"warpdesk:kernel_bandwidth:bytes_per_second{{{OF_OPERATION}}}"},
                       "The same in bytes. What a kernel reads twice is not in it.", unit="Bps", width=12),
            timeseries("Time of a kernel", {sized: ratio(f"sum by ({per_size}) ({rate(f'{seconds}_sum', OF_OPERATION)})",
                       f"sum by ({per_size}) ({rate(f'{seconds}_count', OF_OPERATION)})")},
                       "Mean; of a GPU by CUDA events, without copies. A size class is a range of work, so a new mix of jobs inside it moves the mean.",
                       unit="s", width=12),
            timeseries("Against last week", {sized: f"warpdesk:kernel_seconds:mean10m{{{OF_OPERATION}}} / (warpdesk:kernel_seconds:baseline7d > 0)"},
                       "The mean of ten minutes over the median hour of the last week. Empty for the first two hours of a service.",
                       steps=((None, GREEN), (1.2, RED)), width=12, runbook="WarpdeskKernelSlower"),
            timeseries("Time of computing", quantiles("warpdesk_job_run_seconds", "operation, backend", OF_OPERATION, (0.5, 0.95)),
                       "A job's computing, copies included. Private jobs are in no time.", unit="s"),
            timeseries("Work", {"{{operation}} {{backend}}": ratio(f"sum by (operation, backend) ({rate('warpdesk_kernel_work_total', OF_OPERATION)})",
                       f"sum by (operation, backend) ({rate(f'{seconds}_sum', OF_OPERATION)})")},
                       "Elementary steps a second of kernel time. A step is another thing for each operation: compare one with itself only.", unit="ops"),
            heatmap("Time of computing, all", "warpdesk_job_run_seconds", "Jobs by their computing time.", OF_OPERATION),
        ]),
        ("Batches", [
            timeseries("Mean batch", {"{{operation}}": ratio(f"sum by (operation) ({rate('warpdesk_batch_size_sum', OF_OPERATION)})",
                       f"sum by (operation) ({rate('warpdesk_batch_size_count', OF_OPERATION)})")},
                       "Jobs of a launch. No delay is added to get company, so 1 on an idle service is right."),
            heatmap("Sizes", "warpdesk_batch_size", "Batches by their jobs.", OF_OPERATION, unit="short"),
            timeseries("Why there were no more", {"{{trigger}}": f"sum by (trigger) ({rate('warpdesk_batches_total', OF_OPERATION)})"},
                       "full and bytes: a limit of the operation. drained: no more waited. waited: they had waited long enough. alone: it runs by itself.",
                       unit="ops", stack=True),
        ]),
    ]  # fmt: skip


def gpus() -> list[Row]:
    return [
        ("What they are", [
            table("GPUs", f"max by (uuid, name, driver, cuda, mig, architecture) (warpdesk_gpu_info{{{OF_UUID}}})",
                  "Of live workers. `mig` names the GPU that a slice is of.", width=16, height=6),
            stat("Kept off", f"sum({gpu('breakers_open')})", "Kernels and examples that failed on a GPU and run on the CPU for now.", width=4, height=6,
                 steps=((None, GREEN), (1, RED)), runbook="WarpdeskGpuBreakerOpen"),
            stat("Driver hangs", f"max({gpu('driver_hung')})", "1 while a call of the driver's library does not return.", width=4, height=6,
                 steps=((None, GREEN), (1, RED)), runbook="WarpdeskGpuDriverHung"),
            states("State", {"{{uuid}} {{state}}": gpu("state", by="uuid, state")},
                   "In the judgement of its workers. degraded: it serves, and /gpu-health says what is wrong. quarantined: jobs run on the CPU.",
                   width=12, runbook="WarpdeskGpuQuarantined"),
            states("Clocks held down", {"{{uuid}} {{reason}}": gpu("clock_event_active", by="uuid, reason")},
                   "idle and a power cap are normal; thermal and hardware slowdowns are not.", width=12, runbook="WarpdeskGpuThrottled"),
        ]),
        ("Work", [
            timeseries("Utilisation", {"{{uuid}}": gpu("utilization_ratio")}, BUSY, unit="percentunit", most=1, runbook="WarpdeskGpuSaturated"),
            timeseries("Activity", {
                "multiprocessors {{uuid}}": gpu("sm_activity_ratio"),
                "occupancy {{uuid}}": gpu("sm_occupancy_ratio"),
                "tensor cores {{uuid}}": gpu("tensor_activity_ratio"),
                "memory {{uuid}}": gpu("dram_activity_ratio"),
            }, "From Hopper on and where it was asked for: how much of the GPU worked. Absent elsewhere, and never 0 for that.", unit="percentunit", most=1),
            timeseries("Clocks", {"{{domain}} {{uuid}}": gpu("clock_hertz", by="uuid, domain")}, "Low while idle is right.", unit="hertz"),
            timeseries("Power", {"{{uuid}}": gpu("power_watts"), "limit {{uuid}}": gpu("power_limit_watts")}, "At the limit clocks go down, as they should.", unit="watt"),
            timeseries("Power by the energy counter", {"{{uuid}}": f"max by (uuid) (rate(warpdesk_gpu_energy_joules_total{{{OF_UUID}}}[$__rate_interval]))"},
                       "The mean between two looks, which misses no peak.", unit="watt"),
            timeseries("Temperature", {"{{uuid}}": gpu("temperature_celsius"), "slows down at, {{uuid}}": gpu("temperature_slowdown_celsius")},
                       "Against the card's own limit: some run at 87 degrees by design.", unit="celsius", runbook="WarpdeskGpuHot"),
        ]),
        ("Memory", [
            timeseries("Memory", {f"{kind} {{{{uuid}}}}": gpu(f"memory_{kind}_bytes") for kind in ("used", "free", "total", "reserved")},
                       "As the driver sees it. Used includes what the pool keeps for reuse, so it says little of what jobs need.", unit="bytes"),
            timeseries("Pool", {f"{kind} {{{{uuid}}}}": gpu(f"pool_{kind}_bytes") for kind in ("used", "held", "limit", "stuck")},
                       "Of the workers' processes. held less used is kept for reuse. stuck is what did not come back; the child is replaced then.",
                       unit="bytes", runbook="WarpdeskGpuPoolHigh"),
            timeseries("Room for jobs", {"{{uuid}}": f"warpdesk:gpu_memory_room:ratio{{{OF_UUID}}}"},
                       "Free, and kept for reuse, of all memory.", unit="percentunit", most=1, steps=((None, RED), (0.1, GREEN)), runbook="WarpdeskGpuMemoryHigh"),
            timeseries("Whose memory", {"{{kind}} {{uuid}}": gpu("process_memory_bytes", by="uuid, kind")},
                       "Of our processes, and of others on the same GPU.", unit="bytes"),
            timeseries("Processes", {"{{uuid}}": gpu("processes")}, "That compute on it, ours among them."),
        ]),
        ("Health", [
            timeseries("Age of the canary", {"{{uuid}}": f"time() - {gpu('canary_last_success_timestamp_seconds')}"},
                       "Since it last answered right what is known. It is asked between jobs.", unit="s",
                       steps=((None, GREEN), (720, RED)), runbook="WarpdeskGpuCanaryStale"),
            timeseries("Age of the reading", {"{{uuid}}": gpu("reading_age_seconds")}, "Of all that the driver says here.", unit="s",
                       steps=((None, GREEN), (30, RED)), runbook="WarpdeskGpuReadingOld"),
            timeseries("Faults", {"{{kind}} {{uuid}}": gpu("faults", by="uuid, kind")}, "Since its workers started. Running out of memory is nobody's fault."),
            timeseries("Memory errors", {"{{kind}} {{uuid}}": f"max by (uuid, kind) (warpdesk_gpu_ecc_errors_total{{{OF_UUID}}})"},
                       "Since its driver was loaded. Corrected ones cost nothing.", runbook="WarpdeskGpuEcc"),
            timeseries("Rows remapped", {"{{kind}} {{uuid}}": gpu("remapped_rows", by="uuid, kind")}, "Spare rows in the place of faulty ones; failed is the end of the card.",
                       runbook="WarpdeskGpuRemapFailed"),
            table("Xids", f"time() - max by (uuid, xid) (warpdesk_gpu_xid_last_timestamp_seconds{{{OF_UUID}}})",
                  "Seconds since the driver logged each number. 13, 31 and 43 are faults of programs.", unit="s", runbook="WarpdeskGpuXid"),
            table("What is kept off", f"max by (uuid, what) (warpdesk_gpu_breaker_open{{{OF_UUID}}})",
                  "Kernels and examples, until they pass again. Empty is well.", runbook="WarpdeskGpuBreakerOpen"),
        ]),
    ]  # fmt: skip


def cost_and_privacy() -> list[Row]:
    dollars, jobs = "warpdesk_cost_dollars_total", "warpdesk_jobs_computed_total"
    costed = "warpdesk_job_run_seconds_count"  # without private jobs, of which neither dollars nor joules are told
    left = {
        f"{kind} {{{{dataset}}}}": f"max by (dataset) ({one(f'warpdesk_privacy_{kind}_budget')}) - max by (dataset) ({one(f'warpdesk_privacy_{kind}_spent')})"
        for kind in ("epsilon", "delta", "rho")
    }
    held = {
        f"{kind} {word}": f"max by (dataset) ({one(f'warpdesk_privacy_{kind}_{word}')})"
        for kind in ("epsilon", "delta", "rho")
        for word in ("budget", "spent")
    }
    return [
        ("Cost", [
            stat("Fleet", f"max({one('warpdesk_fleet_dollars_per_hour')})",
                 "What the live workers whose device has a price (WARPDESK_PRICES) cost an hour, busy or not.", unit="currencyUSD", width=4,
                 runbook="WarpdeskCostHigh"),
            stat("1,000 jobs, computing alone", f"1000 * sum({rate(dollars)}) / (sum({rate(costed)}) > 0)",
                 "The price of the seconds that jobs computed, private jobs left out. What a fleet that is never idle would cost.", unit="currencyUSD", width=5),
            stat("1,000 jobs, idle time too", f"1000 * max({one('warpdesk_fleet_dollars_per_hour')}) / 3600 / (sum({rate(jobs)}) > 0)",
                 "The price of the fleet over what it computes now: what a job does cost. The distance to the number beside it is what idleness costs.",
                 unit="currencyUSD", width=5),
            stat("Idle share", f"1 - sum({rate(dollars)}) * 3600 / (max({one('warpdesk_fleet_dollars_per_hour')}) > 0)",
                 "Of what the fleet costs, what no job accounts for. Private jobs, waiting for disks and starting are in it.", unit="percentunit", width=5,
                 least=None, runbook="WarpdeskPaidAndIdle"),
            stat("Energy of a job", f"sum({rate('warpdesk_job_energy_joules_total')}) / (sum({rate(costed, ON_GPU)}) > 0)",
                 "Joules of the GPU, shared among the jobs of a launch. The host's are not in it; private jobs are in none.", unit="joule", width=5),
            timeseries("Dollars an hour by operation", {"{{operation}} {{backend}}": f"3600 * sum by (operation, backend) ({rate(dollars, OF_OPERATION)})"},
                       "Of computing, without idle time.", unit="currencyUSD", stack=True),
            timeseries("Dollars per 1,000 jobs", {"{{operation}} {{backend}}":
                f"1000 * sum by (operation, backend) ({rate(dollars, OF_OPERATION)}) / (sum by (operation, backend) ({rate(costed, OF_OPERATION)}) > 0)"},
                       "By where they ran: where the CPU is cheaper, a GPU is not the answer.", unit="currencyUSD"),
            timeseries("Energy per job", {"{{operation}} {{backend}}": ratio(
                f"sum by (operation, backend) ({rate('warpdesk_job_energy_joules_total', OF_OPERATION)})",
                f"sum by (operation, backend) ({rate(costed, OF_OPERATION)})")},
                       "Joules. Measured by the GPU's own counter where it has one.", unit="joule"),
            timeseries("Fleet and limit", {"dollars an hour": f"max({one('warpdesk_fleet_dollars_per_hour')})", "your limit": "warpdesk:cost_limit:dollars_per_hour"},
                       "The limit is set in the rules.", unit="currencyUSD", runbook="WarpdeskCostHigh"),
        ]),
        ("Privacy budgets", [
            timeseries("Left", left,
                       "Epsilon, or epsilon and delta, or rho, of open budgets, as each is kept. It only ever falls, but for refunds. What an answer tells of one "
                       "person also depends on other budgets of the same people, and on what was released elsewhere.", runbook="WarpdeskPrivacyBudgetLow"),
            timeseries("Spent", {"{{kind}} {{dataset}}": "warpdesk:privacy_spent:ratio"}, "Of what the budget holds.", unit="percentunit", most=1,
                       steps=((None, GREEN), (0.8, YELLOW), (1, RED)), runbook="WarpdeskPrivacyBudgetSpent"),
            stat("Datasets left out", f"max({one('warpdesk_privacy_datasets_left_out')})",
                 "With an open budget and in no panel here, because there are more than 100.", width=8, height=8, steps=((None, GREEN), (1, YELLOW))),
            table("Budgets", held, "As their accountants have them; /v1/budgets has the chain of charges."),
            timeseries("Charges", {"{{dataset}} {{state}}": f"sum by (dataset, state) ({increase('warpdesk_privacy_charges_total')})"},
                       "Within an hour. A refused charge released nothing.", runbook="WarpdeskChargesRefused"),
            timeseries("Rounds", {"{{phase}}": f"max by (phase) ({one('warpdesk_rounds')})"},
                       "Of secure aggregation, by phase."),
        ]),
    ]  # fmt: skip


DASHBOARDS = {
    "service": ("Warpdesk: service", service, []),
    "queue": ("Warpdesk: queue and workers", queue, [QUEUE, OPERATION]),
    "kernels": ("Warpdesk: kernels and batching", kernels, [OPERATION]),
    "gpus": ("Warpdesk: GPUs", gpus, [UUID]),
    "cost-and-privacy": ("Warpdesk: cost and privacy", cost_and_privacy, [OPERATION]),
}


def placed(rows: Sequence[Row]) -> Iterator[Panel]:
    """The panels with ids and places: rows from left to right, and a line further down where there is no room."""
    number, y = 0, 0
    for title, panels in rows:
        number += 1
        yield {
            "type": "row",
            "id": number,
            "title": title,
            "collapsed": False,
            "panels": [],
            "gridPos": {"x": 0, "y": y, "w": COLUMNS, "h": 1},
        }
        x, y, tallest = 0, y + 1, 0
        for shown in panels:
            width, height = shown["gridPos"]["w"], shown["gridPos"]["h"]
            if x + width > COLUMNS:
                x, y, tallest = 0, y + tallest, 0
            number += 1
            yield {**shown, "id": number, "gridPos": {"x": x, "y": y, "w": width, "h": height}}
            x, tallest = x + width, max(tallest, height)
        y += tallest


def of_metric(metric: Metric) -> Panel:
    """The panel of a metric that no other panel draws: a counter's rate, a gauge, or the mean of times and sizes."""
    name, labels = f"warpdesk_{metric.name}", ", ".join(metric.labels)
    by = f" by ({labels})" if labels else ""
    match metric.kind:
        case "counter":
            expr = f"sum{by} ({rate(name)})"
        case "gauge":
            expr = one(name)
        case "times" | "sizes":
            expr = ratio(f"sum{by} ({rate(f'{name}_sum')})", f"sum{by} ({rate(f'{name}_count')})")
    legend = " ".join(f"{{{{{label}}}}}" for label in metric.labels)
    words = f"{metric.help}."
    return timeseries(
        metric.name,
        {legend: expr},
        words,
        unit=UNITS.get(metric.name.removesuffix("_total").rpartition("_")[2], "short"),
    )


# Grafana's unit, by the last word of a metric's name.
UNITS = {
    "bytes": "bytes",
    "seconds": "s",
    "ratio": "percentunit",
    "celsius": "celsius",
    "watts": "watt",
    "hertz": "hertz",
    "joules": "joule",
}


def users(metric: Metric, texts: Mapping[str, str]) -> list[str]:
    """The names of those texts that speak of a metric."""
    pattern = re.compile(rf"\bwarpdesk_{metric.name}(_bucket|_sum|_count)?\b")
    return [name for name, text in texts.items() if pattern.search(text)]


def all_rows(name: str) -> list[Row]:
    _, rows, _ = DASHBOARDS[name]
    drawn = {"drawn": json.dumps([rows() for _, rows, _ in DASHBOARDS.values()])}
    rest = [of_metric(metric) for metric in METRICS.values() if not users(metric, drawn)]
    return [*rows(), ("Other metrics", rest)] if rest and name == "service" else rows()


def dashboard(name: str) -> dict[str, Any]:
    title, _, variables = DASHBOARDS[name]
    return {
        "id": None,
        "uid": f"warpdesk-{name}",
        "title": title,
        "tags": ["warpdesk"],
        "schemaVersion": SCHEMA,
        "version": 1,
        "editable": False,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "browser",
        "annotations": {"list": []},
        "templating": {"list": variables},
        "links": [
            {"type": "dashboards", "tags": ["warpdesk"], "asDropdown": False, "keepTime": True, "includeVars": False, "title": "", "url": ""},
            {"type": "link", "title": "Runbook", "url": RUNBOOK, "targetBlank": True, "tags": [], "icon": "doc"},
        ],
        "panels": list(placed(all_rows(name))),
    }  # fmt: skip


def text(name: str) -> str:
    return json.dumps(dashboard(name), indent=1) + "\n"


if __name__ == "__main__":
    folder = HERE / "dashboards"
    folder.mkdir(exist_ok=True)
    for name in DASHBOARDS:
        (folder / f"{name}.json").write_text(text(name))
