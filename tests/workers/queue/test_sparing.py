"""What a worker without a GPU leaves to those that have one: jobs that are predicted to end sooner there."""

from math import inf
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis import Redis

from tests.claims import claim, finish, ids, request, succeeded, take
from warpdesk_server.workers.queue.jobs import JobQueue, connect
from warpdesk_server.workers.queue.keys import BELL, handed_key, job_key
from warpdesk_server.workers.queue.protocol import Forecast, JobRequest, Together
from warpdesk_server.workers.queue.records import Claim

BESIDE = {"gpus": ("g1",)}  # a worker without a GPU, beside one that has one


def job(number: int, gpu: float | None, cpu: float | None, **fields: Any) -> JobRequest:
    return request(number, forecast=Forecast(kind="rsi", gpu=gpu, cpu=cpu), **fields)


def enqueue(queue: JobQueue, *requests: JobRequest) -> None:
    for one in requests:
        queue.enqueue(one)


def runs_on_gpu(queue: JobQueue, seconds: float | None, worker: str = "g1") -> None:
    """Have a worker with a GPU run a job that was predicted to take so long there."""
    queue.enqueue(job(9000 + int(worker[1:]), seconds, None, backend="gpu", priority="realtime"))
    take(queue, f"job_{9000 + int(worker[1:])}", worker)


def test_a_job_that_ends_sooner_on_a_free_gpu_is_left_to_it(queue: JobQueue) -> None:
    enqueue(queue, job(1, gpu=10.0, cpu=1000.0))
    assert claim(queue, "c1", **BESIDE) == []
    assert claim(queue, "g1", gpu=True) == ["job_0001"]


def test_a_job_that_would_wait_longer_for_the_gpu_is_taken_and_says_how_long(queue: JobQueue) -> None:
    runs_on_gpu(queue, 5000.0)
    enqueue(queue, job(1, gpu=10.0, cpu=1000.0))
    batch = queue.claim(Claim("c1", **BESIDE))
    assert batch is not None
    assert ids(batch) == ["job_0001"]
    wait = batch.jobs[0].gpu_wait
    assert wait is not None
    assert 1000.0 < wait <= 5000.0


def test_the_first_that_ends_sooner_on_the_cpu_is_taken_and_those_before_it_are_left(queue: JobQueue) -> None:
    enqueue(queue, *(job(number, gpu=100.0, cpu=350.0) for number in range(1, 6)))
    assert claim(queue, "c1", **BESIDE) == ["job_0004"]  # after 300 s of others it would end in 400 s
    assert claim(queue, "c1", **BESIDE) == ["job_0005"]
    assert claim(queue, "c1", **BESIDE) == []
    assert [claim(queue, "g1", gpu=True) for _ in range(3)] == [["job_0001"], ["job_0002"], ["job_0003"]]


def test_jobs_that_insist_on_a_gpu_are_waited_for_too(queue: JobQueue) -> None:
    enqueue(queue, *(job(number, gpu=100.0, cpu=350.0, backend="gpu") for number in range(1, 5)))
    enqueue(queue, job(5, gpu=100.0, cpu=350.0), job(6, gpu=100.0, cpu=900.0))
    assert claim(queue, "c1", **BESIDE) == []  # both lanes take turns: only one waits before it
    enqueue(queue, *(job(number, gpu=100.0, cpu=350.0, backend="gpu", priority="realtime") for number in (7, 8, 9)))
    assert claim(queue, "c1", **BESIDE) == ["job_0005"]
    assert claim(queue, "c1", **BESIDE) == []


def test_each_gpu_takes_the_next_job_as_it_is_free(queue: JobQueue) -> None:
    runs_on_gpu(queue, 5000.0, "g1")
    enqueue(queue, job(1, gpu=10.0, cpu=1000.0))
    assert claim(queue, "c1", gpus=("g1", "g2")) == []
    runs_on_gpu(queue, 5000.0, "g2")
    assert claim(queue, "c1", gpus=("g1", "g2")) == ["job_0001"]


