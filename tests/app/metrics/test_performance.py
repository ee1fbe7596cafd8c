"""`/performance-metrics`: recent times of jobs, counted by the scripts that ended them, and their trend."""

import itertools
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from redis import Redis

from tests.app.conftest import Live
from tests.app.health.test_health import redis_pid
from tests.claims import computed, take
from warpdesk_server.app.metrics.performance import ENOUGH, HOUR
from warpdesk_server.service.redis_server import RedisServer
from warpdesk_server.workers.queue.jobs import JobQueue, connect
from warpdesk_server.workers.queue.protocol import Failed, JobRequest, Provenance, Succeeded
from warpdesk_server.workers.queue.records import Ending

SMALL, LARGE = 1e3, 1e9  # elementary steps

_numbers = itertools.count()


def end(
    queue: JobQueue,
    seconds: Sequence[float | None],
    operation: str = "scale",
    work: float = SMALL,
    backend: Any = "cpu",
    bytes: int = 0,  # noqa: A002 - as the outcome names it
    kept_off: str = "",
    private: bool = False,
    together: int = 1,
    **details: Any,
) -> None:
    """Run jobs that took these times through the queue, and commit so many `together`."""
    endings = []
    for taken in seconds:
        job_id = f"job_{next(_numbers):032x}"
        queue.enqueue(
            JobRequest(
                id=job_id, owner="local", operation=operation, params={}, inputs={}, timeout=10, result_ttl=60,
                work=work, private=private,
            )
        )  # fmt: skip
        job = take(queue, job_id)
        how = Provenance(
            backend=backend, attempt=job.attempt, compute_seconds=taken, batch_size=together,
            **{"device": "a test", **details},
        )  # fmt: skip
        outcome = Succeeded(result=f"{job_id}.1", provenance=how, bytes=bytes)
        endings.append(Ending(job, outcome, kept_off=kept_off))
        if len(endings) == together:
            computed(queue, endings)
            endings = []
    assert not endings


def age(redis_url: str, hours: int) -> None:
    """Move the counts of this hour back by so many hours."""
    with Redis.from_url(redis_url) as redis:
        key = f"warpdesk:counts:{int(redis.time()[0]) // HOUR}"
        redis.rename(key, f"warpdesk:counts:{int(key.rpartition(':')[2]) - hours}")


def ask(api: Live, **query: Any) -> Any:
    answer = api.http.get("/performance-metrics", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def backend_of(report: Any, operation: str = "scale", backend: str = "cpu") -> Any:
    return report["operations"][operation]["backends"][backend]


@pytest.fixture
def alone(serve_api: Callable[..., Any]) -> Any:
    """An API of its own: the shared one may still have an earlier test's hours of the same second, and may still
    send the counts of an earlier test's requests."""
    with serve_api() as api:
        yield api


@pytest.fixture(autouse=True)
def no_new_hour() -> None:
    """Wait for the next hour if this one ends in 20 seconds, because a test's counts must be in one hour."""
    left = HOUR - time.time() % HOUR
    if left < 20:
        time.sleep(left + 0.1)


def test_quantiles_are_those_of_numpy_within_the_stated_error(api: Live) -> None:
    took = np.random.default_rng(8).lognormal(-4, 2, 300)
    end(api.queue, took.tolist())

    report = ask(api)

    runs, error = backend_of(report)["run_seconds"], report["quantile_error"]
    assert 0 < error < 0.061
    assert runs["count"] == 300
    assert runs["mean"] == pytest.approx(took.mean())
    for name, share in (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99)):
        assert runs[name] == pytest.approx(np.quantile(took, share, method="inverted_cdf"), rel=error)


def test_waits_and_whole_times_are_those_of_the_records(api: Live) -> None:
    end(api.queue, [0.5] * 40)

    report = ask(api)

    records = api.queue.jobs("local", 100)[0]
    batch = report["queues"]["batch"]
    for name, times in (
        ("wait_seconds", [(job.started_at or 0) - job.submitted_at for job in records]),
        ("seconds", [(job.ended_at or 0) - job.submitted_at for job in records]),
    ):
        assert batch[name]["count"] == 40
        assert batch[name]["mean"] == pytest.approx(np.mean(times), abs=1e-5)
        median = np.quantile(times, 0.5, method="inverted_cdf")
        assert batch[name]["p50"] == pytest.approx(median, rel=report["quantile_error"], abs=1e-5)
    assert (batch["jobs"], batch["waiting"]) == ({"succeeded": 40}, 0)
    assert report["queues"]["realtime"] == {
        "waiting": 0, "jobs": {}, "jobs_per_second": 0.0, "wait_seconds": None, "seconds": None,
    }  # fmt: skip


