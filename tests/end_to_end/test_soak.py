"""A service under full load raises no false alarm, answers each job once and rightly, and does not grow.

Full load: every operation, inline and uploaded, from as many clients as keep all workers busy, while results expire and
are swept. Fifteen seconds among the tests. `make soak` runs it for ten minutes (`SOAK_SECONDS`); from a minute on there
are large arrays among them, up to such as a GPU takes in parts through both its lanes. It prints what it saw, and
`SOAK_SAVE=1` keeps that in benchmarks/results/soak.json.

With `SOAK_DEVICE=tests.cudasim.device:EmulatedDevice` it runs on the emulated GPU, without the large arrays.
"""

import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import httpx
import numpy as np
import pytest

from examples import prices
from tests.conftest import Service, processes_of, serve
from tests.waiting import wait_until
from warpdesk import Client
from warpdesk.models import DType
from warpdesk_server.benchmarks import report
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.catalogue import OPERATIONS
from warpdesk_server.kernels.indicators.declared import DECLARED

SECONDS = float(os.environ.get("SOAK_SECONDS", "15"))
DEVICE = os.environ.get("SOAK_DEVICE", "")
SAVE = bool(os.environ.get("SOAK_SAVE"))
LARGE = SECONDS >= 60 and not DEVICE
CLIENTS = 4
WORKERS = 2
LOOK_SECONDS, MEASURE_SECONDS = 0.1, 1.0
RESULT_SECONDS = 60  # so that a long run sees results swept, and its disk holds the others
MIB = 1 << 20
# From its second quarter to its last a process may grow by so much, in bytes of its own: allocators settle, and buffers
# of results differ.
GROWTH, GROWTH_SHARE, MORE_FILES = 32 * MIB, 0.1, 8

pytestmark = pytest.mark.timeout(SECONDS + 600)

Arrays = dict[str, np.ndarray]
Request = tuple[str, dict[str, Any], Arrays]  # an operation's name, its parameters and its inputs


@cache
def requests() -> tuple[Request, ...]:
    """Every operation, some of them with several kinds of work."""
    close = prices.sp500().close
    returns = np.diff(np.log(close[:2001])).reshape(40, 50)
    two = {"x": close, "y": np.ascontiguousarray(close[::-1])}
    small: tuple[Request, ...] = (
        ("rsi", {"period": 14}, {"prices": close}),
        ("ema", {"period": 30}, {"prices": close[:5000]}),
        ("sma", {"period": 200}, {"prices": close}),
        ("bollinger", {"period": 20, "width": 2.0}, {"prices": close[:1000]}),
        ("macd", {}, {"close": close[:2000]}),
        documented("expression"),
        documented("bars"),
        *(documented(name) for name in ("cross_rank", "cross_zscore", "winsorise", "neutralise")),
        *(documented(name) for name in ("covariance", "risk_parity")),
        *(documented(name) for name in ("black_scholes", "implied_volatility", "basket_option")),
        *(documented(name) for name in ("black_scholes", "implied_volatility", "american_option")),
        *(documented(name) for name in ("tridiagonal_solve", "tridiagonal_inverse_diagonal")),
        *(documented(name) for name in ("covariance", "risk_parity", "frontier", "hrp")),
        *(documented(name) for name in ("value_at_risk", "var_backtest", "performance")),
        *(documented(name) for name in ("backtest_sweep", "backtest", "overfitting")),
        ("matmul", {}, {"a": returns, "b": np.ascontiguousarray(returns.T)}),
        option(steps=1, paths=20_000),
        option(steps=12, paths=20_000),
        *((name, {}, two) for name in ("add", "multiply", "dot")),
        ("axpy", {"alpha": -0.5}, two),
        *((name, {}, {"x": close}) for name in ("sum", "norm", "min", "max")),
        *(
            documented(name)
            for name in ("secure_aggregation", "dp_noise", "federated_average", "shamir_share", "shamir_reconstruct")
        ),
    )
    return (*small, *large()) if LARGE else small


