"""The GPU's activity ratios from NVML's GPU performance monitoring (GPM), which Hopper and later GPUs have.

It needs no privileges and no daemon. It shares hardware counters with profilers and with DCGM's profiling fields, which
may disturb each other, so it is asked only where WARPDESK_GPM says so.
"""

import math
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

_LEAST_SECONDS = 0.1  # between two samples, by NVML's documentation

# What a GpuReading calls them, and NVML: percents.
_RATIOS = {
    "sm_activity": "NVML_GPM_METRIC_SM_UTIL",
    "sm_occupancy": "NVML_GPM_METRIC_SM_OCCUPANCY",
    "tensor_activity": "NVML_GPM_METRIC_ANY_TENSOR_UTIL",
    "dram_activity": "NVML_GPM_METRIC_DRAM_BW_UTIL",
}


class Gpm:
    """The GPM reader of one GPU, or of one slice of it. A reading compares the latest two samples."""

    def __init__(
        self, nvml: Any, whole: Any, instance: int | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Open NVML's performance monitoring; `instance` is the GPU instance of a slice. Raises NVMLError."""
        self._nvml = nvml
        self._whole = whole
        self._instance = instance
        self._clock = clock
        self._samples: list[Any] = []
        self._at: float | None = None  # when the first of them was taken
        try:
            self._samples += [nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()]
        except BaseException:
            self.close()
            raise

    def read(self) -> dict[str, float | None]:
        """The GPU's activity ratios since the reading before, as far as this GPU has them; none the first time.

        Raises NVMLError.
        """
        now, nvml = self._clock(), self._nvml
        if self._at is not None and now - self._at < _LEAST_SECONDS:
            return {}
        before, after = self._samples
        if self._instance is None:
            nvml.nvmlGpmSampleGet(self._whole, after)
        else:
            nvml.nvmlGpmMigSampleGet(self._whole, self._instance, after)
        first, self._at = self._at is None, now
        self._samples = [after, before]
        return {} if first else self._between(before, after)

    def close(self) -> None:
        for sample in self._samples:
            with suppress(Exception):  # a GPU that is gone closes as it likes
                self._nvml.nvmlGpmSampleFree(sample)

    def _between(self, before: Any, after: Any) -> dict[str, float | None]:
        nvml = self._nvml
        query = nvml.c_nvmlGpmMetricsGet_t()
        query.version = nvml.NVML_GPM_METRICS_GET_VERSION
        query.numMetrics = len(_RATIOS)
        query.sample1, query.sample2 = before, after
        for metric, name in zip(query.metrics, _RATIOS.values(), strict=False):
            metric.metricId = getattr(nvml, name)
        nvml.nvmlGpmMetricsGet(query)
        values = zip(_RATIOS, query.metrics, strict=False)
        return {name: _ratio(metric.value) for name, metric in values if metric.nvmlReturn == nvml.NVML_SUCCESS}


def _ratio(percent: float) -> float | None:
    return round(percent / 100, 4) if math.isfinite(percent) else None
