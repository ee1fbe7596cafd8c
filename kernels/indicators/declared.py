"""The list of declared indicators, in the order of the documentation."""

from warpdesk_server.kernels.indicators import (  # noqa: F401
    averages,
    candlesticks,
    oscillators,
    rolling,
    volatility,
    volume,
)
from warpdesk_server.kernels.indicators.indicator import INDICATORS as INDICATORS

_FILES = ("averages", "oscillators", "volatility", "volume", "rolling", "candlesticks")

DECLARED = tuple(
    declared.operation
    for declared in sorted(INDICATORS.values(), key=lambda each: _FILES.index(each.build.__module__.rpartition(".")[2]))
)
