"""Benchmark of datasets: a day more of 500 assets and 4 columns over HTTP, beside sending all days again.

The dataset has 2,520 days. They came in one append, or day by day: a range is read by looking at each append. A job is
submitted without a worker, so that its time is that of the door.
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np

from warpdesk import Client, Dataset
from warpdesk_server.benchmarks.processes import api, redis
from warpdesk_server.benchmarks.report import Row, Timing, show

ASSETS, DAYS = 500, 2520
COLUMNS = ("open", "high", "low", "close")
REPEATS = 20
FEW = 3  # repeats of what takes long

Given = TypeVar("Given")

_DAY = np.timedelta64(1, "D")


def main() -> None:
    with (
        redis() as redis_url,
        tempfile.TemporaryDirectory(prefix="warpdesk-bench-") as home,
        api(redis_url, Path(home)) as url,
        Client(url) as client,
    ):
        show("datasets", _measured(client))


def _measured(client: Client) -> list[Row]:
    rng = np.random.default_rng(1)
    assets = [f"A{number}" for number in range(ASSETS)]
    days = np.datetime64("2016-01-01", "ns") + np.arange(DAYS) * _DAY
    blocks = {column: rng.lognormal(4.0, 0.3, (DAYS, ASSETS)) for column in COLUMNS}
    for name in ("at once", "by day"):
        client.create_dataset(name.replace(" ", "-"), columns=dict.fromkeys(COLUMNS, "float64"), assets=assets)
    client.append_rows("at-once", days, blocks, assets=assets)

    def append(number: int) -> None:
        row = {column: block[number] for column, block in blocks.items()}
        client.append_rows("by-day", days[number], row, assets=assets)

    appended = [_seconds(append, number) for number in range(DAYS)]

    def send_again(turn: int) -> None:  # other numbers each time: the service knows content that it has
        for block in blocks.values():
            client.upload(block + turn)

    again = [_seconds(send_again, turn) for turn in range(FEW)]
    rows: list[Row] = [
        {"what": "a day appended", "time": Timing.of(appended[-REPEATS:])},
        {"what": "all days sent again, as 4 arrays", "time": Timing.of(again)},
    ]
    kinds: dict[str, Callable[[str], object]] = {
        "a column read": lambda name: client.read_rows(name, "close"),
        "10 days of a column read": lambda name: client.read_rows(name, "close", start=days[-10]),
        "a job of a column submitted": lambda name: client.submit("rsi", close=Dataset(name, "close"), period=14),
    }
    for what, call in kinds.items():
        for name in ("at-once", "by-day"):
            found = [_seconds(call, name) for _ in range(REPEATS)]
            rows.append({"what": f"{what}, {name.replace('-', ' ')}", "time": Timing.of(found)})
    return rows


def _seconds(call: Callable[[Given], object], given: Given) -> float:
    begun = time.perf_counter()
    call(given)
    return time.perf_counter() - begun
