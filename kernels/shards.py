"""The shards of a job: what each reads, the arrays that it gives on a backend, and the answer that these make."""

import importlib
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.cpu.pages import empty
from warpdesk_server.kernels.operation import Backend, Operation
from warpdesk_server.kernels.sharding import Shard, Sharding

Arrays = Mapping[str, NDArray[Any]]


def parts(sharding: Sharding, shard: Shard, inputs: Arrays) -> dict[str, NDArray[Any]]:
    """What a shard reads of the job's inputs, as views: each is one piece of memory, or of a mapped file."""
    return {
        name: array.reshape(division.lines)[slice(*division.span(shard))]
        if (division := sharding.inputs.get(name))
        else array
        for name, array in inputs.items()
    }


def compute(
    operation: Operation,
    backend: Backend,
    params: Any,
    sharding: Sharding,
    shard: Shard,
    inputs: Arrays,
    **options: Any,
) -> dict[str, NDArray[Any]]:
    """The arrays of one shard of a job, as `sharding.results` describes them, with the same bytes on every backend.

    `inputs` are the shard's `parts`; `options` are those of the implementation: `seed`, `device`.
    """
    if sharding.partials:
        function = getattr(importlib.import_module(f"{operation.package}.{backend}"), sharding.partials)
        given = function(params, shard, **inputs, **options)
    else:
        given = operation.implementation(backend)(sharding.like(shard), **inputs, **options)
    return {name: given[name].reshape(info.shape) for name, info in sharding.results(shard).items()}


def join(sharding: Sharding, whole: Shard, results: Iterable[tuple[Shard, Arrays]]) -> dict[str, NDArray[Any]]:
    """The arrays of a shard from those of the shards that it was cut into, in any order. Raises ValueError as merge."""
    infos = sharding.results(whole)
    lines = {name: empty(infos[name].shape, infos[name].dtype) for name in sharding.joined}
    return lines | _filled(sharding, whole, results, lines)


def merge(
    operation: Operation,
    params: Any,
    sharding: Sharding,
    results: Iterable[tuple[Shard, Arrays]],
    make: Callable[[str, ArrayInfo], NDArray[Any]] = lambda _, info: empty(info.shape, info.dtype),
) -> dict[str, Any]:
    """The outputs of a job from the arrays of its shards, in any order: the bytes of the whole job.

    For each name in `sharding.joined` it fills what `make` makes, which may be a mapped file. Of the shards it holds
    the arrays of one at a time. Raises ValueError if an array is not as described, or if a unit is missing or given
    twice.
    """
    merged = {name: make(name, division.whole) for name, division in sharding.joined.items()}
    lines = {name: array.reshape(sharding.joined[name].lines) for name, array in merged.items()}
    merged |= _filled(sharding, Shard(0, sharding.units), results, lines)
    if not sharding.outputs:
        given = merged | dict(sharding.values)
        return {output.name: given[output.name] for output in operation.outputs}
    module, _, function = sharding.outputs.rpartition(".")
    outputs: dict[str, Any] = getattr(importlib.import_module(f"{operation.package}.{module}"), function)(
        params, **merged
    )
    return outputs


def _filled(
    sharding: Sharding,
    whole: Shard,
    results: Iterable[tuple[Shard, Arrays]],
    lines: Arrays,
) -> dict[str, NDArray[Any]]:
    """Fill a shard's joined arrays, as lines of items, with those of its shards; returns its added ones."""
    sums = {name: np.zeros(info.shape, info.dtype) for name, info in sharding.added.items()}
    shards = []
    for shard, arrays in results:
        shards.append(shard)
        for name, info in sharding.results(shard).items():
            array = arrays[name]
            if array.dtype.name != info.dtype or array.shape != info.shape:
                raise ValueError(
                    f"{name} of units {shard.first} to {shard.end} is {array.dtype} of shape {list(array.shape)}, "
                    f"expected {info.dtype} of shape {list(info.shape)}"
                )
            if name in sums:
                np.add(sums[name], array, out=sums[name])
            else:
                division = sharding.joined[name]
                before = division.span(whole)[0]
                first, end = division.span(shard)
                lines[name][(slice(None),) * division.outer + (slice(first - before, end - before),)] = array
    shards.sort()
    ends = [Shard(whole.first, whole.first), *shards, Shard(whole.end, whole.end)]
    if any(left.end != right.first for left, right in pairwise(ends)):
        have = ", ".join(f"{shard.first} to {shard.end}" for shard in shards)
        raise ValueError(f"the shards have units {have or 'none'}, expected each of {whole.first} to {whole.end} once")
    return sums
