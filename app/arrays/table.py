"""The CSV parser for arrays: a program that runs in a child process with limits of its own.

The API runs this file with `python -I -S`, which starts in some 20 ms, so it imports the standard library alone. The
API parses a small CSV in its own process, with `read`. The program's standard input is one line of JSON, the fields of
`Order`, and the CSV. Its standard output is one line of JSON: `{"detail": ..., "pointer": ...}` of what is wrong, or
`{"shape": ...}` and the numbers, float64 in row-major order.
"""

import csv
import io
import json
import math
import os
import re
import resource
import sys
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, islice

BATCH = 65_536  # cells whose strings live at once
NAMED = 20  # columns that a sentence names

NICE = 10  # what a process of this program adds to its niceness: requests that compute nothing go first

_LIKE_A_NUMBER = re.compile(r"\s*[+-]?\.?\d")
_GAPS = {"n/a", "na", "#n/a", "n.a.", "null", "none", "nil", "missing", "-", "--", ".", "?"}
_DELIMITERS = {";": "semicolons", "\t": "tabs", "|": "vertical bars"}


@dataclass(frozen=True)
class Order:
    """The order to the parser of a CSV upload: the columns to read, and its limits."""

    columns: Sequence[str]  # names, in the order wanted; all columns where there are none
    most_columns: int
    most_cells: int
    memory: int  # bytes of address space
    seconds: int  # of a processor


