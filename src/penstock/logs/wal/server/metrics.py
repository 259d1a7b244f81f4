"""What `GET /metrics` tells, in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from penstock.logs.wal.server.answers import Answers
from penstock.logs.wal.server.connections import Connections
from penstock.logs.wal.store.store import WalStore

_PARTITION = ("topic", "partition")


class WalMetrics:
    """Reads the numbers when they are asked for."""

    def __init__(self, store: WalStore, answers: Answers, connections: Connections) -> None:
        self._store = store
        self._answers = answers
        self._connections = connections
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """The present values, as Prometheus' client asks for them."""
        first = GaugeMetricFamily("penstock_wal_first_offset", "First offset that is kept", labels=_PARTITION)
        end = GaugeMetricFamily("penstock_wal_end_offset", "Durable end", labels=_PARTITION)
        size = GaugeMetricFamily("penstock_wal_bytes", "Bytes on disk", labels=_PARTITION)
        lag = GaugeMetricFamily("penstock_wal_lag", "Records a job has not committed", labels=(*_PARTITION, "job"))
        for topic in self._store.topics().values():
            for each in topic.partitions:
                place, bounds = [topic.name, str(each.number)], each.bounds()
                first.add_metric(place, bounds.first)
                end.add_metric(place, bounds.end)
                size.add_metric(place, each.size_bytes)
                for job, positions in self._store.jobs.all().items():
                    if topic.name in positions:
                        lag.add_metric([*place, job], bounds.end - positions[topic.name].get(each.number, 0))
        yield from (first, end, size, lag)
        yield GaugeMetricFamily("penstock_wal_connections", "Open connections", value=len(self._connections))
        yield CounterMetricFamily(
            "penstock_wal_appended_records", "Records of answered appends", value=self._answers.appended_records
        )
