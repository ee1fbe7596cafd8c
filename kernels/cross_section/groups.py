"""The groups of the assets: an order in which each group is a run of neighbours, for all bars or for each."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdesk_server.kernels.cross_section import loops

Order = tuple[NDArray[np.int32], NDArray[np.int32]]


@dataclass(frozen=True)
class Groups:
    """The groups of assets. Integers alone decide them, so the host makes them for every backend.

    `labels` is (assets) or (assets, time), or None where all assets are one group.
    """

    labels: NDArray[Any] | None
    assets: int

    @property
    def vary(self) -> bool:
        return self.labels is not None and self.labels.ndim == 2

    def of_bars(self, begin: int, end: int) -> Order:
        """The order of the assets, and for each place of it the first place of its group, -1 for no group.

        Both have the shape (bars, assets), or (1, assets) if the groups do not change.
        """
        if self.labels is None:
            return np.arange(self.assets, dtype=np.int32)[None], np.zeros((1, self.assets), np.int32)
        labels = self.labels[:, begin:end].T if self.vary else self.labels[None]
        labels = np.array(labels, np.int64, order="C")  # a copy, so that Numba sees one type
        order, first = np.empty(labels.shape, np.int32), np.empty(labels.shape, np.int32)
        loops.group_orders(labels, order, first)
        return order, first