@pytest.mark.parametrize(("gpu", "cpu"), [(None, None), (None, 10.0), (10.0, None)])
def test_a_job_of_which_nothing_is_predicted_is_left_to_a_free_gpu_alone(
    queue: JobQueue, connection: Redis, gpu: float | None, cpu: float | None
) -> None:
    enqueue(queue, job(1, gpu, cpu))
    assert claim(queue, "c1", **BESIDE) == []
    assert claim(queue, "g1", gpu=True) == ["job_0001"]
    runs_on_gpu(queue, 5000.0)
    enqueue(queue, job(2, gpu, cpu))
    batch = queue.claim(Claim("c1", **BESIDE))
    assert batch is not None
    assert (ids(batch), batch.jobs[0].gpu_wait) == (["job_0002"], -1)


def test_a_free_gpu_that_does_not_come_is_not_waited_for_long(queue: JobQueue, connection: Redis) -> None:
    enqueue(queue, request(1))
    assert claim(queue, "c1", **BESIDE) == []
    served = float(cast(bytes, connection.hget("warpdesk:served", "batch")))
    connection.hset("warpdesk:served", "batch", repr(served - 1.5))
    assert claim(queue, "c1", **BESIDE) == ["job_0001"]


def test_a_job_for_the_cpu_is_taken_whatever_is_predicted(queue: JobQueue) -> None:
    enqueue(queue, job(1, gpu=1.0, cpu=100.0, backend="cpu"), request(2, backend="cpu"))
    assert [claim(queue, "c1", **BESIDE) for _ in range(3)] == [["job_0001"], ["job_0002"], []]


def test_where_a_gpu_runs_what_nobody_predicted_jobs_are_taken(queue: JobQueue) -> None:
    runs_on_gpu(queue, None)
    enqueue(queue, job(1, gpu=10.0, cpu=1000.0))
    assert claim(queue, "c1", **BESIDE) == ["job_0001"]


def test_without_a_worker_that_has_a_gpu_every_job_is_taken(queue: JobQueue) -> None:
    enqueue(queue, job(1, gpu=10.0, cpu=1000.0))
    assert claim(queue, "c1", gpus=()) == ["job_0001"]


def test_a_job_that_no_gpu_came_for_as_predicted_is_taken(queue: JobQueue, connection: Redis) -> None:
    enqueue(queue, job(1, gpu=1.0, cpu=30.0))
    assert claim(queue, "c1", **BESIDE) == []
    served = float(cast(bytes, connection.hget("warpdesk:served", "batch")))
    connection.hset("warpdesk:served", "batch", repr(served - 31.0))
    batch = queue.claim(Claim("c1", **BESIDE))
    assert batch is not None
    assert (ids(batch), batch.jobs[0].gpu_wait) == (["job_0001"], pytest.approx(31.0, abs=20.0))


def test_a_launch_on_the_gpu_that_is_late_is_expected_to_take_as_long_again(queue: JobQueue, connection: Redis) -> None:
    runs_on_gpu(queue, 1.0)
    started = float(cast(bytes, connection.hget(job_key("job_9001"), "started_at")))
    enqueue(queue, job(1, gpu=1.0, cpu=600.0))
    assert claim(queue, "c1", **BESIDE) == []
    connection.hset(job_key("job_9001"), "started_at", repr(started - 700.0))
    assert claim(queue, "c1", **BESIDE) == ["job_0001"]


def test_a_worker_that_runs_nothing_any_more_is_free(queue: JobQueue) -> None:
    enqueue(queue, job(1, gpu=5000.0, cpu=None, backend="gpu"))
    running = take(queue, "job_0001", "g1")
    assert finish(queue, running, succeeded(running)) == "done"
    enqueue(queue, job(2, gpu=10.0, cpu=1000.0))
    assert claim(queue, "c1", **BESIDE) == []


def test_a_batch_has_none_of_the_jobs_that_were_left(queue: JobQueue) -> None:
    alike = {"together": Together(key="k", items=8, bytes=1000)}
    enqueue(queue, *(job(number, gpu=100.0, cpu=250.0, **alike) for number in range(1, 6)))
    assert claim(queue, "c1", **BESIDE) == ["job_0003", "job_0004", "job_0005"]
    assert claim(queue, "g1", gpu=True) == ["job_0001", "job_0002"]


