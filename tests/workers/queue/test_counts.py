"""What is counted of jobs: with their transitions, once each, in a step that adds little to them."""

import signal
import time
from collections.abc import Iterator, Sequence
from math import nan
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ResponseError

from tests.claims import claim, finish, request, succeeded, take
from tests.workers.conftest import Desk
from warpdesk_server.kernels.catalogue import OPERATIONS
from warpdesk_server.workers.metrics import COUNTED
from warpdesk_server.workers.parent.endings import Endings
from warpdesk_server.workers.queue import scripts
from warpdesk_server.workers.queue.counts import (
    DEVICE,
    HOURLY,
    Amounts,
    Counts,
    Tally,
    Timed,
    named,
    note_endings,
    numbers,
)
from warpdesk_server.workers.queue.jobs import JobQueue
from warpdesk_server.workers.queue.keys import COUNTS, COUNTS_FRESH, job_key
from warpdesk_server.workers.queue.protocol import Failed, Provenance, Succeeded, Together, Transfers
from warpdesk_server.workers.queue.records import Claim, Ending, Held
from warpdesk_server.workers.store.spool import SpoolStore


def counts(connection: Redis) -> Counts:
    return Counts.of(JobQueue(connection).counted()[0])


def answered(job: Held, **how: Any) -> Ending:
    values: dict[str, Any] = {
        "backend": "gpu",
        "device": "a GPU",
        "attempt": job.attempt,
        "batch_size": 64,
        "batch_reason": "full",
        "compute_seconds": 0.02,
        "kernel_seconds": 0.012,
        "energy_joules": 0.5,
        "cost_dollars": 0.001,
        **how,
    }
    return Ending(job, Succeeded(result=f"{job.id}.{job.attempt}", provenance=Provenance(**values), bytes=100))


def end(queue: JobQueue, home: Path, endings: Sequence[Ending], transfers: Transfers | None = None) -> None:
    """As a worker ends them, and as it adds what it tallied a second later."""
    tally = Tally()
    Endings(queue, SpoolStore(home), OPERATIONS, tally=tally).end(endings, "w1", transfers=transfers)
    queue.count(tally)


def batch(queue: JobQueue, count: int, **fields: Any) -> tuple[Held, ...]:
    for number in range(count):
        queue.enqueue(request(number, work=1e5, together=Together(key="k", items=64, bytes=10), **fields))
    claimed = queue.claim(Claim("w1", gpu=True))
    assert claimed is not None
    return claimed.jobs


def test_a_launch_of_64_jobs_is_counted_as_one_and_in_few_commands(
    queue: JobQueue, connection: Redis, tmp_path: Path
) -> None:
    jobs = batch(queue, 64)
    with connection.monitor() as monitor:
        end(queue, tmp_path, [answered(job) for job in jobs], Transfers(h2d_bytes=6400, h2d_seconds=0.001))
        connection.echo("that was all")
        commands = []
        while "that was all" not in (entry := monitor.next_command())["command"]:
            commands.append(entry["command"])
    # At the end the one that the 64 have in common; a second later that and all that the worker knows go to the counts
    # of all time and of the hour.
    touched = [command.split()[0] for command in commands if COUNTS in command and not command.startswith("EVAL")]
    assert touched == ["HINCRBY", "HGETALL", "DEL", "HMGET", "HSET", "HSETNX", "HMGET", "HSET", "EXPIRE"]
    found = counts(connection)
    assert found.counters["jobs_finished_total"] == {("batch", "rsi", "succeeded", ""): 64}
    assert found.counters["jobs_computed_total"] == {("rsi", "gpu"): 64}
    assert found.counters["batches_total"] == {("rsi", "full"): 1}
    assert found.counters["kernel_bytes_total"] == {("rsi", "gpu"): 6400}
    assert found.counters["kernel_work_total"] == {("rsi", "gpu"): 64e5}
    assert found.counters["job_energy_joules_total"] == {("rsi", "gpu"): 32.0}
    assert found.counters["cost_dollars_total"][("rsi", "gpu")] == pytest.approx(0.064)
    assert found.counters["transfer_bytes_total"][("h2d",)] == 6400
    assert found.times["batch_size"][("rsi",)].buckets == {64: 1}
    kernel = found.times["kernel_duration_seconds"]
    assert {labels: (timed.count, timed.sum) for labels, timed in kernel.items()} == {
        ("rsi", "gpu", "medium"): (1, 0.012)
    }
    assert found.times["job_run_seconds"][("rsi", "gpu")].count == 64
    assert found.times["job_seconds"][("batch",)].count == found.times["job_wait_seconds"][("batch",)].count == 64


