"""The names of all metrics, each with its help text and labels; the reference page is made from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PAGE_HEAD = """\
# Metrics

`penstock run JOB... --metrics PORT` serves these in Prometheus' text format on `http://127.0.0.1:PORT/metrics`, for all
jobs of the process together. Without it, or with `0`, no port is opened. Counters start at 0 with the process;
`penstock status` shows the totals of a table since its beginning.

Metrics with the label `partition` exist for the partitions that the process holds, and disappear when it loses them.

This page is generated from `src/penstock/watch/metrics.py`.
"""


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ("job",)


JOB_RUNNING = Metric("penstock_job_running", "gauge", "1 while the job runs in this process, 0 once it has ended.")
JOB_FAILURES = Metric("penstock_job_failures_total", "counter", "Times the job ended with an error.")
RETRIES = Metric("penstock_retries_total", "counter", "Transient errors after which the job retried.")
CLAIMS_HELD = Metric("penstock_claims_held", "gauge", "Partitions claimed by this process; 0 without claims.")

BATCHES = Metric(
    "penstock_batches_total", "counter", "Batches committed; kind is new, or behind for types that catch up.",
    ("job", "kind"),
)  # fmt: skip
BATCH_SECONDS = Metric(
    "penstock_batch_seconds", "histogram", "Seconds from the start of a batch's Spark job to its commit."
)
LAST_COMMIT = Metric("penstock_last_commit_timestamp_seconds", "gauge", "Unix time of the last committed batch.")
RECORDS_READ = Metric(
    "penstock_records_read_total",
    "counter",
    "Records read by committed batches, including those read again for a type.",
)
RECORDS_WRITTEN = Metric("penstock_records_written_total", "counter", "Records that became rows.")
RECORDS_QUARANTINED = Metric("penstock_records_quarantined_total", "counter", "Records that went to quarantine.")
RECORDS_FILTERED = Metric(
    "penstock_records_filtered_total", "counter", "Records left out by the rules of the job file."
)
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

POSITION = Metric(
    "penstock_position", "gauge", "The offset up to which the partition is read: the latest committable one.",
    ("job", "partition"),
)  # fmt: skip
GLOBAL_POSITION = Metric(
    "penstock_global_position", "gauge", "The offset below which every type is written.", ("job", "partition")
)
LAG_RECORDS = Metric(
    "penstock_lag_records", "gauge", "Offsets between the position and the end of the log.", ("job", "partition")
)
DISCREPANCY_RECORDS = Metric(
    "penstock_discrepancy_records", "gauge", "How far apart the types are; an up-to-date type is at the position.",
    ("job", "partition"),
)  # fmt: skip
FAILED_WRITES_PERCENT = Metric(
    "penstock_failed_writes_percent", "gauge", "The share of the last writes of a type to its final place that failed.",
    ("job", "type"),
)  # fmt: skip
FAILED_WRITES_ALL_PERCENT = Metric(
    "penstock_failed_writes_all_percent", "gauge", "The same share over all types together."
)
ALERT = Metric(
    "penstock_alert", "gauge", "1 while a limit is exceeded; rule is failed_writes, lag, discrepancy or retention.",
    ("job", "rule"),
)  # fmt: skip
TYPE_BEHIND_RECORDS = Metric(
    "penstock_type_behind_records", "gauge", "The lag of a type, in offsets, in the partition where it is largest.",
    ("job", "type"),
)  # fmt: skip
TYPE_WATERMARK = Metric(
    "penstock_type_watermark_timestamp_seconds", "gauge", "Event time up to which a type is complete; never decreases.",
    ("job", "type"),
)  # fmt: skip
TYPE_FAILING = Metric(
    "penstock_type_failing", "gauge", "1 from a failed write of a type until it is written again.",
    ("job", "type"),
)  # fmt: skip
TYPE_FAILURES = Metric(
    "penstock_type_failures_total", "counter", "Times a type could not be written for a new reason.",
    ("job", "type"),
)  # fmt: skip
DAYS_COMPLETED = Metric("penstock_days_completed_total", "counter", "Days that became complete.", ("job", "type"))
DAYS_REOPENED = Metric(
    "penstock_days_reopened_total", "counter", "Complete days that received late rows.", ("job", "type")
)
DAY_MARKER_FAILURES = Metric(
    "penstock_day_marker_failures_total", "counter", "Times a day's marker file could not be written."
)

OF_ALL_JOBS = (
    JOB_RUNNING, JOB_FAILURES, RETRIES, CLAIMS_HELD, BATCHES, BATCH_SECONDS, LAST_COMMIT, RECORDS_READ, RECORDS_WRITTEN,
    RECORDS_QUARANTINED, RECORDS_FILTERED, FILES_WRITTEN, BYTES_WRITTEN, SLICES_REFUSED, SLICES_DROPPED,
    MIRROR_FAILURES,
)  # fmt: skip
OF_EXPORTS = (
    POSITION, GLOBAL_POSITION, LAG_RECORDS, DISCREPANCY_RECORDS, FAILED_WRITES_PERCENT, FAILED_WRITES_ALL_PERCENT,
    ALERT, TYPE_BEHIND_RECORDS, TYPE_WATERMARK, TYPE_FAILING, TYPE_FAILURES, DAYS_COMPLETED, DAYS_REOPENED,
    DAY_MARKER_FAILURES,
)  # fmt: skip


def page() -> str:
    """The reference page `docs/metrics.md`."""
    return f"{PAGE_HEAD}\n## Of all jobs\n\n{_rows(OF_ALL_JOBS)}\n## Of exports\n\n{_rows(OF_EXPORTS)}"


def _rows(metrics: tuple[Metric, ...]) -> str:
    lines = ["| name | kind | labels | what it is |", "|---|---|---|---|"]
    for each in metrics:
        labels = ", ".join(f"`{label}`" for label in each.labels)
        lines.append(f"| `{each.name}` | {each.kind} | {labels} | {each.help} |")
    return "\n".join(lines) + "\n"