def test_a_backend_is_told_by_what_it_moved_used_and_cost(api: Live) -> None:
    end(api.queue, [0.5] * 4, backend="gpu", bytes=3_000_000, kernel_seconds=0.001, energy_joules=0.25, work=2e6,
        cost_dollars=1e-6)  # fmt: skip
    end(api.queue, [0.004] * 6, kept_off="out-of-memory", bytes=1000)

    report = ask(api)

    scale = report["operations"]["scale"]
    gpu, cpu = backend_of(report, backend="gpu"), backend_of(report)
    assert (scale["jobs"], scale["gpu_share"], scale["fallbacks"]) == ({"succeeded": 10}, 0.4, {"out-of-memory": 6})
    assert (gpu["computed"], cpu["computed"]) == (4, 6)
    assert gpu["bytes_per_second"] == pytest.approx(3e9)  # relative to the kernel's own time
    assert gpu["work_per_second"] == pytest.approx(2e9)
    assert cpu["bytes_per_second"] == pytest.approx(250_000)
    assert gpu["joules_per_thousand_jobs"] == pytest.approx(250)
    assert gpu["dollars_per_thousand_jobs"] == pytest.approx(0.001)
    assert (cpu["joules_per_thousand_jobs"], cpu["dollars_per_thousand_jobs"]) == (None, None)
    assert list(gpu["launches"]) == ["medium"]
    assert gpu["launches"]["medium"]["seconds"]["mean"] == pytest.approx(0.001)


def test_rates_are_of_the_time_since_counting_began(alone: Live) -> None:
    end(alone.queue, [0.001] * 8)
    with connect(alone.redis_url) as redis:
        redis.hincrby("warpdesk:counts", "since", -100)

    scale = ask(alone)["operations"]["scale"]

    hour_began = time.time() % HOUR + HOUR
    assert scale["jobs_per_second"] == pytest.approx(8 / min(100, hour_began), rel=0.1)
    assert scale["backends"]["cpu"]["computed_per_second"] == scale["jobs_per_second"]


def test_each_device_is_told_by_itself(alone: Live) -> None:
    xeon = "A Xeon(R) | 2 cores @ 3 GHz"
    one: dict[str, Any] = {"backend": "gpu", "device": "NVIDIA A100", "device_uuid": "GPU-1", "kernel_seconds": 0.001}
    two = one | {"device_uuid": "GPU-2", "kernel_seconds": 0.004}
    end(alone.queue, [0.01] * 6, bytes=3_000_000, energy_joules=0.25, **one)
    end(alone.queue, [0.01] * 2, bytes=3_000_000, **two)
    end(alone.queue, [0.5], device=xeon)
    end(alone.queue, [0.3] * 3, private=True, **two)

    backends = ask(alone)["operations"]["scale"]["backends"]

    gpu = backends["gpu"]
    first, second = gpu["devices"]["GPU-1"], gpu["devices"]["GPU-2"]
    assert {backend: set(entry["devices"]) for backend, entry in backends.items()} == {
        "gpu": {"GPU-1", "GPU-2"}, "cpu": {xeon},
    }  # fmt: skip
    assert [each["computed"] for each in (gpu, first, second)] == [11, 6, 5]
    assert [each["run_seconds"]["count"] for each in (gpu, first, second)] == [8, 6, 2]
    assert [each["bytes_per_second"] for each in (gpu, first, second)] == [
        pytest.approx(24e6 / 0.014), pytest.approx(3e9), pytest.approx(750e6)
    ]  # fmt: skip
    assert first["joules_per_thousand_jobs"] == pytest.approx(250)
    assert second["joules_per_thousand_jobs"] is None
    assert second["launches"]["small"]["seconds"]["mean"] == pytest.approx(0.004)


def test_a_device_that_became_slower_is_found_among_others(alone: Live) -> None:
    devices: list[dict[str, Any]] = [{"backend": "gpu", "device": "A100", "device_uuid": f"GPU-{n}"} for n in (1, 2)]
    for hours in (2, 3, 4):
        for device in devices:
            end(alone.queue, [0.1] * 2, kernel_seconds=0.01, **device)
        age(alone.redis_url, hours)
    end(alone.queue, [0.1] * ENOUGH, kernel_seconds=0.01, **devices[0])
    end(alone.queue, [0.1] * ENOUGH, kernel_seconds=0.03, **devices[1])

    gpu = backend_of(ask(alone), backend="gpu")

    def ratio(entry: Any) -> float:
        return entry["launches"]["small"]["trend"]["ratio"]

    assert ratio(gpu) == pytest.approx(2)
    assert {name: ratio(device) for name, device in gpu["devices"].items()} == {
        "GPU-1": pytest.approx(1), "GPU-2": pytest.approx(3),
    }  # fmt: skip