def test_a_launch_is_counted_once_though_another_thread_sends_meanwhile(queue: JobQueue) -> None:
    tally, sent = Tally(), []

    def ending() -> Iterator[Ending]:
        for job in batch(queue, 64):
            sent.append(tally.addition()[2])
            yield answered(job)

    note_endings(tally, ending(), queue.time())
    sent.append(tally.addition()[2])
    assert not any(sent[:-1])
    assert {name: amount for name, amount in sent[-1].items() if name.startswith("batch")} == {
        "batch_size|rsi|64": 1,
        "batches_total|rsi|full": 1,
    }


def test_what_ended_within_a_second_is_counted_by_launch_and_by_size() -> None:
    def held(number: int, **fields: Any) -> Held:
        return Held(request(number, **fields), 1, submitted_at=10.0, started_at=12.0)

    tally, two = Tally(), [answered(held(number, work=1e5), batch_size=2) for number in range(2)]
    note_endings(tally, two, 13.0)
    note_endings(tally, two, 13.5)  # another launch, like it in all but its end
    mixed = [held(3, work=1e5), held(4, private=True)]
    note_endings(tally, [answered(job, batch_size=2) for job in mixed], 14.0)
    note_endings(tally, [answered(held(5, work=1e9), batch_size=1, kernel_seconds=None)], 15.0)
    note_endings(tally, [answered(held(6, work=1e9), batch_size=1)], 16.0)
    unsaid = Held(request(7), 1, submitted_at=nan, started_at=12.0)
    note_endings(tally, [answered(unsaid, batch_size=1, compute_seconds=None, energy_joules=None)], 17.0)

    found = Counts.of(tally.addition()[2])
    assert found.counters == {
        "jobs_computed_total": {("rsi", "gpu"): 9},
        "batches_total": {("rsi", "full"): 6},
        "kernel_work_total": {("rsi", "gpu"): 4e5 + 1e9},
        "kernel_bytes_total": {("rsi", "gpu"): 600},
        "job_energy_joules_total": {("rsi", "gpu"): 3.5},
        "cost_dollars_total": {("rsi", "gpu"): pytest.approx(0.008)},
    }
    times = {
        family: {labels: (of.count, of.sum) for labels, of in times.items()} for family, times in found.times.items()
    }
    assert times == {
        "batch_size": {("rsi",): (6, 9)},
        "job_wait_seconds": {("batch",): (7, 14.0)},
        "job_seconds": {("batch",): (7, 28.0)},
        "job_run_seconds": {("rsi", "gpu"): (7, pytest.approx(0.14))},
        "kernel_duration_seconds": {
            ("rsi", "gpu", "small"): (3, pytest.approx(0.036)),
            ("rsi", "gpu", "large"): (1, 0.012),
        },
    }  # fmt: skip


