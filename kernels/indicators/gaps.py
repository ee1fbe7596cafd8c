"""Gaps in prices, which are bars without a price: closed before an indicator runs, and reopened in its result."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdesk_server.kernels.indicators.spec import NanPolicy
from warpdesk_server.kernels.problems import refuse


def close_gaps(prices: NDArray[Any], policy: NanPolicy, name: str = "prices") -> NDArray[Any]:
    """The prices (assets, time) with their gaps closed by the policy; `skip` packs each row to its left end.

    Raises InvalidRequest for a NaN under the policy `error`.
    """
    if policy == "window":
        return prices
    missing = np.isnan(prices)
    if policy == "error":
        if missing.any():
            raise refuse(f"/inputs/{name}", f'the {name} hold {missing.sum()} NaN and nan_policy is "error"')
        return prices
    if not missing.any():
        return prices
    if policy == "ffill":
        latest = np.maximum.accumulate(np.where(missing, 0, np.arange(prices.shape[1])), axis=1)
        return np.take_along_axis(prices, latest, axis=1)
    packed = np.full_like(prices, np.nan)
    for row, present, out in zip(prices, ~missing, packed, strict=True):
        out[: np.count_nonzero(present)] = row[present]
    return packed


def close_all_gaps(inputs: Mapping[str, NDArray[Any]], policy: NanPolicy) -> dict[str, NDArray[Any]]:
    """Several inputs of an indicator with their gaps closed. Under `skip` a bar that one lacks is a gap in all."""
    if policy != "skip" or len(inputs) == 1:
        return {name: close_gaps(array, policy, name) for name, array in inputs.items()}
    gap = whole_gap(inputs)
    return {name: close_gaps(np.where(np.isnan(gap), gap, array), policy) for name, array in inputs.items()}


def whole_gap(inputs: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    """A series that is NaN where one of an indicator's inputs is."""
    gap = next(iter(inputs.values()))
    for array in inputs.values():
        gap = np.where(np.isnan(array), array, gap)
    return gap


def reopen_gaps(result: NDArray[Any], prices: NDArray[Any], policy: NanPolicy) -> NDArray[Any]:
    """Put an indicator's result for packed prices back on the bars that had a price; the other bars get NaN."""
    if policy != "skip":
        return result
    present = ~np.isnan(prices)
    if present.all():
        return result
    spread = np.full_like(result, np.nan)
    for row, where, out in zip(result, present, spread, strict=True):
        out[where] = row[: np.count_nonzero(where)]
    return spread