def test_a_failure_is_told_by_its_code_and_has_no_backend(api: Live) -> None:
    end(api.queue, [0.001])
    for code in ("timeout", "timeout", "out-of-memory"):
        job_id = f"job_{next(_numbers):032x}"
        api.queue.enqueue(
            JobRequest(id=job_id, owner="local", operation="scale", params={}, inputs={}, timeout=1, result_ttl=60)
        )
        failed = Failed(code=code, message="it failed")
        assert api.queue.finish([Ending(take(api.queue, job_id), failed)])[0] == ["done"]

    scale = ask(api)["operations"]["scale"]

    assert scale["failures"] == {"timeout": 2, "out-of-memory": 1}
    assert scale["jobs"] == {"succeeded": 1, "failed": 3}
    assert scale["backends"]["cpu"]["computed"] == 1


def test_batches_are_told_by_their_launches(api: Live) -> None:
    end(api.queue, [0.01] * 8, together=8, batch_reason="full")
    for turn in range(6):
        end(api.queue, [0.02 + turn / 1000] * 2, together=2, batch_reason="drained")

    batches = ask(api)["operations"]["scale"]["batches"]

    assert batches == {
        "launches": 7, "mean": pytest.approx(20 / 7), "p50": 2, "p95": 8, "largest": 8,
        "ended_by": {"drained": 6, "full": 1},
    }  # fmt: skip


def test_private_jobs_are_counted_and_have_no_times(api: Live) -> None:
    end(api.queue, [0.123], operation="noise", private=True, energy_joules=3.0, cost_dollars=0.1, kernel_seconds=0.2)

    report = ask(api)

    noise = report["operations"]["noise"]
    cpu = noise["backends"]["cpu"]
    assert (noise["jobs"], cpu["computed"]) == ({"succeeded": 1}, 1)
    assert (cpu["run_seconds"], cpu["launches"], cpu["bytes_per_second"]) == (None, {}, None)
    assert (cpu["joules_per_thousand_jobs"], cpu["dollars_per_thousand_jobs"]) == (None, None)
    assert (report["queues"]["batch"]["wait_seconds"], report["queues"]["batch"]["seconds"]) == (None, None)
    assert report["queues"]["batch"]["jobs"] == {"succeeded": 1}


def test_a_slowed_operation_shows_its_trend_and_another_none(alone: Live) -> None:
    for hours in range(2, 7):
        end(alone.queue, [0.010 + hours / 10_000, 0.010 - hours / 10_000])
        end(alone.queue, [0.1], operation="draw")
        age(alone.redis_url, hours)
    end(alone.queue, [0.013] * ENOUGH)
    end(alone.queue, [0.1], operation="draw")

    report = ask(alone)

    trend = backend_of(report)["launches"]["small"]["trend"]
    assert trend.pop("sentence") == "0.013 s a launch, and the median of 5 hours is 0.01 s"
    assert trend == {
        "launches": ENOUGH, "mean": pytest.approx(0.013), "baseline": pytest.approx(0.010), "hours": 5,
        "ratio": pytest.approx(1.3),
    }  # fmt: skip
    assert backend_of(report, "draw")["launches"]["small"]["trend"]["ratio"] == pytest.approx(1)


def test_one_bad_hour_does_not_move_the_baseline(alone: Live) -> None:
    for hours, seconds in ((2, 0.01), (3, 5.0), (4, 0.01), (5, 0.01)):
        end(alone.queue, [seconds])
        age(alone.redis_url, hours)
    end(alone.queue, [0.01])

    assert backend_of(ask(alone))["launches"]["small"]["trend"]["ratio"] == pytest.approx(1)


def test_a_change_of_the_jobs_mix_is_no_trend(alone: Live) -> None:
    for hours in (2, 3, 4):
        end(alone.queue, [0.001] * 20)
        end(alone.queue, [1.0], work=LARGE)
        age(alone.redis_url, hours)
    end(alone.queue, [0.001])
    end(alone.queue, [1.0] * 20, work=LARGE)

    cpu = backend_of(ask(alone))

    assert cpu["run_seconds"]["mean"] > 0.9  # the mean of earlier hours was 0.05
    ratios = {size: launches["trend"]["ratio"] for size, launches in cpu["launches"].items()}
    assert ratios == {"small": pytest.approx(1), "large": pytest.approx(1)}


