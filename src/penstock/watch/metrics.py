"""The metrics of every job and how events change them; the server that shows them; and their reference page."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, assert_never

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from penstock import events
from penstock.errors import UserError
from penstock.reporting.metrics import Add, Change, Forget, Meter, Metric, Put, PutAll
from penstock.tables.registry import KINDS

if TYPE_CHECKING:
    from penstock.tables.kind import Kind

PAGE_HEAD = """\
# Metrics

`penstock run JOB... --metrics PORT` serves these in Prometheus' text format on `http://127.0.0.1:PORT/metrics`.
All have the label `job`; those with the label `partition` exist for partitions that the process holds. Counters start
at 0 with the process.

`make docs` generates this page from the code.
"""

JOB_RUNNING = Metric("penstock_job_running", "gauge", "1 while the job runs in this process, 0 once it has ended.")
JOB_FAILURES = Metric("penstock_job_failures_total", "counter", "Times the job ended with an error.")
RETRIES = Metric("penstock_retries_total", "counter", "Transient errors after which the job retried.")
CLAIMS_HELD = Metric("penstock_claims_held", "gauge", "Partitions claimed by this process; 0 without claims.")

BATCHES = Metric(
    "penstock_batches_total", "counter", "Batches committed; kind is new, or catch_up for types that catch up.",
    ("job", "kind"),
)  # fmt: skip
BATCH_SECONDS = Metric(
    "penstock_batch_seconds", "histogram", "Seconds from the start of a batch's Spark job to its commit."
)
LAST_COMMIT = Metric("penstock_last_commit_timestamp_seconds", "gauge", "Unix time of the last committed batch.")
RECORDS_READ = Metric(
    "penstock_records_read_total", "counter", "Records of committed batches, including those read again for a type."
)
RECORDS_WRITTEN = Metric("penstock_records_written_total", "counter", "Records that became rows.")
RECORDS_QUARANTINED = Metric("penstock_records_quarantined_total", "counter", "Records that went to quarantine.")
RECORDS_FILTERED = Metric("penstock_records_filtered_total", "counter", "Records left out by the job file's rules.")
FILES_WRITTEN = Metric("penstock_files_written_total", "counter", "Data files of committed batches.")
BYTES_WRITTEN = Metric("penstock_bytes_written_total", "counter", "Bytes of these files.")
SLICES_REFUSED = Metric(
    "penstock_slices_refused_total", "counter", "Slices that the table refused because of another owner."
)
SLICES_DROPPED = Metric(
    "penstock_slices_dropped_total", "counter", "Slices not committed because their claim was lost."
)
MIRROR_FAILURES = Metric(
    "penstock_mirror_failures_total", "counter", "Times positions could not be mirrored to the consumer group."
)

OF_ALL_JOBS = (
    JOB_RUNNING, JOB_FAILURES, RETRIES, CLAIMS_HELD, BATCHES, BATCH_SECONDS, LAST_COMMIT, RECORDS_READ, RECORDS_WRITTEN,
    RECORDS_QUARANTINED, RECORDS_FILTERED, FILES_WRITTEN, BYTES_WRITTEN, SLICES_REFUSED, SLICES_DROPPED,
    MIRROR_FAILURES,
)  # fmt: skip
_COUNTED: Mapping[type[events.Event], Metric] = {
    events.Retrying: RETRIES,
    events.SliceRefused: SLICES_REFUSED,
    events.SliceDropped: SLICES_DROPPED,
    events.JobFailed: JOB_FAILURES,
    events.JobCrashed: JOB_FAILURES,
    events.MirrorFailed: MIRROR_FAILURES,
    events.MirrorRefused: MIRROR_FAILURES,
}
HOST = "127.0.0.1"
BATCH_SECONDS_BUCKETS = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 120.0, 300.0, 900.0)
_COLLECTORS: Mapping[str, Callable[..., Any]] = {
    "counter": Counter,
    "gauge": Gauge,
    "histogram": partial(Histogram, buckets=BATCH_SECONDS_BUCKETS),
}


def common_changes(event: events.Event, now: float) -> Iterator[Change]:
    """What an event changes, whatever the kind of table."""
    if type(event) in _COUNTED:
        yield Add(_COUNTED[type(event)])
    match event:
        case events.JobStarted():
            yield Put(JOB_RUNNING, 1)
        case events.JobStopped() | events.JobFailed() | events.JobCrashed():
            yield Put(JOB_RUNNING, 0)
        case events.ClaimLost(partition) | events.ClaimReleased(partition):
            yield Forget("partition", partition)
        case events.BatchCommitted():
            yield from _batch_changes(event, now)


def _batch_changes(batch: events.BatchCommitted, now: float) -> Iterator[Change]:
    yield Add(BATCHES, label="catch_up" if batch.catch_up else "new")
    yield Add(RECORDS_READ, batch.read)
    yield Add(RECORDS_WRITTEN, batch.written)
    yield Add(RECORDS_QUARANTINED, batch.quarantined)
    yield Add(RECORDS_FILTERED, batch.filtered)
    yield Add(FILES_WRITTEN, batch.files)
    yield Add(BYTES_WRITTEN, batch.size_bytes)
    yield Put(BATCH_SECONDS, batch.seconds)
    yield Put(LAST_COMMIT, now)


def page() -> str:
    """The reference page `docs/metrics.md`."""
    of_kinds = {f"Of jobs with `table.{kind.name}`": kind.metrics for kind in KINDS.all() if kind.metrics}
    chapters = {"Of all jobs": OF_ALL_JOBS, **of_kinds}
    return PAGE_HEAD + "".join(f"\n## {title}\n\n{_rows(metrics)}" for title, metrics in chapters.items())


def _rows(metrics: tuple[Metric, ...]) -> str:
    lines = ["name | kind | label | meaning", "---|---|---|---"]
    for metric in metrics:
        labels = ", ".join(f"`{label}`" for label in metric.labels if label != "job")
        lines.append(f"`{metric.name}` | {metric.kind} | {labels} | {metric.help}")
    return "\n".join(lines) + "\n"


class Metrics:
    """The metrics of a process, in a registry of its own; `listener(job)` gives each job its listener."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self.registry = CollectorRegistry()
        self.now = now
        every = (*OF_ALL_JOBS, *(metric for kind in KINDS.all() for metric in kind.metrics))
        self.collectors: dict[Metric, Any] = {
            item: _COLLECTORS[item.kind](item.name, item.help, item.labels, registry=self.registry) for item in every
        }

    def listener(self, job: str, kind: Kind) -> JobMetrics:
        """The listener of one job; its counters begin at zero, with those of its kind of table."""
        for item in (*OF_ALL_JOBS, *kind.metrics):
            if item.labels == ("job",) and item.kind == "counter":
                self.collectors[item].labels(job=job)
        return JobMetrics(self, job, kind.meter())

    @contextmanager
    def served(self, port: int) -> Iterator[None]:
        """Answer `/metrics` on the loopback address while the block runs."""
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


