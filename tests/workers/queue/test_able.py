"""A worker of tasks says which it can run, and others stay where they are, for whoever can."""

from typing import Any

import pytest
from redis import Redis

from tests.claims import finish, request
from tests.workers.queue.snapshot import Snapshot
from warpdesk_server.workers.queue.jobs import JobQueue
from warpdesk_server.workers.queue.keys import BELL, handed_key
from warpdesk_server.workers.queue.protocol import MAX_ATTEMPTS, JobRequest
from warpdesk_server.workers.queue.records import Claim, Held

BELLS = (f"{BELL}task", f"{BELL}task-gpu")


def task(number: int, operation: str, owner: str = "key_a", **fields: Any) -> JobRequest:
    made = request(number, owner, task=True, **fields)
    return made.model_copy(update={"operation": operation})


def claim(queue: JobQueue, *able: str, **wish: Any) -> list[Held]:
    batch = queue.claim(Claim("w1", **{"takes": "tasks", "gpu": True, "tasks": able, **wish}))
    return [] if batch is None else list(batch.jobs)


def test_a_task_that_a_worker_cannot_run_is_passed_over_and_untouched(queue: JobQueue, connection: Redis) -> None:
    queue.enqueue(task(1, "train"))
    queue.enqueue(task(2, "train", priority="realtime"))
    queue.enqueue(task(3, "train", backend="gpu"))
    connection.delete(*BELLS)  # as a worker that was rung for
    before = Snapshot(connection).keys
    for _ in range(MAX_ATTEMPTS + 1):
        assert claim(queue, "simulate") == claim(queue) == []
    assert Snapshot(connection).keys == before, "it is not claimed, and nobody is rung for"
    first, *others = [claim(queue, "train")[0].id for _ in range(3)]
    assert (first, sorted(others)) == ("job_0002", ["job_0001", "job_0003"])


@pytest.mark.parametrize(("owners", "first"), [(1, 1), (80, 80)])  # key_0 has the first turn
def test_what_it_can_run_is_found_behind_whatever_it_cannot(queue: JobQueue, owners: int, first: int) -> None:
    for number in range(1, 301):
        queue.enqueue(task(number, "train", f"key_{number % owners}"))
    queue.enqueue(task(301, "simulate", "key_last"))
    queue.enqueue(task(302, "simulate", "key_0", priority="research"))
    assert [job.id for job in claim(queue, "simulate", "other")] == ["job_0301"]
    assert [job.id for job in claim(queue, "simulate", "other")] == ["job_0302"]
    assert claim(queue, "simulate", "other") == []
    assert [job.id for job in claim(queue, "train")] == [f"job_{first:04d}"], "those keep their order"


def test_names_are_compared_whole(queue: JobQueue) -> None:
    queue.enqueue(task(1, "train"))
    assert claim(queue, "train_more", "pretrain", "tr") == []
    assert len(claim(queue, "other", "train", "more")) == 1


def test_others_are_rung_for_where_one_was_claimed(queue: JobQueue, connection: Redis) -> None:
    queue.enqueue(task(1, "train"))
    queue.enqueue(task(2, "simulate"))
    connection.delete(*BELLS)
    assert len(claim(queue, "simulate")) == 1
    assert connection.llen(BELLS[0]) == 1, "for whoever can train"
    connection.delete(*BELLS)
    assert claim(queue, "simulate") == []
    assert connection.llen(BELLS[0]) == 0, "once"
    queue.enqueue(task(3, "simulate"))
    assert connection.llen(BELLS[0]) == 1


def test_a_task_is_handed_to_who_can_run_it_though_another_waits_longer(queue: JobQueue, connection: Redis) -> None:
    waiting = [Claim(f"w{at}", takes="tasks", waits=True, tasks=tasks) for at, tasks in enumerate(((), ("train",)))]
    for wish in waiting:
        assert queue.claim(wish) is None
    queue.enqueue(task(1, "train"))
    assert [connection.exists(handed_key(wish.worker)) for wish in waiting] == [0, 1]
    queue.enqueue(task(2, "train"))
    assert [connection.exists(handed_key(wish.worker)) for wish in waiting] == [0, 1]
    assert queue.claim(waiting[0]) is None


def test_who_says_nothing_can_run_all_and_so_says_the_release_before(queue: JobQueue) -> None:
    queue.enqueue(task(1, "train"))
    batch = queue.claim(Claim("w1", takes="tasks"))
    assert batch is not None
    assert [job.id for job in batch.jobs] == ["job_0001"]


def test_a_task_that_nobody_can_run_is_paused_resumed_canceled_and_given_back(queue: JobQueue) -> None:
    queue.enqueue(task(1, "train"))
    assert queue.pause("job_0001") == "paused"
    assert claim(queue, "train") == []
    assert queue.resume("job_0001") == "queued"
    assert claim(queue, "simulate") == []
    (job,) = claim(queue, "train")
    assert finish(queue, job, how="returned", reason="its worker stopped") == "queued"
    assert claim(queue, "simulate") == []
    assert queue.cancel("job_0001") == "canceled"


def test_the_names_of_the_tasks_that_wait_are_told_by_kind(queue: JobQueue) -> None:
    assert queue.waiting_tasks(["task", "task-gpu"]) == frozenset()
    queue.enqueue(task(1, "train", backend="gpu"))
    queue.enqueue(task(2, "simulate", "key_b", priority="research"))
    queue.enqueue(task(3, "simulate"))
    queue.enqueue(request(4))
    assert queue.waiting_tasks(["task", "task-gpu"]) == {"train", "simulate"}
    assert queue.waiting_tasks(["task"]) == {"simulate"}
    claim(queue, "simulate")
    claim(queue, "simulate")
    assert queue.waiting_tasks(["task", "task-gpu"]) == {"train"}
