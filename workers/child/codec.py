"""The codec of jobs: it turns a job's array ids into arrays, and an operation's outputs into result files."""

import errno
import hashlib
import json
import math
import mmap
import os
from binascii import a2b_base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from warpdesk.models import DTYPES, DType, StepProvenance
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.operation import Computation, Output
from warpdesk_server.kernels.params import Params
from warpdesk_server.kernels.problems import refuse
from warpdesk_server.workers.queue.protocol import (
    ArrayOutput,
    AttachedInputs,
    FileOutput,
    JobRequest,
    ResultDocument,
    ValueOutput,
)
from warpdesk_server.workers.store import npy
from warpdesk_server.workers.store.npy_writer import STRETCH
from warpdesk_server.workers.store.protocol import UNKNOWN_ID, WorkerStore

# A smaller file is read: to map it, to have its pages looked up and to forget them takes longer.
_MAPPED = 256 << 10

_DOCUMENT = "result.json"
_NOTHING = memoryview(b"")

_DTYPES = {np.dtype(dtype): dtype for dtype in DTYPES}

# Validated parameters, by their JSON and the descriptions of the inputs.
ParamsCache = dict[tuple[Any, ...], Params]


def decode(
    operation: Computation, request: JobRequest, store: WorkerStore, cache: ParamsCache, attached: str = ""
) -> tuple[Params, dict[str, np.ndarray]]:
    """The parsed parameters and the input arrays of a job that the child computes; jobs of one batch share `cache`.

    `attached` are the inputs that its record in Redis has (`AttachedInputs` as JSON).

    Inputs are writable memory, so that they have the type of ordinary arrays for Numba, and nothing written reaches a
    file. Raises InvalidRequest, also for an input that has gone.
    """
    described: dict[str, ArrayInfo] = {}
    arrays: dict[str, np.ndarray] = {}
    if request.attached:
        arrays, described = _attached(request, store, attached)
    for name, array_id in request.inputs.items():
        if name in request.attached:
            continue
        stored = store.find(request.owner, array_id)
        try:
            arrays[name], info = _read(store.path(request.owner, array_id), mapped=operation.confidential)
        except (FileNotFoundError, ValueError):
            raise refuse(f"/inputs/{name}", "the array was erased, or its time was over, before the job ran") from None
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
            raise refuse(f"/inputs/{name}", error.strerror or "it cannot be had") from None
        described[name] = info if stored is None else stored.info
    key = operation.name, json.dumps(request.params), *described.items()
    params = cache.get(key)
    if params is None:
        params = cache[key] = operation.validate(request.params, described)
    return params, arrays


def _attached(
    request: JobRequest, store: WorkerStore, attached: str
) -> tuple[dict[str, np.ndarray], dict[str, ArrayInfo]]:
    """The arrays of a job that its record in Redis has, and their descriptions, of what the API signed and no other.

    Raises InvalidRequest.
    """
    arrays, described = dict[str, np.ndarray](), dict[str, ArrayInfo]()
    try:
        given = AttachedInputs.validate_json(attached or "{}")
        for name, dtype in request.attached.items():
            shape, data = given[name].shape, bytearray(a2b_base64(given[name].data))
            if store.digest(request.owner, dtype, shape, memoryview(data)) not in (request.inputs[name], UNKNOWN_ID):
                raise ValueError(name)
            array = np.frombuffer(data, dtype).reshape(shape) if data else np.empty(shape, dtype)
            arrays[name] = array
            described[name] = ArrayInfo(dtype, shape, array.dtype.kind == "f" and bool(np.isnan(array).any()))
    except (ValueError, KeyError):
        raise refuse("/inputs", "an input in the job's record is not what the service wrote there") from None
    return arrays, described


def encode(
    operation: Computation,
    request: JobRequest,
    outputs: Mapping[str, Any],
    directory: Path,
    store: WorkerStore,
    now: float,
    steps: tuple[StepProvenance, ...] | None = None,
) -> None:
    """Write what the child computed, `result.json` and one file per array or file output, into an attempt's directory.

    It may have them already, empty. `steps` says how those of a plan were computed. Raises TypeError when the operation
    returned something else than it declares.
    """
    declared = {output.name: output for output in operation.outputs_of(request.params)}
    if outputs.keys() - declared.keys() or declared.keys() - outputs.keys():
        raise TypeError(f"{operation.name} returned {sorted(outputs)} and declares {sorted(declared)}")
    document = ResultDocument(
        job=request.id,
        owner=request.owner,
        operation=operation.name,
        outputs={
            name: _output(output, outputs[name], request.owner, directory, store) for name, output in declared.items()
        },
        expires_at=now + request.result_ttl,
        steps=steps,
    )
    _write(f"{directory}/{_DOCUMENT}", [document.model_dump_json().encode()])


def digest(operation: Computation, outputs: Mapping[str, Any]) -> str:
    """SHA-256 of all outputs that the child computed for a release.

    It is the same wherever, and however often, the release was computed.
    """
    whole = hashlib.sha256()
    for output in operation.outputs:
        value = outputs[output.name]
        if output.kind == "array":
            array = np.ascontiguousarray(value)
            whole.update(f"{output.name} {array.dtype.name} {np.shape(value)}\n".encode())
            whole.update(array.reshape(-1).view(np.uint8).data)
        else:
            whole.update(f"{output.name} {json.dumps(_plain(value), sort_keys=True)}\n".encode())
    return whole.hexdigest()


