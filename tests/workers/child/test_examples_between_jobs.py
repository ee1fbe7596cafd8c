"""Examples that a child tries between jobs on the CPU, where jobs are on its pipe before it is free."""

import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.workers.conftest import Desk
from warpdesk_server.workers.parent.child_process import ChildProcess
from warpdesk_server.workers.pipe import Answer, Assignment, Attempt, Orders, Starting, send
from warpdesk_server.workers.queue.counts import Tally
from warpdesk_server.workers.queue.protocol import Succeeded
from warpdesk_server.workers.settings import WorkerSettings

NAP: dict[str, Any] = {"seconds": 0.0, "marker": os.devnull}


@pytest.fixture
def child(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Iterator[ChildProcess]:
    for name in [name for name in os.environ if name.startswith("WARPDESK_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WARPDESK_HOME", str(desk.home))
    monkeypatch.setenv("WARPDESK_OPERATIONS", "tests.workers.operations:GATED")
    monkeypatch.setenv("WARPDESK_DEVICE", "cpu")
    monkeypatch.setenv("GATE", str(desk.home / "gate"))
    monkeypatch.setenv("SECOND_GATE", str(desk.home / "second"))
    desk.marker("second").touch()  # open, unless a test closes it
    made = ChildProcess(WorkerSettings(), Tally())
    yield made
    made.kill()


def begin(child: ChildProcess) -> None:
    """Start the child; return once it tries the example of `nap`, which waits at the gate."""
    child.spawn(Orders())
    while child.trial != "nap":
        child.hear()


def put(desk: Desk, child: ChildProcess, operation: str, **fields: Any) -> None:
    """Put a job on the child's pipe."""
    attempt = Attempt(request=desk.request(operation, **fields), attempt=1)
    send(child.pipe, Assignment(jobs=(attempt,)))


def next_event(child: ChildProcess) -> str:
    """The operation of the example that the child tries next, or the id of the job that it has answered."""
    while True:
        message = child.hear()
        if isinstance(message, Starting) and message.trial is not None:
            return message.trial
        if isinstance(message, Answer):
            assert isinstance(message.outcomes[0], Succeeded), message
            return message.job


def test_a_job_does_not_wait_for_examples_of_other_operations(desk: Desk, child: ChildProcess) -> None:
    with desk.gate("second"):
        with desk.gate():
            begin(child)
            put(desk, child, "nap", params=NAP)
        assert next_event(child) == "job_00000001"


def test_a_job_waits_for_the_example_of_its_operation(desk: Desk, child: ChildProcess) -> None:
    with desk.gate("second"):
        with desk.gate():
            begin(child)
            put(desk, child, "doze", params=NAP)
        assert next_event(child) == "doze"
    assert next_event(child) == "job_00000001"


def test_between_two_jobs_of_a_full_queue_an_example_is_tried(desk: Desk, child: ChildProcess) -> None:
    with desk.gate():
        begin(child)
        put(desk, child, "double")
        put(desk, child, "double")
    assert [next_event(child) for _ in range(3)] == ["job_00000001", "doze", "job_00000002"]
