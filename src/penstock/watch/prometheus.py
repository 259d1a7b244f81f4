"""Events of running jobs as Prometheus metrics, and the small server that shows them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from penstock.errors import UserError
from penstock.tables.export.status.alerts import RULES_EVENT
from penstock.watch import metrics as names
from penstock.watch.metrics import Metric

HOST = "127.0.0.1"
BATCH_SECONDS_BUCKETS = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 120.0, 300.0, 900.0)

_COUNTED = {
    "retrying": names.RETRIES,
    "slice refused": names.SLICES_REFUSED,
    "slice dropped": names.SLICES_DROPPED,
    "job failed": names.JOB_FAILURES,
    "job crashed": names.JOB_FAILURES,
    "mirror failed": names.MIRROR_FAILURES,
    "mirror refused": names.MIRROR_FAILURES,
    "day marker failed": names.DAY_MARKER_FAILURES,
}
_DAYS = {"day complete": names.DAYS_COMPLETED, "day opened again": names.DAYS_REOPENED}
_SUMMED = {
    "read": names.RECORDS_READ,
    "written": names.RECORDS_WRITTEN,
    "quarantined": names.RECORDS_QUARANTINED,
    "filtered": names.RECORDS_FILTERED,
    "files": names.FILES_WRITTEN,
    "size_bytes": names.BYTES_WRITTEN,
}
_RUNNING = {"job started": 1, "job stopped": 0, "job failed": 0, "job crashed": 0}
_CLAIMS = {"claim won": 1, "claim lost": -1, "claim released": -1}
_FAILING = {"type cannot be written": 1, "type stopped by a gap": 1, "type written again": 0}
_MEASURED = {
    "lag_records": names.LAG_RECORDS,
    "discrepancy_records": names.DISCREPANCY_RECORDS,
    "position": names.POSITION,
    "global_position": names.GLOBAL_POSITION,
    "failed_writes_percent_by_type": names.FAILED_WRITES_PERCENT,
    "behind_records": names.TYPE_BEHIND_RECORDS,
}
"""Fields of the rules' event whose keys are a partition or a type: what is not among them any more is taken away."""
_BY_PARTITION = tuple(each for each in _MEASURED.values() if "partition" in each.labels)


class Metrics:
    """The metrics of a process, in a registry of its own; `listener(job)` gives each job its ear."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self.registry = CollectorRegistry()
        self.now = now
        every = (*names.OF_ALL_JOBS, *names.OF_EXPORTS)
        self.counters = {
            each: Counter(*_named(each), registry=self.registry) for each in every if each.kind == "counter"
        }
        self.gauges = {each: Gauge(*_named(each), registry=self.registry) for each in every if each.kind == "gauge"}
        self.histograms = {
            each: Histogram(*_named(each), registry=self.registry, buckets=BATCH_SECONDS_BUCKETS)
            for each in every
            if each.kind == "histogram"
        }

    def listener(self, job: str, export: bool = False) -> JobMetrics:
        """The ear of one job; its counters begin at zero, of an export also those that only exports have."""
        for each in (*names.OF_ALL_JOBS, *(names.OF_EXPORTS if export else ())):
            if each.labels == ("job",) and each in self.counters:
                self.counters[each].labels(job=job)
        return JobMetrics(self, job)

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

    def __init__(self, metrics: Metrics, job: str) -> None:
        self._metrics = metrics
        self._job = job
        self._lock = threading.Lock()
        self._children: dict[Metric, set[str]] = {}
        self._marks: dict[str, float] = {}
        self._last_told: dict[tuple[str, str], Metric] = {}

    def event(self, name: str, **fields: object) -> None:
        with self._lock:
            self._hear(name, fields)

    def _hear(self, name: str, fields: Mapping[str, object]) -> None:
        if name in _COUNTED:
            self._metrics.counters[_COUNTED[name]].labels(job=self._job).inc()
        if name in _DAYS:
            self._count_day(_DAYS[name], str(fields["type"]), str(fields["day"]))
        if name in _FAILING:
            self._metrics.gauges[names.TYPE_FAILING].labels(job=self._job, type=fields["type"]).set(_FAILING[name])
            self._metrics.counters[names.TYPE_FAILURES].labels(job=self._job, type=fields["type"]).inc(_FAILING[name])
        if name in _RUNNING:
            self._metrics.gauges[names.JOB_RUNNING].labels(job=self._job).set(_RUNNING[name])
        if name in _CLAIMS:
            self._metrics.gauges[names.CLAIMS_HELD].labels(job=self._job).inc(_CLAIMS[name])
            if _CLAIMS[name] < 0:
                self._forget_partition(str(fields["partition"]))
        if name == "batch committed":
            self._count_batch(fields)
        elif name == RULES_EVENT:
            self._show_rules(fields)

    def _count_batch(self, fields: Mapping[str, object]) -> None:
        kind = "behind" if fields.get("catch_up") else "new"
        self._metrics.counters[names.BATCHES].labels(job=self._job, kind=kind).inc()
        for name, metric in _SUMMED.items():
            self._metrics.counters[metric].labels(job=self._job).inc(_number(fields.get(name, 0)))
        self._metrics.histograms[names.BATCH_SECONDS].labels(job=self._job).observe(_number(fields.get("seconds", 0)))
        self._metrics.gauges[names.LAST_COMMIT].labels(job=self._job).set(self._metrics.now())

    def _count_day(self, metric: Metric, name: str, day: str) -> None:
        """A job that begins anew tells its last days once more: a day counts when it changes."""
        if self._last_told.get((name, day)) is not metric:
            self._last_told[name, day] = metric
            self._metrics.counters[metric].labels(job=self._job, type=name).inc()

    def _show_rules(self, fields: Mapping[str, object]) -> None:
        for name, metric in _MEASURED.items():
            self._show(metric, _mapping(fields.get(name)))
        if fields.get("failed_writes_percent") is not None:
            percent = _number(fields["failed_writes_percent"])
            self._metrics.gauges[names.FAILED_WRITES_ALL_PERCENT].labels(job=self._job).set(percent)
        for rule, texts in _mapping(fields.get("alerts")).items():
            self._metrics.gauges[names.ALERT].labels(job=self._job, rule=rule).set(1 if texts else 0)
        for name, mark in _mapping(fields.get("watermark")).items():
            self._marks[name] = max(self._marks.get(name, 0.0), _number(mark))
            self._metrics.gauges[names.TYPE_WATERMARK].labels(job=self._job, type=name).set(self._marks[name])

    def _show(self, metric: Metric, values: Mapping[str, object]) -> None:
        known = self._children.setdefault(metric, set())
        for key in known - values.keys():
            self._metrics.gauges[metric].remove(self._job, key)
        for key, value in values.items():
            self._metrics.gauges[metric].labels(self._job, key).set(_number(value))
        self._children[metric] = set(values)

    def _forget_partition(self, partition: str) -> None:
        for metric in _BY_PARTITION:
            if partition in self._children.get(metric, ()):
                self._children[metric].discard(partition)
                self._metrics.gauges[metric].remove(self._job, partition)


def _named(metric: Metric) -> tuple[str, str, tuple[str, ...]]:
    return metric.name, metric.help, metric.labels


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}
