"""The contract of a plan: one job of many steps, each an operation, in which outputs of earlier steps are inputs.

A step reads the plan's inputs and the outputs of earlier steps, so the order in which steps are written is that in
which they run. Before any of them runs, each is checked by its operation, on what `Operation.infer` says of its inputs.
Nothing of a plan is executed text.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import Field, PrivateAttr

from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.operation import Computation, Cost, Example, Operation, Output
from warpdesk_server.kernels.params import Params
from warpdesk_server.kernels.problems import InvalidRequest, Problem, refuse

PLAN = "plan"  # its name
MOST_STEPS = 2_000
MOST_OUTPUTS = 2_000
MOST_SECONDS = 3_600.0  # of one core, that all steps are estimated to take together
# Characters of the parameters of all steps that differ, as JSON: each of them is checked, and an expression takes long.
MOST_WRITTEN = 256 << 10

_NAME = r"^[a-z][a-z0-9_]{0,63}$"  # of a step, an input or an output: an output names a file of the result
_SOURCE = r"^[a-z][a-z0-9_]{0,63}(\.[A-Za-z_][A-Za-z0-9_]{0,63})?$"
_Name = Annotated[str, Field(pattern=_NAME)]
Source = Annotated[str, Field(pattern=_SOURCE)]  # an input of the plan, or "step.output"


class PlanStep(Params):
    """A step of a plan: an operation, with sources in place of arrays."""

    id: _Name
    operation: Annotated[str, Field(max_length=64)]
    params: dict[str, Any] = Field(default_factory=dict)
    inputs: dict[_Name, Source] = Field(
        default_factory=dict, description='by the operation\'s names: an input of the plan, or "step.output"'
    )
    seed: int | None = Field(default=None, ge=0, lt=2**64, description="of an operation that draws simulation words")


class PlanOutput(Params):
    """An output of a plan: one of a step."""

    source: str = Field(alias="from", pattern=_SOURCE, description='"step.output"')
    last: int | None = Field(
        default=None, ge=1, le=2**31, description="of an array only so many numbers, the last along its last axis"
    )


class PlanParams(Params):
    steps: tuple[PlanStep, ...] = Field(
        min_length=1, max_length=MOST_STEPS, description="in the order in which they run"
    )
    outputs: dict[_Name, PlanOutput] = Field(
        min_length=1, max_length=MOST_OUTPUTS, description="what is kept, by names that the result has"
    )
    _planned: "list[PlannedStep] | None" = PrivateAttr(None)


@dataclass(frozen=True)
class PlannedStep:
    """A step whose operation has accepted it, with what is known of it before it runs.

    `inputs` are its sources by the names that its operation's implementation has for them. `gone` are the arrays that
    no later step reads and that are no outputs of the plan as they are; of others the last numbers are kept.
    """

    step: PlanStep
    operation: Operation
    inputs: Mapping[str, str]
    outputs: Mapping[str, ArrayInfo | None]
    cost: Cost
    given: int  # bytes of its inputs
    gone: tuple[str, ...] = ()

    @property
    def most(self) -> int:
        """The most bytes of its outputs. Where the data decide their shapes, what its cost has besides inputs."""
        sizes = sum(info.nbytes for info in self.outputs.values() if info is not None)
        return max(sizes, self.cost.bytes - self.given) if None in self.outputs.values() else sizes


@dataclass(frozen=True, kw_only=True)
class Plan(Computation):
    """What `plan` is: a computation whose inputs and outputs a request names, made of these operations."""

    operations: Mapping[str, Operation]

    @property
    def gpu(self) -> bool:
        """True: whether a step can use a GPU depends on its operation (`lacking_gpu`)."""
        return True

    def lacking_gpu(self, params: Mapping[str, Any]) -> list[str]:
        """The operations of a valid plan's steps that have no implementation for GPUs."""
        used = dict.fromkeys(step["operation"] for step in params["steps"])
        return [name for name in used if not self.operations[name].gpu]

    def outputs_of(self, params: Mapping[str, Any]) -> tuple[Output, ...]:
        """The outputs of a valid plan with these parameters, as JSON has them."""
        operations = {step["id"]: self.operations[step["operation"]] for step in params["steps"]}
        found = []
        for name, wanted in sorted(params["outputs"].items()):  # by name: what a record keeps has no other order
            step, _, own = wanted["from"].partition(".")
            declared = next(output for output in operations[step].outputs if output.name == own)
            found.append(replace(declared, name=name, axes=()))
        return tuple(found)

    def with_seeds(self, params: Mapping[str, Any], draw: Callable[[], int]) -> dict[str, Any]:
        """Parameters as they were sent, with a seed for each step that draws simulation words and has none, so that
        each attempt has the same. What is no plan stays as it is."""
        steps = params.get("steps")
        if not isinstance(steps, list):
            return dict(params)

        def with_seed(step: Any) -> Any:
            operation = self.operations.get(str(step.get("operation"))) if isinstance(step, dict) else None
            wants = operation is not None and operation.randomness == "seed" and step.get("seed") is None
            return {**step, "seed": draw()} if wants else step

        return {**params, "steps": [with_seed(step) for step in steps]}

    def validate(self, params: Mapping[str, Any], inputs: Mapping[str, ArrayInfo]) -> Params:
        """The parsed parameters of a plan all of whose steps their operations accept. Raises InvalidRequest, with
        pointers to the step that is wrong."""
        parsed = super().validate(params, {})
        assert isinstance(parsed, PlanParams)  # noqa: S101
        parsed._planned = self._plan_steps(parsed, inputs)
        return parsed

    def planned_steps(self, params: PlanParams, inputs: Mapping[str, ArrayInfo]) -> list[PlannedStep]:
        """The steps of a plan that `validate` returned."""
        return params._planned if params._planned is not None else self._plan_steps(params, inputs)

    def _plan_steps(self, params: PlanParams, inputs: Mapping[str, ArrayInfo]) -> list[PlannedStep]:
        arrays: dict[str, ArrayInfo | None] = dict(inputs)
        values = set[str]()  # outputs that are no arrays
        found: list[PlannedStep] = []
        readers = Counter[str]()
        before: dict[tuple[Any, ...], tuple[Cost, dict[str, ArrayInfo | None]]] = {}
        written, seconds = 0, 0.0
        _require_names(params, inputs)
        for at, step in enumerate(params.steps):
            where = f"/params/steps/{at}"
            operation = self._operation(step, where)
            given = _given_names(operation, step, where)
            infos = {
                name: _info(step.inputs[shown], arrays, values, f"{where}/inputs/{shown}")
                for name, shown in given.items()
            }
            text = json.dumps(step.params, sort_keys=True)
            like = operation.name, text, *infos.items()
            if like not in before:
                written += len(text)
                if written > MOST_WRITTEN:
                    raise refuse(
                        where,
                        f"the parameters of the steps so far have {written:,} characters, those of equal steps counted "
                        f"once; the most are {MOST_WRITTEN:,}: make several plans of it",
                    )
                try:
                    own = operation.validate(step.params, infos)
                except InvalidRequest as error:
                    raise _moved(error, given, where) from None
                before[like] = operation.cost(own, infos), operation.infer(own, infos)
            cost, outputs = before[like]
            seconds += cost.core_seconds
            if seconds > MOST_SECONDS:
                raise refuse(
                    where,
                    f"the steps so far are about {seconds:,.0f} seconds of one core, and a plan has at most "
                    f"{MOST_SECONDS:,.0f}: make several plans of it",
                )
            arrays |= {f"{step.id}.{name}": info for name, info in outputs.items()}
            values |= {f"{step.id}.{output.name}" for output in operation.outputs if output.kind != "array"}
            sources = {name: step.inputs[shown] for name, shown in given.items()}
            readers.update(sources.values())
            size = sum(info.nbytes for info in infos.values())
            found.append(PlannedStep(step, operation, sources, outputs, cost, size))
        for name in inputs:
            if not readers[name]:
                raise refuse(f"/inputs/{name}", f"no step reads the input {name!r}; use it in a step or leave it out")
        kept = _require_outputs(params, arrays, values)
        return list(_with_last_readers(found, kept))

    def _operation(self, step: PlanStep, where: str) -> Operation:
        operation = self.operations.get(step.operation)
        if operation is None:
            raise refuse(
                f"{where}/operation",
                f"step {step.id!r}: there is no operation {step.operation[:64]!r} that a plan can run; tasks, and a "
                "plan in a plan, are jobs of their own",
            )
        if operation.confidential or operation.spend is not None:
            raise refuse(
                f"{where}/operation",
                f"step {step.id!r}: {operation.name} is confidential or charges a budget: it is a job of its own, "
                "whose answer is charged once",
            )
        if step.seed is not None and operation.randomness != "seed":
            raise refuse(f"{where}/seed", f"step {step.id!r}: {operation.name} takes no seed: it draws no random words")
        return operation


