"""A task's run in a child: how often it reports and keeps its state, and what it refuses."""

import hashlib
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.workers.operations import OPERATIONS
from tests.workers.stepping import CHAIN, PACK, ChainParams
from tests.workers.stepping.task import model
from warpdesk_server.kernels.operation import Input, Output
from warpdesk_server.kernels.task import Stopped, Task, Undisturbed
from warpdesk_server.workers.child import tasks
from warpdesk_server.workers.child.checkpoint import CheckpointHead
from warpdesk_server.workers.child.device import without_gpu
from warpdesk_server.workers.pipe import Attempt, FromChild, Stepped, StopTask, receive, send
from warpdesk_server.workers.queue import protocol
from warpdesk_server.workers.queue.protocol import Failed, JobRequest, ResultDocument
from warpdesk_server.workers.store.spool import SpoolStore

HEAD = CheckpointHead(step=0, seconds=0.0, code="c0de", work="3456")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


class Child:
    """The context of a task in this process, under a clock of the test, and what its parent is told."""

    def __init__(self, clock: Clock, parent: Connection, child: Connection, keep: Callable[..., None]) -> None:
        self.clock, self.parent = clock, parent
        self.store: Any = type("Store", (), {"keep_checkpoint": staticmethod(keep)})
        self.context = tasks._Context(CHAIN, Attempt(request=request(), attempt=1), HEAD, self.store, child, 10.0, None)

    def messages(self) -> list[Stepped]:
        found: list[FromChild] = [receive(self.parent) for _ in iter(self.parent.poll, False)]
        return [message for message in found if isinstance(message, Stepped)]


def request(**fields: Any) -> JobRequest:
    values: dict[str, Any] = {"params": {"steps": 3}, "inputs": {}, "timeout": 10.0, "result_ttl": 60.0, "seed": 7}
    values |= {"checkpoint_bytes": 1 << 20, "result_bytes": 1 << 20, "task": True, **fields}
    return JobRequest(id="job_1", owner="key_a", **{"operation": "chain", **values})


@contextmanager
def child(monkeypatch: pytest.MonkeyPatch, keep: Callable[..., None] = lambda *_: None) -> Iterator[Child]:
    clock = Clock()
    monkeypatch.setattr(tasks, "time", clock)
    parent, end = Pipe()
    with parent, end:
        yield Child(clock, parent, end, keep)


def test_reports_are_told_once_a_second_and_later_each_thousandth_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with child(monkeypatch) as one:
        rows = 0
        for step in range(1, 500):  # 50 s
            one.clock.now += 0.1
            one.context.report(step, loss=1.0)
            rows += sum(message.values is not None for message in one.messages())
        assert 45 <= rows <= 51
        one.clock.now += 10_000.0
        one.context.report(500, loss=1.0)
        rows = 0 * len(one.messages())
        for step in range(501, 601):
            one.clock.now += 1.0
            one.context.report(step, loss=1.0)
            rows += sum(message.values is not None for message in one.messages())
        assert rows == 9, "one in ten seconds"
        one.context.report(601, 1.0, loss=math.nan, rate=2)
        assert one.messages()[-1].values == {"loss": None, "rate": 2.0}, "the last one is always told"


def test_a_task_that_says_nothing_else_shows_life_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    with child(monkeypatch) as one:
        for step in range(1, 51):  # 5 s
            one.clock.now += 0.1
            one.context.checkpoint(step, dict)
        assert 4 <= len(one.messages()) <= 6


