"""The metrics of every job and how events change them; and their reference page."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, assert_never

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from penstock import events
from penstock.events import PartitionProgress
from penstock.reporting.metrics import Add, Change, Forget, Meter, Metric, Put, PutAll
from penstock.reporting.verdicts import Verdict
from penstock.tables.registry import KINDS
from penstock.watch.judging import Judged

if TYPE_CHECKING:
    from penstock.tables.kind import Kind

PAGE_HEAD = """\
# Metrics

`penstock run JOB... --metrics [HOST:]PORT` serves these in Prometheus' text format at `/metrics`; without a host on
`127.0.0.1`. `/healthz` answers 200 while the process runs, `/readyz` while every job makes progress, else 503 with the
reason.

All have the label `job`; those with the label `partition` exist for partitions that the process holds. Counters start
at 0 with the process; rates are for Prometheus, as in `rate(penstock_records_read_total[5m])`. Steps of a batch are
`plan`, `read`, `decode`, `write`, `commit` and `mirror`: the time of a batch's Spark job is divided among read, decode
and write as its tasks together divided theirs.

[deploy/grafana/penstock.json](../deploy/grafana/penstock.json) is a dashboard,
[deploy/prometheus/rules.yaml](../deploy/prometheus/rules.yaml) has alerts. Scrape with `honor_labels: true`: `job` is
the name of the Penstock job. `make docs` generates this page from the code.
"""

STEPS = ("plan", "read", "decode", "write", "commit", "mirror")
FILE_BUCKETS = tuple(float(4**power * 1024) for power in range(11))
"""1 KiB to 1 GiB."""
_of_partition = partial(Metric, labels=("job", "partition"))
VERDICTS = ", ".join(f"{verdict.severity} {verdict.value}" for verdict in Verdict)

JOB_RUNNING = Metric("penstock_job_running", "gauge", "1 while the job runs in this process, 0 once it has ended.")
JOB_FAILURES = Metric("penstock_job_failures_total", "counter", "Times the job ended with an error.")
JOB_VERDICT = Metric("penstock_job_verdict", "gauge", f"The worst verdict of the job: {VERDICTS}.")
RETRIES = Metric("penstock_retries_total", "counter", "Transient errors after which the job retried.")
LAST_ROUND = Metric("penstock_last_round_timestamp_seconds", "gauge", "Unix time of the last round that succeeded.")
CLAIMS_HELD = Metric("penstock_claims_held", "gauge", "Partitions claimed by this process; 0 without claims.")
HEARTBEAT_AGE = Metric(
    "penstock_heartbeat_age_seconds", "gauge", "Since the group last saw this process, as of the last round."
)
ALERT = Metric(
    "penstock_alert", "gauge",
    "1 while a limit is reached; rule is lag, age or retention, of exports also failed_writes or discrepancy.",
    ("job", "rule"),
)  # fmt: skip

POSITION = _of_partition("penstock_position", "gauge", "The next offset that the job reads.")
LOG_END = _of_partition("penstock_log_end", "gauge", "The end of the log, up to which records can be read.")
LAG_RECORDS = _of_partition(
    "penstock_lag_records", "gauge", "Unread offsets that the log has; of a job that reads a WAL its backlog."
)
LAG_SECONDS = _of_partition(
    "penstock_lag_seconds", "gauge", "Age of the oldest unread record, read every 30 s; 0 if there is none."
)
RETENTION_SHARE = _of_partition(
    "penstock_retention_share", "gauge", "That age as a share of the topic's retention, if it is limited."
)
VERDICT = _of_partition("penstock_verdict", "gauge", "The verdict, with the numbers of penstock_job_verdict.")

BATCHES = Metric(
    "penstock_batches_total", "counter", "Batches committed; kind is new, or catch_up for types that catch up.",
    ("job", "kind"), ("new", "catch_up"),
)  # fmt: skip
BATCH_SECONDS = Metric(
    "penstock_batch_seconds", "histogram", "Seconds from the start of a batch's Spark job to its commit."
)
STEP_SECONDS = Metric("penstock_step_seconds", "histogram", "Seconds of a step of a batch.", ("job", "step"), STEPS)
LAST_COMMIT = Metric("penstock_last_commit_timestamp_seconds", "gauge", "Unix time of the last committed batch.")
RECORDS_READ = Metric(
    "penstock_records_read_total", "counter", "Records of committed batches, including those read again for a type."
)
RECORDS_WRITTEN = Metric("penstock_records_written_total", "counter", "Records that became rows.")
RECORDS_QUARANTINED = Metric("penstock_records_quarantined_total", "counter", "Records that went to quarantine.")
RECORDS_FILTERED = Metric("penstock_records_filtered_total", "counter", "Records left out by the job file's rules.")
FILES_WRITTEN = Metric("penstock_files_written_total", "counter", "Data files of committed batches.")
BYTES_WRITTEN = Metric("penstock_bytes_written_total", "counter", "Bytes of these files.")
FILE_BYTES = Metric("penstock_file_bytes", "histogram", "Sizes of these files.", buckets=FILE_BUCKETS)
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
    JOB_RUNNING, JOB_VERDICT, JOB_FAILURES, RETRIES, LAST_ROUND, CLAIMS_HELD, HEARTBEAT_AGE, ALERT, POSITION, LOG_END,
    LAG_RECORDS, LAG_SECONDS, RETENTION_SHARE, VERDICT, BATCHES, BATCH_SECONDS, STEP_SECONDS, LAST_COMMIT, RECORDS_READ,
    RECORDS_WRITTEN, RECORDS_QUARANTINED, RECORDS_FILTERED, FILES_WRITTEN, BYTES_WRITTEN, FILE_BYTES, SLICES_REFUSED,
    SLICES_DROPPED, MIRROR_FAILURES,
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
        case events.Mirrored(seconds):
            yield Put(STEP_SECONDS, seconds, "mirror")
        case events.RoundDone():
            yield Put(LAST_ROUND, now)
        case events.ProgressMeasured():
            yield from _progress_changes(event)
        case events.RulesMeasured():
            for rule, texts in event.alerts.items():
                yield Put(ALERT, 1 if texts else 0, rule)
            if isinstance(event, Judged):
                yield Put(JOB_VERDICT, event.judgement.verdict.severity)
                if event.partitions:
                    yield PutAll(
                        VERDICT, {name: judgement.verdict.severity for name, judgement in event.partitions.items()}
                    )


def _batch_changes(batch: events.BatchCommitted, now: float) -> Iterator[Change]:
    yield Add(BATCHES, label="catch_up" if batch.catch_up else "new")
    yield Add(RECORDS_READ, batch.read)
    yield Add(RECORDS_WRITTEN, batch.written)
    yield Add(RECORDS_QUARANTINED, batch.quarantined)
    yield Add(RECORDS_FILTERED, batch.filtered)
    yield Add(FILES_WRITTEN, batch.files)
    yield Add(BYTES_WRITTEN, batch.size_bytes)
    yield Put(BATCH_SECONDS, batch.seconds)
    for step, seconds in batch.steps.items():
        yield Put(STEP_SECONDS, seconds, step)
    for size_bytes in batch.file_sizes:
        yield Put(FILE_BYTES, size_bytes)
    yield Put(LAST_COMMIT, now)


def _progress_changes(event: events.ProgressMeasured) -> Iterator[Change]:
    partitions = event.partitions
    yield PutAll(POSITION, {name: progress.position for name, progress in partitions.items()})
    yield PutAll(LOG_END, {name: progress.end for name, progress in partitions.items()})
    yield PutAll(LAG_RECORDS, {name: progress.lag for name, progress in partitions.items()})
    ages = {name: age for name, progress in partitions.items() if (age := _age(progress)) is not None}
    yield PutAll(LAG_SECONDS, ages)
    retention = {name: partitions[name].retention_seconds for name in ages}
    yield PutAll(RETENTION_SHARE, {name: ages[name] / kept for name, kept in retention.items() if kept})
    if event.heartbeat_age_seconds is not None:
        yield Put(HEARTBEAT_AGE, event.heartbeat_age_seconds)


def _age(progress: PartitionProgress) -> float | None:
    return progress.age_seconds if progress.lag else 0.0


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
        self.collectors: dict[Metric, Any] = {item: self._collector(item) for item in every}

    def _collector(self, item: Metric) -> Any:
        if item.kind == "histogram":
            return Histogram(item.name, item.help, item.labels, registry=self.registry, buckets=item.buckets)
        return (Counter if item.kind == "counter" else Gauge)(item.name, item.help, item.labels, registry=self.registry)

    def listener(self, job: str, kind: Kind) -> JobMetrics:
        """The listener of one job; its counters begin at zero, with those of its kind of table."""
        for item in (*OF_ALL_JOBS, *kind.metrics):
            for value in item.values:
                self.collectors[item].labels(job, value)
            if item.labels == ("job",) and (item.kind != "gauge" or item in (JOB_RUNNING, JOB_VERDICT)):
                self.collectors[item].labels(job)
        return JobMetrics(self, job, kind.meter())


@dataclass(slots=True)
class JobMetrics:
    """Counts the events of one job. Its claims report from a thread of their own."""

    metrics: Metrics
    job: str
    meter: Meter
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _shown: dict[Metric, dict[str, float]] = field(default_factory=dict)
    """Values by label that are shown until they are no longer reported."""
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
                shown = self._shown.get(metric, {})
                for label in shown.keys() - values.keys():
                    self.metrics.collectors[metric].remove(self.job, label)
                # Most partitions of a large job stay as they are.
                for label, value in values.items():
                    if shown.get(label) != value:
                        self._child(metric, label).set(value)
                self._shown[metric] = dict(values)
            case Forget(label, value):
                for metric, shown in self._shown.items():
                    if label in metric.labels and shown.pop(value, None) is not None:
                        self.metrics.collectors[metric].remove(self.job, value)
            case _:
                assert_never(change)

    def _child(self, metric: Metric, label: str | None) -> Any:
        return self.metrics.collectors[metric].labels(self.job, *([] if label is None else [label]))
