"""Write the tables of docs/benchmarks.md from the files in benchmarks/results: `make tables`.

A table stands between `<!-- table: NAME -->` and `<!-- end -->`; NAME is a key of TABLES. The words around it are
written by hand. Numbers have three significant digits.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parent / "benchmarks" / "results"
PAGE = HERE / "benchmarks.md"

_TABLE = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)

Row = Mapping[str, Any]


def written(page: str) -> str:
    """The page with each table made anew."""
    return _TABLE.sub(lambda match: f"{match[1]}{TABLES[match[2]]()}{match[3]}", page)


def result(name: str) -> list[Row]:
    rows: list[Row] = json.loads((RESULTS / f"{name}.json").read_text())["rows"]
    return rows


def origin(*names: str) -> str:
    """Where and when it was measured, below a table, with the address of the file."""
    lines = []
    for name in names:
        document = json.loads((RESULTS / f"{name}.json").read_text())
        where = document["environment"]
        link = f"[{name}.json](../benchmarks/results/{name}.json)"
        lines.append(f"{link}: {document['measured_at'][:10]}, {where['cores']} cores of {_article(where['cpu'])}.\n")
    return "\n" + "".join(lines)


def table(header: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    lines = [list(header), *([_cell(value) for value in row] for row in rows)]
    marks = ["---" for _ in lines[0]]
    return "".join(f"| {' | '.join(line)} |\n" for line in (lines[0], marks, *lines[1:]))


def number(value: float) -> str:
    """Three significant digits, or all digits before the point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _cell(value: object) -> str:
    if isinstance(value, float):
        return number(value)
    return f"{value:,}" if isinstance(value, int) else str(value)


def _article(processor: str) -> str:
    return "an AMD EPYC" if processor == "AMD EPYC" else "an Intel Xeon" if "Xeon" in processor else processor


def _milliseconds(row: Row) -> float:
    return float(row["time"]["median"]) * 1000


def operations() -> str:
    return _beside_peers("operations", {row["operation"] for name in ("indicators", "desk") for row in result(name)})


def indicators() -> str:
    return _beside_peers("indicators")


def desk() -> str:
    return _beside_peers("desk")


def _beside_peers(name: str, elsewhere: Collection[str] = ()) -> str:
    """The rows of a file but those of operations that another table has."""
    rows, lines = [row for row in result(name) if row["operation"] not in elsewhere], []
    own = {(row["operation"], row["case"]): _milliseconds(row) for row in rows if row["what"] == "compute"}
    for row in rows:
        if row["what"] == "peer":
            beside = f"{row['by']} {row['version']}" + (f", {row['note']}" if row["note"] else "")
            times = own[row["operation"], row["case"]], beside, row["threads"], _milliseconds(row)
            lines.append([f"`{row['operation']}`", row["case"], *times, row["ratio"]])
    header = ["operation", "case", "p50, ms", "beside", "its threads", "its p50, ms", "ratio"]
    return table(header, lines) + origin(name)


def accuracy() -> str:
    document = json.loads((RESULTS / "operations.json").read_text())
    header = ["prices", "by", "error of the mean", "error of the deviation"]
    lines = [
        [row["prices"], row["by"], *(f"{row[key]:.1e}" if row[key] is not None else "" for key in _ERRORS)]
        for row in document["accuracy"]["bollinger"]
    ]
    return table(header, lines) + origin("operations")


_ERRORS = ("error of mean", "error of deviation")


def _latency(name: str) -> list[list[object]]:
    rows = result(name)
    base = rows[0]["median ms"]
    return [[row["from request to answer"], row["median ms"], row["p99 ms"], base / row["median ms"]] for row in rows]


def latency() -> str:
    return table(["from request to answer", "p50, ms", "p99, ms", "ratio"], _latency("service_latency")) + origin(
        "service_latency"
    )


def processors() -> str:
    rows = result("service_processors")
    return table(list(rows[0]), [list(row.values()) for row in rows]) + origin("service_processors")


def beside() -> str:
    header = ["meanwhile", "quick jobs", "p50, ms", "p99, ms", "slowest, ms", "p50, times idle", "p99, times idle"]
    return table(header, [list(row.values()) for row in result("beside")]) + origin("beside")


def shards() -> str:
    header = ["job", "workers", "width", "shards", "ms", "times as quick as whole"]
    return table(header, [list(row.values())[:-1] for row in result("shards")]) + origin("shards")


