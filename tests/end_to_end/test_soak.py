"""A service under full load raises no false alarm, answers each job once and rightly, and does not grow.

Fifteen seconds among the tests; `make soak` runs it for ten minutes (`SOAK_SECONDS`) and prints what it saw. With
`SOAK_DEVICE=tests.cudasim.device:EmulatedDevice` it runs on the emulated GPU.
"""

import os
import shutil
import statistics
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import httpx
import numpy as np
import pytest

from examples import prices
from kernels.array import ArrayInfo, DType
from kernels.catalogue import OPERATIONS
from tests.conftest import Service, processes_of, serve
from warpdesk import Client

SECONDS = float(os.environ.get("SOAK_SECONDS", "15"))
DEVICE = os.environ.get("SOAK_DEVICE", "")
CLIENTS = 4
WORKERS = "2"
MIB = 1 << 20
# From its first quarter to its last a process may grow by so much: allocators settle, and buffers of results differ.
GROWTH, GROWTH_SHARE, MORE_FILES = 64 * MIB, 0.25, 8

pytestmark = pytest.mark.timeout(SECONDS + 600)


@dataclass
class Answers:
    """What the clients got: the bytes of each request's answers, and the number of jobs."""

    digests: dict[int, set[bytes]] = field(default_factory=lambda: defaultdict(set))
    jobs: list[str] = field(default_factory=list)
    attempts: set[int] = field(default_factory=set)
    errors: list[BaseException] = field(default_factory=list)


def requests() -> list[tuple[str, dict[str, Any], dict[str, np.ndarray]]]:
    """Every operation, some of them with several kinds of work: name, parameters, inputs."""
    close = prices.sp500().close
    returns = np.diff(np.log(close[:2001])).reshape(40, 50)
    option = {
        "payoff": "european",
        "option": "call",
        "spot": 100.0,
        "strike": 100.0,
        "volatility": 0.2,
        "maturity": 1.0,
    }
    two = {"x": close, "y": np.ascontiguousarray(close[::-1])}
    return [
        ("rsi", {"period": 14}, {"prices": close}),
        ("ema", {"period": 30}, {"prices": close[:5000]}),
        ("sma", {"period": 200}, {"prices": close}),
        ("bollinger", {"period": 20, "width": 2.0}, {"prices": close[:1000]}),
        ("matmul", {}, {"a": returns, "b": np.ascontiguousarray(returns.T)}),
        *(("monte_carlo", {**option, "steps": steps, "paths": 20_000}, {}) for steps in (1, 12)),
        *((name, {}, two) for name in ("add", "multiply", "dot")),
        ("axpy", {"alpha": -0.5}, two),
        *((name, {}, {"x": close}) for name in ("sum", "norm", "min", "max")),
        *(documented(name) for name in ("secure_aggregation", "dp_noise")),
    ]


def documented(name: str) -> tuple[str, dict[str, Any], dict[str, np.ndarray]]:
    example = OPERATIONS[name].example
    inputs = {key: np.asarray(given["data"], given["dtype"]) for key, given in example.inputs.items()}
    return name, dict(example.params), inputs


def work(url: str, number: int, until: float, answers: Answers) -> None:
    """One client: every request in turn, from a place of its own, inline and uploaded by turns."""
    kinds = requests()
    try:
        with Client(url, timeout=60) as client:
            turn = number
            while time.monotonic() < until:
                which = turn % len(kinds)
                operation, params, inputs = kinds[which]
                sent: dict[str, Any] = dict(inputs)
                if turn % 2:
                    # An uploaded secret is gone after its job, and clients with the same bytes share one array.
                    secret = {each.name for each in OPERATIONS[operation].inputs if each.secret}
                    sent |= {name: client.upload(array) for name, array in inputs.items() if name not in secret}
                seed = {"seed": which} if OPERATIONS[operation].randomness == "seed" else {}
                result = client.run(operation, timeout=120, **seed, **params, **sent)
                answers.digests[which].add(_bytes(operation, result.outputs))
                answers.jobs.append(result.job.id)
                answers.attempts.add(result.provenance.attempt)
                turn += 1
    except BaseException as error:  # noqa: BLE001 (shown by the test)
        answers.errors.append(error)


def _bytes(operation: str, outputs: Any) -> bytes:
    """Everything that must be the same each time; of noise from a secret key that is its shape and type."""
    if OPERATIONS[operation].randomness == "private":
        outputs = {
            name: (value.shape, value.dtype.name, bool(np.isfinite(value).all()))
            if isinstance(value, np.ndarray)
            else value
            for name, value in outputs.items()
        }
    return b"".join(
        name.encode() + (np.asarray(value).tobytes() if isinstance(value, np.ndarray) else repr(value).encode())
        for name, value in sorted(outputs.items())
    )


def computed_here(which: int) -> dict[str, Any]:
    """The CPU implementation's answer, without a service."""
    operation, params, inputs = requests()[which]
    described = OPERATIONS[operation]
    arrays = {name: ArrayInfo(cast(DType, array.dtype.name), array.shape) for name, array in inputs.items()}
    given: dict[str, Any] = {"seed": {"seed": which}, "private": {"key": bytes(32)}}.get(described.randomness, {})
    answer: dict[str, Any] = described.implementation("cpu")(described.validate(params, arrays), **inputs, **given)
    return answer