def test_a_job_goes_to_the_gpu_that_waits_though_a_worker_without_one_waits_longer(
    queue: JobQueue, connection: Redis
) -> None:
    for worker, wish in (("c1", BESIDE), ("c2", BESIDE), ("g1", {"gpu": True})):
        assert queue.claim(Claim(worker, waits=True, **wish)) is None  # type: ignore[arg-type]
    queue.enqueue(job(1, gpu=10.0, cpu=1000.0))
    assert [connection.llen(handed_key(worker)) for worker in ("c1", "c2", "g1")] == [0, 0, 1]
    queue.enqueue(job(2, gpu=10.0, cpu=5.0))
    assert [connection.llen(handed_key(worker)) for worker in ("c1", "c2", "g1")] == [1, 0, 1]


def test_the_bell_goes_on_ringing_for_what_is_left(queue: JobQueue, connection: Redis) -> None:
    enqueue(queue, job(1, gpu=10.0, cpu=1000.0))
    connection.delete(f"{BELL}any")
    assert claim(queue, "c1", **BESIDE) == []
    assert connection.llen(f"{BELL}any") == 1


def test_the_same_claim_again_says_again_why_it_has_the_job(queue: JobQueue) -> None:
    runs_on_gpu(queue, 5000.0)
    enqueue(queue, job(1, gpu=10.0, cpu=1000.0))
    again = Claim("c1", **BESIDE)
    batches = [queue.claim(again) for _ in range(2)]
    assert batches[0] is not None
    assert batches[1] is not None
    assert batches[0].jobs[0].gpu_wait == batches[1].jobs[0].gpu_wait


def test_a_job_that_goes_back_forgets_why_that_worker_had_it(queue: JobQueue) -> None:
    runs_on_gpu(queue, 5000.0)
    enqueue(queue, job(1, gpu=10.0, cpu=1000.0))
    batch = queue.claim(Claim("c1", **BESIDE))
    assert batch is not None
    assert finish(queue, batch.jobs[0], how="returned", reason="its worker stopped") == "queued"
    again = queue.claim(Claim("g1", gpu=True))
    assert again is not None
    assert (ids(again), again.jobs[0].gpu_wait) == (["job_0001"], None)


# No sums of these are equal: nothing depends on the time that the test takes.
ON_GPU = st.none() | st.sampled_from([1000.0, 3000.0, 10_000.0, 100_000.0])
ON_CPU = st.none() | st.sampled_from([500.37, 1777.37, 4333.37, 12_345.37, 70_123.37])


def expected(waiting: list[tuple[float | None, float | None]], running: list[float | None]) -> int | None:
    """The place of the job that a worker without a GPU takes: by hand, and of one lane and owner."""
    busy = [inf if seconds is None else seconds for seconds in running]
    for place, (gpu, cpu) in enumerate(waiting):
        quicker = min(gpu, cpu) if gpu is not None and cpu is not None else inf if gpu is None else gpu
        first = busy.index(min(busy))
        ends = busy[first] + quicker
        if (busy[first] > 0) if cpu is None or ends == inf else (cpu <= ends):
            return place
        busy[first] += quicker
    return None


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    waiting=st.lists(st.tuples(ON_GPU, ON_CPU), min_size=1, max_size=12),
    running=st.lists(ON_GPU | st.just(0.0), min_size=1, max_size=3),
)
def test_by_any_predictions_the_first_that_ends_sooner_is_taken_and_nothing_else(
    redis_url: str, waiting: list[tuple[float | None, float | None]], running: list[float | None]
) -> None:
    with connect(redis_url) as connection:
        connection.flushdb()
        queue = JobQueue(connection)
        names = tuple(f"g{number}" for number in range(1, len(running) + 1))
        for name, seconds in zip(names, running, strict=True):
            if seconds != 0.0:
                runs_on_gpu(queue, seconds, name)
        enqueue(queue, *(job(number, gpu, cpu) for number, (gpu, cpu) in enumerate(waiting)))
        place = expected(waiting, running)
        assert claim(queue, "c1", gpus=names) == ([] if place is None else [f"job_{place:04d}"])
        left = [number for number in range(len(waiting)) if number != place]
        taken = [claim(queue, "g9", gpu=True) for _ in left]
        assert taken == [[f"job_{number:04d}"] for number in left]  # in their order, and none is lost
