"""The content of a task's checkpoint: the state after a step as one file, and what it says of itself.

The file is NumPy's .npz of the state's arrays, with everything else of it as JSON in an entry of its own. Each entry
has a CRC-32, so a damaged file is not read.
"""

import json
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO

import numpy as np

from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.cpu.pages import empty

_DOCUMENT = "checkpoint.json"
_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class CheckpointHead:
    """What a checkpoint says of itself: after which step of which work it was made, and by what code."""

    step: int
    seconds: float  # that all steps took, without those that were repeated
    code: str  # kernels.task.Task.code
    work: str  # digest of params, inputs and seed


@dataclass(frozen=True)
class Checkpoint:
    head: CheckpointHead
    state: Mapping[str, Any]


def write(file: BinaryIO, checkpoint: Checkpoint) -> None:
    """Write a task's checkpoint. Raises TypeError for what is neither an array nor JSON."""
    arrays = {name: value for name, value in checkpoint.state.items() if isinstance(value, np.ndarray)}
    for name, array in arrays.items():
        if array.dtype.hasobject:
            raise TypeError(f"{name} is an array of Python objects, which no checkpoint keeps")
    values = {name: value for name, value in checkpoint.state.items() if name not in arrays}
    document = json.dumps({"head": asdict(checkpoint.head), "values": values, "arrays": list(arrays)})
    with zipfile.ZipFile(file, "w") as whole:
        whole.writestr(_DOCUMENT, document)
        for name, array in arrays.items():
            with whole.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, array, allow_pickle=False)


def read(file: BinaryIO) -> Checkpoint:
    """A task's checkpoint from its file. Raises ValueError for a file that is damaged or none of ours."""
    try:
        with zipfile.ZipFile(file) as whole:
            if (damaged := whole.testzip()) is not None:  # before anything in it is believed, as the size of an array
                raise ValueError(f"{damaged} is damaged")
            document = json.loads(whole.read(_DOCUMENT))
            state: dict[str, Any] = dict(document["values"])
            for name in document["arrays"]:
                with whole.open(f"{name}.npy") as entry:
                    state[name] = np.lib.format.read_array(entry, allow_pickle=False)
            return Checkpoint(CheckpointHead(**document["head"]), state)
    except (MemoryError, OSError):
        raise
    except Exception as error:  # noqa: BLE001 (libraries raise what they like of a damaged file)
        raise ValueError(f"the checkpoint is damaged: {type(error).__name__}: {error}") from None


def read_arrays(file: BinaryIO, described: Mapping[str, ArrayInfo]) -> Checkpoint:
    """A checkpoint whose arrays are known beforehand, such as those of a shard. Raises ValueError as `read` does.

    It is read once, where `read` reads it twice: nothing in it has to be believed.
    """
    try:
        with zipfile.ZipFile(file) as whole:
            document = json.loads(whole.read(_DOCUMENT))
            arrays = {name: _array(whole, name, info) for name, info in described.items()}
            return Checkpoint(CheckpointHead(**document["head"]), arrays)
    except (MemoryError, OSError):
        raise
    except Exception as error:  # noqa: BLE001 (as in `read`)
        raise ValueError(f"the file is damaged: {type(error).__name__}: {error}") from None


def _array(whole: zipfile.ZipFile, name: str, info: ArrayInfo) -> "np.ndarray[Any, Any]":
    with whole.open(f"{name}.npy") as entry:
        version = np.lib.format.read_magic(entry)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read_header(entry)
        if (shape, fortran, dtype.name) != (info.shape, False, info.dtype):
            raise ValueError(f"{name} is {dtype} of shape {list(shape)}")
        array = empty(shape, info.dtype)
        data, at = array.reshape(-1).view(np.uint8), 0
        while piece := entry.read(_AT_ONCE):  # at the end its CRC-32 is compared
            data[at : at + len(piece)] = np.frombuffer(piece, np.uint8)
            at += len(piece)
        if at != data.size:
            raise ValueError(f"{name} ends early")
        return array
