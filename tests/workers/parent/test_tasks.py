"""Tasks on real workers: whatever ends an attempt, the answer has the bytes of one that nobody disturbed."""

import os
import random
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from tests.workers.conftest import Desk
from tests.workers.stepping.task import model, undisturbed
from warpdesk.models import State
from warpdesk_server.workers.queue import keys
from warpdesk_server.workers.queue.jobs import connect
from warpdesk_server.workers.queue.protocol import MAX_ATTEMPTS
from warpdesk_server.workers.queue.records import JobRecord

SEED = 7


def submit(desk: Desk, **params: Any) -> str:
    names = ("timeout", "seconds", "checkpoint_bytes", "result_bytes")
    fields = {name: params.pop(name) for name in names if name in params}
    params = {"marker": str(desk.marker()), **params}
    values: dict[str, Any] = {
        "timeout": 60.0,
        "checkpoint_bytes": 1 << 20,
        "result_bytes": 1 << 20,
        "seed": SEED,
        **fields,
    }
    return desk.submit("chain", params=params, task=True, **values)


def start(desk: Desk, **environment: str) -> None:
    settings = {"WARPDESK_OPERATIONS": "tests.workers.operations:WITH_TASKS", "WARPDESK_TAKES": "tasks"}
    desk.start_worker(**{**settings, "WARPDESK_CHECKPOINT_SECONDS": "0", **environment})


def steps(desk: Desk) -> list[tuple[int, int]]:
    """The process and the number of each step that was done, in order."""
    marker = desk.marker()
    lines = marker.read_text().splitlines() if marker.exists() else []
    return [(int(pid), int(step)) for pid, _, step in (line.partition(" ") for line in lines)]


def step_of(desk: Desk, job_id: str) -> int:
    record = desk.queue.get(job_id)
    assert record is not None
    return record.step or 0


def require_its_bytes(desk: Desk, record: JobRecord) -> None:
    assert record.state is State.SUCCEEDED, record
    assert record.result is not None
    numbers = np.load(desk.store.result(record.result) / "numbers.npy")
    assert numbers.tolist() == undisturbed(record.request.params, SEED)


def test_a_task_runs_in_a_worker_of_tasks_and_reports_its_steps(desk: Desk) -> None:
    start(desk)
    job_id = submit(desk, steps=5)
    record = desk.wait(job_id)
    require_its_bytes(desk, record)
    assert record.provenance is not None
    assert (record.provenance.backend, record.provenance.resumed_from) == ("cpu", None)
    rows = desk.queue.reported_steps(job_id, 0, 100)
    assert [row.step for row in rows] == sorted({row.step for row in rows})
    assert rows[-1].step == 5, "the last step is told, however quick it was"
    assert all(row.values == {"loss": 1 / row.step} for row in rows), "to the last digit"
    events = [event for event in desk.queue.events(job_id) if event.event == "progress"]
    assert (events[-1].step, events[-1].progress, events[-1].values) == (5, 1.0, {"loss": 0.2})
    desk.until(lambda: desk.store.checkpointed() == [], "what has ended keeps a checkpoint")


def test_a_task_that_loses_its_child_and_its_worker_again_and_again_has_the_same_bytes(desk: Desk) -> None:
    """Each death is at a random step; at most the steps since the last checkpoint are done again."""
    job_id = submit(desk, steps=120, step_seconds=0.02)
    chance = random.Random(3)
    start(desk)
    deaths = 0
    while (record := desk.queue.get(job_id)) is not None and not record.state.final and deaths < 15:
        before = step_of(desk, job_id)
        desk.until(
            lambda before=before: step_of(desk, job_id) >= before + 2 or _ended(desk, job_id), "it does not get on"
        )
        if _ended(desk, job_id):
            break
        if chance.random() < 0.6:
            os.kill(steps(desk)[-1][0], signal.SIGKILL)
        else:
            worker = desk.workers[-1]
            worker.kill()
            worker.wait()
            start(desk)
        deaths += 1
    record = desk.wait(job_id)
    require_its_bytes(desk, record)
    assert deaths >= 8, "it ended too early to be a test"
    assert record.attempt > 1
    done = Counter(step for _, step in steps(desk))
    assert set(done) == set(range(1, 121))
    assert sum(done.values()) - 120 <= 2 * deaths, "a step or two is repeated for each death"


def _ended(desk: Desk, job_id: str) -> bool:
    record = desk.queue.get(job_id)
    return record is None or record.state.final