def files(operation: Computation) -> list[str]:
    """The names of the result files that the child writes by `encode`, as far as each job of the operation has them."""
    return [_DOCUMENT, *(output.stored_as for output in operation.outputs if output.kind == "array")]


def size(operation: Computation, outputs: Mapping[str, Any]) -> int:
    """The bytes of the arrays and files that the child's operation returned."""
    sizes = (_size(output, outputs.get(output.name)) for output in operation.outputs)
    return sum(sizes)


def _size(output: Output, value: Any) -> int:
    if output.kind == "file":
        return value.stat().st_size if isinstance(value, Path) else len(value) if isinstance(value, bytes) else 0
    return value.nbytes if output.kind == "array" and hasattr(value, "nbytes") else 0


def _read(file: Path, mapped: bool) -> tuple[np.ndarray, ArrayInfo]:
    """An input array that the child reads from a file, and what its header says.

    What is mapped is read in place: no copy of it stays in memory. Raises ValueError for a file that is none of ours,
    or is cut short.
    """
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        data: bytearray | mmap.mmap
        if mapped or size >= _MAPPED:
            data = mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY)
        else:
            data = bytearray(size)
            size = os.readv(descriptor, [data])
    finally:
        os.close(descriptor)
    info, start = npy.read_header(data)
    if size < start + info.nbytes:
        raise ValueError(f"the file has {size} bytes, and its header says {start + info.nbytes}")
    if info.size == 0:
        return np.empty(info.shape, info.dtype), info
    return np.frombuffer(data, info.dtype, info.size, start).reshape(info.shape), info


def _output(
    output: Output, value: Any, owner: str, directory: Path, store: WorkerStore
) -> ArrayOutput | FileOutput | ValueOutput:
    """One output of the child's result for its document, once its file, if it has one, is written."""
    if output.kind == "array":
        return _array(output, value, owner, directory, store)
    if output.kind == "file":
        return _file(output, value, directory, store)
    return ValueOutput(value=_plain(value))


def _file(output: Output, value: Any, directory: Path, store: WorkerStore) -> FileOutput:
    """A file of the child's result, from its bytes or from a path. At its own place it is already."""
    place = directory / output.stored_as
    if isinstance(value, bytes):
        stretch = STRETCH if store.forced else len(value)
        _write(str(place), [value[:stretch]], memoryview(value)[stretch:])
    elif not isinstance(value, Path):
        raise TypeError(f"output {output.name!r} is a file, and a {type(value).__name__} is neither bytes nor a path")
    elif value != place:
        with value.open("rb") as source, place.open("wb") as target:
            while piece := source.read(STRETCH):
                target.write(piece)
                if store.forced:
                    target.flush()
                    os.fdatasync(target.fileno())
    with place.open("rb") as file:
        return FileOutput(
            file=output.stored_as,
            name=output.file,
            media_type=output.media_type,
            bytes=os.fstat(file.fileno()).st_size,
            sha256=hashlib.file_digest(file, "sha256").hexdigest(),
        )


def _array(output: Output, value: Any, owner: str, directory: Path, store: WorkerStore) -> ArrayOutput:
    array = np.asarray(value)
    dtype = _DTYPES.get(array.dtype)
    if dtype is None:
        raise TypeError(f"output {output.name!r} has dtype {array.dtype}, which is not one of {', '.join(DTYPES)}")
    array = contiguous(array)
    data = array.reshape(-1).view(np.uint8).data
    file = output.stored_as
    stretch = STRETCH if store.forced else len(data)
    _write(f"{directory}/{file}", [npy.header(dtype, array.shape), data[:stretch]], data[stretch:])
    info = described(array)
    return ArrayOutput(
        file=file,
        dtype=dtype,
        shape=array.shape,
        id=store.digest(owner, dtype, array.shape, data),
        has_nan=info.has_nan,
        has_inf=info.has_inf,
    )


def contiguous(array: np.ndarray) -> np.ndarray:
    """An array that the child computed, in C order, as it is stored."""
    return np.ascontiguousarray(array).reshape(array.shape)  # ascontiguousarray makes a vector of a scalar


def described(array: np.ndarray) -> ArrayInfo:
    """The description of an array that the child computed, as it is stored with it."""
    special = array.dtype.kind == "f" and not np.isfinite(array).all()
    has_nan, has_inf = (special and bool(odd(array).any()) for odd in (np.isnan, np.isinf))
    return ArrayInfo(cast(DType, array.dtype.name), array.shape, has_nan, has_inf)


def _write(file: str, pieces: Sequence[bytes | memoryview], then: memoryview = _NOTHING) -> None:
    """Make the child's result file of these pieces, in one call unless the system takes less of them.

    What comes `then` is written in stretches, and each is on the disk before the next.
    """
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        written = os.writev(descriptor, pieces)
        for piece in pieces:
            rest = memoryview(piece)[written:]
            written = max(0, written - len(piece))
            while rest:
                rest = rest[os.write(descriptor, rest) :]
        while then:
            os.fdatasync(descriptor)
            then = then[os.write(descriptor, then[:STRETCH]) :]
    finally:
        os.close(descriptor)


def _plain(value: Any) -> Any:
    """A JSON value of an output that the child computed: NumPy scalars as Python's, NaN and infinities as null."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, str | int):
        return value
    raise TypeError(f"{type(value).__name__} is not a JSON value")
