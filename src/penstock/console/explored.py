"""Records of a log around an offset or a time, next to what became of them; a few records, and bounded bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.console.records import LIST_BYTES_MAX, RECORD_BYTES_MAX, Content, cell_text, cut_content
from penstock.environment import Environment
from penstock.errors import UserError
from penstock.job.spec import JobSpec
from penstock.logs.log import Bounds, Log, Partition, Slice, SliceShrankError
from penstock.logs.registry import OpenLog
from penstock.logs.registry import open_log as open_log_of
from penstock.peek.sample import parse_start
from penstock.quarantine.rows import find_rows
from penstock.quarantine.table import open_quarantine
from penstock.tables.kind import RecordRows, TableRow
from penstock.tables.registry import kind_of

RECORDS_SHOWN = 20
BEFORE = 5
"""Records before the requested one."""
BYTES_MAX = 16 * 1024 * 1024
"""Of records that are read for a page; one more batch may exceed it."""
HEADERS_MAX = 50


@dataclass(frozen=True, slots=True)
class ShownRow:
    """A row of the table as text, with its type and what is to be said about it."""

    table: str
    note: str
    cells: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class ExploredRecord:
    offset: int
    at: datetime | None
    size_bytes: int
    fate: str
    """What became of the record: `in the table`, `in quarantine`, `not read yet`, `no row`, `not shown`."""
    error: str = ""
    """Why it is in quarantine."""
    rows: tuple[ShownRow, ...] = ()
    key: Content | None = None
    value: Content | None = None
    headers: tuple[tuple[str, Content], ...] = ()


@dataclass(frozen=True, slots=True)
class Explored:
    """A window of a partition."""

    partitions: tuple[Partition, ...]
    partition: Partition
    bounds: Bounds
    position: int | None
    start: int
    end: int
    records: tuple[ExploredRecord, ...] = ()
    note: str = ""
    """About the rows, or about what could not be read."""


def explore(
    job: JobSpec,
    name: str | None,
    around: str,
    positions: Mapping[str, int | None],
    *,
    single: bool = False,
    open_log: OpenLog = open_log_of,
) -> Explored:
    """The records around an offset or a time of TOPIC/PARTITION, or with `single` the one at this offset, in full.

    Without a name it is the first partition, and without a place the end of what is read.
    """
    with closing(open_log(job)) as log:
        partitions = log.partitions()
        by_name = {str(partition): partition for partition in partitions}
        if not partitions or (name is not None and name not in by_name):
            hint = f"its partitions: {', '.join(list(by_name)[:20])}" if by_name else ""
            raise UserError(f"{job.name} reads no partition {name or ''}".rstrip(), hint=hint)
        partition = partitions[0] if name is None else by_name[name]
        bounds = log.bounds([partition])[partition]
        position = positions.get(str(partition))
        at = _offset(log, partition, bounds, around, position)
        start = at if single else max(bounds.first, min(at, bounds.end) - BEFORE)
        piece = Slice(partition, start, max(start, min(bounds.end, start + (1 if single else RECORDS_SHOWN))), start)
        records, note = _read(log, piece)
    about_rows, shown = _explored(job, piece, records, position, RECORD_BYTES_MAX if single else LIST_BYTES_MAX)
    notes = "; ".join(filter(None, (note, about_rows)))
    return Explored(partitions, partition, bounds, position, piece.start, piece.end, shown, notes)


def _offset(log: Log, partition: Partition, bounds: Bounds, around: str, position: int | None) -> int:
    if not around:
        return max(bounds.first, min(bounds.end, position if position is not None else bounds.end) - BEFORE)
    match parse_start(around):
        case int(offset):
            return min(max(offset, bounds.first), bounds.end)
        case datetime() as at:
            return log.offset_at(partition, at.timestamp(), bounds)
        case "earliest":
            return bounds.first
        case _:
            return bounds.end


def _read(log: Log, piece: Slice) -> tuple[list[pa.RecordBatch], str]:
    """The records of the slice, up to a number of bytes, and why some are missing."""
    batches: list[pa.RecordBatch] = []
    try:
        for batch in log.records(piece.partition, piece.start, piece.end) if piece.offsets else ():
            batches.append(batch)
            if sum(item.nbytes for item in batches) > BYTES_MAX:
                return batches, "the records are large: fewer are shown"
    except SliceShrankError as error:
        return batches, error.primary
    return batches, ""


def _explored(
    job: JobSpec, piece: Slice, records: Sequence[pa.RecordBatch], position: int | None, bytes_max: int
) -> tuple[str, tuple[ExploredRecord, ...]]:
    """A note about the rows, and the records with their rows or errors, as far as the table has read them."""
    read_end = min(piece.end, position) if position is not None else piece.start
    rows, errors = RecordRows(), dict[int, str]()
    if piece.start < read_end:
        read = Slice(piece.partition, piece.start, read_end, piece.start)
        rows = kind_of(job).record_rows(job, read, _below(records, read_end))
        errors = _quarantined(job, read)
    result = []
    for row in chain.from_iterable(batch.to_pylist() for batch in records):
        of_record = rows.rows.get(row["offset"], ())
        if position is None or row["offset"] >= position:
            fate = "not read yet"
        elif row["offset"] in errors:
            fate = "in quarantine"
        elif any(item.exists for item in of_record):
            fate = "in the table"
        else:
            fate = "no row" if not rows.note or rows.rows else "not shown"
        shown = tuple(map(_shown_row, of_record))
        result.append(_record(row, fate, errors.get(row["offset"], ""), shown, bytes_max))
    return rows.note, tuple(result)


def _below(records: Sequence[pa.RecordBatch], end: int) -> list[pa.RecordBatch]:
    return [batch.filter(pc.less(batch.column("offset"), end)) for batch in records]


def _quarantined(job: JobSpec, piece: Slice) -> dict[int, str]:
    listings = kind_of(job).listings(job, Environment())
    table = None if listings is None else open_quarantine(job, listings.url)
    place = piece.partition
    rows = [] if table is None else find_rows(
        table, place.topic, place.number, piece.start, piece.end - 1, ["topic_id", "error"]
    )  # fmt: skip
    return {row["offset"]: row["error"] for row in rows if row["topic_id"] == place.topic_id}


def _record(
    row: Mapping[str, Any], fate: str, error: str, rows: tuple[ShownRow, ...], bytes_max: int
) -> ExploredRecord:
    headers = [
        (header["key"], cut_content(header["value"], LIST_BYTES_MAX)) for header in (row["headers"] or ())[:HEADERS_MAX]
    ]
    return ExploredRecord(
        row["offset"],
        None if row["timestamp"] is None else row["timestamp"].astimezone(UTC),
        len(row["value"] or b"") + len(row["key"] or b""),
        fate,
        error,
        rows,
        cut_content(row["key"], LIST_BYTES_MAX),
        cut_content(row["value"], bytes_max, error),
        tuple(headers),
    )


def _shown_row(row: TableRow) -> ShownRow:
    return ShownRow(row.table, row.note, tuple((name, cell_text(value)) for name, value in row.values.items()))
