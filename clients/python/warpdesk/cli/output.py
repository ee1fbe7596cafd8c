"""An answer on the command line: printed in short or as JSON, or written to a file."""

import argparse
import csv
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import warpdesk.cli.values as values

if TYPE_CHECKING:
    from warpdesk.client import Result

_SUFFIXES = (".npy", ".csv", ".json")


def add_output(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "-o",
        "--out",
        action="append",
        default=[],
        metavar="[OUTPUT=]FILE",
        help="write an array to FILE.npy or FILE.csv (a column for each row of it), or all outputs to FILE.json; "
        "without OUTPUT the first array",
    )


def places(texts: list[str]) -> list[tuple[str | None, Path]]:
    """The files that are to be written, each with the output it is for. Raises ValueError for one that cannot be."""
    found = []
    for text in texts:
        name, equals, file = text.rpartition("=")
        path = Path(file)
        if path.suffix not in _SUFFIXES:
            raise ValueError(f"-o {text}: expected FILE.npy, FILE.csv or FILE.json")
        if not path.parent.is_dir():
            raise ValueError(f"-o {text}: there is no folder {path.parent}")
        found.append((name if equals else None, path))
    return found


def show(result: "Result", chosen: argparse.Namespace) -> int:
    """Write or print a job's result as the options say; returns the exit code."""
    for name, path in places(chosen.out):
        write(result, name, path)
        print(path)
    if chosen.out:
        return 0
    outputs = {name: values.listed(value) for name, value in result.outputs.items()}
    if chosen.json:
        provenance = result.provenance.model_dump(mode="json")
        print(json.dumps({"job": result.job.id, "outputs": outputs, "provenance": provenance}))
        return 0
    for name, value in result.outputs.items():
        print(f"{name:<20} {values.in_short(value)}")
    for name, value in result.provenance:
        if value is not None:
            print(f"{name:<20} {value:.4f}" if isinstance(value, float) else f"{name:<20} {value}")
    return 0


def write(result: "Result", name: str | None, path: Path) -> None:
    """Write an output to a file, or all of them to a .json file. Raises ValueError for what the file cannot hold."""
    import numpy as np

    outputs = result.outputs
    if name is not None and name not in outputs:
        raise ValueError(f"the answer has no output {name!r}; it has {', '.join(outputs)}")
    if path.suffix == ".json":
        document: Any = {each: values.listed(value) for each, value in outputs.items()}
        path.write_text(json.dumps(document if name is None else document[name]) + "\n")
        return
    arrays = [each for each, value in outputs.items() if isinstance(value, np.ndarray)]
    if name is None and not arrays:
        raise ValueError(f"no output is an array, so {path.name} cannot hold one: use FILE.json")
    found = outputs[name or arrays[0]]
    if not isinstance(found, np.ndarray):
        raise ValueError(f"{name} is no array, so {path.name} cannot hold it: use FILE.json")
    if path.suffix == ".npy":
        np.save(path, found, allow_pickle=False)
        return
    if found.ndim > 2:
        raise ValueError(f"an array of shape {list(found.shape)} has no rows and columns: use FILE.npy")
    # A CSV has time down and assets across, as it is uploaded.
    columns = np.atleast_2d(found)
    label = name or arrays[0]
    header = [label] if len(columns) == 1 else [f"{label}_{place}" for place in range(len(columns))]
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(columns.T.tolist())
