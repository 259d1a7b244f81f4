"""The metrics of every job and how they follow from events; the reference page, with those of each kind of table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from penstock.status.metrics import Add, Change, Forget, Metric, Put, number
from penstock.tables.registry import KINDS

PAGE_HEAD = """\
# Metrics

`penstock run JOB... --metrics PORT` serves these in Prometheus' text format on `http://127.0.0.1:PORT/metrics`, for all
jobs of the process together. Without it, or with `0`, nothing listens. Everything is counted from the start of the
process; what a table holds since its beginning is told by `penstock status`.

What is labelled by partition is there for the partitions that the process holds, and goes when it loses them.

This page is made from `src/penstock/watch/metrics.py` and from what each kind of table declares.
"""


JOB_RUNNING = Metric("penstock_job_running", "gauge", "1 while the job runs in this process, 0 once it has ended.")
JOB_FAILURES = Metric("penstock_job_failures_total", "counter", "Times that the job ended with an error.")
RETRIES = Metric("penstock_retries_total", "counter", "Passing errors after which the job tried again.")
CLAIMS_HELD = Metric(
    "penstock_claims_held", "gauge", "Partitions that this process holds a claim of; 0 without claims."
)

BATCHES = Metric(
    "penstock_batches_total", "counter", "Batches committed; kind is new, or behind for types that catch up.",
    ("job", "kind"),
)  # fmt: skip
BATCH_SECONDS = Metric(
    "penstock_batch_seconds", "histogram", "Seconds from the beginning of a batch's Spark job to its commit."
)
LAST_COMMIT = Metric("penstock_last_commit_timestamp_seconds", "gauge", "When the last batch was committed, unix time.")
RECORDS_READ = Metric(
    "penstock_records_read_total", "counter", "Records that committed batches read, also those read again for a type."
)
RECORDS_WRITTEN = Metric("penstock_records_written_total", "counter", "Records that became rows.")
RECORDS_QUARANTINED = Metric("penstock_records_quarantined_total", "counter", "Records that went to quarantine.")
RECORDS_FILTERED = Metric("penstock_records_filtered_total", "counter", "Records that the job leaves out by its rules.")
FILES_WRITTEN = Metric("penstock_files_written_total", "counter", "Data files of committed batches.")
BYTES_WRITTEN = Metric("penstock_bytes_written_total", "counter", "Bytes of these files.")
SLICES_REFUSED = Metric(
    "penstock_slices_refused_total", "counter", "Slices that the table refused because of another owner."
)
SLICES_DROPPED = Metric(
    "penstock_slices_dropped_total", "counter", "Slices left uncommitted because their claim was lost meanwhile."
)
MIRROR_FAILURES = Metric(
    "penstock_mirror_failures_total", "counter", "Times that positions could not be shown in the consumer group."
)

OF_ALL_JOBS = (
    JOB_RUNNING, JOB_FAILURES, RETRIES, CLAIMS_HELD, BATCHES, BATCH_SECONDS, LAST_COMMIT, RECORDS_READ, RECORDS_WRITTEN,
    RECORDS_QUARANTINED, RECORDS_FILTERED, FILES_WRITTEN, BYTES_WRITTEN, SLICES_REFUSED, SLICES_DROPPED,
    MIRROR_FAILURES,
)  # fmt: skip
_COUNTED = {
    "retrying": RETRIES,
    "slice refused": SLICES_REFUSED,
    "slice dropped": SLICES_DROPPED,
    "job failed": JOB_FAILURES,
    "job crashed": JOB_FAILURES,
    "mirror failed": MIRROR_FAILURES,
    "mirror refused": MIRROR_FAILURES,
}
_SUMMED = {
    "read": RECORDS_READ,
    "written": RECORDS_WRITTEN,
    "quarantined": RECORDS_QUARANTINED,
    "filtered": RECORDS_FILTERED,
    "files": FILES_WRITTEN,
    "size_bytes": BYTES_WRITTEN,
}
_RUNNING = {"job started": 1, "job stopped": 0, "job failed": 0, "job crashed": 0}
_CLAIMS = {"claim won": 1, "claim lost": -1, "claim released": -1}


def common_changes(name: str, fields: Mapping[str, object], now: float) -> Iterator[Change]:
    """What an event changes, whatever the kind of table."""
    if name in _COUNTED:
        yield Add(_COUNTED[name])
    if name in _RUNNING:
        yield Put(JOB_RUNNING, _RUNNING[name])
    if name in _CLAIMS:
        yield Add(CLAIMS_HELD, _CLAIMS[name])
        if _CLAIMS[name] < 0:
            yield Forget("partition", str(fields["partition"]))
    if name == "batch committed":
        yield Add(BATCHES, label="behind" if fields.get("catch_up") else "new")
        yield from (Add(metric, number(fields.get(field, 0))) for field, metric in _SUMMED.items())
        yield Put(BATCH_SECONDS, number(fields.get("seconds", 0)))
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
