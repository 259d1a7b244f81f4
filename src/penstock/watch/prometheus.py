"""Events of running jobs as Prometheus metrics, and the small server that shows them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar, assert_never

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from penstock.errors import UserError
from penstock.events import Event
from penstock.status.metrics import Add, Change, Forget, Meter, Metric, Put, PutAll
from penstock.tables.kind import Kind
from penstock.tables.registry import KINDS
from penstock.watch.metrics import OF_ALL_JOBS, common_changes

M = TypeVar("M", Counter, Gauge, Histogram)
HOST = "127.0.0.1"
BATCH_SECONDS_BUCKETS = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 120.0, 300.0, 900.0)


class Metrics:
    """The metrics of a process, in a registry of its own; `listener(job)` gives each job its ear."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self.registry = CollectorRegistry()
        self.now = now
        every = (*OF_ALL_JOBS, *(metric for kind in KINDS.values() for metric in kind.metrics))
        self.counters = {
            each: Counter(*_named(each), registry=self.registry) for each in every if each.kind == "counter"
        }
        self.gauges = {each: Gauge(*_named(each), registry=self.registry) for each in every if each.kind == "gauge"}
        self.histograms = {
            each: Histogram(*_named(each), registry=self.registry, buckets=BATCH_SECONDS_BUCKETS)
            for each in every
            if each.kind == "histogram"
        }

    def listener(self, job: str, kind: Kind) -> JobMetrics:
        """The ear of one job; its counters begin at zero, with those of its kind of table."""
        for each in (*OF_ALL_JOBS, *kind.metrics):
            if each.labels == ("job",) and each in self.counters:
                self.counters[each].labels(job=job)
        return JobMetrics(self, job, kind.meter())

    @contextmanager
    def served(self, port: int) -> Iterator[None]:
        """Answer `/metrics` on this machine's own address while the block runs."""
        try:
            server, thread = start_http_server(port, addr=HOST, registry=self.registry)
        except OSError as error:
            raise UserError(f"cannot serve metrics on {HOST}:{port}", detail=str(error)) from error
        try:
            yield
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


class JobMetrics:
    """Hears the events of one job. Its claims speak from a thread of their own."""

    def __init__(self, metrics: Metrics, job: str, meter: Meter) -> None:
        self._metrics = metrics
        self._job = job
        self._meter = meter
        self._lock = threading.Lock()
        self._shown: dict[Metric, set[str]] = {}
        """Labels of what is shown until it is no longer told."""

    def event(self, event: Event) -> None:
        with self._lock:
            for change in (*common_changes(event, self._metrics.now()), *self._meter(event)):
                self._apply(change)

    def _apply(self, change: Change) -> None:
        match change:
            case Add(metric, amount, label) if metric in self._metrics.counters:
                self._child(self._metrics.counters[metric], label).inc(amount)
            case Add(metric, amount, label):
                self._child(self._metrics.gauges[metric], label).inc(amount)
            case Put(metric, value, label) if metric in self._metrics.histograms:
                self._child(self._metrics.histograms[metric], label).observe(value)
            case Put(metric, value, label):
                self._child(self._metrics.gauges[metric], label).set(value)
            case PutAll(metric, values):
                for label in self._shown.get(metric, set()) - values.keys():
                    self._metrics.gauges[metric].remove(self._job, label)
                for label, value in values.items():
                    self._child(self._metrics.gauges[metric], label).set(value)
                self._shown[metric] = set(values)
            case Forget(label, value):
                for metric, shown in self._shown.items():
                    if label in metric.labels and value in shown:
                        shown.discard(value)
                        self._metrics.gauges[metric].remove(self._job, value)
            case _:
                assert_never(change)

    def _child(self, metric: M, label: str | None) -> M:
        return metric.labels(self._job) if label is None else metric.labels(self._job, label)


def _named(metric: Metric) -> tuple[str, str, tuple[str, ...]]:
    return metric.name, metric.help, metric.labels
