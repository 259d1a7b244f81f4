"""The metrics of every job and how they follow from events; the reference page, with those of each kind of table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from penstock.events import (
    BatchCommitted,
    ClaimLost,
    ClaimReleased,
    ClaimWon,
    Event,
    JobCrashed,
    JobFailed,
    JobStarted,
    JobStopped,
    MirrorFailed,
    MirrorRefused,
    Retrying,
    SliceDropped,
    SliceRefused,
)
from penstock.status.metrics import Add, Change, Forget, Metric, Put
from penstock.tables.registry import KINDS

PAGE_HEAD = """\
# Metrics

`penstock run JOB... --metrics PORT` serves these in Prometheus' text format on `http://127.0.0.1:PORT/metrics`, for all
jobs of the process together. Without it, or with `0`, no port is opened. Counters start at 0 with the process;
`penstock status` shows the totals of a table since its beginning.

Metrics with the label `partition` exist for the partitions that the process holds, and disappear when it loses them.

This page is generated from `src/penstock/watch/metrics.py` and from the metrics that each kind of table declares.
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
_COUNTED: Mapping[type[Event], Metric] = {
    Retrying: RETRIES,
    SliceRefused: SLICES_REFUSED,
    SliceDropped: SLICES_DROPPED,
    JobFailed: JOB_FAILURES,
    JobCrashed: JOB_FAILURES,
    MirrorFailed: MIRROR_FAILURES,
    MirrorRefused: MIRROR_FAILURES,
}


def common_changes(event: Event, now: float) -> Iterator[Change]:
    """What an event changes, whatever the kind of table."""
    if type(event) in _COUNTED:
        yield Add(_COUNTED[type(event)])
    match event:
        case JobStarted():
            yield Put(JOB_RUNNING, 1)
        case JobStopped() | JobFailed() | JobCrashed():
            yield Put(JOB_RUNNING, 0)
        case ClaimWon():
            yield Add(CLAIMS_HELD, 1)
        case ClaimLost(partition) | ClaimReleased(partition):
            yield Add(CLAIMS_HELD, -1)
            yield Forget("partition", partition)
        case BatchCommitted():
            yield from _batch_changes(event, now)


def _batch_changes(batch: BatchCommitted, now: float) -> Iterator[Change]:
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
    of_kinds = {f"Of jobs with `table.{kind.name}`": kind.metrics for kind in KINDS.values() if kind.metrics}
    chapters = {"Of all jobs": OF_ALL_JOBS, **of_kinds}
    return PAGE_HEAD + "".join(f"\n## {title}\n\n{_rows(metrics)}" for title, metrics in chapters.items())


def _rows(metrics: tuple[Metric, ...]) -> str:
    lines = ["| name | kind | labels | what it is |", "|---|---|---|---|"]
    for each in metrics:
        labels = ", ".join(f"`{label}`" for label in each.labels)
        lines.append(f"| `{each.name}` | {each.kind} | {labels} | {each.help} |")
    return "\n".join(lines) + "\n"
