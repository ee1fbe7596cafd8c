"""Load the market prices that ship with the examples (see data/README.md for where they come from)."""

import csv
import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

DATA = Path(__file__).parent / "data"


@dataclass(frozen=True)
class Prices:
    """Daily bars of one instrument, oldest first; every array has one value per trading day."""

    dates: NDArray[np.datetime64]  # datetime64[D]
    open: NDArray[np.float64]
    high: NDArray[np.float64]
    low: NDArray[np.float64]
    close: NDArray[np.float64]
    volume: NDArray[np.float64]  # shares


def sp500() -> Prices:
    """The S&P 500 index, 5,031 days from 1999-01-04 to 2018-12-31, in index points."""
    columns = list(zip(*_rows("sp500.csv.gz"), strict=True))
    dates = np.array([datetime.strptime(day, "%m/%d/%Y").date() for day in columns[0][1:]], dtype="datetime64[D]")
    by_name = {column[0]: np.array(column[1:], dtype=np.float64) for column in columns[1:]}
    return Prices(dates, by_name["Open"], by_name["High"], by_name["Low"], by_name["Close"], by_name["Volume"])


def stocks() -> tuple[NDArray[np.datetime64], tuple[str, ...], NDArray[np.float64]]:
    """Twenty US stocks, 8,313 days from 1990-01-02 to 2022-12-28: dates, symbols and closes (assets, time).

    Closes are adjusted for splits and dividends, in dollars.
    """
    header, *rows = _rows("stocks.csv.gz")
    dates = np.array([row[0] for row in rows], dtype="datetime64[D]")
    closes = np.array([row[1:] for row in rows], dtype=np.float64)
    return dates, tuple(header[1:]), np.ascontiguousarray(closes.T)


def _rows(name: str) -> Iterator[list[str]]:
    with gzip.open(DATA / name, "rt", newline="") as file:
        yield from csv.reader(file)
