"""The cut of prices into chunks: by whole rows while rows are short, in time if a row is longer than a chunk."""

from collections.abc import Iterator
from dataclasses import dataclass

from warpdesk_server.kernels.indicators.recurrence import TILE


@dataclass(frozen=True)
class Piece:
    """A piece of prices: the whole rows `row` to `end_row`, or the bars `begin` to `end` of one row."""

    row: int
    end_row: int
    begin: int
    end: int


@dataclass(frozen=True)
class Cut:
    """The cut of prices (rows, time) into chunks: a function of their shape and of the bars a chunk should have."""

    rows: int
    time: int
    bars: int

    @property
    def in_time(self) -> bool:
        return self.time > self.length

    @property
    def length(self) -> int:
        """Bars of a chunk of prices if rows are cut in time: whole tiles."""
        return -(-self.bars // TILE) * TILE

    @property
    def rows_each(self) -> int:
        """Rows of prices in a chunk, if rows stay whole."""
        return max(1, min(self.rows, self.bars // self.time))

    @property
    def row_chunks(self) -> int:
        """Chunks of one row of prices, if rows are cut in time."""
        return -(-self.time // self.length)

    @property
    def chunks(self) -> int:
        return self.rows * self.row_chunks if self.in_time else -(-self.rows // self.rows_each)

    def pieces(self, first: int, end: int) -> Iterator[Piece]:
        """The pieces of prices in the chunks `first` to `end`; neighbours in one row are joined."""
        if not self.in_time:
            yield Piece(first * self.rows_each, min(end * self.rows_each, self.rows), 0, self.time)
            return
        while first < end:
            row, part = divmod(first, self.row_chunks)
            parts = min(end - first, self.row_chunks - part)
            yield Piece(row, row + 1, part * self.length, min((part + parts) * self.length, self.time))
            first += parts
