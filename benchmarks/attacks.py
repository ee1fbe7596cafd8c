"""Benchmark of attacks: how are one key's requests, and the API, served while another key attacks the service?

Each attack stopped an earlier state of the service, or other keys' requests. Meanwhile the honest key submits small
jobs and looks at them, one request after the other, and `/livez` is asked beside it. Each row has the idle p99 of the
seconds right before the attack, since the machine is not the same at all times. An attacker is a process of its own at
the lowest priority (nice 19), because it shares the cores with the service that it attacks: Redis, an API process and a
worker. The API's memory is the most that its process had; a CSV is read by another, with a limit of its own.
"""

import http.client
import json
import math
import multiprocessing
import os
import resource
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rq import Worker
from rq.suspension import resume, suspend

from warpdesk_server.app.access.keys import create_key
from warpdesk_server.benchmarks import attackers
from warpdesk_server.benchmarks.attackers import Target
from warpdesk_server.benchmarks.processes import memory, process_of_api, service
from warpdesk_server.benchmarks.report import Row, show
from warpdesk_server.service.redis_server import url as redis_url
from warpdesk_server.workers.queue.jobs import connect

MIB = 1 << 20
SECONDS = float(os.environ.get("ATTACKS_SECONDS", "8"))
NICE = 19  # of attackers
IDLE = 5.0  # seconds before each attack
PAUSE = 0.02  # seconds between two requests of the honest key, and between two looks at /livez
CALM = 50  # requests in a row that are answered in time: then it is itself again
PATIENCE = 120.0

# Goals.
MORE = 0.200  # seconds beyond the idle p99 that the p99 may be
ALIVE = 0.200  # seconds for /livez
MEMORY = 512 * MIB
AGAIN = 10.0  # seconds from the end of the attack

STORED = str(1500 * MIB)  # the most that a key may store
FILES = 1024  # what systemd lets a service open

TAKEN = ("200", "202")
TOO_SLOW, SHARE, QUOTA, INVALID = "408 too-slow", "429 share-used-up", "429 storage-quota", "422 invalid-request"


@dataclass(frozen=True)
class Attack:
    """`long` and `short` are what `run` is given beside the target; None where other tests have its short form.
    `answers` are all that it may be answered with, of which the first has to be among them."""

    what: str
    run: Callable[..., "Counter[str]"]
    long: tuple[Any, ...]
    short: tuple[Any, ...] | None
    answers: tuple[str, ...]
    suspended: bool = False  # workers take no jobs meanwhile