def test_of_private_jobs_no_time_and_no_energy_is_counted(queue: JobQueue, connection: Redis, tmp_path: Path) -> None:
    queue.enqueue(request(private=True))
    end(queue, tmp_path, [answered(take(queue), batch_size=1)])
    found = counts(connection)
    assert found.counters["jobs_finished_total"] == {("batch", "rsi", "succeeded", ""): 1}
    assert found.counters["jobs_computed_total"] == {("rsi", "gpu"): 1}
    assert found.times.keys() == {"batch_size"}
    assert found.counters.keys() == {
        "jobs_enqueued_total", "jobs_finished_total", "jobs_computed_total", "batches_total",
    }  # fmt: skip
    for key in connection.scan_iter(f"{COUNTS}*"):
        assert not [name for name in numbers(connection.hgetall(key)) if "seconds" in name]  # type: ignore[arg-type]


def test_waits_are_of_jobs_that_ended_and_whole_times_of_those_that_succeeded(
    queue: JobQueue, connection: Redis, tmp_path: Path
) -> None:
    for number in range(5):
        queue.enqueue(request(number))
    jobs = [take(queue, f"job_{number:04d}") for number in range(5)]
    failed = Failed(code="device-fault", message="it failed")
    time.sleep(0.02)
    end(
        queue, tmp_path,
        [
            answered(jobs[0]), Ending(jobs[1], failed), Ending(jobs[2], how="retry", failure=failed),
            Ending(jobs[3], how="returned"), Ending(jobs[4], how="struck"),
        ],
    )  # fmt: skip
    found = counts(connection)
    states = {labels[2]: amount for labels, amount in found.counters["jobs_finished_total"].items()}
    wait, whole = (found.times[name]["batch",] for name in ("job_wait_seconds", "job_seconds"))
    records = [queue.get(job.id) for job in jobs[:3]]
    assert states == {"succeeded": 1, "failed": 2}
    assert (wait.count, whole.count) == (3, 1)
    assert wait.sum == pytest.approx(sum(job.started_at - job.submitted_at for job in records), abs=1e-5)  # type: ignore[operator,union-attr]
    assert whole.sum == pytest.approx(records[0].ended_at - records[0].submitted_at, abs=1e-5)  # type: ignore[operator,union-attr]
    assert whole.sum > 0.02


def test_of_a_dead_letter_that_is_run_again_no_time_is_counted(
    queue: JobQueue, connection: Redis, tmp_path: Path
) -> None:
    queue.enqueue(request())
    while finish(queue, take(queue), how="struck", failure=Failed(code="timeout", message="late")) != "dead":
        pass
    assert queue.rerun("job_0001")
    end(queue, tmp_path, [answered(take(queue), batch_size=1)])
    found = counts(connection)
    assert found.counters["jobs_finished_total"]["batch", "rsi", "succeeded", ""] == 1
    assert not {"job_wait_seconds", "job_seconds"} & found.times.keys()


def test_the_times_of_jobs_that_another_computed_for_are_counted_too(
    queue: JobQueue, connection: Redis, tmp_path: Path
) -> None:
    for number in range(6):
        queue.enqueue(request(number, private=number > 2), same="private" if number > 2 else "s")
    for number in (0, 3):
        end(queue, tmp_path, [answered(take(queue, f"job_{number:04d}"), batch_size=1)])
    found = counts(connection)
    assert found.counters["jobs_coalesced_total"] == {("rsi",): 4}
    assert [found.times[name]["batch",].count for name in ("job_wait_seconds", "job_seconds")] == [3, 3]


def test_a_wait_of_nothing_is_added_to_waits_of_something(queue: JobQueue, connection: Redis, tmp_path: Path) -> None:
    failed = Failed(code="device-fault", message="it failed")
    for number in range(2):
        queue.enqueue(request(number))
        end(queue, tmp_path, [Ending(take(queue, f"job_{number:04d}"), failed)])
    wish = Claim("w2", waits=True)
    assert queue.claim(wish) is None
    queue.enqueue(request(2), same="s")
    queue.enqueue(request(3), same="s")
    handed = queue.claim(wish)  # by the enqueuing step: its wait is none
    assert handed is not None
    assert handed.jobs[0].submitted_at == handed.jobs[0].started_at
    end(queue, tmp_path, [Ending(handed.jobs[0], failed)])
    found = counts(connection)
    assert found.counters["jobs_finished_total"] == {("batch", "rsi", "failed", "device-fault"): 4}
    assert found.counters["jobs_coalesced_total"] == {("rsi",): 1}
    assert found.times["job_wait_seconds"]["batch",].count == 4
    assert found.times["job_wait_seconds"]["batch",].buckets[0] >= 2