def test_a_task_that_gets_on_is_claimed_as_often_as_it_takes(desk: Desk) -> None:
    """More deaths than any job may have claims, each after a new step."""
    job_id = submit(desk, steps=MAX_ATTEMPTS + 4, step_seconds=0.05)
    start(desk)
    for number in range(1, MAX_ATTEMPTS + 3):
        desk.until(lambda number=number: step_of(desk, job_id) >= number or _ended(desk, job_id), "it does not get on")
        os.kill(steps(desk)[-1][0], signal.SIGKILL)
    record = desk.wait(job_id)
    require_its_bytes(desk, record)
    assert record.attempt > MAX_ATTEMPTS


def test_a_task_that_dies_at_one_step_three_times_is_given_up_and_keeps_its_checkpoint(desk: Desk) -> None:
    job_id = submit(desk, steps=9, die_at=5)
    start(desk)
    record = desk.wait(job_id)
    assert (record.state, record.dead, record.step) == (State.FAILED, True, 4)
    assert Counter(step for _, step in steps(desk)) == {1: 1, 2: 1, 3: 1, 4: 1}
    assert desk.store.checkpointed() == [job_id]
    assert desk.queue.rerun(job_id)
    assert desk.wait(job_id).dead
    assert Counter(step for _, step in steps(desk)) == {1: 1, 2: 1, 3: 1, 4: 1}, "run again it goes on from there"


def test_a_worker_that_is_stopped_keeps_the_state_and_another_goes_on(desk: Desk) -> None:
    start(desk, WARPDESK_CHECKPOINT_SECONDS="600")
    job_id = submit(desk, steps=60, step_seconds=0.05)
    desk.until(lambda: len(steps(desk)) >= 3, "no step")
    desk.workers[-1].terminate()
    assert desk.workers[-1].wait(timeout=30) == 0
    record = desk.queue.get(job_id)
    assert record is not None
    assert (record.state, record.step) == (State.QUEUED, len(steps(desk)))
    start(desk)
    record = desk.wait(job_id)
    require_its_bytes(desk, record)
    assert len(steps(desk)) == 60, "no step is done twice"
    assert record.provenance is not None
    assert record.provenance.resumed_from


def test_a_task_is_paused_and_resumed(desk: Desk) -> None:
    start(desk, WARPDESK_CHECKPOINT_SECONDS="600")
    job_id = submit(desk, steps=40, step_seconds=0.05)
    desk.until(lambda: len(steps(desk)) >= 2, "no step")
    assert desk.queue.pause(job_id) is State.RUNNING
    desk.until(lambda: _state(desk, job_id) is State.PAUSED, "it is not paused")
    count = len(steps(desk))
    other = submit(desk, steps=2, marker="")
    desk.wait(other)  # by the same worker, which is free
    assert (len(steps(desk)), step_of(desk, job_id)) == (count, count)
    assert desk.queue.resume(job_id) is State.QUEUED
    require_its_bytes(desk, desk.wait(job_id))
    assert len(steps(desk)) == 40
    names = [event.event for event in desk.queue.events(job_id) if event.event != "progress"]
    assert names == ["queued", "running", "paused", "queued", "running", "succeeded"]


def test_a_task_is_paused_before_it_began_and_canceled(desk: Desk) -> None:
    job_id = submit(desk, steps=2)
    assert desk.queue.pause(job_id) is State.PAUSED
    start(desk)
    other = submit(desk, steps=1)
    desk.wait(other)
    assert _state(desk, job_id) is State.PAUSED
    assert desk.queue.cancel(job_id) is State.CANCELED
    assert desk.queue.resume(job_id) is State.CANCELED


def _state(desk: Desk, job_id: str) -> State:
    record = desk.queue.get(job_id)
    assert record is not None
    return record.state


def test_a_canceled_task_ends_and_its_worker_goes_on(desk: Desk) -> None:
    start(desk)
    with desk.gate() as gate:
        job_id = submit(desk, steps=5, gate=gate, gate_at=3)
        desk.until(lambda: step_of(desk, job_id) == 2, "no step")
        assert desk.queue.cancel(job_id) is State.CANCELED
        require_its_bytes(desk, desk.wait(submit(desk, steps=3, marker="")))
    desk.until(lambda: job_id not in desk.store.checkpointed(), "its checkpoints are still there")


