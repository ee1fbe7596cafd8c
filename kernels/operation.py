"""The contract of an operation: its name, parameters, inputs, outputs, limits and two implementations."""

import hashlib
import importlib
import importlib.util
import json
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from warpdesk.models import FILE_NAME, MEDIA_TYPE, DType
from warpdesk_server.kernels import axes
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.batching import Batching, Joint
from warpdesk_server.kernels.fingerprint import fingerprint
from warpdesk_server.kernels.params import Params
from warpdesk_server.kernels.problems import InvalidRequest, Problem, problems_of, refuse
from warpdesk_server.kernels.sharding import Shard, Sharding
from warpdesk_server.kernels.spend import Spend

Backend = Literal["cpu", "gpu"]

# With width `auto` a shard takes one core at least so many seconds, since to claim it and to store its arrays takes
# some milliseconds. And the merge, with what each worker has to do besides its share, takes at most this part of the
# job's time, which the cut costs where nobody helps.
SHARD_SECONDS = 0.5
SHARD_OVERHEAD = 0.03


@dataclass(frozen=True)
class Input:
    """The declaration of one input array in an operation's contract.

    `name` is that of job records and implementations. `renamed` is its name in documents, where that is another one;
    requests may use both. `axes` are the names of its axes, such as "asset time", for each rank that it may have
    (`kernels.axes`); none where its rank does not tell them.
    """

    name: str
    doc: str
    dtypes: tuple[DType, ...]
    ranks: tuple[int, ...]
    required: bool = True
    nan: bool = False  # NaN allowed; infinities never are
    empty: bool = False  # an axis of length 0 allowed
    secret: bool = False  # erased from the store when the job is committed
    renamed: str = ""
    axes: tuple[str, ...] = ()

    @property
    def shown(self) -> str:
        """The name of the input in documents, descriptions and errors."""
        return self.renamed or self.name


@dataclass(frozen=True)
class Output:
    """The declaration of one output of an operation: an array, or a JSON value (number, string, list or object).

    Of a task it may also be a file. `file` is the name under which it is downloaded, `media_type` what it is sent as.
    Of an array, `axes` are the names of its axes, for each rank that it may have: the last whose axes all have a length
    are its own. An axis has the length of an input's axis of the same name, or that of `Operation.sizes`. `dtype` is
    its dtype, or a function of the parameters; "same": that of the first input. `finite` promises that it never holds a
    NaN or an infinity.
    """

    name: str
    doc: str
    kind: Literal["array", "value", "file"] = "array"
    file: str = ""
    media_type: str = ""
    axes: tuple[str, ...] = ()
    dtype: DType | Literal["same"] | Callable[[Any], DType] = "float64"
    finite: bool = False

    def __post_init__(self) -> None:
        if self.axes and self.kind != "array":
            raise ValueError(f"output {self.name} is no array, and has no axes")
        if self.kind == "file":
            if not re.fullmatch(FILE_NAME, self.file) or not re.fullmatch(MEDIA_TYPE, self.media_type):
                raise ValueError(
                    f"output {self.name}: {self.file!r}, {self.media_type!r} are no name and type of a file"
                )
        elif self.file or self.media_type:
            raise ValueError(f"output {self.name} is no file, and has no name or type of one")

    @property
    def stored_as(self) -> str:
        """The name of the output's file in the folder of a result; empty for a JSON value.

        It is of the declaration alone: no task chooses where something is written.
        """
        return {"array": f"{self.name}.npy", "file": f"{self.name}-{self.file}", "value": ""}[self.kind]


@dataclass(frozen=True)
class Cost:
    """The cost of one job of an operation, known before it starts: its memory and its work.

    `bytes` are its inputs, workspace and outputs together. `work` counts its elementary steps (an element touched, a
    path step, a multiply-add): a device's time for the operation is about a + b * work. `step` is about how many
    seconds one core of a CPU takes for a step.
    """

    bytes: int
    work: float = 0.0
    step: float = 2e-9

    @property
    def steps(self) -> float:
        """The elementary steps of an operation's job, or its bytes if the operation counts no steps."""
        return max(self.work or self.bytes, 1.0)

    @property
    def core_seconds(self) -> float:
        """About how long one core takes for a job of the operation, with its bytes read or written at 2 GB/s."""
        return self.work * self.step + self.bytes / 2e9


@dataclass(frozen=True)
class Grid:
    """The grid of an operation's job: how it is cut into chunks on a device.

    It depends on the job alone. So the answer does not depend on where chunks run, nor on how many are in memory at a
    time. `each` is the device memory of one chunk, `fixed` that of the job besides its chunks, in bytes.
    """

    chunks: int
    each: int
    fixed: int = 0


