"""The warm child: one process that owns the device, the compiled kernels and the data, and knows nothing of Redis.

Started by `workers.parent.child_process` as `python -m warpdesk_server.workers.child.main <pipe> <calls> <parent's
pid>`, two file descriptors and a process, and told first what to leave alone. It answers one assignment at a time and
may be killed at any moment.
"""

import gc
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from multiprocessing.connection import Connection
from typing import Any

from warpdesk_server.kernels.gpu import canary
from warpdesk_server.kernels.gpu.canary import Miscomputed
from warpdesk_server.kernels.gpu.contract import Copied, Device, Times
from warpdesk_server.kernels.gpu.cubins import CubinCounts, Cubins
from warpdesk_server.kernels.gpu.faults import DeviceFault, DeviceLost, OutOfMemory
from warpdesk_server.kernels.operation import Computation
from warpdesk_server.workers import logs
from warpdesk_server.workers.calls import Calls
from warpdesk_server.workers.child import codec, execute, tasks
from warpdesk_server.workers.child.clusters.link import ClusterLink
from warpdesk_server.workers.child.cost import Costs, costs_of
from warpdesk_server.workers.child.device import probe, without_gpu
from warpdesk_server.workers.child.warmup import Trial, documented, start_second_compiler, try_example, variants
from warpdesk_server.workers.child.watched import WatchedDevice
from warpdesk_server.workers.pipe import (
    LOST_DEVICE,
    Answer,
    Assignment,
    Checked,
    Checking,
    Lost,
    Orders,
    Progressed,
    Ready,
    Starting,
    Step,
    receive_assignment,
    receive_orders,
    send,
)
from warpdesk_server.workers.process import die_with, yield_to_others
from warpdesk_server.workers.queue.protocol import Failed, Stopped, Succeeded, Transfers
from warpdesk_server.workers.queue.reports import DeviceMemory, FailedExample, WarmUp
from warpdesk_server.workers.settings import WorkerSettings
from warpdesk_server.workers.store.choice import open_store
from warpdesk_server.workers.store.protocol import result_name

log = logging.getLogger("warpdesk.child")

PROGRESS_SECONDS = 0.25

# How long a job that waits in the queue may take to reach the child, after an example that was compiled: it goes before
# the next one.
HANDOVER_SECONDS = 0.02

# Answers with noise in them are given at multiples of this by the clock: how long one took tells of its noise.
TICK_SECONDS = 0.01


def main(descriptor: int, calls: int, parent: int) -> int:
    """Run the child process: probe, warm up, then serve until the parent closes the pipe."""
    die_with(parent)
    # A terminal's Ctrl-C and a group's SIGTERM are for the parent: it decides whether this process may finish its job.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.set_inheritable(descriptor, False)
    pipe = Connection(descriptor)
    current_call = Calls(calls)
    os.close(calls)
    settings = WorkerSettings()
    os.environ.update(settings.cache_environment())
    logs.configure(settings.log_format, settings.log_level, worker=logs.worker_of(parent))
    try:
        _Child(pipe, settings, receive_orders(pipe), current_call).serve()
    except DeviceLost as fault:
        send(pipe, Lost(message=str(fault), kernel=fault.kernel or "", wrong=isinstance(fault, Miscomputed)))
        return LOST_DEVICE
    except (EOFError, ConnectionError):
        pass  # the parent has gone
    return 0