def test_a_step_may_take_as_long_as_the_task_says(desk: Desk) -> None:
    start(desk)
    record = desk.wait(submit(desk, steps=5, hang_at=4, timeout=4.0))  # the first steps may be slow on a busy machine
    assert record.error is not None
    assert (record.error.code, record.error.message) == ("timeout", "a step may run 4 s, and this one ran longer")
    assert record.step == 3


def test_steps_together_may_take_as_long_as_the_task_says(desk: Desk) -> None:
    start(desk)
    record = desk.wait(submit(desk, steps=1000, step_seconds=0.05, seconds=0.2))
    assert record.error is not None
    assert record.error.code == "timeout"
    assert "its steps may take 0.2 s together" in record.error.message


def test_a_checkpoint_may_be_as_large_as_the_task_says(desk: Desk) -> None:
    start(desk)
    record = desk.wait(submit(desk, steps=3, numbers=2000, checkpoint_bytes=1000))
    assert record.error is not None
    assert record.error.code == "operation-error"
    assert record.error.message == "a checkpoint takes more than the 1000 bytes that the task declares"


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(desk: Desk) -> None:
    start(desk)
    with desk.gate() as gate:
        job_id = submit(desk, steps=6, gate=gate, gate_at=5)
        desk.until(lambda: step_of(desk, job_id) == 4, "no step")
        folder = desk.home / "store" / "checkpoints" / job_id
        assert sorted(file.name for file in folder.iterdir()) == ["1.3", "1.4"]
        _damage(folder / "1.4")
        os.kill(steps(desk)[-1][0], signal.SIGKILL)
        desk.until(lambda: Counter(step for _, step in steps(desk))[4] == 2, "it did not go back")
    require_its_bytes(desk, desk.wait(job_id))
    assert Counter(step for _, step in steps(desk)) == {1: 1, 2: 1, 3: 1, 4: 2, 5: 1, 6: 1}


def test_without_a_checkpoint_that_can_be_read_it_begins_again_and_says_so(desk: Desk) -> None:
    start(desk)
    with desk.gate() as gate:
        job_id = submit(desk, steps=6, gate=gate, gate_at=5)
        desk.until(lambda: step_of(desk, job_id) == 4, "no step")
        for file in (desk.home / "store" / "checkpoints" / job_id).iterdir():
            _damage(file)
        os.kill(steps(desk)[-1][0], signal.SIGKILL)
        desk.until(lambda: Counter(step for _, step in steps(desk))[1] == 2, "it did not begin again")
    require_its_bytes(desk, desk.wait(job_id))
    reasons = [event.reason for event in desk.queue.events(job_id) if event.event == "progress" and event.reason]
    assert reasons == ["its checkpoint cannot be read any more; it begins again"]