def large() -> tuple[Request, ...]:
    """What clients with much to compute send. The last two, of 256 and 128 MiB, are worth two lanes to a GPU."""
    random = np.random.default_rng(7)
    assets = 100 * np.exp(np.cumsum(random.normal(0, 0.01, (400, 2500)), axis=1))
    single = assets.astype(np.float32)
    matrix = random.normal(size=(600, 600)).astype(np.float32)
    whole = random.normal(size=1 << 25)
    return (
        ("rsi", {"period": 14}, {"prices": assets}),
        ("ema", {"period": 50}, {"prices": single}),
        ("sma", {"period": 20}, {"prices": assets.reshape(-1)}),
        ("bollinger", {"period": 20, "width": 2.0}, {"prices": single}),
        ("matmul", {}, {"a": matrix, "b": matrix}),
        option(steps=252, paths=100_000),
        ("add", {}, {"x": assets, "y": assets}),
        ("sum", {}, {"x": whole}),
        ("norm", {"axis": "last"}, {"x": whole[: 1 << 24].reshape(4096, -1)}),
    )


def option(steps: int, paths: int) -> Request:
    params = {
        "payoff": "european",
        "option": "call",
        "spot": 100.0,
        "strike": 100.0,
        "volatility": 0.2,
        "maturity": 1.0,
    }
    return "monte_carlo", {**params, "steps": steps, "paths": paths}, {}


def documented(name: str) -> Request:
    example = OPERATIONS[name].example
    inputs = {key: np.asarray(given["data"], given["dtype"]) for key, given in example.inputs.items()}
    return name, dict(example.params), inputs


@dataclass
class Answers:
    """What the clients got: digests of each request's answers, and the jobs."""

    digests: dict[int, set[bytes]] = field(default_factory=lambda: defaultdict(set))
    jobs: list[str] = field(default_factory=list)
    attempts: Counter[int] = field(default_factory=Counter)
    backends: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)
    uploads: dict[int, Any] = field(default_factory=dict)  # of large arrays, sent once
    uploading: threading.Lock = field(default_factory=threading.Lock)


def work(url: str, number: int, until: float, answers: Answers) -> None:
    """One client: every request in turn, from a place of its own, inline and uploaded by turns."""
    kinds = requests()
    turn = number * len(kinds) // CLIENTS
    try:
        with Client(url, timeout=60) as client:
            while time.monotonic() < until:
                again, which = divmod(turn, len(kinds))
                operation, params, inputs = kinds[which]
                described = OPERATIONS[operation]
                # An uploaded secret is gone after its job, and clients with the same bytes share one array.
                secret = {each.name for each in described.inputs if each.secret}
                sent: dict[str, Any] = {
                    name: _uploaded(client, array, answers)
                    if array.nbytes > MIB or ((turn + again) % 2 and name not in secret)
                    else array
                    for name, array in inputs.items()
                }
                seed = {"seed": which} if described.randomness == "seed" else {}
                result = client.run(operation, timeout=120, **seed, **params, **sent)
                answers.digests[which].add(_digest(operation, result.outputs))
                answers.jobs.append(result.job.id)
                answers.attempts[result.provenance.attempt] += 1
                answers.backends[result.provenance.backend] += 1
                turn += 1
    except BaseException as error:  # noqa: BLE001 (told by the verdict)
        answers.errors.append(f"{type(error).__name__}: {error}")


def _uploaded(client: Client, array: np.ndarray, answers: Answers) -> Any:
    if array.nbytes <= MIB:
        return client.upload(array)
    with answers.uploading:
        if id(array) not in answers.uploads:
            answers.uploads[id(array)] = client.upload(array)
        return answers.uploads[id(array)]


def _digest(operation: str, outputs: Mapping[str, Any]) -> bytes:
    """Of everything that must be the same each time; of noise from a secret key that is its shape and type."""
    if OPERATIONS[operation].randomness == "private":
        outputs = {
            name: (value.shape, value.dtype.name, bool(np.isfinite(value).all()))
            if isinstance(value, np.ndarray)
            else value
            for name, value in outputs.items()
        }
    digest = sha256()
    for name, value in sorted(outputs.items()):
        digest.update(name.encode())
        digest.update(np.asarray(value).tobytes() if isinstance(value, np.ndarray) else repr(value).encode())
    return digest.digest()


def computed_here(which: int) -> dict[str, Any]:
    """The CPU implementation's answer, without a service."""
    operation, params, inputs = requests()[which]
    described = OPERATIONS[operation]
    arrays = {name: ArrayInfo(cast(DType, array.dtype.name), array.shape) for name, array in inputs.items()}
    given: dict[str, Any] = {"seed": {"seed": which}, "private": {"key": bytes(32)}}.get(described.randomness, {})
    answer: dict[str, Any] = described.implementation("cpu")(described.validate(params, arrays), **inputs, **given)
    return answer


