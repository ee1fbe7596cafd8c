"""The list of declared indicators, in the order of the documentation."""

from typing import Any

from warpdesk_server.kernels.indicators import (  # noqa: F401
    averages,
    candlesticks,
    oscillators,
    rolling,
    volatility,
    volume,
)
from warpdesk_server.kernels.indicators.indicator import INDICATORS as INDICATORS
from warpdesk_server.kernels.indicators.indicator import sets_of

_FILES = ("averages", "oscillators", "volatility", "volume", "rolling", "candlesticks")

DECLARED = tuple(
    declared.operation
    for declared in sorted(INDICATORS.values(), key=lambda each: _FILES.index(each.build.__module__.rpartition(".")[2]))
)


def takes_lists(name: str, params: Any) -> bool:
    """Whether a job is of an indicator with several sets of parameters."""
    return name in INDICATORS and sets_of(params) is not None
