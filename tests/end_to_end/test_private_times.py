"""How long a private job's sampler ran is in nothing that the service tells: it depends on the noise that was drawn.

Quick and slow private jobs run in turn on a real service. Every number that comes through a door is kept by the place
it stands at. A place is found where the slow jobs' numbers are apart from the quick ones' by about the time that the
samplers took longer.
"""

import json
import logging
import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from io import StringIO
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from redis import Redis

from tests.app.conftest import Live, live
from tests.conftest import ROOT
from tests.waiting import wait_until
from tests.workers.conftest import Desk
from tests.workers.operations import LINGERING
from warpdesk_server.service.redis_server import RedisServer
from warpdesk_server.workers import logs
from warpdesk_server.workers.queue.jobs import connect
from warpdesk_server.workers.store.spool import SpoolStore

JOBS = 4  # of each kind
SLOW = 0.3137  # seconds that a slow job's sampler takes longer
SETTLE = 1.4  # seconds in which what was counted by then reaches Redis: it is added once a second
LOOK = 1.5 * SLOW  # seconds after which everything is told of a job; more where a busy machine takes longer for one
MOST = 5  # times that places which were found are looked at again
UNITS = (1.0, 1e3, 1e6, 1e9)  # of a second

Numbers = dict[str, float]


class Late(Exception):
    """A job was not done when it was to be looked at. Who looks later at slow jobs than at quick ones finds the time of
    his own questions."""


def numbers_in(text: str) -> list[float]:
    return [float(found) for found in re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?:e-?\d+)?(?!\w)", text)]


