"""A plan whose child is killed in one of its steps: the next attempt gives the same bytes, and each step ran whole."""

from typing import Any

import numpy as np

from tests.workers.conftest import Desk
from warpdesk.models import State
from warpdesk_server.workers.queue.protocol import kinds_taken

PLANS = {"WARPDESK_OPERATIONS": "tests.workers.operations:WITH_PLANS"}


def plan(desk: Desk, killed_at: int | None) -> dict[str, Any]:
    """Four doubles, with a step before one of them that kills the child once."""
    steps: list[dict[str, Any]] = []
    for at in range(4):
        if at == killed_at:
            marks = desk.home / f"marks{at}"
            marks.mkdir()
            steps.append({"id": "kill", "operation": "die", "params": {"times": 1, "marker": str(marks)}})
        source = f"d{at - 1}.doubled" if at else "values"
        steps.append({"id": f"d{at}", "operation": "double", "inputs": {"values": source}})
    return {"steps": steps, "outputs": {"all": {"from": "d3.doubled"}, "one": {"from": "d1.doubled", "last": 2}}}


def test_a_child_killed_at_each_step_costs_an_attempt_and_no_byte(desk: Desk) -> None:
    desk.start_worker(**PLANS)
    inputs = {"values": desk.array([1.0, 2.0, 3.0])}
    for killed_at in (None, 0, 1, 2, 3):
        job_id = desk.submit("plan", inputs, params=plan(desk, killed_at), plan=True)
        record = desk.wait(job_id)
        assert (record.state, record.attempt) == (State.SUCCEEDED, 1 if killed_at is None else 2), record.error
        assert record.result is not None
        folder = desk.store.result(record.result)
        np.testing.assert_array_equal(np.load(folder / "all.npy"), [16.0, 32.0, 48.0])
        np.testing.assert_array_equal(np.load(folder / "one.npy"), [8.0, 12.0])
        assert desk.results() == [record.result]
        desk.store.delete_result(record.result)


def test_only_who_takes_quick_jobs_takes_quick_plans() -> None:
    taken = {
        takes: [kind for kind in kinds_taken(takes, gpu=False) if "plan" in kind]
        for takes in ("all", "quick", "long", "tasks", "")
    }
    assert taken == {"all": ["plan", "long-plan"], "quick": ["plan"], "long": ["long-plan"], "tasks": [], "": []}
