"""Bad records of an export without Spark: quarantine files as tasks write them, and commits that list them."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pyarrow as pa

from penstock.flow.write.files import StagedWriter, WriteOptions
from penstock.flow.write.manifest import Counts, StagedFile
from penstock.flow.write.names import staged_name
from penstock.flow.write.quarantine import QUARANTINE_SCHEMA
from penstock.flow.write.report import UNROUTED, Share
from penstock.logs.log import Partition, Slice
from tests.support.export_root import ExportRoot, Rows
from tests.support.quarantine_url import export_quarantine


def stage_bad(root: ExportRoot, partition: Partition, place: tuple[int, int], bad: Sequence[int]) -> StagedFile:
    """Write the quarantine file of a slice."""
    rows = [
        {
            "job": root.job.name,
            "topic": partition.topic,
            "topic_id": partition.topic_id,
            "partition": partition.number,
            "offset": offset,
            "value": b"bad",
            "error": "not JSON",
            "quarantined_at": datetime.now(UTC),
        }
        for offset in bad
    ]
    writer = StagedWriter(
        WriteOptions(export_quarantine(root.job), QUARANTINE_SCHEMA),
        lambda: staged_name(partition.topic_id, partition.number, *place, uuid.uuid4().hex),
        partition.topic,
        partition.number,
    )
    writer.write(pa.RecordBatch.from_pylist(rows, schema=QUARANTINE_SCHEMA))
    [file] = writer.finish()
    return file


def write_with_bad(
    root: ExportRoot,
    partition: Partition,
    place: tuple[int, int],
    rows: Rows,
    bad: Sequence[int],
    of: str = UNROUTED,
    filtered: int = 0,
) -> None:
    """Commit a slice in which some records are bad, of a type or of none, and some are filtered out."""
    start, end = place
    shares = root.stage(partition, place, rows, pieces=(start,))
    file = stage_bad(root, partition, place, bad)
    counts = Counts(len(bad) + filtered, 0, len(bad), filtered)
    share = Share(counts, min(bad), quarantine_files=(file,))
    shares[of] = shares[of] + share if of in shares else share
    takes = dict.fromkeys(root.job.table.types, start)
    assert not root.land(Slice(partition, start, end, start), shares, takes).refused
    root.expected.update((name, partition.number, offset) for (name, _), offsets in rows.items() for offset in offsets)


def in_quarantine(root: ExportRoot) -> list[int]:
    """The offsets of the records in quarantine, sorted."""
    folder = Path(export_quarantine(root.job))
    if not (folder / "_delta_log").exists():
        return []
    return sorted(pl.read_delta(str(folder))["offset"].to_list())
