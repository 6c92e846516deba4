"""Families as the text that Prometheus reads. Only where prometheus-client, of the extra ``metrics``, is installed."""

from collections.abc import Iterable, Iterator
from typing import Any

import prometheus_client
from prometheus_client import multiprocess
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.utils import floatToGoString

from .families import Family, Histogram


def render(families: Iterable[Family], accept: str) -> tuple[bytes, str]:
    """Return the text and its content type, in the format that the Accept header asks for."""
    encoder, content_type = choose_encoder(accept)
    return encoder(_Collected(families)), content_type


class _Collected:
    """As much of a registry as an encoder needs."""

    def __init__(self, families: Iterable[Family]) -> None:
        self._families = families

    def collect(self) -> Iterator[Any]:
        return (_metric(family) for family in self._families)


def _metric(family: Family) -> Metric:
    if family.kind == "histogram":
        metric = HistogramMetricFamily(family.name, family.help, labels=family.labels)
        for values, value in family.samples:
            assert isinstance(value, Histogram)
            metric.add_metric(values, buckets=_cumulated(value), sum_value=value.sum)
        return metric
    cls = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    plain = cls(family.name, family.help, labels=family.labels)
    for values, value in family.samples:
        assert not isinstance(value, Histogram)
        plain.add_metric(values, value)
    return plain


def _cumulated(value: Histogram) -> list[tuple[str, float]]:
    total, buckets = 0, []
    for bound, count in zip((*value.bounds, float("inf")), value.counts, strict=True):
        total += count
        buckets.append((floatToGoString(bound), float(total)))  # type: ignore[no-untyped-call]  # theirs
    return buckets


class SharedCounter:
    """A counter that all processes of PROMETHEUS_MULTIPROC_DIR add to; only with prometheus-client."""

    def __init__(self, name: str, help: str, labels: tuple[str, ...]) -> None:
        self._name, self._help, self._labels = name, help, labels
        self._counter = prometheus_client.Counter(name, help, labels, registry=None)

    def add(self, values: tuple[str, ...], number: int) -> None:
        """Count, in this process."""
        self._counter.labels(*values).inc(number)

    def family(self) -> Family:
        """Return the sum over all processes, those that have ended too."""
        registry = prometheus_client.CollectorRegistry()
        samples = [
            (tuple(sample.labels[label] for label in self._labels), int(sample.value))
            for metric in multiprocess.MultiProcessCollector(registry).collect()  # type: ignore[no-untyped-call]  # theirs
            if f"{metric.name}_total" == self._name
            for sample in metric.samples
        ]
        return Family(self._name, "counter", self._help, self._labels, sorted(samples))
