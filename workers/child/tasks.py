"""The run of a task in the child process: from its latest checkpoint, step by step, until it is done or has to stop."""

import errno
import hashlib
import json
import logging
import math
import operator
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from warpdesk_server.kernels.gpu.contract import Device
from warpdesk_server.kernels.gpu.faults import DeviceLost, NoDevice
from warpdesk_server.kernels.params import Params
from warpdesk_server.kernels.task import State, Stopped, Task
from warpdesk_server.workers.child import checkpoint, codec, execute
from warpdesk_server.workers.child.checkpoint import Checkpoint, CheckpointHead
from warpdesk_server.workers.child.device import Probe, cpu_name
from warpdesk_server.workers.logs import about
from warpdesk_server.workers.pipe import Attempt, Stepped, send, told_to_stop
from warpdesk_server.workers.process import available_memory
from warpdesk_server.workers.queue import protocol
from warpdesk_server.workers.queue.protocol import Failed, JobRequest, Provenance, Succeeded
from warpdesk_server.workers.store.checkpoints import checkpoint_name
from warpdesk_server.workers.store.protocol import WorkerStore, result_name

log = logging.getLogger("warpdesk.task")

ALIVE_SECONDS = 1.0  # between two signs of life at the most, where steps are shorter
REPORT_SECONDS = 1.0  # between two reports at the least, and then a thousandth of the time so far: 5,500 in a day
_REPORTS = 1000
MOST_VALUES, LONGEST_NAME = 32, 64  # of a report
MOST_STEPS = 10**12
_BYTES_A_SECOND = 200e6  # of the first checkpoint, about: a slow disk that has to be waited for
CHECKPOINT_PART = 0.02  # of a task's time that its checkpoints may take