@dataclass(frozen=True)
class Example:
    """An example request of an operation, which runs exactly as shown; inputs are nested lists with a dtype."""

    params: dict[str, Any] = field(default_factory=dict)
    inputs: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class SameAs:
    """What another library calls an operation, with the names of its parameters, inputs and outputs.

    `parameters`, `inputs` and `outputs` map our names to the library's; an output that it does not give is left out.
    `fixed` are parameters of ours that must have these values, `theirs` those of the library.
    """

    library: str
    function: str
    parameters: Mapping[str, str | tuple[str, ...]]
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    theirs: Mapping[str, Any] = field(default_factory=dict)


@cache
def _has_gpu(package: str) -> bool:
    """Whether a package has a module `gpu`. A module that is no package shows it only when it is called."""
    found = importlib.util.find_spec(package)
    if found is None or found.submodule_search_locations is None:
        return True
    return importlib.util.find_spec(f"{package}.gpu") is not None


@dataclass(frozen=True)
class Computation:
    """What a job may ask for by its name: an Operation, or a Task (`kernels.task`).

    `check` sees the parameters and the inputs' descriptions together and raises InvalidRequest.
    `randomness` says which generator feeds it: "seed" receives `seed` (0 <= seed < 2**64), "private" receives
    `key`, 32 bytes from the operating system that no caller chooses and nobody stores.
    `batching` says which jobs may run together; None where each runs alone.
    `spend` is what a job costs its privacy budget, None for one that names no budget; a computation without it never
    charges. A job that charges has the same `key` at every attempt, which depends on `release_version` too: raise it
    with every change of the answer's bytes.
    `same_as` are functions of other libraries that give the same numbers.
    `counted_as` is the name under which Prometheus sees it, if it shares one with others; the default is its own.
    """

    name: str
    summary: str
    package: str
    params: type[Params]
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    example: Example
    cost: Callable[[Any, Mapping[str, ArrayInfo]], Cost]
    check: Callable[[Any, Mapping[str, ArrayInfo]], None] = lambda params, inputs: None  # noqa: ARG005
    randomness: Literal["none", "seed", "private"] = "none"
    batching: Batching | None = None
    spend: Callable[[Any, Mapping[str, ArrayInfo]], Spend | None] | None = None
    release_version: str = ""
    same_as: tuple[SameAs, ...] = ()
    counted_as: str = ""

    @property
    def gpu(self) -> bool:
        """Whether it has an implementation for GPUs."""
        return _has_gpu(self.package)

    @property
    def confidential(self) -> bool:
        """Whether the computation draws private randomness or takes a secret.

        Then its memory is overwritten afterwards, and its jobs share a batch with jobs of the same owner at most.
        """
        return self.randomness == "private" or any(given.secret for given in self.inputs)

    def lacking_gpu(self, params: Mapping[str, Any]) -> list[str]:  # noqa: ARG002
        """The names of what a job of the computation with these parameters runs and has no implementation for GPUs."""
        return [] if self.gpu else [self.name]

    def outputs_of(self, params: Mapping[str, Any]) -> tuple[Output, ...]:  # noqa: ARG002
        """The outputs of a job of the computation with these parameters, as its request has them."""
        return self.outputs

    def secrets(self, inputs: Mapping[str, str]) -> list[str]:
        """The ids of the arrays that the computation declares secret, which are erased once the job is done; `inputs`
        maps names to ids."""
        return [inputs[given.name] for given in self.inputs if given.secret and given.name in inputs]

    @property
    def coalescible(self) -> bool:
        """Whether one computation may answer several identical jobs of the computation.

        Identical are equal parameters, input arrays and chosen seed. A seed that the service drew makes a job unique.
        """
        return not self.confidential

    def given_names(self, given: Iterable[str]) -> dict[str, str]:
        """The names that a request gives its inputs, by their names in records; an unknown one stands for itself.

        Raises InvalidRequest if an input is given twice, by both of its names.
        """
        own = {each.shown: each.name for each in self.inputs}
        found: dict[str, str] = {}
        for name in given:
            key = own.get(name, name)
            if key in found:
                raise refuse(f"/inputs/{name}", f"{found[key]} and {name} are one input of {self.name}; give it once")
            found[key] = name
        return found

    def batch_key(self, params: Params, inputs: Mapping[str, ArrayInfo]) -> str | None:
        """The batch key of a computation's job as JSON: jobs of one key may run in one batch. None: the job runs alone.

        The caller adds what the computation does not know: the requested backend, and the owner if it is confidential.
        """
        if self.batching is None:
            return None
        cost = self.cost(params, inputs)
        if cost.steps > self.batching.steps or cost.bytes > self.batching.bytes:
            return None
        alike: list[Any] = []
        if self.batching.alike:
            alike = [{name: (info.dtype, info.shape) for name, info in inputs.items()}, params.model_dump(mode="json")]
        return json.dumps([self.name, *alike], sort_keys=True)

    def validate(self, params: Mapping[str, Any], inputs: Mapping[str, ArrayInfo]) -> Params:
        """Return the computation's parsed parameters, or raise InvalidRequest with what is wrong with them or with the
        inputs."""
        problems = list(self._input_problems(inputs))
        try:
            # JSON rules of strict mode: lists are tuples there, strings are literals.
            parsed = self.params.model_validate_json(json.dumps(dict(params)))
        except ValidationError as error:
            fields = tuple(self.params.model_fields)
            others, count = problems_of(error.errors(include_url=False), "/params", fields=fields)
            raise InvalidRequest(*problems, *others, count=len(problems) + count) from None
        if problems:
            raise InvalidRequest(*problems)
        self.check(parsed, inputs)
        return parsed

    def _input_problems(self, inputs: Mapping[str, ArrayInfo]) -> list[Problem]:
        by_name = {expected.name: expected for expected in self.inputs}
        shown = [expected.shown for expected in self.inputs]
        problems = [
            Problem(f"/inputs/{name}", f"{self.name} has no input {name!r}; it takes {', '.join(shown) or 'none'}")
            for name in inputs
            if name not in by_name
        ]
        for expected in self.inputs:
            info = inputs.get(expected.name)
            if info is None:
                if expected.required:
                    sentence = f"{self.name} needs the input {expected.shown!r}: {expected.doc}"
                    problems.append(Problem(f"/inputs/{expected.shown}", sentence))
                continue
            at = f"/inputs/{expected.name}"
            if info.dtype not in expected.dtypes:
                problems.append(
                    Problem(at, f"{expected.shown}: dtype {info.dtype} is not one of {', '.join(expected.dtypes)}")
                )
            if info.ndim not in expected.ranks:
                ranks = " or ".join(str(rank) for rank in expected.ranks)
                problems.append(
                    Problem(
                        at, f"{expected.shown}: shape {list(info.shape)} has rank {info.ndim}, expected rank {ranks}"
                    )
                )
            if info.size == 0 and not expected.empty:
                problems.append(Problem(at, f"{expected.shown}: the array is empty: its shape is {list(info.shape)}"))
            if info.has_inf:
                problems.append(Problem(at, f"{expected.shown}: the array holds an infinity"))
            if info.has_nan and not expected.nan:
                problems.append(Problem(at, f"{expected.shown}: the array holds a NaN"))
        return problems


