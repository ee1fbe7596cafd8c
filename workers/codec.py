"""Turn a job's array ids into memory-mapped arrays, and what an operation returned into files."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kernels.array import DTYPES, ArrayInfo
from kernels.operation import Operation, Params, refuse
from workers import npy
from workers.protocol import ArrayOutput, JobRequest, ResultDocument, ValueOutput
from workers.store import Store


def decode(operation: Operation, request: JobRequest, store: Store) -> tuple[Params, dict[str, np.ndarray]]:
    """The parsed parameters and the inputs.

    Inputs are private maps of the files: writable memory, so that they have the type of ordinary arrays for Numba, and
    nothing written reaches the file. Raises InvalidRequest, also for an input that has gone.
    """
    described: dict[str, ArrayInfo] = {}
    arrays: dict[str, np.ndarray] = {}
    for name, array_id in request.inputs.items():
        stored = store.find(request.owner, array_id)
        try:
            file = store.path(request.owner, array_id)
            info, start = npy.read_header(file)
            arrays[name] = _map(file, info, start)
        except (FileNotFoundError, ValueError):
            raise refuse(f"/inputs/{name}", "the array was erased, or its time was over, before the job ran") from None
        described[name] = info if stored is None else stored.info
    return operation.validate(request.params, described), arrays


def encode(
    operation: Operation, request: JobRequest, outputs: Mapping[str, Any], directory: Path, store: Store, now: float
) -> None:
    """Write `result.json` and one .npy file per array output into an attempt's directory.

    Raises TypeError when the operation returned something else than it declares.
    """
    declared = {output.name: output for output in operation.outputs}
    if outputs.keys() - declared.keys() or declared.keys() - outputs.keys():
        raise TypeError(f"{operation.name} returned {sorted(outputs)} and declares {sorted(declared)}")
    document = ResultDocument(
        job=request.id,
        operation=operation.name,
        outputs={
            name: _array(name, outputs[name], request.owner, directory, store)
            if output.kind == "array"
            else ValueOutput(value=_plain(outputs[name]))
            for name, output in declared.items()
        },
        expires_at=now + request.result_ttl,
    )
    (directory / "result.json").write_text(document.model_dump_json())


def _map(file: Path, info: ArrayInfo, start: int) -> np.ndarray:
    if info.size == 0:
        return np.empty(info.shape, info.dtype)
    return np.asarray(np.memmap(file, dtype=info.dtype, mode="c", offset=start, shape=info.shape))


def _array(name: str, value: Any, owner: str, directory: Path, store: Store) -> ArrayOutput:
    array = np.asarray(value)
    dtype = next((known for known in DTYPES if array.dtype == np.dtype(known)), None)
    if dtype is None:
        raise TypeError(f"output {name!r} has dtype {array.dtype}, which is not one of {', '.join(DTYPES)}")
    array = np.ascontiguousarray(array).reshape(array.shape)  # ascontiguousarray makes a vector of a scalar
    data = array.reshape(-1).view(np.uint8).data
    file = directory / f"{name}.npy"
    with file.open("xb") as stream:
        stream.write(npy.header(dtype, array.shape))
        stream.write(data)
    real = array.dtype.kind == "f"
    return ArrayOutput(
        file=file.name,
        dtype=dtype,
        shape=array.shape,
        id=store.digest(owner, dtype, array.shape, data),
        has_nan=real and bool(np.isnan(array).any()),
        has_inf=real and bool(np.isinf(array).any()),
    )


def _plain(value: Any) -> Any:
    """A JSON value: NumPy scalars as Python's, NaN and infinities as null."""
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