@dataclass
class _Context:
    """The context of the task that this child runs (`kernels.task.Context`)."""

    task: Task
    attempt: Attempt
    head: CheckpointHead  # as of the last step whose state was kept
    store: WorkerStore
    pipe: Connection
    least_seconds: float  # between two checkpoints
    device: Device | None
    state: State | None = None
    resumed_from: int | None = None
    again: str = ""  # why the task began with its first step although there was a checkpoint
    _asked_to_stop: bool = False
    _is_done: bool = False  # it was reported
    _sent_at: float = 0.0
    _reported_at: float = -math.inf
    _cost: float = 0.0  # seconds that the last checkpoint took; of the first, what it may take

    def __post_init__(self) -> None:
        self._before = self.head.seconds
        self._began = self._kept_at = time.monotonic()
        self._cost = self.attempt.request.checkpoint_bytes / _BYTES_A_SECOND

    @property
    def seconds(self) -> float:
        """What the task's steps took together, without those that were repeated."""
        return self._before + time.monotonic() - self._began

    @property
    def stop(self) -> bool:
        if not self._asked_to_stop:
            with self._parent():
                self._asked_to_stop = told_to_stop(self.pipe, self.attempt.request.id)
        return self._asked_to_stop

    def file(self, output: str) -> Path:
        places = {each.name: each.stored_as for each in self.task.outputs if each.kind == "file"}
        return self.folder / places[output]

    @cached_property
    def folder(self) -> Path:
        """The folder of this attempt's result, which the store deletes where the attempt does not succeed."""
        return self.store.new_result(self.attempt.request.id, self.attempt.attempt, codec.files(self.task))

    def report(self, step: int, done: float | None = None, **values: float) -> None:
        now, step = time.monotonic(), _step(step)
        if len(values) > MOST_VALUES or any(len(name) > LONGEST_NAME for name in values):
            raise _Over("operation-error", f"a report has at most {MOST_VALUES} values, of {LONGEST_NAME} letters each")
        if done is not None:
            done = min(max(float(done), 0.0), 1.0) if math.isfinite(done) else None
        is_last = done == 1.0 and not self._is_done
        if now - self._reported_at < max(REPORT_SECONDS, self.seconds / _REPORTS) and not is_last:
            self._show_life(step, now)
            return
        self._reported_at, self._is_done = now, self._is_done or is_last
        finite = {name: float(value) if math.isfinite(value) else None for name, value in values.items()}
        self._send(Stepped(job=self.attempt.request.id, step=step, done=done, values=finite))

    def checkpoint(self, step: int, make: Callable[[], State]) -> None:
        request, now, step = self.attempt.request, time.monotonic(), _step(step)
        if request.seconds is not None and self.seconds > request.seconds:
            raise _Over("timeout", f"its steps may take {request.seconds:g} s together, and {step} of them took longer")
        if not (self.stop or now - self._kept_at >= self._interval):
            self._show_life(step, now)
        elif self._keep(step, make()) and self.stop:  # else it tries to stop after the next step
            raise Stopped

    @property
    def _interval(self) -> float:
        """Seconds between two checkpoints of the task; 0 where each step is to have one."""
        return max(self.least_seconds, self._cost / CHECKPOINT_PART) if self.least_seconds else 0.0

    def _keep(self, step: int, state: State) -> bool:
        """Write the task's state to the store, and report that it is there; whether it is. If not, the task goes on."""
        request, began = self.attempt.request, time.monotonic()
        self._send(Stepped(job=request.id, step=step))  # to write may take as long as a step
        head = CheckpointHead(step, self.seconds, self.head.code, self.head.work)
        name = checkpoint_name(self.attempt.attempt, step)
        try:
            self.store.keep_checkpoint(
                result_name(request.id, self.attempt.attempt),
                name,
                lambda file: checkpoint.write(file, Checkpoint(head, state)),
                request.checkpoint_bytes,
                self.attempt.claim,
            )
        except OSError as error:
            if error.errno == errno.EFBIG:
                raise _Over("operation-error", error.strerror or "its checkpoint is too large") from None
            log.warning("%s: no checkpoint after step %d: %s", request.id, step, error, extra=about(request))
            return False
        else:
            self.head = head
            self._send(Stepped(job=request.id, step=step, checkpoint=name))
            return True
        finally:
            self._kept_at = time.monotonic()
            self._cost = self._kept_at - began

    def _show_life(self, step: int, now: float) -> None:
        if now - self._sent_at >= ALIVE_SECONDS:
            self._send(Stepped(job=self.attempt.request.id, step=step))

    def _send(self, message: Stepped) -> None:
        self._sent_at = time.monotonic()
        if self.again:
            message, self.again = message.model_copy(update={"again": self.again}), ""
        with self._parent():
            send(self.pipe, message)

    @contextmanager
    def _parent(self) -> Iterator[None]:
        """A word with the parent. An error of the pipe is told apart from those of the task's own files."""
        try:
            yield
        except (EOFError, OSError):
            raise _ParentHasGone from None


class _ParentHasGone(Exception):
    pass


def _step(step: int) -> int:
    """A task's number of a step. Raises _Over for one that is none."""
    try:
        number = operator.index(step)
    except TypeError:
        number = 0
    if not 1 <= number < MOST_STEPS:
        raise _Over("operation-error", f"steps are numbered from 1 to {MOST_STEPS - 1}")
    return number