def _damage(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0xFF
    file.write_bytes(content)


def test_a_task_whose_code_has_changed_begins_again_and_says_so(desk: Desk) -> None:
    start(desk)
    with desk.gate() as gate:
        job_id = submit(desk, steps=5, gate=gate, gate_at=4)
        desk.until(lambda: step_of(desk, job_id) == 3, "no step")
        desk.workers[-1].kill()
        desk.workers[-1].wait()
        start(desk, WARPDESK_OPERATIONS="tests.workers.operations:WITH_OTHER_TASKS")
        desk.until(lambda: Counter(step for _, step in steps(desk))[1] == 2, "it did not begin again")
    require_its_bytes(desk, desk.wait(job_id))
    reasons = [event.reason for event in desk.queue.events(job_id) if event.event == "progress" and event.reason]
    assert reasons == ["its code has changed since the checkpoint of step 3; it begins again"]


def test_a_task_whose_worker_is_killed_while_it_writes_a_file_returns_it_whole(desk: Desk) -> None:
    start(desk)
    with desk.gate() as gate:
        job_id = desk.submit(
            "pack", params={"size": 900_000, "gate": gate}, task=True, checkpoint_bytes=1 << 16, result_bytes=1 << 20
        )
        results = desk.home / "store" / "results"
        half = results / f"{job_id}.1" / "model-model.bin"
        desk.until(lambda: half.exists() and half.stat().st_size == 450_000, "it writes nothing")
        desk.workers[-1].kill()
        desk.workers[-1].wait()
        start(desk)
        desk.until(lambda: (results / f"{job_id}.2" / "model-model.bin").exists(), "nobody goes on")
    record = desk.wait(job_id)
    assert (record.state, record.result) == (State.SUCCEEDED, f"{job_id}.2")
    assert (results / f"{job_id}.2" / "model-model.bin").read_bytes() == model(900_000)
    desk.until(lambda: [each.name for each in results.iterdir()] == [f"{job_id}.2"], "the first attempt left a file")


def test_a_file_may_be_as_large_as_the_task_says(desk: Desk) -> None:
    start(desk)
    job_id = desk.submit("pack", params={"size": 1000}, task=True, checkpoint_bytes=1 << 16, result_bytes=999)
    record = desk.wait(job_id)
    assert record.error is not None
    assert (record.error.code, record.error.message) == (
        "operation-error",
        "its result has 1000 bytes, and it declares 999",
    )
    assert list((desk.home / "store" / "results").iterdir()) == []


def test_a_worker_starts_one_for_tasks_while_some_wait_and_takes_none_itself(desk: Desk) -> None:
    start(desk, WARPDESK_TAKES="both")
    with desk.gate() as gate:
        job_id = submit(desk, steps=2, gate=gate)
        found = desk.until(
            lambda: next((each for each in desk.queue.workers() if each.takes == "tasks" and each.able), None),
            "nobody takes tasks",
        )
        assert found.started_by == desk.workers[0].pid
        assert desk.doubled(desk.wait(desk.submit("double"))) == [2.0, 4.0, 6.0], "a quick job does not wait for it"
    require_its_bytes(desk, desk.wait(job_id))


def test_tasks_have_an_environment_of_their_own_where_one_is_named(desk: Desk) -> None:
    python = desk.home / "python"
    python.write_text(f'#!/bin/sh\necho "$$" >> {desk.home}/used\nexec {sys.executable} "$@"\n')
    python.chmod(0o700)
    start(desk, WARPDESK_TAKES="both", WARPDESK_TASK_PYTHON=str(python))
    require_its_bytes(desk, desk.wait(submit(desk, steps=2)))
    (found,) = (report for report in desk.queue.workers() if report.takes == "tasks")
    assert (desk.home / "used").read_text() == f"{found.pid}\n", "it alone, and no worker of quick jobs"


def test_a_worker_that_lacks_a_library_leaves_the_task_to_one_that_has_it(desk: Desk) -> None:
    start(desk, WARPDESK_OPERATIONS="tests.workers.operations:WITHOUT_LIBRARY")
    job_id, unknown = submit(desk, steps=3), desk.submit("pack", params={}, task=True)
    (lacking,) = desk.queue.workers()
    assert lacking.tasks == {"chain": ("no-such-library",)}
    _await_claims(desk, 3)
    for each in (job_id, unknown):
        record = desk.queue.get(each)
        assert record is not None
        assert (record.state, record.attempt) == (State.QUEUED, 0), "it is not claimed"
    start(desk)
    record = desk.wait(job_id)
    require_its_bytes(desk, record)
    assert record.attempt == 1


def _await_claims(desk: Desk, count: int) -> None:
    """Wait until workers have asked for jobs so often and found none: one that waits says so each second."""
    times = set[float]()

    def is_enough() -> bool:
        times.update(score for _, score in cast(list[Any], redis.zrange(keys.IDLE, 0, -1, withscores=True)))
        return len(times) > count

    with connect(desk.url) as redis:
        desk.until(is_enough, "no worker asks")


def test_a_worker_starts_one_for_tasks_no_more_once_it_knows_that_it_can_run_none(desk: Desk) -> None:
    start(
        desk,
        WARPDESK_TAKES="both",
        WARPDESK_OPERATIONS="tests.workers.operations:WITHOUT_LIBRARY",
        WARPDESK_IDLE_EXIT_SECONDS="1",
    )
    job_id = submit(desk, steps=3)
    first = desk.until(lambda: [each for each in desk.queue.workers() if each.takes == "tasks"], "nobody takes tasks")
    desk.until(lambda: desk.workers[0].poll() is not None, "neither ended: the job keeps them")
    assert _state(desk, job_id) is State.QUEUED
    assert desk.log().count("worker of tasks") == 0, "it ended well"
    assert first[0].tasks == {"chain": ("no-such-library",)}


@pytest.mark.parametrize("takes", ["all", "quick", "long"])
def test_other_workers_leave_tasks_alone(desk: Desk, takes: str) -> None:
    start(desk, WARPDESK_TAKES=takes)
    job_id = submit(desk, steps=1)
    if takes != "long":
        assert desk.doubled(desk.wait(desk.submit("double"))) == [2.0, 4.0, 6.0]
    assert _state(desk, job_id) is State.QUEUED