@dataclass(frozen=True)
class Operation(Computation):
    """An operation: a named computation with one implementation for each backend.

    `package` holds `cpu.py` and `gpu.py`, each with a function named like the operation:

        cpu.<name>(params, **inputs [, seed=int | key=bytes]) -> dict[output name, ndarray | JSON value]
        gpu.<name>(params, **inputs [, seed=int | key=bytes], device=Device) -> the same

    Inputs are C-contiguous NumPy arrays in host memory (possibly read-only memory maps), outputs are too.
    `grid` is how a job is cut on a device; gpu.py cuts by it and nothing else (kernels.gpu.chunks).
    `variants` are further requests that run as shown, one for each other piece of compiled code that parameters or
    dtypes select: workers run them ahead of the first user. Twins of examples in float32 need not be listed.
    `compile_seconds` is about how long one core compiles its example for the CPU; quick ones are warm first.
    `compiled_with` is a name for what its example compiles, if other operations compile the same.
    `sizes` are the lengths of axes that parameters decide, by their names (`kernels.axes`).
    `sharding` is how a job is cut for several workers; None, or its answer is None, where the job stays whole. An
    operation that is confidential has none: its key stays on one host.
    """

    variants: tuple[Example, ...] = ()
    compile_seconds: float = 0.0
    compiled_with: str = ""
    grid: Callable[[Any, Mapping[str, ArrayInfo]], Grid] = lambda params, inputs: Grid(1, 0)  # noqa: ARG005
    sharding: Callable[[Any, Mapping[str, ArrayInfo]], Sharding | None] | None = None
    sizes: Callable[[Any, Mapping[str, ArrayInfo]], Mapping[str, int | axes.Shape]] = lambda params, inputs: {}  # noqa: ARG005

    def __post_init__(self) -> None:
        if any(output.kind == "file" for output in self.outputs):
            raise TypeError(f"{self.name}: only a task has outputs that are files")
        if self.sharding is not None and self.confidential:
            raise TypeError(f"{self.name} is confidential: it stays on one host, and cannot have `sharding`")

    def infer(self, params: Params, inputs: Mapping[str, ArrayInfo]) -> dict[str, ArrayInfo | None]:
        """The descriptions of the arrays that a valid job of the operation gives, by output, known before it runs.

        None where the data decide the shape, such as the number of bars. `has_nan` and `has_inf` say what an output may
        hold. Outputs that are JSON values are not among them.
        """
        given = ((expected.axes, inputs[expected.name]) for expected in self.inputs if expected.name in inputs)
        named = [(axes.fitting(written, info.ndim), info.shape) for written, info in given]
        lengths = axes.lengths((names, shape) for names, shape in named if names)
        decided = self.sizes(params, inputs)
        lengths |= {name: (size,) if isinstance(size, int) else size for name, size in decided.items()}
        found: dict[str, ArrayInfo | None] = {}
        for output in self.outputs:
            if output.kind == "array":
                shape = axes.shape_of(output.axes, lengths)
                found[output.name] = None if shape is None else _described(output, params, inputs, shape)
        return found

    def join(self, params: Params, jobs: Sequence[Mapping[str, Any]]) -> Joint | None:
        """The operation's one call for a batch of jobs with these parameters and inputs of equal dtypes and shapes.

        None: the jobs run one after another.
        """
        if self.batching is None or not self.batching.alike:
            return None
        joint: Joint | None = importlib.import_module(f"{self.package}.batch").join(params, jobs)
        return joint

    def shards(self, params: Params, inputs: Mapping[str, ArrayInfo]) -> Sharding | None:
        """The sharding of an operation's job; None if the job stays whole, as one of a single unit does."""
        sharding = None if self.sharding is None else self.sharding(params, inputs)
        return None if sharding is None or sharding.units < 2 else sharding

    def shard_cost(self, sharding: Sharding, inputs: Mapping[str, ArrayInfo], shard: Shard) -> Cost:
        """The cost of one shard of an operation's job: that of a job like it, on what it reads of the inputs."""
        return self.cost(sharding.like(shard), sharding.parts(inputs, shard))

    def merge_cost(self, sharding: Sharding, count: int) -> Cost:
        """The cost of merging so many shards of an operation's job: the bytes that are read and written for it.

        An array that is joined is written to files of the shards, read from these, and written in memory.
        """
        joined = sum(division.whole.nbytes for division in sharding.joined.values())
        return Cost(3 * joined + 2 * count * sum(info.nbytes for info in sharding.added.values()))

    def width(self, params: Params, inputs: Mapping[str, ArrayInfo], workers: int) -> int:
        """The number of shards of an operation's job that `workers` idle workers should compute; 1: it stays whole.

        It is what the width `auto` stands for: SHARD_SECONDS and SHARD_OVERHEAD.
        """
        sharding = self.shards(params, inputs)
        if sharding is None:
            return 1
        whole = self.cost(params, inputs).core_seconds

        def overhead(count: int) -> float:
            sizes = Counter(shard.end - shard.first for shard in sharding.cut(count))
            shards = sum(
                number * self.shard_cost(sharding, inputs, Shard(0, size)).core_seconds
                for size, number in sizes.items()
            )
            return ((shards - whole) / count + self.merge_cost(sharding, count).core_seconds) / whole

        most = min(workers, sharding.units, int(whole / SHARD_SECONDS))
        return 1 + bisect_right(range(2, most + 1), SHARD_OVERHEAD, key=overhead)

    @cached_property
    def code(self) -> str:
        """A digest of the kernels' sources and of the operation's own, by which shards of other code are told apart."""
        return f"{fingerprint()} {digest_of_code((self.package,))}"

    def implementation(self, backend: Backend) -> Callable[..., dict[str, Any]]:
        """Import and return the function that computes this operation on a backend."""
        function: Callable[..., dict[str, Any]] = getattr(
            importlib.import_module(f"{self.package}.{backend}"), self.name
        )
        return function


