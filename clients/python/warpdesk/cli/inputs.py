"""Inputs of the command line: a .npy or .csv file, packed by gzip or not, standard input, an array, a dataset."""

import gzip
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from warpdesk.client import Client
    from warpdesk.models import ArrayDescription

_NPY = b"\x93NUMPY"
_EXPECTED = (
    "FILE.npy, FILE.csv:Column, FILE.csv.gz:Column, - for standard input (-:Column for a CSV), an array's id, or "
    "dataset:NAME/COLUMN"
)


@dataclass(frozen=True)
class Given:
    """An input as it was given: a readable file, with the columns to take of a CSV; a stored array's id; a dataset."""

    file: Path | None
    columns: tuple[str, ...] = ()
    array: str = ""
    dataset: tuple[str, str] | None = None  # its name and the column

    @property
    def is_csv(self) -> bool:
        return self.file is not None and self.file.suffix == ".csv"

    def upload(self, client: "Client") -> "ArrayDescription":
        """Upload the file, and return the stored array. Raises ValueError for what is stored already."""
        if self.file is None:
            raise ValueError(f"{self.array or self.dataset} is stored already")
        return client.upload(self.file, columns=self.columns)

    def value(self, client: "Client") -> Any:
        """What a submission takes: the numbers of a .npy file, a stored array, or a dataset."""
        import numpy as np

        if self.dataset is not None:
            from warpdesk.datasets import Dataset

            return Dataset(*self.dataset)
        if self.file is None:
            from warpdesk.models import ArrayDescription

            return ArrayDescription.model_validate(client.call("GET", f"/v1/arrays/{self.array}"))
        return self.upload(client) if self.is_csv else np.load(self.file, allow_pickle=False)


@contextmanager
def read_input(option: str, place: str) -> Iterator[Given]:
    """An input of the command line, in the block: what is packed or comes by standard input lies in a temporary file.

    Raises OSError if a file cannot be opened, and ValueError for what is no input.
    """
    from warpdesk.models import ARRAY_ID

    if re.fullmatch(ARRAY_ID, place):
        yield Given(None, array=place)
        return
    if (found := re.fullmatch(r"dataset:([^/]+)/(.+)", place)) is not None:
        yield Given(None, dataset=(found[1], found[2]))
        return
    name, colon, column = place.rpartition(":")
    if not colon or place.endswith((".npy", ".csv", ".gz")):
        name, column = place, ""
    columns = tuple(filter(None, column.split(",")))
    if name == "-":
        with tempfile.TemporaryDirectory(prefix="warpdesk-") as folder:
            yield Given(_kept(sys.stdin.buffer, Path(folder)), columns)
        return
    path = Path(name)
    if not (path.suffix == ".npy" or path.suffix == ".csv" or path.name.endswith(".csv.gz")):
        raise ValueError(f"{option} {place}: expected {_EXPECTED}")
    path.open("rb").close()  # before the service is asked for anything
    if path.suffix != ".gz":
        yield Given(path, columns)
        return
    with tempfile.TemporaryDirectory(prefix="warpdesk-") as folder, gzip.open(path) as packed:
        unpacked = Path(folder) / "unpacked.csv"
        try:
            with unpacked.open("wb") as file:
                shutil.copyfileobj(packed, file)
        except (gzip.BadGzipFile, EOFError) as error:
            raise ValueError(f"{option} {place} is no whole gzip file: {error}") from None
        yield Given(unpacked, columns)


def _kept(stream: BinaryIO, folder: Path) -> Path:
    """A stream in a file, whose name says whether it is .npy or CSV."""
    begin = stream.read(len(_NPY))
    path = folder / ("input.npy" if begin == _NPY else "input.csv")
    with path.open("wb") as file:
        file.write(begin)
        shutil.copyfileobj(stream, file)
    return path