def primary() -> str:
    lines = [[*list(row.values())[:-1], f"{row['Redis idle']:.0%}"] for row in result("primary")]
    header = [
        "appendfsync",
        "jobs of a batch",
        "processes",
        "jobs a second",
        "Redis, us a job",
        "jobs a second of a core",
    ]
    return table([*header, "Redis idle"], lines) + origin("primary")


def regions() -> str:
    header = ["round trip, ms", "far away", "p50, ms", "p90, ms", "round trips more"]
    return table(header, [list(row.values()) for row in result("regions")]) + origin("regions")


def checkpoints() -> str:
    header = ["state", "checkpoints", "ms each", "of the time", "s between two"]
    lines = [[*row[:3], f"{row[3]:.2%}", row[4]] for row in (list(each.values()) for each in result("checkpoints"))]
    return table(header, lines) + origin("checkpoints")


def servers() -> str:
    header = ["beside", "server", "callers", "p50, ms", "p99, ms", "requests a second", "p50, times", "requests, times"]
    names = {"fastapi": "FastAPI", "litserve": "LitServe", "bentoml": "BentoML", "ray": "Ray Serve"}
    lines = [[names.get(value, value) for value in row.values()] for row in result("servers")]
    return table(header, lines) + origin("servers")


def latency_after_rest() -> str:
    header = ["the same, each call after 20 ms of rest", "p50, ms", "p99, ms", "ratio"]
    return table(header, _latency("service_latency_after_rest")) + origin("service_latency_after_rest")


def throughput() -> str:
    lines = [
        [row["one worker, 16 connections"], row["jobs/s"], row["lowest"], row["highest"], row["times RQ SimpleWorker"]]
        for row in result("service_throughput")
    ]
    header = ["one worker, 16 connections", "jobs a second", "lowest", "highest", "ratio"]
    return table(header, lines) + origin("service_throughput")


def batches() -> str:
    rows = result("batches")
    lines = [
        [
            row["RSI of 1,000 prices, one worker"],
            row["jobs/s"],
            row["lowest"],
            row["highest"],
            row["times SimpleWorker"],
        ]
        for row in rows
        if "lowest" in row
    ]
    trips = next(row for row in rows if "lowest" not in row)
    header = ["RSI of 1,000 prices, one worker", "jobs a second", "lowest", "highest", "ratio"]
    return table(header, lines) + f"\nRound trips to Redis in a batch: {trips['jobs/s']}.\n" + origin("batches")


def ingest() -> str:
    lines = [
        [row["1,000,000 float64"], row["body MB"], _milliseconds(row), row["times quicker than JSON"]]
        for row in result("ingest")
    ]
    return table(["1,000,000 float64", "body, MB", "p50, ms", "ratio"], lines) + origin("ingest")


def faults() -> str:
    lines = [
        [row["from"], row["times"], row["p50 ms"], row["p99 ms"], row["most ms"], row["goal for p99 ms"]]
        for row in result("faults")
    ]
    return table(["from", "times", "p50, ms", "p99, ms", "longest, ms", "goal for p99, ms"], lines) + origin("faults")


def health() -> str:
    lines = [
        [f"`{row['route']}`", row["driver"], row["median ms"], row["p99 ms"], row["slowest ms"], row["goal p99 ms"]]
        for row in result("health")
    ]
    header = ["route", "the driver", "p50, ms", "p99, ms", "longest, ms", "goal for p99, ms"]
    return table(header, lines) + origin("health")


def start() -> str:
    lines = [
        [row["start"], row["until"], row["starts"], row["median s"], row["slowest s"], row["goal s"] or ""]
        for row in result("start")
    ]
    return table(["start", "until", "starts", "p50, s", "longest, s", "goal, s"], lines) + origin("start")


def scrape() -> str:
    lines = [
        [row["scrape"], row.get("times", ""), row["median ms"], row.get("p99 ms", ""), row.get("worst ms", "")]
        for row in result("scrape")
        if "median ms" in row
    ]
    return table(["request", "times", "p50, ms", "p99, ms", "longest, ms"], lines) + origin("scrape")


def ledger() -> str:
    lines = [
        [
            row["database"],
            row["processes"],
            row["charges per s"],
            row["charges, claims and releases per s"],
            row["bare transactions per s"],
            row["charges per bare transaction"],
        ]
        for row in result("ledger")
    ]
    header = ["database", "processes", "charges a second", "with claim and release", "bare transactions", "ratio"]
    return table(header, lines) + origin("ledger")


def secagg_round() -> str:
    lines = [
        [row["by"], row["step"], row["times"], _milliseconds(row) if isinstance(row["time"], dict) else row["time"]]
        for row in result("secagg_round")
    ]
    return table(["by", "step", "times", "p50, ms"], lines) + origin("secagg_round")