def _described(output: Output, params: Params, inputs: Mapping[str, ArrayInfo], shape: axes.Shape) -> ArrayInfo:
    dtype: Any = output.dtype(params) if callable(output.dtype) else output.dtype
    if dtype == "same":
        dtype = next(iter(inputs.values())).dtype
    special = dtype.startswith("float") and not output.finite
    return ArrayInfo(dtype, shape, has_nan=special, has_inf=special)


def digest_of_code(packages: Iterable[str], libraries: Iterable[str] = ()) -> str:
    """A digest of the sources of packages, and of the releases of libraries."""
    digest = hashlib.sha256()
    for package in packages:
        found = importlib.util.find_spec(package)
        for place in (found.submodule_search_locations or []) if found is not None else []:
            folder = Path(place)
            for file in sorted((*folder.rglob("*.py"), *folder.rglob("*.cu"), *folder.rglob("*.cuh"))):
                digest.update(file.relative_to(folder).as_posix().encode() + b"\0" + file.read_bytes() + b"\0")
    for name in libraries:
        digest.update(f"{name} {release_of(name)}\0".encode())
    return digest.hexdigest()[:16]


def release_of(library: str) -> str | None:
    """The release of a library that is installed here; None if it is not."""
    try:
        return version(library)
    except PackageNotFoundError:
        return None