def test_what_came_too_late_is_not_counted(queue: JobQueue, connection: Redis, tmp_path: Path) -> None:
    queue.enqueue(request())
    job = take(queue)
    queue.cancel(job.id)
    before = counts(connection)
    end(queue, tmp_path, [answered(job)], Transfers(h2d_bytes=1))
    assert counts(connection) == before
    assert before.counters["jobs_finished_total"] == {("batch", "rsi", "canceled", ""): 1}


def test_a_job_that_the_release_before_queued_is_counted_as_another_operations(
    queue: JobQueue, connection: Redis
) -> None:
    queue.enqueue(request())
    connection.hdel(job_key("job_0001"), "operation")
    job = take(queue)
    assert finish(queue, job, succeeded(job)) == "done"
    assert counts(connection).counters["jobs_finished_total"] == {("batch", "other", "succeeded", ""): 1}


def test_a_redis_that_keeps_no_counts_ends_jobs_all_the_same(queue: JobQueue, connection: Redis) -> None:
    connection.set(COUNTS_FRESH, "not a hash")
    queue.enqueue(request())
    job = take(queue)
    assert finish(queue, job, succeeded(job)) == "done"
    assert claim(queue) == []


def test_the_hour_has_what_is_counted_of_jobs_and_is_forgotten_after_8_days(
    queue: JobQueue, connection: Redis, tmp_path: Path
) -> None:
    queue.enqueue(request())
    end(queue, tmp_path, [answered(take(queue), batch_size=1)])
    (key,) = connection.scan_iter(f"{COUNTS}:*")
    hour = int(key.decode().rpartition(":")[2])
    assert abs(queue.time() / 3600 - hour) < 1.1
    fields = numbers(connection.hgetall(key))  # type: ignore[arg-type]
    total = numbers(connection.hgetall(COUNTS))  # type: ignore[arg-type]
    of_devices = {name for name in fields if name.endswith(f"{DEVICE}a GPU")}
    assert {name.partition("|")[0] for name in of_devices} == {
        *("jobs_computed_total", "job_run_seconds", "job_energy_joules_total", "cost_dollars_total"),
        *("kernel_duration_seconds", "kernel_bytes_total", "kernel_work_total"),
    }
    assert not [name for name in total if DEVICE in name]
    without = {name.partition(DEVICE)[0]: amount for name, amount in fields.items()}
    assert without == {
        name: amount for name, amount in total.items() if name.partition("|")[0] in HOURLY and name in without
    }
    assert named("job_seconds", "batch", "sum") in fields
    assert 8 * 86_400 - 5 < connection.ttl(key) <= 8 * 86_400


class Deaf(JobQueue):
    """The first reply to each addition is lost."""

    def __init__(self, connection: Redis) -> None:
        super().__init__(connection)
        self.answered: set[Any] = set()

    def _eval(self, script: str, *arguments: Any) -> Any:
        answer = super()._eval(script, *arguments)
        if script is scripts.COUNT and arguments[1] not in self.answered:
            self.answered.add(arguments[1])
            raise ConnectionError("the reply was lost")
        return answer


