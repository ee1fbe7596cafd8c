"""The contract of a task: work of hours or days that runs in steps, and resumes where its last checkpoint was made.

An operation is a pure function that is computed again from the start. A task keeps its state between steps, so that a
worker that dies, is drained or loses its machine costs the steps since the last checkpoint and no more.
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.gpu.contract import Device
from warpdesk_server.kernels.operation import Computation, digest_of_code, release_of

State = Mapping[str, Any]  # what a checkpoint keeps: NumPy arrays, and JSON values, by name


class Stopped(Exception):
    """Raised by `Context.checkpoint` once the state is kept, where the task has to stop. A task lets it through."""


class Context(Protocol):
    """A task's view of the worker that runs it.

    `state` is what the last checkpoint kept, None at the beginning. `device` is the GPU, None on the CPU.
    """

    @property
    def state(self) -> State | None: ...

    @property
    def device(self) -> Device | None: ...

    @property
    def stop(self) -> bool:
        """Whether the task has to stop: its worker is drained, or its caller pauses it. The next `checkpoint` does."""

    def file(self, output: str) -> Path:
        """The path at which the task writes the file of this output, which it then returns. Raises KeyError for an
        output that is no file.

        The folder is of one attempt: what is in it when the task stops is gone. So ask after the last step.
        """

    def report(self, step: int, done: float | None = None, **values: float) -> None:
        """Report numbers of a step, counted from 1, such as a loss, and the fraction that is `done`.

        It may be called at each step: what is too often for the queue is left out. NaN and infinities are null. At most
        32 values, with names of at most 64 letters.
        """

    def checkpoint(self, step: int, make: Callable[[], State]) -> None:
        """Offer the task's state after a step, counted from 1. Call it after each step.

        `make` is called only where a checkpoint is due. What it returns is written before this returns. Raises Stopped
        where the task has to stop, after the state was kept.
        """


@dataclass(frozen=True)
class TaskLimits:
    """The limits that a task sets for one of its jobs, in place of the service's.

    `step_seconds` is how long the task may go without a call of `report` or `checkpoint`. `seconds` is how long all its
    steps may take together, without those that are repeated; None for no limit. `checkpoint_bytes` and `result_bytes`
    are the most that a checkpoint, and the arrays and files of the result, take on the disk. What it needs of memory is
    in its `cost`.
    """

    step_seconds: float
    seconds: float | None
    checkpoint_bytes: int
    result_bytes: int


@dataclass(frozen=True, kw_only=True)
class Task(Computation):
    """A task: a named computation in steps, which reports numbers and keeps checkpoints.

    `package` has a module `task` with a function named like the task:

        task.<name>(params, context, **inputs [, seed=int]) -> dict[output name, ndarray | JSON value | Path | bytes]

    An output that is a file is returned as its bytes, or as the path at which it is: that of `context.file`, or
    another, from which it is copied.

    Its answer depends on params, inputs and seed alone, and not on where it was interrupted: `state` must hold all that
    the steps after it need. `gpu` says whether it can use a GPU. `uses` are other packages whose code the answer
    depends on; with a change of any of them a checkpoint is no longer used. `libraries` are distributions it needs
    beside the service's, such as torch: they are imported by the worker of tasks alone.
    """

    limits: Callable[[Any, Mapping[str, ArrayInfo]], TaskLimits]
    gpu: bool = False
    uses: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.confidential:
            raise ValueError(f"{self.name}: a checkpoint would keep what a confidential task must not leave behind")

    @property
    def coalescible(self) -> bool:
        """False: one caller's pause would hold the job of another request."""
        return False

    @property
    def missing(self) -> list[str]:
        """The libraries that the task needs and this environment lacks."""
        return [name for name in self.libraries if release_of(name) is None]

    @cached_property
    def code(self) -> str:
        """A digest of the task's sources, and of the releases of its libraries, by which checkpoints are told apart."""
        return digest_of_code((self.package, *self.uses), self.libraries)

    def function(self) -> Callable[..., dict[str, Any]]:
        """Import and return the function that runs this task."""
        function: Callable[..., dict[str, Any]] = getattr(importlib.import_module(f"{self.package}.task"), self.name)
        return function


class Undisturbed:
    """The context of a task that nobody stops: for notebooks, and for tests that compare with it."""

    stop = False
    state: State | None = None

    def __init__(self, device: Device | None = None, folder: Path | None = None) -> None:
        """`folder` is where the task's files go, named like its outputs; None for a task that has none."""
        self.device, self._folder = device, folder
        self.reports: list[tuple[int, float | None, dict[str, float]]] = []

    def file(self, output: str) -> Path:
        if self._folder is None:
            raise KeyError(output)
        return self._folder / output

    def report(self, step: int, done: float | None = None, **values: float) -> None:
        self.reports.append((step, done, values))

    def checkpoint(self, step: int, make: Callable[[], State]) -> None:
        """Keep nothing."""