@dataclass(slots=True)
class JobMetrics:
    """Counts the events of one job. Its claims report from a thread of their own."""

    metrics: Metrics
    job: str
    meter: Meter
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _shown: dict[Metric, set[str]] = field(default_factory=dict)
    """Labels that are shown until they are no longer reported."""
    _held: set[str] = field(default_factory=set)
    """Claimed partitions. After an outage a claim may be won again that was never reported as lost."""

    def event(self, event: events.Event) -> None:
        with self._lock:
            match event:
                case events.ClaimWon(partition):
                    self._held.add(partition)
                case events.ClaimLost(partition) | events.ClaimReleased(partition):
                    self._held.discard(partition)
            self._apply(Put(CLAIMS_HELD, len(self._held)))
            for change in (*common_changes(event, self.metrics.now()), *self.meter(event)):
                self._apply(change)

    def _apply(self, change: Change) -> None:
        match change:
            case Add(metric, amount, label):
                self._child(metric, label).inc(amount)
            case Put(metric, value, label) if metric.kind == "histogram":
                self._child(metric, label).observe(value)
            case Put(metric, value, label):
                self._child(metric, label).set(value)
            case PutAll(metric, values):
                for label in self._shown.get(metric, set()) - values.keys():
                    self.metrics.collectors[metric].remove(self.job, label)
                for label, value in values.items():
                    self._child(metric, label).set(value)
                self._shown[metric] = set(values)
            case Forget(label, value):
                for metric, shown in self._shown.items():
                    if label in metric.labels and value in shown:
                        shown.discard(value)
                        self.metrics.collectors[metric].remove(self.job, value)
            case _:
                assert_never(change)

    def _child(self, metric: Metric, label: str | None) -> Any:
        return self.metrics.collectors[metric].labels(self.job, *([] if label is None else [label]))