class _Child:
    """The child process' state and main loop. It opens the device when it is made; DeviceLost ends it."""

    def __init__(self, pipe: Connection, settings: WorkerSettings, orders: Orders, calls: Calls) -> None:
        began = time.monotonic()
        self._pipe = pipe
        self._store = open_store(settings)
        self._operations = settings.catalogue()
        self._computed: Mapping[str, Computation] = {**self._operations, **settings.plans()}
        self._canary_at: float | None = None
        self._canary_every = settings.canary_seconds
        self._canary_due = 0.0
        if orders.no_gpu is None and settings.device != "cpu":
            send(pipe, Starting(step="looking for a GPU"))
        found = probe(settings.device, settings.gpu_memory) if orders.no_gpu is None else without_gpu(orders.no_gpu)
        self._cubins: Cubins | None = getattr(found.device, "cubins", None)
        self._compiled = CubinCounts(0, 0, 0)  # as told last
        self._bare: Device | None = found.device  # the canary is no job: nobody notes what it launches
        self._device = None if found.device is None else WatchedDevice(found.device, calls)
        self._found = replace(found, device=self._device)
        self._costs: Costs | None = None
        self._cluster = ClusterLink(settings.shards_on, settings.cool_down_seconds) if settings.shards_on else None
        self._tasks = settings.tasks() if settings.takes == "tasks" else {}
        self._checkpoint_seconds = settings.checkpoint_seconds
        if self._device is not None:
            execute.prepare(self._operations.values())
            self._costs = costs_of(settings, found.report)
        self._ask_the_canary()
        self._skip = orders.skip
        self._untried = dict[str, Trial]()  # examples, by their names
        self._tried = 0
        self._example_due = False  # since a job was computed after the last one: a full queue must not put them off
        self._handover = 0.0  # how long a job of the queue is waited for before the next one
        failed = self._warm_up(settings)
        _freeze()
        if settings.takes in ("long", "tasks"):
            yield_to_others(on_gpu=self._device is not None)
        ready = Ready(
            device=found.report,
            seconds=time.monotonic() - began,
            warm_up=self._progress(),
            failed=tuple(failed),
            **self._of_device(),
        )
        send(pipe, ready)

    def serve(self) -> None:
        while True:
            if self._untried and (self._example_due or not self._pipe.poll(self._handover)):
                self._try_between_jobs(next(iter(self._untried)))
                continue
            if self._device is not None:
                left = self._canary_due - time.monotonic()
                if left <= 0 or not self._pipe.poll(left):
                    self._check()
                    continue
            self._answer(receive_assignment(self._pipe))

    def _answer(self, work: Assignment) -> None:
        if work.first.operation in self._untried:
            self._try_between_jobs(work.first.operation)
        device, expect = self._device, None
        if device is not None:
            expect = device.expect
            if work.canary:
                self._check()
            device.begin(work.refused, sum(job.request.work for job in work.jobs))
        jobs = [(job.request, job.attempt) for job in work.jobs]
        keys = {job.request.id: bytes.fromhex(job.key) for job in work.jobs if job.key is not None}
        launches: list[Times] = []
        tokens = {result_name(job.request.id, job.attempt): job.claim for job in work.jobs}
        with self._store.at_hand(jobs, tokens):
            outcomes = (
                [self._run_task(work)]
                if work.first.task
                else execute.run(
                    jobs,
                    self._store,
                    self._found,
                    self._computed,
                    work.keep_off_gpu,
                    self._costs,
                    expect,
                    _Teller(self._pipe, work.first.id),
                    keys,
                    launches.append,
                    {job.request.id: job.attached for job in work.jobs if job.attached},
                    work.gpu_wait,
                    tokens,
                    self._cluster,
                )
            )
        self._example_due = True
        operation = self._operations.get(work.first.operation)
        if operation is not None and operation.randomness == "private":
            time.sleep(until_tick(time.monotonic()))
        answer = Answer(job=work.first.id, outcomes=tuple(outcomes))
        if device is not None:
            noted = {
                "kernels": tuple(sorted(device.launched)),
                "faults": tuple(device.faults),
                "transfers": _transfers(launches),
            }
            try:
                answer = answer.model_copy(update={**noted, **self._of_device()})
            except DeviceLost:  # after the jobs were computed: they are answered all the same
                send(self._pipe, answer)
                raise
        send(self._pipe, answer)
        if operation is not None and work.first.shard is None and not self._pipe.poll():
            self._store.make_ahead(codec.files(operation))

    def _run_task(self, work: Assignment) -> Succeeded | Failed | Stopped:
        return tasks.run(
            work.jobs[0], self._tasks, self._store, self._found, self._pipe, self._checkpoint_seconds, work.keep_off_gpu
        )

    def _warm_up(self, settings: WorkerSettings) -> list[FailedExample]:
        """Warm the child up: try every example and variant on a GPU, and on the CPU until one example succeeds.

        Returns those that failed.
        """
        if settings.takes == "tasks":
            return []  # an example of a task may take minutes, and its libraries are loaded for a job that needs them
        self._plan(documented(self._operations.values()))
        self._tell()
        if self._device is None and settings.takes == "long":
            # The worker beside it compiles the others. At this one's priority a lock of theirs may be held for long.
            failed = self._try_all(until_one_succeeds=True)
            self._untried.clear()
            return failed
        start_second_compiler(settings)
        if self._device is None:
            return self._try_all(until_one_succeeds=True)
        failed = self._try_all()
        broken = {failure.operation for failure in failed}
        self._plan(variants(operation for operation in self._operations.values() if operation.name not in broken))
        return failed + self._try_all()

    def _plan(self, trials: Iterable[Trial]) -> None:
        self._untried.update({str(trial): trial for trial in trials})

    def _try_all(self, until_one_succeeds: bool = False) -> list[FailedExample]:
        failed = []
        while self._untried:
            if (failure := self._try(next(iter(self._untried)))) is not None:
                failed.append(failure)
            elif until_one_succeeds:
                break
        return failed

    def _try(self, name: str) -> FailedExample | None:
        self._tell(name)
        began = time.monotonic()
        failure = try_example(self._untried[name], self._found, self._skip)
        self._handover = HANDOVER_SECONDS if time.monotonic() - began > 5 * HANDOVER_SECONDS else 0.0
        self._example_due = False
        del self._untried[name]
        self._tried += 1
        return failure

    def _try_between_jobs(self, name: str) -> None:
        failure = self._try(name)
        self._tell(failed=() if failure is None else (failure,))
        if not self._untried:
            _freeze()

    def _tell(self, trial: str | None = None, failed: tuple[FailedExample, ...] = ()) -> None:
        step: Step = "warming up on the CPU" if self._device is None else "warming up on the GPU"
        send(self._pipe, Starting(step=step, trial=trial, warm_up=self._progress(), failed=failed))

    def _progress(self) -> WarmUp:
        return WarmUp(done=self._tried, of=self._tried + len(self._untried))

    def _check(self) -> None:
        """Run the child's canary check with a message before and after it.

        The parent ends this process if the check hangs.
        """
        send(self._pipe, Checking(began=time.monotonic()))
        trouble = self._ask_the_canary()
        send(self._pipe, Checked(trouble=trouble, **self._of_device()))

    def _ask_the_canary(self) -> str | None:
        """Run the child's canary check; returns why it could not run.

        Raises DeviceLost if the answer is wrong or missing.
        """
        self._canary_due = time.monotonic() + self._canary_every
        if self._bare is None:
            return None
        try:
            canary.check(self._bare)
        except DeviceLost:
            raise
        except OutOfMemory as fault:
            log.warning("the canary could not be asked: %s", fault)
            return str(fault)
        except DeviceFault as fault:
            raise DeviceLost(f"the canary could not be launched: {fault}", fault.code) from None
        self._canary_at = time.time()
        return None

    def _of_device(self) -> dict[str, Any]:
        if self._device is None:
            return {}
        memory = DeviceMemory(**asdict(self._device.memory.report()))
        status: dict[str, Any] = {"canary_at": self._canary_at, "memory": memory}
        if self._cubins is not None and (now := self._cubins.counts) != (before := self._compiled):
            self._compiled = now
            since = {
                "hit": now.found - before.found,
                "miss": now.compiled - before.compiled,
                "error": now.failed - before.failed,
            }
            status["compilations"] = {kind: count for kind, count in since.items() if count}
        return status


