"""The arguments of the clients' methods, and their answers, apart from the models of the service."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Required, TypedDict, TypeVar, get_args

from numpy.typing import ArrayLike
from pydantic import PrivateAttr

from warpdesk import ta
from warpdesk.arrays import AnyArray
from warpdesk.datasets import Dataset
from warpdesk.errors import JobFailed
from warpdesk.frames import FrameLabels, JobLabels
from warpdesk.models import ArrayDescription, BackendWish, Job, JobDescription, JobEvent, Priority, Provenance
from warpdesk.secagg.quantisation import Quantisation

AnyJob = JobDescription | str  # a job, or its id
Progress = Callable[[JobEvent], object]  # is called with each event of a job, in order
Shards = int | Literal["auto"]  # parts in which several workers compute a job
ManyProgress = Callable[[int, int], object]  # is called with how many jobs of how many have ended
OnTimeout = Literal["leave", "cancel"]  # what becomes of a job whose caller waits no longer
# An input: numbers, also in a frame, an array that was uploaded, or a part of a dataset.
Numbers = ArrayLike | ArrayDescription | Dataset
NanPolicy = Literal["window", "skip", "ffill", "error"]


class LabelledArray(ArrayDescription):
    """A frame or series that the client uploaded, a frame with its rows along the last axis."""

    _labels: FrameLabels = PrivateAttr()

    @classmethod
    def of(cls, array: ArrayDescription, labels: FrameLabels) -> "LabelledArray":
        made = cls.model_construct(**dict(array))
        made._labels = labels
        return made


class LabelledJob(Job):
    """A job that the client submitted, with the labels of its inputs if these were frames."""

    _labels: JobLabels | None = PrivateAttr(None)


def labels_with(value: Any) -> Any:
    """The labels that the client has beside a job or an array; None beside an id, or where there were none."""
    return getattr(value, "_labels", None)


class RunOptions(TypedDict, total=False):
    """The options of a client's `run`, which the methods of operations take too."""

    backend: BackendWish
    priority: Priority
    seed: int | None
    deadline_s: float | None
    result_ttl_s: float | None
    shards: Shards
    timeout: float | None
    on_timeout: OnTimeout
    progress: Progress | None
    idempotency_key: str | None


def require_known(wish: OnTimeout) -> None:
    if wish not in get_args(OnTimeout):
        raise ValueError(f"on_timeout is one of {', '.join(get_args(OnTimeout))}, got {wish!r}")


@dataclass(frozen=True)
class Options:
    backend: BackendWish
    priority: Priority
    seed: int | None
    deadline_s: float | None
    result_ttl_s: float | None
    width: Shards  # as the service calls it: operations have parameters of that name


class Call:
    """One job of `run_many` or `submit_many`: an operation with its inputs and parameters, and the options of `submit`.

    client.run_many([Call("rsi", close=prices, period=period) for period in range(5, 55)])
    """

    def __init__(
        self,
        operation: str,
        *,
        backend: BackendWish = "auto",
        priority: Priority = "batch",
        seed: int | None = None,
        deadline_s: float | None = None,
        result_ttl_s: float | None = None,
        shards: Shards = "auto",
        params: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> None:
        self.operation = operation
        self.options = Options(backend, priority, seed, deadline_s, result_ttl_s, shards)
        self.fields = {**(params or {}), **fields}

    def __repr__(self) -> str:
        return f"Call({self.operation!r}, {', '.join(self.fields)})"


@dataclass(frozen=True)
class Place:
    """The client's position in the list of jobs: the next page, none for the first, and how many jobs are still
    wanted."""

    page: str | None
    left: int | None


class AskedRound(TypedDict, total=False):
    """The arguments of the client's method that creates a secure aggregation round. The default modulus is 2**32, the
    default output float.

    `min_clients` is the fewest clients that may send keys and shares; the default is just more than half. `threshold`
    is for a round in which all clients share with all. Without it, neighbours and threshold follow from the number of
    clients. `deadlines` are the seconds that each phase may take.
    """

    clients: Required[int]
    dimension: Required[int]
    quantisation: Required[Quantisation]
    min_clients: int
    threshold: int
    modulus_bits: Literal[32, 64]
    output: Literal["int", "float", "mean"]
    deadlines: Mapping[Literal["keys_s", "shares_s", "masked_s", "unmask_s"], float]
    backend: BackendWish


@dataclass(frozen=True, eq=False)
class Result(Mapping[str, Any]):
    """The result of one job, as the client returns it: its outputs, arrays as NumPy and the rest as plain Python; the
    provenance; the job. Where inputs were frames, an array with an axis of theirs is a frame or series of the same
    library.

    An output is `result["upper"]` or `result.upper`. An output named like another attribute needs the first form.
    The outputs of an `expression` are found by the names that it gives them, beside `series`, `names` and `first`,
    which `outputs` has alone.
    """

    outputs: dict[str, Any]
    provenance: Provenance
    job: JobDescription

    def __getitem__(self, name: str) -> Any:
        named = self._named()
        if name not in named:
            raise KeyError(f"there is no output {name!r}; there are {', '.join(named)}")
        return named[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._named())

    def __len__(self) -> int:
        return len(self._named())

    def __getattr__(self, name: str) -> Any:
        named = self._named() if "job" in self.__dict__ else {}  # it has none while it is unpickled
        if name in named:
            return named[name]
        raise AttributeError(f"there is no output {name!r}; there are {', '.join(named)}")

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._named()]

    def _named(self) -> dict[str, Any]:
        own = ta.outputs(self.outputs) if self.job.operation == "expression" else {}
        return {**own, **self.outputs}


R = TypeVar("R", bound=Result)


def typed(kind: type[R], result: Result) -> R:
    """The result of a client's method as that of one operation."""
    return kind(result.outputs, result.provenance, result.job)


def given(**fields: Any) -> dict[str, Any]:
    """The inputs and parameters that the caller of a client's method gave: all but None."""
    return {name: value for name, value in fields.items() if value is not None}


def all_succeeded(results: Sequence[Result | JobFailed]) -> list[Result]:
    """The results of several jobs. Raises the exception of the first one that has none."""
    failed = next((each for each in results if isinstance(each, JobFailed)), None)
    if failed is not None:
        raise failed
    return [each for each in results if isinstance(each, Result)]


@dataclass(frozen=True)
class Round:
    """A secure aggregation round that the client created: its id, a join token for each client, and why no sum can
    overflow.

    Any client may get any token. The tokens cannot be fetched again.
    """

    id: str
    tokens: list[str] = field(repr=False)
    overflow_proof: dict[str, int]


@dataclass(frozen=True)
class RoundResult:
    """The sum of the survivors' vectors, as the client returns it, and what the service learned while it was made."""

    sum: AnyArray
    survivors: list[int]
    dropped: list[int]
    overflow_proof: dict[str, int]
    statement: str
    provenance: Provenance
    job: str
