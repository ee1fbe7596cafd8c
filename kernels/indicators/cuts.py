"""How prices are cut into chunks: by whole rows while rows are short, in time where a row is longer than a chunk."""

from collections.abc import Iterator
from dataclasses import dataclass

from warpdesk_server.kernels.indicators.recurrence import TILE


@dataclass(frozen=True)
class Piece:
    """Whole rows `row` to `end_row`, or the bars `begin` to `end` of one row."""

    row: int
    end_row: int
    begin: int
    end: int


@dataclass(frozen=True)
class Cut:
    """The cut of prices (rows, time): a function of their shape and of how many bars a chunk should have."""

    rows: int
    time: int
    bars: int

    @property
    def in_time(self) -> bool:
        return self.time > self.length

    @property
    def length(self) -> int:
        """Bars of a chunk where rows are cut in time: whole tiles."""
        return -(-self.bars // TILE) * TILE

    @property
    def rows_each(self) -> int:
        """Rows of a chunk where they are whole."""
        return max(1, min(self.rows, self.bars // self.time))

    @property
    def row_chunks(self) -> int:
        """Chunks of one row where rows are cut in time."""
        return -(-self.time // self.length)

    @property
    def chunks(self) -> int:
        return self.rows * self.row_chunks if self.in_time else -(-self.rows // self.rows_each)

    def pieces(self, first: int, end: int) -> Iterator[Piece]:
        """What the chunks `first` to `end` hold, neighbours of one row in one piece."""
        if not self.in_time:
            yield Piece(first * self.rows_each, min(end * self.rows_each, self.rows), 0, self.time)
            return
        while first < end:
            row, part = divmod(first, self.row_chunks)
            parts = min(end - first, self.row_chunks - part)
            yield Piece(row, row + 1, part * self.length, min((part + parts) * self.length, self.time))
            first += parts