def _half_sent(count: int, media_type: str, size: int, sent: int, answers: tuple[str, ...]) -> Attack:
    what = f"{count} half-sent {media_type} of {size / MIB:.3g} MiB"
    kind = count, media_type, size
    return Attack(what, attackers.half_sent, (30.0, *kind, sent), (30.0, *kind, min(sent, MIB // 4)), answers)


ATTACKS = (
    Attack(
        "a CSV of one row, 16 MB", attackers.wide_csv,
        (SECONDS, 16_000_000), (0, 1_000_000), ("422 malformed-csv",),
    ),
    Attack(
        "large results by requests of 200 bytes", attackers.large_results,
        (SECONDS, 8000), (0, 1000), (QUOTA, "202"),
    ),
    Attack(
        "a committed result, sent again and deleted", attackers.forged_results,
        (100,), (1,), ("the same result", "200 stale-attempt", "409 result-committed"),
    ),
    Attack("Lua without an end", attackers.endless_script, (), None, ("ended by the service",)),
    Attack(
        "rounds that take all room", attackers.rooms_of_rounds,
        (SECONDS, 60_000_000), (0, 60_000_000), (QUOTA, "201", INVALID, "another key: 201"),
    ),
    *(
        Attack(
            f"JSON: {count:,} {kind}", attackers.costly_json, (SECONDS, kind, count), (0, kind, count), (INVALID,)
        )
        for kind, count in (
            ("unknown inputs", 170_000),
            ("unknown keys", 330_000),
            ("empty lists", 1_300_000),
            ("nested lists", 2_000_000),
        )
    ),
    _half_sent(60, "text/csv", 31 * MIB // 2, 31 * MIB // 4, (TOO_SLOW, SHARE)),
    _half_sent(100, "application/json", 4 * MIB, 2 * MIB, (TOO_SLOW, SHARE)),
    _half_sent(100, "application/x-npy", 2_306_944, 1_153_472, (TOO_SLOW, QUOTA)),
    Attack(
        "4,000 waits for one job", attackers.waits,
        (SECONDS, 4000), (3.0, 200), (SHARE, "none"), suspended=True,
    ),
    Attack(
        "3,000 streams of one job", attackers.streams,
        (SECONDS, 3000), (3.0, 200), (SHARE, "200"), suspended=True,
    ),
    Attack(
        "8,000 jobs at once", attackers.live_jobs,
        (8000,), (150,), ("429 quota-reached", "429 rate-limited", "202", "503 busy"), suspended=True,
    ),
    Attack(
        "10,000 connections without a request, 1,000 half-sent bodies", attackers.half_open,
        (SECONDS, 10_000, 1000), (1.0, 200, 200),
        (SHARE, "none", "closed", TOO_SLOW, QUOTA, "503 busy"),
    ),
)  # fmt: skip

# On a service without keys, which may open 1,024 files.
OF_AN_OPEN_SERVICE = (
    Attack(
        "1,100 connections without a byte, 1,024 files", attackers.idle, (SECONDS, 1100), None, ("closed", "none")
    ),
    Attack("what came through a proxy, without keys", attackers.forwarded, (SECONDS,), None, ("403 foreign-host",)),
)  # fmt: skip


def main() -> int:
    rows = []
    for attacks, keyed, files in ((ATTACKS, True, None), (OF_AN_OPEN_SERVICE, False, FILES)):
        with tempfile.TemporaryDirectory(prefix="warpdesk-bench-") as folder, attacker(NICE) as start:
            home = Path(folder)
            keys = make_keys(home) if keyed else {}
            with service("", home=home, files=files, WARPDESK_MAX_STORED_BYTES_PER_KEY=STORED) as url:
                for attack in attacks:
                    rows.append(measure(Target(url, home, **keys), attack, attack.long, start))
                    print(json.dumps(rows[-1]), flush=True)  # it takes some minutes
    show("attacks", rows)
    return int(any(row["missed"] for row in rows))


def make_keys(home: Path) -> dict[str, str]:
    """Create API keys; returns their tokens by purpose."""
    scopes = {"attacker": ["submit", "read", "cancel"], "honest": ["submit", "read", "cancel"], "worker": ["worker"]}
    return {name: create_key(home, name, of_name) for name, of_name in scopes.items()}


Start = Callable[..., "Future[Counter[str]]"]


@contextmanager
def attacker(nice: int = 0) -> Iterator[Start]:
    """The separate process in which attacks run, at niceness `nice`."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn, _prepare, (nice,)) as pool:
        pool.submit(os.getpid).result(PATIENCE)  # it is there, with all that it needs
        yield pool.submit


def _prepare(nice: int) -> None:
    os.nice(nice)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def measure(
    target: Target, attack: Attack, sizes: Sequence[Any], start: Start, idle: float = IDLE, calm: int = CALM
) -> Row:
    """Run one attack, and measure the honest key's requests before, during and after it."""
    api = process_of_api(target.home)
    with _Honest(target, calm) as honest:
        honest.work(lambda: time.monotonic() > honest.began + idle and len(honest.looks) >= calm)
        usual = _p99(honest.looks)
        Path(f"/proc/{api}/clear_refs").write_text("5")  # proc(5): VmHWM begins anew
        with _suspended(target) if attack.suspended else nullcontext():
            began = time.monotonic()
            attacking = start(attack.run, target, *sizes)
            honest.work(attacking.done)
            ended = time.monotonic()
        answers = attacking.result()
        before = len(honest.looks)
        honest.work(lambda: honest.calm(before, usual + MORE) or time.monotonic() > ended + PATIENCE)
        peak = memory(process_of_api(target.home), "VmHWM")
        wrong = honest.wrong()
    meanwhile, alive = (
        [look for look in all_seen if began <= look.at <= ended] for all_seen in (honest.looks, honest.alive)
    )
    again = honest.itself_again(ended, usual + MORE)
    refused = Counter(look.status for look in meanwhile if look.status not in TAKEN)
    row: dict[str, Any] = {
        "attack": attack.what,
        "answers": ", ".join(f"{count} x {answer}" for answer, count in answers.most_common()),
        "seconds": ended - began,
        "requests": len(meanwhile),
        "idle p99 ms": 1e3 * usual,
        "p99 ms": 1e3 * _p99(meanwhile),
        "livez ms": 1e3 * max(look.seconds for look in alive),
        "API MiB": peak / MIB,
        "again after s": again,
        "refused": ", ".join(f"{count} x {answer}" for answer, count in refused.items()),
        "jobs": len(honest.jobs),
        "wrong": wrong,
    }
    goals = {
        "answers": answers[attack.answers[0]] > 0 and set(answers) <= {*attack.answers},
        "p99": row["p99 ms"] <= row["idle p99 ms"] + 1e3 * MORE,
        "livez": row["livez ms"] <= 1e3 * ALIVE,
        "memory": peak < MEMORY,
        "again": again <= AGAIN,
        "refused": not refused,
        "right": not row["wrong"],
        "lives": process_of_api(target.home) == api,
    }
    return {**row, "missed": ", ".join(name for name, met in goals.items() if not met)}


@contextmanager
def _suspended(target: Target) -> Iterator[None]:
    """Suspend the workers, as `rq suspend` does, so that jobs stay live as long as an attack needs them."""
    with connect(redis_url(target.home)) as connection:
        suspend(connection)
        deadline = time.monotonic() + PATIENCE
        while any(worker.get_state() != "suspended" for worker in Worker.all(connection)):
            assert time.monotonic() < deadline, "a worker goes on"
            time.sleep(0.05)
        try:
            yield
        finally:
            resume(connection)


@dataclass(frozen=True)
class _Look:
    at: float  # when it was asked
    seconds: float
    status: str  # and, of an error, its code


class _Honest:
    """The honest key's client: submits a job and fetches it, in a loop, each request after the last response, while
    another thread asks whether the API lives."""

    def __init__(self, target: Target, calm: int) -> None:
        self.began = time.monotonic()
        self._calm = calm
        self.looks: list[_Look] = []
        self.alive: list[_Look] = []
        self.jobs: dict[str, float] = {}  # acknowledged, with the right answer of each
        self._caller, self._onlooker = _Caller(target), _Caller(target)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> "_Honest":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        for caller in (self._caller, self._onlooker):
            caller.close()

    def work(self, enough: Callable[[], bool]) -> None:
        while not enough():
            number = float(len(self.looks))
            body = {"operation": "sum", "inputs": {"x": {"data": [number, 0.25, 0.5]}}}
            look, job = self._caller.ask("POST", "/v1/jobs", body)
            self.looks.append(look)
            if look.status == "202":
                self.jobs[job["id"]] = number + 0.75
                time.sleep(PAUSE)
                self.looks.append(self._caller.ask("GET", f"/v1/jobs/{job['id']}")[0])
            time.sleep(PAUSE)

    def _look(self) -> None:
        while not self._over.is_set():
            self.alive.append(self._onlooker.ask("GET", "/livez")[0])
            time.sleep(PAUSE)

    def calm(self, before: int, bound: float) -> bool:
        """Whether the honest key's last requests, after the first `before` ones, were answered in time."""
        last = self.looks[max(before, len(self.looks) - self._calm) :]
        return len(last) == self._calm and all(look.seconds <= bound and look.status in TAKEN for look in last)

    def itself_again(self, ended: float, bound: float) -> float:
        """Seconds from the end of an attack until the last late or refused answer; infinite while there are such."""
        after = [look for look in self.looks if look.at + look.seconds > ended]
        late = [look for look in after if look.seconds > bound or look.status not in TAKEN]
        if late and late[-1] in after[-self._calm :]:
            return math.inf
        return late[-1].at + late[-1].seconds - ended if late else 0.0

    def wrong(self) -> int:
        """The number of the honest key's jobs with a wrong result."""
        deadline = time.monotonic() + PATIENCE
        wrong = 0
        for job, right in self.jobs.items():
            look, answer = self._caller.ask("GET", f"/v1/jobs/{job}/result")
            while look.status == "202" and time.monotonic() < deadline:
                time.sleep(PAUSE)
                look, answer = self._caller.ask("GET", f"/v1/jobs/{job}/result")
            wrong += look.status != "200" or answer["outputs"] != {"sum": [right]}
        return wrong


class _Caller:
    """An HTTP client with one connection, which it reopens if it was closed."""

    def __init__(self, target: Target) -> None:
        self._headers = {"Authorization": f"Bearer {target.honest}"} if target.honest else {}
        self._connection = http.client.HTTPConnection(urlsplit(target.url).netloc, timeout=PATIENCE)

    def close(self) -> None:
        self._connection.close()

    def ask(self, method: str, path: str, body: object = None) -> tuple[_Look, Any]:
        content = None if body is None else json.dumps(body).encode()
        headers = self._headers if body is None else {**self._headers, "Content-Type": "application/json"}
        at = time.monotonic()
        for last in (False, True):
            try:
                self._connection.request(method, path, content, headers)
                answer = self._connection.getresponse()
                document = json.loads(answer.read())
            except (OSError, http.client.HTTPException) as error:
                self._connection.close()
                if last:
                    return _Look(at, time.monotonic() - at, type(error).__name__), None
            else:
                break
        status = f"{answer.status} {document['code']}" if answer.status >= 400 else str(answer.status)
        return _Look(at, time.monotonic() - at, status), document


def _p99(looks: Sequence[_Look]) -> float:
    return sorted(one.seconds for one in looks)[math.ceil(0.99 * len(looks)) - 1]


if __name__ == "__main__":
    raise SystemExit(main())
