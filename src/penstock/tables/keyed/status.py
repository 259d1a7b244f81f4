"""How a job with a keyed table stands: as any single table, with its rows, buckets and chunks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from penstock.job.spec import JobSpec
from penstock.lake.delta.table import find_table
from penstock.logs.registry import OpenLog
from penstock.status.model import JobStatus, Section
from penstock.tables.keyed.files import read_active
from penstock.tables.keyed.spec import KeyedSpec
from penstock.tables.single.facts import table_status


def keyed_status(job: JobSpec[KeyedSpec], open_log: OpenLog, now: Callable[[], float]) -> JobStatus:
    """Ask table and log how the job stands."""
    status = table_status(job, open_log, now)
    table = find_table(job.table, job.name)
    if table is None:
        return status
    active = read_active(table, job.table.layout)
    chunks = [len(files) for files in active.by_bucket.values()]
    values = {"rows": active.rows, "buckets": len(chunks), "chunks": sum(chunks), "chunks_max": max(chunks, default=0)}
    line = (
        f"{active.rows} rows in {sum(chunks)} chunks of {len(chunks)} buckets, at most {max(chunks, default=0)} in one"
    )
    skipped = sum(each.totals.skipped for each in status.partitions)
    if skipped:
        line += f"; {skipped} records lost to newer ones of their keys"
    return replace(status, sections=(*status.sections, Section("keyed", values, lines=(line,))))