class _Over(Exception):
    """Raised in a task that takes more time, or more of the disk or of the queue, than it may."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def run(
    attempt: Attempt,
    tasks: Mapping[str, Task],
    store: WorkerStore,
    found: Probe,
    pipe: Connection,
    least_seconds: float,
    keep_off_gpu: str | None = None,
) -> Succeeded | Failed | protocol.Stopped:
    """Run an attempt of a task in the child until it is done, has failed, or was told to stop by the parent.

    `least_seconds` are between two checkpoints. Raises DeviceLost, after which this process must end. Every other
    failure is a value whose message holds no data.
    """
    request = attempt.request
    task = tasks.get(request.operation)
    if task is None:  # another release has it, and perhaps a checkpoint of it
        return protocol.Stopped(step=0, reason=f"this worker has no task {request.operation!r}")
    if task.missing:
        lacks = f"{task.name} needs {', '.join(task.missing)}, which this worker's environment lacks"
        return protocol.Stopped(step=0, reason=lacks)
    try:
        device, reason = _device(task, request, found, keep_off_gpu)
        if (free := available_memory()) is not None and request.size > free:
            message = f"{task.name} needs {request.size} bytes, and this worker's machine has less"
            return Failed(code="out-of-memory", message=message, retryable=True)
        params, inputs = codec.decode(task, request, store, {}, attempt.attached)
        context = _resumed(attempt, task, params, store, pipe, least_seconds, device)
        given: dict[str, Any] = dict(inputs)
        if task.randomness == "seed":
            given["seed"] = request.seed
        outputs = task.function()(params, context, **given)
        return _succeeded(task, attempt, outputs, context, store, reason)
    except Stopped:
        return protocol.Stopped(step=context.head.step)
    except DeviceLost:
        raise
    except _ParentHasGone:
        raise EOFError from None
    except _Over as error:
        return Failed(code=error.code, message=str(error))
    except Exception as error:  # noqa: BLE001 (a bug in a task must not end the worker)
        return execute.failure(task, request, error)


def _device(
    task: Task, request: JobRequest, found: Probe, keep_off_gpu: str | None
) -> tuple[Device | None, str | None]:
    """The GPU on which a task runs, or why it runs on the CPU. Raises NoDevice."""
    if request.backend == "cpu":
        return None, None
    reason = None
    if found.device is None:
        reason = found.report.reason or "there is no GPU"
    elif not task.gpu:
        reason = f"{task.name} has no GPU implementation"
    elif request.backend != "gpu":
        reason = keep_off_gpu
    if reason is not None and request.backend == "gpu":
        raise NoDevice(reason)
    return (found.device if reason is None else None), reason


def _resumed(
    attempt: Attempt,
    task: Task,
    params: Params,
    store: WorkerStore,
    pipe: Connection,
    least_seconds: float,
    device: Device | None,
) -> _Context:
    """The context of a task with the state of its latest checkpoint, if there is one of the same work and code."""
    request = attempt.request
    described = [params.model_dump(mode="json"), request.inputs, request.seed]
    work = hashlib.blake2b(json.dumps(described, sort_keys=True).encode(), digest_size=16).hexdigest()
    head = CheckpointHead(0, 0.0, task.code, work)
    context = _Context(task, attempt, head, store, pipe, least_seconds, device)
    if not attempt.checkpoint:
        return context
    context.again, changed = "its checkpoint cannot be read any more; it begins again", False
    for file in store.checkpoints(request.id, attempt.checkpoint, attempt.attempt, attempt.claim):
        try:
            kept = checkpoint.read(file)
        except ValueError as error:
            log.warning("%s: %s", request.id, error, extra=about(request))
            continue
        if kept.head.work != work:
            continue
        if kept.head.code != task.code:
            if not changed:
                changed = True
                context.again = f"its code has changed since the checkpoint of step {kept.head.step}; it begins again"
            continue
        context = _Context(task, attempt, kept.head, store, pipe, least_seconds, device, kept.state)
        context.resumed_from = kept.head.step
        break
    if context.again:
        log.warning("%s: %s", request.id, context.again, extra=about(request))
    return context


def _succeeded(
    task: Task, attempt: Attempt, outputs: Mapping[str, Any], context: _Context, store: WorkerStore, reason: str | None
) -> Succeeded | Failed:
    """The outcome of a task that is done, whose result is in the store."""
    request = attempt.request
    size = codec.size(task, outputs)
    if size > request.result_bytes:
        raise _Over("operation-error", f"its result has {size} bytes, and it declares {request.result_bytes}")
    directory = context.folder
    present = sum(file.stat().st_size for file in directory.iterdir())
    store.require_room(max(0, size - present))
    codec.encode(task, request, outputs, directory, store, time.time())
    if unkept := store.finish_results([directory.name]):
        raise unkept[directory.name]
    provenance = Provenance(
        backend="cpu" if context.device is None else "gpu",
        device=cpu_name() if context.device is None else context.device.name,
        fallback_reason=reason,
        attempt=attempt.attempt,
        seed=request.seed if task.randomness == "seed" else None,
        compute_seconds=context.seconds,
        resumed_from=context.resumed_from,
    )
    return Succeeded(result=directory.name, provenance=provenance, bytes=size)