def flat(place: str, value: Any, since: float) -> Iterator[tuple[str, float]]:
    """Every number of a JSON value by its place. Times are told since the job was sent; those of whole seconds are
    left out, as are words without a number."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from flat(f"{place}/{name}", inner, since)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from flat(f"{place}/{number}", inner, since)
    elif isinstance(value, bool) or value is None:
        return
    elif isinstance(value, int | float):
        yield from moment(place, float(value), since)
    elif isinstance(value, str):
        try:
            at = datetime.fromisoformat(value).timestamp() if re.match(r"\d{4}-\d\d-\d\dT", value) else None
        except ValueError:
            at = None
        if at is not None:
            yield from moment(place, at, since)
        else:
            yield from ((f"{place}#{at}", number) for at, number in enumerate(numbers_in(value)))


def moment(place: str, value: float, since: float) -> Iterator[tuple[str, float]]:
    if not 1e9 < value < 3e9:
        yield place, value
    elif value != int(value):
        yield place, value - since


def lines(place: str, text: str, since: float) -> Iterator[tuple[str, float]]:
    """Numbers of log lines by what the line says without them, and how often it was said before."""
    output: dict[str, int] = defaultdict(int)
    for line in text.splitlines():
        if line.startswith("{"):
            entry = json.loads(line)
            at, words = entry.pop("time"), f"{entry['logger']} {entry['message']}"
            rest = {name: value for name, value in entry.items() if name not in ("logger", "message", "job")}
        else:
            day, clock, words = line.split(" ", 2)
            at, rest = f"{day}T{clock.replace(',', '.')}", {}
        words = re.sub(r"job_\w+| id=\S+", "", words)
        kind = re.sub(r"\d+(\.\d+)?", "N", words)
        where = f"{place}: {kind} ({output[kind]})"
        output[kind] += 1
        yield from flat(f"{where} at", at, since)
        yield from flat(where, words, since)
        yield from flat(where, rest, since)


class World:
    """An API in this process and a worker in another, and every door of them."""

    def __init__(self, api: Live, worker_log: Path, pause: Path) -> None:
        self.api = api
        self.look = LOOK
        self._pause = pause
        self._written = [StringIO(), StringIO()]  # the API's log as text and as JSON
        self._worker_log = worker_log
        self._read = [0, 0, len(worker_log.read_text())]
        self._handlers = [logs._Stderr(stream) for stream in self._written]
        for handler, form in zip(self._handlers, (logs._Text(), logs._Json(None)), strict=True):
            handler.setFormatter(form)

    @contextmanager
    def listening(self) -> Iterator[None]:
        ours = logging.getLogger("warpdesk")
        before = ours.level
        ours.setLevel(logging.DEBUG)
        for handler in self._handlers:
            ours.addHandler(handler)
        try:
            yield
        finally:
            ours.setLevel(before)
            for handler in self._handlers:
                ours.removeHandler(handler)

    def totals(self) -> Numbers:
        """What is counted and shown of all jobs, over HTTP and to who may look at the queues in Redis."""
        numbers: Numbers = {}
        for family in text_string_to_metric_families(self.api.http.get("/metrics").text):
            for sample in family.samples:
                numbers[f"/metrics {sample.name} {sorted(sample.labels.items())}"] = sample.value
        for path in ("/performance-metrics", "/gpu-health", "/gpu-memory", "/health"):
            numbers |= flat(path, self.api.http.get(path).json(), 0.0)
        return numbers | self._monitored(0.0)

    def _monitored(self, since: float) -> Numbers:
        """What the Redis user for monitoring may read."""
        numbers: Numbers = {}
        with connect(self.api.redis_url) as redis:
            for pattern in monitored():
                for key in sorted(redis.scan_iter(pattern)):
                    numbers |= flat(f"Redis {re.sub(r'job_[0-9a-f]+', 'job', key.decode())}", read(redis, key), since)
        return numbers

    def job(self, pause: float) -> Numbers:
        """Run one and return what is told of it, to its owner and in logs."""
        self._pause.write_text(str(pause))
        http, numbers, answers = self.api.http, dict[str, float](), dict[str, httpx.Response]()
        before = {record.request.id for record in self.api.queue.jobs("local", 200)[0]}
        inputs = {"values": {"data": [1.0, 2.0]}}
        body = {"operation": "linger", "params": {"pause": str(self._pause)}, "inputs": inputs, "backend": "cpu"}
        since = time.time()

        def ask(name: str, method: str, path: str, **how: Any) -> threading.Thread:
            def answer() -> None:
                answers[name] = http.request(method, path, **how)

            thread = threading.Thread(target=answer)
            thread.start()
            return thread

        waits = [ask("POST wait", "POST", "/v1/jobs", json=body, headers={"Prefer": "wait=50"})]
        wait_until(lambda: len(self.api.queue.jobs("local", 200)[0]) > len(before))
        (job_id,) = {record.request.id for record in self.api.queue.jobs("local", 200)[0]} - before
        at = f"/v1/jobs/{job_id}"
        waits += [ask("GET events", "GET", f"{at}/events"), ask("GET wait", "GET", at, headers={"Prefer": "wait=50"})]
        for thread in waits:
            thread.join()
        wait_until(lambda: f"{job_id} attempt 1 succeeded" in self._worker_log.read_text())
        sleep_until(since + self.look, time.time)  # so that what is asked now is asked at the same time of all
        array = answers["POST wait"].json()["result"]["outputs"]["noisy"]["array"]
        for path in (at, f"{at}/result", f"{at}/result/total", f"/v1/arrays/{array}"):
            answers[path.replace(job_id, "job").replace(array, "array")] = http.get(path)
        answers["list"] = http.get("/v1/jobs", params={"limit": 1})
        answers["/gpu-health"] = http.get("/gpu-health")
        for name, answer in answers.items():
            assert answer.status_code == 200, (name, answer.text)
            headers = {key: text for key, text in answer.headers.items() if key not in ("x-request-id", "etag", "date")}
            numbers |= flat(f"{name} headers", headers, since)
            if name == "GET events":
                frames = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]
                numbers |= flat(name, frames, since)
            else:
                content = json.loads(re.sub(r'"blake3:\w+"|"(job|req)_\w+"', "null", answer.text))
                if isinstance(content, dict):
                    for noise in ("outputs", "request_id"):
                        content.pop(noise, None)
                        (content.get("result") or {}).pop(noise, None)
                    numbers |= flat(name, content, since)
        numbers |= self._monitored(since)
        for place, text in self.output().items():
            numbers |= lines(place, text, since)
        return numbers

    def output(self) -> dict[str, str]:
        """What was written to logs since this was asked last."""
        texts = [*(stream.getvalue() for stream in self._written), self._worker_log.read_text()]
        new = [text[start:] for text, start in zip(texts, self._read, strict=True)]
        self._read = [len(text) for text in texts]
        return dict(zip(("log of the API", "log of the API in JSON", "log of the worker"), new, strict=True))


def monitored() -> list[str]:
    """The keys that the Redis user for monitoring may read."""
    acl = (ROOT / "deploy" / "redis" / "users.acl").read_text()
    (monitor,) = [line for line in acl.splitlines() if line.startswith("user monitor ")]
    return [word[1:] for word in monitor.split() if word.startswith("~")]


def read(redis: Redis, key: bytes) -> Any:
    match redis.type(key):
        case b"hash":
            return {name.decode(): number_of(value.decode()) for name, value in redis.hgetall(key).items()}
        case b"zset":
            return [score for _, score in redis.zrange(key, 0, -1, withscores=True)]
        case _:
            return None


def number_of(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text


def of_jobs(quick: list[Numbers], slow: list[Numbers]) -> set[str]:
    """Places at which the numbers of all slow jobs are apart from those of all quick ones by about the time."""
    found = set()
    for place in set().union(*quick, *slow):
        short, long = ([numbers.get(place) for numbers in some] for some in (quick, slow))
        if None in short or None in long:
            if {None} in (set(short), set(long)) and not (None in short and None in long):
                found.add(f"{place} (only of {'quick' if None in long else 'slow'} jobs)")
            continue
        gap = max(min(long) - max(short), min(short) - max(long))  # type: ignore[type-var]
        if any(0.6 * SLOW < gap / unit < 1.4 * SLOW for unit in UNITS):
            found.add(place)
    return found


def of_totals(quick: Numbers, slow: Numbers) -> set[str]:
    """Places that grew in the one block by about the time more than in the other, or counted its jobs elsewhere."""
    found = set()
    for place in quick.keys() & slow.keys():
        more, counts = abs(slow[place] - quick[place]), re.search(r"bytes|memory", place) is None
        if any(0.8 * JOBS * SLOW < more / unit < 1.5 * JOBS * SLOW for unit in UNITS):
            found.add(place)
        elif counts and more >= JOBS and more == int(more):
            found.add(f"{place} (a count)")
    return found


def grown(before: Numbers, after: Numbers) -> Numbers:
    """What was added, but to times of whole seconds, and to rates since the service began a moment ago."""
    return {
        place: value - before.get(place, 0.0)
        for place, value in after.items()
        if not (1e9 < value < 3e9 and value == int(value)) and "_per_second" not in place
    }


def sleep_until(moment: float, clock: Callable[[], float]) -> None:
    if (left := moment - clock()) < 0:
        raise Late
    time.sleep(left)


def suspects(world: World) -> set[str]:
    while True:
        try:
            return compared(world)
        except Late:
            world.look *= 2


def compared(world: World) -> set[str]:
    """Two blocks of jobs of which each takes as long."""
    numbers, totals = [], []
    for pause in (0.0, SLOW):
        before, began = world.totals(), time.monotonic()
        world.output()  # of what was asked so far
        numbers.append([world.job(pause) for _ in range(JOBS)])
        sleep_until(began + JOBS * world.look * 1.2 + SETTLE, time.monotonic)
        totals.append(grown(before, world.totals()))
    return of_jobs(*numbers) | of_totals(*totals)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """With a Redis of its own: another test's API would write to the same log of what it hears of these jobs."""
    home = tmp_path / "home"
    with RedisServer(tmp_path / "redis") as server, live(home, server.url, LINGERING, max_result_numbers=1) as api:
        desk = Desk(server.url, home, api.queue, SpoolStore(home / "store"))
        try:
            offered = "tests.workers.operations:LINGERING"
            desk.start_worker(WARPDESK_OPERATIONS=offered, WARPDESK_LOG_LEVEL="debug")
            made = World(api, home / "worker.log", tmp_path / "pause")
            with made.listening():
                with suppress(Late):
                    made.job(0.0)  # what is told from the first job on
                yield made
        finally:
            desk.close()


@pytest.mark.timeout(600)
def test_nothing_that_is_told_grows_with_the_time_of_a_sampler(world: World) -> None:
    """Chance makes differences of its own, which do not come again and again."""
    found = suspects(world)
    for _ in range(MOST):
        if found:
            found &= suspects(world)
    assert not found, "\n".join(sorted(found))


@pytest.mark.parametrize("unit", UNITS)
def test_a_time_that_is_told_in_any_unit_is_found(unit: float) -> None:
    quick = [{"same": 3.0, "time": (0.02 + 0.01 * job) * unit} for job in range(JOBS)]
    slow = [{"same": 3.0, "time": (0.02 + 0.01 * job + SLOW) * unit, "late": 1.0} for job in range(JOBS)]
    assert of_jobs(quick, slow) == {"time", "late (only of slow jobs)"}

    block = {"sum": JOBS * 0.02 * unit, "bucket": 4.0, "jobs": 4.0}
    assert of_totals(block, {"sum": JOBS * (0.02 + SLOW) * unit, "bucket": 0.0, "jobs": 4.0}) == {
        "sum",
        "bucket (a count)",
    }
