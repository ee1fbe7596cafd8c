"""Prices on a device, and the launches over them."""

from pathlib import Path
from typing import Any

import numpy as np

from kernels.cuda import Device, Source
from kernels.indicators.recurrence import SEGMENTS, TILE
from kernels.indicators.windows import Step

_HERE = Path(__file__).parent
_REAL = {8: "f64", 4: "f32"}
SOURCES: tuple[Source, ...] = tuple(
    Source(_HERE / file, {"REAL": real})
    for file in ("windows.cu", "recurrence.cu", "gaps.cu")
    for real in _REAL.values()
)

# As in windows.cu.
_BLOCK = 256
_CHUNK = 1024


class Series:
    """Prices on a device, (rows, time), and what every launch over them needs."""

    def __init__(self, device: Device, prices: Any, rows: int, time: int, dtype: Any) -> None:
        self.device, self.prices, self.rows, self.time, self.dtype = device, prices, rows, time, np.dtype(dtype)
        self.real = self.dtype.type
        self.nan = self.real(np.nan)
        self.size = rows * time
        self.tiles = -(-time // TILE)
        self.tasks = rows * self.tiles

    def empty(self, size: int | None = None) -> Any:
        return self.device.empty(self.size if size is None else size, self.dtype)

    def with_prices(self, prices: Any) -> "Series":
        return Series(self.device, prices, self.rows, self.time, self.dtype)

    def launch(self, file: str, name: str, blocks: int, threads: int, *args: Any, shared: int = 0) -> None:
        source = Source(_HERE / file, {"REAL": _REAL[self.dtype.itemsize]})
        self.device.kernel(source, name)((blocks,), (threads,), args, shared)

    def by_bar(self, name: str, *args: Any) -> None:
        self.launch("windows.cu", name, -(-self.size // _BLOCK), _BLOCK, *args)

    def by_chunk(self, name: str, joins: tuple[Step, ...], period: int, arrays: int, *args: Any) -> None:
        chunks = -(-self.time // _CHUNK)
        kinds = np.array([0 if not join.gather else 1 if join.take else 2 for join in joins], np.int32)
        lags = np.array([join.lag for join in joins], np.int32)
        self.launch(
            "windows.cu",
            name,
            self.rows * chunks,
            _BLOCK,
            *(self.prices, np.int64(self.time), np.int64(chunks), np.int32(period), np.int32(len(joins))),
            *(self.device.to_device(kinds), self.device.to_device(lags)),
            *args,
            shared=arrays * (_CHUNK + period - 1) * self.dtype.itemsize,
        )

    def by_tile(self, file: str, name: str, *args: Any) -> None:
        self.launch(file, name, self.tasks, SEGMENTS, *args)

    def shares(self, joins: tuple[Step, ...]) -> Any:
        shares = [(join.old_share, 1.0 - join.old_share, join.old_share * (1.0 - join.old_share)) for join in joins]
        return self.device.to_device(np.array(shares, self.dtype))
