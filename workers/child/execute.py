"""The execution of jobs in the child process: decode, choose a backend, compute in one launch, encode."""

import errno
import logging
import math
import os
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import numpy as np

from warpdesk.models import DType, StepProvenance
from warpdesk_server.kernels import progress
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.gpu.contract import Device, Times
from warpdesk_server.kernels.gpu.faults import DeviceLost, NoDevice, OutOfMemory
from warpdesk_server.kernels.gpu.memory import let_go
from warpdesk_server.kernels.operation import Backend, Computation, Operation
from warpdesk_server.kernels.params import Params
from warpdesk_server.kernels.plans import Plan, PlannedStep, PlanParams, outputs_by_source
from warpdesk_server.kernels.problems import InvalidRequest, refuse
from warpdesk_server.workers.child import codec
from warpdesk_server.workers.child.backend import RECOVERABLE, Choice, choose
from warpdesk_server.workers.child.clusters.cluster import NoCluster, NodeDied
from warpdesk_server.workers.child.clusters.cluster_job import ClusterJob
from warpdesk_server.workers.child.clusters.link import ClusterLink
from warpdesk_server.workers.child.cost import Costs
from warpdesk_server.workers.child.device import Probe, cpu_name
from warpdesk_server.workers.child.partials import ShardedJob, Unusable
from warpdesk_server.workers.logs import about
from warpdesk_server.workers.predicted_times import Job, job_of, rounded
from warpdesk_server.workers.queue.protocol import (
    NO_GPU_WAS_FREE,
    SOONER_ON_CPU,
    Failed,
    Forecast,
    JobRequest,
    Provenance,
    Stopped,
    Succeeded,
)
from warpdesk_server.workers.store.protocol import UNKNOWN_ID, WorkerStore, result_name

log = logging.getLogger("warpdesk.execute")

_BLOCKS_TOLD = 5  # of a leak

Outcome = Succeeded | Failed | Stopped


def run(
    jobs: Sequence[tuple[JobRequest, int]],
    store: WorkerStore,
    found: Probe,
    operations: Mapping[str, Computation],
    keep_off_gpu: str | None = None,
    costs: Costs | None = None,
    expect: Callable[[float], None] | None = None,
    tell: Callable[[float], None] | None = None,
    keys: Mapping[str, bytes] | None = None,
    took: Callable[[Times], None] | None = None,
    attached: Mapping[str, str] | None = None,
    gpu_wait: float | None = None,
    tokens: Mapping[str, str] | None = None,
    cluster: ClusterLink | None = None,
) -> list[Outcome]:
    """Compute in the child these attempts of jobs, and write their results.

    Nothing is visible until the caller commits. Jobs of one operation that are alike run in one launch, others one
    after another. What fails of several is tried again in halves, so that whoever fails does so alone, and with its own
    error.

    `costs` predicts which backend is the quicker, where the jobs leave that open, and learns how long a launch took;
    `expect` is told what launches of the size took on the GPU. `tell` hears what fraction of a lone job is done, in
    this thread, except where it draws private randomness. `keys` holds the noise keys of jobs that were charged, by
    their ids; whoever names a budget and has none is not computed. `took` hears what each launch on the GPU copied, and
    nothing of private jobs. `attached` holds the inputs that job records have, by the jobs' ids. `gpu_wait` is how long
    they would have waited for a GPU, if that is why they are here. `tokens` are those of the attempts' claims, by the
    attempts' names.

    Of an attempt at a shard the shard's arrays are kept in the store. Of a job in shards these are merged. Shards are
    computed on the `cluster` if there is one, and here where that cannot.

    Raises DeviceLost, after which this process must end. Every other failure is a value whose message holds no data.
    """
    sooner = None if gpu_wait is None else _sooner(jobs[0][0].forecast, gpu_wait)
    batch = _Batch(store, found, keep_off_gpu, costs, expect, took, sooner, cluster)
    outcomes: list[Outcome | None] = [None] * len(jobs)
    items = []
    for at, (request, attempt) in enumerate(jobs):
        operation = operations.get(request.operation)
        if operation is None:
            message = f"this worker has no operation {request.operation!r}"
            outcomes[at] = Failed(code="invalid-input", message=message)
        else:
            token = (tokens or {}).get(result_name(request.id, attempt), "")
            own = (keys or {}).get(request.id), (attached or {}).get(request.id, ""), token
            items.append((at, _Item(operation, request, attempt, *own)))
    alone = len(items) == 1 and items[0][1].operation.randomness != "private"
    try:
        with progress.telling(tell if alone else None):
            batch.run([item for _, item in items])
    finally:
        wanted = any(item.operation.confidential and item.request.backend != "cpu" for _, item in items)
        if found.device is not None and wanted:
            # Outside the attempts, whose arrays are let go of by now; a device that is lost says so here too.
            found.device.forget()
    for at, item in items:
        outcomes[at] = item.outcome
    return cast(list[Outcome], outcomes)


