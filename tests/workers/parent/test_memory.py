"""Memory that runs out in a child costs the job that asked for it, and no other."""

from typing import Any

import numpy as np
import pytest

from tests.workers.conftest import Desk
from warpdesk.models import State

MIB = 1 << 20


@pytest.mark.parametrize(
    ("room", "operation", "params"),
    [(32, "double", {}), (64, "hoard", {"numbers": 32 * MIB})],
    ids=["to map its input", "to compute"],
)
def test_a_job_for_which_there_is_no_memory_fails_and_its_neighbours_do_not(
    desk: Desk, room: int, operation: str, params: dict[str, Any]
) -> None:
    started = desk.start_worker()
    assert started is not None
    assert desk.wait(desk.submit("confine", params={"room": room * MIB})).state is State.SUCCEEDED
    inputs = {"values": desk.array(np.ones(8_000_000))} if operation == "double" else {}
    with desk.gate() as gate:
        desk.nap("held", gate=gate)
        before, large, after = desk.submit(), desk.submit(operation, inputs, params=params), desk.submit()
    refused = desk.wait(large)
    assert refused.error is not None
    assert (refused.state, refused.attempt, refused.strikes) == (State.FAILED, 1, 0)
    assert (refused.error.code, refused.error.retryable) == ("out-of-memory", True)
    assert refused.error.message.startswith("out of memory on the CPU: ")
    assert [desk.doubled(desk.wait(job)) for job in (before, after)] == [[2.0, 4.0, 6.0]] * 2
    (worker,) = desk.queue.workers()
    assert (worker.child_pid, worker.restarts) == (started.child_pid, 0)