class Health(threading.Thread):
    """Asks /readyz and /gpu-health all the time; an alarm is every answer that is not well, late or missing."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.looks = 0
        self.slowest = 0.0
        self.alarms: list[str] = []
        self._url = url
        self._ended = threading.Event()

    def run(self) -> None:
        began = time.monotonic()
        with httpx.Client(base_url=self._url, timeout=30) as http:
            while not self._ended.wait(LOOK_SECONDS):
                for path, well in (("/readyz", ("ok",)), ("/gpu-health", ("ok", "none"))):
                    started = time.monotonic()
                    try:
                        answer = http.get(path)
                        complaint = "" if answer.status_code == 200 and answer.json()["status"] in well else answer.text
                    except httpx.HTTPError as error:
                        complaint = f"{type(error).__name__}: {error}"
                    self.slowest = max(self.slowest, time.monotonic() - started)
                    if complaint:
                        self.alarms.append(f"{started - began:.1f} s: {path} said {complaint[:300]}")
                self.looks += 1

    def end(self) -> None:
        self._ended.set()
        self.join()


@dataclass(frozen=True)
class Size:
    own: int  # bytes of memory that no other process shares and no file backs
    files: int


def sizes(home: Path) -> Iterator[tuple[str, Size]]:
    """Of every process that serves, but Redis, whose memory is the jobs it keeps, and compilers, which end."""
    for pid, command in processes_of(home).items():
        if "redis" in command.split()[0] or "warpdesk_server.workers.child.warmup" in command:
            continue
        try:
            _, resident, shared, *_ = map(int, Path(f"/proc/{pid}/statm").read_text().split())
            files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        except OSError:
            continue
        role = next((word for word in ("child", "warm", "api", "serve") if word in command), command[:40])
        yield f"{role} {pid}", Size((resident - shared) * os.sysconf("SC_PAGE_SIZE"), files)


def idle_seconds() -> float:
    """What this machine's processors did not use, or waited for a disk, since it was started."""
    _, _, _, _, idle, waiting, *_ = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    return (int(idle) + int(waiting)) / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Growth:
    """From the second quarter of a run to its last: bytes, and how many more files are open."""

    before: int
    after: int
    files: int

    @classmethod
    def of(cls, taken: list[Size]) -> "Growth":
        quarter = len(taken) // 4
        before, after = taken[quarter : 2 * quarter], taken[-quarter:]
        more = statistics.median(size.files for size in after) - statistics.median(size.files for size in before)
        return cls(
            int(statistics.median(size.own for size in before)),
            int(statistics.median(size.own for size in after)),
            int(more),
        )

    @property
    def too_much(self) -> bool:
        return self.after > self.before * (1 + GROWTH_SHARE) + GROWTH or self.files > MORE_FILES

    def __str__(self) -> str:
        return f"{self.before / MIB:.1f} to {self.after / MIB:.1f} MiB, {self.files:+d} files"


@pytest.fixture
def soaked() -> Iterator[Service]:
    home = Path(tempfile.mkdtemp(prefix="warpdesk-test-"))
    device = {"WARPDESK_DEVICE": DEVICE} if DEVICE else {}
    with serve(home, "--workers", str(WORKERS), WARPDESK_RESULT_TTL=str(RESULT_SECONDS), **device) as running:
        yield running
    shutil.rmtree(home)


def test_every_operation_of_the_catalogue_is_soaked() -> None:
    declared = {operation.name for operation in DECLARED if operation.counted_as} - {"macd"}  # they share one loop
    assert {name for name, _, _ in requests()} == set(OPERATIONS) - declared