def prepare(operations: Iterable[Operation]) -> None:
    """Import the CPU implementations into the child, so that no fallback waits for an import."""
    for operation in operations:
        operation.implementation("cpu")


@dataclass
class _Item:
    """One attempt that the child computes, and what has become of it."""

    operation: Computation
    request: JobRequest
    attempt: int
    key: bytes | None = field(default=None, repr=False)  # of its noise, if it was charged
    attached: str = field(default="", repr=False)  # inputs that its record has
    token: str = field(default="", repr=False)  # of its claim
    params: Params = field(default_factory=Params)
    inputs: dict[str, np.ndarray] = field(default_factory=dict)
    sharded: ShardedJob | None = None  # where it is a shard of a job, or a job in shards
    steps: tuple[StepProvenance, ...] | None = None  # of a plan: how each was computed
    outcome: Outcome | None = None

    def fail(self, error: Exception) -> None:
        if isinstance(error, Unusable):
            log.warning("%s: %s", self.request.id, error, extra=about(self.request, self.attempt))
            self.outcome = Stopped(step=error.number, reason=str(error))
        else:
            self.outcome = failure(self.operation, self.request, error)

    def is_like(self, other: "_Item") -> bool:
        """Whether one launch in the child can compute both.

        A claim should hold no others; if it does, none is computed wrongly.
        """
        return (
            self.sharded is other.sharded
            and self.operation is other.operation
            and self.request.backend == other.request.backend
            and self.params == other.params
            and self.inputs.keys() == other.inputs.keys()
            and all(
                (array.dtype, array.shape) == (other.inputs[name].dtype, other.inputs[name].shape)
                for name, array in self.inputs.items()
            )
        )


@dataclass
class _Launch:
    """One call of an implementation by the child, for one job or for several that are alike."""

    items: Sequence[_Item]
    params: Params
    inputs: Mapping[str, np.ndarray]
    parts: Callable[[dict[str, Any]], list[dict[str, Any]]]
    operation: Operation
    function: Callable[[Backend], Callable[..., dict[str, Any]]]
    name_of: str = ""  # of what in log lines, if it is no job

    @property
    def name(self) -> str:
        """The name of the child's launch in log lines."""
        first = self.name_of or self.items[0].request.id
        of = first if len(self.items) == 1 else f"{first} and {len(self.items) - 1} more"
        return f"{self.operation.name} of {of}"

    def arguments(self) -> dict[str, Any]:
        arguments: dict[str, Any] = dict(self.inputs)
        if self.operation.randomness == "seed":
            arguments["seed"] = self.items[0].request.seed
        elif self.operation.randomness == "private":
            # Of the charge, if there is one: every attempt has the same answer. Else drawn for this attempt, known to
            # no one, kept nowhere: an attempt that does not commit takes it along.
            arguments["key"] = self.items[0].key or os.urandom(32)
        return arguments

    def job(self) -> Job:
        """The launch as a job whose time is predicted: of the kind of its items, and as large as all of them."""
        first = self.items[0]
        params, inputs = (first.params, first.inputs) if first.sharded is None else (self.params, self.inputs)
        job = job_of(self.operation, params, {name: _info(array) for name, array in inputs.items()})
        return Job(job.kind, job.work * len(self.items), job.teaches)