def outputs_by_source(params: PlanParams) -> dict[str, list[tuple[str, int | None]]]:
    """The outputs of a plan by what they are of: their names, and how many of the last numbers, None for all."""
    found: dict[str, list[tuple[str, int | None]]] = {}
    for name, wanted in params.outputs.items():
        found.setdefault(wanted.source, []).append((name, wanted.last))
    return found


def _require_names(params: PlanParams, inputs: Mapping[str, ArrayInfo]) -> None:
    """Refuse names of inputs and steps that could not be told apart."""
    taken = Counter(step.id for step in params.steps)
    for at, step in enumerate(params.steps):
        if taken[step.id] > 1:
            raise refuse(
                f"/params/steps/{at}/id", f"{taken[step.id]} steps have the id {step.id!r}; each needs its own"
            )
    for name in inputs:
        if not re.fullmatch(_NAME, name):
            escaped = name.replace("~", "~0").replace("/", "~1")
            raise refuse(f"/inputs/{escaped}", f"{name[:64]!r} is no name of an input: it should match {_NAME}")
        if name in taken:
            raise refuse(f"/inputs/{name}", f"{name!r} is the name of an input and of a step; choose another one")


def _given_names(operation: Operation, step: PlanStep, where: str) -> dict[str, str]:
    try:
        return operation.given_names(step.inputs)
    except InvalidRequest as error:
        raise InvalidRequest(*(Problem(where + each.pointer, each.detail) for each in error.problems)) from None


