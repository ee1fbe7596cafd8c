"""Benchmark cases: a request of an operation, peers that compute the same by another library, and a goal."""

import importlib
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from warpdesk_server.kernels.catalogue import OPERATIONS
from warpdesk_server.kernels.gpu.contract import Device
from warpdesk_server.kernels.params import Params

Inputs = dict[str, NDArray[Any]]
Call = Callable[[], object]

# small: seconds in all, to see that everything runs. full: what is published. large: for a GPU, whose launch and copies
# would hide what the kernels do.
Sizes = Literal["small", "full", "large"]


@dataclass(frozen=True)
class Peer:
    """Another library's computation of the case, or the nearest to it: `note` says what is different.

    `call` takes the inputs and returns the timed function; it may be slow, and imports the library. `per` is a factor
    for the peer's time: the case's work divided by the peer's.
    """

    name: str
    distribution: str
    call: Callable[[Inputs], Call]
    threads: int | Literal["all"] = 1
    per: float = 1.0
    note: str = ""


@dataclass(frozen=True)
class Goal:
    """What to reach: times as quick as a peer, or on a GPU a part of a measured rate, a rate or a time of the kernels.

    `part` is of the copy rate for what moves memory, of cuBLAS's rate for what multiplies.
    """

    peers: Mapping[str, float] = field(default_factory=dict)
    part: float | None = None
    seconds: float | None = None
    words: float | None = None  # bytes of keystream per second


@dataclass(frozen=True)
class Case:
    """One benchmark request and its least work: `moved` bytes in and out of memory, `multiplied` pairs of numbers,
    `keystream` bytes of random words.

    `burst` is for threads, those of a peer or our own (report.interleave).
    """

    operation: str
    label: str
    params: Mapping[str, Any]
    inputs: Callable[[], Inputs]
    sizes: Sizes
    peers: tuple[Peer, ...] = ()
    goal: Goal = field(default_factory=Goal)
    moved: int = 0
    multiplied: int = 0
    keystream: int = 0
    repeats: int = 21
    burst: int = 0

    def parsed(self) -> Params:
        params: Params = OPERATIONS[self.operation].params.model_validate(dict(self.params), strict=False)
        return params

    def call(self, inputs: Inputs, device: Device | None = None) -> Call:
        """The whole computation from host arrays to host arrays, on the CPU or on a device."""
        operation = OPERATIONS[self.operation]
        options: dict[str, Any] = {} if device is None else {"device": device}
        compute = partial(operation.implementation("cpu" if device is None else "gpu"), self.parsed(), **inputs)
        if operation.randomness == "seed":
            return partial(compute, seed=1, **options)
        if operation.randomness == "private":
            return lambda: compute(key=secrets.token_bytes(32), **options)
        return partial(compute, **options)


@dataclass(frozen=True)
class Ready:
    """The peers of a case that can run here, and those that cannot with the reason."""

    calls: dict[str, Call]
    peers: dict[str, Peer]
    left_out: dict[str, str]


def prepare(peers: Sequence[Peer], inputs: Inputs) -> Ready:
    """Prepare the timed function of each peer whose library is installed."""
    ready = Ready({}, {}, {})
    for peer in peers:
        try:
            ready.calls[peer.name] = peer.call(inputs)
            ready.peers[peer.name] = peer
        except ModuleNotFoundError:
            ready.left_out[peer.name] = f"{peer.distribution} is not installed"
        except ImportError as error:
            ready.left_out[peer.name] = f"{peer.distribution}: {error}"
    return ready


def version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def numpy_peer(call: Callable[[Inputs], Call], name: str = "NumPy", **more: Any) -> Peer:
    return Peer(name, "numpy", call, **more)


def module(name: str) -> Any:
    return importlib.import_module(name)


def random(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


def measured(value: float) -> str:
    """Format a count briefly: 1M, 2,520."""
    return f"{value / 1e6:g}M" if value >= 1e6 and value % 1e5 == 0 else f"{value:,}"