def instrumentation() -> str:
    lines = [
        [row["load"], row["what"], row["counting"], row["not counting"], row["more"], row["from"], row["to"]]
        for row in result("instrumentation")
    ]
    header = ["load", "what", "counting", "not counting", "difference", "from", "to"]
    return table(header, lines) + origin("instrumentation")


def overload() -> str:
    row = result("overload")[0]
    facts = table(
        ["seconds", "capacity, jobs/s", "offered, jobs/s", "taken", "expired", "late", "not done", "normal after, s"],
        [[row[key] for key in _OVERLOAD]],
    )
    lines = [
        [
            one["answer"],
            one["count"],
            one["API median ms"],
            one["API p99 ms"],
            one["caller median ms"],
            one["caller p99 ms"],
        ]
        for one in result("overload_refusals")
        if one["answer"] in ("all refusals", "taken")
    ]
    header = ["answer", "count", "API p50, ms", "API p99, ms", "caller p50, ms", "caller p99, ms"]
    return facts + "\n" + table(header, lines) + origin("overload", "overload_refusals")


_OVERLOAD = ("seconds", "capacity jobs/s", "offered/s", "taken", "expired", "late", "not done", "itself again after s")


def streams() -> str:
    row = result("event_streams")[0]
    keys = [key for key in row if key != "open event streams"]
    return table(["open event streams", *keys], [[row["open event streams"], *(row[key] for key in keys)]]) + origin(
        "event_streams"
    )


# What each scenario does; its figures are in chaos_<name>.json.
_SCENARIOS = {
    "kills": "11,500 jobs sent, 4 workers, a parent or child killed every 2 s",
    "redis-kill": "Redis killed and started again 20 times under load",
    "redis-stop": "Redis stopped for 30 s",
    "network-cut": "connections cut for 60 s",
    "network-silent": "connections silent for 60 s",
    "partitions": "workers cut off while others take their jobs over",
    "reply-drop": "replies of every step lost (enqueue, claim, renew, finish, reap, cancel)",
    "poison": "a job that kills its process, among 63 of its kind",
    "api-kill": "the API killed 20 times",
    "rolling-restart": "a worker and the API restarted every 30 s for 160 s",
    "memory": "memory that runs out: the largest child killed 40 times, as the kernel kills",
    "clock-jumps": "clocks set an hour forward and back 20 times",
    "full-disk": "the disk of the whole service filled to its last byte 20 times",
}
_COUNTED = ("acknowledged", "lost", "seen twice", "changed", "wrong", "unexpected", "late finishes refused")


def chaos() -> str:
    lines = []
    for name, words in _SCENARIOS.items():
        facts = {row["fact"]: row["value"] for row in result(f"chaos_{name}")}
        waits = [f"{fact}: {text}" for fact, text in facts.items() if isinstance(text, str) and "p99" in text]
        link = f"[{words}](../benchmarks/results/chaos_{name}.json)"
        lines.append([link, *(facts.get(fact, "") for fact in _COUNTED), "<br>".join(waits)])
    return table(["what was done", *_COUNTED, "seconds (count: p50, p99, longest)"], lines)


def attacks() -> str:
    lines = [
        [
            row["attack"],
            "; ".join(part for part in (row["answers"], row["refused"] and f"the other key: {row['refused']}") if part),
            f"{row['idle p99 ms']:.0f}, {row['p99 ms']:.0f}",
            f"{row['livez ms']:.0f}",
            f"{row['API MiB']:.0f}",
            row["missed"],
        ]
        for row in result("attacks")
    ]
    header = [
        "attack",
        "answers",
        "another key's p99, ms: before, during",
        "`/livez` at worst, ms",
        "API memory, MiB",
        "goal missed",
    ]
    return table(header, lines) + origin("attacks")


def soak() -> str:
    return table(["fact", "value"], [[row["fact"], _fact(row["value"])] for row in result("soak")]) + origin("soak")


def _fact(value: object) -> object:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_cell(of)}" for name, of in value.items())
    return "none" if value == [] else value


TABLES: dict[str, Callable[[], str]] = {
    one.__name__: one
    for one in (
        *(
            operations,
            indicators,
            desk,
            accuracy,
            latency,
            beside,
            shards,
            primary,
            regions,
            checkpoints,
            processors,
            servers,
            latency_after_rest,
            throughput,
            batches,
            ingest,
            faults,
            health,
            scrape,
        ),
        *(start, ledger, secagg_round, instrumentation, overload, streams, chaos, attacks, soak),
    )
}

if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
