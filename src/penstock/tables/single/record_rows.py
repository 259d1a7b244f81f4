"""The rows of a few records, found by the place that each row carries; only files that may hold some are read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.flow.write.names import parse_staged_name
from penstock.job.kafka_types import PLACE
from penstock.job.spec import DAY_FOLDER, JobSpec
from penstock.lake.delta.files import ActiveFile, refuse_deletion_vectors
from penstock.lake.delta.table import DeltaLog
from penstock.logs.log import Slice
from penstock.proof.subject import PLACE_REMEDY, PlaceColumns, extent, place_of
from penstock.storage import NotFoundError
from penstock.tables.kind import RecordRows, TableRow

FILES_MAX = 200
"""Of a table, the newest of those that may hold a row of the records."""
NO_PLACE = RecordRows(note=f"Rows do not carry the place of their record: {PLACE_REMEDY}")


def placed_rows(job: JobSpec, piece: Slice, tables: Iterable[tuple[str, DeltaLog]]) -> RecordRows:
    """The rows of the records in each of these tables, which have names if there are several."""
    rows: dict[int, list[TableRow]] = {}
    notes = []
    for name, table in tables:
        place = place_of(job, table.schema)
        if place is None:
            return NO_PLACE
        # Rows that another writer deleted would be shown.
        refuse_deletion_vectors(table.handle, table.spec.path)
        files = _files(table, place, piece)
        if len(files) > FILES_MAX:
            notes.append(f"{len(files) - FILES_MAX} older files of {name or 'the table'} were not searched")
        for file in files[:FILES_MAX]:
            for offset, values in _matching(table, file, place, piece):
                rows.setdefault(offset, []).append(TableRow(values, name))
    return RecordRows(rows, "; ".join(notes))


def _files(table: DeltaLog, place: PlaceColumns, piece: Slice) -> list[ActiveFile]:
    """The files that may hold rows of the slice by their statistics and names, newest first."""

    def may_hold(file: ActiveFile) -> bool:
        ranges = (("partition", piece.partition.number, piece.partition.number), ("offset", piece.start, piece.end - 1))
        for part, first, last in ranges:
            span = file.spans.get(place[part])
            if span is not None and not (span[0] <= last and first <= span[1]):
                return False
        names = map(parse_staged_name, (file.path, *(value for value in file.values if value is not None)))
        return all(
            name is None
            or (
                (name.topic_id, name.partition) == (piece.partition.topic_id, piece.partition.number)
                and (name.start < piece.end and piece.start < name.end)
            )
            for name in names
        )

    files = table.active_files((place["partition"], place["offset"]))
    return sorted(filter(may_hold, files), key=lambda file: -file.modified_at_ms)


def _matching(
    table: DeltaLog, file: ActiveFile, place: PlaceColumns, piece: Slice
) -> Iterator[tuple[int, dict[str, object]]]:
    try:
        reader = table.file_storage().open_reader(file.path)
    except NotFoundError:
        # Compacted and vacuumed meanwhile, or a plain file that waits for its final name.
        return
    stored = dict(zip(table.spec.partition_by, file.scalars, strict=True))
    shown = {name: value.as_py() for name, value in stored.items() if name in (*table.schema.names, DAY_FOLDER)}
    with reader as source, pq.ParquetFile(source, pre_buffer=False) as parquet:
        for group in range(parquet.num_row_groups):
            span = extent(parquet.metadata, place["offset"], [group])
            if span is not None and not (span[0] < piece.end and piece.start <= span[1]):
                continue
            rows = parquet.read_row_group(group, use_threads=False)
            rows = rows.filter(_at(rows, place, piece))
            for row in rows.to_pylist():
                # The places that were added are those of the record next to it.
                values = {name: value for name, value in row.items() if name not in PLACE.values()}
                yield int(row[place["offset"]]), {**values, **shown}


def _at(rows: pa.Table, place: PlaceColumns, piece: Slice) -> pa.ChunkedArray:
    offsets = rows.column(place["offset"])
    is_at = pc.and_(pc.greater_equal(offsets, piece.start), pc.less(offsets, piece.end))
    values = {"partition": piece.partition.number, "topic": piece.partition.topic}
    for part, value in values.items():
        if part in place and place[part] in rows.schema.names:
            is_at = pc.and_(is_at, pc.equal(rows.column(place[part]), value))
    return pc.fill_null(is_at, False)
