"""Prometheus families, made of declared metrics. A sample that does not fit its declaration raises a ValueError."""

from collections.abc import Iterator, Mapping

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)

from warpdesk_server.workers.metrics import METRICS
from warpdesk_server.workers.queue import buckets
from warpdesk_server.workers.queue.counts import Timed

Values = Mapping[tuple[str, ...], float | None]


def family(name: str, values: Values) -> Metric:
    """The Prometheus family of a counter or gauge. Keys of `values` are label values; a value None is left out."""
    declared = METRICS[name]
    kind = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}[declared.kind]
    made = kind(f"warpdesk_{name.removesuffix('_total')}", declared.help, labels=declared.labels)
    for labels, value in values.items():
        if value is not None:
            made.add_metric(declared.checked(labels), value)
    return made


def families(values: Mapping[str, Values]) -> Iterator[Metric]:
    """The Prometheus families of several counters and gauges, by metric name."""
    for name, samples in values.items():
        yield family(name, samples)


def times(name: str, values: Mapping[tuple[str, ...], Timed]) -> Metric:
    """The Prometheus family of times or sizes: a histogram, or a summary if the metric declares no bounds."""
    declared = METRICS[name]
    if not declared.bounds:
        summary = SummaryMetricFamily(f"warpdesk_{name}", declared.help, labels=declared.labels)
        for labels, timed in values.items():
            summary.add_metric(declared.checked(labels), timed.count, timed.sum)
        return summary
    histogram = HistogramMetricFamily(f"warpdesk_{name}", declared.help, labels=declared.labels)
    cumulative = _sizes if declared.kind == "sizes" else buckets.cumulative
    for labels, timed in values.items():
        at_most = cumulative(timed.buckets, declared.bounds)
        pairs = [(repr(float(bound)), float(count)) for bound, count in zip(declared.bounds, at_most, strict=True)]
        histogram.add_metric(declared.checked(labels), [*pairs, ("+Inf", float(timed.count))], timed.sum)
    return histogram


def _sizes(counts: Mapping[int, int], bounds: tuple[float, ...]) -> list[int]:
    return [sum(count for size, count in counts.items() if size <= bound) for bound in bounds]