def test_an_addition_whose_reply_was_lost_counts_once_and_no_total_falls(redis_url: str, connection: Redis) -> None:
    deaf, tally, answers = Deaf(connection), Tally(), []
    for number in range(5):
        tally.add("jobs_replayed_total")
        with pytest.raises(ConnectionError):
            deaf.count(tally, ask=True)
        tally.add("jobs_replayed_total")  # goes with the next
        answers.append(tally.totals())
        deaf.count(tally, ask=number % 2 == 0)
        answers.append(tally.totals())
    deaf.answered.add(6)
    deaf.count(tally)
    assert float(connection.hget(COUNTS, "jobs_replayed_total") or 0) == 10
    totals = [answer["jobs_replayed_total"] for answer in answers if answer is not None]
    assert totals == sorted(totals)
    assert totals[-1] == 10


def test_what_transitions_counted_is_added_once_by_whoever_adds_or_asks(redis_url: str, connection: Redis) -> None:
    queue, deaf, tallies = JobQueue(connection), Deaf(connection), [Tally() for _ in range(3)]
    for number in range(30):
        queue.enqueue(request(number))
        deaf.answered.clear()
        tally = tallies[number % 3]
        tally.add("jobs_replayed_total")
        if number % 4 == 0:
            with pytest.raises(ConnectionError):
                deaf.count(tally, ask=True)
        elif number % 4 == 1:
            queue.count(tally, ask=True)
            assert (tally.totals() or {})["jobs_enqueued_total|batch|rsi"] == number + 1
        elif number % 4 == 2:
            assert queue.counted()[0]["jobs_enqueued_total|batch|rsi"] == number + 1
    for tally in tallies:
        queue.count_left(tally)
    assert not connection.exists(COUNTS_FRESH)
    assert queue.counted()[0].items() >= {"jobs_enqueued_total|batch|rsi": 30, "jobs_replayed_total": 30}.items()


