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

_DOCUMENT = "checkpoint.json"


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
