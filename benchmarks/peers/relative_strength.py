"""What the peers of `python -m benchmarks servers` compute: an RSI by TA-Lib, from JSON and to JSON.

They keep nothing, and each has one process that computes. They run in an environment of their own, without anything of
Warpdesk: `make .venv/servers/ready`.
"""

from collections.abc import Sequence

import numpy as np
import talib


def rsi(prices: Sequence[float], period: int) -> list[float | None]:
    """Relative strength of prices. JSON has no NaN."""
    values = talib.RSI(np.asarray(prices, np.float64), period)
    return [None if np.isnan(value) else value for value in values.tolist()]