def test_an_addition_that_fails_half_way_is_not_repeated(queue: JobQueue, connection: Redis) -> None:
    queue.enqueue(request())
    job = take(queue)
    finish(queue, job, succeeded(job))
    tally, hour = Tally(), int(queue.time() // 3600)
    tally.add("refusals_total", "busy")
    for key in (hour, hour + 1):
        connection.set(f"{COUNTS}:{key}", "not a hash")
    with pytest.raises(ResponseError):
        queue.count(tally)
    queue.count(tally)
    assert queue.counted()[0].items() >= {"jobs_enqueued_total|batch|rsi": 1, "refusals_total|busy": 1}.items()


def test_a_full_redis_counts_on(queue: JobQueue, connection: Redis) -> None:
    tally = Tally()
    queue.enqueue(request())
    connection.config_set("maxmemory", "1mb")
    try:
        for _ in range(2):  # once with what transitions counted, and once without
            tally.add("refusals_total", "queue-memory")
            queue.count(tally, ask=True)
    finally:
        connection.config_set("maxmemory", 0)
    totals = tally.totals() or {}
    assert (totals["refusals_total|queue-memory"], totals["jobs_enqueued_total|batch|rsi"]) == (2, 1)


def test_several_threads_and_processes_lose_no_count(redis_url: str, connection: Redis) -> None:
    tallies, done = [Tally() for _ in range(3)], Event()

    def add(tally: Tally) -> None:
        for _ in range(300):
            tally.add("refusals_total", "busy")

    def send() -> None:
        queue = JobQueue(connection)
        while not done.is_set():
            for tally in tallies:
                queue.count(tally, ask=True)

    adding = [Thread(target=add, args=(tally,)) for tally in tallies for _ in range(2)]
    sending = Thread(target=send)
    for thread in (sending, *adding):
        thread.start()
    for thread in adding:
        thread.join()
    done.set()
    sending.join()
    for tally in tallies:
        JobQueue(connection).count(tally)
    assert float(connection.hget(COUNTS, "refusals_total|busy") or 0) == 1800


def test_counters_stand_still_where_redis_lost_its_last_second_and_begin_again_where_it_lost_all(
    queue: JobQueue, connection: Redis
) -> None:
    tally = Tally()
    for _ in range(9):
        tally.add("jobs_replayed_total")
    queue.count(tally, ask=True)
    connection.hset(COUNTS, "jobs_replayed_total", 7)  # as an append-only file that was cut
    tally.add("jobs_replayed_total")
    queue.count(tally, ask=True)
    assert (tally.totals() or {})["jobs_replayed_total"] == 9
    connection.delete(COUNTS)
    for _ in range(2):
        tally.add("jobs_replayed_total")
    connection.hset(COUNTS, "since", 5)
    queue.count(tally, ask=True)
    assert tally.totals() == {"since": 5, "jobs_replayed_total": 2}


def test_a_dead_worker_takes_no_count_with_it_and_its_heir_goes_on(desk: Desk, connection: Redis) -> None:
    desk.start_worker()

    def ended() -> float:
        return counts(connection).counters["jobs_finished_total"]["batch", "double", "succeeded", ""]

    for number in range(3):
        assert desk.wait(desk.submit(inputs={"values": desk.array([float(number)])})).state == "succeeded"
    assert ended() == 3

    def timed() -> int:
        return counts(connection).times.get("job_run_seconds", {}).get(("double", "cpu"), Timed()).count

    desk.until(lambda: timed() == 3, "their times were not added within the second in which they are")
    assert counts(connection).counters["jobs_computed_total"] == {("double", "cpu"): 3}
    napping, _ = desk.nap()
    desk.workers[0].send_signal(signal.SIGKILL)
    desk.workers[0].wait()
    desk.start_worker()
    desk.until(lambda: counts(connection).counters.get("leases_expired_total"), "nobody looked after the dead one")
    desk.queue.cancel(napping)
    assert desk.wait(desk.submit(inputs={"values": desk.array([9.0])})).state == "succeeded"
    found = counts(connection)
    assert ended() == 4
    assert found.counters["leases_expired_total"] == {(): 1}
    desk.until(lambda: timed() == 4, "the heir added no time")


def test_hours_of_the_release_before_tell_of_all_devices_together(queue: JobQueue, connection: Redis) -> None:
    labels = "kernel_duration_seconds|rsi|cpu|small"
    connection.hset(f"{COUNTS}:7", mapping={f"{labels}|9": 4, f"{labels}|sum": 1, "batch_size|rsi|1": 4})
    assert queue.mean_launches(7) == {("", "rsi", "cpu", "small"): 0.25}
    connection.hset(f"{COUNTS}:7", mapping={f"{labels}|11{DEVICE}a | b": 1, f"{labels}|sum{DEVICE}a | b": 2})
    assert queue.mean_launches(7) == {("", "rsi", "cpu", "small"): 0.6, ("a | b", "rsi", "cpu", "small"): 2.0}


def test_every_family_is_of_a_kind_that_its_name_tells() -> None:
    for name, family in COUNTED.items():
        assert name.endswith("_total") == (family.kind == "counter"), name
        assert name.endswith("_seconds") == (family.kind == "times"), name


@pytest.mark.parametrize("labels", [("rsi",), ("rsi", "cpu", "small"), ()])
def test_a_count_with_other_labels_than_its_metric_has_is_an_error(labels: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="jobs_computed_total"):
        Amounts().add(1, "jobs_computed_total", *labels)
    with pytest.raises(ValueError, match="job_run_seconds"):
        Amounts().times([0.5], "job_run_seconds", *labels)


def test_a_field_in_redis_with_other_labels_than_its_metric_has_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fields = {"jobs_dead_total|rsi|cpu": 1.0, "jobs_dead_total|rsi": 2.0, "of_a_later_release|a": 3.0}
    for _ in range(2):
        assert Counts.of(fields).counters == {"jobs_dead_total": {("rsi",): 2.0}}
    assert [record.getMessage() for record in caplog.records] == [
        "a count in Redis does not have its metric's labels, and is left out: 'jobs_dead_total|rsi|cpu'"
    ]