def _info(source: str, arrays: Mapping[str, ArrayInfo | None], values: set[str], where: str) -> ArrayInfo:
    """What is known of a source. What an output may hold is judged by its numbers, when they are there."""
    if source in values:
        raise refuse(where, f"{source} is a JSON value, and an input is an array")
    if source not in arrays:
        raise refuse(where, _unknown(source, arrays))
    info = arrays[source]
    if info is None:
        raise refuse(
            where,
            f"the data decide the shape of {source}, so that the step after it cannot be judged before it runs: make "
            "two jobs of it",
        )
    return info if "." not in source else replace(info, has_nan=False, has_inf=False)


def _unknown(source: str, arrays: Mapping[str, Any]) -> str:
    named = ", ".join(list(arrays)[-8:]) or "none"
    return f"there is no {source!r} before this step; the latest of {len(arrays)} sources are {named}"


def _moved(error: InvalidRequest, given: Mapping[str, str], where: str) -> InvalidRequest:
    """The problems of a step's own request as problems of its plan."""
    found = []
    for problem in error.problems:
        pointer = problem.pointer
        for name, shown in given.items():
            if pointer == f"/inputs/{name}":
                pointer = f"/inputs/{shown}"
        found.append(Problem(f"{where}{pointer}", problem.detail))
    return InvalidRequest(*found, count=error.count)