def _transfers(launches: Sequence[Times]) -> Transfers | None:
    """The bytes and seconds of the copies of the child's launches whose times are not private; None without any."""
    if not launches:
        return None
    up, down = (sum((getattr(times, way) for times in launches), Copied()) for way in ("up", "down"))
    return Transfers(h2d_bytes=up.nbytes, h2d_seconds=up.seconds, d2h_bytes=down.nbytes, d2h_seconds=down.seconds)


def _freeze() -> None:
    """Keep the child's libraries and compiled code out of garbage collection: they stay until the end.

    A collection that looks through them takes 0.1 s of some job.
    """
    gc.collect()
    gc.freeze()


def until_tick(now: float) -> float:
    """Seconds that the child waits before it answers a private job: until the clock shows a multiple of the tick."""
    return TICK_SECONDS - now % TICK_SECONDS


class _Teller:
    """The child's reporter of a job's progress to its parent.

    It sends a few messages a second however often any thread calls it. Not of a job that is done before: each event is
    a write that Redis has on its disk before it answers.
    """

    def __init__(self, pipe: Connection, job_id: str) -> None:
        self._pipe = pipe
        self._job_id = job_id
        self._due = time.monotonic() + PROGRESS_SECONDS
        self._telling = threading.Lock()

    def __call__(self, done: float) -> None:
        if time.monotonic() < self._due or not self._telling.acquire(blocking=False):
            return
        try:
            self._due = time.monotonic() + PROGRESS_SECONDS
            send(self._pipe, Progressed(job=self._job_id, done=done))
        finally:
            self._telling.release()


if __name__ == "__main__":
    code = main(*map(int, sys.argv[1:4]))
    # A poisoned CUDA context may hang in its destructors.
    sys.stderr.flush()
    os._exit(code)
