"""The metrics of every job and how they follow from events; the reference page, with those of each kind of table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from penstock.status.metrics import Add, Change, Forget, Metric, Put, number
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
    "penstock_batches_total", "counter", "Batches committed; kind is new, or behind for types that catch up.",
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