def _require_outputs(params: PlanParams, arrays: Mapping[str, ArrayInfo | None], values: set[str]) -> set[str]:
    """The sources that are outputs of a plan as they are. Refuse those that no step has."""
    for name, wanted in params.outputs.items():
        where = f"/params/outputs/{name}"
        if "." not in wanted.source:
            raise refuse(f"{where}/from", f'{wanted.source!r} is no output of a step: that is "step.output"')
        if wanted.source not in arrays and wanted.source not in values:
            outputs = {source: None for source in (*arrays, *values) if "." in source}
            raise refuse(f"{where}/from", _unknown(wanted.source, outputs).replace(" before this step", ""))
        if wanted.last is not None and wanted.source in values:
            raise refuse(f"{where}/last", f"{wanted.source} is a JSON value, which has no axis")
    return {wanted.source for wanted in params.outputs.values() if wanted.last is None}


def _with_last_readers(steps: Sequence[PlannedStep], kept: set[str]) -> Iterator[PlannedStep]:
    """The steps, each with the arrays that are not needed after it: inputs that it is the last to read, and outputs
    that nobody reads."""
    last: dict[str, int] = {}
    for at, planned in enumerate(steps):
        last |= {f"{planned.step.id}.{output.name}": at for output in planned.operation.outputs}
        last |= dict.fromkeys((source for source in planned.inputs.values() if "." in source), at)
    gone: dict[int, list[str]] = {}
    for source, at in last.items():
        if source not in kept:
            gone.setdefault(at, []).append(source)
    for at, planned in enumerate(steps):
        yield replace(planned, gone=tuple(gone.get(at, ())))


def _cost_with(plan: Callable[[], Plan]) -> Callable[[Any, Mapping[str, ArrayInfo]], Cost]:
    def cost(params: PlanParams, inputs: Mapping[str, ArrayInfo]) -> Cost:
        """The cost of a plan: the largest live set, and the work of all steps, which take a mean time each.

        The live set of a step is the plan's inputs, what earlier steps left for later ones, and what the step needs.
        """
        given, live, most, work, seconds = sum(info.nbytes for info in inputs.values()), 0, 0, 0.0, 0.0
        sizes, wanted = dict[str, int](), outputs_by_source(params)
        for planned in plan().planned_steps(params, inputs):
            most = max(most, live + planned.cost.bytes - planned.given)
            work += planned.cost.work
            seconds += planned.cost.work * planned.cost.step
            unknown = max(1, sum(info is None for info in planned.outputs.values()))
            for name, info in planned.outputs.items():
                source = f"{planned.step.id}.{name}"
                sizes[source] = info.nbytes if info is not None else -(-planned.most // unknown)
                row = info.shape[-1] if info is not None and info.shape else 1
                parts = (min(last, row) for _, last in wanted.get(source, ()) if last is not None)
                live += sizes[source] + sum(sizes[source] * part // max(row, 1) for part in parts)
            most = max(most, live)
            live -= sum(sizes.pop(source, 0) for source in planned.gone)
        return Cost(given + most, work, seconds / work) if work else Cost(given + most)

    return cost


def plan_of(operations: Mapping[str, Operation]) -> Plan:
    """The computation `plan` of these operations."""
    plan = Plan(
        name=PLAN,
        summary="Many operations in one job, in which outputs of earlier steps are inputs of later ones.",
        package="",
        params=PlanParams,
        inputs=(),
        outputs=(),
        example=EXAMPLE,
        cost=_cost_with(lambda: plan),
        operations=operations,
    )
    return plan


EXAMPLE = Example(
    {
        "steps": [
            {"id": "rsi14", "operation": "rsi", "params": {"period": 14}, "inputs": {"close": "prices"}},
            {"id": "smooth", "operation": "ema", "params": {"period": 9}, "inputs": {"close": "rsi14.rsi"}},
        ],
        "outputs": {"rsi": {"from": "rsi14.rsi"}, "now": {"from": "smooth.ema", "last": 1}},
    },
    {"prices": {"data": [100.0 + (7 * bar) % 11 for bar in range(48)], "dtype": "float64"}},
)
