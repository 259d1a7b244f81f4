"""The present rows of the keys of a few records: each record is decoded here, as a task does it, to know its key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import reduce
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import UserError
from penstock.job.spec import JobSpec
from penstock.lake.delta.files import ActiveFile
from penstock.lake.delta.opening import find_table
from penstock.lake.delta.table import DeltaLog
from penstock.logs.log import Batch, Slice
from penstock.proof.subject import staged_files
from penstock.quarantine.rows import where
from penstock.storage import open_storage
from penstock.tables.keyed.files import chunk_store, files_by_bucket
from penstock.tables.keyed.layout import DELETE, HIDDEN, SEQUENCE, key_frame
from penstock.tables.keyed.lookup import buckets_with, requested_values
from penstock.tables.keyed.merging.runs import parts_by_bucket, read_part
from penstock.tables.keyed.preview import KeyedPreview
from penstock.tables.keyed.spec import KeyedSpec
from penstock.tables.kind import RecordRows, TableRow

WITHOUT_SQL = RecordRows(note="The key of a record is computed by `sql:`, which needs Spark")
NOTE = "Shown is the row that the key of the record has now, which a newer record may have written"
Key = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class KeyedRecord:
    """The key of a record, its sequence, and whether it deletes the row."""

    key: Key
    bucket: int
    sequence: int
    deletes: bool


def present_rows(job: JobSpec[KeyedSpec], piece: Slice, records: Sequence[pa.RecordBatch]) -> RecordRows:
    if job.sql is not None:
        return WITHOUT_SQL
    preview = KeyedPreview(job)
    table = preview.log
    if table is None:
        return RecordRows()
    keyed = {
        offset: record
        for batch in records
        for row, offset in enumerate(batch.column("offset").to_pylist())
        if (record := _record(preview, job, piece, batch.slice(row, 1))) is not None
    }
    keys: dict[int, set[Key]] = {}
    for record in keyed.values():
        keys.setdefault(record.bucket, set()).add(record.key)
    rows = _rows(table, job, keys)
    return RecordRows({offset: (_shown(job, record, rows.get(record.key)),) for offset, record in keyed.items()}, NOTE)


def find_row(job: JobSpec[KeyedSpec], key: Mapping[str, str]) -> TableRow | None:
    """The present row of a key; a column of the key that is missing is a `UserError`."""
    table = find_table(job.table, job.name)
    if missing := [name for name in job.table.keys if not key.get(name)]:
        raise UserError(f"the key has no {', '.join(missing)}", hint=f"the key: {', '.join(job.table.keys)}")
    if table is None:
        return None
    values = requested_values(job.table.layout, table.schema, key)
    [bucket] = buckets_with(job.table.layout, table.schema, values) or [0]
    wanted = tuple(values[name][0] for name in job.table.keys)
    row = _rows(table, job, {bucket: {wanted}}).get(wanted)
    return None if row is None else TableRow(_visible(row))


def _visible(row: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in row.items() if name not in HIDDEN}


def _record(preview: KeyedPreview, job: JobSpec[KeyedSpec], piece: Slice, record: pa.RecordBatch) -> KeyedRecord | None:
    """What the record does; None if it would be quarantined or filtered."""
    offset = record.column("offset")[0].as_py()
    batch = Batch("explorer", (Slice(piece.partition, offset, offset + 1, offset),))
    with TemporaryDirectory(prefix="penstock-record-", ignore_cleanup_errors=True) as folder:
        files = [file for _, file in staged_files(preview.stage(batch, folder), [record])]
        storage = open_storage(f"{folder}/rows", {})
        parts = [(bucket, part) for bucket, of_bucket in parts_by_bucket(files).items() for part in of_bucket]
        for bucket, part in parts:
            row = read_part(storage, part)
            [key] = key_frame(job.table.layout, row).rows()
            return KeyedRecord(key, bucket, row.column(SEQUENCE)[0].as_py(), row.column(DELETE)[0].as_py())
    return None


def _rows(
    table: DeltaLog, job: JobSpec[KeyedSpec], keys_by_bucket: Mapping[int, Set[Key]]
) -> dict[Key, dict[str, object]]:
    """The rows of these keys, from the files of their buckets that may have them by their statistics."""
    layout, rows, store = job.table.layout, dict[Key, dict[str, object]](), chunk_store(job.table, table)
    buckets = files_by_bucket(table.active_files(layout.keys))
    for bucket, keys in keys_by_bucket.items():
        for file in buckets.get(bucket, ()):
            if near := [key for key in keys if _may_hold(file, layout.keys, key)]:
                held = store.left(file)
                is_near = reduce(pc.or_, (where(held, **dict(zip(layout.keys, key, strict=True))) for key in near))
                rows |= {tuple(row[name] for name in layout.keys): row for row in held.filter(is_near).to_pylist()}
    return rows


def _may_hold(file: ActiveFile, names: Sequence[str], key: Key) -> bool:
    spans = ((file.spans[name], value) for name, value in zip(names, key, strict=True))
    return all(span is None or span[0] <= value <= span[1] for span, value in spans)


def _shown(job: JobSpec[KeyedSpec], record: KeyedRecord, row: Mapping[str, object] | None) -> TableRow:
    if row is None:
        values = dict(zip(job.table.layout.keys, record.key, strict=True))
        note = "the key has no row now" + ("; the record deletes it" if record.deletes else "")
        return TableRow(values, note=note, exists=False)
    values = _visible(row)
    sequence = int(str(row[SEQUENCE]))
    if sequence == record.sequence:
        return TableRow(values, note="this record wrote the row")
    if record.deletes:
        return TableRow(values, note="the record deletes its key; a newer one wrote this row")
    return TableRow(values, note="another record wrote this row" if sequence > record.sequence else "an older row")