def test_checkpoints_take_a_fiftieth_of_the_time_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long one takes, and no sooner than the setting says."""

    def keep(*_: Any) -> None:
        nonlocal spent
        spent += cost
        one.clock.now += cost

    for cost, share in ((0.001, 0.0001), (0.5, 0.02), (4.0, 0.02)):
        spent = 0.0
        with child(monkeypatch, keep) as one:
            began = one.clock.now
            kept = []
            for step in range(1, 20_001):  # 2,000 s
                one.clock.now += 0.1
                one.context.checkpoint(step, dict)
                kept += [message for message in one.messages() if message.checkpoint]
            assert share / 2 < spent / (one.clock.now - began) <= share
            assert len(kept) == round(spent / cost)
            assert [message.checkpoint for message in kept] == [f"1.{message.step}" for message in kept]


@pytest.mark.parametrize("step", [0, -1, 10**12, 1.5, "one"])
def test_a_step_has_a_number(monkeypatch: pytest.MonkeyPatch, step: Any) -> None:
    with child(monkeypatch) as one:
        for call in (lambda: one.context.report(step), lambda: one.context.checkpoint(step, dict)):
            with pytest.raises(Exception, match="steps are numbered from 1 to 999999999999"):
                call()
        assert one.messages() == []


def test_a_report_has_few_values_and_the_last_one_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with child(monkeypatch) as one:
        for values in ({f"value_{number}": 1.0 for number in range(33)}, {"v" * 65: 1.0}):
            with pytest.raises(Exception, match="a report has at most 32 values, of 64 letters each"):
                one.context.report(1, **values)
        for step in range(1, 100):
            one.context.report(step, 1.0, loss=0.0)
        assert sum(message.values is not None for message in one.messages()) == 1


@pytest.mark.parametrize(("done", "expected"), [(1.5, 1.0), (-0.1, 0.0), (math.nan, None), (math.inf, None), (0, 0.0)])
def test_a_part_that_is_done_is_from_0_to_1(
    monkeypatch: pytest.MonkeyPatch, done: float, expected: float | None
) -> None:
    with child(monkeypatch) as one:
        one.context.report(1, done)
        assert [message.done for message in one.messages()] == [expected]


def test_a_task_can_see_that_it_has_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    with child(monkeypatch) as one:
        assert not one.context.stop
        send(one.parent, StopTask(job="job_1"))
        assert one.context.stop
        assert one.context.stop


def test_a_stop_whose_state_cannot_be_kept_is_tried_again_after_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    full = True

    def keep(*_: Any) -> None:
        if full:
            raise OSError(28, "the disk is full")

    with child(monkeypatch, keep) as one:
        send(one.parent, StopTask(job="job_1"))
        one.context.checkpoint(1, dict)
        one.context.checkpoint(2, dict)
        full = False
        with pytest.raises(Stopped):
            one.context.checkpoint(3, dict)
        assert one.messages()[-1].checkpoint == "1.3"


def test_a_task_that_is_told_to_stop_keeps_its_state_and_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    with child(monkeypatch) as one:
        one.context.checkpoint(1, dict)
        assert not one.context.stop
        send(one.parent, StopTask(job="job_1"))
        with pytest.raises(Stopped):
            one.context.checkpoint(2, dict)
        assert (one.context.stop, one.messages()[-1].checkpoint) == (True, "1.2")


def test_what_was_meant_for_a_task_before_it_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    with child(monkeypatch) as one:
        send(one.parent, StopTask(job="job_0"))
        one.context.checkpoint(1, dict)
        assert not one.context.stop


def test_a_disk_that_is_full_costs_the_checkpoint_and_not_the_task(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def keep(*_: Any) -> None:
        raise OSError(28, "the disk is full")

    with child(monkeypatch, keep) as one:
        one.clock.now += 11
        one.context.checkpoint(1, dict)
        assert not any(message.checkpoint for message in one.messages())
        assert "no checkpoint after step 1" in caplog.text


@pytest.fixture
def store(tmp_path: Path) -> SpoolStore:
    return SpoolStore(tmp_path / "store")


def outcome(store: SpoolStore, task: Any = CHAIN, **fields: Any) -> Any:
    parent, end = Pipe()
    with parent, end:
        attempt = Attempt(request=request(**fields), attempt=1)
        return tasks.run(attempt, {attempt.request.operation: task}, store, without_gpu("none here"), end, 10.0)


def test_a_task_whose_libraries_are_missing_says_which(store: SpoolStore) -> None:
    failed = outcome(store, replace(CHAIN, libraries=("numpy", "a-library-that-nobody-has")))
    reason = "chain needs a-library-that-nobody-has, which this worker's environment lacks"
    assert failed == protocol.Stopped(step=0, reason=reason), "another worker may have it, and a checkpoint stays"


def test_a_task_that_needs_more_memory_than_there_is_begins_nothing(store: SpoolStore) -> None:
    failed = outcome(store, size=1 << 60)
    assert failed.code == "out-of-memory"
    assert failed.retryable
    assert f"chain needs {1 << 60} bytes, and this worker's machine has" in failed.message


def test_a_task_that_insists_on_a_gpu_has_one_or_fails(store: SpoolStore) -> None:
    assert outcome(store, backend="gpu").code == "no-gpu-worker"
    on_the_cpu = outcome(store, backend="auto")
    assert (on_the_cpu.provenance.backend, on_the_cpu.provenance.fallback_reason) == ("cpu", "none here")
    assert outcome(store, backend="cpu").provenance.fallback_reason is None


class _Stumbling(Task):
    """The chain, but that it raises what the test says."""

    def function(self) -> Any:
        def stumble(*_: Any, **__: Any) -> dict[str, Any]:
            raise self.params.error  # type: ignore[attr-defined]

        return stumble


@pytest.mark.parametrize("error", [EOFError("a short file"), ConnectionResetError("a peer"), KeyError("a name")])
def test_an_error_of_the_tasks_own_is_its_failure_and_no_death(
    store: SpoolStore, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ChainParams, "error", error, raising=False)
    stumbling = _Stumbling(**{field.name: getattr(CHAIN, field.name) for field in fields(CHAIN)})
    failed = outcome(store, stumbling)
    assert failed == Failed(code="operation-error", message=f"chain failed with {type(error).__name__}")


def test_a_result_that_is_larger_than_the_task_declares_is_refused(store: SpoolStore) -> None:
    failed = outcome(store, result_bytes=31)
    assert failed.message == "its result has 32 bytes, and it declares 31"


def packed(store: SpoolStore, result_bytes: int = 1 << 20, **params: Any) -> Any:
    return outcome(store, PACK, result_bytes=result_bytes, params=params, operation="pack")


@pytest.mark.parametrize("forced", [True, False])
@pytest.mark.parametrize("way", ["in place", "bytes", "elsewhere"])
def test_a_task_returns_files(tmp_path: Path, way: str, forced: bool) -> None:
    """Written where its context says, or elsewhere, or as bytes; one is empty."""
    store = SpoolStore(tmp_path / "store", "always" if forced else "everysec")
    done = packed(store, size=300_000, way=way, elsewhere=str(tmp_path / "elsewhere"))
    folder = store.result(done.result)
    assert sorted(file.name for file in folder.iterdir()) == ["model-model.bin", "notes-notes.html", "result.json"]
    document = ResultDocument.model_validate_json((folder / "result.json").read_bytes())
    found, size, notes = document.outputs.values()
    assert found.model_dump() == {
        "file": "model-model.bin",
        "name": "model.bin",
        "media_type": "application/octet-stream",
        "bytes": 300_000,
        "sha256": hashlib.sha256(model(300_000)).hexdigest(),
    }
    assert size.model_dump() == {"value": 300_000}
    assert (notes.model_dump()["bytes"], notes.model_dump()["sha256"]) == (0, hashlib.sha256().hexdigest())
    assert (folder / "model-model.bin").read_bytes() == model(300_000)
    assert done.bytes == 300_000


@pytest.mark.parametrize("way", ["in place", "bytes", "elsewhere"])
def test_a_file_that_is_larger_than_the_task_declares_is_refused(tmp_path: Path, store: SpoolStore, way: str) -> None:
    refused = packed(store, result_bytes=299_999, size=300_000, way=way, elsewhere=str(tmp_path / "elsewhere"))
    assert refused == Failed(
        code="operation-error", message="its result has 300000 bytes, and it declares 299999", retryable=False
    )


@pytest.mark.parametrize("way", ["text", "not at all"])
def test_what_is_no_file_is_no_output(store: SpoolStore, way: str) -> None:
    assert packed(store, way=way).code == "operation-error"


def test_a_full_disk_is_no_error_of_a_task_that_returns_files(tmp_path: Path) -> None:
    full = SpoolStore(tmp_path / "store", kept_free=1 << 60)
    assert packed(full, way="bytes").code == "storage-full"


ODD_NAMES = ["", ".", "..", ".hidden", "../up", "a/b", "a\\b", "a\nb", 'a"b', "a b", "ä", "a" * 101]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_no_name_of_a_file_leaves_its_folder(name: str) -> None:
    with pytest.raises(ValueError, match="are no name and type of a file"):
        Output("model", "", "file", name, "text/plain")


@pytest.mark.parametrize("media_type", ["", "text", "text/html; charset=utf-8", "text/html\r\nX: y", "*/*"])
def test_a_file_has_a_media_type(media_type: str) -> None:
    with pytest.raises(ValueError, match="are no name and type of a file"):
        Output("model", "", "file", "model.bin", media_type)


def test_a_context_has_a_place_for_files_that_are_declared_alone(tmp_path: Path, store: SpoolStore) -> None:
    parent, end = Pipe()
    with parent, end:
        context = tasks._Context(PACK, Attempt(request=request(), attempt=1), HEAD, store, end, 10.0, None)
        for output in ("size", "../notes", "other"):
            with pytest.raises(KeyError):
                context.file(output)
        assert context.file("notes") == context.file("notes") == store.result("job_1.1") / "notes-notes.html"


def test_an_operation_has_no_files() -> None:
    with pytest.raises(TypeError, match="only a task has outputs that are files"):
        replace(OPERATIONS["double"], outputs=PACK.outputs)


def test_an_unknown_task_and_wrong_params_are_the_callers(store: SpoolStore) -> None:
    assert outcome(store, replace(CHAIN, name="other"), params={"steps": "three"}).code == "invalid-input"


def test_a_task_is_told_apart_by_its_code_and_its_libraries() -> None:
    assert CHAIN.code == replace(CHAIN).code
    assert CHAIN.code != replace(CHAIN, uses=("tests.workers.misbehaving",)).code
    assert CHAIN.code != replace(CHAIN, libraries=("numpy",)).code


def test_a_confidential_task_is_refused() -> None:
    with pytest.raises(ValueError, match="must not leave behind"):
        replace(CHAIN, randomness="private")
    with pytest.raises(ValueError, match="must not leave behind"):
        replace(CHAIN, inputs=(Input("key", "a secret", ("float64",), (1,), secret=True),))


def test_whoever_runs_a_task_alone_needs_no_worker() -> None:
    context = Undisturbed()
    outputs = CHAIN.function()(CHAIN.params(steps=3), context, seed=1)
    assert outputs["numbers"].dtype == np.uint64
    assert [(step, done) for step, done, _ in context.reports] == [(1, 1 / 3), (2, 2 / 3), (3, 1.0)]