@dataclass(frozen=True)
class Size:
    resident: int  # bytes
    files: int


def sizes(home: Path) -> Iterator[tuple[str, Size]]:
    """Of every process of the service but Redis, whose memory is the jobs it keeps."""
    for pid, command in processes_of(home).items():
        if "redis" in command.split()[0]:
            continue
        try:
            resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        except OSError:
            continue
        role = next((word for word in ("child", "warmup", "warm", "api", "serve") if word in command), command[:40])
        yield f"{role} {pid}", Size(resident, files)


@pytest.fixture
def soaked() -> Iterator[Service]:
    home = Path(tempfile.mkdtemp(prefix="warpdesk-test-"))
    device = {"WARPDESK_DEVICE": DEVICE} if DEVICE else {}
    with serve(home, "--workers", WORKERS, **device) as running:
        yield running
    shutil.rmtree(home)


def test_every_operation_of_the_catalogue_is_soaked() -> None:
    assert {name for name, _, _ in requests()} == set(OPERATIONS)


def test_a_service_at_full_load_raises_no_alarm_answers_each_job_once_and_does_not_grow(soaked: Service) -> None:
    answers, alarms = Answers(), []
    grown: dict[str, list[Size]] = defaultdict(list)
    _until_all_are_ready(soaked)
    began = time.monotonic()
    until = began + SECONDS
    clients = [threading.Thread(target=work, args=(soaked.url, n, until, answers)) for n in range(CLIENTS)]
    for client in clients:
        client.start()
    with httpx.Client(base_url=soaked.url, timeout=30) as http:
        while any(client.is_alive() for client in clients):
            ready, gpu = http.get("/readyz"), http.get("/gpu-health")
            if (ready.status_code, ready.json()["status"]) != (200, "ok") or gpu.json()["status"] not in ("ok", "none"):
                alarms.append((round(time.monotonic() - began, 1), ready.text, gpu.json()["reasons"]))
            for name, size in sizes(soaked.home):
                grown[name].append(size)
            time.sleep(1.0)
        performance = http.get("/performance-metrics").json()["operations"]

    assert answers.errors == []
    assert alarms == []
    finished = {name: counts["jobs"] for name, counts in performance.items()}
    assert all(set(states) == {"succeeded"} for states in finished.values()), finished
    assert sum(states["succeeded"] for states in finished.values()) == len(answers.jobs) == len(set(answers.jobs))
    assert answers.attempts == {1}
    assert {which: len(digests) for which, digests in answers.digests.items()} == dict.fromkeys(answers.digests, 1)
    on_a_gpu = "gpu" in {backend for counts in performance.values() for backend in counts["backends"]}
    for which, (digest,) in answers.digests.items():
        if not (on_a_gpu and requests()[which][0] == "matmul"):  # where cuBLAS may have run, and said so
            operation = requests()[which][0]
            assert digest == _bytes(operation, computed_here(which)), requests()[which]
    growth = {name: _growth(taken) for name, taken in grown.items() if len(taken) >= 8}
    _print(answers, performance, grown, growth)
    for name, (before, after, files) in growth.items():
        assert after < before * (1 + GROWTH_SHARE) + GROWTH, (name, grown[name])
        assert files <= MORE_FILES, (name, grown[name])


def _until_all_are_ready(service: Service) -> None:
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        workers = httpx.get(f"{service.url}/gpu-health").json()["workers"]
        if [worker["state"] for worker in workers] == ["ready"] * int(WORKERS):
            return
        time.sleep(0.1)
    raise AssertionError("not all workers became ready")


def _growth(taken: list[Size]) -> tuple[int, int, int]:
    """Bytes in the second quarter and in the last, and how many more files were open."""
    quarter = len(taken) // 4
    before, after = taken[quarter : 2 * quarter], taken[-quarter:]
    more = statistics.median(size.files for size in after) - statistics.median(size.files for size in before)
    return (
        int(statistics.median(size.resident for size in before)),
        int(statistics.median(size.resident for size in after)),
        int(more),
    )


def _print(answers: Answers, performance: Any, grown: Any, growth: Any) -> None:
    backends = sum((Counter(counts["backends"]) for counts in performance.values()), Counter())
    slowest = {name: f"{counts['queue_seconds']['p95']:.3f}" for name, counts in performance.items()}
    print(  # noqa: T201
        f"soaked for {SECONDS:.0f} s: {len(answers.jobs)} jobs ({len(answers.jobs) / SECONDS:.1f}/s), answered once, "
        f"by {dict(backends)}, no alarm in {max(len(taken) for taken in grown.values())} looks; "
        f"p95 of waiting {slowest}; "
        + ", ".join(
            f"{name} {before // MIB} to {after // MIB} MiB, {files:+d} files"
            for name, (before, after, files) in growth.items()
        )
    )