def test_a_service_at_full_load_raises_no_alarm_answers_each_job_once_and_does_not_grow(soaked: Service) -> None:
    answers, health = Answers(), Health(soaked.url)
    taken: dict[str, list[Size]] = defaultdict(list)
    _until_all_are_ready(soaked)
    until = time.monotonic() + SECONDS
    idle = idle_seconds()
    clients = [threading.Thread(target=work, args=(soaked.url, n, until, answers)) for n in range(CLIENTS)]
    for thread in (health, *clients):
        thread.start()
    while any(client.is_alive() for client in clients):
        for name, size in sizes(soaked.home):
            taken[name].append(size)
        time.sleep(MEASURE_SECONDS)
    health.end()
    busy = 1 - (idle_seconds() - idle) / (os.cpu_count() or 1) / (time.monotonic() - until + SECONDS)
    kept = len(list((soaked.home / "store" / "results").iterdir()))
    document = httpx.get(f"{soaked.url}/gpu-health", timeout=30).json()
    performance = httpx.get(f"{soaked.url}/performance-metrics", timeout=30).json()

    growth = {name: Growth.of(each) for name, each in taken.items() if len(each) >= 8}
    complaints = [*_lost(answers, performance), *_wrong(answers), *_alarms(health, document)]
    complaints += [f"{name} grew: {grown}" for name, grown in growth.items() if grown.too_much]
    _print(answers, health, performance, growth, complaints, busy, kept)
    assert complaints == []


def _until_all_are_ready(service: Service) -> None:
    def all_are_ready() -> bool:
        workers = httpx.get(f"{service.url}/gpu-health").json()["workers"]
        return [(worker["state"], worker["warm_up"]) for worker in workers] == [("ready", None)] * WORKERS

    wait_until(all_are_ready, "not all workers became ready", 300)


def _lost(answers: Answers, performance: Any) -> Iterator[str]:
    """Jobs that failed, were not answered, or were answered twice."""
    yield from answers.errors
    ended = sum((Counter(counts["jobs"]) for counts in performance["operations"].values()), Counter[str]())
    once = len(set(answers.jobs))
    queued = sum(queue["waiting"] for queue in performance["queues"].values())
    if ended != Counter(succeeded=once) or len(answers.jobs) != once or queued:
        yield f"{once} jobs were answered in {len(answers.jobs)} answers, {dict(ended)} ended and {queued} wait"
    if set(answers.attempts) - {1}:
        yield f"of some jobs there were several attempts: {dict(answers.attempts)}"


def _wrong(answers: Answers) -> Iterator[str]:
    """Answers that are not always the same, or not the CPU implementation's, or never came."""
    if LARGE and len(answers.digests) < len(requests()):
        yield f"of {len(requests())} kinds of request {len(answers.digests)} were answered"
    for which, digests in answers.digests.items():
        operation = requests()[which][0]
        if len(digests) > 1:
            yield f"{operation} (request {which}) had {len(digests)} different answers"
        elif answers.backends["gpu"] and operation == "matmul":
            continue  # cuBLAS may have run, and said so
        elif digests != {_digest(operation, computed_here(which))}:
            yield f"{operation} (request {which}) was not answered as the CPU implementation does"


def _alarms(health: Health, document: Any) -> Iterator[str]:
    """What health said, and what workers counted meanwhile: a trouble may have been over between two looks."""
    yield from health.alarms[:10]
    for worker in document["workers"]:
        faults = (worker["gpu"] or {}).get("faults")
        if worker["restarts"] or worker["last_fault"] or worker["failed_examples"] or faults:
            yield (
                f"{worker['name']} was restarted {worker['restarts']} times, lately for {worker['last_fault']}, "
                f"counted {faults or 'no'} faults of its device and failed {worker['failed_examples']}"
            )


def _print(
    answers: Answers,
    health: Health,
    performance: Any,
    growth: dict[str, Growth],
    complaints: list[str],
    busy: float,
    kept: int,
) -> None:
    waits = {name: queue["wait_seconds"] for name, queue in performance["queues"].items()}
    facts: dict[str, Any] = {
        "seconds": SECONDS,
        "clients": CLIENTS,
        "jobs answered once": len(answers.jobs),
        "jobs per second": round(len(answers.jobs) / SECONDS, 1),
        "kinds of request": len(answers.digests),
        "processors busy, %": round(100 * busy),
        "results still kept": kept,
        "by": dict(answers.backends),
        "p95 of waiting, seconds": {name: round(wait["p95"], 3) for name, wait in waits.items() if wait},
        "looks at health": health.looks,
        "alarms": len(health.alarms),
        "slowest answer of health, ms": round(1e3 * health.slowest, 1),
        **{f"memory of {name}": str(grown) for name, grown in growth.items()},
        "complaints": complaints,
        "verdict": "failed" if complaints else "passed",
    }
    sys.stdout.write("\n" + "".join(f"{name}: {value}\n" for name, value in facts.items()))
    if SAVE:
        report.save("soak", [{"fact": name, "value": value} for name, value in facts.items()])