class Malformed(Exception):
    """Raised if a CSV upload is no table of numbers. `pointer` is set if another part of the request is wrong."""

    def __init__(self, detail: str, pointer: str | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.pointer = pointer


def read(body: bytes, order: Order) -> "list[array[float]]":
    """Parse the chosen columns of a CSV upload (RFC 4180, UTF-8), all equally long.

    A first row that holds a word is a header. Headers that begin like numbers count only if columns are chosen. Without
    a header, columns are named by numbers counted from 0. An empty cell is NaN.
    """
    _require_few_cells(body, order)
    try:
        return _read(body, order)
    except UnicodeDecodeError:
        place = _first_that_is_not_utf8(body)
        raise Malformed(f"Byte {place} of the CSV is not UTF-8") from None
    except Malformed as error:
        delimiter = _delimiter(body)
        if delimiter is None:
            raise
        sentence = f"{error.detail}. The cells seem to be separated by {delimiter}: separate them by commas"
        raise Malformed(sentence, error.pointer) from None


def shape(series: "Sequence[array[float]]") -> tuple[int, ...]:
    """The shape of an array from a CSV upload: one column is a series, several are one row each."""
    return (len(series), len(series[0])) if len(series) > 1 else (len(series[0]),)


def _read(body: bytes, order: Order) -> "list[array[float]]":
    lines = io.TextIOWrapper(io.BytesIO(body.rstrip(b"\r\n")), "utf-8-sig", newline="")
    reader = csv.reader(_narrow(lines, order.most_columns), strict=True)
    top = next(_batches(reader, 1), None)
    if top is None or not body.removeprefix(b"\xef\xbb\xbf").strip():
        raise Malformed("The CSV has no rows")
    width = len(top[0])
    if width > order.most_columns:  # of a row that goes over several lines
        raise Malformed(f"Row 1 has {width} cells; a CSV may have at most {order.most_columns} columns")
    has_header = any(cell.strip() and _number(cell) is None for cell in top[0])
    doubtful = next((cell for cell in top[0] if _LIKE_A_NUMBER.match(cell)), None)
    if has_header and not order.columns and doubtful is not None:  # 1O0 for 100 must not cost a row without a word
        raise Malformed(
            f"Row 1 is not all numbers, and as a header its {doubtful[:40]!r} begins like a number: "
            "correct the cell, or name the columns with ?columns="
        )
    names = [cell.strip() for cell in top[0]] if has_header else [str(place) for place in range(width)]
    chosen = _choose(names, order.columns)
    series = [array("d") for _ in chosen]
    place = 1
    for rows in chain([] if has_header else [top], _batches(reader, max(1, BATCH // width))):
        first, place = place + has_header, place + len(rows)
        if set(map(len, rows)) != {width}:
            uneven = next(row for row, cells in enumerate(rows) if len(cells) != width)
            raise Malformed(f"Row {first + uneven} has {len(rows[uneven])} cells, row 1 has {width}")
        for values, column in zip(series, chosen, strict=True):
            values.extend(_column(rows, first, column, names))
    if not series[0]:
        raise Malformed("The CSV has a header and no rows of numbers")
    return series


def _require_few_cells(body: bytes, order: Order) -> None:
    cells = body.count(b",") + max(body.count(b"\n"), body.count(b"\r")) + (not body.endswith((b"\n", b"\r")))
    if cells > order.most_cells:
        raise Malformed(
            f"The CSV has about {cells} cells, by its commas and lines; the limit is {order.most_cells}. "
            "An .npy file may hold more"
        )


def _narrow(lines: Iterator[str], most_columns: int) -> Iterator[str]:
    """The lines of a CSV upload. Refuses one with too many cells before any cell is made."""
    for number, line in enumerate(lines, 1):
        commas = line.count(",")
        if commas >= most_columns:
            raise Malformed(f"Line {number} has {commas + 1} cells; a CSV may have at most {most_columns} columns")
        yield line


def _batches(reader: Iterator[list[str]], most: int) -> Iterator[list[list[str]]]:
    """The rows of an uploaded CSV, `most` at a time: only those many small strings live at once."""
    try:
        while rows := [row or [""] for row in islice(reader, most)]:  # an empty line is one empty cell
            yield rows
    except csv.Error as error:
        raise Malformed(f"The CSV cannot be read: {error}") from None


def _column(rows: list[list[str]], first: int, column: int, names: list[str]) -> "array[float]":
    cells = [row[column] for row in rows]
    text = "".join(cells)
    if text.isascii() and "_" not in text:
        with suppress(ValueError):
            return array("d", map(float, cells))
    values = array("d")
    for place, cell in enumerate(cells, first):
        value = _value(cell)
        if value is None:
            sentence = f"Row {place}, column {names[column][:40]!r}: {cell[:40]!r} is not a number"
            raise Malformed(f"{sentence}; {_remedy(rows, column, names, cell)}")
        values.append(value)
    return values


def _remedy(rows: list[list[str]], column: int, names: list[str], cell: str) -> str:
    """The advice for a cell of a CSV upload that is no number, from the cells around it."""

    def numeric(place: int) -> bool:
        values = [_value(row[place]) for row in rows]
        return None not in values and not all(value is None or math.isnan(value) for value in values)

    numbers = sum(_value(row[column]) is not None for row in rows)
    if cell.strip().lower() in _GAPS or 2 * numbers > len(rows):
        return "a gap is written as an empty cell, which becomes NaN"
    useful = [name[:40] for place, name in enumerate(names) if numeric(place)]
    if not useful:
        return "no column holds numbers alone"
    if len(useful) == 1:
        return f"column {useful[0]} is numeric: choose it with ?columns={useful[0]}"
    return f"columns {_listed(useful)} are numeric: choose among them with ?columns="


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def _choose(names: list[str], columns: Sequence[str]) -> list[int]:
    if not columns:
        return list(range(len(names)))
    places, counts = {name: place for place, name in enumerate(names)}, Counter(names)
    for name, times in Counter(columns).items():
        if name not in places:
            there = _listed([one[:40] for one in names])
            raise Malformed(f"There is no column {name[:200]!r}; there are {there}", "/query/columns")
        if counts[name] > 1:
            raise Malformed(f"{counts[name]} columns are called {name[:200]!r}", "/query/columns")
        if times > 1:
            raise Malformed(f"Column {name[:200]!r} is chosen {times} times", "/query/columns")
    return [places[name] for name in columns]


def _value(cell: str) -> float | None:
    """The number in a cell of a CSV upload, NaN if it is empty, None if it holds something else."""
    return _number(cell) if cell.strip() else math.nan


def _number(cell: str) -> float | None:
    try:
        # Python reads 1_000 as a thousand and the digits of every script; other programs do not.
        return float(cell) if cell.isascii() and "_" not in cell else None
    except ValueError:
        return None


def _delimiter(body: bytes) -> str | None:
    """The delimiter in the first line of a CSV upload, if that is not the comma."""
    line = body[:BATCH].partition(b"\n")[0].decode("utf-8", "replace")
    found = max(_DELIMITERS, key=line.count)
    return _DELIMITERS[found] if line.count(found) > line.count(",") else None


def _first_that_is_not_utf8(body: bytes) -> int:
    try:
        body.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.start
    raise AssertionError("all of it is UTF-8")


def _main() -> None:
    order = Order(**json.loads(sys.stdin.buffer.readline()))
    resource.setrlimit(resource.RLIMIT_AS, (order.memory, order.memory))
    resource.setrlimit(resource.RLIMIT_CPU, (order.seconds, order.seconds + 1))  # SIGXCPU, then SIGKILL
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(NICE)
    answer: dict[str, object]
    series: list[array[float]] = []
    try:
        series = read(sys.stdin.buffer.read(), order)
    except Malformed as error:
        answer = {"detail": error.detail, "pointer": error.pointer}
    except MemoryError:
        answer = {"detail": f"Reading the CSV takes more than {order.memory >> 20} MiB", "pointer": None}
    else:
        answer = {"shape": shape(series)}
    sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
    for values in series:
        sys.stdout.buffer.write(values)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    _main()
