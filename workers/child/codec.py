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
from typing import Any

import numpy as np

from warpdesk.models import DTYPES
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.operation import Computation
from warpdesk_server.kernels.params import Params
from warpdesk_server.kernels.problems import refuse
from warpdesk_server.workers.queue.protocol import ArrayOutput, AttachedInputs, JobRequest, ResultDocument, ValueOutput
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
) -> None:
    """Write what the child computed, `result.json` and one .npy file per array output, into an attempt's directory.

    It may have them already, empty. Raises TypeError when the operation returned something else than it declares.
    """
    declared = {output.name: output for output in operation.outputs}
    if outputs.keys() - declared.keys() or declared.keys() - outputs.keys():
        raise TypeError(f"{operation.name} returned {sorted(outputs)} and declares {sorted(declared)}")
    document = ResultDocument(
        job=request.id,
        owner=request.owner,
        operation=operation.name,
        outputs={
            name: _array(name, outputs[name], request.owner, directory, store)
            if output.kind == "array"
            else ValueOutput(value=_plain(outputs[name]))
            for name, output in declared.items()
        },
        expires_at=now + request.result_ttl,
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
    """The names of the result files that the child writes by `encode`."""
    return [_DOCUMENT, *(_file(output.name) for output in operation.outputs if output.kind == "array")]


def _file(output: str) -> str:
    return f"{output}.npy"


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


def _array(name: str, value: Any, owner: str, directory: Path, store: WorkerStore) -> ArrayOutput:
    array = np.asarray(value)
    dtype = _DTYPES.get(array.dtype)
    if dtype is None:
        raise TypeError(f"output {name!r} has dtype {array.dtype}, which is not one of {', '.join(DTYPES)}")
    array = np.ascontiguousarray(array).reshape(array.shape)  # ascontiguousarray makes a vector of a scalar
    data = array.reshape(-1).view(np.uint8).data
    file = _file(name)
    stretch = STRETCH if store.forced else len(data)
    _write(f"{directory}/{file}", [npy.header(dtype, array.shape), data[:stretch]], data[stretch:])
    special = array.dtype.kind == "f" and not np.isfinite(array).all()
    return ArrayOutput(
        file=file,
        dtype=dtype,
        shape=array.shape,
        id=store.digest(owner, dtype, array.shape, data),
        has_nan=special and bool(np.isnan(array).any()),
        has_inf=special and bool(np.isinf(array).any()),
    )


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
