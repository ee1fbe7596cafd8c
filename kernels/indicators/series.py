"""The series: prices on a GPU, and the launches of the indicators' kernels over them."""

from pathlib import Path
from typing import Any

import numpy as np

from warpdesk_server.kernels.gpu.contract import Device, Kernel
from warpdesk_server.kernels.gpu.source import Source
from warpdesk_server.kernels.indicators.recurrence import SEGMENT, SEGMENTS, TILE

_HERE = Path(__file__).parent
_REAL = {8: "f64", 4: "f32"}
SOURCES: tuple[Source, ...] = tuple(
    Source(_HERE / file, {"REAL": real})
    for file in ("windows.cu", "recurrence.cu", "map.cu", "scan.cu", "machine.cu", "order.cu", "pair.cu")
    for real in _REAL.values()
)


class Series:
    """Prices (rows, time) on a device, with the sizes and constants that every indicator's launch needs."""

    def __init__(self, device: Device, prices: Any, rows: int, time: int, dtype: Any) -> None:
        self.device, self.prices, self.rows, self.time, self.dtype = device, prices, rows, time, np.dtype(dtype)
        self.real = self.dtype.type
        self.nan = self.real(np.nan)
        self.size = rows * time
        self.tiles = -(-time // TILE)
        self.tasks = rows * self.tiles
        self.width = SEGMENTS if self.tiles > 1 else -(-time // SEGMENT)  # segments of a tile, or of a row in one

    def empty(self, size: int | None = None) -> Any:
        return self.device.empty(self.size if size is None else size, self.dtype)

    def with_prices(self, prices: Any) -> "Series":
        return Series(self.device, prices, self.rows, self.time, self.dtype)

    def kernel(self, file: str, name: str) -> Kernel:
        return self.device.kernel(Source(_HERE / file, {"REAL": _REAL[self.dtype.itemsize]}), name)

    def launch(self, file: str, name: str, blocks: int, threads: int, *args: Any, shared: int = 0) -> None:
        self.kernel(file, name)((blocks,), (threads,), args, shared)
