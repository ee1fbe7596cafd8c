"""The price table of devices, in dollars per hour, and what jobs cost by it: JSON that an operator gives in
WARPDESK_PRICES.

    {"NVIDIA H100": 2.95, "NVIDIA A100-SXM4-40GB": 1.10, "cpu": 0.08}

A key is a device's name or a beginning of it; the longest key that fits counts. "cpu" is any CPU without a price of its
own.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

from warpdesk_server.workers.queue.protocol import Succeeded

_ANY_CPU = "cpu"
_EXAMPLE = '{"NVIDIA H100": 2.95, "cpu": 0.08}'


def parse(table: Any) -> dict[str, float]:
    """Parse the price table of devices from a JSON text or an object. Raises ValueError with a sentence."""
    if isinstance(table, str):
        if not table.strip():
            return {}
        try:
            table = json.loads(table)
        except ValueError as error:
            raise ValueError(f"it is no JSON ({error}); dollars per hour by device are given as {_EXAMPLE}") from None
    if not isinstance(table, dict):
        raise ValueError(f"it is no JSON object; dollars per hour by device are given as {_EXAMPLE}")
    for device, price in table.items():
        if not isinstance(device, str) or not device:
            raise ValueError("a price is for a device, and one of these has no name")
        number = isinstance(price, int | float) and not isinstance(price, bool)
        if not number or not math.isfinite(price) or price < 0:
            raise ValueError(f"the price of {device!r} is {price!r}: dollars per hour are a number of 0 or more")
    return {device: float(price) for device, price in table.items()}


def price_of(prices: Mapping[str, float], backend: str, device: str) -> float | None:
    """A device's price in dollars per hour, found in the price table by its name; None if the table has none."""
    fitting = [beginning for beginning in prices if device.startswith(beginning)]
    if fitting:
        return prices[max(fitting, key=len)]
    return prices.get(_ANY_CPU) if backend == "cpu" else None


def costed(outcome: Succeeded, watts: float | None, prices: Mapping[str, float], of_device: float = 1.0) -> Succeeded:
    """A job's outcome with the energy, in joules, and the price, in dollars, of the job's share of its launch.

    `watts` is the mean power of the GPU during the launch, of which the launch had the share `of_device`. Without it,
    or without a price, that field is None.
    """
    how = outcome.provenance
    if how.compute_seconds is None:
        return outcome
    share = of_device * how.compute_seconds / how.batch_size
    price = price_of(prices, how.backend, how.device)
    update = {
        "energy_joules": None if watts is None or how.backend == "cpu" else round(watts * share, 6),
        "cost_dollars": None if price is None else share * price / 3600,
        "device_share": of_device,
    }
    return outcome.model_copy(update={"provenance": how.model_copy(update=update)})
