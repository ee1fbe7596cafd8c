"""`warpdesk datasets`: make datasets, append rows from a CSV, read ranges of rows, list and delete."""

import argparse
import csv
import math
import sys
from array import array
from typing import TYPE_CHECKING, TextIO

from warpdesk.cli.asking import add_service, print_fields, print_json, print_table
from warpdesk.cli.command import Subcommands
from warpdesk.cli.inputs import read_input

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from warpdesk.client import Client

_EXPECTED = "COLUMN=FILE.csv, COLUMN=FILE.csv.gz or COLUMN=- for standard input"


def add(commands: Subcommands) -> None:
    datasets = commands.add_parser("datasets", help="make datasets, append and read their rows").add_subparsers(
        required=True, metavar="ACTION"
    )
    add_service(datasets.add_parser("list", help="list the key's datasets"), _list)
    shown = datasets.add_parser("show", help="show a dataset's columns, assets, times and version")
    shown.add_argument("name")
    add_service(shown, _show)
    create = datasets.add_parser("create", help="make a dataset")
    create.add_argument("name")
    create.add_argument("--column", action="append", required=True, metavar="NAME[:float32]", help="may be given again")
    add_service(create, _create)
    append = datasets.add_parser(
        "append",
        help="append the rows of CSV files, one file for each column",
        description="Append rows. The first column of each file has times, such as 2026-11-27T21:00:00Z, and each "
        "other one the numbers of the asset that its header names. An empty cell is a gap.",
    )
    append.add_argument("name")
    append.add_argument(
        "file", nargs="+", metavar="COLUMN=FILE.csv", help="or COLUMN=FILE.csv.gz, or COLUMN=- for standard input"
    )
    append.add_argument("--correct", action="store_true", help="take other numbers at times that are there")
    add_service(append, _append)
    rows = datasets.add_parser("rows", help="print rows of a column as CSV, with the times first")
    rows.add_argument("name")
    rows.add_argument("column")
    rows.add_argument("--from", dest="start", metavar="TIME", help="from then on")
    rows.add_argument("--to", dest="stop", metavar="TIME", help="before then")
    rows.add_argument("--as-of", type=int, metavar="VERSION", help="as they were at that version")
    add_service(rows, _rows)
    delete = datasets.add_parser("delete", help="delete datasets with all versions")
    delete.add_argument("name", nargs="+")
    add_service(delete, _delete)


def _list(client: "Client", chosen: argparse.Namespace) -> int:
    found = client.call("GET", "/v1/datasets")
    if chosen.json:
        print_json(found)
        return 0
    rows = [
        [
            *(each["name"], ",".join(each["columns"]), each["asset_count"], each["rows"], each["last"] or "-"),
            *(each["version"], f"{each['bytes']:,}"),
        ]
        for each in found["datasets"]
    ]
    header = ["dataset", "columns", "assets", "rows", "last", "version", "bytes"]
    print_table(header, rows, "The key has no datasets.")
    return 0


def _show(client: "Client", chosen: argparse.Namespace) -> int:
    found = client.call("GET", f"/v1/datasets/{chosen.name}")
    print_json(found) if chosen.json else print_fields(found)
    return 0


def _create(client: "Client", chosen: argparse.Namespace) -> int:
    columns = {}
    for text in chosen.column:
        name, _, dtype = text.partition(":")
        columns[name] = dtype or "float64"
    made = client.call("PUT", f"/v1/datasets/{chosen.name}", json={"columns": columns})
    print_json(made) if chosen.json else print_fields(made)
    return 0


def _append(client: "Client", chosen: argparse.Namespace) -> int:
    columns: dict[str, NDArray[np.float64]] = {}
    times: list[str] = []
    assets: list[str] = []
    if sum(text.partition("=")[2] == "-" for text in chosen.file) > 1:
        raise ValueError("standard input can be one column alone")
    for text in chosen.file:
        column, equals, place = text.partition("=")
        if not equals or column in columns or not (place == "-" or place.endswith((".csv", ".csv.gz"))):
            raise ValueError(f"{text}: expected {_EXPECTED}, each column once")
        with read_input(column, place) as given:
            if given.file is None or not given.is_csv:
                raise ValueError(f"{text} is no CSV")
            with given.file.open(newline="") as file:
                found = _read("standard input" if place == "-" else place, file)
        if columns and found[:2] != (assets, times):
            raise ValueError(f"{place} has other times or assets than the file before it")
        assets, times, columns[column] = found
    change = client.append_rows(chosen.name, times, columns, assets=assets, correct=chosen.correct)
    if chosen.json:
        print_json(change.model_dump(mode="json"))
    else:
        print(
            f"version {change.version}, {change.rows} rows: {change.added} added, "
            f"{change.corrected} corrected, {change.unchanged} unchanged"
        )
    return 0


def _read(what: str, file: TextIO) -> "tuple[list[str], list[str], NDArray[np.float64]]":
    """The assets, times and numbers of a CSV file. Raises ValueError for a cell that is no number."""
    import numpy as np

    rows = csv.reader(file)
    header = next(rows, [])
    if len(header) < 2:
        raise ValueError(f"{what}: the first row names a column of times and at least one asset")
    times: list[str] = []
    numbers = array("d")  # eight bytes each: a file may have millions
    for at, row in enumerate(rows, 2):
        if len(row) != len(header):
            raise ValueError(f"{what}: row {at} has {len(row)} cells, row 1 has {len(header)}")
        times.append(row[0])
        try:
            numbers.extend(float(cell) if cell.strip() else math.nan for cell in row[1:])
        except ValueError as error:
            raise ValueError(f"{what}: row {at}: {error}") from None
    return header[1:], times, np.array(numbers).reshape(len(times), len(header) - 1)


def _rows(client: "Client", chosen: argparse.Namespace) -> int:
    if chosen.column == "time":
        raise ValueError("time is no column of numbers: the rows of every other column have their times first")
    found = client.read_rows(chosen.name, chosen.column, start=chosen.start, stop=chosen.stop, as_of=chosen.as_of)
    if chosen.json:
        from warpdesk.arrays import as_json

        numbers = as_json(found.numbers)
        print_json({"version": found.version, "times": _texts(found.times), "assets": found.assets, "data": numbers})
        return 0
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["time", *found.assets])
    for time, numbers in zip(_texts(found.times), found.numbers.tolist(), strict=True):
        writer.writerow([time, *("" if math.isnan(value) else value for value in numbers)])
    return 0


def _texts(times: "NDArray[np.datetime64]") -> list[str]:
    """Times as text that `append` takes, to the second where all are whole seconds."""
    import numpy as np

    if not len(times):
        return []
    whole = (times == times.astype("datetime64[s]")).all()
    return [f"{text}Z" for text in np.datetime_as_string(times, unit="s" if whole else "ns")]


def _delete(client: "Client", chosen: argparse.Namespace) -> int:
    for name in chosen.name:
        client.delete_dataset(name)
    return 0