def test_two_hours_are_no_baseline(alone: Live) -> None:
    for hours in (2, 3):
        end(alone.queue, [0.010])
        age(alone.redis_url, hours)
    end(alone.queue, [0.050])

    trend = backend_of(ask(alone))["launches"]["small"]["trend"]

    assert (trend["baseline"], trend["ratio"], trend["hours"]) == (None, None, 2)
    assert trend["mean"] == pytest.approx(0.050)
    assert trend["sentence"] == "a baseline needs 3 hours with launches; the last 7 days have 2"


def test_few_launches_of_this_hour_are_looked_at_with_those_of_the_last(alone: Live) -> None:
    end(alone.queue, [0.010] * 5)
    age(alone.redis_url, 1)
    end(alone.queue, [0.020] * (ENOUGH - 1))
    few = backend_of(ask(alone))["launches"]["small"]["trend"]
    end(alone.queue, [0.020])
    many = backend_of(ask(alone))["launches"]["small"]["trend"]

    assert few["launches"] == ENOUGH + 4
    assert few["mean"] == pytest.approx((5 * 0.010 + (ENOUGH - 1) * 0.020) / (ENOUGH + 4))
    assert (many["launches"], many["mean"]) == (ENOUGH, pytest.approx(0.020))


def test_as_many_hours_are_looked_at_as_are_asked_for(alone: Live) -> None:
    for hours, count in ((8, 1), (3, 2), (1, 4), (0, 8)):
        end(alone.queue, [0.01] * count)
        if hours:
            age(alone.redis_url, hours)
    counts = {hours: backend_of(ask(alone, hours=hours))["computed"] for hours in (1, 2, 3, 24)}
    refused = alone.http.get("/performance-metrics", params={"hours": 25})

    assert counts == {1: 12, 2: 12, 3: 14, 24: 15}
    assert backend_of(ask(alone))["computed"] == counts[1]
    assert ask(alone)["operations"]["scale"]["jobs"] == {"succeeded": 15}
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "/query/hours")


def test_every_process_says_the_same_before_and_after_a_restart(serve_api: Callable[..., Any], redis_url: str) -> None:
    def still(document: Any) -> Any:
        """The document without what changes with time."""
        if isinstance(document, dict):
            return {name: still(value) for name, value in document.items() if name != "at" and "per_second" not in name}
        return document

    with serve_api() as one, serve_api() as other:
        for hours in (2, 3, 4):
            end(one.queue, [0.01])
            age(redis_url, hours)
        end(one.queue, [0.02, 0.03], together=2)
        first, second = ask(one), ask(other)
        again = ask(one)
    with serve_api() as restarted:
        third = ask(restarted)

    assert backend_of(first)["launches"]["small"]["trend"]["hours"] == 3
    assert still(first) == still(again) == still(second) == still(third)


def test_hours_that_are_over_are_read_once(alone: Live) -> None:
    def scripts() -> int:
        with connect(alone.redis_url) as redis:
            redis.config_resetstat()
            ask(alone)
            return int(redis.info("commandstats")["cmdstat_evalsha"]["calls"])

    end(alone.queue, [0.01])
    assert scripts() >= 166
    assert scripts() < 50


def test_a_redis_that_lost_its_counts_takes_the_baseline_with_it(alone: Live) -> None:
    for hours in (2, 3, 4):
        end(alone.queue, [0.01])
        age(alone.redis_url, hours)
    end(alone.queue, [0.01])
    before = backend_of(ask(alone))["launches"]["small"]["trend"]["hours"]
    time.sleep(1)  # so that the new counts begin in another second
    with connect(alone.redis_url) as redis:
        redis.flushall()
    end(alone.queue, [0.01])

    assert (before, backend_of(ask(alone))["launches"]["small"]["trend"]["hours"]) == (3, 0)


def test_nothing_counted_is_nothing_told(alone: Live) -> None:
    report = ask(alone)

    assert (report["counted_since"], report["operations"]) == (None, {})
    assert set(report["queues"]) == {"realtime", "batch", "research"}


def test_a_redis_that_hangs_is_a_503_in_its_time(tmp_path: Path, serve_api: Callable[..., Any]) -> None:
    with RedisServer(tmp_path / "r") as server, serve_api(server.url, redis_patience=0.3) as api:
        assert ask(api)["operations"] == {}
        pid = redis_pid(api)
        os.kill(pid, signal.SIGSTOP)
        try:
            began = time.monotonic()
            answer = api.http.get("/performance-metrics")
            took = time.monotonic() - began
        finally:
            os.kill(pid, signal.SIGCONT)

    assert (answer.status_code, answer.json()["code"]) == (503, "queue-unavailable")
    assert took < 3