@dataclass
class _Batch:
    """The arguments that all launches of one call of `run` in the child share."""

    store: WorkerStore
    found: Probe
    keep_off_gpu: str | None
    costs: Costs | None
    expect: Callable[[float], None] | None
    took: Callable[[Times], None] | None
    sooner: str | None  # by what prediction a worker without a GPU took them
    cluster: ClusterLink | None  # where shards are computed

    def run(self, items: Sequence[_Item]) -> None:
        """Compute the items in the child, and give each its outcome."""
        cache: codec.ParamsCache = {}
        for item in items:
            try:
                item.params, item.inputs = codec.decode(item.operation, item.request, self.store, cache, item.attached)
                _require_charge(item, self.store)
                if item.request.shards > 1 and isinstance(item.operation, Operation):
                    infos = {name: _info(array) for name, array in item.inputs.items()}
                    item.sharded = ShardedJob(item.operation, item.request, item.params, infos)
            except Exception as error:  # noqa: BLE001 (as in _attempt)
                item.fail(error)
        decoded = [item for item in items if item.outcome is None]
        if all(item.is_like(decoded[0]) for item in decoded):
            self._attempt(decoded)
        else:
            for item in decoded:
                self._attempt([item])
        written = {
            item.outcome.result: item
            for item in decoded
            if isinstance(item.outcome, Succeeded) and item.request.shard is None
        }
        for name, unkept in self.store.finish_results(list(written)).items():
            # The outcome of an attempt that does not run any more will be refused: that is no failure. But the ledger
            # takes the first answer from whoever has it, and must not be promised one that nobody kept.
            if unkept.errno != errno.ESTALE or written[name].key is not None:
                written[name].fail(unkept)

    def _attempt(self, items: Sequence[_Item]) -> None:
        if not items:
            return
        if isinstance(plan := items[0].operation, Plan):  # each of them, as they share no launch
            for item in items:
                self._run_plan(item, plan)
            return
        try:
            launch = _launch_of(items)
            if launch is not None:
                self._launch(launch)
                return
            size = 1
        except DeviceLost:
            raise
        except Exception as error:  # noqa: BLE001 (a bug in an operation must not end the worker)
            if len(items) == 1:
                items[0].fail(error)
                return
            log.warning(
                "%d jobs of %s failed together with %s: they are tried in halves",
                *(len(items), items[0].operation.name, type(error).__name__),
            )
            size = -(-len(items) // 2)
        # Outside the handler: what the failed call had, on the device too, is let go of.
        for first in range(0, len(items), size):
            self._attempt(items[first : first + size])

    def _launch(self, launch: _Launch) -> None:
        """Compute items in one launch of the child, and write what came of each."""
        if (sharded := launch.items[0].sharded) is not None and launch.items[0].request.shard is None:
            self._merge(launch, sharded)
            return
        if sharded is not None and self.cluster is not None and self._on_cluster(launch, sharded, self.cluster):
            return
        outputs, provenance = self._computed(launch)
        self._write(launch.items, launch.operation, outputs, launch.parts, launch.inputs, provenance)

    def _computed(self, launch: _Launch) -> tuple[dict[str, Any], Provenance]:
        """What the child computes in one launch, on the backend that is chosen for it, and how that was."""
        operation, first = launch.operation, launch.items[0].request
        job = pick = None
        clock = time.perf_counter
        if self.costs is not None:
            job = launch.job()
            pick, clock = partial(self.costs.pick, job), self.costs.clock
            if self.expect is not None and (seconds := self.costs.expected(job)) is not None:
                self.expect(seconds)
        choice = choose(operation, first.backend, self.found, self.keep_off_gpu, pick, self.sooner)
        if choice.device is not None:
            choice.device.times()  # forget what an earlier job took
        watch = _Watch(clock)
        try:
            outputs = _compute(launch, choice, watch)
        except RECOVERABLE as fault:
            if choice.backend == "cpu" or first.backend == "gpu":
                raise
            let_go(fault)  # and so of what its job had on the device
            choice = Choice("cpu", reason=str(fault))
            try:
                outputs = _compute(launch, choice, watch)
            finally:  # no fallback waits for a log to be written
                log.warning("%s went from the GPU to the CPU: %s", launch.name, fault, extra=about(first))
        if self.costs is not None and job is not None:
            self.costs.learn(choice.backend, job, watch.took)
        times = None
        if choice.device is not None and operation.randomness != "private":  # a sampler's time tells of its noise
            times = choice.device.times()
            if self.took is not None and not first.private:
                self.took(times)
        return outputs, _provenance(launch, choice, self.found, watch, times)

    def _run_plan(self, item: _Item, plan: Plan) -> None:
        """Compute the steps of a plan in the child, in order, and write what its outputs are.

        Each runs as a job of its own would, on the backend chosen for it. An array is let go of after its last reader.
        """
        params = cast(PlanParams, item.params)
        arrays, wanted, kept = dict[str, Any](item.inputs), outputs_by_source(params), dict[str, Any]()
        steps, how = list[StepProvenance](), list[Provenance]()
        planned = plan.planned_steps(params, {name: _info(array) for name, array in item.inputs.items()})
        whole, done = sum(each.cost.core_seconds for each in planned) or 1.0, 0.0
        for at, each in enumerate(planned):
            end = done + each.cost.core_seconds / whole
            try:
                with progress.stage(done, end):
                    outputs, provenance = self._step(item, each, at, arrays)
                for name, value in outputs.items():
                    source = f"{each.step.id}.{name}"
                    arrays[source] = value = codec.contiguous(value) if isinstance(value, np.ndarray) else value
                    for output, last in wanted.get(source, ()):
                        kept[output] = value if last is None else value[..., -last:].copy()
            except DeviceLost:
                raise
            except Exception as error:  # noqa: BLE001 (as in _attempt)
                failed = failure(each.operation, item.request, error)
                message = f"step {each.step.id} of the plan, {each.operation.name}: {failed.message}"
                item.outcome = failed.model_copy(update={"message": message})
                return
            for source in each.gone:
                arrays.pop(source, None)
            del outputs, value
            done = end
            progress.report(done)
            how.append(provenance)
            steps.append(
                StepProvenance(
                    id=each.step.id,
                    operation=each.operation.name,
                    backend=provenance.backend,
                    seconds=provenance.compute_seconds or 0.0,
                    fallback_reason=provenance.fallback_reason,
                )
            )
        item.steps = tuple(steps)
        self._write([item], plan, kept, lambda outputs: [outputs], item.inputs, _of_steps(how))

    def _step(
        self, item: _Item, planned: PlannedStep, at: int, arrays: Mapping[str, Any]
    ) -> tuple[dict[str, Any], Provenance]:
        """Compute a step of a plan in the child. Raises InvalidRequest where its inputs' numbers do not fit it."""
        step, operation = planned.step, planned.operation
        inputs = {name: arrays[source] for name, source in planned.inputs.items()}
        params = operation.validate(step.params, {name: codec.described(array) for name, array in inputs.items()})
        request = item.request.model_copy(update={"operation": operation.name, "seed": step.seed})
        if self.expect is not None:
            self.expect(math.inf)  # what the step before it was to take says nothing of this one
        own = _Item(operation, request, item.attempt, params=params, inputs=inputs)
        launch = _launch_of([own])
        assert launch is not None  # noqa: S101 (one job is one launch)
        return self._computed(replace(launch, name_of=f"step {at} of {item.request.id}"))

    def _on_cluster(self, launch: _Launch, sharded: ShardedJob, cluster: ClusterLink) -> bool:
        """Have a shard computed on the cluster, and keep its arrays. False where that cannot: it is computed here then,
        also one that ends its process, which is judged by what becomes of this one."""
        item, watch = launch.items[0], _Watch(time.perf_counter)
        described = {name: _info(array) for name, array in item.inputs.items()}
        wish = "cpu" if self.keep_off_gpu else item.request.backend
        job = ClusterJob(launch.operation.name, item.params.model_dump_json(), described, item.request.seed, wish)
        watch.began = watch.clock()
        try:
            computed = cluster.compute(job, sharded.shard, item.inputs)
        except (NoCluster, NodeDied) as error:
            log.warning("%s is computed here: %s", launch.name, error, extra=about(item.request))
            return False
        watch.ended = watch.clock()
        provenance = _provenance(launch, Choice(computed.backend), self.found, watch, None)
        provenance = provenance.model_copy(update={"device": computed.device})
        self._write(launch.items, launch.operation, dict(computed.arrays), launch.parts, launch.inputs, provenance)
        return True

    def _merge(self, launch: _Launch, sharded: ShardedJob) -> None:
        """Merge in the child the arrays of a job's shards, which workers have kept in the store."""
        item, watch = launch.items[0], _Watch(time.perf_counter)
        watch.began = watch.clock()
        outputs = sharded.merged(self.store, item.attempt, item.token)
        watch.ended = watch.clock()
        provenance = _provenance(launch, Choice("cpu"), self.found, watch, None)
        self._write(launch.items, launch.operation, outputs, launch.parts, launch.inputs, provenance)

    def _write(
        self,
        items: Sequence[_Item],
        operation: Computation,
        outputs: dict[str, Any],
        parts: Callable[[dict[str, Any]], list[dict[str, Any]]],
        inputs: Mapping[str, np.ndarray],
        provenance: Provenance,
    ) -> None:
        """Write what the child computed for each item of a launch, and give the items their outcomes."""
        now, of_owner = time.time(), Counter(item.request.owner for item in items)
        for item, own in zip(items, parts(outputs), strict=True):
            arrays = {name: array for name, array in own.items() if isinstance(array, np.ndarray)}
            size = sum(array.nbytes for array in arrays.values())
            try:
                self.store.require_room(size)
                if item.request.shard is None or item.sharded is None:
                    directory = self.store.new_result(item.request.id, item.attempt, codec.files(operation))
                    codec.encode(operation, item.request, own, directory, self.store, now, item.steps)
                else:
                    item.sharded.keep(self.store, item.attempt, item.token, arrays)
            except Exception as error:  # noqa: BLE001 (as in _attempt)
                item.fail(error)
                continue
            seed = item.request.seed if operation.randomness == "seed" else None
            of_item = {
                "attempt": item.attempt,
                "seed": seed,
                "charge": item.request.charge,
                "batch_own": of_owner[item.request.owner],
            }
            digest = None if item.key is None else codec.digest(operation, own)
            read = item.inputs if item.request.shard is None else inputs
            size += sum(array.nbytes for array in read.values())
            item.outcome = Succeeded(
                result=result_name(item.request.id, item.attempt),
                provenance=provenance.model_copy(update=of_item),
                digest=digest,
                bytes=size,
            )


def _sooner(forecast: Forecast | None, wait: float) -> str:
    """The prediction by which a job is computed here and not on a GPU of another worker, for its provenance."""
    if wait < 0 or forecast is None or forecast.cpu is None or forecast.gpu is None:
        return NO_GPU_WAS_FREE
    on_cpu, on_gpu = rounded(forecast.cpu), rounded(forecast.gpu)
    if forecast.cpu <= forecast.gpu:
        return f"predicted {on_cpu} on the CPU, {on_gpu} on the GPU"
    return f"{SOONER_ON_CPU}: predicted {on_cpu}, and {on_gpu} on the GPU after {rounded(wait)} of other jobs"


def _require_charge(item: _Item, store: WorkerStore) -> None:
    """Raise InvalidRequest before the child computes a release that no charge pays for.

    The same holds for one whose input is not what was charged for.
    """
    operation, request = item.operation, item.request
    if operation.spend is None:
        return
    spends = operation.spend(item.params, {name: _info(array) for name, array in item.inputs.items()}) is not None
    if spends and item.key is None:
        raise refuse("/params/budget", "the job names a budget, and nothing was charged for it")
    if item.key is None:
        return
    for name, array in item.inputs.items():
        found = store.digest(request.owner, *_described(array), array.reshape(-1).view(np.uint8).data)
        if found not in (request.inputs[name], UNKNOWN_ID):
            raise refuse(f"/inputs/{name}", "the content is not what was there when the budget was charged")


def _described(array: np.ndarray) -> tuple[DType, tuple[int, ...]]:
    return cast(DType, array.dtype.name), array.shape


def _launch_of(items: Sequence[_Item]) -> _Launch | None:
    """One launch in the child for jobs that are alike; None where they have to run one after another."""
    first, operation = items[0], items[0].operation
    assert isinstance(operation, Operation)  # noqa: S101 (a plan is computed step by step, a task by `workers.child.tasks`)
    function = operation.implementation
    if len(items) > 1:
        joint = operation.join(first.params, [item.inputs for item in items])
        return None if joint is None else _Launch(items, joint.params, joint.inputs, joint.parts, operation, function)
    params, inputs, sharded = first.params, first.inputs, first.sharded
    if sharded is not None and first.request.shard is not None:
        params, inputs, function = sharded.like, sharded.parts(inputs), sharded.function
    return _Launch(items, params, inputs, lambda outputs: [outputs], operation, function)


def failure(operation: Computation, request: JobRequest, error: Exception) -> Failed:
    """The outcome that the job's caller gets when computing in the child failed with an error other than DeviceLost."""
    if isinstance(error, InvalidRequest):
        return Failed(code="invalid-input", message=str(error))
    if isinstance(error, NoDevice):
        return Failed(code="no-gpu-worker", message=f"backend gpu was asked for, but: {error}", retryable=True)
    if isinstance(error, OutOfMemory):
        return Failed(code="out-of-memory", message=str(error), retryable=True)
    if isinstance(error, RECOVERABLE):
        return Failed(code="device-fault", message=str(error), retryable=True)
    if isinstance(error, MemoryError):
        return Failed(code="out-of-memory", message=f"out of memory on the CPU: {error}", retryable=True)
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:  # no room to map an input
        return Failed(code="out-of-memory", message=f"out of memory on the CPU: {error.strerror}", retryable=True)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        log.error("%s of %s: the disk is full", operation.name, request.id, extra=about(request))
        return Failed(code="storage-full", message="the disk that holds results is full", retryable=True)
    # Where it failed is logged; what it failed on is not: a message may quote the caller's data.
    places = "".join(traceback.format_tb(error.__traceback__))
    name, log_fields = type(error).__name__, about(request)
    log.error("%s of %s failed with %s\n%s", operation.name, request.id, name, places, extra=log_fields)
    return Failed(code="operation-error", message=f"{operation.name} failed with {type(error).__name__}")


def _info(array: np.ndarray) -> ArrayInfo:
    return ArrayInfo(*_described(array))


@dataclass
class _Watch:
    """When the child called an implementation, when it returned, and when the one before it was seen to fail."""

    clock: Callable[[], float]
    began: float = 0.0
    ended: float = 0.0
    failed: float | None = None

    @property
    def took(self) -> float:
        return self.ended - self.began

    @property
    def switched(self) -> float | None:
        return None if self.failed is None else self.began - self.failed


def _compute(launch: _Launch, choice: Choice, watch: _Watch) -> dict[str, Any]:
    compute, params = launch.function(choice.backend), launch.params
    arguments = launch.arguments()
    if choice.device is None:
        watch.began = watch.clock()
        outputs = compute(params, **arguments)
        watch.ended = watch.clock()
        return outputs
    with choice.device.memory.job() as account:
        watch.began = watch.clock()
        try:
            outputs = compute(params, **arguments, device=choice.device)
        except RECOVERABLE:
            watch.failed = watch.clock()
            raise
        watch.ended = watch.clock()
    if account.left:
        log.error(
            "%s left %d blocks of %d bytes on the device: %s",
            launch.name,
            len(account.left),
            sum(block.nbytes for block in account.left),
            "; ".join(str(block) for block in account.left[:_BLOCKS_TOLD]),
        )
    return outputs


def _provenance(launch: _Launch, choice: Choice, found: Probe, watch: _Watch, times: Times | None) -> Provenance:
    """The provenance that all jobs of the child's launch have in common; each has its own attempt, seed and owner."""
    return Provenance(
        backend=choice.backend,
        device=_name(choice.device),
        device_uuid=None if choice.device is None else found.report.uuid,
        fallback_reason=choice.reason,
        backend_reason=choice.picked,
        batch_size=len(launch.items),
        attempt=launch.items[0].attempt,
        copy_seconds=times.copy if times else None,
        kernel_seconds=times.kernel if times else None,
        compute_seconds=None if launch.operation.randomness == "private" else watch.took,
        fallback_seconds=watch.switched,
    )


def _of_steps(steps: Sequence[Provenance]) -> Provenance:
    """The provenance of a plan in the child: of a GPU if a step ran there, with the times of all steps together."""
    found = next((step for step in steps if step.backend == "gpu"), steps[0])

    def total(name: str) -> float | None:
        times = [seconds for step in steps if (seconds := getattr(step, name)) is not None]
        return sum(times) if times else None

    times = ("copy_seconds", "kernel_seconds", "compute_seconds", "fallback_seconds")
    fallback = next((step.fallback_reason for step in steps if step.fallback_reason is not None), None)
    return found.model_copy(update={name: total(name) for name in times} | {"fallback_reason": fallback})


def _name(device: Device | None) -> str:
    return cpu_name() if device is None else device.name
